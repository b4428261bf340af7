#include "server/observe/live_view.h"

#include <cmath>

#include "base/json.h"
#include "sched/head/engine.h"
#include "sched/head/engine_status.h"
#include "sched/head/ring_set.h"
#include "sched/head/ring_view.h"
#include "sched/plan/plan_record.h"

namespace millrace::server {
namespace {

using sched::PlanRecord;
using sched::RingSnapshot;
using sched::RingTotals;

constexpr size_t kMaxPlans = 512;

double per_second(uint64_t count, const RingSnapshot& ring) {
  return ring.recent_ns <= 0 ? 0.0 : static_cast<double>(count) * 1e9 / static_cast<double>(ring.recent_ns);
}

/// Returns three decimals: the page needs no more, and the reply stays short.
double rounded(double value) {
  return std::round(value * 1000) / 1000;
}

double microseconds(int64_t ns) {
  return static_cast<double>(ns / 100) / 10;
}

double mean_microseconds(int64_t ns, uint64_t count) {
  return count == 0 ? 0.0 : rounded(static_cast<double>(ns) / static_cast<double>(count) / 1000);
}

void write_state(JsonWriter& json, const sched::EngineStatus& status) {
  json.member("ready", status.ready).member("reason", status.reason);
  json.member("running", status.running).member("waiting", status.waiting);
  json.member("free_pages", status.free_pages).member("total_pages", status.total_pages);
  json.member("preemptions", status.preemptions);
  if (status.windows.empty()) return;
  json.key("windows").begin_array();
  for (const sched::WindowStatus& one : status.windows) {
    json.begin_object().member("kind", one.kind == GroupKind::kState ? "state" : "window");
    json.member("window", one.window);
    json.member("free_pages", one.free_pages).member("total_pages", one.total_pages).end_object();
  }
  json.end_array();
}

void write_recent(JsonWriter& json, const RingSnapshot& ring) {
  const RingTotals& recent = ring.recent;
  json.key("recent").begin_object().member("seconds", rounded(static_cast<double>(ring.recent_ns) * 1e-9));
  json.member("prefill_tokens_per_s", rounded(per_second(recent.prefill_tokens, ring)));
  json.member("decode_tokens_per_s", rounded(per_second(recent.decode_tokens, ring)));
  json.member("micro_batches_per_s", rounded(per_second(recent.plans, ring)));
  json.member("occupancy", rounded(recent.occupancy()));
  // Little's law: the mean time in the ring is the mean number in it divided by the rate.
  json.member("ring_latency_us", mean_microseconds(recent.occupied_ns, recent.plans));
  json.member("head_us", mean_microseconds(recent.schedule_ns + recent.book_ns, recent.plans));
  json.key("stages").begin_array();
  for (const sched::StageTotals& stage : recent.stages) {
    const int64_t counted = stage.busy_ns + stage.wait.bubble_ns();
    json.begin_object().member("bubble", rounded(stage.bubble_ratio()));
    json.member("busy", rounded(counted == 0 ? 0.0 : 1 - stage.bubble_ratio())).key("causes").begin_object();
    for (size_t i = 0; i < sched::kWaitCauseCount; ++i) {
      const auto cause = static_cast<sched::WaitCause>(i);
      if (cause == sched::WaitCause::kIdle || stage.wait[cause] == 0) continue;
      json.member(sched::kWaitCauseNames[i],
                  rounded(static_cast<double>(stage.wait[cause]) / static_cast<double>(counted)));
    }
    json.end_object().key("ranks").begin_array();
    for (const int64_t rank_ns : stage.rank_busy_ns) {
      json.value(rounded(counted == 0 ? 0.0 : static_cast<double>(rank_ns) / static_cast<double>(counted)));
    }
    json.end_array().end_object();
  }
  json.end_array().key("links").begin_array();
  for (const sched::LinkTotals& link : recent.links) {
    json.begin_object().member("bytes_per_s", rounded(per_second(link.bytes, ring)));
    json.member("latency_us", mean_microseconds(link.latency_ns, link.timed)).end_object();
  }
  json.end_array().end_object();
}

void write_plan(JsonWriter& json, const PlanRecord& record) {
  json.begin_object().member("number", record.number).member("plan", record.plan.value());
  json.member("epoch", record.epoch.value()).member("prefill", record.prefill_rows);
  json.member("decode", record.decode_rows).member("sequences", record.sequences);
  json.member("in_flight", record.in_flight).member("scheduled", microseconds(record.schedule_ns));
  json.member("sent", microseconds(record.sent_ns)).member("output", microseconds(record.output_ns));
  json.member("booked", microseconds(record.booked_ns)).key("stages").begin_array();
  for (const sched::StageSpan& span : record.stages) {
    json.begin_array().value(microseconds(span.begin_ns)).value(microseconds(span.end_ns));
    json.value(microseconds(span.wait.total_ns())).value(static_cast<size_t>(span.wait.main_cause())).end_array();
  }
  json.end_array().end_object();
}

void write_ring_list(JsonWriter& json, const sched::RingSet& rings) {
  json.key("rings").begin_array();
  for (size_t ring = 0; ring < rings.size(); ++ring) {
    const sched::RingReport report = rings.report(ring);
    json.begin_object().member("ring", ring).member("serves", report.fault.empty()).member("reason", report.fault);
    json.member("running", report.status.running).member("waiting", report.status.waiting).end_object();
  }
  json.end_array();
}

}  // namespace

void append_live_view(std::string& out, const sched::RingView& ring, const LiveViewOptions& options) {
  const RingSnapshot snapshot = ring.snapshot(options.now_ns);
  JsonWriter json(out);
  json.begin_object().member("model", options.model_name);
  json.member("now_us", microseconds(ring.as_of_ns(options.now_ns)));
  json.member("started_us", microseconds(ring.began_ns() == 0 ? options.started_ns : ring.began_ns()));
  json.member("stage_count", snapshot.stage_count).member("rank_count", ring.rank_count());
  json.member("window", snapshot.window);
  json.member("in_flight", snapshot.in_flight).member("epochs", snapshot.epochs);
  json.member("micro_batches", snapshot.since_start.plans);
  json.member("prefill_tokens", snapshot.since_start.prefill_tokens);
  json.member("decode_tokens", snapshot.since_start.decode_tokens);
  write_state(json, options.engine.status());
  if (options.rings != nullptr) write_ring_list(json, *options.rings);
  write_recent(json, snapshot);
  json.key("causes").begin_array();
  for (const std::string_view name : sched::kWaitCauseNames) json.value(name);
  json.end_array().key("plans").begin_array();
  for (const PlanRecord& record : ring.records_after(options.after, kMaxPlans)) write_plan(json, record);
  json.end_array().end_object();
}

}  // namespace millrace::server
