#include "server/observe/trace_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/json.h"

namespace millrace::server {
namespace {

using sched::PlanRecord;
using sched::StageSpan;

constexpr int kProcess = 1;
constexpr size_t kHeadRow = 1;
constexpr size_t kRowsPerStage = 3;  // besides those of ranks after the leader

/// Returns exact microseconds, with three decimals.
std::string microseconds(int64_t ns) {
  const char* sign = ns < 0 ? "-" : "";
  const int64_t size = ns < 0 ? -ns : ns;
  return fmt::format("{}{}.{:03}", sign, size / 1000, size % 1000);
}

/// Writes one event; further members are added between construction and finish().
class Event {
 public:
  Event(std::string& out, char phase, size_t row, std::string_view name) : out_(out), json_(out) {
    json_.begin_object().member("ph", std::string_view(&phase, 1)).member("pid", kProcess).member("tid", row);
    json_.member("name", name);
  }
  JsonWriter& json() { return json_; }
  Event& time(std::string_view name, int64_t ns) {
    json_.key(name).raw(microseconds(ns));
    return *this;
  }
  Event& args(const PlanRecord& record) {
    json_.key("args").begin_object().member("plan", record.plan.value());
    json_.member("epoch", record.epoch.value());
    return *this;
  }
  void finish() {
    json_.end_object().end_object();
    out_ += ",\n";
  }

