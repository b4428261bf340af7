#pragma once

#include <cstdint>
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

/// The name and shape of one tensor of a stage.
struct TensorSpec {
  std::string name;
  tensor::Shape shape;
  /// Says whether quantization applies: to the matrices of a layer except a router, and to a head that is not the
  /// embedding.
  bool projection = false;
  Division division = Division::kNone;
  int32_t expert = -1;  ///< whose part it is; negative: of none
};

inline constexpr std::string_view kEmbeddingName = "model.embed_tokens.weight";
inline constexpr std::string_view kFinalNormName = "model.norm.weight";
inline constexpr std::string_view kHeadName = "lm_head.weight";

/// Unties a head that config.json ties to the embedding when the checkpoint holds a different one. Adapters that
/// trained the head and were merged leave config.json unchanged. The log reports it. Call it before anything is derived
/// from `config`, and on every node alike. It compares both tensors where both exist. Errors: those of
/// Checkpoint::find_stored.
[[nodiscard]] Result<void> untie_separate_head(const Checkpoint& checkpoint, ModelConfig& config);

/// Returns "model.layers.7.self_attn.q_proj.weight" for (7, "self_attn.q_proj.weight").
[[nodiscard]] std::string layer_tensor_name(int32_t layer, std::string_view part);
/// Returns the name of a sparse layer's router, [expert_count, hidden].
[[nodiscard]] std::string router_name(const ModelConfig& config, int32_t layer);
enum class ExpertPart : uint8_t { kGate, kUp, kDown };
/// Returns the name of an expert's part: gate and up are [moe.intermediate_size, hidden], down is [hidden,
/// moe.intermediate_size].
[[nodiscard]] std::string expert_tensor_name(const ModelConfig& config, int32_t layer, int32_t expert, ExpertPart part);
/// Returns the name of the head's tensor: the embedding's when they are tied.
[[nodiscard]] std::string_view head_name(const ModelConfig& config);
/// Returns every tensor of the span once, in the order of loading.
[[nodiscard]] std::vector<TensorSpec> stage_tensors(const ModelConfig& config, StageSpan span);

/// Refuses a checkpoint with tensors that its config.json gives no meaning to, since they imply other arithmetic.
/// Error: kData with the tensor's name. Only the span's layers, embedding and head are checked; rotary tables are
/// allowed.
[[nodiscard]] Result<void> reject_unknown_tensors(const Checkpoint& checkpoint, const ModelConfig& config,
                                                  StageSpan span);

/// Returns whether the checkpoint stores a tensor in 8 bits, as its config allows.
[[nodiscard]] bool stored_in_w8(const Checkpoint& checkpoint, const ModelConfig& config, const TensorSpec& spec);

/// Returns the parameters of a span. Over several stages a tied embedding counts on the first and on the last.
[[nodiscard]] uint64_t parameter_count(const ModelConfig& config, StageSpan span);
/// Returns the parameters of the whole model; a tied embedding counts once.
[[nodiscard]] uint64_t parameter_count(const ModelConfig& config);

}  // namespace millrace::model
