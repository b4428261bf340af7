#include "model/families/families.h"

#include <array>

namespace millrace::model {
namespace {

constexpr std::array kFamilies{
    Family{"Llama", FamilyKind::kDecoder, "Llama 2 and 3, Yi, SmolLM", describe_llama},
    Family{"Mistral", FamilyKind::kDecoder, "Mistral 7B, Nemo, Small 2409 and 2501", describe_mistral},
    Family{"Qwen2", FamilyKind::kDecoder, "Qwen2 and Qwen2.5, dense", describe_qwen2},
    Family{"Qwen3", FamilyKind::kDecoder, "Qwen3, dense", describe_qwen3},
    Family{"Phi3", FamilyKind::kDecoder, "Phi-3, Phi-3.5, Phi-4, Phi-4-mini", describe_phi3},
    Family{"Ministral3", FamilyKind::kDecoder, "Ministral 3 without images", describe_ministral3},
    Family{"Granite", FamilyKind::kDecoder, "Granite 3, dense", describe_granite},
    Family{"Olmo2", FamilyKind::kDecoder, "OLMo 2", describe_olmo2},
    Family{"Olmo3", FamilyKind::kDecoder, "OLMo 3", describe_olmo3},
    Family{"Gemma2", FamilyKind::kDecoder, "Gemma 2", describe_gemma2},
    Family{"Gemma3", FamilyKind::kDecoder, "Gemma 3 1B, and others without images", describe_gemma3},
    Family{"Gemma4", FamilyKind::kDecoder, "Gemma 4 without images", describe_gemma4},
    Family{"Gemma4Unified", FamilyKind::kDecoder, "Gemma 4 12B without images", describe_gemma4_unified},
    Family{"Glm4", FamilyKind::kDecoder, "GLM-4-0414", describe_glm4},
    Family{"Cohere2", FamilyKind::kDecoder, "Command R7B, Command A", describe_cohere2},
    Family{"Qwen3Moe", FamilyKind::kDecoder, "Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder", describe_qwen3_moe},
    Family{"Llama4", FamilyKind::kDecoder, "Llama 4 without images", describe_llama4},
    Family{"Mixtral", FamilyKind::kDecoder, "Mixtral 8x7B and 8x22B", describe_mixtral},
    Family{"Qwen2Moe", FamilyKind::kDecoder, "Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B", describe_qwen2_moe},
    Family{"GraniteMoe", FamilyKind::kDecoder, "Granite 3 MoE", describe_granite_moe},
    Family{"Ernie4_5_Moe", FamilyKind::kDecoder, "ERNIE 4.5 MoE, text", describe_ernie4_5_moe},
    Family{"Glm4Moe", FamilyKind::kDecoder, "GLM-4.5, GLM-4.5-Air, GLM-4.6, GLM-4.7", describe_glm4_moe},
    Family{"HYV3", FamilyKind::kDecoder, "Hunyuan 3", describe_hy_v3},
    Family{"MiniMaxM2", FamilyKind::kDecoder, "MiniMax-M2", describe_minimax_m2},
    Family{"GptOss", FamilyKind::kDecoder, "gpt-oss-20b, gpt-oss-120b", describe_gpt_oss},
    Family{"Qwen3Next", FamilyKind::kDecoder, "Qwen3-Next-80B-A3B, Qwen3-Coder-Next", describe_qwen3_next},
    Family{"Qwen3_5", FamilyKind::kDecoder, "Qwen3.5 and 3.6 without images, dense", describe_qwen3_5},
    Family{"Qwen3_5Moe", FamilyKind::kDecoder, "Qwen3.5 and 3.6 without images, mixtures", describe_qwen3_5_moe},
    Family{"GraniteMoeHybrid", FamilyKind::kDecoder, "Granite 4", describe_granite_moe_hybrid},
    Family{"NemotronH", FamilyKind::kDecoder, "Nemotron-H, Nemotron Nano 2, Nemotron 3", describe_nemotron_h},
    Family{"FalconH1", FamilyKind::kDecoder, "Falcon-H1", describe_falcon_h1},
    Family{"Lfm2", FamilyKind::kDecoder, "LFM2, LFM2.5, dense", describe_lfm2},
    Family{"Lfm2Moe", FamilyKind::kDecoder, "LFM2-8B-A1B", describe_lfm2_moe},
    Family{"DeepseekV2", FamilyKind::kDecoder, "DeepSeek-V2, V2-Lite", describe_deepseek_v2},
    Family{"DeepseekV3", FamilyKind::kDecoder, "DeepSeek-V3, V3.1, R1, Kimi K2", describe_deepseek_v3},
    Family{"DeepseekV32", FamilyKind::kDecoder, "DeepSeek-V3.2", describe_deepseek_v32},
    Family{"GlmMoeDsa", FamilyKind::kDecoder, "GLM-5", describe_glm_moe_dsa},
    Family{"Glm4MoeLite", FamilyKind::kDecoder, "GLM-4.7-Flash", describe_glm4_moe_lite},
    Family{"Mistral3ForConditionalGeneration", FamilyKind::kWrapper, "Mistral Small 3.1 and later, Ministral 3",
           describe_mistral3},
    Family{"Gemma3ForConditionalGeneration", FamilyKind::kWrapper, "Gemma 3 4B to 27B", describe_gemma3_wrapper},
    Family{"Llama4ForConditionalGeneration", FamilyKind::kWrapper, "Llama 4 Scout, Maverick", describe_llama4_wrapper},
    Family{"Gemma4ForConditionalGeneration", FamilyKind::kWrapper, "Gemma 4 E2B, E4B, 26B-A4B, 31B",
           describe_gemma4_wrapper},
    Family{"Gemma4UnifiedForConditionalGeneration", FamilyKind::kWrapper, "Gemma 4 12B",
           describe_gemma4_unified_wrapper},
    Family{"Qwen3_5ForConditionalGeneration", FamilyKind::kWrapper, "Qwen3.5 and 3.6, dense", describe_qwen3_5},
    Family{"Qwen3_5MoeForConditionalGeneration", FamilyKind::kWrapper, "Qwen3.5-35B-A3B, Qwen3.6-35B-A3B",
           describe_qwen3_5_moe},
    Family{"KimiK25ForConditionalGeneration", FamilyKind::kWrapper, "Kimi K2.5 and K2.6", describe_kimi_k25},
    Family{"BertModel", FamilyKind::kEncoder, "BERT, BGE, E5, GTE", describe_bert},
    Family{"RobertaModel", FamilyKind::kEncoder, "RoBERTa", describe_roberta},
    Family{"XLMRobertaModel", FamilyKind::kEncoder, "XLM-RoBERTa, BGE-M3, multilingual E5", describe_roberta},
    Family{"CamembertModel", FamilyKind::kEncoder, "CamemBERT", describe_roberta},
    Family{"BertForSequenceClassification", FamilyKind::kEncoder, "cross-encoders such as ms-marco-MiniLM",
           describe_bert},
    Family{"RobertaForSequenceClassification", FamilyKind::kEncoder, "cross-encoders such as stsb-roberta",
           describe_roberta},
    Family{"XLMRobertaForSequenceClassification", FamilyKind::kEncoder, "BGE rerankers base, large and v2-m3",
           describe_roberta},
    Family{"CamembertForSequenceClassification", FamilyKind::kEncoder, "CamemBERT cross-encoders", describe_roberta},
};

}  // namespace

std::span<const Family> families() {
  return kFamilies;
}

}  // namespace millrace::model
