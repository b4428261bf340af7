#pragma once

// GEMM by a warpgroup: four consecutive warps from a multiple of four, with operands in shared memory. Only compute
// capability 9.0 has these instructions, and only code for sm_90a may use them.

#include "cuda/mma.cuh"
#include "cuda/packed_weight.h"
#ifndef MILLRACE_EMULATED_CUDA
#include "cuda/sm_90a.cuh"
#endif

namespace millrace::cuda {

constexpr int kWarpgroupRows = 64;
constexpr int kWarpgroupThreads = 4 * kLanes;

/// Returns the descriptor of an operand in rows of kStepRowBytes at chunk_offset. Its address is that of row 0, a
/// multiple of kSwizzleBytes, plus 32 bytes per 16 earlier inputs. PTX ISA, "Matrix descriptor": bits 0…13 are the
/// address over 16. Bits 32…45 are the distance of groups of eight rows over 16, and 62…63 the swizzle.
__device__ inline uint64_t swizzled_operand(uint32_t address) {
  constexpr uint64_t kGroupDistance = kSwizzleBytes >> 4;
  constexpr uint64_t kSwizzle128 = 1;
  constexpr uint64_t kUnused = 1;  // the other distance has no effect here
  return static_cast<uint64_t>((address & 0x3FFFFu) >> 4) | kUnused << 16 | kGroupDistance << 32 | kSwizzle128 << 62;
}

#ifdef MILLRACE_EMULATED_CUDA

inline void fence_async_proxy() {
  emulator::fence_async_proxy();
}
inline void wgmma_fence() {
  emulator::wgmma_fence();
}
inline void wgmma_commit() {
  emulator::wgmma_commit();
}
template <int kPending>
void wgmma_wait() {
  emulator::wgmma_wait(kPending);
}
template <int kColumns>
void wgmma(float (*d)[4], uint64_t a, uint64_t b) {
  emulator::wgmma(&d[0][0], kColumns, a, b);
}
template <int kColumns>
void wgmma_registers(float (*d)[4], const uint32_t (&a)[4], uint64_t b) {
  emulator::wgmma_registers(&d[0][0], kColumns, a, b);
}
template <int kColumns>
void wgmma_e4m3(float (*d)[4], uint64_t a, uint64_t b, bool adds) {
  emulator::wgmma_e4m3(&d[0][0], kColumns, a, b, adds);
}

#else

/// Makes this thread's writes to shared memory, including copies that it has waited for, visible to wgmma after the
/// next barrier.
__device__ inline void fence_async_proxy() {
  MILLRACE_ON_SM_90A(asm volatile("fence.proxy.async.shared::cta;" :: : "memory"));
}
/// Precedes the first wgmma, and each one that follows other instructions on its sums.
__device__ inline void wgmma_fence() {
  MILLRACE_ON_SM_90A(asm volatile("wgmma.fence.sync.aligned;" :: : "memory"));
}
/// Closes a group of all wgmma since the last call.
__device__ inline void wgmma_commit() {
  MILLRACE_ON_SM_90A(asm volatile("wgmma.commit_group.sync.aligned;" :: : "memory"));
}
/// Waits until at most kPending of the latest groups are in flight. Until then their sums and operands must not be
/// touched.
template <int kPending>
__device__ void wgmma_wait() {
  MILLRACE_ON_SM_90A(asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory"));
}

/// Starts d += a · bᵀ of m64nNk16, bf16 into f32, N = kColumns; all threads of the warpgroup take part. With g and c as
/// in mma(), d[j] of warp w is mma's result for rows 16w… at columns 8j….
template <int kColumns>
__device__ void wgmma(float (*d)[4], uint64_t a, uint64_t b);

/// Starts d += a · bᵀ of m64nNk16 with `a` in registers: of warp w its rows 16w…, as in mma().
template <int kColumns>
__device__ void wgmma_registers(float (*d)[4], const uint32_t (&a)[4], uint64_t b);

/// Starts d = a · bᵀ, or d += a · bᵀ, of m64nNk32, E4M3 into f32.
template <int kColumns>
__device__ void wgmma_e4m3(float (*d)[4], uint64_t a, uint64_t b, bool adds);

#define MILLRACE_SUM(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define MILLRACE_SUMS_2(j) MILLRACE_SUM(j), MILLRACE_SUM(j + 1)
#define MILLRACE_SUMS_4(j) MILLRACE_SUMS_2(j), MILLRACE_SUMS_2(j + 2)
#define MILLRACE_SUMS_8(j) MILLRACE_SUMS_4(j), MILLRACE_SUMS_4(j + 4)
#define MILLRACE_SUMS_16(j) MILLRACE_SUMS_8(j), MILLRACE_SUMS_8(j + 8)
#define MILLRACE_SUMS_24(j) MILLRACE_SUMS_16(j), MILLRACE_SUMS_8(j + 16)
#define MILLRACE_SUMS_32(j) MILLRACE_SUMS_16(j), MILLRACE_SUMS_16(j + 16)
#define MILLRACE_NAMES_4 "%0,%1,%2,%3"
#define MILLRACE_NAMES_8 MILLRACE_NAMES_4 ",%4,%5,%6,%7"
#define MILLRACE_NAMES_16 MILLRACE_NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define MILLRACE_NAMES_32 MILLRACE_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define MILLRACE_NAMES_64                                                                        \
  MILLRACE_NAMES_32                                                                              \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54" \
  ",%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define MILLRACE_NAMES_96                                            \
  MILLRACE_NAMES_64                                                  \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79" \
  ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define MILLRACE_NAMES_128                                                       \
  MILLRACE_NAMES_96                                                              \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
  ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
// The product is added to d (the predicate), neither operand negated (1, 1), both in rows of inputs (0, 0).
#define MILLRACE_DEFINE_WGMMA(columns, names, sums, a_name, b_name)                                                    \
  template <>                                                                                                          \
  __device__ inline void wgmma<columns>(float(*d)[4], uint64_t a, uint64_t b) {                                        \
    MILLRACE_ON_SM_90A(                                                                                                \
        asm volatile("{.reg .pred adds; setp.eq.u32 adds, 0, 0;"                                                       \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" names "}, " a_name ", " b_name \
                     ", adds, 1, 1, 0, 0;}" : sums : "l"(a),                                                           \
                     "l"(b)));                                                                                         \
  }
MILLRACE_DEFINE_WGMMA(8, MILLRACE_NAMES_4, MILLRACE_SUM(0), "%4", "%5")
MILLRACE_DEFINE_WGMMA(16, MILLRACE_NAMES_8, MILLRACE_SUMS_2(0), "%8", "%9")
MILLRACE_DEFINE_WGMMA(32, MILLRACE_NAMES_16, MILLRACE_SUMS_4(0), "%16", "%17")
MILLRACE_DEFINE_WGMMA(64, MILLRACE_NAMES_32, MILLRACE_SUMS_8(0), "%32", "%33")
MILLRACE_DEFINE_WGMMA(128, MILLRACE_NAMES_64, MILLRACE_SUMS_16(0), "%64", "%65")
MILLRACE_DEFINE_WGMMA(192, MILLRACE_NAMES_96, MILLRACE_SUMS_24(0), "%96", "%97")
MILLRACE_DEFINE_WGMMA(256, MILLRACE_NAMES_128, MILLRACE_SUMS_32(0), "%128", "%129")
// An operand in registers has no order.
#define MILLRACE_DEFINE_WGMMA_REGISTERS(columns, names, sums, a_names, b_name)                                \
  template <>                                                                                                 \
  __device__ __forceinline__ void wgmma_registers<columns>(float(*d)[4], const uint32_t(&a)[4], uint64_t b) { \
    MILLRACE_ON_SM_90A(                                                                                       \
        asm volatile("{.reg .pred adds; setp.eq.u32 adds, 0, 0;"                                              \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" names "}, {" a_names  \
                     "}, " b_name ", adds, 1, 1, 0;}" : sums : "r"(a[0]),                                     \
                     "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)));                                               \
  }
