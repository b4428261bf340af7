#include "app/model_capacity.h"

#include <algorithm>

#include "cache/pool_division.h"
#include "model/layer_balance.h"
#include "model/layer_state.h"
#include "model/stage_borders.h"

namespace millrace::app {
namespace {

model::WeightMemory difference(const model::WeightMemory& whole, const model::WeightMemory& part) {
  return {.bytes = whole.bytes - part.bytes,
          .embedding_bytes = whole.embedding_bytes - part.embedding_bytes,
          .expert_bytes = whole.expert_bytes - part.expert_bytes,
          .read_bytes = whole.read_bytes - part.read_bytes,
          .active_parameters = whole.active_parameters - part.active_parameters};
}

}  // namespace

ModelCapacity::ModelCapacity(const model::ModelConfig& config, const sim::Device& device, const Options& options)
    : config_(config), device_(device), options_(options), groups_(config) {
  const auto memory = [&](model::LayerRange layers, bool first, bool last) {
    return model::weight_memory(config_, {.layers = layers, .first = first, .last = last}, options.rank_count,
                                device.kept_bits);
  };
  stage_ = memory({0, 0}, false, false);
  for (int32_t layer = 0; layer < config.layer_count(); ++layer) {
    layers_.push_back(difference(memory({layer, layer + 1}, false, false), stage_));
    cache_bytes_.push_back(model::cache_bytes_per_token(config, layer, options.rank_count, options.kv_dtype));
  }
  first_ = difference(memory({0, 0}, true, false), stage_);
  last_ = difference(memory({0, 0}, false, true), stage_);
}

model::WeightMemory ModelCapacity::weights(model::StageSpan span) const {
  model::WeightMemory sum = stage_;
  for (int32_t layer = span.layers.begin; layer < span.layers.end; ++layer) sum += layers_[static_cast<size_t>(layer)];
  if (span.first) sum += first_;
  if (span.last) sum += last_;
  return sum;
}

double ModelCapacity::room(model::StageSpan span) const {
  return options_.memory_fraction * (device_.memory_bytes - device_.reserved_bytes - weights(span).bytes);
}

double ModelCapacity::sequence_bytes(model::StageSpan span, uint32_t tokens) const {
  constexpr double kStatesPerSequence = 2;  // its newest, and the one at the page boundary before
  const uint32_t pages = (tokens + options_.page_size - 1) / options_.page_size;
  double bytes = 0;
  for (int32_t layer = span.layers.begin; layer < span.layers.end; ++layer) {
    bytes += kStatesPerSequence * sizeof(float) *
             static_cast<double>(model::state_values(config_.layer(layer), options_.rank_count));
    const size_t group = groups_.attention_group(layer).value_or(0);
    const uint32_t kept =
        group == 0 ? pages
                   : std::min(pages, cache::kept_window_pages(groups_.windows()[group - 1].window, options_.page_size));
    bytes += cache_bytes_[static_cast<size_t>(layer)] * options_.page_size * kept;
  }
  return bytes;
}

uint32_t ModelCapacity::max_tokens(const std::vector<model::LayerRange>& ranges, uint32_t sequences) const {
  uint32_t fit = 0;  // pages
  uint32_t too_many = static_cast<uint32_t>(config_.context_length()) / options_.page_size + 2;
  while (too_many - fit > 1) {
    const uint32_t middle = fit + (too_many - fit) / 2;
    const Load load{.sequences = sequences, .tokens = middle * options_.page_size};
    (fits(ranges, load) ? fit : too_many) = middle;
  }
  return std::min(fit * options_.page_size, static_cast<uint32_t>(config_.context_length()));
}

bool ModelCapacity::fits(const std::vector<model::LayerRange>& ranges, const std::optional<Load>& load) const {
  return std::ranges::all_of(model::stage_spans(ranges), [&](model::StageSpan span) {
    return room(span) >= (load ? load->sequences * sequence_bytes(span, load->tokens) : 0);
  });
}

std::optional<std::vector<model::LayerRange>> ModelCapacity::fewest_even(const std::optional<Load>& load) const {
  for (int32_t stages = 1; stages <= model::largest_stage_count(config_); ++stages) {
    const auto ranges =
        model::move_borders(config_, model::divide_layers(config_.layer_count(), stages).value()).value();
    if (fits(ranges, load)) return ranges;
  }
  return {};
}

std::optional<std::vector<model::LayerRange>> ModelCapacity::fewest_by_memory(const Load& load) const {
  model::PartCosts needs{.layers = {}, .embedding = first_.bytes, .head = last_.bytes};
  for (int32_t layer = 0; layer < config_.layer_count(); ++layer) {
    const model::StageSpan alone{.layers = {layer, layer + 1}, .first = false, .last = false};
    needs.layers.push_back(layers_[static_cast<size_t>(layer)].bytes +
                           load.sequences * sequence_bytes(alone, load.tokens) / options_.memory_fraction);
  }
  for (int32_t stages = 1; stages <= model::largest_stage_count(config_); ++stages) {
    const auto ranges = model::move_borders(config_, model::balance_layers(needs, stages, 0).value()).value();
    if (fits(ranges, load)) return ranges;
  }
  return {};
}

double ModelCapacity::token_seconds(const std::vector<model::LayerRange>& ranges) const {
  double bytes = 0;
  for (const model::StageSpan& span : model::stage_spans(ranges)) bytes += weights(span).read_bytes;
  return bytes / device_.bytes_per_second;
}

double ModelCapacity::slowest_active(const std::vector<model::LayerRange>& ranges) const {
  double most = 0;
  for (model::StageSpan span : model::stage_spans(ranges)) {
    span.last = false;  // a prompt's last token alone goes through the head
    most = std::max(most, weights(span).active_parameters);
  }
  return most;
}

double ModelCapacity::prompt_tokens_per_second(const std::vector<model::LayerRange>& ranges) const {
  return device_.flops / (2 * slowest_active(ranges));
}

}  // namespace millrace::app
