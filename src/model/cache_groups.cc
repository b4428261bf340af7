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
  if (keeps_states) windows_.push_back({.kind = GroupKind::kState});
  for (const LayerConfig& layer : config.layers) {
    const auto found = std::ranges::find(windows_, spec_of(layer));
    group_of_.push_back(found == windows_.end() ? 0 : 1 + static_cast<size_t>(found - windows_.begin()));
  }
}

}  // namespace millrace::model
