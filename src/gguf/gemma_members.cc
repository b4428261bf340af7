
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "gguf/family_members.h"
#include "gguf/member_writers.h"

namespace millrace::gguf {
namespace {

/// Writes what divides the scores of Gemma: the channels of a head, or of hidden_size per head in models of 27B, which
/// have a number of layers that no other has.
void write_gemma_scale(ConfigMembers& members, int64_t layers_of_27b) {
  const int64_t heads = members.layer_size("attention.head_count");
  const int64_t hidden = members.size("embedding_length");
  const int64_t head_dim = members.optional_size("attention.key_length").value_or(hidden / heads);
  members.json().member("hidden_activation", "gelu_pytorch_tanh");
  members.json().member("query_pre_attn_scalar", members.layer_count() == layers_of_27b ? hidden / heads : head_dim);
}

/// Writes the heads of layers that see all tokens, which differ from those that slide.
void write_full_heads(ConfigMembers& members, const std::vector<bool>& slides) {
  JsonWriter& json = members.json();
  constexpr std::string_view kHeadsKey = "attention.head_count_kv";
  const auto counts = members.integers(kHeadsKey);
  if (counts && counts->size() != slides.size())
    members.metadata().fail("{} has {} items, wanted one for each of {} layers", members.key(kHeadsKey), counts->size(),
                            slides.size());
  const auto count_of = [&](size_t layer) { return counts ? (*counts)[layer] : members.size(kHeadsKey); };
  const int64_t full_dim = members.size("attention.key_length");
  const int64_t sliding_dim = members.size("attention.key_length_swa");
  for (const auto& [name, dim] : {std::pair("rope.dimension_count", full_dim),
                                  {"attention.value_length", full_dim},
                                  {"rope.dimension_count_swa", sliding_dim},
                                  {"attention.value_length_swa", sliding_dim}}) {
    const int64_t found = members.optional_size(name).value_or(dim);
    if (found != dim)
      members.metadata().fail("{} is {}, wanted the {} channels of a head", members.key(name), found, dim);
  }
  bool has_values = true;
  std::optional<int64_t> sliding_count;
  for (size_t layer = 0; layer < slides.size(); ++layer) {
    if (slides[layer] && sliding_count.value_or(count_of(layer)) != count_of(layer))
      members.metadata().fail("{} differs among layers that slide, wanted one number", members.key(kHeadsKey));
    if (slides[layer]) sliding_count = count_of(layer);
    // A layer with the keys of another one has neither.
    const auto has = [&](std::string_view part) { return members.has_in_layer(static_cast<int64_t>(layer), part); };
    if (!slides[layer] && has("attn_k.weight") && !has("attn_v.weight")) has_values = false;
  }
  json.member("head_dim", sliding_dim).member("global_head_dim", full_dim);
  json.member("num_key_value_heads", sliding_count.value_or(count_of(0))).member("attention_k_eq_v", !has_values);
  json.key("per_layer_config").begin_object();
  for (size_t layer = 0; layer < slides.size(); ++layer) {
    if (slides[layer]) continue;
    json.key(std::to_string(layer)).begin_object().member("head_dim", full_dim);
    json.member("num_key_value_heads", count_of(layer)).end_object();
  }
  json.end_object();
}

/// Writes both rotations. Layers that see all tokens rotate the pairs whose frequency is divided by 1; a huge divisor
/// stands for no rotation.
void write_gemma4_rotations(ConfigMembers& members) {
  constexpr std::string_view kDivisors = "rope_freqs.weight";
  const std::vector<float> divisors = read_vector(members.model(), kDivisors);
  const int64_t pairs = members.size("attention.key_length") / 2;
  const auto rotated = std::ranges::find_if(divisors, [](float divisor) { return divisor != 1.0f; });
  const bool are_huge = std::all_of(rotated, divisors.end(), [](float divisor) { return divisor >= 1e20f; });
  if (divisors.empty() || std::ssize(divisors) != pairs || !are_huge)
    members.metadata().fail("tensor '{}' has {} numbers, wanted {}: ones and then numbers from 1e20 on", kDivisors,
                            divisors.size(), pairs);
  const std::string scaling = members.text("rope.scaling.type");
  if (!scaling.empty() && scaling != "none")
    members.metadata().fail("{} is '{}', wanted none", members.key("rope.scaling.type"), scaling);
  const auto part = static_cast<double>(rotated - divisors.begin()) / static_cast<double>(divisors.size());
  JsonWriter& json = members.json();
  json.key("rope_parameters").begin_object();
  json.key("full_attention").begin_object().member("rope_type", "proportional").member("partial_rotary_factor", part);
  json.member("rope_theta", members.number("rope.freq_base").value_or(1e6f)).end_object();
  json.key("sliding_attention").begin_object().member("rope_type", "default");
  json.member("rope_theta", members.number("rope.freq_base_swa").value_or(1e4f)).end_object().end_object();
}

/// Returns which layers slide, by the list of flags that every file has.
std::vector<bool> gemma4_slides(ConfigMembers& members) {
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  const auto flags = members.integers(kPattern);
  if (!flags || static_cast<int64_t>(flags->size()) != members.layer_count())
    members.metadata().fail("{} is no list of {} flags, wanted one for each layer", members.key(kPattern),
                            members.layer_count());
  std::vector<bool> slides;
  for (const int64_t flag : *flags) slides.push_back(flag != 0);
  return slides;
}

/// Returns whether layers with the keys of other layers have feed-forward blocks of twice the width.
bool gemma4_is_doubled(ConfigMembers& members, int64_t sharing) {
  constexpr std::string_view kWidths = "feed_forward_length";
  const auto widths = members.integers(kWidths);
  if (!widths || widths->empty()) return false;
  if (std::ssize(*widths) != members.layer_count() || widths->front() < 1 ||
      widths->front() > std::numeric_limits<int32_t>::max())
    members.metadata().fail("{} has {} items from {}, wanted a width for each of {} layers", members.key(kWidths),
                            widths->size(), widths->front(), members.layer_count());
  const bool is_doubled = widths->back() != widths->front();
  const int64_t first = members.layer_count() - sharing;
  for (int64_t layer = 0; layer < std::ssize(*widths); ++layer) {
    const int64_t wanted = widths->front() * (is_doubled && layer >= first ? 2 : 1);
    const int64_t found = (*widths)[static_cast<size_t>(layer)];
    if (found != wanted)
      members.metadata().fail("{} is {} for layer {}, wanted {}", members.key(kWidths), found, layer, wanted);
  }
  return is_doubled;
}

}  // namespace

void write_gemma2(ConfigMembers& members) {
  constexpr int64_t kLayersOf27B = 46;
  write_gemma_scale(members, kLayersOf27B);
  members.json().member("attn_logit_softcapping", members.number("attn_logit_softcapping").value_or(50.0f));
  members.json().member("final_logit_softcapping", members.number("final_logit_softcapping").value_or(30.0f));
  constexpr int64_t kUsualWindow = 4096;
  write_pattern(members, 2, kUsualWindow);
}

void write_gemma3(ConfigMembers& members) {
  constexpr int64_t kLayersOf27B = 62;
  constexpr int64_t kUsualPattern = 6;
  write_gemma_scale(members, kLayersOf27B);
  members.write_number("final_logit_softcapping", "final_logit_softcapping");
  members.json().member("rope_local_base_freq", members.number("rope.freq_base_swa").value_or(1e4f));
  write_pattern(members, kUsualPattern);
}

void write_gemma4(ConfigMembers& members) {
  JsonWriter& json = members.json();
  constexpr int64_t kUsualPattern = 6;
  json.member("hidden_activation", "gelu_pytorch_tanh");
  write_full_heads(members, gemma4_slides(members));
  write_gemma4_rotations(members);
  write_pattern(members, kUsualPattern);
  members.write_number("final_logit_softcapping", "final_logit_softcapping");
  json.member("hidden_size_per_layer_input", members.optional_size("embedding_length_per_layer_input", 0).value_or(0));
  if (const Tensor* table = members.model().find("per_layer_token_embd.weight"); table != nullptr)
    json.member("vocab_size_per_layer_input", table->shape.empty() ? 0 : table->shape[0]);
  const int64_t sharing = members.optional_size("attention.shared_kv_layers", 0).value_or(0);
  json.member("num_kv_shared_layers", sharing).member("use_double_wide_mlp", gemma4_is_doubled(members, sharing));
  const bool has_router = members.has_in_layers("ffn_gate_inp.weight");
  json.member("enable_moe_block", has_router);
  if (!has_router) return;
  write_counts(members, "num_experts", "top_k_experts");
  write_expert_width(members);
}

}  // namespace millrace::gguf
