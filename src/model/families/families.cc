#include "model/families/families.h"

#include <array>

namespace millrace::model {
namespace {

constexpr std::array kFamilies{
    Family{"Llama", FamilyKind::kDecoder, "Llama 2 and 3, Yi, SmolLM", describe_llama},
    Family{"Mistral", FamilyKind::kDecoder, "Mistral 7B, Nemo, Small 2409 and 2501", describe_mistral},
    Family{"Qwen2", FamilyKind::kDecoder, "Qwen2 and Qwen2.5, dense", describe_qwen2},
    Family{"Qwen3", FamilyKind::kDecoder, "Qwen3, dense", describe_qwen3},
    Family{"Qwen3Moe", FamilyKind::kDecoder, "Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder", describe_qwen3_moe},
    Family{"Mixtral", FamilyKind::kDecoder, "Mixtral 8x7B and 8x22B", describe_mixtral},
    Family{"Qwen2Moe", FamilyKind::kDecoder, "Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B", describe_qwen2_moe},
    Family{"GraniteMoe", FamilyKind::kDecoder, "Granite 3 MoE", describe_granite_moe},
    Family{"Ernie4_5_Moe", FamilyKind::kDecoder, "ERNIE 4.5 MoE, text", describe_ernie4_5_moe},
    Family{"Glm4Moe", FamilyKind::kDecoder, "GLM-4.5, GLM-4.5-Air, GLM-4.6, GLM-4.7", describe_glm4_moe},
    Family{"HYV3", FamilyKind::kDecoder, "Hunyuan 3", describe_hy_v3},
    Family{"MiniMaxM2", FamilyKind::kDecoder, "MiniMax-M2", describe_minimax_m2},
    Family{"GptOss", FamilyKind::kDecoder, "gpt-oss-20b, gpt-oss-120b", describe_gpt_oss},
    Family{"BertModel", FamilyKind::kEncoder, "BERT, BGE, E5, GTE", describe_bert},
    Family{"RobertaModel", FamilyKind::kEncoder, "RoBERTa", describe_roberta},
    Family{"XLMRobertaModel", FamilyKind::kEncoder, "XLM-RoBERTa, BGE-M3, multilingual E5", describe_roberta},
    Family{"CamembertModel", FamilyKind::kEncoder, "CamemBERT", describe_roberta},
};

}  // namespace

std::span<const Family> families() {
  return kFamilies;
}

}  // namespace millrace::model
