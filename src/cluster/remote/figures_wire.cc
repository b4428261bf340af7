#include "cluster/remote/figures_wire.h"

#include <algorithm>
#include <functional>
#include <span>

#include "tensor/sum_shards.h"

namespace millrace::cluster::remote {
namespace {

using comm::ByteReader;
using comm::ByteWriter;
using sched::LinkTotals;
using sched::PlanRecord;
using sched::RankSpan;
using sched::RingCosts;
using sched::RingSnapshot;
using sched::RingTotals;
using sched::StageSpan;
using sched::StageTotals;
using sched::WaitTimes;

/// Bytes that a record without stages, a stage of one, and a stage of the totals take at least.
constexpr size_t kRecordBytes = 64;
constexpr size_t kStageBytes = 64;
constexpr size_t kStageTotalsBytes = 64;

void put(ByteWriter& out, const WaitTimes& wait) {
  for (size_t i = 0; i < sched::kWaitCauseCount; ++i) out.put(wait[static_cast<sched::WaitCause>(i)]);
}
void get(ByteReader& in, WaitTimes& wait) {
  for (size_t i = 0; i < sched::kWaitCauseCount; ++i) wait[static_cast<sched::WaitCause>(i)] = in.get<int64_t>();
}

/// Reads as many values as `to` has.
template <class T>
void get_all(ByteReader& in, std::span<T> to) {
  const std::vector<T> values = in.get_array<T>();
  if (values.size() != to.size()) return in.fail();
  std::ranges::copy(values, to.begin());
}

void put(ByteWriter& out, const RingTotals& totals) {
  const auto& [plans, prefill_tokens, decode_tokens, schedule_ns, book_ns, in_use_ns, occupied_ns, stages, links] =
      totals;
  for (const uint64_t count : {plans, prefill_tokens, decode_tokens}) out.put(count);
  for (const int64_t ns : {schedule_ns, book_ns, in_use_ns, occupied_ns}) out.put(ns);
  for (const auto& [busy_ns, wait, rank_busy_ns] : stages) {
    out.put(busy_ns);
    put(out, wait);
    out.put_array(std::span(rank_busy_ns));
  }
  out.put_array(std::span(links));
}
/// Reads the totals of as many stages as `totals` has.
void get(ByteReader& in, RingTotals& totals) {
  for (uint64_t* count : {&totals.plans, &totals.prefill_tokens, &totals.decode_tokens}) *count = in.get<uint64_t>();
  for (int64_t* ns : {&totals.schedule_ns, &totals.book_ns, &totals.in_use_ns, &totals.occupied_ns}) {
    *ns = in.get<int64_t>();
  }
  for (StageTotals& stage : totals.stages) {
    stage.busy_ns = in.get<int64_t>();
    get(in, stage.wait);
    stage.rank_busy_ns = in.get_array<int64_t>();
  }
  get_all(in, std::span(totals.links));
}

void put(ByteWriter& out, const RingSnapshot& snapshot) {
  const auto& [stage_count, window, in_flight, epochs, steps, since_start, profile, recent, recent_ns, occupancy_ns,
               latency_counts, latency_sum_ns, token_counts] = snapshot;
  out.put(static_cast<uint32_t>(stage_count));
  for (const uint64_t count : {uint64_t{window}, uint64_t{in_flight}, epochs}) out.put(count);
  out.put_array(std::span(&steps, 1));
  for (const RingTotals* totals : {&since_start, &profile, &recent}) put(out, *totals);
  for (const int64_t ns : {recent_ns, latency_sum_ns}) out.put(ns);
  out.put_array(std::span(occupancy_ns));
  out.put_array(std::span<const uint64_t>(latency_counts));
  out.put_array(std::span<const uint64_t>(token_counts));
}
void get(ByteReader& in, RingSnapshot& snapshot) {
  snapshot.stage_count = in.get_count(3 * kStageTotalsBytes);
  snapshot.window = in.get<uint64_t>();
  snapshot.in_flight = static_cast<uint32_t>(in.get<uint64_t>());
  snapshot.epochs = in.get<uint64_t>();
  get_all(in, std::span(&snapshot.steps, 1));
  for (RingTotals* totals : {&snapshot.since_start, &snapshot.profile, &snapshot.recent}) {
    *totals = RingTotals(snapshot.stage_count);
    get(in, *totals);
  }
  for (int64_t* ns : {&snapshot.recent_ns, &snapshot.latency_sum_ns}) *ns = in.get<int64_t>();
  snapshot.occupancy_ns = in.get_array<int64_t>();
  get_all(in, std::span<uint64_t>(snapshot.latency_counts));
  get_all(in, std::span<uint64_t>(snapshot.token_counts));
}

void put(ByteWriter& out, const RingCosts& costs) {
  const auto& [stages, fallbacks, relative_errors, page_size, page_count, max_running, context_length, processors,
               stage_threads, contention] = costs;
  out.put_array(std::span(stages));
  out.put_array(std::span(fallbacks));
  out.put_array(std::span(relative_errors));
  for (const uint32_t count : {page_size, page_count, max_running, context_length, processors, stage_threads})
    out.put(count);
  out.put_array(std::span(&contention, 1));
}
void get(ByteReader& in, RingCosts& costs) {
  costs.stages = in.get_array<sched::CostCoefficients>();
  costs.fallbacks = in.get_array<StageId>();
  costs.relative_errors = in.get_array<double>();
  for (uint32_t* count : {&costs.page_size, &costs.page_count, &costs.max_running, &costs.context_length,
                          &costs.processors, &costs.stage_threads}) {
    *count = in.get<uint32_t>();
  }
  get_all(in, std::span(&costs.contention, 1));
}

void put(ByteWriter& out, const StageSpan& span) {
  const auto& [known, plan_ns, input_ns, begin_ns, end_ns, sent_bytes, free_ns, wait, ranks] = span;
  out.put(known);
  for (const int64_t ns : {plan_ns, input_ns, begin_ns, end_ns, free_ns}) out.put(ns);
  out.put(sent_bytes);
  put(out, wait);
  out.put(static_cast<uint32_t>(ranks.size()));
  for (const auto& [rank_known, rank_begin_ns, rank_end_ns] : ranks) {
    out.put(rank_known);
    out.put(rank_begin_ns);
    out.put(rank_end_ns);
  }
}
void get(ByteReader& in, StageSpan& span) {
  span.known = in.get_bool();
  for (int64_t* ns : {&span.plan_ns, &span.input_ns, &span.begin_ns, &span.end_ns, &span.free_ns}) {
    *ns = in.get<int64_t>();
  }
  span.sent_bytes = in.get<uint64_t>();
  get(in, span.wait);
  span.ranks.resize(in.get_count(sizeof(uint8_t) + 2 * sizeof(int64_t)));
  for (RankSpan& rank : span.ranks) {
    rank.known = in.get_bool();
    for (int64_t* ns : {&rank.begin_ns, &rank.end_ns}) *ns = in.get<int64_t>();
  }
}

void put(ByteWriter& out, const PlanRecord& record) {
  const auto& [number, epoch, plan, ready_ns, schedule_ns, sent_ns, output_ns, booked_ns, starved, after_pause,
               sequences, prefill_rows, decode_rows, in_flight, running, waiting, free_pages, stages] = record;
  out.put(number);
  out.put(epoch);
  out.put(plan);
  for (const int64_t ns : {ready_ns, schedule_ns, sent_ns, output_ns, booked_ns}) out.put(ns);
  for (const bool flag : {starved, after_pause}) out.put(flag);
  for (const uint32_t count : {sequences, prefill_rows, decode_rows, in_flight, running, waiting}) out.put(count);
  out.put(free_pages);
  out.put(static_cast<uint32_t>(stages.size()));
  for (const StageSpan& span : stages) put(out, span);
}
void get(ByteReader& in, PlanRecord& record) {
  record.number = in.get<uint64_t>();
  record.epoch = in.get<RingEpoch>();
  record.plan = in.get<PlanId>();
  for (int64_t* ns : {&record.ready_ns, &record.schedule_ns, &record.sent_ns, &record.output_ns, &record.booked_ns}) {
    *ns = in.get<int64_t>();
  }
  for (bool* flag : {&record.starved, &record.after_pause}) *flag = in.get_bool();
  for (uint32_t* count : {&record.sequences, &record.prefill_rows, &record.decode_rows, &record.in_flight,
                          &record.running, &record.waiting}) {
    *count = in.get<uint32_t>();
  }
  record.free_pages = in.get<uint64_t>();
  record.stages.resize(in.get_count(kStageBytes));
  for (StageSpan& span : record.stages) get(in, span);
}

bool fits(const RingTotals& totals, size_t rank_count) {
  return std::ranges::all_of(totals.stages,
                             [rank_count](const StageTotals& stage) { return stage.rank_busy_ns.size() < rank_count; });
}

/// Returns whether all parts are of a ring of this shape, as their readers take for granted.
bool is_consistent(const RingFigures& figures) {
  const RingSnapshot& snapshot = figures.snapshot;
  const auto is_of_ring = [&](const PlanRecord& record) {
    return record.stages.size() == snapshot.stage_count &&
           std::ranges::all_of(record.stages, [&](const auto& span) { return span.ranks.size() < figures.rank_count; });
  };
  return fits(snapshot.since_start, figures.rank_count) && fits(snapshot.profile, figures.rank_count) &&
         fits(snapshot.recent, figures.rank_count) && figures.rank_count <= uint32_t{tensor::kSumShards} &&
         snapshot.stage_count > 0 && !snapshot.occupancy_ns.empty() &&
         snapshot.occupancy_ns.size() - 1 == snapshot.window &&
         (figures.costs.stages.empty() || figures.costs.stages.size() == snapshot.stage_count) &&
         std::ranges::all_of(figures.records, is_of_ring) &&
         std::ranges::adjacent_find(figures.records, std::ranges::greater_equal(), &PlanRecord::number) ==
             figures.records.end();
}

}  // namespace

void put(ByteWriter& out, const RingFigures& figures) {
  out.put(figures.rank_count);
  out.put(figures.as_of_ns);
  put(out, figures.snapshot);
  put(out, figures.costs);
  out.put(static_cast<uint32_t>(figures.records.size()));
  for (const PlanRecord& record : figures.records) put(out, record);
}

void get(ByteReader& in, RingFigures& figures) {
  figures.rank_count = in.get<uint32_t>();
  figures.as_of_ns = in.get<int64_t>();
  get(in, figures.snapshot);
  get(in, figures.costs);
  figures.records.resize(in.get_count(kRecordBytes));
  for (PlanRecord& record : figures.records) get(in, record);
  if (in.ok() && !is_consistent(figures)) in.fail();
}

}  // namespace millrace::cluster::remote
