#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/token_mask.h"
#include "cache/page_copy.h"
#include "tensor/sampling.h"

/// What the head tells the stages, and what comes back. The same bytes travel over every kind of link.
namespace millrace::sched {

/// A sequence takes a slot in every stage's table; its first slice follows in the same plan.
struct SequenceOpen {
  SlotId slot;
  uint32_t prompt_length = 0;    ///< tokens before the first drawn one: what penalties count as prompt
  uint32_t cached_length = 0;    ///< tokens whose KV is in its first pages already: where its first slice starts
  std::vector<TokenId> history;  // [cached_length] if the sampling needs it, else empty
  tensor::SamplingParams sampling;
};

/// The part of one sequence in one plan: `token_count` tokens at positions prefix, prefix + 1, …
struct PlanSlice {
  SlotId slot;
  uint32_t prefix = 0;               ///< tokens whose KV is in the cache already
  uint32_t token_count = 0;          ///< at least 1
  uint32_t new_page_count = 0;       ///< pages appended to the sequence's table, taken from Plan::new_pages in order
  bool sample = false;               ///< draw a token after the last row, and after each one before a draft
  int32_t prompt_top_logprobs = -1;  ///< >= 0: report the logprob of each row's successor, and so many alternatives
  TokenId next_token = -1;           ///< successor of the last row, when scoring and known; else -1
  uint32_t draft_count = 0;          ///< of its tokens the last so many are drafts: nobody has drawn them yet

  /// Tokens that are drawn, after its last rows.
  [[nodiscard]] uint32_t sample_count() const { return sample ? draft_count + 1 : 0; }
  /// A step of a sequence whose prompt is in the cache.
  [[nodiscard]] bool decodes() const { return prefix > 0 && token_count == draft_count + 1; }
};

/// Replaces the mask at `index` of the last stage's mask table.
struct MaskWrite {
  uint32_t index = 0;
  TokenMask mask;
};

/// Places for masks that a ring of so many slots has: one for each, and some for drafts and for masks that come again.
inline constexpr uint32_t kSpareMasks = 64;
[[nodiscard]] constexpr uint32_t mask_table_size(uint32_t slot_count) {
  return slot_count + kSpareMasks;
}

/// What a stage did when for one plan with slices, in ns on that stage's clock.
struct StageReport {
  StageId stage;
  PlanId plan;
  int64_t plan_ns = 0;      ///< the plan arrived
  int64_t input_ns = 0;     ///< its activations arrived; on the first stage as plan_ns
  int64_t begin_ns = 0;     ///< the device got it
  int64_t end_ns = 0;       ///< the device was done
  uint64_t sent_bytes = 0;  ///< activations sent on; 0 on the last stage
  static constexpr size_t kWireBytes = 52;
  [[nodiscard]] int64_t run_ns() const { return end_ns - begin_ns; }
};

/// One micro-batch. An empty plan (no slices) still travels the whole ring.
struct Plan {
  PlanId id;
  RingEpoch epoch;
  std::vector<SlotId> closes;  ///< slots to clear, before `opens`
  std::vector<SequenceOpen> opens;
  std::vector<MaskWrite> masks;  ///< before `slices`
  std::vector<PlanSlice> slices;
  std::vector<int32_t>
      sample_masks;  // empty, or [Σ sample_count]: index of the mask of tokens that may be sampled; -1: all may
  std::vector<TokenId> tokens;          // [Σ token_count]
  std::vector<PageId> new_pages;        // [Σ new_page_count]
  std::vector<cache::PageCopy> copies;  ///< loads take effect after `opens`, before `slices`; stores after `slices`
  uint64_t digest = 0;                  ///< of the slices' page tables as the head knows them (table_digest)
  std::vector<StageReport> reports;     ///< folded in by the stages on the way

  [[nodiscard]] std::vector<std::byte> encode() const;
  /// kData when the bytes are not a plan, or its parts contradict one another.
  [[nodiscard]] static Result<Plan> decode(std::span<const std::byte> bytes);
};

struct SliceOutput {
  /// What keeps the sequence from going on behind its samples, which are fewer then; its scores mean nothing.
  tensor::LogitFault fault = tensor::LogitFault::kNone;
  /// One per draw; each counts if the drafts before it are what was drawn there.
  std::vector<tensor::SampleResult> samples;
  std::vector<tensor::TokenLogprobs> scores;  ///< one per scored row
};

/// The last stage's answer to one plan.
struct PlanOutput {
  PlanId id;
  RingEpoch epoch;
  std::vector<SliceOutput> slices;  ///< as in the plan
  std::vector<StageReport> reports;

  [[nodiscard]] std::vector<std::byte> encode() const;
  [[nodiscard]] static Result<PlanOutput> decode(std::span<const std::byte> bytes);
};

/// What a stage tells the next one, and the last stage the head, as soon as it is so; it does not wait for plans.
[[nodiscard]] std::vector<std::byte> encode_acks(std::span<const cache::CopyAck> acks);
[[nodiscard]] Result<std::vector<cache::CopyAck>> decode_acks(std::span<const std::byte> bytes);

/// Digests by which head and stages notice that they no longer mean the same pages: of a sequence's page table after
/// `page` is appended, and of a plan after a slice of a sequence with such a table. Both begin with 0.
[[nodiscard]] uint64_t table_digest(uint64_t before, PageId page);
[[nodiscard]] uint64_t plan_digest(uint64_t before, const PlanSlice& slice, uint64_t table);

}  // namespace millrace::sched
