#include "sim/cluster.h"

#include <bit>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/json_value.h"
#include "model/layer_range.h"
#include "sim/description_fields.h"
#include "sim/device.h"

namespace millrace::sim {
namespace {

void add_scaled(sched::CostCoefficients& sum, const sched::CostCoefficients& part, double factor) {
  sum.fixed_us += factor * part.fixed_us;
  sum.per_token_us += factor * part.per_token_us;
  sum.per_pair_us += factor * part.per_pair_us;
  sum.per_decode_us += factor * part.per_decode_us;
  sum.per_context_us += factor * part.per_context_us;
}

constexpr uint32_t kMaxLayers = 1 << 20;
constexpr uint32_t kMaxProcessors = 1 << 16;
constexpr uint32_t kMaxPageSize = 1 << 16;
constexpr uint32_t kMaxPages = 1 << 27;
constexpr uint32_t kMaxRunning = 1 << 16;
constexpr uint32_t kMaxContext = 1 << 30;

Result<void> read_cost(std::string_view name, JsonValue value, sched::CostCoefficients& cost) {
  JsonObject fields;
  if (!value.get(fields)) return make_error(ErrorCode::kData, "{}: wanted an object", name);
  for (const auto field : fields) {
    const auto found = read_number(field.key, field.value);
    if (found.has_error()) return found.error();
    if (field.key == "fixed_us") {
      cost.fixed_us = *found;
    } else if (field.key == "per_token_us") {
      cost.per_token_us = *found;
    } else if (field.key == "per_pair_us") {
      cost.per_pair_us = *found;
    } else if (field.key == "per_decode_us") {
      cost.per_decode_us = *found;
    } else if (field.key == "per_context_us") {
      cost.per_context_us = *found;
    } else {
      return make_error(ErrorCode::kData, "{}.{}: unknown", name, field.key);
    }
  }
  return {};
}

Result<void> read_slowness(JsonValue value, std::vector<double>& slowness) {
  JsonArray factors;
  if (!value.get(factors)) return Error{ErrorCode::kData, "slowness: wanted an array"};
  for (const JsonValue factor : factors) {
    const auto found = read_number("slowness", factor);
    if (found.has_error()) return found.error();
    if (*found == 0) return Error{ErrorCode::kData, "slowness: wanted factors above 0"};
    slowness.push_back(*found);
  }
  return {};
}

Result<void> read_stages(JsonValue value, std::vector<sched::CostCoefficients>& stages) {
  JsonArray list;
  if (!value.get(list)) return Error{ErrorCode::kData, "stages: wanted an array"};
  for (const JsonValue stage : list) {
    RETURN_IF_ERROR(read_cost(fmt::format("stages[{}]", stages.size()), stage, stages.emplace_back()));
  }
  return {};
}

Result<void> read_ranks(JsonValue value, std::optional<RankCosts>& ranks) {
  const auto found = RankCosts::parse(value);
  if (found.has_error()) return found.error();
  ranks = *found;
  return {};
}

/// Checks the description of a device, which no workload needs.
Result<void> read_device(JsonValue value) {
  const auto found = Device::parse(value);
  if (found.has_error()) return found.error();
  return {};
}

Result<void> read_contention(JsonValue value, sched::Contention& contention) {
  JsonObject fields;
  if (!value.get(fields)) return Error{ErrorCode::kData, "contention: wanted an object"};
  for (const auto field : fields) {
    const auto found = read_number(fmt::format("contention.{}", std::string_view(field.key)), field.value, 1);
    if (found.has_error()) return found.error();
    if (field.key == "prompt_by_prompt") {
      contention.prompt_by_prompt = *found;
    } else if (field.key == "prompt_by_other") {
      contention.prompt_by_other = *found;
    } else if (field.key == "other_by_prompt") {
      contention.other_by_prompt = *found;
    } else if (field.key == "other_by_other") {
      contention.other_by_other = *found;
    } else {
      return make_error(ErrorCode::kData, "contention.{}: unknown", field.key);
    }
  }
  return {};
}

Result<void> read_scalar(std::string_view name, JsonValue value, Cluster& cluster, sched::SharedMachine& shared) {
  if (name == "layers") return read_integer(name, value, kMaxLayers, cluster.layers);
  if (name == "processors") return read_integer(name, value, kMaxProcessors, shared.processors);
  if (name == "threads") return read_integer(name, value, kMaxProcessors, shared.threads);
  if (name == "page_size") return read_integer(name, value, kMaxPageSize, cluster.page_size);
  if (name == "page_count") return read_integer(name, value, kMaxPages, cluster.page_count);
  if (name == "max_running") return read_integer(name, value, kMaxRunning, cluster.max_running);
  if (name == "context_length") return read_integer(name, value, kMaxContext, cluster.context_length);
  const auto found = read_number(name, value);
  if (found.has_error()) return found.error();
  if (name == "jitter") {
    cluster.jitter = *found;
  } else if (name == "activation_bytes_per_token") {
    cluster.activation_bytes_per_token = *found;
  } else if (name == "link_gb_per_s") {
    cluster.link_bytes_per_second = *found * 1e9;
  } else if (name == "link_latency_us") {
    cluster.link_latency_us = *found;
  } else if (name == "head_latency_us") {
    cluster.head_latency_us = *found;
  } else {
    return make_error(ErrorCode::kData, "{}: unknown", name);
  }
  return {};
}

bool is_nothing(const sched::CostCoefficients& cost) {
  return cost.fixed_us + cost.per_token_us + cost.per_pair_us + cost.per_decode_us + cost.per_context_us == 0;
}

/// Checks that every stage takes some time; one that takes none lacks a field.
Result<void> check_costs(const Cluster& cluster) {
  for (size_t i = 0; i < cluster.measured_stages.size(); ++i) {
    if (is_nothing(cluster.measured_stages[i])) return make_error(ErrorCode::kData, "stages[{}]: costs nothing", i);
  }
  if (cluster.measured_stages.empty() && is_nothing(cluster.layer) && is_nothing(cluster.stage)) {
    return Error{ErrorCode::kData, "layer: costs nothing, and neither does stage"};
  }
  return {};
}

Result<void> read_field(std::string_view name, JsonValue value, Cluster& cluster, sched::SharedMachine& shared) {
  if (name == "layer") return read_cost(name, value, cluster.layer);
  if (name == "stage") return read_cost(name, value, cluster.stage);
  if (name == "output_head") return read_cost(name, value, cluster.output_head);
  if (name == "stages") return read_stages(value, cluster.measured_stages);
  if (name == "contention") return read_contention(value, shared.contention);
  if (name == "slowness") return read_slowness(value, cluster.slowness);
  if (name == "ranks") return read_ranks(value, cluster.ranks);
  if (name == "device") return read_device(value);
  if (name == "name" || name == "about") {
    std::string_view text;
    if (!value.get(text)) return make_error(ErrorCode::kData, "{}: wanted a string", name);
    if (name == "name") cluster.name = text;
    return {};
  }
  return read_scalar(name, value, cluster, shared);
}

}  // namespace

Result<Cluster> Cluster::parse(const std::string& json) {
  const auto document = JsonDocument::parse(json);
  if (document.has_error()) return make_error(ErrorCode::kData, "not valid JSON: {}", document.error().message);
  JsonObject fields;
  if (!document->root().get(fields)) return Error{ErrorCode::kData, "not a JSON object"};
  Cluster cluster;
  sched::SharedMachine shared{.processors = 0};  // 0: not given
  for (const auto field : fields) RETURN_IF_ERROR(read_field(field.key, field.value, cluster, shared));
  if ((cluster.layers < 1) == cluster.measured_stages.empty()) {
    return Error{ErrorCode::kData, "wanted either layers, at least 1, or stages"};
  }
  if (cluster.ranks && !cluster.measured_stages.empty()) {
    return Error{ErrorCode::kData, "ranks: wanted layers too, since measured stages cannot be divided"};
  }
  if (cluster.page_size < 1 || cluster.page_count < 1 || cluster.max_running < 1 || shared.threads < 1) {
    return Error{ErrorCode::kData, "page_size, page_count, max_running, threads: wanted at least 1 of each"};
  }
  const sched::Contention& taken = shared.contention;
  const double contention =
      taken.prompt_by_prompt + taken.prompt_by_other + taken.other_by_prompt + taken.other_by_other;
  if (shared.processors == 0 && contention > 0) {
    return Error{ErrorCode::kData, "contention: wanted processors too, those of the machine that the stages share"};
  }
  if (shared.processors > 0) cluster.machine = shared;
  const uint64_t capacity = uint64_t{cluster.page_size} * cluster.page_count;
  if (cluster.context_length == 0 || cluster.context_length > capacity) {
    return make_error(ErrorCode::kData, "context_length {}: wanted 1 to what the pages hold, {}",
                      cluster.context_length, capacity);
  }
  RETURN_IF_ERROR(check_costs(cluster));
  return cluster;
}

Result<Cluster> Cluster::load(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  if (!file) return make_error(ErrorCode::kNotFound, "{}: cannot be read", path.string());
  auto cluster = parse(content.str());
  if (cluster.has_error()) {
    return make_error(cluster.error().code, "{}: {}", path.string(), cluster.error().message);
  }
  return cluster;
}

Result<std::vector<StageCost>> Cluster::divide(int32_t stage_count, int32_t tp_size) const {
  const int32_t rank_count = ranks_of(tp_size);
  if (!std::has_single_bit(static_cast<uint32_t>(rank_count)) || (!ranks && rank_count != 1)) {
    return make_error(ErrorCode::kInvalidArgument, "--tp-size {}: wanted {}", rank_count,
                      ranks ? "a power of two" : "a description with ranks");
  }
  if (!measured_stages.empty()) return as_measured(stage_count);
  const sched::CostCoefficients rank_layer = ranks ? ranks->divide_layer(layer, rank_count) : layer;
  const sched::CostCoefficients rank_head = RankCosts::divide(output_head, rank_count);
  const auto ranges = model::divide_layers(layers, stage_count);
  if (ranges.has_error()) return ranges.error();
  std::vector<StageCost> stages;
  for (const model::StageSpan& span : model::stage_spans(*ranges)) {
    const double factor = slowness_of(stages.size());
    StageCost cost;
    add_scaled(cost.coefficients, rank_layer, factor * (span.layers.end - span.layers.begin));
    add_scaled(cost.coefficients, stage, factor);
    if (span.last) add_scaled(cost.coefficients, rank_head, factor);
    stages.push_back(cost);
  }
  join(stages, rank_count);
  return stages;
}

int32_t Cluster::ranks_of(int32_t tp_size) const {
  return tp_size > 0 ? tp_size : ranks ? ranks->size : 1;
}

Result<std::vector<StageCost>> Cluster::as_measured(int32_t stage_count) const {
  if (static_cast<size_t>(stage_count) != measured_stages.size()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the description holds {} measured stages: --pp-size {} is another ring", measured_stages.size(),
                      stage_count);
  }
  std::vector<StageCost> stages;
  for (const sched::CostCoefficients& coefficients : measured_stages) {
    StageCost cost;
    add_scaled(cost.coefficients, coefficients, slowness_of(stages.size()));
    stages.push_back(cost);
  }
  join(stages, 1);
  return stages;
}

double Cluster::slowness_of(size_t index) const {
  return slowness.empty() ? 1 : slowness[std::min(index, slowness.size() - 1)];
}

/// Sets what a stage's link carries per row: each rank has a link of its own for its slice.
void Cluster::join(std::vector<StageCost>& joined, int32_t rank_count) const {
  const auto row_bytes = static_cast<size_t>(activation_bytes_per_token / rank_count);
  for (StageCost& each : joined) {
    each.jitter = jitter;
    each.input_row_bytes = &each == &joined.front() ? 0 : row_bytes;
    each.output_row_bytes = &each == &joined.back() ? 0 : row_bytes;
  }
}

}  // namespace millrace::sim
