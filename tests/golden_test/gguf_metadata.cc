#include "golden_test/gguf_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace millrace::test {
namespace {

using simdjson::dom::element;

class MetadataWriter {
 public:
  MetadataWriter(const GgufSource& source, const GgufConversion& conversion, GgufText& text)
      : source_(source), conversion_(conversion), text_(text) {}

  void write() {
    text_.add("general.architecture", std::string_view(source_.architecture()));
    text_.add(key("block_count"), static_cast<uint32_t>(source_.layer_count() + conversion_.predicting_layers));
    if (conversion_.predicting_layers > 0) text_.add(key("nextn_predict_layers"), conversion_.predicting_layers);
    add_integer("context_length", "max_position_embeddings");
    add_integer("embedding_length", "hidden_size");
    if (source_.is("llama4")) {
      add_integer("feed_forward_length", "intermediate_size_mlp");
    } else if (source_.is("nemotron_h") || source_.is("nemotron_h_moe")) {
      add_widths();
    } else if (source_.is("lfm2")) {
      text_.add(key("feed_forward_length"),
                static_cast<uint32_t>(source_.tensors().at("model.layers.0.feed_forward.w1.weight").shape[0]));
    } else if (source_.has("use_double_wide_mlp")) {
      text_.add(key("feed_forward_length"), [&] {
        std::vector<int32_t> widths;
        for (int64_t layer = 0; layer < source_.layer_count(); ++layer)
          widths.push_back(static_cast<int32_t>(
              source_.tensors().at(fmt::format("model.layers.{}.mlp.up_proj.weight", layer)).shape[0]));
        return widths;
      }());
    } else {
      add_integer("feed_forward_length", "intermediate_size");
    }
    add_integer("attention.head_count", "num_attention_heads");
    add_number("attention.layer_norm_rms_epsilon", source_.has("norm_eps") ? "norm_eps" : "rms_norm_eps");
    add_number("attention.layer_norm_epsilon", "layer_norm_eps");
    add_number("attention.layer_norm_rms_epsilon", "layer_norm_epsilon");
    const element rotation = source_.rotation_of("full_attention");
    if (double theta = 0; rotation["rope_theta"].get(theta) == simdjson::SUCCESS)
      text_.add(key("rope.freq_base"), static_cast<float>(theta));
    add_heads();
    add_recurrent();
    add_windows();
    add_experts();
    add_rope();
    add_number("attn_logit_softcapping", "attn_logit_softcapping");
    add_number("final_logit_softcapping", "final_logit_softcapping");
    add_number("attention.scale", "attention_multiplier");
    if (!source_.is("falcon-h1")) add_number("embedding_scale", "embedding_multiplier");
    add_number("residual_scale", "residual_multiplier");
    add_number("logit_scale", source_.is("cohere2") ? "logit_scale" : "logits_scaling");
    add_integer("shortconv.l_cache", "conv_L_cache");
  }

 private:
  [[nodiscard]] std::string key(std::string_view name) const {
    return fmt::format("{}.{}", source_.architecture(), name);
  }
  void add_integer(std::string_view name, const char* member) {
    if (source_.has(member)) text_.add(key(name), static_cast<uint32_t>(source_.integer(member)));
  }
  void add_number(std::string_view name, const char* member) {
    if (source_.has(member)) text_.add(key(name), source_.number(member));
  }

  /// Returns a number for each layer: `value` where it has a tensor and else 0.
  [[nodiscard]] std::vector<int32_t> by_layer(std::string_view part, int64_t value) const {
    std::vector<int32_t> values;
    for (int64_t layer = 0; layer < source_.layer_count(); ++layer)
      values.push_back(source_.has_in_layer(layer, part) ? static_cast<int32_t>(value) : 0);
    return values;
  }

  void add_widths() {
    const bool is_moe = source_.is("nemotron_h_moe");
    text_.add(key("feed_forward_length"),
              by_layer(is_moe ? "mixer.gate.weight" : "mixer.up_proj.weight",
                       source_.integer(is_moe ? "moe_intermediate_size" : "intermediate_size")));
  }

