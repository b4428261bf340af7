#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "model/config.h"
#include "model/field_reader.h"
#include "model/rope_config.h"

/// What the families have in common: the members of config.json that most of them spell alike.
namespace millrace::model {

// Bounds far above any model, and far below numbers whose product overflows.
inline constexpr int32_t kMaxVocab = 1 << 22;
inline constexpr int32_t kMaxWidth = 1 << 18;
inline constexpr int32_t kMaxIntermediate = 1 << 20;
inline constexpr int32_t kMaxLayerCount = 1024;
inline constexpr int32_t kMaxHeadCount = 4096;
inline constexpr int32_t kMaxHeadDim = 256;  ///< limit of the attention kernels
inline constexpr int32_t kMaxPosition = 1 << 28;
inline constexpr int32_t kMaxExpertCount = 1024;
inline constexpr int32_t kMaxShared = 64;  ///< shared experts

/// A family's defaults. A member without one must be in config.json.
struct BlockDefaults {
  std::optional<int32_t> vocab_size = {};
  std::optional<int32_t> head_count = {};
  std::optional<int32_t> kv_head_count = {};  ///< none: head_count
  std::optional<int32_t> head_dim = {};       ///< none: hidden_size / head_count
  std::optional<int32_t> max_position = {};
  std::optional<int32_t> intermediate_size = {};
  std::optional<int32_t> layer_count = {};
  std::string_view max_position_key = "max_position_embeddings";
  std::string_view epsilon_key = "rms_norm_eps";
  double epsilon = 1e-6;
  bool tied_embeddings = false;
  bool allows_mlp_bias = false;  ///< mlp_bias true gives gate, up and down biases; else it is refused
};

/// Reads the dimensions into `config` and gives it num_hidden_layers copies of Llama's layer, which is also returned:
/// RMS norms before both blocks, attention over all positions without rotation, a gated feed-forward block of
/// intermediate_size with SiLU. Models whose attention looks ahead are refused.
LayerConfig read_block(FieldReader& fields, ModelConfig& config, const BlockDefaults& defaults = {});

/// Reads the activation under one of `keys`, the first that is there; `wanted` when absent. Another name is a fault.
void require_activation(FieldReader& fields, std::string_view wanted,
                        std::initializer_list<std::string_view> keys = {"hidden_act"});

/// Refuses another text under `key` than `wanted`, which is also what its absence means.
void require_text(FieldReader& fields, std::string_view key, std::string_view wanted);

/// Reads a number that multiplies something; 1 when absent.
[[nodiscard]] float read_multiplier(FieldReader& fields, std::string_view key);

/// Reads the rotary part of a model whose layers all have the same, and adds it to `config`. It fills in
/// max_position and head_dim of `reading`. Returns its index.
int32_t add_rope(FieldReader& fields, ModelConfig& config, const LayerConfig& layer, RopeReading reading = {});

/// Returns for each layer whether its attention has a sliding window: by layer_types, or else by `slides`.
[[nodiscard]] std::vector<bool> read_layer_types(FieldReader& fields, const ModelConfig& config,
                                                 const std::function<bool(int32_t layer)>& slides);

/// Gives every layer a copy of `layer`, and those that slide the window. A layer that slides without a window is a
/// fault.
void set_layers(FieldReader& fields, ModelConfig& config, const LayerConfig& layer, int32_t window,
                const std::vector<bool>& slides);

/// Returns for each layer whether it has a recurrent mixer: by layer_types, where one of `names` means a mixer and
/// full_attention or attention means none, or else by `is_recurrent`.
[[nodiscard]] std::vector<bool> read_recurrent_layers(FieldReader& fields, const ModelConfig& config,
                                                      std::initializer_list<std::string_view> names,
                                                      const std::function<bool(int32_t layer)>& is_recurrent);

/// Gives every layer a copy of `layer`, and the recurrent ones the mixer.
void set_recurrent_layers(ModelConfig& config, const LayerConfig& layer, const RecurrentConfig& mixer,
                          const std::vector<bool>& recurrent);

/// Reads the tokens that a mixer's convolution sees.
[[nodiscard]] int32_t read_conv_width(FieldReader& fields, std::string_view key, int32_t fallback);

/// Reads the experts of each token, at most `moe.expert_count`, whose name in config.json is `count_key`.
void read_experts_per_token(FieldReader& fields, std::string_view count_key, MoeConfig& moe,
                            std::string_view key = "num_experts_per_tok");

/// Reads num_local_experts experts as wide as the block's feed-forward part, `count` of them where it is absent. A
/// token's weights add up to 1.
[[nodiscard]] MoeConfig read_local_experts(FieldReader& fields, const LayerConfig& layer,
                                           std::optional<int32_t> count = {});

/// Reads how many shared experts there are, each as wide as one of the others: at most kMaxShared.
void read_shared_experts(FieldReader& fields, std::string_view key, int32_t fallback, MoeConfig& moe);

/// The names of the members that read_grouped_experts reads, where families differ in them.
struct GroupedExpertKeys {
  std::string_view count = "n_routed_experts";
  std::string_view shared = "n_shared_experts";
  std::string_view per_token = "num_experts_per_tok";
  std::string_view renormalize = "norm_topk_prob";
  std::string_view groups = "n_group";
};

/// Reads experts that are chosen by DeepSeek-V3's router, and the shared expert. Scores are sigmoids; a group counts as
/// the sum of its two largest scores with their correction biases.
[[nodiscard]] MoeConfig read_grouped_experts(FieldReader& fields, const GroupedExpertKeys& keys = {});

/// Gives every layer a copy of `layer`, with experts from the layer `dense_count` on.
void set_dense_then_sparse(ModelConfig& config, const LayerConfig& layer, const MoeConfig& moe, int32_t dense_count);

/// Gives experts to the layers that mlp_layer_types calls sparse, and without it to those from `dense_count` on.
void set_experts_by_layer_types(FieldReader& fields, ModelConfig& config, const MoeConfig& moe, int32_t dense_count);

/// Refuses members that change the arithmetic and that the family has not read. One that is absent, null, false, 0, 1
/// or empty changes nothing, and neither does one that repeats what `config` has.
void refuse_unread_arithmetic(FieldReader& fields, const ModelConfig& config);

}  // namespace millrace::model
