#pragma once

#include <cstdint>
#include <memory>

#include "model/layer_config.h"
#include "model/rank_layout.h"
#include "tensor/backend.h"

namespace millrace::model {

class WeightPacker;

/// A projection Wb · Wa of low rank.
struct LowRankWeights {
  std::unique_ptr<tensor::PackedWeight> a;  // [rank, hidden]
  std::unique_ptr<tensor::PackedWeight> b;  // [width, rank]
};

/// A rank's part of one layer's recurrent mixer on the device. What the mixer lacks is null.
struct RecurrentWeights {
  std::unique_ptr<tensor::PackedWeight> input;       // [what is convolved | what gates the output, hidden]
  LowRankWeights decays;                             // steps of a delta net with channel_decay
  LowRankWeights gates;                              // of its output, in place of rows of `input`
  std::unique_ptr<tensor::DeviceVector> input_bias;  // of `input`
  std::unique_ptr<tensor::PackedWeight> steps;       // [b | a, hidden], [b, hidden] or [dt, hidden]; unquantized
  std::unique_ptr<tensor::DeviceVector> steps_bias;  // of `steps`
  std::unique_ptr<tensor::DeviceVector> conv;        // [conv_width, channels]
  std::unique_ptr<tensor::DeviceVector> conv_bias;   // [channels]
  std::unique_ptr<tensor::DeviceVector> decay;       // [heads]
  std::unique_ptr<tensor::DeviceVector> step_bias;   // [heads]
  std::unique_ptr<tensor::DeviceVector> skip;        // [heads]
  std::unique_ptr<tensor::DeviceVector> norm;        // [value_dim], or [heads·head_dim]
  std::unique_ptr<tensor::PackedWeight> output;      // [hidden, width], its last matrix
  std::unique_ptr<tensor::DeviceVector> output_bias;
};

/// Loads a layer's mixer without its last matrix.
[[nodiscard]] std::unique_ptr<RecurrentWeights> load_recurrent(WeightPacker& packer, tensor::Backend& backend,
                                                               const ModelConfig& config, int32_t layer);

/// The recurrent mixers of a stage, all of one shape, with the scratch that they share. Owned by a LayerRunner and used
/// inside submitted work.
class RecurrentMixer {
 public:
  /// Allocates scratch for `rows` rows of mixers on one of `ranks` ranks.
  RecurrentMixer(tensor::Backend& backend, const RecurrentConfig& config, int32_t ranks, float norm_epsilon,
                 int64_t rows);

  /// Where a layer's states are. Borrowed for one call.
  struct States {
    const tensor::UploadedBatch& batch;
    tensor::KvCache& cache;
    int32_t layer = 0;  ///< index in the cache
  };

  /// Computes what the mixer's last matrix takes: out (compute) [T, width] of input (compute) [T, hidden].
  void mix(const RecurrentWeights& weights, tensor::Matrix input, const States& states, tensor::Matrix out);

 private:
  /// What a mixer has computed of its input.
  struct Projected {
    tensor::Matrix input;    // the mixer's
    tensor::Matrix columns;  // f32 [rows, input_columns_]
    tensor::Matrix steps;    // f32 [rows, step_columns_]
  };
  void mix(const DeltaNetConfig& net, const RecurrentWeights& weights, const States& states, const Projected& projected,
           tensor::Matrix out);
  /// Returns Wb · Wa · x in `buffer`, f32 [rows, result_columns_].
  tensor::Matrix low_rank(const LowRankWeights& weights, tensor::Matrix input, const tensor::Buffer& buffer);
  void mix(const MambaConfig& mamba, const RecurrentWeights& weights, const States& states, const Projected& projected,
           tensor::Matrix out);
  void mix(const ShortConvConfig& conv, const RecurrentWeights& weights, const States& states,
           const Projected& projected, tensor::Matrix out);
  /// Convolves the first columns of `projected`.
  tensor::Matrix convolve(const tensor::ConvShape& shape, const RecurrentWeights& weights, const States& states,
                          tensor::Matrix projected);
  [[nodiscard]] tensor::Matrix result(int64_t rows) const;

  tensor::Backend& backend_;
  const RecurrentConfig config_;
  const int32_t ranks_;
  const float norm_epsilon_;
  int64_t input_columns_ = 0;
  int64_t step_columns_ = 0;
  int64_t conv_columns_ = 0;
  int64_t result_columns_ = 0;
  int64_t gate_rank_ = 0;
  tensor::Buffer projected_;  // f32 [rows, input_columns_]
  tensor::Buffer steps_;      // f32 [rows, step_columns_]
  tensor::Buffer convolved_;  // f32 [rows, conv_columns_]
  tensor::Buffer result_;     // f32 [rows, result_columns_], before the norm
  // These four are of a delta net with channel_decay.
  tensor::Buffer low_rank_;       // f32 [rows, gate_rank_]
  tensor::Buffer low_converted_;  // compute [rows, gate_rank_]
  tensor::Buffer channel_steps_;  // f32 [rows, result_columns_]
  tensor::Buffer gates_;          // f32 [rows, result_columns_]
};

}  // namespace millrace::model
