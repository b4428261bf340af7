#include "model/cache_groups.h"

#include <algorithm>
#include <set>

#include "model/layer_state.h"

namespace millrace::model {
namespace {

/// Returns the tokens whose keys and values, in 16 bits, take as much memory as one state in f32; the default where no
/// layer sees all tokens. It follows from the config alone, so that all nodes of a ring divide their memory equally.
uint32_t state_tokens(const ModelConfig& config) {
  double state_bytes = 0;
  double token_bytes = 0;
  for (const LayerConfig& layer : config.layers) {
    state_bytes += static_cast<double>(state_values(layer)) * sizeof(float);
    if (layer.attends && layer.attention.window == 0 && !layer.attention.keys_of)
      token_bytes += 2.0 * sizeof(uint16_t) * static_cast<double>(layer.attention.kv_width());
  }
  if (token_bytes == 0) return WindowSpec{}.state_tokens;
  return static_cast<uint32_t>(std::max(1.0, state_bytes / token_bytes));
}

}  // namespace

CacheGroups::CacheGroups(const ModelConfig& config) {
  std::set<uint32_t> lengths;
  bool keeps_states = false;
  for (const LayerConfig& layer : config.layers) {
    if (layer.attends && layer.attention.window > 0) lengths.insert(static_cast<uint32_t>(layer.attention.window));
    keeps_states |= state_values(layer) > 0;
  }
  for (const uint32_t length : lengths) windows_.push_back({.window = length});
  if (keeps_states) windows_.push_back({.kind = GroupKind::kState, .state_tokens = state_tokens(config)});
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
