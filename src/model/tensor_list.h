#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/checkpoint.h"
#include "model/config.h"
#include "model/layer_range.h"
#include "tensor/dtype.h"
#include "tensor/host_tensor.h"

/// Which tensors of a checkpoint a stage consists of, and the sizes that follow from them.
namespace millrace::model {

struct TensorSpec {
  std::string name;
  tensor::Shape shape;
  /// A matrix that quantization is about: of a layer, but for a router, or a head that is not the embedding.
  bool projection = false;
};

inline constexpr std::string_view kEmbeddingName = "model.embed_tokens.weight";
inline constexpr std::string_view kFinalNormName = "model.norm.weight";
inline constexpr std::string_view kHeadName = "lm_head.weight";

/// Unties a head that config.json ties to the embedding, where the checkpoint holds another one (adapters that trained
/// it and were merged leave config.json as it was); the log says so. Before anything else follows from `config`, and on
/// every node of a ring alike. Reads both tensors where there are two. Errors: those of Checkpoint::find_stored.
[[nodiscard]] Result<void> untie_separate_head(const Checkpoint& checkpoint, ModelConfig& config);

/// "model.layers.7.self_attn.q_proj.weight" for (7, "self_attn.q_proj.weight").
[[nodiscard]] std::string layer_tensor_name(int32_t layer, std::string_view part);
/// Of a sparse layer: [expert_count, hidden].
[[nodiscard]] std::string router_name(const ModelConfig& config, int32_t layer);
enum class ExpertPart : uint8_t { kGate, kUp, kDown };
/// Gate and up are [moe.intermediate_size, hidden], down is [hidden, moe.intermediate_size].
[[nodiscard]] std::string expert_tensor_name(const ModelConfig& config, int32_t layer, int32_t expert, ExpertPart part);
/// The embedding when it is tied.
[[nodiscard]] std::string_view head_name(const ModelConfig& config);
/// Every tensor of the span once, in the order in which it is loaded.
[[nodiscard]] std::vector<TensorSpec> stage_tensors(const ModelConfig& config, StageSpan span);

/// A checkpoint that holds more for a layer, the embedding or the head than its config.json gives a meaning to wants
/// other arithmetic: kData, with the tensor's name. Only what is of the span is looked at; rotary tables may be there.
[[nodiscard]] Result<void> reject_unknown_tensors(const Checkpoint& checkpoint, const ModelConfig& config,
                                                  StageSpan span);

/// Whether the checkpoint stores a tensor in 8 bits, as its config says that it may.
[[nodiscard]] bool stored_in_w8(const Checkpoint& checkpoint, const ModelConfig& config, const TensorSpec& spec);

/// Of the span; over several stages a tied embedding counts on the first and on the last.
[[nodiscard]] uint64_t parameter_count(const ModelConfig& config, StageSpan span);
/// Of the whole model, a tied embedding once.
[[nodiscard]] uint64_t parameter_count(const ModelConfig& config);

}  // namespace millrace::model
