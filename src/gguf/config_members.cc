#include "gguf/config_members.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace millrace::gguf {
namespace {

/// Keys that change the arithmetic of the families that have them.
constexpr std::array<std::string_view, 32> kOtherArithmetic = {"attention.clamp_kqv",
                                                               "attention.max_alibi_bias",
                                                               "attention.output_scale",
                                                               "attention.scale",
                                                               "attention.shared_kv_layers",
                                                               "attention.sliding_window_pattern",
                                                               "attention.temperature_length",
                                                               "attention.temperature_scale",
                                                               "attn_logit_softcapping",
                                                               "embedding_length_per_layer_input",
                                                               "embedding_scale",
                                                               "expert_group_count",
                                                               "expert_group_scale",
                                                               "expert_group_used_count",
                                                               "expert_shared_count",
                                                               "expert_shared_feed_forward_length",
                                                               "expert_weights_scale",
                                                               "final_logit_softcapping",
                                                               "full_attention_interval",
                                                               "interleave_moe_layer_step",
                                                               "leading_dense_block_count",
                                                               "logit_scale",
                                                               "moe_latent_size",
                                                               "residual_scale",
                                                               "rope.dimension_sections",
                                                               "rope.freq_base_swa",
                                                               "rope.scaling.alpha",
                                                               "rope.scaling.yarn_log_multiplier",
                                                               "router_logit_softcapping",
                                                               "swiglu_clamp_exp",
                                                               "swiglu_clamp_shexp",
                                                               "use_parallel_residual"};

/// Returns whether a key concerns experts alone. Files of Granite 4 without experts have some.
bool is_of_experts(std::string_view name) {
  return name.starts_with("expert_") || name == "interleave_moe_layer_step" || name == "leading_dense_block_count" ||
         name == "moe_latent_size";
}

bool changes_nothing(const Value& value) {
  if (const auto number = value.number()) return *number == 0.0 || *number == 1.0;
  return value.flag() == false || value.text() == "";
}

}  // namespace

std::string ConfigMembers::read(std::string_view name) {
  read_.emplace(name);
  return key(name);
}

int64_t ConfigMembers::size(std::string_view name) {
  return metadata_.required_integer(read(name), 1, kMaxSize);
}

std::optional<int64_t> ConfigMembers::optional_size(std::string_view name, int64_t min) {
  return metadata_.integer(read(name), min, kMaxSize);
}

int64_t ConfigMembers::layer_size(std::string_view name) {
  const auto sizes = integers(name);
  if (!sizes) return size(name);
  const bool is_equal =
      !sizes->empty() && std::ranges::adjacent_find(*sizes, std::ranges::not_equal_to()) == sizes->end();
  if (!is_equal || sizes->front() < 1 || sizes->front() > kMaxSize)
    metadata_.fail("{} differs from layer to layer ({}), wanted one size", key(name), fmt::join(*sizes, ", "));
  return sizes->front();
}

std::optional<float> ConfigMembers::number(std::string_view name) {
  const auto found = metadata_.number(read(name));
  if (!found) return std::nullopt;
  return static_cast<float>(*found);
}

std::optional<bool> ConfigMembers::flag(std::string_view name) {
  return metadata_.flag(read(name));
}

std::optional<std::vector<int64_t>> ConfigMembers::integers(std::string_view name) {
  const Value* value = metadata_.find(read(name));
  return value == nullptr ? std::nullopt : value->integers();
}

std::string ConfigMembers::text(std::string_view name) {
  return std::string(metadata_.text(read(name)).value_or(""));
}

void ConfigMembers::write_number(std::string_view name, std::string_view member) {
  const auto found = number(name);
  if (found && *found != 0.0f) json_.member(member, *found);
}

bool ConfigMembers::has_in_layer(int64_t layer, std::string_view tensor) const {
  return model_.find(fmt::format("blk.{}.{}", layer, tensor)) != nullptr;
}

bool ConfigMembers::has_in_layers(std::string_view tensor) const {
  const int64_t count = std::min(metadata_.required_integer(key("block_count"), 1, kMaxSize), kMaxLayers);
  for (int64_t layer = 0; layer < count; ++layer) {
    if (has_in_layer(layer, tensor)) return true;
  }
  return false;
}

int64_t ConfigMembers::layer_count() {
  return layer_count_of(model_, std::string_view(prefix_).substr(0, prefix_.size() - 1));
}

void ConfigMembers::refuse_unread() const {
  const bool has_experts = metadata_.integer(key("expert_count"), 0, kMaxSize).value_or(0) > 0;
  for (const std::string_view name : kOtherArithmetic) {
    const Value* value = metadata_.find(key(name));
    if (value == nullptr || read_.contains(name) || changes_nothing(*value)) continue;
    if (!has_experts && is_of_experts(name)) continue;
    const bool is_usual_base =
        name == "rope.freq_base_swa" && value->number() == metadata_.number(key("rope.freq_base"));
    if (is_usual_base) continue;
    metadata_.fail("{} ({}) is not computed here, wanted a model without it", key(name),
                   value->number() ? fmt::format("{}", *value->number()) : value->type_name());
  }
  if (metadata_.flag(key("attention.causal")) == false)
    metadata_.fail("{} false is not computed here, wanted a model with causal attention", key("attention.causal"));
}

int64_t layer_count_of(const Model& model, std::string_view family) {
  const std::string prefix = std::string(family) + '.';
  const int64_t blocks = model.metadata().required_integer(prefix + "block_count", 1, kMaxSize);
  const int64_t predicting = model.metadata().integer(prefix + "nextn_predict_layers", 0, kMaxSize).value_or(0);
  if (predicting >= blocks)
    model.metadata().fail("{}nextn_predict_layers is {}, wanted fewer than the {} layers of {}block_count", prefix,
                          predicting, blocks, prefix);
  return blocks - predicting;
}

}  // namespace millrace::gguf
