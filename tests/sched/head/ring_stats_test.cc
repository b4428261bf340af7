#include "sched/head/ring_stats.h"

#include <catch2/catch.hpp>

#include "sched/head/bubbles.h"
#include "sched/plan/plan.h"
#include "sched/plan/plan_output.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

struct StageTimes {
  int64_t plan;
  int64_t input;
  int64_t begin;
  int64_t end;
};

PlanRecord record_of(uint64_t plan, std::vector<StageTimes> times) {
  PlanRecord record;
  record.plan = PlanId(plan);
  for (const StageTimes& each : times) {
    record.stages.push_back({.known = true,
                             .plan_ns = each.plan,
                             .input_ns = each.input,
                             .begin_ns = each.begin,
                             .end_ns = each.end,
                             .free_ns = each.begin});
  }
  return record;
}

Plan plan_of(uint64_t id, uint32_t prefill, uint32_t decode) {
  Plan plan;
  plan.id = PlanId(id);
  if (prefill > 0)
    plan.slices.push_back({.slot = SlotId(0), .token_count = prefill, .new_page_count = 1, .sample = true});
  for (uint32_t i = 0; i < decode; ++i)
    plan.slices.push_back({.slot = SlotId(1 + i), .prefix = 7, .token_count = 1, .sample = true});
  return plan;
}

PlanSent sent(int64_t schedule_ns, int64_t sent_ns, uint32_t running, uint32_t waiting, uint64_t free_pages,
              uint64_t bytes, bool profile = false) {
  return {.schedule_ns = schedule_ns,
          .sent_ns = sent_ns,
          .running = running,
          .waiting = waiting,
          .free_pages = free_pages,
          .bytes = bytes,
          .profile = profile};
}

PlanOutput output_of(uint64_t id, std::vector<StageReport> reports) {
  PlanOutput output;
  output.id = PlanId(id);
  output.reports = std::move(reports);
  return output;
}

StageReport report_of(uint32_t stage, uint64_t plan, StageTimes times, uint64_t bytes = 0) {
  return {.stage = StageId(stage),
          .plan = PlanId(plan),
          .plan_ns = times.plan,
          .input_ns = times.input,
          .begin_ns = times.begin,
          .end_ns = times.end,
          .sent_bytes = bytes};
}

}  // namespace

TEST_CASE("a longer micro-batch upstream makes the next stage wait") {
  const PlanRecord before = record_of(0, {{0, 0, 0, 100}, {0, 100, 100, 200}});
  PlanRecord record = record_of(1, {{0, 0, 100, 260}, {0, 260, 260, 360}});
  attribute_waits(before, record);
  REQUIRE(record.stages[0].wait.total_ns() == 0);
  REQUIRE(record.stages[1].wait.total_ns() == 60);
  REQUIRE(record.stages[1].wait[WaitCause::kUneven] == 60);
}

TEST_CASE("a slow link is late activations and a slow loop is overhead") {
  const PlanRecord before = record_of(0, {{0, 0, 0, 100}, {0, 100, 100, 200}});
  PlanRecord record = record_of(1, {{0, 0, 100, 200}, {0, 230, 235, 335}});
  attribute_waits(before, record);
  REQUIRE(record.stages[1].wait.total_ns() == 35);
  REQUIRE(record.stages[1].wait[WaitCause::kLateActivations] == 30);
  REQUIRE(record.stages[1].wait[WaitCause::kOverhead] == 5);
}

TEST_CASE("a stage with a full output buffer waits for the next stage") {
  const PlanRecord first = record_of(0, {{0, 0, 0, 10}, {0, 10, 10, 110}});
  PlanRecord second = record_of(1, {{0, 0, 10, 20}, {0, 20, 110, 210}});
  PlanRecord third = record_of(2, {{0, 0, 112, 122}, {0, 122, 210, 310}});
  attribute_waits(first, second);
  attribute_waits(second, third);
  REQUIRE(third.stages[0].wait[WaitCause::kUneven] == 90);
  REQUIRE(third.stages[0].wait[WaitCause::kOverhead] == 2);
}

TEST_CASE("time in the head and time without plans travel with the plan") {
  const PlanRecord before = record_of(0, {{0, 0, 0, 100}, {0, 100, 100, 200}});
  PlanRecord record = record_of(1, {{250, 250, 250, 350}, {260, 350, 350, 450}});
  record.ready_ns = 200;
  record.sent_ns = 240;
  record.starved = true;
  attribute_waits(before, record);
  for (const StageSpan& span : record.stages) {
    REQUIRE(span.wait.total_ns() == 150);
    REQUIRE(span.wait[WaitCause::kNothingToDo] == 100);
    REQUIRE(span.wait[WaitCause::kHeadLate] == 50);
  }
  record.starved = false;
  attribute_waits(before, record);
  REQUIRE(record.stages[0].wait[WaitCause::kUneven] == 100);
}

