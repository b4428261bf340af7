#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace millrace::model {

/// How the layers of a model share cache pages: layers that keep memory for the same tokens belong to one cache group.
/// Group 0 has the layers that see all tokens, if there are any. The others are window groups, one per length of
/// window, ordered by it.
class CacheGroups {
 public:
  explicit CacheGroups(const ModelConfig& config);

  /// Returns the windows of groups 1, 2, …, in tokens.
  [[nodiscard]] const std::vector<uint32_t>& windows() const { return windows_; }
  [[nodiscard]] size_t count() const { return 1 + windows_.size(); }
  /// Returns the group of a layer of the model.
  [[nodiscard]] size_t group_of(int32_t layer) const { return group_of_[static_cast<size_t>(layer)]; }

 private:
  std::vector<uint32_t> windows_;
  std::vector<size_t> group_of_;  // [layers]
};

}  // namespace millrace::model
