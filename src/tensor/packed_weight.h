#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "tensor/fp8.h"
#include "tensor/host_tensor.h"
#include "tensor/routing.h"
#include "tensor/code_matrix.h"
#include "tensor/w8.h"

namespace millrace::tensor {

/// A weight [out, in], or several stacked along `out`, in the backend's packed layout: y = x · Wᵀ (+ bias). `in` counts
/// the columns of the rank.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  [[nodiscard]] virtual int64_t out_features() const = 0;
  [[nodiscard]] virtual int64_t in_features() const = 0;
  /// Returns whether GEMMs round inputs with one scale per row, which the inputs of all ranks determine.
  [[nodiscard]] virtual bool has_row_scales() const { return false; }
  /// Tells how many outputs the weights of all ranks have together, of which this one has a part. Where the order of a
  /// sum follows from the number of outputs, it follows from this one, so that every count of ranks gives the same
  /// bits.
  virtual void set_whole_features(int64_t /*count*/) {}
};

/// The experts of a sparse layer, all of one shape, with their routing. A rank has some of them: those of its shards.
class Experts {
 public:
  virtual ~Experts() = default;
  /// Returns the experts among which a row chooses, those of all ranks.
  [[nodiscard]] virtual int32_t count() const = 0;
  [[nodiscard]] virtual const Routing& routing() const = 0;
};

/// The biases of one expert.
struct ExpertBiases {
  std::span<const float> gate;  // [intermediate]
  std::span<const float> up;    // [intermediate]
  std::span<const float> down;  // [hidden]
};

/// Packs the experts of a rank's shards one by one, in order, each directly to its final address. Made by a backend,
/// which outlives it; used by one thread.
class ExpertPacker {
 public:
  virtual ~ExpertPacker() = default;
  /// Packs the next expert: gate and up [intermediate, hidden], down [hidden, intermediate], equal for all experts. The
  /// tensors need not outlive the call. Without ExpertOptions::gated the gate has no elements, here and below.
  virtual void add(const HostTensor& gate, const HostTensor& up, const HostTensor& down) = 0;
  /// Packs the next expert from 4-bit weights; requires Backend::packs_codes. A layer uses one of these functions for
  /// all of its experts.
  virtual void add_codes(const CodeMatrix& gate, const CodeMatrix& up, const CodeMatrix& down);
  /// Packs the next expert from 8-bit weights; requires Backend::packs_w8.
  virtual void add_w8(const W8Matrix& gate, const W8Matrix& up, const W8Matrix& down, W8Activations inputs);
  /// Packs the next expert from weights in E4M3; requires Backend::packs_fp8.
  virtual void add_fp8(const Fp8Matrix& gate, const Fp8Matrix& up, const Fp8Matrix& down);
  /// Gives the expert that was added last its biases; requires Feature::kExpertBiases. With ExpertOptions::has_biases
  /// it follows each expert, otherwise none.
  virtual void add_biases(const ExpertBiases& biases);
  /// Returns the experts after all of the rank have been added.
  [[nodiscard]] virtual std::unique_ptr<Experts> finish() = 0;
};

}  // namespace millrace::tensor