TEST_CASE("the ring drains and idles and fills around a pause") {
  PlanRecord before = record_of(0, {{0, 0, 0, 100}, {0, 100, 100, 200}});
  before.output_ns = 210;
  PlanRecord record = record_of(1, {{1020, 1020, 1025, 1125}, {1020, 1125, 1125, 1225}});
  record.ready_ns = 1000;
  record.sent_ns = 1015;
  record.after_pause = true;
  attribute_waits(before, record);
  const WaitTimes& first = record.stages[0].wait;
  REQUIRE(first[WaitCause::kFillDrain] == 110 + 10);
  REQUIRE(first[WaitCause::kIdle] == 790);
  REQUIRE(first[WaitCause::kHeadLate] == 15);
  REQUIRE(first.total_ns() == 925);
  const WaitTimes& second = record.stages[1].wait;
  REQUIRE(second[WaitCause::kFillDrain] == 10 + 110);
  REQUIRE(second.total_ns() == 925);
  REQUIRE(second.bubble_ns() == 925 - 790);
}

TEST_CASE("late reports match their plans and the sums add up") {
  RingStats stats(2, 2);
  stats.ring_attached(RingEpoch(1), 0);
  stats.request_arrived(5);
  stats.plan_sent(plan_of(0, 0, 0), sent(0, 0, 0, 0, 8, 30));
  stats.output_booked(output_of(0, {}), 20, 5, 6);
  stats.plan_sent(plan_of(1, 10, 0), sent(8, 10, 1, 0, 7, 100));
  stats.plan_sent(plan_of(2, 0, 3), sent(18, 20, 4, 2, 6, 90));
  REQUIRE(stats.snapshot(30).in_flight == 2);
  stats.output_booked(output_of(1, {report_of(1, 1, {12, 60, 60, 110})}), 50, 112, 115);
  REQUIRE(stats.records_after(0).empty());
  const std::vector<StageReport> late = {report_of(0, 1, {11, 11, 11, 60}, 640), report_of(0, 2, {21, 21, 60, 90}, 192),
                                         report_of(1, 2, {22, 90, 112, 142})};
  stats.output_booked(output_of(2, late), 60, 145, 146);

  const auto records = stats.records_after(0);
  REQUIRE(records.size() == 2);
  REQUIRE(records[0].number == 1);
  REQUIRE(records[0].after_pause);
  REQUIRE(records[0].ready_ns == 5);
  REQUIRE(records[0].prefill_rows == 10);
  REQUIRE(records[1].decode_rows == 3);
  REQUIRE(records[1].in_flight == 2);
  REQUIRE(records[1].waiting == 2);
  REQUIRE(stats.records_after(1).size() == 1);
  REQUIRE(stats.records_after(2).empty());

  const RingSnapshot found = stats.snapshot(150);
  REQUIRE(found.in_flight == 0);
  REQUIRE(found.since_start.plans == 2);
  REQUIRE(found.since_start.prefill_tokens == 10);
  REQUIRE(found.since_start.decode_tokens == 3);
  REQUIRE(found.since_start.stages[0].busy_ns == 49 + 30);
  REQUIRE(found.since_start.stages[1].busy_ns == 50 + 30);
  REQUIRE(found.since_start.stages[1].wait.total_ns() == 2);
  REQUIRE(found.occupancy_ns == std::vector<int64_t>{10, 10 + (145 - 112), 112 - 20});
  REQUIRE(found.latency_sum_ns == (112 - 10) + (145 - 20));
  std::array<uint64_t, kTokenCountBounds.size() + 1> token_counts{};
  token_counts[1] = token_counts[2] = 1;  // 3 tokens are at most 8, 10 at most 16
  REQUIRE(found.token_counts == token_counts);
  REQUIRE(found.since_start.links[0].bytes == 30 + 100 + 90);
  // The reports of stage 0 ride on the plan that brings them.
  REQUIRE(found.since_start.links[1].bytes == 30 + 100 + 90 + 2 * StageReport::kWireBytes + 640 + 192);
  REQUIRE(found.since_start.links[2].bytes == 20 + 50 + 60);
}

