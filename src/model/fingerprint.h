#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "model/config.h"
#include "model/layer_range.h"
#include "tensor/host_tensor.h"
#include "tensor/sum_shards.h"
#include "tensor/w8.h"

namespace millrace::model {

/// A 128-bit hash that distinguishes checkpoints, configs and ranges of layers. It does not protect against forgery.
struct Fingerprint {
  uint64_t high = 0;
  uint64_t low = 0;
  [[nodiscard]] std::string to_string() const;  ///< 32 hexadecimal digits
  friend auto operator<=>(const Fingerprint&, const Fingerprint&) = default;
};

/// Returns the fingerprint of everything in config.json that the forward pass depends on. It is equal on all stages of
/// a ring.
[[nodiscard]] Fingerprint fingerprint(const ModelConfig& config);
/// Returns the fingerprint of a ring from one text per stage, in order.
[[nodiscard]] Fingerprint fingerprint(std::span<const std::string> stages);

/// Computes the fingerprint of a stage's weights from its tensors, in any order. It hashes each tensor while the loader
/// packs it, so that the disk is read once. Owned by the loader, on one thread.
class WeightsFingerprint {
 public:
  /// Adds a tensor, once, while its bytes can be read.
  void add(const tensor::HostTensor& tensor);
  void add(const tensor::W8Matrix& matrix);
  /// Returns the fingerprint of the config, the span, the rank's position, and the name, dtype, shape and bytes of
  /// every added tensor. Ranks add their parts of tensors.
  [[nodiscard]] Fingerprint finish(const ModelConfig& config, StageSpan span, tensor::RankPosition position) const;

 private:
  std::map<std::string, Fingerprint> tensors_;  // by name
};

}  // namespace millrace::model
