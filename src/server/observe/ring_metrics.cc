#include "server/observe/ring_metrics.h"

#include "sched/head/engine_status.h"
#include "sched/head/ring_stats.h"
#include "sched/plan/draft_counts.h"
#include "server/observe/metric_writer.h"

namespace millrace::server {
namespace {

using sched::LinkTotals;
using sched::RingSnapshot;
using sched::StageTotals;

void write_stages(MetricWriter& writer, const RingSnapshot& ring) {
  const std::vector<StageTotals>& stages = ring.since_start.stages;
  const auto per_stage = [&](std::string_view name, std::string_view type, std::string_view help,
                             const auto& value_of) {
    writer.describe(name, type, help);
    for (size_t s = 0; s < stages.size(); ++s) writer.sample(name, fmt::format("stage=\"{}\"", s), value_of(s));
  };
  per_stage("stage_busy_seconds_total", "counter", "Time that a stage computed.",
            [&](size_t s) { return seconds(stages[s].busy_ns); });
  writer.describe("rank_busy_seconds_total", "counter",
                  "Time that a rank of a stage computed or waited for the others.");
  for (size_t s = 0; s < stages.size(); ++s) {
    for (size_t rank = 0; rank <= stages[s].rank_busy_ns.size(); ++rank) {
      writer.sample("rank_busy_seconds_total", fmt::format("stage=\"{}\",rank=\"{}\"", s, rank),
                    seconds(rank == 0 ? stages[s].busy_ns : stages[s].rank_busy_ns[rank - 1]));
    }
  }
  writer.describe("stage_wait_seconds_total", "counter", "Time that a stage waited, by cause; idle: no request.");
  for (size_t s = 0; s < stages.size(); ++s) {
    for (size_t i = 0; i < sched::kWaitCauseCount; ++i) {
      writer.sample("stage_wait_seconds_total", fmt::format("stage=\"{}\",cause=\"{}\"", s, sched::kWaitCauseNames[i]),
                    seconds(stages[s].wait[static_cast<sched::WaitCause>(i)]));
    }
  }
  per_stage("bubble_ratio", "gauge", "Share of the time with requests that a stage waited, last 10 s.",
            [&](size_t s) { return ring.recent.stages[s].bubble_ratio(); });
  per_stage("bubble_ratio_since_start", "gauge", "Share of the time with requests that a stage waited.",
            [&](size_t s) { return stages[s].bubble_ratio(); });
}

void write_window(MetricWriter& writer, const RingSnapshot& ring) {
  writer.single("window_size", "gauge", "Limit of micro-batches in flight.", ring.window);
  writer.single("window_in_flight", "gauge", "Micro-batches in flight now.", ring.in_flight);
  writer.single("window_occupancy", "gauge", "Mean micro-batches in flight while there are any, over the last 10 s.",
                ring.recent.occupancy());
  writer.describe("window_seconds_total", "counter", "Time by the number of micro-batches in flight.");
  for (size_t level = 0; level < ring.occupancy_ns.size(); ++level) {
    writer.sample("window_seconds_total", fmt::format("in_flight=\"{}\"", level), seconds(ring.occupancy_ns[level]));
  }
}

void write_latency(MetricWriter& writer, const RingSnapshot& ring) {
  writer.describe("ring_latency_seconds", "histogram", "From sending a micro-batch to having its output.");
  writer.histogram("ring_latency_seconds", "", sched::kRingLatencyBounds, ring.latency_counts,
                   seconds(ring.latency_sum_ns));
}

/// Appends the histogram of micro-batch sizes under vLLM's name, which calls it a total, and under both prefixes.
void write_token_counts(std::string& out, const RingSnapshot& ring, std::string_view model_name) {
  const std::string label = model_label(model_name);
  const uint64_t tokens = ring.since_start.prefill_tokens + ring.since_start.decode_tokens;
  for (const std::string_view prefix : {"vllm:", "millrace:"}) {
    MetricWriter writer(out, prefix);
    writer.describe("iteration_tokens_total", "histogram", "Prompt and decode tokens of a micro-batch.");
    writer.histogram("iteration_tokens_total", label, sched::kTokenCountBounds, ring.token_counts, tokens);
  }
}

void write_links(MetricWriter& writer, const RingSnapshot& ring) {
  const std::vector<LinkTotals>& links = ring.since_start.links;
  const auto label = [&](size_t i) {
    return fmt::format("from=\"{}\",to=\"{}\"", i == 0 ? "head" : std::to_string(i - 1),
                       i + 1 == links.size() ? "head" : std::to_string(i));
  };
  writer.describe("link_bytes_total", "counter", "Payload bytes sent over a link of the ring.");
  for (size_t i = 0; i < links.size(); ++i) writer.sample("link_bytes_total", label(i), links[i].bytes);
  writer.describe("link_messages_total", "counter", "Messages sent over a link of the ring.");
  for (size_t i = 0; i < links.size(); ++i) writer.sample("link_messages_total", label(i), links[i].messages);
  writer.describe("link_latency_seconds", "summary",
                  "From the end of a stage's work to its arrival at the next one; from the head: of plans.");
  for (size_t i = 0; i < links.size(); ++i) {
    writer.sample("link_latency_seconds_sum", label(i), seconds(links[i].latency_ns));
    writer.sample("link_latency_seconds_count", label(i), links[i].timed);
  }
}

}  // namespace

void append_ring_metrics(std::string& out, const RingSnapshot& ring, const sched::EngineStatus& status,
                         std::string_view model_name) {
  MetricWriter writer(out);
  write_token_counts(out, ring, model_name);
  write_stages(writer, ring);
  write_window(writer, ring);
  write_latency(writer, ring);
  write_links(writer, ring);
  writer.single("micro_batches_total", "counter", "Micro-batches that have completed.", ring.since_start.plans);
  writer.describe("expert_steps_total", "counter",
                  "Steps run together with other rings that share experts, by whether this ring had rows.");
  writer.sample("expert_steps_total", "rows=\"some\"", ring.steps.with_rows);
  writer.sample("expert_steps_total", "rows=\"none\"", ring.steps.without_rows);
  writer.describe("computed_tokens_total", "counter", "Rows that the ring has computed.");
  writer.sample("computed_tokens_total", "phase=\"prefill\"", ring.since_start.prefill_tokens);
  writer.sample("computed_tokens_total", "phase=\"decode\"", ring.since_start.decode_tokens);
  writer.describe("draft_tokens_total", "counter", "Draft tokens, by source and by whether they were accepted.");
  for (size_t i = 0; i < sched::kDraftSources; ++i) {
    const uint64_t accepted = status.drafts.accepted[i];
    const auto labels = [&](std::string_view fate) {
      return fmt::format("source=\"{}\",fate=\"{}\"", sched::kDraftSourceNames[i], fate);
    };
    writer.sample("draft_tokens_total", labels("accepted"), accepted);
    writer.sample("draft_tokens_total", labels("rejected"), status.drafts.drafted[i] - accepted);
  }
  writer.describe("head_seconds_total", "counter", "Time that the head took to make plans and to book outputs.");
  writer.sample("head_seconds_total", "work=\"schedule\"", seconds(ring.since_start.schedule_ns));
  writer.sample("head_seconds_total", "work=\"book\"", seconds(ring.since_start.book_ns));
  writer.single("ring_epochs_total", "counter", "Ring epochs that have begun.", ring.epochs);
  writer.single("kv_pages_free", "gauge", "Free pages of the KV cache.", status.free_pages);
  writer.single("kv_pages_total", "gauge", "Pages of the KV cache.", status.total_pages);
}

void append_router_metrics(std::string& out, const sched::RingSet& rings) {
  MetricWriter writer(out);
  std::vector<sched::RingReport> reports;
  for (size_t ring = 0; ring < rings.size(); ++ring) reports.push_back(rings.report(ring));
  const auto per_ring = [&](std::string_view name, std::string_view type, std::string_view help, const auto& value_of) {
    writer.describe(name, type, help);
    for (size_t i = 0; i < reports.size(); ++i)
      writer.sample(name, fmt::format("ring=\"{}\"", i), value_of(reports[i]));
  };
  using Report = const sched::RingReport&;
  per_ring("ring_serves", "gauge", "1 when a ring takes requests.",
           [](Report report) { return report.fault.empty() ? 1 : 0; });
  per_ring("ring_requests_running", "gauge", "Sequences that a ring computes.",
           [](Report report) { return report.status.running; });
  per_ring("ring_requests_waiting", "gauge", "Sequences that wait in a ring's queue.",
           [](Report report) { return report.status.waiting; });
  per_ring("ring_cache_hit_pages_total", "counter", "Prompt pages that a ring found in its cache.",
           [](Report report) { return report.status.cache.device_hit_pages + report.status.cache.host_hit_pages; });
  per_ring("ring_cache_missed_pages_total", "counter", "Prompt pages that a ring had to compute.",
           [](Report report) { return report.status.cache.missed_pages; });
  per_ring("ring_moved_requests_total", "counter", "Queued requests that left a ring for another.",
           [](Report report) { return report.moved; });
  writer.describe("routed_requests_total", "counter", "Requests by the ring that they were routed to, and why.");
  for (size_t i = 0; i < reports.size(); ++i) {
    for (const sched::RouteCount& count : reports[i].routed) {
      writer.sample("routed_requests_total", fmt::format("ring=\"{}\",reason=\"{}\"", i, count.reason), count.requests);
    }
  }
}

}  // namespace millrace::server
