#include "app/trace_reader.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/json_value.h"

namespace millrace::app {
namespace {

constexpr size_t kMaxStages = 1024;

double number(const JsonObject& from, std::string_view key) {
  double value = 0;
  return from[key].get(value) ? value : 0.0;
}

uint64_t count(const JsonObject& from, std::string_view key) {
  uint64_t value = 0;
  return from[key].get(value) ? value : 0;
}

bool flag(const JsonObject& from, std::string_view key) {
  bool value = false;
  return from[key].get(value) && value;
}

std::string_view text_of(const JsonObject& from, std::string_view key) {
  std::string_view value;
  return from[key].get(value) ? value : std::string_view();
}

/// Converts the microseconds of a trace, which have three decimals. A value beyond thirty years is no time.
int64_t nanoseconds(double us) {
  constexpr double kFurthestUs = 1e15;  // thirty years
  return std::llround(std::clamp(us, -kFurthestUs, kFurthestUs) * 1000);
}
int64_t time_ns(const JsonObject& from, std::string_view key) {
  return nanoseconds(number(from, key));
}

class Reader {
 public:
  void take(const JsonObject& event) {
    JsonObject args;
    if (!event["args"].get(args)) return;
    const std::string_view name = text_of(event, "name");
    if (name == "millrace_ring") {
      ring.stage_count = count(args, "stages");
      ring.window = count(args, "window");
    } else if (name == "millrace_end") {
      ring.lost_plans = count(args, "lost_plans");
    } else if (text_of(event, "ph") == "X") {
      take_span(event, args, name);
    }
  }

  RecordedRing finish() {
    for (auto& [key, found] : records_) {
      if (found.stages.size() != ring.stage_count || found.stages.rbegin()->first >= ring.stage_count) continue;
      if (found.record.sequences == 0) continue;
      for (const auto& [stage, span] : found.stages) found.record.stages.push_back(span);
      ring.records.push_back(std::move(found.record));
    }
    return std::move(ring);
  }

  RecordedRing ring;

 private:
  /// The times of one plan. The stages are a map, since one event must not claim room for all of them.
  struct Found {
    sched::PlanRecord record;
    std::map<size_t, sched::StageSpan> stages;
  };

  void take_span(const JsonObject& event, const JsonObject& args, std::string_view name) {
    const int64_t begin = time_ns(event, "ts");
    const int64_t end = begin + time_ns(event, "dur");
    uint64_t stage = 0;
    if (name == "schedule") {
      take_schedule(found_of(args).record, args, begin, end);
    } else if (name == "book") {
      sched::PlanRecord& record = found_of(args).record;
      record.output_ns = begin;
      record.booked_ns = end;
    } else if (args["stage"].get(stage) && stage < ring.stage_count) {
      found_of(args).stages[stage] = {.known = true,
                                      .plan_ns = time_ns(args, "plan_arrived"),
                                      .input_ns = time_ns(args, "input_arrived"),
                                      .begin_ns = begin,
                                      .end_ns = end,
                                      .sent_bytes = count(args, "sent_bytes"),
                                      .free_ns = begin};
    }
  }

  static void take_schedule(sched::PlanRecord& record, const JsonObject& args, int64_t begin, int64_t end) {
    record.schedule_ns = begin;
    record.sent_ns = end;
    record.ready_ns = time_ns(args, "ready");
    record.starved = flag(args, "starved");
    record.after_pause = flag(args, "after_pause");
    record.sequences = static_cast<uint32_t>(count(args, "sequences"));
    record.prefill_rows = static_cast<uint32_t>(count(args, "prefill"));
    record.decode_rows = static_cast<uint32_t>(count(args, "decode"));
    record.in_flight = static_cast<uint32_t>(count(args, "in_flight"));
  }

  Found& found_of(const JsonObject& args) {
    const auto epoch = static_cast<uint32_t>(count(args, "epoch"));
    const uint64_t plan = count(args, "plan");
    Found& found = records_[{epoch, plan}];
    found.record.epoch = RingEpoch(epoch);
    found.record.plan = PlanId(plan);
    return found;
  }

  std::map<std::pair<uint32_t, uint64_t>, Found> records_;
};

/// Completes the text of a file that ends early: drops its last event if cut, and ends the array.
void close_truncated_json(std::string& text) {
  const size_t last_whole = text.rfind("},\n");
  text.resize(last_whole == std::string::npos ? 0 : last_whole + 1);
  text += "\n]";
}

}  // namespace

Result<RecordedRing> read_trace(std::string text) {
  auto document = JsonDocument::parse(text);
  const bool complete = document && document->root().is_array();
  if (!complete) {
    close_truncated_json(text);
    document = JsonDocument::parse(text);
    if (!document) return make_error(ErrorCode::kData, "not a JSON array of events: {}", document.error().message);
  }
  JsonArray events;
  if (!document->root().get(events)) return make_error(ErrorCode::kData, "not a JSON array of events");
  Reader reader;
  reader.ring.complete = complete;
  for (const JsonValue each : events) {
    JsonObject event;
    if (each.get(event)) reader.take(event);
    if (reader.ring.stage_count > kMaxStages) break;
  }
  if (reader.ring.stage_count == 0 || reader.ring.stage_count > kMaxStages) {
    return Error{ErrorCode::kData, "no event 'millrace_ring' with the number of stages: not a trace of /start_profile"};
  }
  return reader.finish();
}

}  // namespace millrace::app
