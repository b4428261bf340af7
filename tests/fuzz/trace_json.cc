#include <algorithm>

#include "app/trace_report.h"
#include "base/check.h"
#include "fuzz/targets.h"

namespace millrace::fuzz {
namespace {

/// Times whose sums are times: a day, of so few plans.
bool can_be_summed_up(const app::RecordedRing& ring) {
  constexpr int64_t kDayNs = 86'400'000'000'000;
  const auto is_time = [](int64_t ns) { return ns >= -kDayNs && ns <= kDayNs; };
  return ring.records.size() < 100 &&
         std::ranges::all_of(
             ring.records,
             [&](const sched::PlanRecord& record) {
               return is_time(record.schedule_ns) && is_time(record.sent_ns) && is_time(record.ready_ns) &&
                      is_time(record.output_ns) && is_time(record.booked_ns) &&
                      std::ranges::all_of(record.stages, [&](const sched::StageSpan& span) {
                        return is_time(span.plan_ns) && is_time(span.input_ns) && is_time(span.begin_ns) &&
                               is_time(span.end_ns);
                      });
             });
}

}  // namespace

void trace_json(std::string_view input) {
  const auto ring = app::read_trace(std::string(input));
  if (ring.has_error()) {
    CHECK(ring.error().code == ErrorCode::kData && !ring.error().message.empty());
    return;
  }
  CHECK(ring->stage_count > 0);
  for (const sched::PlanRecord& record : ring->records) CHECK(record.stages.size() == ring->stage_count);
  if (!can_be_summed_up(*ring)) return;
  const app::TraceSummary summary = app::summarize(*ring);
  CHECK(summary.stages.size() == ring->stage_count);
  CHECK(!app::format_report(*ring, summary).empty());
}

}  // namespace millrace::fuzz
