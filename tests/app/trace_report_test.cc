#include "app/trace_report.h"

#include <catch2/catch.hpp>

#include "server/observe/trace_writer.h"

using namespace millrace;
using sched::WaitCause;

namespace {

constexpr int64_t kMs = 1'000'000;

/// Two stages; every plan takes as long as `lengths` says on both, and the head and the links take no time.
std::vector<sched::PlanRecord> uneven_run(const std::vector<int64_t>& lengths) {
  std::vector<sched::PlanRecord> records;
  int64_t first_free = 0;
  int64_t second_free = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    sched::PlanRecord record;
    record.number = i + 1;
    record.epoch = RingEpoch(1);
    record.plan = PlanId(i);
    record.sequences = record.decode_rows = 1;
    record.in_flight = 2;
    record.stages.resize(2);
    record.stages[0] = {true, 0, 0, first_free, first_free + lengths[i], 10, first_free, {}};
    first_free += lengths[i];
    const int64_t begin = std::max(first_free, second_free);
    record.stages[1] = {true, 0, first_free, begin, begin + lengths[i], 0, begin, {}};
    second_free = begin + lengths[i];
    record.output_ns = record.booked_ns = second_free;
    records.push_back(record);
  }
  return records;
}

std::string trace_of(const std::vector<sched::PlanRecord>& records, uint64_t lost = 0) {
  server::TraceWriter writer(2, 2);
  std::string out;
  writer.begin(out);
  for (const sched::PlanRecord& record : records) writer.add(out, record);
  writer.end(out, lost);
  return out;
}

void check_sums(const app::TraceSummary& summary) {
  for (const auto& stage : summary.stages) {
    REQUIRE(stage.unexplained_ns == 0);
    REQUIRE(stage.busy_ns + stage.wait.total_ns() == summary.span_ns);
  }
}

}  // namespace

TEST_CASE("a trace reads back as it was written") {
  auto records = uneven_run({10 * kMs, 12 * kMs + 345, 3});
  records[1].starved = true;
  records[2].after_pause = true;
  records[2].ready_ns = 21 * kMs + 1;
  const auto ring = app::read_trace(trace_of(records, 4));
  REQUIRE(ring.has_value());
  REQUIRE(ring->stage_count == 2);
  REQUIRE(ring->window == 2);
  REQUIRE(ring->lost_plans == 4);
  REQUIRE(ring->complete);
  REQUIRE(ring->records.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    const sched::PlanRecord& found = ring->records[i];
    REQUIRE(found.plan == records[i].plan);
    REQUIRE(found.sent_ns == records[i].sent_ns);
    REQUIRE(found.ready_ns == records[i].ready_ns);
    REQUIRE(found.output_ns == records[i].output_ns);
    REQUIRE(found.starved == records[i].starved);
    REQUIRE(found.after_pause == records[i].after_pause);
    for (size_t s = 0; s < 2; ++s) {
      REQUIRE(found.stages[s].begin_ns == records[i].stages[s].begin_ns);
      REQUIRE(found.stages[s].end_ns == records[i].stages[s].end_ns);
      REQUIRE(found.stages[s].input_ns == records[i].stages[s].input_ns);
    }
  }
}

TEST_CASE("known bubbles are found in uneven plans and fill and drain") {
  const auto ring = app::read_trace(trace_of(uneven_run({10 * kMs, 30 * kMs, 10 * kMs})));
  REQUIRE(ring.has_value());
  const app::TraceSummary summary = app::summarize(*ring);
  check_sums(summary);
  REQUIRE(summary.span_ns == 80 * kMs);
  REQUIRE(summary.stages[0].busy_ns == 50 * kMs);
  REQUIRE(summary.stages[0].wait[WaitCause::kFillDrain] == 30 * kMs);
  REQUIRE(summary.stages[1].wait[WaitCause::kFillDrain] == 10 * kMs);
  REQUIRE(summary.stages[1].wait[WaitCause::kUneven] == 20 * kMs);
  REQUIRE(summary.longest[0].stage == 0);
  REQUIRE(summary.longest[0].wait.bubble_ns() == 30 * kMs);
  REQUIRE(summary.longest[1].plan == PlanId(1));
  REQUIRE(summary.length_variation == Approx(40.0 * 2 / (40 * 2)));
}

