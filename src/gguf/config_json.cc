#include "gguf/config_json.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/json.h"
#include "gguf/families.h"
#include "gguf/special_tokens.h"

namespace millrace::gguf {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 30;
constexpr std::string_view kRopeFactors = "rope_freqs.weight";

/// Keys of a family that change its arithmetic. A value of 0, 1, false or an empty text changes nothing.
constexpr std::array<std::string_view, 18> kOtherArithmetic = {"attention.clamp_kqv",
                                                               "attention.max_alibi_bias",
                                                               "attention.output_scale",
                                                               "attention.scale",
                                                               "attention.temperature_length",
                                                               "attention.temperature_scale",
                                                               "attn_logit_softcapping",
                                                               "embedding_scale",
                                                               "expert_group_count",
                                                               "expert_shared_count",
                                                               "expert_shared_feed_forward_length",
                                                               "expert_weights_scale",
                                                               "final_logit_softcapping",
                                                               "leading_dense_block_count",
                                                               "logit_scale",
                                                               "residual_scale",
                                                               "rope.scaling.yarn_log_multiplier",
                                                               "use_parallel_residual"};

class ConfigWriter {
 public:
  explicit ConfigWriter(const Model& model)
      : model_(model),
        family_(family_of(model)),
        metadata_(model.metadata()),
        prefix_(std::string(family_.name) + '.') {}

  std::string write() {
    refuse_other_arithmetic();
    json_.begin_object();
    json_.key("architectures").begin_array().value(family_.architecture).end_array();
    write_dimensions();
    write_rope();
    write_windows();
    if (family_.is_moe) write_experts();
    json_.member("tie_word_embeddings", model_.find("output.weight") == nullptr);
    json_.member("attention_bias", model_.find("blk.0.attn_q.bias") != nullptr);
    // Arithmetic is float32 or bfloat16, whatever the types of the tensors.
    json_.member("torch_dtype", "bfloat16");
    write_tokens();
    json_.end_object();
    return std::move(text_);
  }

 private:
  [[nodiscard]] std::string key(std::string_view name) const { return prefix_ + std::string(name); }

  void refuse_other_arithmetic() const {
    for (const std::string_view name : kOtherArithmetic) {
      const Value* value = metadata_.find(key(name));
      if (value == nullptr) continue;
      const double number = value->number().value_or(value->flag().value_or(true) ? NAN : 0.0);
      if (number == 0.0 || number == 1.0 || value->text() == "") continue;
      metadata_.fail("{} ({}) is not computed here, wanted a model without it", key(name),
                     value->number() ? fmt::format("{}", number) : value->type_name());
    }
    if (metadata_.flag(key("attention.causal")) == false)
      metadata_.fail("{} false is not computed here, wanted a model with causal attention", key("attention.causal"));
  }

  int64_t size(std::string_view name) const { return metadata_.required_integer(key(name), 1, kMaxSize); }

  /// Reads a size that may be a list of equal ones, one a layer.
  [[nodiscard]] int64_t layer_size(std::string_view name) const {
    const Value* value = metadata_.find(key(name));
    const auto sizes = value == nullptr ? std::nullopt : value->integers();
    if (!sizes) return size(name);
    const bool is_equal =
        !sizes->empty() && std::ranges::adjacent_find(*sizes, std::ranges::not_equal_to()) == sizes->end();
    if (!is_equal || sizes->front() < 1 || sizes->front() > kMaxSize)
      metadata_.fail("{} differs from layer to layer ({}), wanted one size", key(name), fmt::join(*sizes, ", "));
    return sizes->front();
  }

