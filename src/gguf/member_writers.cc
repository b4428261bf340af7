#include "gguf/member_writers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

namespace millrace::gguf {

void require_gating(ConfigMembers& members, int64_t wanted) {
  const auto gating = members.metadata().integer(members.key("expert_gating_func"), 0, 255);
  if (gating.value_or(0) != 0 && *gating != wanted)
    members.metadata().fail("{} is {}, wanted {} ({})", members.key("expert_gating_func"), *gating, wanted,
                            wanted == kSoftmax ? "softmax" : "sigmoid");
}

void write_counts(ConfigMembers& members, std::string_view count_member, std::string_view used_member) {
  members.json().member(count_member, members.size("expert_count"));
  members.json().member(used_member, members.size("expert_used_count"));
}

void write_expert_width(ConfigMembers& members) {
  members.json().member("moe_intermediate_size", members.size("expert_feed_forward_length"));
}

bool has_choice_bias(const Model& model) {
  return std::ranges::any_of(model.tensors(), [](const Tensor& tensor) {
    return tensor.name.ends_with(".exp_probs_b.bias") || tensor.name.ends_with(".exp_probs_b");
  });
}

void write_dense_layers(ConfigMembers& members) {
  JsonWriter& json = members.json();
  json.key("mlp_only_layers").begin_array();
  const int64_t count = std::min(members.layer_count(), kMaxLayers);
  for (int64_t layer = 0; layer < count; ++layer) {
    if (!members.has_in_layer(layer, "ffn_gate_inp.weight")) json.value(layer);
  }
  json.end_array();
}

void write_grouped_experts(ConfigMembers& members, std::string_view count_member, std::string_view shared_member) {
  JsonWriter& json = members.json();
  write_counts(members, count_member);
  write_expert_width(members);
  json.member(shared_member, members.optional_size("expert_shared_count", 0).value_or(0));
  json.member("first_k_dense_replace", members.optional_size("leading_dense_block_count", 0).value_or(0));
  members.write_number("expert_weights_scale", "routed_scaling_factor");
  json.member("norm_topk_prob", members.flag("expert_weights_norm").value_or(false));
  json.member("n_group", members.optional_size("expert_group_count", 0).value_or(1));
  json.member("topk_group", members.optional_size("expert_group_used_count", 0).value_or(1));
}

void write_pattern(ConfigMembers& members, int64_t usual, std::optional<int64_t> usual_window) {
  JsonWriter& json = members.json();
  constexpr std::string_view kWindow = "attention.sliding_window";
  json.member("sliding_window",
              usual_window ? members.optional_size(kWindow).value_or(*usual_window) : members.size(kWindow));
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  const auto flags = members.integers(kPattern);
  const int64_t period = flags ? usual : members.optional_size(kPattern).value_or(usual);
  const auto count = static_cast<size_t>(std::min(members.layer_count(), kMaxLayers));
  if (flags && flags->size() < count)
    members.metadata().fail("{} has {} items, wanted one for each of {} layers", members.key(kPattern), flags->size(),
                            count);
  json.key("layer_types").begin_array();
  for (size_t layer = 0; layer < count; ++layer) {
    const bool slides = flags ? (*flags)[layer] != 0 : (static_cast<int64_t>(layer) + 1) % period != 0;
    json.value(slides ? "sliding_attention" : "full_attention");
  }
  json.end_array();
}

void write_layer_types(ConfigMembers& members, std::string_view tensor, std::string_view type, std::string_view other) {
  JsonWriter& json = members.json();
  json.key("layer_types").begin_array();
  const int64_t count = std::min(members.layer_count(), kMaxLayers);
  for (int64_t layer = 0; layer < count; ++layer) json.value(members.has_in_layer(layer, tensor) ? type : other);
  json.end_array();
}

std::vector<float> read_vector(const Model& model, std::string_view name) {
  const Tensor* tensor = model.find(name);
  if (tensor == nullptr) return {};
  if (tensor->type.name != "F32" || tensor->shape.size() != 1)
    model.metadata().fail("tensor '{}' is {} [{}], wanted an F32 vector", name, tensor->type.name,
                          fmt::join(tensor->shape, ", "));
  std::vector<float> values(tensor->bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor->bytes.data(), values.size() * sizeof(float));
  return values;
}

void write_list(JsonWriter& json, std::string_view member, const std::vector<float>& values) {
  json.key(member).begin_array();
  for (const float value : values) json.value(value);
  json.end_array();
}

}  // namespace millrace::gguf
