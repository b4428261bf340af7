#pragma once

#include <memory>
#include <string>
#include <vector>

#include "conformance/harness.h"
#include "tensor/quantized_inputs.h"

namespace millrace::test {

/// The error of a feature: silu(gate) · up, each a sum of up to 150 terms of about 1 / sqrt(150) in size.
inline constexpr float kFeatureError = 2e-5f;

enum class ExpertFormat : uint8_t { kCompute, kW8, kW8A8, kW8A8Int8, kFp8, kW4 };

struct ExpertSizes {
  int64_t hidden = 0;
  int64_t inner = 0;
  int32_t experts = 0;
  tensor::Routing routing;
  tensor::GatedActivation activation = {};
  bool gated = true;
  bool has_biases = false;

  [[nodiscard]] tensor::ExpertOptions options() const {
    return {.routing = routing, .activation = activation, .gated = gated, .has_biases = has_biases};
  }
};

[[nodiscard]] std::string shown(const BackendCase& backend_case, const ExpertSizes& sizes, ExpertFormat format,
                                int64_t rows);
/// Draws sizes with a plain softmax.
[[nodiscard]] ExpertSizes random_sizes(Random& random);
/// Draws sizes with any options that the backend computes.
[[nodiscard]] ExpertSizes random_sizes(Random& random, const tensor::Backend& backend);
/// Returns the formats in which a backend packs experts.
[[nodiscard]] std::vector<ExpertFormat> expert_formats_of(const tensor::Backend& backend);

/// Experts on a backend, with their dequantized weights.
class RandomExperts {
 public:
  /// Draws all experts, of which those of the rank at `position` are packed.
  RandomExperts(Random& random, tensor::Backend& backend, const ExpertSizes& sizes, ExpertFormat format,
                tensor::DType w8_dtype, tensor::RankPosition position = {});

  /// Returns before + the op's result. The last `padding` rows belong to no sequence.
  [[nodiscard]] Values mix(const Values& x, const Values& logits, const Values& before, int32_t padding = 0) const;
  /// Returns the rank's part of the op's result, whatever the memory held before.
  [[nodiscard]] Values sums(const Values& x, const Values& logits, int32_t padding = 0) const;

  /// The inputs of the op: x, router logits, and the residual before.
  struct Inputs {
    Values x, logits, before;
  };
  [[nodiscard]] Inputs random_inputs(Random& random, int64_t rows) const;

  /// Returns rows as the reference's GEMMs read them.
  [[nodiscard]] Values round(const Values& rows, int64_t width) const;

  /// Fails unless the op agrees with the reference on random rows. A feature has up to `feature_error`.
  void check(Random& random, int64_t rows, float feature_error) const;

  struct Dense {
    std::unique_ptr<tensor::PackedWeight> gate_up, down;
  };
  std::vector<Dense> dense;  // for the ops of dense layers
  std::vector<reference::Expert> values;
  std::unique_ptr<tensor::Experts> packed;

 private:
  [[nodiscard]] bool rounds_inputs() const {
    return tensor::quantizes_inputs(backend_) &&
           (format_ == ExpertFormat::kW8A8 || format_ == ExpertFormat::kW8A8Int8 || format_ == ExpertFormat::kW4);
  }
  [[nodiscard]] HostMatrix matrix(Random& random, int64_t rows, int64_t cols) const;
  /// Packs the next expert, for the op and for the ops of dense layers.
  void pack(const tensor::HostTensor& gate, const tensor::HostTensor& up, const tensor::HostTensor& down,
            tensor::ExpertPacker& packer);
  [[nodiscard]] Values stood_for(const tensor::HostTensor& tensor) const;
  [[nodiscard]] tensor::W8Scaling scaling() const {
    return format_ == ExpertFormat::kW8A8Int8 ? tensor::W8Scaling::kPerChannel : tensor::W8Scaling::kPerGroup;
  }
  template <class Op>
  [[nodiscard]] Values run(const Values& x, const Values& logits, const Values& before, int32_t padding,
                           const Op& op) const;

  tensor::Backend& backend_;
  const ExpertSizes sizes_;
  const ExpertFormat format_;
  const tensor::DType w8_dtype_;
};

}  // namespace millrace::test