TEST_CASE("late activations and a late head are told apart") {
  auto records = uneven_run({10 * kMs, 10 * kMs, 10 * kMs});
  for (auto& record : records) {
    record.stages[1].begin_ns += 2 * kMs;
    record.stages[1].end_ns += 2 * kMs;
    record.output_ns += 2 * kMs;
    record.booked_ns += 2 * kMs;
  }
  const auto shift = [](sched::PlanRecord& record, int64_t by) {
    for (auto& span : record.stages) {
      for (int64_t* at : {&span.plan_ns, &span.input_ns, &span.begin_ns, &span.end_ns}) *at += by;
    }
    record.output_ns += by;
    record.booked_ns += by;
  };
  shift(records[1], 5 * kMs);  // the head was late
  records[1].stages[0].plan_ns = records[1].stages[0].begin_ns;
  shift(records[2], 5 * kMs);
  for (auto* at : {&records[2].stages[1].input_ns, &records[2].stages[1].begin_ns, &records[2].stages[1].end_ns,
                   &records[2].output_ns, &records[2].booked_ns}) {
    *at += 7 * kMs;  // the link was
  }
  records[2].stages[1].begin_ns = records[2].stages[1].input_ns;
  const auto ring = app::read_trace(trace_of(records));
  REQUIRE(ring.has_value());
  const app::TraceSummary summary = app::summarize(*ring);
  check_sums(summary);
  REQUIRE(summary.stages[0].wait[WaitCause::kHeadLate] == 5 * kMs);
  REQUIRE(summary.stages[1].wait[WaitCause::kHeadLate] == 3 * kMs);
  REQUIRE(summary.stages[1].wait[WaitCause::kOverhead] == 2 * kMs);
  REQUIRE(summary.stages[1].wait[WaitCause::kLateActivations] == 5 * kMs);
}

TEST_CASE("the report adds up to 100 % and names the longest bubbles") {
  const auto ring = app::read_trace(trace_of(uneven_run({10 * kMs, 30 * kMs, 10 * kMs}), 2));
  REQUIRE(ring.has_value());
  const std::string report = app::format_report(*ring, app::summarize(*ring));
  INFO(report);
  REQUIRE(report.find("2 micro-batches are missing") != std::string::npos);
  REQUIRE(report.find("sum                        100.0 %   100.0 %   100.0 %") != std::string::npos);
  REQUIRE(report.find("fill_drain 30.00 ms") != std::string::npos);
}

TEST_CASE("a plan counts with the times of all its stages") {
  const auto read = [](int first, int last) {
    return app::read_trace(fmt::format(
        R"([{{"name":"millrace_ring","args":{{"stages":{},"window":1}}}},)"
        R"({{"ph":"X","name":"schedule","args":{{"plan":0,"sequences":1}}}},)"
        R"({{"ph":"X","name":"prefill","ts":1e308,"dur":1e308,"args":{{"plan":0,"stage":0,"input_arrived":-1e308}}}},)"
        R"({{"name":"millrace_ring","args":{{"stages":{},"window":1}}}}])",
        first, last));
  };
  const auto one = read(1, 1);
  REQUIRE(one->records.size() == 1);
  REQUIRE(one->records[0].stages[0].begin_ns == 1'000'000'000'000'000'000);
  for (const auto& [first, last] : std::vector<std::pair<int, int>>{{1, 1024}, {1024, 2}, {2, 1024}}) {
    const auto ring = read(first, last);
    REQUIRE(ring->stage_count == static_cast<size_t>(last));
    REQUIRE(ring->records.empty());
    REQUIRE(app::summarize(*ring).stages.size() == ring->stage_count);
  }
}

TEST_CASE("a truncated trace is read to its end and other files refused") {
  const std::string whole = trace_of(uneven_run({10 * kMs, 30 * kMs, 10 * kMs}));
  const size_t header = whole.find("},\n", whole.find("millrace_ring")) + 3;
  for (size_t length = whole.size() - 3; length > 0; --length) {
    const auto ring = app::read_trace(whole.substr(0, length));
    REQUIRE(ring.has_value() == (length >= header));
    if (length < header) continue;
    REQUIRE_FALSE(ring->complete);
    REQUIRE(ring->records.size() <= 3);
    check_sums(app::summarize(*ring));
  }
  REQUIRE(app::read_trace("").has_error());
  REQUIRE(app::read_trace("[]").has_error());
  REQUIRE(app::read_trace("{\"a\":1}").has_error());
  REQUIRE(app::read_trace("[1,2,{\"name\":\"x\"}]").has_error());
}
