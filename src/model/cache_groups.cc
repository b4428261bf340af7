#include "model/cache_groups.h"

#include <algorithm>

namespace millrace::model {

CacheGroups::CacheGroups(const ModelConfig& config) {
  for (const int32_t window : config.sliding_windows) {
    if (window > 0) windows_.push_back(static_cast<uint32_t>(window));
  }
  std::ranges::sort(windows_);
  const auto repeated = std::ranges::unique(windows_);
  windows_.erase(repeated.begin(), repeated.end());
  for (const int32_t window : config.sliding_windows) {
    const auto found = std::ranges::lower_bound(windows_, static_cast<uint32_t>(window));
    group_of_.push_back(window == 0 ? 0 : 1 + static_cast<size_t>(found - windows_.begin()));
  }
}

}  // namespace millrace::model
