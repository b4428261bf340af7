#include "model/cache_groups.h"

#include <algorithm>
#include <set>

#include "model/layer_state.h"

namespace millrace::model {
namespace {

/// Returns what a layer keeps of a sequence; nothing for one that sees all tokens.
WindowSpec spec_of(const LayerConfig& layer) {
  if (state_values(layer) > 0) return {.kind = GroupKind::kState};
  return {.window = static_cast<uint32_t>(layer.attention.window)};
}

/// Returns the tokens whose keys and values, in 16 bits, take as much memory as one state in f32; the default where no
/// layer sees all tokens. It follows from the config alone, so that all nodes of a ring divide their memory equally.
uint32_t state_tokens(const ModelConfig& config) {
  double state_bytes = 0;
  double token_bytes = 0;
  for (const LayerConfig& layer : config.layers) {
    const WindowSpec spec = spec_of(layer);
    if (spec.kind == GroupKind::kState) {
      state_bytes += static_cast<double>(state_values(layer)) * sizeof(float);
    } else if (spec.window == 0) {
      token_bytes += 2.0 * sizeof(uint16_t) * static_cast<double>(layer.attention.kv_width());
    }
  }
  if (token_bytes == 0) return WindowSpec{}.state_tokens;
  return static_cast<uint32_t>(std::max(1.0, state_bytes / token_bytes));
}

}  // namespace

CacheGroups::CacheGroups(const ModelConfig& config) {
  std::set<uint32_t> lengths;
  bool keeps_states = false;
  for (const LayerConfig& layer : config.layers) {
    const WindowSpec spec = spec_of(layer);
    if (spec.window > 0) lengths.insert(spec.window);
    keeps_states |= spec.kind == GroupKind::kState;
  }
  for (const uint32_t length : lengths) windows_.push_back({.window = length});
  if (keeps_states) windows_.push_back({.kind = GroupKind::kState, .state_tokens = state_tokens(config)});
  for (const LayerConfig& layer : config.layers) {
    const WindowSpec spec = spec_of(layer);
    const auto found = std::ranges::find_if(
        windows_, [&](const WindowSpec& one) { return one.kind == spec.kind && one.window == spec.window; });
    group_of_.push_back(found == windows_.end() ? 0 : 1 + static_cast<size_t>(found - windows_.begin()));
  }
}

int32_t CacheGroups::first_layer(size_t group) const {
  const auto found = std::ranges::find(group_of_, group);
  return found == group_of_.end() ? 0 : static_cast<int32_t>(found - group_of_.begin());
}

}  // namespace millrace::model
