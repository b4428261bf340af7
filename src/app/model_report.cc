#include "app/model_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "app/model_capacity.h"
#include "app/node_stages.h"
#include "base/json.h"
#include "model/adapt_config.h"
#include "model/families/read_config.h"
#include "model/rank_layout.h"
#include "model/stage_borders.h"

namespace millrace::app {
namespace {

using Ranges = std::vector<model::LayerRange>;

double gigabytes(double bytes) {
  return bytes / 1e9;
}

/// Returns the layers of each stage as --pp-layer-partition takes them.
std::string layers_text(const Ranges& ranges) {
  std::vector<int32_t> sizes;
  for (const model::LayerRange& range : ranges) sizes.push_back(range.size());
  return fmt::format("{}", fmt::join(sizes, ","));
}

Result<model::ModelConfig> read_model(const SimulateFlags& flags) {
  auto config = model::read_config(flags.model_path);
  if (config.has_error()) return config.error();
  if (config->weight_format.method == weights::QuantMethod::kGguf) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--model-path {}: each tensor of a GGUF file has a format of its own, wanted a config.json",
                      flags.model_path.string());
  }
  RETURN_IF_ERROR(model::settle_weight_format(flags.model_path, *config));
  if (config->encoder) {
    return make_error(ErrorCode::kInvalidArgument, "--model-path {}: {} is an encoder, which keeps no KV cache",
                      flags.model_path.string(), config->architecture);
  }
  return quantized_config(std::move(*config), flags.quantization);
}

/// What one division of a model has, over all of its stages.
struct Setting {
  Ranges ranges;
  std::vector<model::WeightMemory> weights;  // [stages]
  std::vector<double> room;                  // [stages]
  std::vector<uint32_t> tokens;              // by --sequences
  double token_s = 0;
  double prompt_tokens_per_s = 0;
};

Setting measure(const ModelCapacity& capacity, const Ranges& ranges, const std::vector<uint32_t>& sequences) {
  Setting setting{.ranges = ranges,
                  .weights = {},
                  .room = {},
                  .tokens = {},
                  .token_s = capacity.token_seconds(ranges),
                  .prompt_tokens_per_s = capacity.prompt_tokens_per_second(ranges)};
  for (const model::StageSpan& span : model::stage_spans(ranges)) {
    setting.weights.push_back(capacity.weights(span));
    setting.room.push_back(capacity.room(span));
  }
  for (const uint32_t count : sequences) setting.tokens.push_back(capacity.max_tokens(ranges, count));
  return setting;
}

void print_header(const std::vector<uint32_t>& sequences) {
  fmt::print("{:>3} {:>11} {:>9}", "pp", "weights GB", "room GB");
  for (const uint32_t count : sequences) fmt::print(" {:>12}", fmt::format("tokens x {}", count));
  fmt::print(" {:>9} {:>12}  layers\n", "ms/token", "prompt tok/s");
}

void print_row(const Setting& setting) {
  const auto heaviest = std::ranges::max_element(setting.weights, {}, &model::WeightMemory::bytes);
  fmt::print("{:>3} {:>11.1f} {:>9.1f}", setting.ranges.size(), gigabytes(heaviest->bytes),
             gigabytes(std::ranges::min(setting.room)));
  for (const uint32_t tokens : setting.tokens) fmt::print(" {:>12}", tokens > 0 ? fmt::format("{}", tokens) : "-");
  fmt::print(" {:>9.2f} {:>12}  {}\n", 1e3 * setting.token_s,
             setting.prompt_tokens_per_s > 0 ? fmt::format("{:.0f}", setting.prompt_tokens_per_s) : "-",
             layers_text(setting.ranges));
}

void write_setting(JsonWriter& json, const Setting& setting, const std::vector<uint32_t>& sequences) {
  json.begin_object().member("pp_size", setting.ranges.size());
  json.key("stages").begin_array();
  for (size_t stage = 0; stage < setting.ranges.size(); ++stage) {
    json.begin_object().member("layers", setting.ranges[stage].size());
    json.member("weight_bytes", setting.weights[stage].bytes).member("room_bytes", setting.room[stage]).end_object();
  }
  json.end_array().key("contexts").begin_array();
  for (size_t i = 0; i < sequences.size(); ++i) {
    json.begin_object().member("sequences", sequences[i]).member("tokens", setting.tokens[i]).end_object();
  }
  json.end_array().member("token_ms", 1e3 * setting.token_s);
  json.member("prompt_tokens_per_s", setting.prompt_tokens_per_s).end_object();
}

/// The fewest stages that the weights, or a load, need.
struct Needs {
  std::optional<Ranges> weights;
  std::optional<Ranges> context;
  std::optional<Ranges> by_memory;  // fewer than `context`, divided otherwise
};

Needs find_needs(const ModelCapacity& capacity, const ModelCapacity::Load& load) {
  Needs needs{.weights = capacity.fewest_even({}),
              .context = capacity.fewest_even(load),
              .by_memory = capacity.fewest_by_memory(load)};
  if (needs.by_memory && needs.context && needs.by_memory->size() >= needs.context->size()) needs.by_memory.reset();
  return needs;
}

std::string stages_text(const std::optional<Ranges>& ranges) {
  if (!ranges) return "more stages than it can have";
  return fmt::format("{} stage{}", ranges->size(), ranges->size() == 1 ? "" : "s");
}

