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

/// Of the links from stage to stage. How long a transfer takes holds its size already: no rate beside it.
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
  double error = 0;
  for (const double each : costs.relative_errors) error = std::max(error, each);
  JsonWriter json(out);
  json.begin_object().member("name", fmt::format("{}, pp {}", model_name, costs.stages.size()));
  json.member("about", fmt::format("Measured after {} micro-batches; mean error of the predictions lately {:.1f} %",
                                   ring.since_start.plans, 100 * error));
  write_stages(json, costs);
  write_links(json, ring.since_start);
  json.member("processors", costs.processors).member("threads", costs.stage_threads);
  json.member("page_size", costs.page_size).member("page_count", costs.page_count);
  json.member("max_running", costs.max_running).member("context_length", costs.context_length).end_object();
}

}  // namespace millrace::server