  void add_recurrent() {
    if (source_.is_delta_net()) {
      add_integer("ssm.conv_kernel", "linear_conv_kernel_dim");
      add_integer("ssm.state_size", "linear_key_head_dim");
      add_integer("ssm.group_count", "linear_num_key_heads");
      add_integer("ssm.time_step_rank", "linear_num_value_heads");
      text_.add(key("ssm.inner_size"), static_cast<uint32_t>(source_.integer("linear_num_value_heads") *
                                                             source_.integer("linear_value_head_dim")));
      add_integer("full_attention_interval", "full_attention_interval");
    } else if (source_.has_mamba()) {
      for (const char* member : {"mamba_d_conv", "conv_kernel"}) add_integer("ssm.conv_kernel", member);
      for (const char* member : {"mamba_d_state", "ssm_state_size"}) add_integer("ssm.state_size", member);
      for (const char* member : {"mamba_n_groups", "n_groups"}) add_integer("ssm.group_count", member);
      const int64_t heads = source_.integer(source_.has("mamba_n_heads") ? "mamba_n_heads" : "mamba_num_heads");
      const int64_t channels = source_.integer(source_.has("mamba_d_head") ? "mamba_d_head" : "mamba_head_dim");
      text_.add(key("ssm.time_step_rank"), static_cast<uint32_t>(heads));
      text_.add(key("ssm.inner_size"), static_cast<uint32_t>(heads * channels));
    }
    if (source_.is("granitehybrid")) text_.add(key("rope.scaling.finetuned"), false);
  }

  void add_full_heads() {
    text_.add(key("attention.head_count_kv"), [&] {
      std::vector<int32_t> counts;
      for (int64_t layer = 0; layer < source_.layer_count(); ++layer)
        if (const auto keys = source_.tensors().find(fmt::format("model.layers.{}.self_attn.k_proj.weight", layer));
            keys != source_.tensors().end()) {
          counts.push_back(static_cast<int32_t>(
              keys->second.shape[0] /
              source_.tensors().at(fmt::format("model.layers.{}.self_attn.k_norm.weight", layer)).shape[0]));
        } else {
          counts.push_back(static_cast<int32_t>(source_.integer("num_key_value_heads")));
        }
      return counts;
    }());
    constexpr uint32_t kFullDim = 32;  // of all golden models
    for (const char* name : {"attention.key_length", "attention.value_length", "rope.dimension_count"})
      text_.add(key(name), kFullDim);
    for (const char* name : {"attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"})
      add_integer(name, "head_dim");
    text_.add(key("rope.freq_base_swa"),
              static_cast<float>(double(source_.rotation_of("sliding_attention")["rope_theta"])));
    const auto rotated =
        static_cast<size_t>(double(source_.rotation_of("full_attention")["partial_rotary_factor"]) * kFullDim / 2);
    std::vector<float> divisors(kFullDim / 2, 1e30f);
    std::fill_n(divisors.begin(), rotated, 1.0f);
    text_.tensor("rope_freqs.weight", {kFullDim / 2}, divisors);
    add_integer("embedding_length_per_layer_input", "hidden_size_per_layer_input");
    add_integer("attention.shared_kv_layers", "num_kv_shared_layers");
  }

