#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/token_mask.h"
#include "cache/page_copy.h"
#include "sched/plan/stage_report.h"
#include "tensor/sampling.h"

/// The messages between the head and the stages: plans here, outputs in plan_output.h, and acks. The same bytes travel
/// over every kind of link.
namespace millrace::sched {

/// Assigns a slot in every stage's sequence table. The sequence's first slice follows in the same plan.
struct SequenceOpen {
  SlotId slot;
  uint32_t prompt_length = 0;    ///< tokens before the first sampled one; penalties count them as prompt
  uint32_t cached_length = 0;    ///< tokens whose KV is in its first pages already; its first slice starts there
  std::vector<TokenId> history;  ///< [cached_length] if the sampling needs it, else empty
  tensor::SamplingParams sampling;
};

/// What the last stage makes of a slice's rows, after the final norm.
enum class SlicePooling : uint8_t {
  kNone,
  kFirstRow,  ///< returns its first row
  kLastRow,   ///< returns its last row
  kSum,       ///< adds its rows to the sequence's sum, which begins with the slice at position 0
  kMean,      ///< adds its rows like kSum, and returns the sum over the count of tokens so far
};
inline constexpr uint8_t kSlicePoolingCount = 5;

/// The part of one sequence in one plan: `token_count` tokens at positions prefix, prefix + 1, …
struct PlanSlice {
  SlotId slot;
  uint32_t prefix = 0;               ///< tokens whose KV is in the cache already
  uint32_t token_count = 0;          ///< at least 1
  uint32_t new_page_count = 0;       ///< pages appended to the sequence's table, taken from Plan::new_pages in order
  bool sample = false;               ///< sample the last row, and each row before a draft
  int32_t prompt_top_logprobs = -1;  ///< >= 0: report the logprob of each row's successor, and that many alternatives
  TokenId next_token = -1;           ///< successor of the last row if that is scored and known; else -1
  uint32_t draft_count = 0;          ///< drafts at the end of its tokens, which have not been sampled
  uint32_t replay_count = 0;         ///< accepted drafts before its newest token, whose states were not kept
  SlicePooling pooling = SlicePooling::kNone;  ///< other than kNone: nothing is sampled or scored
  uint32_t second_text = 0;  ///< position from which tokens are of an encoder's second kind; 0: none is

  /// Returns the rows that are sampled, which are its last ones.
  [[nodiscard]] uint32_t sample_count() const { return sample ? draft_count + 1 : 0; }
  /// Returns whether the output has a vector for it.
  [[nodiscard]] bool returns_vector() const { return pooling != SlicePooling::kNone && pooling != SlicePooling::kSum; }
  /// Returns how many of its last rows go on from the last layer's keys and values.
  [[nodiscard]] uint32_t tail_rows() const;
  /// Returns whether it is a decode step: all tokens before its newest one are cached, or accepted drafts.
  [[nodiscard]] bool decodes() const { return prefix > 0 && token_count == replay_count + draft_count + 1; }
};

/// The pages of one window group that a plan appends to the tables of its slices' sequences. In a state group some
/// indices of a table have no page: there `pages` has cache::kNoPage.
struct PlanWindow {
  std::vector<uint32_t> counts;  // [slices], taken from `pages` in order
  std::vector<PageId> pages;     // [Σ counts]
};

/// Replaces the mask at `index` in the last stage's mask table.
struct MaskWrite {
  uint32_t index = 0;
  TokenMask mask;
};

/// The number of masks beyond one per slot: for drafts, and to keep masks that are used again.
inline constexpr uint32_t kSpareMasks = 64;
/// Returns the size of the mask table of a ring with that many slots.
[[nodiscard]] constexpr uint32_t mask_table_size(uint32_t slot_count) {
  return slot_count + kSpareMasks;
}

/// One micro-batch. An empty plan (no slices) still travels the whole ring.
struct Plan {
  PlanId id;
  RingEpoch epoch;
  std::vector<SlotId> closes;  ///< slots to clear, before `opens`
  std::vector<SequenceOpen> opens;
  std::vector<MaskWrite> masks;  ///< before `slices`
  std::vector<PlanSlice> slices;
  std::vector<int32_t> sample_masks;    // empty, or [Σ sample_count]: index of the sample's token mask; -1: no mask
  std::vector<TokenId> tokens;          // [Σ token_count]
  std::vector<PageId> new_pages;        // [Σ new_page_count]
  std::vector<PlanWindow> windows;      // [window groups], or none in a plan without slices
  std::vector<cache::PageCopy> copies;  ///< loads take effect after `opens`, before `slices`; stores after `slices`
  uint64_t digest = 0;                  ///< digest of the slices' page tables as the head knows them (plan_digest)
  uint64_t step = 0;                    ///< of all rings that share experts; 0: the plan is no step of theirs
  std::vector<StageReport> reports;     ///< added by the stages on the way

  [[nodiscard]] std::vector<std::byte> encode() const;
  /// Returns kData if the bytes are not a plan, or if its parts contradict one another.
  [[nodiscard]] static Result<Plan> decode(std::span<const std::byte> bytes);
};

/// Acks travel from stage to stage, and from the last stage to the head, as soon as a copy is done. They wait for no
/// plan.
[[nodiscard]] std::vector<std::byte> encode_acks(std::span<const cache::CopyAck> acks);
[[nodiscard]] Result<std::vector<cache::CopyAck>> decode_acks(std::span<const std::byte> bytes);

/// Returns the digest of a page table after `page` is appended; the digest of an empty table is 0. With it, stages
/// notice if their page tables differ from the head's.
[[nodiscard]] uint64_t table_digest(uint64_t before, PageId page);
/// Returns the digest of a plan after a slice whose sequence has the digest `table`; a plan without slices has 0.
[[nodiscard]] uint64_t plan_digest(uint64_t before, const PlanSlice& slice, uint64_t table);
/// Returns the digest of a plan after one more table of its last slice's sequence, that of a window group.
[[nodiscard]] uint64_t window_digest(uint64_t before, uint64_t table);

}  // namespace millrace::sched
