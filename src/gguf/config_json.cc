#include "gguf/config_json.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/json.h"
#include "gguf/config_members.h"
#include "gguf/families.h"
#include "gguf/special_tokens.h"

namespace millrace::gguf {
namespace {

constexpr std::string_view kRopeFactors = "rope_freqs.weight";

class ConfigWriter {
 public:
  explicit ConfigWriter(const Model& model)
      : model_(model), family_(family_of(model)), metadata_(model.metadata()), members_(model, family_, json_) {}

  std::string write() {
    json_.begin_object();
    json_.key("architectures").begin_array().value(family_.architecture).end_array();
    write_dimensions();
    if (!family_.has_own_heads) write_rope();
    if (!family_.has_windows) refuse_windows();
    if (family_.write_members != nullptr) family_.write_members(members_);
    members_.refuse_unread();
    json_.member("tie_word_embeddings", model_.find("output.weight") == nullptr);
    const bool has_biases = members_.has_in_layers("attn_q.bias") || members_.has_in_layers("attn_qkv.bias") ||
                            members_.has_in_layers("attn_kv_a_mqa.bias");
    json_.member("attention_bias", has_biases);
    // Arithmetic is float32 or bfloat16, whatever the types of the tensors.
    json_.member("torch_dtype", "bfloat16");
    write_tokens();
    json_.end_object();
    return std::move(text_);
  }

 private:
  [[nodiscard]] std::string key(std::string_view name) const { return members_.key(name); }

  void write_dimensions() {
    const Tensor* embedding = model_.find("token_embd.weight");
    if (embedding == nullptr || embedding->shape.size() != 2)
      metadata_.fail("tensor 'token_embd.weight' is missing or no matrix, wanted the embedding of a whole model");
    const int64_t hidden = members_.size("embedding_length");
    const int64_t heads = members_.layer_size("attention.head_count");
    json_.member("vocab_size", embedding->shape[0]).member("hidden_size", hidden);
    json_.member("num_hidden_layers", members_.layer_count()).member("num_attention_heads", heads);
    if (!family_.has_latents && !family_.has_own_heads) write_heads(hidden, heads);
    json_.member("intermediate_size", feed_forward_width());
    json_.member("max_position_embeddings", members_.size("context_length"));
    auto epsilon = members_.number(family_.epsilon_key);
    // Some converters name it by the word in config.json.
    if (!epsilon) epsilon = members_.number("attention.layer_norm_epsilon");
    if (!epsilon) metadata_.fail("{} is missing, wanted a number", key(family_.epsilon_key));
    json_.member(family_.epsilon_member, *epsilon);
  }

  /// Returns the width of feed-forward blocks. Layers of one part each have a list, in which some have none.
  [[nodiscard]] int64_t feed_forward_width() {
    // Where all layers have experts, the size of the others may be absent.
    const bool has_dense = metadata_.has(key("feed_forward_length")) || !family_.is_moe;
    if (!has_dense || experts_have_own_width()) return members_.layer_size("expert_feed_forward_length");
    const auto own = family_.has_own_heads ? members_.integers("feed_forward_length") : std::nullopt;
    if (own && !own->empty()) return std::max<int64_t>(own->front(), 1);  // write_members() checks the others
    if (!family_.has_recurrent_layers) return members_.layer_size("feed_forward_length");
    const int64_t count = std::min(members_.layer_count(), kMaxLayers);
    for (int64_t layer = 0; layer < count; ++layer) {
      const Tensor* up = model_.find(fmt::format("blk.{}.ffn_up.weight", layer));
      if (up != nullptr && up->shape.size() == 2) return up->shape[0];
    }
    const auto widths = members_.integers("feed_forward_length");
    return widths && !widths->empty() ? std::max<int64_t>(std::ranges::max(*widths), 1)
                                      : members_.size("feed_forward_length");
  }

  /// Returns whether intermediate_size is that of experts, of which files have a key of their own.
  [[nodiscard]] bool experts_have_own_width() const {
    return family_.is_moe && family_.has_expert_width_alone && metadata_.has(key("expert_feed_forward_length"));
  }