  void add_heads() {
    if (source_.is("gemma4")) return add_full_heads();
    const int64_t heads = source_.integer("num_attention_heads");
    const int64_t head_dim =
        source_.has("head_dim") ? source_.integer("head_dim") : source_.integer("hidden_size") / heads;
    if (source_.is_latent()) {
      add_integer("attention.indexer.head_count", "index_n_heads");
      add_integer("attention.indexer.key_length", "index_head_dim");
      add_integer("attention.indexer.top_k", "index_topk");
      const int64_t latents = source_.integer("kv_lora_rank");
      const int64_t rotated = source_.integer("qk_rope_head_dim");
      text_.add(key("attention.head_count_kv"), 1);
      text_.add(key("attention.key_length"), static_cast<uint32_t>(latents + rotated));
      text_.add(key("attention.value_length"), static_cast<uint32_t>(latents));
      text_.add(key("attention.key_length_mla"), static_cast<uint32_t>(source_.integer("qk_nope_head_dim") + rotated));
      add_integer("attention.value_length_mla", "v_head_dim");
      add_integer("attention.kv_lora_rank", "kv_lora_rank");
      add_integer("attention.q_lora_rank", "q_lora_rank");
      add_integer("rope.dimension_count", "qk_rope_head_dim");
      return;
    }
    const bool is_nemotron = source_.is("nemotron_h") || source_.is("nemotron_h_moe");
    if (source_.is("lfm2") || source_.is("lfm2moe") || source_.is("granitehybrid") || is_nemotron) {
      text_.add(key("attention.head_count_kv"),
                by_layer(is_nemotron ? "mixer.q_proj.weight" : "self_attn.q_proj.weight",
                         source_.integer("num_key_value_heads")));
      if (!is_nemotron) return;
    } else {
      add_integer("attention.head_count_kv", "num_key_value_heads");
    }
    if (source_.has("head_dim")) text_.add(key("attention.key_length"), static_cast<uint32_t>(head_dim));
    if (source_.has("head_dim")) text_.add(key("attention.value_length"), static_cast<uint32_t>(head_dim));
    if (source_.has("partial_rotary_factor"))
      text_.add(key("rope.dimension_count"),
                static_cast<uint32_t>(static_cast<float>(head_dim) * source_.number("partial_rotary_factor")));
    if (source_.is("qwen35"))
      text_.add(key("rope.dimension_count"),
                static_cast<uint32_t>(static_cast<double>(head_dim) *
                                      double(source_.rotation_of("full_attention")["partial_rotary_factor"])));
    add_integer("rope.dimension_count", "rotary_dim");
  }

  void add_windows() {
    if (source_.is("phi3")) text_.add(key("attention.sliding_window"), 0);
    if (!source_.has("sliding_window") || source_.is("qwen2moe")) return;
    add_integer("attention.sliding_window", "sliding_window");
    const bool has_flags = source_.is("afmoe") || source_.is("exaone4") || source_.is("exaone-moe");
    if (!source_.is("olmo2") && !source_.is("gemma4") && !has_flags) return;
    if (source_.is("olmo2")) text_.add(key("rope.freq_base_swa"), source_.number("rope_theta"));
    const int64_t period = source_.is("gemma4") ? 2 : 4;
    constexpr uint32_t kBool = 7;
    constexpr uint32_t kArray = 9;
    const auto count = static_cast<uint64_t>(source_.layer_count());
    std::string array(reinterpret_cast<const char*>(&kBool), sizeof kBool);
    array.append(reinterpret_cast<const char*>(&count), sizeof count);
    for (uint64_t layer = 0; layer < count; ++layer)
      array += static_cast<char>((static_cast<int64_t>(layer) + 1) % period != 0);
    text_.add_raw(key("attention.sliding_window_pattern"), kArray, array);
  }

