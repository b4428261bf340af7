#include "app/pool_report.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/log.h"
#include "cache/pool_division.h"
#include "sched/scheduler/pool_room.h"

namespace millrace::app {
namespace {

void log_pool(const cache::WindowPool& pool) {
  if (pool.kind == GroupKind::kState) {
    log::info("states of recurrent layers: {} pages; a running request has {}, the others are snapshots",
              pool.pages.device, cache::kRunningStatePages);
    return;
  }
  log::info("KV cache of layers that see {} tokens: {} pages", pool.window, pool.pages.device);
}

}  // namespace

void report_pools(const sched::SchedulerOptions& options) {
  for (const cache::WindowPool& pool : window_pools(options, first_pools(options))) log_pool(pool);
  const std::vector<sched::Concurrency> all = sched::concurrency(options);
  std::string text;
  for (const sched::Concurrency& each : all) {
    text += fmt::format("{}{} of {} tokens (limit: {})", text.empty() ? "" : ", ", each.requests, each.tokens,
                        enum_name(each.limit));
  }
  log::info("KV cache: room for requests at once: {}", text);
  const sched::Concurrency& shortest = all.front();
  if (shortest.limit != sched::ConcurrencyLimit::kWindow && shortest.limit != sched::ConcurrencyLimit::kStates) return;
  log::warn(
      "{} requests of {} tokens run at once, not the {} of --max-running-requests: there is no room for the {} of "
      "more. Give the KV cache more memory, or set --expected-tokens to about the length of requests",
      shortest.requests, shortest.tokens, options.max_running, enum_name(shortest.limit));
}

}  // namespace millrace::app