TEST_CASE("plans that time the stages are in no sum of what was served") {
  RingStats stats(1, 2);
  stats.ring_attached(RingEpoch(1), 0);
  stats.plan_sent(plan_of(0, 500, 0), sent(1, 2, 0, 0, 8, 30, true));
  stats.output_booked(output_of(0, {report_of(0, 0, {3, 3, 3, 50})}), 5, 60, 61);
  stats.request_arrived(70);
  stats.plan_sent(plan_of(1, 10, 0), sent(80, 82, 1, 0, 7, 100));
  stats.output_booked(output_of(1, {report_of(0, 1, {83, 83, 84, 90})}), 5, 91, 92);
  const RingSnapshot found = stats.snapshot(100);
  REQUIRE(found.profile.plans == 1);
  REQUIRE(found.profile.prefill_tokens == 500);
  REQUIRE(found.profile.stages[0].busy_ns == 47);
  REQUIRE(found.profile.links[0].bytes == 30);
  for (const RingTotals& served : {found.since_start, found.recent}) {
    REQUIRE(served.plans == 1);
    REQUIRE(served.prefill_tokens == 10);
    REQUIRE(served.stages[0].busy_ns == 6);
    REQUIRE(served.links[0].bytes == 100);
    REQUIRE(served.in_use_ns == 91 - 82);
  }
  REQUIRE(found.latency_sum_ns == 91 - 82);
  REQUIRE(std::ranges::count(found.token_counts, 1u) == 1);
}

TEST_CASE("a broken ring forgets its plans and ignores bad reports") {
  RingStats stats(1, 4);
  stats.ring_attached(RingEpoch(1), 0);
  stats.plan_sent(plan_of(0, 5, 0), sent(1, 2, 1, 0, 0, 10));
  stats.ring_broken(50);
  REQUIRE(stats.snapshot(60).in_flight == 0);
  stats.ring_attached(RingEpoch(2), 100);
  stats.plan_sent(plan_of(0, 5, 0), sent(101, 102, 1, 0, 0, 10));
  stats.output_booked(output_of(0, {report_of(7, 0, {}), report_of(0, 99, {}), report_of(0, 0, {103, 103, 104, 110})}),
                      5, 111, 112);
  const auto records = stats.records_after(0);
  REQUIRE(records.size() == 1);
  REQUIRE(records[0].epoch == RingEpoch(2));
  REQUIRE(stats.snapshot(120).epochs == 2);
}

TEST_CASE("records are bounded") {
  RingStats stats(1, 1);
  stats.ring_attached(RingEpoch(1), 0);
  const auto count = static_cast<int64_t>(RingStats::kMaxRecords + 100);
  for (int64_t i = 0; i < count; ++i) {
    const auto id = static_cast<uint64_t>(i);
    stats.plan_sent(plan_of(id, 0, 1), sent(i * 10, i * 10, 1, 0, 0, 10));
    stats.output_booked(output_of(id, {report_of(0, id, {i * 10, i * 10, i * 10 + 1, i * 10 + 5})}), 5, i * 10 + 6,
                        i * 10 + 7);
  }
  const auto records = stats.records_after(0);
  REQUIRE(records.size() == RingStats::kMaxRecords);
  REQUIRE(records.back().number == static_cast<uint64_t>(count));
  REQUIRE(stats.records_after(0, 3).front().number == static_cast<uint64_t>(count) - 2);
}

TEST_CASE("clock offsets lie within the shortest delay of the ring") {
  ClockOffsets clocks(3);
  const std::vector<int64_t> ahead = {5'000'000'000, -3'000'000, 70'000};
  int64_t now = 0;
  for (int64_t i = 0; i < 100; ++i) {
    const int64_t jitter = i * 7919 % 1000;
    std::vector<StageReport> reports;
    int64_t at = now;
    for (uint32_t s = 0; s < 3; ++s) {
      at += 20'000 + jitter;
      reports.push_back(report_of(s, 0, {at + ahead[s], 0, 0, 0}));
    }
    reports.back().end_ns = at + 500'000 + ahead[2];
    clocks.observe(now, reports, at + 500'000 + 30'000 + jitter);
    now += 1'000'000;
  }
  const int64_t around = 4 * 30'000;
  for (size_t s = 0; s < 3; ++s) REQUIRE(std::abs(clocks.offset_ns(s) - ahead[s]) <= around);
  REQUIRE(clocks.offset_ns(2) == 0);
}

TEST_CASE("transit is plan time minus stage time whatever the clocks") {
  Transit transit;
  REQUIRE(transit.shortest_us() == 0);
  const auto way = [&](int64_t sent, int64_t each_way) {
    // Two stages, each queues the plan for 50 us and runs for 100 us; the second one's clock is 9 s ahead.
    const int64_t first = sent + each_way;
    const int64_t second = first + 150'000 + each_way + 9'000'000'000;
    transit.observe(sent,
                    {report_of(0, 0, {first, first, first + 50'000, first + 150'000}),
                     report_of(1, 0, {second, second, second + 50'000, second + 150'000})},
                    first + 300'000 + 2 * each_way);
  };
  way(0, 40'000);
  REQUIRE(transit.shortest_us() == 120);
  way(1'000'000, 20'000);
  way(2'000'000, 70'000);
  REQUIRE(transit.shortest_us() == 60);
  way(8'000'000'000, 70'000);
  REQUIRE(transit.shortest_us() == 60);
  way(16'000'000'000, 70'000);
  REQUIRE(transit.shortest_us() == 210);
}
