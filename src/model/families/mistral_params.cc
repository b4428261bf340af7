#include "model/families/mistral_params.h"

#include <fmt/format.h>

#include <optional>

#include "base/json.h"
#include "model/families/block.h"
#include "model/field_reader.h"

namespace millrace::model {
namespace {

constexpr int32_t kMaxSize = kMaxIntermediate;

/// Copies integers under other names.
struct Renaming {
  const char* from;
  const char* to;
};
constexpr Renaming kSizes[] = {{"dim", "hidden_size"},
                               {"hidden_dim", "intermediate_size"},
                               {"n_layers", "num_hidden_layers"},
                               {"n_heads", "num_attention_heads"},
                               {"vocab_size", "vocab_size"},
                               {"q_lora_rank", "q_lora_rank"},
                               {"kv_lora_rank", "kv_lora_rank"},
                               {"qk_nope_head_dim", "qk_nope_head_dim"},
                               {"qk_rope_head_dim", "qk_rope_head_dim"},
                               {"v_head_dim", "v_head_dim"}};
constexpr Renaming kExpertSizes[] = {{"num_experts", "n_routed_experts"},
                                     {"num_experts_per_tok", "num_experts_per_tok"},
                                     {"expert_hidden_dim", "moe_intermediate_size"}};

/// Writes a config.json from the members of a params.json.
class ParamsReader {
 public:
  ParamsReader(std::string_view source, JsonObject object) : params_(std::string(source), object) {}

  Result<std::string> write() {
    json_.begin_object().key("architectures").begin_array().value("Mistral4ForCausalLM").end_array();
    if (!params_.has("qk_nope_head_dim") || !params_.has("moe"))
      params_.fail("qk_nope_head_dim or moe is missing, wanted a model with latent attention and experts");
    for (const Renaming& size : kSizes) json_.member(size.to, params_.integer(size.from, 1, kMaxSize));
    json_.member("num_key_value_heads",
                 params_.integer_or("n_kv_heads", params_.integer("n_heads", 1, kMaxSize), 1, kMaxSize));
    json_.member("rms_norm_eps", params_.number_or("norm_eps", 1e-6, 0.0, 1.0));
    json_.member("max_position_embeddings", params_.integer_or("max_position_embeddings", 128000, 1, kMaxPosition));
    json_.member("tie_word_embeddings", params_.flag_or("tied_embeddings", false));
    json_.member("hidden_act", params_.text_or("activation", "silu"));
    json_.member("bos_token_id", 1).member("eos_token_id", 2).member("dtype", "bfloat16");
    if (params_.integer_or("sliding_window", 0, 0, kMaxPosition) != 0)
      params_.fail("sliding_window is not computed here, wanted null");
    write_experts();
    write_rope();
    write_quantization();
    json_.end_object();
    if (params_.error()) return *params_.error();
    return std::move(text_);
  }

 private:
  /// Returns a reader of a nested object; none: there is no such member.
  std::optional<FieldReader> nested(const char* key) {
    const auto object = params_.object(key);
    if (!object) return std::nullopt;
    return FieldReader(params_.source() + ": " + key, *object);
  }

  void write_quantization() {
    const auto quantization = params_.find("quantization_config");
    if (!quantization || quantization->is_null()) return;
    std::string copy;
    append_json(copy, *quantization);
    json_.key("quantization_config").raw(copy);
  }

  void write_experts() {
    auto moe = nested("moe");
    if (!moe) return;
    for (const Renaming& size : kExpertSizes) json_.member(size.to, moe->integer(size.from, 1, kMaxSize));
    json_.member("n_shared_experts", moe->integer_or("num_shared_experts", 0, 0, kMaxShared));
    json_.member("first_k_dense_replace", moe->integer_or("first_k_dense_replace", 0, 0, kMaxLayerCount));
    json_.member("moe_layer_freq", moe->integer_or("route_every_n", 1, 1, kMaxLayerCount));
    json_.member("n_group", moe->integer_or("num_expert_groups", 1, 1, kMaxExpertCount));
    json_.member("topk_group", moe->integer_or("num_expert_groups_per_tok", 1, 1, kMaxExpertCount));
    json_.member("routed_scaling_factor", moe->number_or("routed_scale", 1.0, 0.0, 1e6));
    if (moe->flag_or("use_load_balancing_bias", false))
      moe->fail("use_load_balancing_bias true is not computed here, wanted false");
    require_text(*moe, "renorm_strategy", "WEIGHTS");
    params_.take_error_of(*moe);
  }

  void write_rope() {
    json_.key("rope_parameters").begin_object().member("rope_theta", params_.number_or("rope_theta", 1e4, 1.0, 1e12));
    auto yarn = nested("yarn");
    json_.member("rope_type", yarn ? "yarn" : "default");
    if (yarn) {
      json_.member("factor", yarn->number("factor", 1e-3, 1e6));
      json_.member("beta_fast", yarn->number_or("beta", 32.0, 1e-6, 1e6));
      json_.member("beta_slow", yarn->number_or("alpha", 1.0, 1e-6, 1e6));
      json_.member("original_max_position_embeddings",
                   yarn->integer("original_max_position_embeddings", 1, kMaxPosition));
      if (yarn->flag_or("apply_scale", false)) yarn->fail("apply_scale true is not computed here, wanted false");
      json_.member("mscale", 1.0).member("mscale_all_dim", 1.0);  // both are the factor of cos and sin, which is 1
      params_.take_error_of(*yarn);
    }
    json_.end_object();
    auto scaling = nested("llama_4_scaling");
    if (!scaling) return;
    json_.key("llama_4_scaling").begin_object().member("beta", scaling->number("beta", 0.0, 1e3));
    json_.member("original_max_position_embeddings",
                 scaling->integer("original_max_position_embeddings", 1, kMaxPosition));
    json_.end_object();
    params_.take_error_of(*scaling);
  }

  FieldReader params_;
  std::string text_;
  JsonWriter json_{text_};
};

}  // namespace

Result<std::string> config_of_params(std::string_view json, std::string_view source) {
  JsonDocument document;
  const Result<JsonObject> object = parse_config_object(document, source, json);
  if (!object) return object.error();
  return ParamsReader(source, *object).write();
}

TensorNames mistral_names() {
  return {.embedding = "tok_embeddings.weight",
          .final_norm = "norm.weight",
          .head = "output.weight",
          .layers = "layers.",
          .attention_norm = "attention_norm",
          .query = "attention.wq",
          .query_a = "attention.wq_a",
          .query_a_norm = "attention.q_a_norm",
          .query_b = "attention.wq_b",
          .latent = "attention.wkv_a_with_mqa",
          .latent_norm = "attention.kv_a_norm",
          .latent_expansion = "attention.wkv_b",
          .output = "attention.wo",
          .feed_forward_norm = "ffn_norm",
          .gate = "feed_forward.w1",
          .up = "feed_forward.w3",
          .down = "feed_forward.w2",
          .router = "gate",
          .experts = "experts.",
          .expert_gate = "w1",
          .expert_up = "w3",
          .expert_down = "w2",
          .shared_gate = "shared_experts.w1",
          .shared_up = "shared_experts.w3",
          .shared_down = "shared_experts.w2",
          .skipped_parts = "vision_encoder. patch_merger. pre_mm_projector_norm. vision_language_adapter."};
}

}  // namespace millrace::model
