#include <algorithm>
#include <array>

#include "model/families/block.h"
#include "model/families/families.h"
#include "model/families/mamba.h"

namespace millrace::model {
namespace {

/// What a layer consists of.
enum class Part : uint8_t { kMamba, kAttention, kFeedForward, kExperts };

struct PartName {
  Part part;
  char letter;                              ///< in hybrid_override_pattern
  std::array<std::string_view, 2> spelled;  ///< in layers_block_type
};
constexpr std::array kPartNames = {
    PartName{.part = Part::kMamba, .letter = 'M', .spelled = {"mamba", "linear_attention"}},
    PartName{.part = Part::kAttention, .letter = '*', .spelled = {"attention", "full_attention"}},
    PartName{.part = Part::kFeedForward, .letter = '-', .spelled = {"mlp", "mlp"}},
    PartName{.part = Part::kExperts, .letter = 'E', .spelled = {"moe", "moe"}},
};

/// Returns the part of each layer: by layers_block_type, or else by hybrid_override_pattern.
std::vector<Part> read_parts(FieldReader& fields) {
  std::vector<Part> parts;
  const auto add = [&](const auto& is_it, std::string_view key, std::string_view spelled) {
    const auto found = std::ranges::find_if(kPartNames, is_it);
    if (found == kPartNames.end())
      fields.fail_with("{} names '{}' for layer {}, wanted Mamba-2, attention, an MLP or experts", key, spelled,
                       parts.size());
    parts.push_back(found == kPartNames.end() ? Part::kMamba : found->part);
  };
  constexpr const char* kList = "layers_block_type";
  constexpr const char* kPattern = "hybrid_override_pattern";
  for (const std::string& type : fields.strings(kList))
    add([&](const PartName& name) { return std::ranges::find(name.spelled, type) != name.spelled.end(); }, kList, type);
  if (!parts.empty()) return parts;
  for (const char letter : fields.text(kPattern))
    add([&](const PartName& name) { return name.letter == letter; }, kPattern, {&letter, 1});
  return parts;
}

MambaConfig read_nemotron_mamba(FieldReader& fields) {
  require_activation(fields, "silu", {"mamba_hidden_act"});
  MambaConfig mamba;
  mamba.head_count = fields.integer_or("mamba_num_heads", 128, 1, kMaxHeadCount);
  mamba.head_dim = fields.integer_or("mamba_head_dim", 64, 1, kMaxHeadDim);
  const int32_t groups = fields.integer_or("mamba_num_groups", 8, 1, kMaxHeadCount);
  mamba.group_count = fields.integer_or("n_groups", groups, 1, kMaxHeadCount);
  const int32_t state_dim = fields.integer_or("mamba_state_dim", 128, 1, kMaxMambaState);
  mamba.state_dim = fields.integer_or("ssm_state_size", state_dim, 1, kMaxMambaState);
  mamba.conv_width = read_conv_width(fields, "conv_kernel", 4);
  mamba.conv_bias = fields.flag_or("use_conv_bias", true);
  mamba.input_bias = mamba.output_bias = fields.flag_or("use_bias", false);
  if (fields.flag_or("mamba_proj_bias", false) && !mamba.input_bias)
    fields.fail("mamba_proj_bias true without use_bias is not supported, wanted both or none");
  finish_mamba(fields, "mamba_num_heads", "n_groups", mamba);
  return mamba;
}

/// Reads DeepSeek-V3's router and experts without gates.
MoeConfig read_nemotron_experts(FieldReader& fields) {
  MoeConfig moe = read_grouped_experts(fields);
  moe.latent_size = fields.optional_integer("moe_latent_size", 1, kMaxWidth).value_or(0);
  if (moe.shared) moe.shared->width = fields.integer("moe_shared_expert_intermediate_size", 1, kMaxIntermediate);
  return moe;
}

/// Marks the numbers of experts as read in a model without experts, where they have no effect.
void ignore_experts(FieldReader& fields) {
  for (const char* key : {"n_routed_experts", "n_shared_experts", "moe_intermediate_size"}) (void)fields.has(key);
}

TensorNames nemotron_names() {
  return {.embedding = "backbone.embeddings.weight",
          .final_norm = "backbone.norm_f.weight",
          .layers = "backbone.layers.",
          .attention_norm = "norm",
          .query = "mixer.q_proj",
          .key = "mixer.k_proj",
          .value = "mixer.v_proj",
          .mixer_input = "mixer.in_proj",
          .mixer_conv = "mixer.conv1d",
          .mixer_decay = "mixer.A_log",
          .mixer_step_bias = "mixer.dt_bias",
          .mixer_skip = "mixer.D",
          .mixer_norm = "mixer.norm",
          .mixer_output = "mixer.out_proj",
          .output = "mixer.o_proj",
          .feed_forward_norm = "norm",
          .up = "mixer.up_proj",
          .down = "mixer.down_proj",
          .router = "mixer.gate",
          .choice_bias = "mixer.gate.e_score_correction_bias",
          .experts_input = "mixer.fc1_latent_proj",
          .experts_output = "mixer.fc2_latent_proj",
          .experts = "mixer.experts.",
          .shared_up = "mixer.shared_experts.up_proj",
          .shared_down = "mixer.shared_experts.down_proj"};
}

}  // namespace

/// Layers of one part each: Mamba-2, attention without rotation, a feed-forward block Wdown · max(Wup·x, 0)², or such
/// experts with DeepSeek-V3's router.
void describe_nemotron_h(FieldReader& fields, ModelConfig& config) {
  const std::vector<Part> parts = read_parts(fields);
  const auto layer_count = static_cast<int32_t>(std::min(parts.size(), size_t{kMaxLayerCount}));
  LayerConfig layer =
      read_block(fields, config,
                 {.vocab_size = 131072,
                  .head_count = 32,
                  .kv_head_count = 8,
                  .head_dim = fields.optional_integer("attention_head_dim", 2, kMaxHeadDim).value_or(128),
                  .max_position = 4096,
                  .intermediate_size = 21504,
                  .layer_count = layer_count,
                  .epsilon_key = "layer_norm_epsilon",
                  .epsilon = 1e-5});
  if (parts.empty()) fields.fail("hybrid_override_pattern names no layer, wanted a letter for each");
  if (config.layer_count() != std::ssize(parts))
    fields.fail_with("num_hidden_layers is {}, but the layers' types are {}", config.layer_count(), parts.size());
  require_activation(fields, "relu2", {"mlp_hidden_act"});
  if (fields.has("sliding_window")) fields.fail("sliding_window is not supported, wanted attention to all tokens");
  layer.attention.qkv_bias = layer.attention.output_bias = fields.flag_or("attention_bias", false);
  layer.feed_forward.gated = false;
  layer.feed_forward.activation = MlpActivation::kReluSquared;
  const MambaConfig mamba = read_nemotron_mamba(fields);
  const bool has_experts = std::ranges::find(parts, Part::kExperts) != parts.end();
  if (!has_experts) ignore_experts(fields);
  const std::optional<MoeConfig> moe = has_experts ? std::optional(read_nemotron_experts(fields)) : std::nullopt;
  for (size_t index = 0; index < config.layers.size() && index < parts.size(); ++index) {
    LayerConfig& own = config.layers[index] = layer;
    const bool mixes = parts[index] == Part::kMamba || parts[index] == Part::kAttention;
    own.attends = parts[index] == Part::kAttention;
    if (parts[index] == Part::kMamba) own.recurrent = mamba;
    if (parts[index] == Part::kExperts) own.feed_forward.moe = moe;
    if (mixes) own.feed_forward.width = 0;
    own.norms.before_attention = mixes;
    own.norms.before_feed_forward = !mixes;
  }
  config.names = nemotron_names();
}

}  // namespace millrace::model
