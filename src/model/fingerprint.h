#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "model/config.h"
#include "model/layer_range.h"
#include "tensor/host_tensor.h"
#include "tensor/w8.h"

namespace millrace::model {

/// 128 bits that tell checkpoints, configs and spans of layers apart. Not a defence against forgery.
struct Fingerprint {
  uint64_t high = 0;
  uint64_t low = 0;
  [[nodiscard]] std::string to_string() const;  ///< 32 hexadecimal digits
  friend auto operator<=>(const Fingerprint&, const Fingerprint&) = default;
};

/// Of everything in config.json that the forward pass depends on: equal on all stages of a ring.
[[nodiscard]] Fingerprint fingerprint(const ModelConfig& config);
/// Of all stages of a ring, from a text about each, in order.
[[nodiscard]] Fingerprint fingerprint(std::span<const std::string> stages);

/// Gathers the fingerprint of a stage's weights from its tensors, in whatever order they are packed, so that their
/// bytes are read from the disk once. Owned by whoever loads them, on one thread.
class WeightsFingerprint {
 public:
  /// Once each, while its bytes can be read.
  void add(const tensor::HostTensor& tensor);
  void add(const tensor::W8Matrix& matrix);
  /// Of the config, the span, and the name, dtype, shape and every byte of each tensor added.
  [[nodiscard]] Fingerprint finish(const ModelConfig& config, StageSpan span) const;

 private:
  std::map<std::string, Fingerprint> tensors_;  // by name
};

}  // namespace millrace::model
