#include "base/check.h"
#include "fuzz/targets.h"
#include "sim/cluster.h"

namespace millrace::fuzz {

void cluster_json(std::string_view input) {
  const auto cluster = sim::Cluster::parse(std::string(input));
  if (cluster.has_error()) {
    CHECK(cluster.error().code == ErrorCode::kData && !cluster.error().message.empty());
    return;
  }
  CHECK(cluster->page_size > 0 && cluster->max_running > 0 && cluster->context_length > 0);
  CHECK(cluster->context_length <= uint64_t{cluster->page_size} * cluster->page_count);
  sched::BatchShape shape;
  shape.add_prefill(1000, 1000);
  shape.add_decode(1000);
  for (const int32_t stage_count : {1, 2, 8}) {
    const auto stages = cluster->divide(stage_count);
    if (stages.has_error()) {
      CHECK(stage_count > cluster->layers || !cluster->measured_stages.empty());
      continue;
    }
    CHECK(stages->size() == static_cast<size_t>(stage_count));
    for (const sim::StageCost& stage : *stages) CHECK(stage.coefficients.predict_us(shape) >= 0);
  }
}

}  // namespace millrace::fuzz
