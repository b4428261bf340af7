#include "server/observe/cost_view.h"

#include <fmt/format.h>

#include "base/json.h"

namespace millrace::server {
namespace {

void write_stages(JsonWriter& json, const sched::RingCosts& costs) {
  json.key("stages").begin_array();
  for (const sched::CostCoefficients& stage : costs.stages) {
    json.begin_object().member("fixed_us", stage.fixed_us).member("per_token_us", stage.per_token_us);
    json.member("per_pair_us", stage.per_pair_us).member("per_decode_us", stage.per_decode_us);
    json.member("per_context_us", stage.per_context_us).end_object();
  }
  json.end_array();
}

/// Returns a sentence on what the costs were fitted to, and how well they predict.
std::string about(const sched::RingCosts& costs, uint64_t plans) {
  double error = 0;
  for (const double each : costs.relative_errors) error = std::max(error, each);
  std::string text =
      fmt::format("Measured after {} micro-batches; mean error of the predictions lately {:.1f} %", plans, 100 * error);
  if (costs.fallbacks.empty()) return text;
  text += "; of stage ";
  for (const StageId stage : costs.fallbacks) {
    text += fmt::format("{}{}", stage == costs.fallbacks.front() ? "" : ", ", stage.value());
  }
  return text + " what was known before, at the speed of the last timings, since no refit predicts them";
}

void write_contention(JsonWriter& json, const sched::Contention& contention) {
  json.key("contention").begin_object();
  json.member("prompt_by_prompt", contention.prompt_by_prompt).member("prompt_by_other", contention.prompt_by_other);
  json.member("other_by_prompt", contention.other_by_prompt).member("other_by_other", contention.other_by_other);
  json.end_object();
}

/// Writes the latency from the last stage through the head to the first stage: both links, booking, scheduling.
void write_head(JsonWriter& json, const sched::RingTotals& totals) {
  double us = 0;
  for (const sched::LinkTotals& link : {totals.links.front(), totals.links.back()}) {
    if (link.timed > 0) us += static_cast<double>(link.latency_ns) / static_cast<double>(link.timed) / 1e3;
  }
  if (totals.plans > 0) {
    us += static_cast<double>(totals.schedule_ns + totals.book_ns) / static_cast<double>(totals.plans) / 1e3;
  }
  json.member("head_latency_us", us);
}

/// Writes the links between stages. Their latency includes the transfer, so there is no rate.
void write_links(JsonWriter& json, const sched::RingTotals& totals) {
  sched::LinkTotals inner;
  for (size_t i = 1; i + 1 < totals.links.size(); ++i) {
    inner.timed += totals.links[i].timed;
    inner.latency_ns += totals.links[i].latency_ns;
    inner.bytes += totals.links[i].bytes;
  }
  const uint64_t rows = (totals.prefill_tokens + totals.decode_tokens) * (totals.links.size() - 2);
  json.member("activation_bytes_per_token", rows == 0 ? uint64_t{0} : inner.bytes / rows);
  const double latency_ns =
      inner.timed == 0 ? 0 : static_cast<double>(inner.latency_ns) / static_cast<double>(inner.timed);
  json.member("link_latency_us", latency_ns / 1e3);
}

}  // namespace

void append_cost_view(std::string& out, const sched::RingCosts& costs, const sched::RingSnapshot& ring,
                      const std::string& model_name) {
  JsonWriter json(out);
  json.begin_object().member("name", fmt::format("{}, pp {}", model_name, costs.stages.size()));
  sched::RingTotals totals = ring.since_start;
  totals += ring.profile;
  json.member("about", about(costs, totals.plans));
  write_stages(json, costs);
  write_links(json, totals);
  write_head(json, totals);
  json.member("processors", costs.processors).member("threads", costs.stage_threads);
  write_contention(json, costs.contention);
  json.member("page_size", costs.page_size).member("page_count", costs.page_count);
  json.member("max_running", costs.max_running).member("context_length", costs.context_length).end_object();
}

}  // namespace millrace::server
