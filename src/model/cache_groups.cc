#include "model/cache_groups.h"

#include <algorithm>

namespace millrace::model {

CacheGroups::CacheGroups(const ModelConfig& config) {
  for (const LayerConfig& layer : config.layers) {
    if (layer.attention.window > 0) windows_.push_back(static_cast<uint32_t>(layer.attention.window));
  }
  std::ranges::sort(windows_);
  const auto repeated = std::ranges::unique(windows_);
  windows_.erase(repeated.begin(), repeated.end());
  for (const LayerConfig& layer : config.layers) {
    const auto found = std::ranges::lower_bound(windows_, static_cast<uint32_t>(layer.attention.window));
    group_of_.push_back(layer.attention.window == 0 ? 0 : 1 + static_cast<size_t>(found - windows_.begin()));
  }
}

}  // namespace millrace::model
