// Compiled once per instruction set, with its flags and MILLRACE_ISA naming it (see meson.build).

#include "cpu/kernels.h"

#include "cpu/attention_kernel.h"
#include "cpu/channel_kernel.h"
#include "cpu/gather_kernel.h"
#include "cpu/int8_kernel.h"
#include "cpu/product_kernel.h"
#include "cpu/row_kernels.h"
#include "cpu/vocabulary_kernels.h"
#include "cpu/turned_w8_kernel.h"
#include "cpu/w8_kernel.h"
#if defined(__AMX_BF16__)
#include "cpu/amx_attention_kernel.h"
#include "cpu/amx_channel_kernel.h"
#include "cpu/amx_int8_kernel.h"
#include "cpu/amx_kernel.h"
#include "cpu/amx_w8_kernel.h"
#endif

namespace millrace::cpu {

#define MILLRACE_JOIN_(a, b) a##b
#define MILLRACE_JOIN(a, b) MILLRACE_JOIN_(a, b)

extern const Kernels MILLRACE_JOIN(kernels_, MILLRACE_ISA);
const Kernels MILLRACE_JOIN(kernels_, MILLRACE_ISA) = {
    .isa = MILLRACE_ISA_ENUM,
#if defined(__AVX512BF16__)
    .bf16_left = true,
#else
    .bf16_left = false,
#endif
#if defined(__AMX_BF16__)
    .tiles = true,
    .step_multiple = static_cast<int>(kTileSteps),
    .head_multiple = 32,
    .int8_left_bytes = kInt8LeftGroupBytes,
    .product_bf16 = product_amx,
    .attention_block_bf16 = attention_block_amx,
#else
    .tiles = false,
    .step_multiple = 1,
    .head_multiple = kLanes,
    .int8_left_bytes = kInt8LeftGroupBytes,
    .product_bf16 = product<Bf16Format>,
    .attention_block_bf16 = attention_block<Bf16Format>,
#endif
    .product_f32 = product<F32Format>,
#if defined(__AMX_BF16__)
    .product_w8_bf16 = product_w8_amx,
#elif defined(__AVX512BF16__)
    .product_w8_bf16 = product_turned_w8,
#else
    .product_w8_bf16 = nullptr,
#endif
    .product_w8_f32 = product_w8_f32,
#if defined(__AMX_INT8__)
    .product_int8 = product_int8_amx,
#else
    .product_int8 = product_int8,
#endif
    .round_left = round_left,
    .attention_block_f32 = attention_block<F32Format>,
    .gather_keys = gather_keys,
    .gather_values_bf16 = gather_values_bf16,
    .attention_merge = attention_merge,
    .narrow = narrow,
    .widen = widen,
    .widen_f16 = widen_f16,
    .rms_norm = rms_norm,
    .add = add,
    .silu_mul = silu_mul,
    .rotate = rotate,
    .extremes = extremes,
    .find = find,
    .count_above = count_above,
    .block_max = block_max,
    .exp_sum = exp_sum,
    .collect = collect,
    .add_scaled = add_scaled,
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
    .turned_w8 = true,
#endif
    .silu_mul_rows = silu_mul_rows,
    .attention_output = attention_output,
#if defined(__AMX_INT8__)
    .product_channels = product_channels_amx,
#else
    .product_channels = product_channels,
#endif
    .channel_step_bytes = kInt8StepBytes,
    .round_row = round_row,
};

}  // namespace millrace::cpu
