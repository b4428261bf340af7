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