  /// Writes the heads of keys and their channels. Layers without any are no attention.
  void write_heads(int64_t hidden, int64_t heads) {
    head_dim_ = members_.optional_size("attention.key_length").value_or(hidden / heads);
    const int64_t value_dim = members_.optional_size("attention.value_length").value_or(head_dim_);
    if (value_dim != head_dim_)
      metadata_.fail("{} {} and {} {} differ, wanted equal lengths", key("attention.key_length"), head_dim_,
                     key("attention.value_length"), value_dim);
    json_.member("head_dim", head_dim_);
    if (!metadata_.has(key("attention.head_count_kv"))) {
      json_.member("num_key_value_heads", heads);
    } else if (const auto list = members_.integers("attention.head_count_kv"); list && family_.has_recurrent_layers) {
      json_.member("num_key_value_heads", list->empty() ? 0 : std::ranges::max(*list));
    } else {
      json_.member("num_key_value_heads", members_.layer_size("attention.head_count_kv"));
    }
  }

  void write_rotated_part() {
    const auto rotated = members_.optional_size("rope.dimension_count");
    if (family_.rotates_part) {
      // Rounded up, so that the channels that it gives are not one fewer.
      const double part = static_cast<double>(rotated.value_or(head_dim_)) / static_cast<double>(head_dim_);
      json_.member("partial_rotary_factor", std::min(std::nextafter(part, 2.0), 1.0));
    } else if (rotated && *rotated != head_dim_) {
      metadata_.fail("{} is {}, but heads have {} columns, wanted rotation of whole heads", key("rope.dimension_count"),
                     *rotated, head_dim_);
    }
  }

  void write_rope() {
    if (!family_.has_latents && family_.rotates) write_rotated_part();
    json_.member("rope_theta", members_.number("rope.freq_base").value_or(10000.0f));
    for (const char* longrope : {"rope_factors_long.weight", "rope_factors_short.weight"}) {
      if (model_.find(longrope) == nullptr) continue;
      if (family_.has_longrope) return;  // write_members() writes them
      metadata_.fail("tensor '{}' has no meaning here for the architecture '{}'", longrope, family_.name);
    }
    const std::string type = members_.text("rope.scaling.type");
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
    const auto original = members_.optional_size("rope.scaling.original_context_length");
    if (original) json_.member("original_max_position_embeddings", *original);
    members_.write_number("rope.scaling.yarn_beta_fast", "beta_fast");
    members_.write_number("rope.scaling.yarn_beta_slow", "beta_slow");
    if (!family_.truncates_yarn) json_.member("truncate", false);
    if (family_.log_multiplier_scale != 0.0) write_yarn_multipliers();
    for (const char* name :
         {"rope.scaling.yarn_ext_factor", "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"}) {
      const auto given = members_.number(name);
      if (!given || *given == 1.0f) continue;
      if (family_.has_attention_factor && name == std::string_view("rope.scaling.yarn_attn_factor")) {
        json_.member("attention_factor", *given);
        continue;
      }
      metadata_.fail("{} is {}, wanted 1", key(name), *given);
    }
    json_.end_object();
  }

  /// Writes the factors of yarn that DeepSeek introduced: files have mscale_all_dim, which mscale equals.
  void write_yarn_multipliers() {
    const auto multiplier = members_.number("rope.scaling.yarn_log_multiplier");
    if (!multiplier || *multiplier == 0.0f) return;
    const double all_dim = std::round(double{*multiplier} * family_.log_multiplier_scale * 1e6) / 1e6;
    json_.member("mscale", all_dim).member("mscale_all_dim", all_dim);
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

  void refuse_windows() {
    const auto window = members_.optional_size("attention.sliding_window", 0);
    if (window.value_or(0) > 0 && *window < members_.size("context_length"))
      metadata_.fail("{} is {}, wanted none: files of the architecture '{}' do not say which layers slide",
                     key("attention.sliding_window"), *window, family_.name);
    json_.key("sliding_window").null();
  }

  void write_tokens() {
    const SpecialTokens tokens = special_tokens(metadata_);
    if (tokens.bos) json_.member("bos_token_id", *tokens.bos);
    if (tokens.ends.empty()) return;
    json_.key("eos_token_id").begin_array();
    for (const int64_t id : tokens.ends) json_.value(id);
    json_.end_array();
  }

  const Model& model_;
  const Family& family_;
  const Metadata& metadata_;
  std::string text_;
  JsonWriter json_{text_};
  ConfigMembers members_;
  int64_t head_dim_ = 0;
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