/// Returns the divisions that the table shows: those asked for, or those that are needed.
Result<std::vector<Ranges>> divisions(const SimulateFlags& flags, const model::ModelConfig& config,
                                      const Needs& needs) {
  std::vector<Ranges> shown;
  for (const int32_t pp_size : flags.pp_sizes) {
    auto ranges = model::divide_layers(config.layer_count(), pp_size);
    if (ranges.has_value()) ranges = model::move_borders(config, std::move(*ranges));
    if (ranges.has_error()) return ranges.error();
    shown.push_back(std::move(*ranges));
  }
  if (!shown.empty()) return shown;
  for (const auto* each : {&needs.weights, &needs.by_memory, &needs.context}) {
    if (*each && std::ranges::find(shown, **each) == shown.end()) shown.push_back(**each);
  }
  return shown;
}

double cache_bytes_per_token(const model::ModelConfig& config, tensor::KvDType stored) {
  double bytes = 0;
  for (int32_t layer = 0; layer < config.layer_count(); ++layer) {
    bytes += model::cache_bytes_per_token(config, layer, 1, stored);
  }
  return bytes;
}

void print_model(const model::ModelConfig& config, const sim::Device& device, int32_t rank_count,
                 tensor::KvDType stored) {
  const ModelCapacity alone(config, device, {});
  const double weights = alone.weights({.layers = {0, config.layer_count()}, .first = true, .last = true}).bytes;
  fmt::print("{}: {:.1f} billion parameters, {:.1f} GB of weights, {:.0f} bytes of KV cache per token\n",
             config.architecture, static_cast<double>(model::parameter_count(config)) / 1e9, gigabytes(weights),
             cache_bytes_per_token(config, stored));
  fmt::print("{}: devices of {:g} GB, {:g} GB/s", device.name, gigabytes(device.memory_bytes),
             gigabytes(device.bytes_per_second));
  if (device.flops > 0) fmt::print(", {:g} TFLOP/s", device.flops / 1e12);
  fmt::print("; {} per stage\n", rank_count);
}

Result<void> write_report(const SimulateFlags& flags, const model::ModelConfig& config, const Needs& needs,
                          const std::vector<Setting>& settings) {
  std::string text;
  JsonWriter json(text);
  const auto count = [](const std::optional<Ranges>& ranges) { return ranges ? ranges->size() : 0; };
  json.begin_object().member("architecture", config.architecture);
  json.member("parameters", model::parameter_count(config));
  json.member("cache_bytes_per_token", cache_bytes_per_token(config, flags.kv_dtype));
  json.member("stages_for_weights", count(needs.weights)).member("stages_for_context", count(needs.context));
  json.key("settings").begin_array();
  for (const Setting& setting : settings) write_setting(json, setting, flags.sequences);
  json.end_array().end_object();
  std::ofstream file(flags.result_file, std::ios::binary);
  file << text << "\n";
  file.close();
  if (!file) return make_error(ErrorCode::kInvalidArgument, "{}: cannot be written", flags.result_file.string());
  return {};
}

}  // namespace

Result<void> report_model(const SimulateFlags& flags) {
  const auto device = sim::Device::load(flags.cluster);
  if (device.has_error()) return device.error();
  auto config = read_model(flags);
  if (config.has_error()) return config.error();
  const int32_t rank_count = flags.tp_sizes.empty() ? device->rank_count : flags.tp_sizes.front();
  const auto divides = model::check_ranks(*config, rank_count);
  if (divides.has_error()) {
    return make_error(divides.error().code, "--tp-size {}: {}", rank_count, divides.error().message);
  }
  if (flags.context_length > config->context_length()) {
    return make_error(ErrorCode::kInvalidArgument, "--context-length {}: the model was made for {} tokens",
                      flags.context_length, config->context_length());
  }
  if (flags.context_length > 0) *config = model::for_context(*std::move(config), flags.context_length);
  const ModelCapacity capacity(*config, *device,
                               {.rank_count = rank_count,
                                .page_size = flags.page_size,
                                .memory_fraction = flags.memory_fraction,
                                .kv_dtype = flags.kv_dtype});
  const ModelCapacity::Load load{
      .sequences = flags.sequences.front(),
      .tokens = static_cast<uint32_t>(flags.context_length > 0 ? flags.context_length : config->context_length())};
  const Needs needs = find_needs(capacity, load);
  const auto shown = divisions(flags, *config, needs);
  if (shown.has_error()) return shown.error();
  print_model(*config, *device, rank_count, flags.kv_dtype);
  fmt::print("the weights need {}; {} of {} tokens need{} {}", stages_text(needs.weights),
             load.sequences == 1 ? "1 sequence" : fmt::format("{} sequences", load.sequences), load.tokens,
             load.sequences == 1 ? "s" : "", stages_text(needs.context));
  if (needs.by_memory) {
    fmt::print(", or {} with --pp-layer-partition {}", needs.by_memory->size(), layers_text(*needs.by_memory));
  }
  fmt::print("\n");
  std::vector<Setting> settings;
  for (const Ranges& ranges : *shown) settings.push_back(measure(capacity, ranges, flags.sequences));
  print_header(flags.sequences);
  for (const Setting& setting : settings) print_row(setting);
  if (flags.result_file.empty()) return {};
  return write_report(flags, *config, needs, settings);
}

}  // namespace millrace::app
