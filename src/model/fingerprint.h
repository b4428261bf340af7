#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/layer_range.h"
#include "tensor/host_tensor.h"
#include "tensor/sum_shards.h"
#include "tensor/w8.h"
#include "weights/stored_weight.h"

namespace millrace::model {

/// A 128-bit hash that distinguishes checkpoints, configs and ranges of layers. It does not protect against forgery.
struct Fingerprint {
  uint64_t high = 0;
  uint64_t low = 0;
  [[nodiscard]] std::string to_string() const;  ///< 32 hexadecimal digits
  /// Adds the other one, both as numbers of 128 bits: a sum does not depend on the order.
  Fingerprint& operator+=(const Fingerprint& other);
  friend auto operator<=>(const Fingerprint&, const Fingerprint&) = default;
};

/// Returns the fingerprint of everything in config.json that the forward pass depends on. It is equal on all stages of
/// a ring.
[[nodiscard]] Fingerprint fingerprint(const ModelConfig& config);
/// Returns the fingerprint of some texts in order.
[[nodiscard]] Fingerprint fingerprint(std::span<const std::string> texts);

/// The fingerprints of a rank's weights.
struct StageFingerprint {
  Fingerprint common;   ///< of the config, the span, the rank's position and all weights but those of experts
  Fingerprint experts;  ///< the sum over the weights of its experts; zero: it has none
  friend auto operator<=>(const StageFingerprint&, const StageFingerprint&) = default;
};

/// What the KV pages of some ranks of a ring follow from.
struct PageContents {
  std::vector<std::string> ranks;  ///< per rank, in order: its weights but for the experts, and its arithmetic
  Fingerprint experts;             ///< the sum over the weights of all experts of the ranks
  void add(const PageContents& more);
};

/// What the KV pages of a whole ring follow from.
struct RingContents {
  Fingerprint common;
  Fingerprint experts;
  [[nodiscard]] std::array<uint64_t, 4> words() const { return {common.high, common.low, experts.high, experts.low}; }
  [[nodiscard]] static RingContents from_words(const std::array<uint64_t, 4>& words) {
    return {.common = {words[0], words[1]}, .experts = {words[2], words[3]}};
  }
  friend auto operator<=>(const RingContents&, const RingContents&) = default;
};

/// Returns what the pages of a ring follow from, given all of its ranks.
[[nodiscard]] RingContents ring_contents(const PageContents& ranks);
/// Returns the fingerprint that names stored pages of `rings[own]`. `rings` share experts, or are one ring with all of
/// them: rings that have the same weights have the same pages, however many they are.
[[nodiscard]] Fingerprint page_fingerprint(std::span<const RingContents> rings, size_t own = 0);

/// Computes the fingerprint of a stage's weights from its tensors, in any order. It hashes each tensor while the loader
/// packs it, so that the disk is read once. Owned by the loader, on one thread.
class WeightsFingerprint {
 public:
  /// Adds a tensor, once, while its bytes can be read. `is_expert`: it is a part of one routed expert, which ranks have
  /// whole.
  void add(const tensor::HostTensor& tensor, bool is_expert);
  void add(const tensor::W8Matrix& matrix, bool is_expert);
  void add(const weights::StoredWeight& weight, bool is_expert);
  /// Returns the fingerprints of the name, dtype, shape and bytes of every added tensor. Ranks add their parts of
  /// tensors.
  [[nodiscard]] StageFingerprint finish(const ModelConfig& config, StageSpan span, tensor::RankPosition position) const;

 private:
  void add(const std::string& name, const Fingerprint& tensor, bool is_expert);

  std::map<std::string, Fingerprint> tensors_;  // by name
  std::map<std::string, Fingerprint> experts_;  // by name
};

}  // namespace millrace::model
