#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "sched/plan/stage_report.h"
#include "tensor/sampling.h"

namespace millrace::sched {

/// The part of one slice in a plan's output.
struct SliceOutput {
  /// Why the row after the last sample could not be sampled. With a fault there are fewer samples than rows to sample,
  /// and the scores mean nothing.
  tensor::LogitFault fault = tensor::LogitFault::kNone;
  /// One per sampled row. A sample counts only if all drafts before it equal the samples of the rows before.
  std::vector<tensor::SampleResult> samples;
  std::vector<tensor::TokenLogprobs> scores;  ///< one per scored row
  std::vector<float> pooled;                  // [hidden] if the slice returns a vector and has no fault, else empty
};

/// The last stage's reply to one plan. A rank other than the leader sends one without slices to its leader.
struct PlanOutput {
  PlanId id;
  RingEpoch epoch;
  std::vector<SliceOutput> slices;  ///< in the order of the plan's slices
  std::vector<StageReport> reports;

  [[nodiscard]] std::vector<std::byte> encode() const;
  /// Returns kData if the bytes are not an output.
  [[nodiscard]] static Result<PlanOutput> decode(std::span<const std::byte> bytes);
};

}  // namespace millrace::sched
