// Compiled once per instruction set, with its flags and with MILLRACE_ISA as its name (see meson.build).

#include "cpu/kernels.h"

#include "cpu/attention_kernel.h"
#include "cpu/w8a8_channel_kernel.h"
#include "cpu/gather_kernel.h"
#include "cpu/kv_codes_kernel.h"
#include "cpu/latent_codes_kernel.h"
#include "cpu/latent_kernel.h"
#include "cpu/w8a8_kernel.h"
#include "cpu/gemm_kernel.h"
#include "cpu/elementwise_kernels.h"
#include "cpu/logit_kernels.h"
#include "cpu/recurrent_kernels.h"
#include "cpu/w8_interleaved_kernel.h"
#include "cpu/w8_kernel.h"
#include "cpu/nibble_kernel.h"
#include "cpu/byte_kernel.h"
#if defined(__AMX_BF16__)
#include "cpu/amx_attention_kernel.h"
#include "cpu/amx_latent_kernel.h"
#include "cpu/amx_w8a8_channel_kernel.h"
#include "cpu/amx_w8a8_kernel.h"
#include "cpu/amx_fp8_kernel.h"
#include "cpu/amx_kernel.h"
#include "cpu/amx_nibble_kernel.h"
#include "cpu/amx_byte_kernel.h"
#include "cpu/amx_w8_kernel.h"
#endif

namespace millrace::cpu {

#define MILLRACE_JOIN_(a, b) a##b
#define MILLRACE_JOIN(a, b) MILLRACE_JOIN_(a, b)

extern const Kernels MILLRACE_JOIN(kernels_, MILLRACE_ISA);
const Kernels MILLRACE_JOIN(kernels_, MILLRACE_ISA) = {
    .isa = MILLRACE_ISA_ENUM,
#if defined(__AVX512BF16__)
    .bf16_lhs = true,
#else
    .bf16_lhs = false,
#endif
#if defined(__AMX_BF16__)
    .tiles = true,
    .step_multiple = static_cast<int>(kTileSteps),
    .head_multiple = 32,
    .int8_lhs_group_bytes = kInt8LhsGroupBytes,
    .gemm_bf16 = gemm_amx,
    .attention_block_bf16 = attention_block_amx,
#else
    .tiles = false,
    .step_multiple = 1,
    .head_multiple = kLanes,
    .int8_lhs_group_bytes = kInt8LhsGroupBytes,
    .gemm_bf16 = gemm<Bf16Format>,
    .attention_block_bf16 = attention_block<Bf16Format>,
#endif
    .gemm_f32 = gemm<F32Format>,
#if defined(__AMX_BF16__)
    .gemm_w8_bf16 = gemm_w8_amx,
#elif defined(__AVX512BF16__)
    .gemm_w8_bf16 = gemm_interleaved<W8Panels>,
#else
    .gemm_w8_bf16 = nullptr,
#endif
    .gemm_w8_f32 = gemm_8_bits_f32<W8F32Panels>,
#if defined(__AMX_INT8__)
    .gemm_w8a8 = gemm_w8a8_amx,
#else
    .gemm_w8a8 = gemm_w8a8,
#endif
    .quantize_lhs = quantize_lhs,
    .attention_block_f32 = attention_block<F32Format>,
    .gather_keys = gather_keys,
    .gather_values_bf16 = gather_values_bf16,
    .attention_merge = attention_merge,
    .narrow = narrow,
    .widen = widen,
    .widen_f16 = widen_f16,
    .rms_norm = rms_norm,
    .add = add,
    .activate = activate,
    .rotate = rotate,
    .extremes = extremes,
    .find = find,
    .count_above = count_above,
    .block_max = block_max,
    .exp_sum = exp_sum,
    .collect = collect,
    .add_expert = add_expert,
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
    .w8_interleaved = true,
#endif
    .activate_rows = activate_rows,
    .attention_output = attention_output,
#if defined(__AMX_INT8__)
    .gemm_w8a8_channel = gemm_w8a8_channel_amx,
#else
    .gemm_w8a8_channel = gemm_w8a8_channel,
#endif
    .channel_step_bytes = kInt8StepBytes,
    .quantize_lhs_row = quantize_lhs_row,
    .add_partial_sums = add_partial_sums,
    .largest_magnitude = largest_magnitude,
    .quantize_lhs_part = quantize_lhs_part,
    .soft_cap = soft_cap,
#if defined(__AMX_INT8__)
    .gemm_nibbles = gemm_nibbles_amx,
#else
    .gemm_nibbles = gemm_nibbles,
#endif
    .quantize_lhs_codes = quantize_lhs_codes,
    .convolve = convolve,
    .delta_steps = delta_steps,
    .channel_decays = channel_decays,
    .state_space_steps = state_space_steps,
    .multiply = multiply,
    .gate = gate,
    .widen_kv_f32 = widen_kv_f32,
#if defined(__AVX512BF16__)
    .widen_kv_bf16 = widen_kv_bf16,
#else
    .widen_kv_bf16 = nullptr,
#endif
#if defined(__AMX_BF16__)
    .gemm_fp8_bf16 = gemm_fp8_amx,
#elif defined(__AVX512BF16__)
    .gemm_fp8_bf16 = gemm_interleaved<Fp8Panels>,
#else
    .gemm_fp8_bf16 = nullptr,
#endif
    .gemm_fp8_f32 = gemm_8_bits_f32<Fp8F32Panels>,
    .weigh_scores = weigh_scores,
#if defined(__AMX_INT8__)
    .gemm_bytes = gemm_bytes_amx,
#else
    .gemm_bytes = gemm_bytes,
#endif
    .signed_codes = kSignedCodeTables,
#if defined(__AMX_BF16__)
    .attention_block_latents = attention_block_latents_amx,
#elif defined(__AVX512BF16__)
    .attention_block_latents = attention_block_latents,
#else
    .attention_block_latents = nullptr,
#endif
    .widen_latents = widen_latents,
};

}  // namespace millrace::cpu