  void write_dimensions() {
    const Tensor* embedding = model_.find("token_embd.weight");
    if (embedding == nullptr || embedding->shape.size() != 2)
      metadata_.fail("tensor 'token_embd.weight' is missing or no matrix, wanted the embedding of a whole model");
    const int64_t hidden = size("embedding_length");
    layer_count_ = size("block_count");
    const int64_t heads = layer_size("attention.head_count");
    const bool has_kv = metadata_.has(key("attention.head_count_kv"));
    head_dim_ = metadata_.integer(key("attention.key_length"), 1, kMaxSize).value_or(hidden / heads);
    const int64_t value_dim = metadata_.integer(key("attention.value_length"), 1, kMaxSize).value_or(head_dim_);
    if (value_dim != head_dim_)
      metadata_.fail("{} {} and {} {} differ, wanted equal lengths", key("attention.key_length"), head_dim_,
                     key("attention.value_length"), value_dim);
    json_.member("vocab_size", embedding->shape[0]).member("hidden_size", hidden);
    json_.member("num_hidden_layers", layer_count_).member("num_attention_heads", heads);
    json_.member("num_key_value_heads", has_kv ? layer_size("attention.head_count_kv") : heads);
    json_.member("head_dim", head_dim_);
    // Where all layers have experts, the size of the others may be absent.
    const bool has_dense = metadata_.has(key("feed_forward_length")) || !family_.is_moe || family_.is_mixtral;
    json_.member("intermediate_size", layer_size(has_dense ? "feed_forward_length" : "expert_feed_forward_length"));
    json_.member("max_position_embeddings", size("context_length"));
    const auto epsilon = metadata_.number(key("attention.layer_norm_rms_epsilon"));
    if (!epsilon) metadata_.fail("{} is missing, wanted a number", key("attention.layer_norm_rms_epsilon"));
    json_.member("rms_norm_eps", static_cast<float>(*epsilon));
  }

  void write_rope() {
    const auto rotated = metadata_.integer(key("rope.dimension_count"), 1, kMaxSize);
    if (rotated && *rotated != head_dim_)
      metadata_.fail("{} is {}, but heads have {} columns, wanted rotation of whole heads", key("rope.dimension_count"),
                     *rotated, head_dim_);
    json_.member("rope_theta", metadata_.number(key("rope.freq_base")).value_or(10000.0));
    for (const char* longrope : {"rope_factors_long.weight", "rope_factors_short.weight"}) {
      if (model_.find(longrope) != nullptr)
        metadata_.fail("tensor '{}' has no meaning here for the architecture '{}'", longrope, family_.name);
    }
    const std::string type(metadata_.text(key("rope.scaling.type")).value_or(""));
    const auto factor = metadata_.number(key("rope.scaling.factor"));
    // Files from before rope.scaling.
    const auto linear = metadata_.number(key("rope.scale_linear"));
    if (const Tensor* factors = model_.find(kRopeFactors)) return write_divisors(*factors, type, factor);
    if (type == "linear" || (type.empty() && (factor || linear))) {
      write_linear(factor ? *factor : linear.value_or(1.0));
    } else if (type == "yarn") {
      write_yarn(factor);
    } else if (!type.empty() && type != "none") {
      metadata_.fail("{} is '{}', wanted none, linear or yarn", key("rope.scaling.type"), type);
    }
  }

  void write_linear(double factor) {
    if (factor == 1.0 || factor == 0.0) return;  // both are written for models without scaling
    json_.key("rope_scaling").begin_object().member("rope_type", "linear").member("factor", factor).end_object();
  }

  void write_yarn(std::optional<double> factor) {
    if (!factor) metadata_.fail("{} is missing, wanted a number", key("rope.scaling.factor"));
    json_.key("rope_scaling").begin_object().member("rope_type", "yarn").member("factor", *factor);
    const auto original = metadata_.integer(key("rope.scaling.original_context_length"), 1, kMaxSize);
    if (original) json_.member("original_max_position_embeddings", *original);
    if (const auto fast = metadata_.number(key("rope.scaling.yarn_beta_fast"))) json_.member("beta_fast", *fast);
    if (const auto slow = metadata_.number(key("rope.scaling.yarn_beta_slow"))) json_.member("beta_slow", *slow);
    json_.end_object();
    for (const char* name :
         {"rope.scaling.yarn_ext_factor", "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"}) {
      const auto given = metadata_.number(key(name));
      if (given && *given != 1.0) metadata_.fail("{} is {}, wanted 1", key(name), *given);
    }
  }

