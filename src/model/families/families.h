#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "model/config.h"
#include "model/field_reader.h"

/// The families of models. Each is one file of this folder, which turns a config.json into the description of a model:
/// its layers, and the names of its tensors.
namespace millrace::model {

/// Which architectures of config.json are a family's.
enum class FamilyKind : uint8_t {
  kDecoder,  ///< <name>ForCausalLM, and without an output head <name>Model and <name>ForSequenceClassification
  kWrapper,  ///< <name> alone, a multimodal model whose text part is served; its config is the member text_config
  kEncoder,  ///< <name> alone
};

/// A family of models.
struct Family {
  std::string_view name;  ///< what architectures[0] begins with
  FamilyKind kind = FamilyKind::kDecoder;
  std::string_view models;  ///< published models of the family, for documents and messages
  /// Fills in the dimensions, the layers and the tensor names. Faults are recorded in the reader.
  void (*describe)(FieldReader& fields, ModelConfig& config) = nullptr;
};

void describe_llama(FieldReader& fields, ModelConfig& config);
void describe_llama4(FieldReader& fields, ModelConfig& config);
void describe_llama4_wrapper(FieldReader& fields, ModelConfig& config);
void describe_mistral(FieldReader& fields, ModelConfig& config);
void describe_mixtral(FieldReader& fields, ModelConfig& config);
void describe_qwen2(FieldReader& fields, ModelConfig& config);
void describe_qwen3(FieldReader& fields, ModelConfig& config);
void describe_qwen3_moe(FieldReader& fields, ModelConfig& config);
void describe_phi3(FieldReader& fields, ModelConfig& config);
void describe_ministral3(FieldReader& fields, ModelConfig& config);
void describe_mistral4(FieldReader& fields, ModelConfig& config);
void describe_mistral3(FieldReader& fields, ModelConfig& config);
void describe_granite(FieldReader& fields, ModelConfig& config);
void describe_olmo2(FieldReader& fields, ModelConfig& config);
void describe_olmo3(FieldReader& fields, ModelConfig& config);
void describe_gemma2(FieldReader& fields, ModelConfig& config);
void describe_gemma3(FieldReader& fields, ModelConfig& config);
void describe_gemma3_wrapper(FieldReader& fields, ModelConfig& config);
void describe_gemma4(FieldReader& fields, ModelConfig& config);
void describe_gemma4_wrapper(FieldReader& fields, ModelConfig& config);
void describe_gemma4_unified(FieldReader& fields, ModelConfig& config);
void describe_gemma4_unified_wrapper(FieldReader& fields, ModelConfig& config);
void describe_glm4(FieldReader& fields, ModelConfig& config);
void describe_cohere(FieldReader& fields, ModelConfig& config);
void describe_cohere2(FieldReader& fields, ModelConfig& config);
void describe_deepseek_v2(FieldReader& fields, ModelConfig& config);
void describe_deepseek_v3(FieldReader& fields, ModelConfig& config);
void describe_deepseek_v32(FieldReader& fields, ModelConfig& config);
void describe_glm_moe_dsa(FieldReader& fields, ModelConfig& config);
void describe_glm4_moe_lite(FieldReader& fields, ModelConfig& config);
void describe_kimi_k25(FieldReader& fields, ModelConfig& config);
void describe_kimi_linear(FieldReader& fields, ModelConfig& config);
void describe_qwen2_moe(FieldReader& fields, ModelConfig& config);
void describe_granite_moe(FieldReader& fields, ModelConfig& config);
void describe_granite_moe_hybrid(FieldReader& fields, ModelConfig& config);
void describe_qwen3_next(FieldReader& fields, ModelConfig& config);
void describe_qwen3_5(FieldReader& fields, ModelConfig& config);
void describe_qwen3_5_moe(FieldReader& fields, ModelConfig& config);
void describe_nemotron_h(FieldReader& fields, ModelConfig& config);
void describe_falcon_h1(FieldReader& fields, ModelConfig& config);
void describe_lfm2(FieldReader& fields, ModelConfig& config);
void describe_lfm2_moe(FieldReader& fields, ModelConfig& config);
void describe_ernie4_5_moe(FieldReader& fields, ModelConfig& config);
void describe_glm4_moe(FieldReader& fields, ModelConfig& config);
void describe_hunyuan_v1_dense(FieldReader& fields, ModelConfig& config);
void describe_hunyuan_v1_moe(FieldReader& fields, ModelConfig& config);
void describe_hy_v3(FieldReader& fields, ModelConfig& config);
void describe_minimax_m2(FieldReader& fields, ModelConfig& config);
void describe_afmoe(FieldReader& fields, ModelConfig& config);
void describe_bailing_moe_v2(FieldReader& fields, ModelConfig& config);
void describe_dots1(FieldReader& fields, ModelConfig& config);
void describe_exaone4(FieldReader& fields, ModelConfig& config);
void describe_exaone_moe(FieldReader& fields, ModelConfig& config);
void describe_arcee(FieldReader& fields, ModelConfig& config);
void describe_seed_oss(FieldReader& fields, ModelConfig& config);
void describe_smollm3(FieldReader& fields, ModelConfig& config);
void describe_solar_open(FieldReader& fields, ModelConfig& config);
void describe_glm4v_moe(FieldReader& fields, ModelConfig& config);
void describe_qwen2_vl(FieldReader& fields, ModelConfig& config);
void describe_qwen3_vl(FieldReader& fields, ModelConfig& config);
void describe_qwen3_vl_moe(FieldReader& fields, ModelConfig& config);
void describe_gpt_oss(FieldReader& fields, ModelConfig& config);
void describe_bert(FieldReader& fields, ModelConfig& config);
void describe_roberta(FieldReader& fields, ModelConfig& config);

/// Returns all families, in the order in which messages and docs/models.md list them.
[[nodiscard]] std::span<const Family> families();

}  // namespace millrace::model
