#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::model {

inline constexpr std::string_view kEmbeddingName = "model.embed_tokens.weight";
inline constexpr std::string_view kFinalNormName = "model.norm.weight";
inline constexpr std::string_view kHeadName = "lm_head.weight";

/// How the experts of a layer are stored: one by one, or each of their matrices in one tensor for all.
enum class ExpertStorage : uint8_t {
  kSeparate,
  kRows,     ///< gate_up [experts, 2·intermediate, hidden], gate rows first; down [experts, hidden, intermediate]
  kColumns,  ///< gate_up [experts, hidden, 2·intermediate], gate and up in turn; down [experts, intermediate, hidden]
  kColumnHalves,  ///< as kColumns with all gate columns first
  kMxfp4,         ///< blocks and scales of [experts, 2·intermediate, hidden], gate and up in turn, and of kRows' down
};

/// How a family names its tensors; the defaults are Llama's. All views are of literals. The members from
/// `attention_norm` on follow "<layers>N." and lack the ending ".weight" or ".bias". A tensor that the layer's
/// description lacks is not looked for. Where a fused name is set, one tensor has the rows of several, one after
/// another.
struct TensorNames {
  std::string_view embedding = kEmbeddingName;
  std::string_view position_embedding = {};  ///< of an encoder
  std::string_view type_embedding = {};      ///< of an encoder
  /// The norm after an encoder's embeddings; the norm before its other layers, and the final one, is the previous
  /// layer's `attention_norm`. Empty in a decoder.
  std::string_view embedding_norm = {};
  // Names of the table, the projection and its norm that make the layers' own inputs.
  std::string_view layer_input_embedding = "model.embed_tokens_per_layer.weight";
  std::string_view layer_input_projection = "model.per_layer_model_projection.weight";
  std::string_view layer_input_norm = "model.per_layer_projection_norm.weight";
  std::string_view final_norm = kFinalNormName;
  std::string_view head = kHeadName;
  std::string_view layers = "model.layers.";
  std::string_view attention_norm = "input_layernorm";
  std::string_view query = "self_attn.q_proj";
  std::string_view key = "self_attn.k_proj";
  std::string_view value = "self_attn.v_proj";
  std::string_view fused_qkv = {};
  std::string_view attention_gate = {};  ///< of attention with an output gate; empty: its rows are in `query`
  std::string_view query_norm = "self_attn.q_norm";
  std::string_view key_norm = "self_attn.k_norm";
  std::string_view query_a = "self_attn.q_a_proj";  ///< these six are latent attention's
  std::string_view query_a_norm = "self_attn.q_a_layernorm";
  std::string_view query_b = "self_attn.q_b_proj";
  std::string_view latent = "self_attn.kv_a_proj_with_mqa";
  std::string_view latent_norm = "self_attn.kv_a_layernorm";
  std::string_view latent_expansion = "self_attn.kv_b_proj";
  std::string_view index_query = "self_attn.indexer.wq_b";  ///< these four are an indexer's
  std::string_view index_key = "self_attn.indexer.wk";
  std::string_view index_norm = "self_attn.indexer.k_norm";
  std::string_view index_weights = "self_attn.indexer.weights_proj";
  // Names of recurrent mixers. A delta net's projections have rows q | k | v, z, b and a. With fused names, two tensors
  // have per key head the rows q | k | v | z and b | a of its value heads.
  std::string_view delta_qkv = "linear_attn.in_proj_qkv";
  std::string_view delta_z = "linear_attn.in_proj_z";
  std::string_view delta_b = "linear_attn.in_proj_b";
  std::string_view delta_a = "linear_attn.in_proj_a";
  std::string_view fused_delta_qkvz = {};
  std::string_view fused_delta_ba = {};
  // Names of Kimi Delta Attention, whose projections are `query`, `key`, `value` and `delta_b`: three convolutions, and
  // the factors of decays and gates.
  std::string_view query_conv = "self_attn.q_conv1d";
  std::string_view key_conv = "self_attn.k_conv1d";
  std::string_view value_conv = "self_attn.v_conv1d";
  std::string_view decay_a = "self_attn.f_a_proj";
  std::string_view decay_b = "self_attn.f_b_proj";
  std::string_view gate_a = "self_attn.g_a_proj";
  std::string_view gate_b = "self_attn.g_b_proj";
  std::string_view mixer_input = {};  ///< of Mamba-2, rows z | x | B | C | dt, and of a short convolution, B | C | x
  std::string_view mixer_conv = "linear_attn.conv1d";
  std::string_view mixer_decay = "linear_attn.A_log";        ///< has no ending
  bool stores_decay_rates = false;                           ///< mixer_decay has -exp(A_log)
  std::string_view mixer_step_bias = "linear_attn.dt_bias";  ///< has no ending
  std::string_view mixer_skip = {};                          ///< has no ending
  std::string_view mixer_norm = "linear_attn.norm";
  std::string_view mixer_output = "linear_attn.out_proj";
  std::string_view sinks = "self_attn.sinks";  ///< has no ending
  std::string_view output = "self_attn.o_proj";
  std::string_view attention_output_norm = {};
  std::string_view feed_forward_norm = "post_attention_layernorm";
  std::string_view gate = "mlp.gate_proj";
  std::string_view up = "mlp.up_proj";
  std::string_view fused_gate_up = {};
  std::string_view down = "mlp.down_proj";
  std::string_view feed_forward_output_norm = {};
  std::string_view router = "mlp.gate";
  std::string_view choice_bias = "mlp.gate.e_score_correction_bias";  ///< has no ending
  bool choice_bias_is_row = false;                                    ///< it is stored as [1, experts]
  // Names of experts with norms of their own: the shared expert's result, the experts' input and result, and the scale
  // of the router's input. The other two have no ending.
  std::string_view shared_output_norm = {};
  std::string_view experts_norm = {};
  std::string_view experts_output_norm = {};
  std::string_view router_scale = {};
  std::string_view expert_scales = {};
  std::string_view input_gate = "per_layer_input_gate";  ///< these three take a layer's own input
  std::string_view input_projection = "per_layer_projection";
  std::string_view input_output_norm = "post_per_layer_input_norm";
  std::string_view output_scale = {};         ///< of a layer; has no ending
  std::string_view experts_input = {};        ///< of experts with a latent
  std::string_view experts_output = {};       ///< of experts with a latent
  std::string_view experts = "mlp.experts.";  ///< before an expert's number
  std::string_view expert_gate = "gate_proj";
  std::string_view expert_up = "up_proj";
  std::string_view expert_down = "down_proj";
  ExpertStorage expert_storage = ExpertStorage::kSeparate;
  // Names of experts that are stored together. Biases have these names plus "_bias"; they are [experts,
  // 2·intermediate], gate and up in turn, and [experts, hidden].
  std::string_view fused_experts_gate_up = "mlp.experts.gate_up_proj";  ///< has no ending
  std::string_view fused_experts_down = "mlp.experts.down_proj";        ///< has no ending
  std::string_view shared_gate = "mlp.shared_experts.gate_proj";
  std::string_view shared_up = "mlp.shared_experts.up_proj";
  std::string_view fused_shared_gate_up = {};
  std::string_view shared_down = "mlp.shared_experts.down_proj";
  std::string_view shared_expert_gate = "mlp.shared_expert_gate";
  /// Beginning, with the dot after the layer's number, of the names of tensors that a layer may have without use, since
  /// its description lacks the part. Empty: none.
  std::string_view ignored_layer_part = {};
  /// Beginnings of the names of tensors that a wrapper has besides its text model. They are skipped.
  std::string_view skipped_parts = {};  ///< separated by blanks

  /// Returns "model.layers.7.self_attn.q_proj.weight" for (7, "self_attn.q_proj").
  [[nodiscard]] std::string weight(int32_t layer, std::string_view part) const;
  [[nodiscard]] std::string bias(int32_t layer, std::string_view part) const;
  [[nodiscard]] std::string plain(int32_t layer, std::string_view part) const;
  /// Returns the name, without an ending, of the norm before a layer's attention; for the count of layers the final
  /// one.
  [[nodiscard]] std::string norm_before_layer(int32_t layer, int32_t layer_count) const;
  friend bool operator==(const TensorNames&, const TensorNames&) = default;
};

/// Returns "model.layers.7.self_attn.q_proj.weight" for (7, "self_attn.q_proj.weight") with Llama's names.
[[nodiscard]] std::string layer_tensor_name(int32_t layer, std::string_view part);

}  // namespace millrace::model
