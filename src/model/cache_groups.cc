#include "model/cache_groups.h"

#include <algorithm>
#include <set>

#include "model/layer_state.h"

namespace millrace::model {
namespace {

/// Bytes of stored values: keys, values and latents in 16 bits, states in f32. The formats of devices differ, but all
/// nodes of a ring must divide their memory equally, so that only the config counts.
constexpr double kTokenValueBytes = 2;
constexpr double kStateValueBytes = 4;

/// Returns the values that a layer stores per token. The keys of an indexer do not count: a model that is served with a
/// short context has none.
int64_t token_values(const LayerConfig& layer) {
  if (!layer.attends || layer.attention.keys_of) return 0;
  if (!layer.attention.latent) return 2 * layer.attention.kv_width();
  return layer.attention.latent->latent_dim + layer.attention.latent->rope_dim;
}

/// Returns the bytes per token of the layers that see `window` tokens; 0: those that see all.
double token_bytes(const ModelConfig& config, uint32_t window) {
  int64_t values = 0;
  for (const LayerConfig& layer : config.layers) {
    if (static_cast<uint32_t>(layer.attention.window) == window) values += token_values(layer);
  }
  return kTokenValueBytes * static_cast<double>(values);
}

double state_bytes(const ModelConfig& config) {
  int64_t values = 0;
  for (const LayerConfig& layer : config.layers) values += state_values(layer);
  return kStateValueBytes * static_cast<double>(values);
}

/// Returns the quotient as WindowSpec has it: at least 1, and the largest number where no layer sees all tokens.
uint32_t weight(double bytes, double first_bytes) {
  constexpr double kMaxWeight = UINT32_MAX;
  return static_cast<uint32_t>(first_bytes > 0 ? std::clamp(bytes / first_bytes, 1.0, kMaxWeight) : kMaxWeight);
}

}  // namespace

CacheGroups::CacheGroups(const ModelConfig& config) {
  std::set<uint32_t> lengths;
  bool keeps_states = false;
  for (const LayerConfig& layer : config.layers) {
    if (layer.attends && layer.attention.window > 0) lengths.insert(static_cast<uint32_t>(layer.attention.window));
    keeps_states |= state_values(layer) > 0;
  }
  const double first_bytes = token_bytes(config, 0);
  for (const uint32_t length : lengths) {
    windows_.push_back({.window = length, .token_percent = weight(100 * token_bytes(config, length), first_bytes)});
  }
  if (keeps_states) {
    windows_.push_back({.kind = GroupKind::kState, .state_tokens = weight(state_bytes(config), first_bytes)});
  }
  for (const LayerConfig& layer : config.layers) {
    std::optional<size_t>& attention = attention_group_.emplace_back();
    std::optional<size_t>& state = state_group_.emplace_back();
    const auto length = lengths.find(static_cast<uint32_t>(layer.attention.window));
    const auto number = 1 + static_cast<size_t>(std::distance(lengths.begin(), length));
    if (layer.attends) attention = length == lengths.end() ? 0 : number;
    if (state_values(layer) > 0) state = windows_.size();
  }
}

int32_t CacheGroups::first_layer(size_t group) const {
  const auto found = std::ranges::find(attention_group_, std::optional(group));
  return found == attention_group_.end() ? 0 : static_cast<int32_t>(found - attention_group_.begin());
}

}  // namespace millrace::model
