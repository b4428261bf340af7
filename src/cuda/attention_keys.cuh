#pragma once

// The keys and values of one head of one sequence, copied to shared memory in blocks of 32 for attention's kernels.
// Included by attention.cu only.

#include "cuda/attention_codes.cuh"

namespace millrace::cuda {
namespace {

/// Pages in bf16: the copies are what attend_block reads.
template <int kDim, KvElement kElement>
class BlockKeys {
 public:
  using Address = size_t;  ///< of a key, as key_offset returns it
  using Block = PlainBlock<kDim>;
  static constexpr int kStageBytes = HeadTile<kDim>::kStageBytes;
  static constexpr int kDequantizedBytes = 0;

  /// `own_first` is the lane's key of the first block.
  __device__ BlockKeys(const KvSource& source, int32_t own_first) : source_(source), own_(own_first) {}

  /// Returns the address of the lane's key of the next block. It reads the page table, so call it well before the
  /// result is needed.
  __device__ Address next() {
    const Address address = key_offset(source_, own_);
    own_ += kBlockKeys;
    return address;
  }
  /// Starts the copies of a block; contract: load_keys.
  template <int kThreads>
  __device__ void load(Address own, int thread, std::byte* stage) const {
    load_keys<kDim>(source_, own, thread, kThreads, stage);
  }

 private:
  const KvSource source_;
  int32_t own_;
};

/// Pages of codes: copied as they are to the layout of CodedBlock.
template <int kDim, KvElement kElement>
  requires(kElement != KvElement::kBf16)
class BlockKeys<kDim, kElement> {
 public:
  struct Address {
    uint32_t page = 0;
    int32_t slot = 0;
  };
  using Block = CodedBlock<kDim, kElement>;
  static constexpr int kStageBytes = Block::kBytes;
  static constexpr int kDequantizedBytes = HeadTile<kDim>::kStageBytes;  ///< where warps share a block of keys

  __device__ BlockKeys(const KvSource& source, int32_t own_first)
      : pages_(source.pages),
        page_size_(source.cache.page_size),
        limit_(source.limit),
        stride_(code_stride(source.cache.head_dim)),
        scale_count_(kElement == KvElement::kInt8 ? kv_scale_count(source.cache) : 1),
        page_bytes_(kv_page_bytes(source.cache)),
        value_offset_(coded_value_offset(source.cache)),
        step_pages_(kBlockKeys / page_size_),
        step_slots_(kBlockKeys % page_size_),
        own_(own_first) {
    const CodedToken first = coded_token(source.cache, 0, source.layer, source.head, 0);
    keys_ = static_cast<const std::byte*>(source.cache.data) + first.key;
    scales_ = static_cast<const std::byte*>(source.cache.data) + first.scales;
    const int32_t known = min(own_first, limit_ - 1);
    index_ = known / page_size_;
    slot_ = known % page_size_;
  }

  /// Returns the address of the lane's key of the next block; contract: BlockKeys of bf16. After the last key, which no
  /// row sees, a key before it takes its place.
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

  /// Starts the copies of a block. Channels and scales after the last become zeros.
  template <int kThreads>
  __device__ void load(const Address& own, int thread, std::byte* stage) const {
    constexpr int kChunks = kDim / 16;
    constexpr int kCopies = kBlockKeys * kChunks;
    const size_t own_page = own.page * page_bytes_;
    const size_t own_key = own_page + static_cast<size_t>(own.slot * stride_);
#pragma unroll
    for (int first = 0; first < kCopies; first += kThreads) {
      const int i = first + thread;
      if (kCopies % kThreads != 0 && i >= kCopies) break;
      const int key = i / kChunks;
      const int chunk = i % kChunks;
      const int bytes = chunk * 16 < stride_ ? 16 : 0;
      const std::byte* const from = keys_ + __shfl_sync(kAllLanes, own_key, key) + chunk * bytes;
      std::byte* const to = stage + key * Block::kRowBytes + chunk * 16;
      copy_async(to, from, bytes);
      copy_async(to + Block::kKeyBytes, from + value_offset_, bytes);
    }
    // A thread's lane is its own key.
    const int warp = kThreads == kLanes ? 0 : thread / kLanes;
    const std::byte* const scales = scales_ + own_page + static_cast<size_t>(own.slot * scale_count_) * 4;
#pragma unroll
    for (int first = 0; first < Block::kScaleParts; first += kThreads / kLanes) {
      const int part = first + warp;
      if (part >= Block::kScaleParts) break;
      const int bytes = part < scale_count_ ? 4 : 0;
      copy_word_async(stage + Block::kCodeBytes + (part * kBlockKeys + thread % kLanes) * 4, scales + part * bytes,
                      bytes);
    }
  }

 private:
  const uint32_t* const pages_;
  const int32_t page_size_;
  const int32_t limit_;
  const int32_t stride_;
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
