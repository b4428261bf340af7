#include "server/observe/stage_metrics.h"

#include "server/observe/metric_writer.h"

namespace millrace::server {

void append_store_metrics(std::string& out, const std::vector<cache::StageStoreStats>& stores) {
  if (stores.empty()) return;
  MetricWriter writer(out);
  for (const cache::StoreCounter& counter : cache::kStoreCounters) {
    const std::string name = fmt::format("page_store_{}", counter.name);
    writer.describe(name, counter.name.ends_with("_total") ? "counter" : "gauge", counter.help);
    for (const cache::StageStoreStats& each : stores) {
      writer.sample(name, fmt::format("stage=\"{}\",rank=\"{}\"", each.stage.value(), each.rank),
                    each.store.*counter.value);
    }
  }
}

void append_decode_metrics(std::string& out, const std::vector<sched::StageGraphStats>& stages) {
  if (stages.empty()) return;
  MetricWriter writer(out);
  writer.describe("decode_steps_total", "counter",
                  "Micro-batches of decode steps that a stage has run, by whether a graph was replayed, or why not.");
  for (const sched::StageGraphStats& each : stages) {
    for (size_t i = 0; i < each.counts.size(); ++i) {
      writer.sample("decode_steps_total",
                    fmt::format("stage=\"{}\",rank=\"{}\",graph=\"{}\"", each.stage.value(), each.rank,
                                tensor::kGraphOutcomeNames[i]),
                    each.counts[i]);
    }
  }
}

}  // namespace millrace::server
