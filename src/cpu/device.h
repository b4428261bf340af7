#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpu/kernels.h"
#include "cpu/memory.h"
#include "cpu/routing.h"
#include "cpu/sampling.h"
#include "cpu/thread_pool.h"
#include "cpu/token_choice.h"
#include "tensor/backend.h"

/// The state that the ops of one backend share. Private to this folder.
namespace millrace::cpu {

/// Rounds `value` up to a multiple of `multiple`.
[[nodiscard]] inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// A vector of f32 in host memory.
class CpuVector final : public tensor::DeviceVector {
 public:
  explicit CpuVector(std::span<const float> values);
  [[nodiscard]] int64_t size() const override { return static_cast<int64_t>(values_.size()); }
  [[nodiscard]] const float* data() const { return values_.data(); }
  /// Returns a number that is unique among all vectors of the process, unlike their addresses.
  [[nodiscard]] uint64_t serial() const { return serial_; }

 private:
  std::vector<float> values_;
  uint64_t serial_;
};

[[nodiscard]] inline const CpuVector& as_cpu(const tensor::DeviceVector& vector) {
  return static_cast<const CpuVector&>(vector);
}

/// The cos and sin of every row's angles, kept across layers, since all layers of a batch have the same ones.
struct RotaryAngles {
  uint64_t frequencies = 0;  // CpuVector::serial
  int32_t rotary_dim = 0;
  float factor = 0.0f;
  std::vector<int32_t> positions;  // [rows]
  std::vector<float> cos;          // [rows, rotary_dim / 2]
  std::vector<float> sin;          // [rows, rotary_dim / 2]
  uint64_t last_use = 0;
};

/// The kernels, threads and scratch memory of one backend. Ops run one at a time, so they share the scratch.
struct Device {
  Device(const Kernels& table, tensor::DType compute, int threads, const std::vector<int>& pin);

  const Kernels& kernels;
  const tensor::DType compute_dtype;
  ThreadPool pool;
  Scratch shared_scratch;
  Scratch spread_rows;                     // LHS rows with zeros between the shards
  std::vector<float> magnitudes;           // [rows] of the inputs of all ranks
  std::vector<Scratch> slot_scratch;       // [threads]
  std::vector<Scratch> slot_sums;          // [threads] partial sums of experts
  std::vector<SamplerScratch> samplers;    // [threads]
  std::vector<TokenChoice> token_choices;  // [threads]
  std::vector<RotaryAngles> rotary_angles;
  uint64_t rotary_clock = 0;
  Scratch latent_queries;  // [rows, heads, latent and key], then the results [rows, heads, latent]
  Scratch latent_lhs;      // per head, for the two GEMMs of latent attention
  Routes routes;
  Scratch expert_rows;
  Scratch expert_values;  // of down, where a whole row is wanted before it is encoded

  /// Calls body(begin, end, slot) for ranges that cover all rows. Few rows run on the calling thread.
  template <class Body>
  void for_rows(int64_t rows, Body&& body) {
    constexpr int64_t kRowsAtOnce = 2;
    if (rows > kRowsAtOnce) return pool.run_ranges(rows, body);
    if (rows > 0) body(int64_t{0}, rows, 0);
  }

  /// Returns whether LHS operands are bf16 rows rather than f32 rows (see kernels.h).
  [[nodiscard]] bool bf16_lhs() const { return compute_dtype == tensor::DType::kBF16 && kernels.bf16_lhs; }
  /// Returns whether GEMMs take tiled rows (see GemmTask).
  [[nodiscard]] bool tiles() const { return compute_dtype == tensor::DType::kBF16 && kernels.tiles; }
  /// Returns the summed elements per step.
  [[nodiscard]] int64_t depth() const { return compute_dtype == tensor::DType::kBF16 ? 2 : 1; }
  /// Returns the bytes of one element of an LHS operand.
  [[nodiscard]] size_t lhs_element_bytes() const { return bf16_lhs() ? 2 : 4; }
  /// Returns the multiple of steps to which panels and LHS rows are padded.
  [[nodiscard]] int64_t step_multiple() const { return depth() == 2 ? kernels.step_multiple : 1; }
  /// Converts a row: out (f32 or compute) [count] = values.
  void store_row(const float* values, std::byte* out, tensor::DType dtype, int64_t count) const;
};

}  // namespace millrace::cpu
