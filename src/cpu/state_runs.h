#pragma once

#include <cmath>
#include <cstdint>

#include "base/check.h"
#include "cpu/kv_cache.h"
#include "tensor/backend.h"

namespace millrace::cpu {

/// Tokens that a kernel of a recurrent mixer takes at a time. Their inputs stay in the second-level cache.
inline constexpr int32_t kMaxStateTokens = 32;

/// Consecutive rows of one sequence. The state after the last one is stored, unless they are drafts.
struct StateRun {
  int32_t first = 0;  ///< row of the batch
  int32_t end = 0;
  const float* from = nullptr;  ///< the state before them; null: zeros
  float* to = nullptr;          ///< the state after them, may be `from`; null for drafts
};

/// Calls fn(StateRun) for the rows of a sequence, in order. Drafts are a run of their own.
template <class Fn>
void for_state_runs(const tensor::BatchLayout& batch, size_t sequence, const CpuKvCache& states, int32_t layer,
                    const Fn& fn) {
  const int32_t begin = batch.row_begin[sequence];
  const int32_t end = batch.row_begin[sequence + 1] - batch.draft_count(sequence);
  const int32_t prefix = batch.prefix[sequence];
  const int32_t page_size = states.shape().page_size;
  const auto page_of = [&](int32_t position) {
    return batch.pages[static_cast<size_t>(batch.page_begin[sequence] + position / page_size)];
  };
  if (begin == end) return;
  StateRun run{.first = begin, .end = begin};
  if (prefix > 0) {
    const PageId page = page_of(prefix - 1);
    CHECK(page != tensor::kNoPage, "sequence {} has no page with its state after {} tokens", sequence, prefix);
    run.from = states.state(page, layer);
  }
  while (run.first < end) {
    const int32_t position = prefix + run.first - begin;
    run.end = begin + (position / page_size + 1) * page_size - prefix;
    PageId page = page_of(position);
    while (run.end < end && page == tensor::kNoPage) {
      page = page_of(prefix + run.end - begin);
      run.end += page_size;
    }
    if (run.end > end) run.end = end;
    CHECK(page != tensor::kNoPage, "sequence {} has no page for its state after {} tokens", sequence,
          prefix + end - begin);
    run.to = states.state(page, layer);
    fn(static_cast<const StateRun&>(run));
    run.first = run.end;
    run.from = run.to;
  }
  if (batch.draft_count(sequence) == 0) return;
  run.end = batch.row_begin[sequence + 1];
  run.to = nullptr;
  fn(static_cast<const StateRun&>(run));
}

/// Returns ln(1 + e^x).
inline float softplus(float x) {
  return x > 20.0f ? x : std::log1p(std::exp(x));
}

/// CHECKs that an op whose state ends at `values` fits a layer of a cache of states.
inline void check_states(const CpuKvCache& states, int32_t layer, int64_t values) {
  CHECK(states.shape().state_values >= values && layer >= 0 && layer < states.shape().layer_count,
        "layer {} of {} with states of {} values, wanted at least {}", layer, states.shape().layer_count,
        states.shape().state_values, values);
}

}  // namespace millrace::cpu
