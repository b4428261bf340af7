#pragma once

// The keys and values of one head of one sequence, copied to shared memory in blocks of 32 for attention's kernels.
// Included by attention.cu only.

#include "cuda/attention_codes.cuh"

namespace millrace::cuda {
namespace {

/// The layout in which a block is copied.
template <int kDim, KvElement kElement>
struct CopiedBlock {
  using Type = CodedBlock<kDim, kElement>;
};
template <int kDim>
struct CopiedBlock<kDim, KvElement::kBf16> {
  using Type = PlainBlock<kDim>;
};

/// A lane's way through the keys: it has one key of each block. What does not change from key to key is computed once.
template <int kDim, KvElement kElement>
class BlockKeys {
 public:
  using Block = typename CopiedBlock<kDim, kElement>::Type;
  static constexpr bool kCoded = kElement != KvElement::kBf16;
  static constexpr int kStageBytes = Block::kBytes;
  /// The bytes of a block of codes in bf16, for warps that share it.
  static constexpr int kDequantizedBytes = kCoded ? PlainBlock<kDim>::kBytes : 0;

  struct Address {
    uint32_t page = 0;
    int32_t slot = 0;
  };

  /// `own_first` is the lane's key of the first block.
  __device__ BlockKeys(const KvSource& source, int32_t own_first)
      : pages_(source.pages),
        page_size_(source.cache.page_size),
        limit_(source.limit),
        key_bytes_(kCoded ? code_stride(source.cache.head_dim) : 2 * channel_stride(source.cache.head_dim)),
        scale_count_(kElement == KvElement::kInt8 ? kv_scale_count(source.cache) : 1),
        page_bytes_(kv_page_bytes(source.cache)),
        value_offset_(static_cast<size_t>(source.cache.kv_head_count) * page_size_ * key_bytes_),
        step_pages_(kBlockKeys / page_size_),
        step_slots_(kBlockKeys % page_size_),
        own_(own_first) {
    const size_t layer = source.layer * kv_layer_bytes(source.cache);
    const auto token = static_cast<size_t>(source.head) * page_size_;
    keys_ = static_cast<const std::byte*>(source.cache.data) + layer + token * key_bytes_;
    scales_ = static_cast<const std::byte*>(source.cache.data) + layer + 2 * value_offset_ + token * scale_count_ * 4;
    const int32_t known = min(own_first, limit_ - 1);
    index_ = known / page_size_;
    slot_ = known % page_size_;
  }

  /// Returns the address of the lane's key of the next block. After the last key, which no row sees, a key before it
  /// takes its place. It reads the page table, so call it well before the result is needed.
  __device__ Address next() {
    const Address address{pages_[index_], slot_};
    own_ += kBlockKeys;
    if (own_ < limit_) {
      index_ += step_pages_;
      slot_ += step_slots_;
      if (slot_ >= page_size_) {
        slot_ -= page_size_;
        ++index_;
      }
    }
    return address;
  }

  /// Starts the copies of a block by kThreads threads, of which this one is number `thread`; its lane is its own key.
  /// Channels and scales after the last become zeros.
  template <int kThreads>
  __device__ void load(const Address& own, int thread, std::byte* stage) const {
    constexpr int kChunks = kDim * (kCoded ? 1 : 2) / 16;
    constexpr int kCopies = kBlockKeys * kChunks;
    const size_t own_page = own.page * page_bytes_;
    const size_t own_key = own_page + static_cast<size_t>(own.slot * key_bytes_);
#pragma unroll 4
    for (int first = 0; first < kCopies; first += kThreads) {
      const int i = first + thread;
      if (kCopies % kThreads != 0 && i >= kCopies) break;
      const int key = i / kChunks;
      const int chunk = i % kChunks;
      const int bytes = chunk * 16 < key_bytes_ ? 16 : 0;
      const std::byte* const from = keys_ + __shfl_sync(kAllLanes, own_key, key) + chunk * bytes;
      std::byte* const to = stage + key * Block::kRowBytes + chunk * 16;
      copy_async(to, from, bytes);
      copy_async(to + Block::kKeyBytes, from + value_offset_, bytes);
    }
    if constexpr (kCoded) load_scales<kThreads>(own, own_page, thread, stage + Block::kCodeBytes);
  }

 private:
  template <int kThreads>
  __device__ void load_scales(const Address& own, size_t own_page, int thread, std::byte* to) const {
    const int warp = kThreads == kLanes ? 0 : thread / kLanes;
    const std::byte* const scales = scales_ + own_page + static_cast<size_t>(own.slot * scale_count_) * 4;
#pragma unroll
    for (int first = 0; first < Block::kScaleParts; first += kThreads / kLanes) {
      const int part = first + warp;
      if (part >= Block::kScaleParts) break;
      const int bytes = part < scale_count_ ? 4 : 0;
      copy_word_async(to + (part * kBlockKeys + thread % kLanes) * 4, scales + part * bytes, bytes);
    }
  }

  const uint32_t* const pages_;
  const int32_t page_size_;
  const int32_t limit_;
  const int32_t key_bytes_;
  const int32_t scale_count_;
  const size_t page_bytes_;
  const size_t value_offset_;
  const int32_t step_pages_;  ///< from block to block
  const int32_t step_slots_;
  const std::byte* keys_;  ///< of the layer and head in page 0
  const std::byte* scales_;
  int32_t own_;
  int32_t index_;  ///< of the page of the lane's key
  int32_t slot_;
};

}  // namespace
}  // namespace millrace::cuda
