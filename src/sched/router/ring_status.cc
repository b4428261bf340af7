#include "sched/router/ring_status.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "sched/head/engine_status.h"
#include "sched/head/model_info.h"

namespace millrace::sched {
namespace {

void add_window(WindowStatus& sum, const WindowStatus& ring) {
  sum.kind = ring.kind;
  sum.window = ring.window;
  sum.free_pages += ring.free_pages;
  sum.total_pages += ring.total_pages;
  sum.cached_pages += ring.cached_pages;
  sum.host_pages += ring.host_pages;
  sum.cached_host_pages += ring.cached_host_pages;
}

void add_counts(EngineStatus& sum, const EngineStatus& ring) {
  sum.running += ring.running;
  sum.waiting += ring.waiting;
  sum.free_pages += ring.free_pages;
  sum.total_pages += ring.total_pages;
  sum.page_size = std::max(sum.page_size, ring.page_size);
  sum.cached_pages += ring.cached_pages;
  sum.host_pages += ring.host_pages;
  sum.cached_host_pages += ring.cached_host_pages;
  sum.windows.resize(std::max(sum.windows.size(), ring.windows.size()));
  for (size_t i = 0; i < ring.windows.size(); ++i) add_window(sum.windows[i], ring.windows[i]);
  sum.cache += ring.cache;
  sum.preemptions += ring.preemptions;
  for (size_t i = 0; i < kDraftSources; ++i) {
    sum.drafts.drafted[i] += ring.drafts.drafted[i];
    sum.drafts.accepted[i] += ring.drafts.accepted[i];
  }
}

/// Adds up the requests that rings run at once. Lengths that one of two rings does not report are left out, unless it
/// reports none, since its process is away.
void add_concurrency(std::vector<Concurrency>& sum, std::span<const Concurrency> ring) {
  if (ring.empty()) return;
  if (sum.empty()) return sum.assign(ring.begin(), ring.end());
  std::vector<Concurrency> both;
  for (const Concurrency& own : sum) {
    const auto other = std::ranges::find(ring, own.tokens, &Concurrency::tokens);
    if (other == ring.end()) continue;
    both.push_back({.tokens = own.tokens,
                    .requests = own.requests + other->requests,
                    .limit = other->limit == ConcurrencyLimit::kMaxRunning ? own.limit : other->limit});
  }
  sum = std::move(both);
}

}  // namespace

EngineStatus combine_statuses(std::span<const EngineStatus> rings, std::span<const std::string> faults) {
  CHECK(!rings.empty() && rings.size() == faults.size(), "{} faults of {} rings", faults.size(), rings.size());
  EngineStatus sum;
  sum.paused = std::ranges::all_of(rings, &EngineStatus::paused);
  std::string all_faults;
  for (size_t ring = 0; ring < rings.size(); ++ring) {
    add_counts(sum, rings[ring]);
    sum.ready = sum.ready || faults[ring].empty();
    if (faults[ring].empty()) continue;
    all_faults += fmt::format("{}ring {}: {}", all_faults.empty() ? "" : "; ", ring, faults[ring]);
  }
  (sum.ready ? sum.degraded : sum.reason) = std::move(all_faults);
  return sum;
}

ModelInfo combine_models(std::span<const ModelInfo> rings) {
  ModelInfo all = rings.front();
  for (const ModelInfo& ring : rings.subspan(1)) {
    all.context_length = std::min(all.context_length, ring.context_length);
    all.kv_token_capacity += ring.kv_token_capacity;
    add_concurrency(all.concurrency, ring.concurrency);
  }
  return all;
}

}  // namespace millrace::sched
