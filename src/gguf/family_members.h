#pragma once

#include "gguf/config_members.h"

/// The members of config.json that single families have. Each function throws ErrorException (kData) for metadata that
/// is missing, out of range, or beyond what the family computes.
namespace millrace::gguf {

[[nodiscard]] bool has_experts(const Model& model);
/// Returns whether layers with a sliding window are named.
[[nodiscard]] bool has_window(const Model& model);
[[nodiscard]] bool has_sigmoid_scores(const Model& model);
/// Returns whether queries are scaled by their positions.
[[nodiscard]] bool has_temperature(const Model& model);

void write_mixtral(ConfigMembers& members);
void write_qwen2_moe(ConfigMembers& members);
void write_qwen3_moe(ConfigMembers& members);
void write_gemma2(ConfigMembers& members);
void write_gemma3(ConfigMembers& members);
void write_gemma4(ConfigMembers& members);
void write_glm4_moe(ConfigMembers& members);
void write_gpt_oss(ConfigMembers& members);
void write_olmo3(ConfigMembers& members);
void write_phi3(ConfigMembers& members);
void write_granite(ConfigMembers& members);
void write_granite_moe(ConfigMembers& members);
void write_granite_hybrid(ConfigMembers& members);
void write_cohere2(ConfigMembers& members);
void write_ernie4_5_moe(ConfigMembers& members);
void write_minimax_m2(ConfigMembers& members);
void write_lfm2(ConfigMembers& members);
void write_lfm2_moe(ConfigMembers& members);
void write_qwen3_next(ConfigMembers& members);
void write_qwen3_5(ConfigMembers& members);
void write_qwen3_5_moe(ConfigMembers& members);
void write_nemotron_h(ConfigMembers& members);
void write_falcon_h1(ConfigMembers& members);
void write_ministral3(ConfigMembers& members);
void write_llama4(ConfigMembers& members);
void write_hy_v3(ConfigMembers& members);
void write_afmoe(ConfigMembers& members);
void write_bailing_moe(ConfigMembers& members);
void write_dots1(ConfigMembers& members);
void write_exaone4(ConfigMembers& members);
void write_exaone_moe(ConfigMembers& members);
void write_deepseek(ConfigMembers& members);
void write_sparse_deepseek(ConfigMembers& members);
void write_glm_dsa(ConfigMembers& members);

}  // namespace millrace::gguf
