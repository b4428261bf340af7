#include "app/trace_reader.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace millrace::app {
namespace {

using simdjson::dom::element;
using simdjson::dom::object;

constexpr size_t kMaxStages = 1024;

double number(const object& from, std::string_view key) {
  double value = 0;
  return from[key].get(value) == simdjson::SUCCESS ? value : 0.0;
}

uint64_t count(const object& from, std::string_view key) {
  uint64_t value = 0;
  return from[key].get(value) == simdjson::SUCCESS ? value : 0;
}

bool flag(const object& from, std::string_view key) {
  bool value = false;
  return from[key].get(value) == simdjson::SUCCESS && value;
}

std::string_view text_of(const object& from, std::string_view key) {
  std::string_view value;
  return from[key].get(value) == simdjson::SUCCESS ? value : std::string_view();
}

/// Traces count in microseconds with three decimals.
int64_t nanoseconds(double us) { return std::llround(us * 1000); }
int64_t time_ns(const object& from, std::string_view key) { return nanoseconds(number(from, key)); }

class Reader {
 public:
  void take(const object& event) {
    object args;
    if (event["args"].get(args) != simdjson::SUCCESS) return;
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
    for (auto& [key, record] : records_) {
      const bool whole = std::ranges::all_of(record.stages, &sched::StageSpan::known);
      if (whole && !record.stages.empty() && record.sequences > 0) ring.records.push_back(std::move(record));
    }
    return std::move(ring);
  }

  RecordedRing ring;

 private:
  void take_span(const object& event, const object& args, std::string_view name) {
    const int64_t begin = time_ns(event, "ts");
    const int64_t end = begin + time_ns(event, "dur");
    uint64_t stage = 0;
    if (name == "schedule") {
      take_schedule(record_of(args), args, begin, end);
    } else if (name == "book") {
      sched::PlanRecord& record = record_of(args);
      record.output_ns = begin;
      record.booked_ns = end;
    } else if (args["stage"].get(stage) == simdjson::SUCCESS && stage < ring.stage_count) {
      sched::StageSpan& span = record_of(args).stages[stage];
      span = {true, time_ns(args, "plan_arrived"), time_ns(args, "input_arrived"), begin, end,
              count(args, "sent_bytes"), begin, {}};
    }
  }

  static void take_schedule(sched::PlanRecord& record, const object& args, int64_t begin, int64_t end) {
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

  sched::PlanRecord& record_of(const object& args) {
    const auto generation = static_cast<uint32_t>(count(args, "generation"));
    const uint64_t plan = count(args, "plan");
    sched::PlanRecord& record = records_[{generation, plan}];
    record.generation = Generation(generation);
    record.plan = PlanId(plan);
    record.stages.resize(ring.stage_count);
    return record;
  }

  std::map<std::pair<uint32_t, uint64_t>, sched::PlanRecord> records_;
};

/// A file that ends early lacks the end of its last event and of the array.
void mend(std::string& text) {
  const size_t last_whole = text.rfind("},\n");
  text.resize(last_whole == std::string::npos ? 0 : last_whole + 1);
  text += "\n]";
}

}  // namespace

Result<RecordedRing> read_trace(std::string text) {
  simdjson::dom::parser parser;
  simdjson::dom::array events;
  const bool complete = parser.parse(text).get(events) == simdjson::SUCCESS;
  if (!complete) {
    mend(text);
    if (const auto failure = parser.parse(text).get(events); failure != simdjson::SUCCESS) {
      return make_error(ErrorCode::kData, "not a JSON array of events: {}", simdjson::error_message(failure));
    }
  }
  Reader reader;
  reader.ring.complete = complete;
  for (const element& each : events) {
    object event;
    if (each.get(event) == simdjson::SUCCESS) reader.take(event);
    if (reader.ring.stage_count > kMaxStages) break;
  }
  if (reader.ring.stage_count == 0 || reader.ring.stage_count > kMaxStages) {
    return Error{ErrorCode::kData, "no event 'millrace_ring' with the number of stages: not a trace of /start_profile"};
  }
  return reader.finish();
}

}  // namespace millrace::app