MILLRACE_DEFINE_WGMMA_REGISTERS(8, MILLRACE_NAMES_4, MILLRACE_SUM(0), "%4,%5,%6,%7", "%8")
MILLRACE_DEFINE_WGMMA_REGISTERS(16, MILLRACE_NAMES_8, MILLRACE_SUMS_2(0), "%8,%9,%10,%11", "%12")
MILLRACE_DEFINE_WGMMA_REGISTERS(32, MILLRACE_NAMES_16, MILLRACE_SUMS_4(0), "%16,%17,%18,%19", "%20")
MILLRACE_DEFINE_WGMMA_REGISTERS(64, MILLRACE_NAMES_32, MILLRACE_SUMS_8(0), "%32,%33,%34,%35", "%36")
MILLRACE_DEFINE_WGMMA_REGISTERS(128, MILLRACE_NAMES_64, MILLRACE_SUMS_16(0), "%64,%65,%66,%67", "%68")
// Operands of E4M3 have no other order than rows of inputs.
#define MILLRACE_DEFINE_WGMMA_E4M3(columns, names, sums, a_name, b_name, adds_name)                          \
  template <>                                                                                                \
  __device__ inline void wgmma_e4m3<columns>(float(*d)[4], uint64_t a, uint64_t b, bool adds) {              \
    MILLRACE_ON_SM_90A(asm volatile("{.reg .pred adds; setp.ne.b32 adds, " adds_name ", 0;"                  \
                                    "wgmma.mma_async.sync.aligned.m64n" #columns "k32.f32.e4m3.e4m3 {" names \
                                    "}, " a_name ", " b_name ", adds, 1, 1;}" : sums : "l"(a),               \
                                    "l"(b), "r"(static_cast<uint32_t>(adds))));                              \
  }
MILLRACE_DEFINE_WGMMA_E4M3(16, MILLRACE_NAMES_8, MILLRACE_SUMS_2(0), "%8", "%9", "%10")
MILLRACE_DEFINE_WGMMA_E4M3(64, MILLRACE_NAMES_32, MILLRACE_SUMS_8(0), "%32", "%33", "%34")
MILLRACE_DEFINE_WGMMA_E4M3(128, MILLRACE_NAMES_64, MILLRACE_SUMS_16(0), "%64", "%65", "%66")
#undef MILLRACE_DEFINE_WGMMA_E4M3
#undef MILLRACE_DEFINE_WGMMA_REGISTERS
#undef MILLRACE_DEFINE_WGMMA
#undef MILLRACE_NAMES_128
#undef MILLRACE_NAMES_96
#undef MILLRACE_NAMES_64
#undef MILLRACE_NAMES_32
#undef MILLRACE_NAMES_16
#undef MILLRACE_NAMES_8
#undef MILLRACE_NAMES_4
#undef MILLRACE_SUMS_32
#undef MILLRACE_SUMS_24
#undef MILLRACE_SUMS_16
#undef MILLRACE_SUMS_8
#undef MILLRACE_SUMS_4
#undef MILLRACE_SUMS_2
#undef MILLRACE_SUM

#endif

/// Keeps the compiler from moving instructions on the sums of a wgmma before the wait that precedes this.
template <int kTiles>
__device__ void order_after_wait([[maybe_unused]] float (&sums)[kTiles][4]) {
#ifndef MILLRACE_EMULATED_CUDA
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sums[tile][i])::"memory");
  }
#endif
}

}  // namespace millrace::cuda
