#pragma once

// A block of 32 keys and values in codes of 8 bits. A warp dequantizes it straight to the operands of its products, or
// the warps of a block to a PlainBlock that they share. In either the channels of keys, queries and results have one
// order, so that the products are the same. Included by attention.cu only.

#include "cuda/attention_block.cuh"
#include "cuda/kv_codes.cuh"

namespace millrace::cuda {
namespace {

/// Returns where the products over codes have a channel: of each 16 the even ones come first. A word of four codes then
/// gives two operands without moving a byte.
__device__ constexpr int coded_channel_position(int channel) {
  return channel / 16 * 16 + channel % 2 * 8 + channel % 16 / 2;
}

/// The layout is [K|V][32 keys][kDim] codes in padded rows, then scales [part][32 keys][K|V].
template <int kDim, KvElement kElement>
struct CodedBlock {
  using Tile = HeadTile<kDim>;
  static constexpr int kRowBytes = kDim + 16;  ///< the chunks of eight rows fall into different banks
  static constexpr int kKeyBytes = kBlockKeys * kRowBytes;
  static constexpr int kCodeBytes = 2 * kKeyBytes;
  /// The channels that share a scale; E4M3 has one per head.
  static constexpr int kScaleChannels = kElement == KvElement::kInt8 ? kInt8ScaleChannels : kDim;
  static constexpr int kScaleParts = kDim / kScaleChannels;
  static constexpr int kBytes = kCodeBytes + kScaleParts * kBlockKeys * 4;

  /// Computes scores[n] = queries · keys of tile n, in mma's layout.
  static __device__ void score(const std::byte* queries, const std::byte* block, int lane, float (&scores)[4][4]) {
    const std::byte* const query = queries + (lane % 16) * Tile::kRowBytes + lane / 16 * 16;
    const std::byte* const codes = block + lane * kRowBytes;
    const auto* const scale_words = reinterpret_cast<const uint32_t*>(block + kCodeBytes) + lane / 4;
    uint32_t scales[4];
    // Wide heads have too few registers for all steps at once.
    constexpr int kUnroll = kDim > 128 ? 4 : kDim / 16;
#pragma unroll kUnroll
    for (int step = 0; step < kDim / 16; ++step) {
      if (step * 16 % kScaleChannels == 0) {
        const uint32_t* const part = scale_words + step * 16 / kScaleChannels * kBlockKeys;
#pragma unroll
        for (int tile = 0; tile < 4; ++tile) scales[tile] = __byte_perm(part[tile * 8], 0, 0x1010u);
      }
      uint32_t a[4];
      load_matrix(a, query + step * 32);
      uint32_t words[4];  // of four channels of a key of each tile
      load_matrix(words, codes + step * 16);
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
        const CodePairs pairs = dequantize_word<kElement>(words[tile], scales[tile]);
        const uint32_t b[2] = {pairs.even, pairs.odd};
        mma(scores[tile], a, b);
      }
    }
  }

  /// acc += probabilities · values of a part of the channels.
  static __device__ void add_values(const float (&p)[4][4], const std::byte* block, int lane, int part,
                                    RowState<kPartChannels<kDim>>& state) {
    constexpr int kOwn = kPartChannels<kDim>;
    const std::byte* const codes = block + kKeyBytes + (lane % 16) * kRowBytes + part * kOwn + lane / 16 * 16;
    const std::byte* const scale_words = block + kCodeBytes + lane % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t a[4];
      pack_probabilities(p, half, a);
#pragma unroll
      for (int pair = 0; pair < kOwn / 32; ++pair) {
        uint32_t words[4];  // of two channels of two keys: chunk 0, 0, 1, 1 and keys from 0, 8, 0, 8 on
        load_matrix_transposed(words, codes + half * 16 * kRowBytes + pair * 32);
        const int scale_part = (part * kOwn + pair * 32) / kScaleChannels;
        const std::byte* const scales = scale_words + (scale_part * kBlockKeys + half * 16) * 4;
        const uint32_t low_scales = value_scales(scales);
        const uint32_t high_scales = value_scales(scales + 8 * 4);
#pragma unroll
        for (int chunk = 0; chunk < 2; ++chunk) {
          const CodePairs low = dequantize_word<kElement>(words[chunk * 2], low_scales);
          const CodePairs high = dequantize_word<kElement>(words[chunk * 2 + 1], high_scales);
          const uint32_t even[2] = {low.even, high.even};
          const uint32_t odd[2] = {low.odd, high.odd};
          mma(state.acc[pair * 4 + chunk * 2], a, even);
          mma(state.acc[pair * 4 + chunk * 2 + 1], a, odd);
        }
      }
    }
  }

  /// Dequantizes a block to a PlainBlock, whose channels have the order of coded_channel_position. Other threads may
  /// read it after a barrier.
  template <int kThreads>
  static __device__ void dequantize(const std::byte* block, int thread, std::byte* plain) {
    constexpr int kRows = 2 * kBlockKeys;  // keys, then values
    static_assert(kThreads % kRows == 0 && kDim / 16 % (kThreads / kRows) == 0);
    const int row = thread % kRows;
    const std::byte* const codes = block + row * kRowBytes;
    std::byte* const to = plain + row * Tile::kRowBytes;
    const std::byte* const scale = block + kCodeBytes + row % kBlockKeys * 4 + row / kBlockKeys * 2;
    constexpr int kStride = kThreads / kRows;
#pragma unroll 4
    for (int n = 0; n < kDim / 16 / kStride; ++n) {
      const int chunk = n * kStride + thread / kRows;
      const int part = chunk * 16 / kScaleChannels;
      const uint32_t one = *reinterpret_cast<const uint16_t*>(scale + part * kBlockKeys * 4);
      const uint32_t scales = one | one << 16;
      const uint4 words = *reinterpret_cast<const uint4*>(codes + chunk * 16);
      const CodePairs pairs[4] = {
          dequantize_word<kElement>(words.x, scales), dequantize_word<kElement>(words.y, scales),
          dequantize_word<kElement>(words.z, scales), dequantize_word<kElement>(words.w, scales)};
      auto* const out = reinterpret_cast<uint4*>(to + chunk * 32);
      out[0] = uint4{pairs[0].even, pairs[1].even, pairs[2].even, pairs[3].even};
      out[1] = uint4{pairs[0].odd, pairs[1].odd, pairs[2].odd, pairs[3].odd};
    }
  }

 private:
  /// Returns the scales of the values of two neighbouring keys.
  static __device__ uint32_t value_scales(const std::byte* scales) {
    const uint2 words = *reinterpret_cast<const uint2*>(scales);
    return __byte_perm(words.x, words.y, 0x7632u);
  }
};

}  // namespace
}  // namespace millrace::cuda