  /// Writes factors by which single frequencies are divided: what Llama 3's scaling comes to.
  void write_divisors(const Tensor& tensor, const std::string& type, std::optional<double> factor) {
    if (!type.empty() && type != "none" && factor.value_or(1.0) != 1.0)
      metadata_.fail("{} is '{}', but tensor '{}' scales too, wanted one of them", key("rope.scaling.type"), type,
                     kRopeFactors);
    if (tensor.type.name != "F32" || tensor.shape != std::vector<int64_t>{head_dim_ / 2})
      metadata_.fail("tensor '{}' is {} [{}], wanted F32 [{}]", kRopeFactors, tensor.type.name,
                     fmt::join(tensor.shape, ", "), head_dim_ / 2);
    json_.key("rope_scaling").begin_object().member("rope_type", "divided").key("divisors").begin_array();
    for (int64_t i = 0; i < head_dim_ / 2; ++i) {
      float divisor = 0;
      std::memcpy(&divisor, tensor.bytes.data() + static_cast<size_t>(i) * sizeof divisor, sizeof divisor);
      if (!std::isfinite(divisor) || divisor <= 0)
        metadata_.fail("tensor '{}': factor {} is {}, wanted a positive number", kRopeFactors, i, divisor);
      json_.value(divisor);
    }
    json_.end_array().end_object();
  }

  void write_windows() {
    const auto window = metadata_.integer(key("attention.sliding_window"), 0, kMaxSize);
    if (window.value_or(0) > 0 && *window < size("context_length"))
      metadata_.fail("{} is {}, wanted none: files of the architecture '{}' do not say which layers slide",
                     key("attention.sliding_window"), *window, family_.name);
    json_.key("sliding_window").null();
  }

  void write_experts() {
    const int64_t experts = size("expert_count");
    const auto gating = metadata_.integer(key("expert_gating_func"), 0, 255);
    if (gating.value_or(1) > 1) metadata_.fail("{} is {}, wanted 1 (softmax)", key("expert_gating_func"), *gating);
    json_.member(family_.is_mixtral ? "num_local_experts" : "num_experts", experts);
    json_.member("num_experts_per_tok", size("expert_used_count"));
    if (family_.is_mixtral) return;
    json_.member("moe_intermediate_size", size("expert_feed_forward_length"));
    json_.member("norm_topk_prob", metadata_.flag(key("expert_weights_norm")).value_or(true));
    json_.key("mlp_only_layers").begin_array();
    for (int64_t layer = 0; layer < std::min<int64_t>(layer_count_, kMaxLayers); ++layer) {
      if (model_.find(fmt::format("blk.{}.ffn_gate_inp.weight", layer)) == nullptr) json_.value(layer);
    }
    json_.end_array();
  }

  void write_tokens() {
    const SpecialTokens tokens = special_tokens(metadata_);
    if (tokens.bos) json_.member("bos_token_id", *tokens.bos);
    if (tokens.ends.empty()) return;
    json_.key("eos_token_id").begin_array();
    for (const int64_t id : tokens.ends) json_.value(id);
    json_.end_array();
  }

  static constexpr int64_t kMaxLayers = 1024;

  const Model& model_;
  const Family& family_;
  const Metadata& metadata_;
  std::string prefix_;
  int64_t layer_count_ = 0;
  int64_t head_dim_ = 0;
  std::string text_;
  JsonWriter json_{text_};
};

}  // namespace

Result<std::string> config_json(const Model& model) {
  try {
    return ConfigWriter(model).write();
  } catch (const ErrorException& failure) {
    return failure.error();
  }
}

}  // namespace millrace::gguf