 private:
  std::string& out_;
  JsonWriter json_;
};

std::string batch_name(const PlanRecord& record) {
  if (record.decode_rows == 0) return fmt::format("prefill {}", record.prefill_rows);
  if (record.prefill_rows == 0) return fmt::format("decode {}", record.decode_rows);
  return fmt::format("prefill {} + decode {}", record.prefill_rows, record.decode_rows);
}

void add_counter(std::string& out, std::string_view name, int64_t at_ns,
                 std::initializer_list<std::pair<std::string_view, uint64_t>> values) {
  Event event(out, 'C', 0, name);
  event.time("ts", at_ns).json().key("args").begin_object();
  for (const auto& [key, value] : values) event.json().member(key, value);
  event.finish();
}

}  // namespace

TraceWriter::TraceWriter(size_t stage_count, size_t window, size_t rank_count)
    : stage_count_(stage_count), window_(window), rank_count_(rank_count), lane_free_ns_(stage_count + 1) {}

size_t TraceWriter::lane_row(size_t lane) const {
  return 10 + (kRowsPerStage + rank_count_ - 1) * lane;
}
size_t TraceWriter::compute_row(size_t stage, size_t rank) const {
  return lane_row(stage) + 1 + rank;
}
size_t TraceWriter::wait_row(size_t stage) const {
  return compute_row(stage, rank_count_);
}

void TraceWriter::name_row(std::string& out, size_t row, const std::string& name) {
  Event named(out, 'M', row, "thread_name");
  named.json().key("args").begin_object().member("name", name);
  named.finish();
  Event sorted(out, 'M', row, "thread_sort_index");
  sorted.json().key("args").begin_object().member("sort_index", row);
  sorted.finish();
}

void TraceWriter::begin(std::string& out) {
  out += "[\n";
  Event ring(out, 'M', 0, "process_name");
  ring.json().key("args").begin_object().member("name", "millrace ring");
  ring.finish();
  Event shape(out, 'M', 0, "millrace_ring");
  shape.json().key("args").begin_object().member("stages", stage_count_).member("window", window_);
  shape.json().member("ranks", rank_count_);
  shape.finish();
  name_row(out, kHeadRow, "head");
  for (size_t s = 0; s < stage_count_; ++s) {
    name_row(out, lane_row(s), s == 0 ? "lane head to 0" : fmt::format("lane {} to {}", s - 1, s));
    name_row(out, compute_row(s, 0), fmt::format("stage {}", s));
    for (size_t r = 1; r < rank_count_; ++r) name_row(out, compute_row(s, r), fmt::format("stage {} rank {}", s, r));
    name_row(out, wait_row(s), fmt::format("stage {} waits", s));
  }
  name_row(out, lane_row(stage_count_), fmt::format("lane {} to head", stage_count_ - 1));
}

void TraceWriter::add(std::string& out, const PlanRecord& record) {
  if (!std::exchange(any_, true)) origin_ns_ = record.schedule_ns;
  add_head(out, record);
  int64_t left_ns = record.sent_ns;
  for (size_t s = 0; s < record.stages.size(); ++s) {
    const StageSpan& span = record.stages[s];
    add_lane(out, record, s, left_ns, s == 0 ? span.plan_ns : span.input_ns);
    add_stage(out, record, s);
    left_ns = span.end_ns;
  }
  add_lane(out, record, stage_count_, left_ns, record.output_ns);
}

void TraceWriter::add_head(std::string& out, const PlanRecord& record) const {
  Event schedule(out, 'X', kHeadRow, "schedule");
  schedule.time("ts", record.schedule_ns - origin_ns_).time("dur", record.sent_ns - record.schedule_ns);
  schedule.args(record).time("ready", record.ready_ns - origin_ns_);
  schedule.json().member("starved", record.starved).member("after_pause", record.after_pause);
  schedule.json().member("sequences", record.sequences).member("prefill", record.prefill_rows);
  schedule.json().member("decode", record.decode_rows).member("in_flight", record.in_flight);
  schedule.finish();
  Event book(out, 'X', kHeadRow, "book");
  book.time("ts", record.output_ns - origin_ns_).time("dur", record.booked_ns - record.output_ns);
  book.args(record).finish();
  const int64_t sent = record.sent_ns - origin_ns_;
  add_counter(out, "window", sent, {{"in flight", record.in_flight}});
  add_counter(out, "requests", sent, {{"running", record.running}, {"waiting", record.waiting}});
  add_counter(out, "free pages", sent, {{"pages", record.free_pages}});
}

void TraceWriter::add_stage(std::string& out, const PlanRecord& record, size_t stage) const {
  const StageSpan& span = record.stages[stage];
  if (const int64_t waited = span.wait.total_ns(); waited > 0) {
    Event wait(out, 'X', wait_row(stage), sched::kWaitCauseNames[static_cast<size_t>(span.wait.main_cause())]);
    wait.time("ts", span.begin_ns - waited - origin_ns_).time("dur", waited).args(record);
    for (size_t i = 0; i < sched::kWaitCauseCount; ++i) {
      const int64_t ns = span.wait[static_cast<sched::WaitCause>(i)];
      if (ns > 0) wait.time(sched::kWaitCauseNames[i], ns);
    }
    wait.finish();
  }
  Event compute(out, 'X', compute_row(stage, 0), batch_name(record));
  compute.time("ts", span.begin_ns - origin_ns_).time("dur", span.end_ns - span.begin_ns).args(record);
  compute.json().member("stage", stage).member("sent_bytes", span.sent_bytes);
  compute.time("plan_arrived", span.plan_ns - origin_ns_).time("input_arrived", span.input_ns - origin_ns_).finish();
  for (size_t i = 0; i < span.ranks.size(); ++i) {
    const sched::RankSpan& rank = span.ranks[i];
    Event run(out, 'X', compute_row(stage, i + 1), batch_name(record));
    run.time("ts", rank.begin_ns - origin_ns_).time("dur", rank.end_ns - rank.begin_ns).args(record);
    run.json().member("stage_of_rank", stage).member("rank", i + 1);
    run.finish();
  }
}

void TraceWriter::add_lane(std::string& out, const PlanRecord& record, size_t lane, int64_t left_ns,
                           int64_t arrived_ns) {
  const int64_t begin = std::max(left_ns, lane_free_ns_[lane]);
  if (arrived_ns <= begin) return;
  lane_free_ns_[lane] = arrived_ns;
  const char* what = lane == 0 ? "plan" : lane == stage_count_ ? "output" : "activations";
  Event event(out, 'X', lane_row(lane), what);
  event.time("ts", begin - origin_ns_).time("dur", arrived_ns - begin).args(record).finish();
}

void TraceWriter::end(std::string& out, uint64_t lost) {
  Event last(out, 'M', 0, "millrace_end");
  last.json().key("args").begin_object().member("lost_plans", lost);
  last.finish();
  out.erase(out.size() - 2);  // the comma
  out += "\n]\n";
}

}  // namespace millrace::server
