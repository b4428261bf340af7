#pragma once

// Instructions without a name in CUDA C++, as inline PTX; under the emulator, functions with the same register layouts.

#include "cuda/launch.h"

namespace millrace::cuda {

constexpr uint32_t kAllLanes = 0xFFFFFFFFu;
constexpr int kLanes = 32;

__device__ inline float bf16_to_float(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

/// Converts an IEEE binary16 to f32: exact, with subnormals, infinities and NaNs.
__device__ inline float binary16_to_float(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = (half & 0x7FFFu) << 13;
  if (magnitude >= 0x0F800000u) return __uint_as_float(sign | magnitude | 0x7F800000u);
  // Scaling by 2^112 moves the exponent's bias, and makes subnormals normal on the way.
  return __uint_as_float(sign | __float_as_uint(__uint_as_float(magnitude) * 0x1p112f));
}

#ifdef MILLRACE_EMULATED_CUDA

inline uint16_t float_to_bf16(float value) {
  const uint32_t word = __float_as_uint(value);
  if ((word & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFF;
  return static_cast<uint16_t>((word + 0x7FFFu + ((word >> 16) & 1u)) >> 16);
}
inline uint32_t pack_bf16(float low, float high) {
  return static_cast<uint32_t>(float_to_bf16(low)) | static_cast<uint32_t>(float_to_bf16(high)) << 16;
}
inline uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  const auto low = [](uint32_t pair) { return bf16_to_float(static_cast<uint16_t>(pair)); };
  const auto high = [](uint32_t pair) { return bf16_to_float(static_cast<uint16_t>(pair >> 16)); };
  return pack_bf16(std::fma(low(a), low(b), low(c)), std::fma(high(a), high(b), high(c)));
}
inline uint32_t masked_or(uint32_t word, uint32_t mask, uint32_t bits) {
  return (word & mask) | bits;
}
inline int32_t kept(int32_t value) {
  return value;
}
inline float exp2_fast(float x) {
  return std::exp2(x);
}
inline void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emulator::mma_m16n8k16(d, a, b);
}
/// Returns the byte address within the block's shared memory.
inline uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(static_cast<const std::byte*>(shared) - emulator::current_block().shared);
}
inline void load_matrix(uint32_t (&registers)[4], const void* row) {
  emulator::load_matrix(registers, row, false);
}
inline void load_matrix_transposed(uint32_t (&registers)[4], const void* row) {
  emulator::load_matrix(registers, row, true);
}
inline void copy_async(void* shared, const void* global, int bytes) {
  emulator::copy_async(shared, global, static_cast<uint32_t>(bytes));
}
inline void copy_word_async(void* shared, const void* global, int bytes) {
  emulator::copy_async(shared, global, static_cast<uint32_t>(bytes), 4);
}
inline void commit_copies() {
  emulator::commit_copies();
}
template <int kPending>
void wait_copies() {
  emulator::wait_copies(kPending);
}

#else

/// Packs two floats to bf16, rounded to nearest even. The low half of the word is the first element.
__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ inline uint16_t float_to_bf16(float value) {
  return static_cast<uint16_t>(pack_bf16(value, 0.0f));
}

/// Computes a · b + c of two pairs of bf16, rounded once. The emulator rounds a second time where f32 is not exact.
__device__ inline uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t sums;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sums) : "r"(a), "r"(b), "r"(c));
  return sums;
}

/// Returns (word & mask) | bits by one instruction. Of two constants the compiler makes two.
__device__ inline uint32_t masked_or(uint32_t word, uint32_t mask, uint32_t bits) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(word), "r"(mask), "r"(bits));
  return result;
}

/// Returns the value, which the compiler keeps in a register: it cannot compute it anew where it is used.
__device__ inline int32_t kept(int32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

/// Computes 2^x to 2 ulp; 0 for very negative x, exactly 1 at 0.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Computes d += a · b over m16n8k16, bf16 into f32. With g = lane / 4 and c = 2 · (lane % 4): a holds rows g, g + 8,
/// g, g + 8 at inputs c, c, c + 8, c + 8. b holds inputs c, c + 8 of column g. d holds rows g, g, g + 8, g + 8 at
/// columns c, c + 1, c, c + 1.
__device__ inline void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  // volatile: all lanes take part, so it must not move to where only some of them need the result.
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

/// Loads four 8×8 matrices of 16-bit elements. Lane i gives the address of row i % 8 of matrix i / 8. It receives, of
/// each matrix, elements c and c + 1 of row g (transposed: rows c and c + 1 of column g).
__device__ inline void load_matrix(uint32_t (&registers)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(shared_address(row)));
}
__device__ inline void load_matrix_transposed(uint32_t (&registers)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(shared_address(row)));
}

/// Starts a copy of 16 bytes to shared memory that bypasses the first-level cache. Bytes from `bytes` on are zeros.
/// Complete after a wait.
__device__ inline void copy_async(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(shared)), "l"(global), "r"(bytes)
               : "memory");
}
/// Starts a copy of 4 bytes, or of 4 zeros where `bytes` is 0.
__device__ inline void copy_word_async(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :
               : "r"(shared_address(shared)), "l"(global), "r"(bytes)
               : "memory");
}
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most kPending of this thread's latest groups are in flight.
template <int kPending>
__device__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

#endif

/// Returns byte `i` of a word plus 2^23.
__device__ inline float byte_to_float(uint32_t word, uint32_t i) {
  return __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7540u + i));
}

/// Returns the high bytes of a word's halves, E4M3, as bf16: exact, except that NaNs become ±480.
__device__ inline uint32_t high_e4m3_to_bf16(uint32_t high) {
  constexpr uint32_t kExponents = 0x7B807B80u;  // 2^120
  constexpr uint32_t kMinusZeros = 0x80008000u;
  // A bf16 with the number's exponent is 2^-120 of it, also where it is subnormal.
  const uint32_t small = (high & 0x80008000u) | (high & 0x7F007F00u) >> 4;
  return fma_bf16x2(small, kExponents, kMinusZeros);
}
/// Returns bytes 0 and 2 of a word, integers from -128 to 127, as bf16.
__device__ inline uint32_t int8_pair_to_bf16(uint32_t word) {
  constexpr uint32_t kOnes = 0x3F803F80u;
  const uint32_t low_bits = masked_or(word, 0x007F007Fu, 0x43004300u);  // 128 + the low seven bits
  const uint32_t offset = masked_or(word, 0x00800080u, 0xC300C300u);    // -128, or -256 with the sign
  return fma_bf16x2(low_bits, kOnes, offset);
}

/// Returns bytes 2·i and 2·i + 1 of a word, E4M3, as high_e4m3_to_bf16 does.
__device__ inline uint32_t e4m3_pair_to_bf16(uint32_t word, uint32_t i) {
  return high_e4m3_to_bf16(__byte_perm(word, 0, i == 0 ? 0x1404u : 0x3424u));
}

/// Returns the sum over the lanes, in a fixed order, to every lane.
template <class T>
__device__ T warp_sum(T value) {
  for (int bits = kLanes / 2; bits > 0; bits /= 2) value += __shfl_xor_sync(kAllLanes, value, bits);
  return value;
}

}  // namespace millrace::cuda
