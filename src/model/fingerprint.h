#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/layer_range.h"

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
/// Of the config, the span, and the name, dtype, shape and every byte of each of the span's tensors, which it reads and
/// lets go of. Touches no other tensor. Errors: those of Checkpoint::find.
[[nodiscard]] Result<Fingerprint> fingerprint(const Checkpoint& checkpoint, const ModelConfig& config, StageSpan span);
/// Of all stages of a ring, from a text about each, in order.
[[nodiscard]] Fingerprint fingerprint(std::span<const std::string> stages);

}  // namespace millrace::model
