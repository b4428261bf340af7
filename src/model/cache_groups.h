#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/group_kind.h"
#include "model/config.h"

namespace millrace::model {

/// How the layers of a model share cache pages: layers that keep memory for the same tokens belong to one cache group.
/// The layers of a group have equal heads.
/// Group 0 has the layers that see all tokens, if there are any. The others are window groups, one per length of
/// window, ordered by it. The last of them is a state group if the model has recurrent layers. A layer belongs to one
/// group for its attention and to one for its state, if it has these.
class CacheGroups {
 public:
  explicit CacheGroups(const ModelConfig& config);

  /// Returns what groups 1, 2, … keep of a sequence.
  [[nodiscard]] const std::vector<WindowSpec>& windows() const { return windows_; }
  [[nodiscard]] GroupKind kind(size_t group) const { return group == 0 ? GroupKind::kFull : windows_[group - 1].kind; }
  /// Returns whether the model has a state group.
  [[nodiscard]] bool has_states() const { return kind(count() - 1) == GroupKind::kState; }
  [[nodiscard]] size_t count() const { return 1 + windows_.size(); }
  /// Returns the first layer whose attention belongs to a group; layer 0 where a group has none, as the first one may.
  [[nodiscard]] int32_t first_layer(size_t group) const;
  /// Returns the group of the keys and values of a layer's attention, if the layer has attention. One that sees those
  /// of another layer has its group.
  [[nodiscard]] std::optional<size_t> attention_group(int32_t layer) const {
    return attention_group_[static_cast<size_t>(layer)];
  }
  /// Returns the group of a layer's states, if the layer has a recurrent mixer.
  [[nodiscard]] std::optional<size_t> state_group(int32_t layer) const {
    return state_group_[static_cast<size_t>(layer)];
  }

 private:
  std::vector<WindowSpec> windows_;
  std::vector<std::optional<size_t>> attention_group_;  // [layers]
  std::vector<std::optional<size_t>> state_group_;      // [layers]
};

}  // namespace millrace::model