  void add_experts() {
    for (const char* member : {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"})
      add_integer("expert_count", member);
    for (const char* member : {"moe_k", "num_experts_per_tok", "top_k_experts"})
      add_integer("expert_used_count", member);
    const bool is_width_of_experts = source_.is("gpt-oss") || source_.is("minimax-m2") || source_.is("llama4");
    add_integer("expert_feed_forward_length", is_width_of_experts ? "intermediate_size" : "moe_intermediate_size");
    for (const char* member :
         {"shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size"})
      add_integer("expert_shared_feed_forward_length", member);
    if (source_.is("hy_v3")) add_integer("expert_shared_feed_forward_length", "moe_intermediate_size");
    for (const char* member : {"n_shared_experts", "moe_num_shared_experts", "num_shared_experts"})
      if (!source_.is("hy_v3")) add_integer("expert_shared_count", member);
    for (const char* member : {"first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"})
      add_integer("leading_dense_block_count", member);
    for (const char* member : {"moe_layer_interval", "interleave_moe_layer_step"})
      add_integer("interleave_moe_layer_step", member);
    add_integer("expert_group_count", "n_group");
    add_integer("expert_group_used_count", "topk_group");
    add_integer("moe_latent_size", "moe_latent_size");
    for (const char* member : {"routed_scaling_factor", "router_scaling_factor", "route_scale"})
      add_number("expert_weights_scale", member);
    if (source_.has("route_norm")) text_.add(key("expert_weights_norm"), bool(source_.config()["route_norm"]));
    if (source_.has("norm_topk_prob") && bool(source_.config()["norm_topk_prob"]))
      text_.add(key("expert_weights_norm"), true);
    const bool is_sigmoid = source_.is("glm4moe") || source_.is("lfm2moe") || source_.is("minimax-m2") ||
                            source_.is("hy_v3") || source_.is("afmoe") || source_.is("bailingmoe2") ||
                            source_.is("dots1");
    if (source_.has("scoring_func") && std::string_view(source_.config()["scoring_func"]) == "softmax") {
      text_.add(key("expert_gating_func"), 1);
    } else if (is_sigmoid || source_.has("scoring_func")) {
      text_.add(key("expert_gating_func"), 2);
    }
  }

  void add_rope() {
    add_number("rope.freq_base_swa", "rope_local_base_freq");
    const bool is_within = source_.is("mistral3") || source_.is("llama4");
    if (!source_.has("rope_scaling") && !is_within) return;
    const element scaling = source_.config()[is_within ? "rope_parameters" : "rope_scaling"];
    std::string_view type;
    if (scaling["rope_type"].get(type) != simdjson::SUCCESS) type = scaling["type"];
    if (type == "default") return;
    if (type == "llama3") return add_llama3_divisors(scaling);
    text_.add(key("rope.scaling.type"), type);
    const auto add_scalar = [&](const char* name, const char* member, float factor = 1.0f) {
      double value = 0;
      if (scaling[member].get(value) == simdjson::SUCCESS) text_.add(key(name), factor * static_cast<float>(value));
    };
    add_scalar("rope.scaling.factor", "factor");
    add_scalar("rope.scaling.yarn_attn_factor", "attention_factor");
    add_scalar("rope.scaling.yarn_beta_fast", "beta_fast");
    add_scalar("rope.scaling.yarn_beta_slow", "beta_slow");
    add_scalar("rope.scaling.yarn_log_multiplier", "mscale_all_dim", source_.is("mistral3") ? 1.0f : 0.1f);
    add_scalar("attention.temperature_scale", "llama_4_scaling_beta");
    int64_t original = 0;
    if (scaling["original_max_position_embeddings"].get(original) != simdjson::SUCCESS &&
        source_.has("original_max_position_embeddings"))
      original = source_.integer("original_max_position_embeddings");
    if (original > 0) text_.add(key("rope.scaling.original_context_length"), static_cast<uint32_t>(original));
    if (type == "longrope") {
      const auto known = static_cast<double>(original);
      const double stretch = static_cast<double>(source_.integer("max_position_embeddings")) / known;
      text_.add(key("rope.scaling.attn_factor"),
                static_cast<float>(std::sqrt(1 + std::log(stretch) / std::log(known))));
    }
    for (const auto& [member, name] : {std::pair("long_factor", "rope_factors_long.weight"),
                                       std::pair("short_factor", "rope_factors_short.weight")}) {
      simdjson::dom::array list;
      if (scaling[member].get(list) != simdjson::SUCCESS) continue;
      std::vector<float> factors;
      for (const element factor : list) factors.push_back(static_cast<float>(double(factor)));
      text_.tensor(name, {static_cast<int64_t>(factors.size())}, factors);
    }
  }

  /// Adds what Llama 3's scaling comes to where no frequency lies between its borders.
  void add_llama3_divisors(const element& scaling) {
    double theta = 0;
    if (scaling["rope_theta"].get(theta) != simdjson::SUCCESS) theta = double(source_.config()["rope_theta"]);
    const double border = double(scaling["original_max_position_embeddings"]) / double(scaling["low_freq_factor"]);
    const auto pairs = static_cast<size_t>(source_.integer("head_dim") / 2);
    std::vector<float> divisors;
    for (size_t pair = 0; pair < pairs; ++pair) {
      const double length = 2 * M_PI * std::pow(theta, static_cast<double>(pair) / static_cast<double>(pairs));
      divisors.push_back(length > border ? static_cast<float>(double(scaling["factor"])) : 1.0f);
    }
    text_.tensor("rope_freqs.weight", {static_cast<int64_t>(pairs)}, divisors);
  }

  const GgufSource& source_;
  const GgufConversion& conversion_;
  GgufText& text_;
};

}  // namespace

void add_gguf_metadata(const GgufSource& source, const GgufConversion& conversion, GgufText& text) {
  MetadataWriter(source, conversion, text).write();
}

}  // namespace millrace::test
