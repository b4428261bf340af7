#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/checkpoint.h"
#include "model/config.h"
#include "model/layer_range.h"
#include "model/rank_layout.h"
#include "tensor/dtype.h"
#include "tensor/host_tensor.h"

/// The tensors of a checkpoint that a stage consists of, and the sizes that follow from them.
namespace millrace::model {

/// The position of a weight inside a larger stored tensor. It consists of blocks of row_block rows, of which the first
/// begins at first_row and each next one row_step later.
struct TensorPart {
  std::string tensor;       ///< the stored tensor's name
  std::string scales = {};  ///< of MXFP4 blocks, whose tensor `tensor` is; empty: it is plain floating point
  /// Shape of the stored tensor: [elements], [rows, columns] or [planes, rows, columns]. A weight of one dimension may
  /// be stored as a matrix.
  tensor::Shape shape;
  int64_t plane = 0;        ///< of a stored tensor with three dimensions
  bool transposed = false;  ///< rows of the weight are columns of the plane
  bool joined = false;      ///< of three dimensions, of which the last two are the weight's columns
  int64_t first_row = 0;
  int64_t row_step = 1;
  int64_t row_block = 1;
  /// Returns the row of the stored tensor, or of its plane, that is a row of the weight.
  [[nodiscard]] int64_t stored_row(int64_t row) const {
    return first_row + row / row_block * row_step + row % row_block;
  }
};

/// Rows of each head that are stored as pairs (2i, 2i + 1) and loaded as pairs (i, i + count/2), as the rotation has
/// them. A product of q and k stays the same, since both are reordered.
struct PairedRows {
  int64_t head_rows = 0;  ///< 0: no row moves
  int64_t first = 0;      ///< of the paired rows, within a head
  int64_t count = 0;
};

/// The name and shape of one weight of a stage.
struct TensorSpec {
  std::string name;
  tensor::Shape shape;
  /// Says whether quantization applies: to the matrices of a layer except a router, and to a head that is not the
  /// embedding.
  bool projection = false;
  Division division = Division::kNone;
  int32_t layer = -1;                   ///< negative: of none
  int32_t expert = -1;                  ///< whose part it is; negative: of none
  bool keeps_precision = false;         ///< is not quantized, but may be stored so
  std::optional<TensorPart> part = {};  ///< none: the weight is the whole tensor `name`
  PairedRows paired = {};

  [[nodiscard]] const std::string& stored_name() const { return part ? part->tensor : name; }
  [[nodiscard]] const tensor::Shape& stored_shape() const { return part ? part->shape : shape; }
};

/// Returns the rows of the stored tensor that are the rows [begin, end) of a weight, relative to the first of them.
/// Empty: they follow one another.
[[nodiscard]] std::vector<int64_t> row_order(const TensorSpec& spec, tensor::TermRange rows);

/// Returns the name of the output gate of a layer's attention, [heads·head_dim, hidden]. It may be part of a
/// tensor.
[[nodiscard]] std::string gate_name(const ModelConfig& config, int32_t layer);
/// Returns the name of a sparse layer's router, [expert_count, hidden].
[[nodiscard]] std::string router_name(const ModelConfig& config, int32_t layer);
enum class ExpertPart : uint8_t { kGate, kUp, kDown };
/// Returns the parts of the experts of such a block: all, or those without a gate.
[[nodiscard]] std::span<const ExpertPart> expert_parts(const FeedForwardConfig& feed_forward);
/// Returns the name of an expert's part: gate and up are [moe.intermediate_size, hidden], down is [hidden,
/// moe.intermediate_size].
[[nodiscard]] std::string expert_tensor_name(const ModelConfig& config, int32_t layer, int32_t expert, ExpertPart part);
/// Returns the name of the biases of all experts' gate and up (kGate or kUp), or down.
[[nodiscard]] std::string fused_bias_name(const ModelConfig& config, int32_t layer, ExpertPart part);
/// Returns the name of the head's tensor: the embedding's when they are tied.
[[nodiscard]] std::string_view head_name(const ModelConfig& config);
/// Returns every weight of the span once, in the order of loading.
[[nodiscard]] std::vector<TensorSpec> stage_tensors(const ModelConfig& config, StageSpan span);

/// Refuses a checkpoint with tensors that its config.json gives no meaning to, since they imply other arithmetic.
/// Error: kData with the tensor's name. Only the span's layers, embedding and head are checked, and on the first stage
/// of a wrapper all other tensors. Rotary tables are allowed, and what TensorNames::skipped_parts names.
[[nodiscard]] Result<void> reject_unknown_tensors(const Checkpoint& checkpoint, const ModelConfig& config,
                                                  StageSpan span);
/// Returns the tensors that TensorNames::skipped_parts names.
[[nodiscard]] int64_t skipped_tensor_count(const Checkpoint& checkpoint, const ModelConfig& config);

/// Returns whether the checkpoint stores a tensor in 8 bits, as its config allows.
[[nodiscard]] bool stored_in_w8(const Checkpoint& checkpoint, const ModelConfig& config, const TensorSpec& spec);

/// Returns the parameters of a span. Over several stages a tied embedding counts on the first and on the last.
[[nodiscard]] uint64_t parameter_count(const ModelConfig& config, StageSpan span);
/// Returns the parameters of one layer, without tables.
[[nodiscard]] uint64_t layer_parameter_count(const ModelConfig& config, int32_t layer);
/// Returns the parameters of the whole model; a tied embedding counts once.
[[nodiscard]] uint64_t parameter_count(const ModelConfig& config);

}  // namespace millrace::model
