#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "gguf/model.h"

namespace millrace::gguf {

class ConfigMembers;

/// What a tensor becomes in safetensors besides its name.
enum class TensorForm : uint8_t {
  kSame,
  kRow,    ///< a vector [n], or a matrix [1, n], is a matrix [1, n]
  kPlane,  ///< a matrix [rows, columns] is [rows, 1, columns]
  kVector  ///< all values are one vector, which no number is added to
};

/// Which rows or columns of a tensor belong to value heads of a delta net. Some families store the first value head of
/// each key head, then the second of each, and so on.
enum class ValueHeads : uint8_t {
  kNone,
  kRows,           ///< rows of a head's channels
  kRowsAfterKeys,  ///< the same, after the rows of queries and keys
  kElements,       ///< a row or an element a head
  kColumns,
};

/// How safetensors name a tensor of a layer.
struct TensorRule {
  std::string_view stored;  ///< between "blk.7." and ".weight", or with an ending that only this tensor has
  std::string_view name;    ///< between "model.layers.7." and ".weight"
  TensorForm form = TensorForm::kSame;
  bool has_ending = true;  ///< the name keeps ".weight" or ".bias"
  ValueHeads value_heads = ValueHeads::kNone;
};

/// What a family's files have of their own.
struct Family {
  std::string_view name;          ///< general.architecture
  std::string_view architecture;  ///< in config.json
  /// Says whether a model is of this family; null: all of that name are. The first one that fits counts.
  bool (*applies)(const Model& model) = nullptr;
  /// Writes the members of config.json that most families lack; null: there are none.
  void (*write_members)(ConfigMembers& members) = nullptr;
  std::span<const TensorRule> tensors = {};  ///< these go before the ones that most families share
  std::string_view embedding = "model.embed_tokens.weight";
  std::string_view final_norm = "model.norm.weight";
  std::string_view layers = "model.layers.";
  std::string_view epsilon_key = "attention.layer_norm_rms_epsilon";
  std::string_view epsilon_member = "rms_norm_eps";
  bool pairs_rows = false;              ///< rows of q and k are stored as pairs that rotate together
  bool stores_norms_plus_1 = false;     ///< norms that multiply by 1 + w are stored as that
  bool rotates = true;                  ///< attention rotates q and k
  bool rotates_part = false;            ///< config.json says which part of a head is rotated
  bool has_windows = false;             ///< write_members() writes which layers slide
  bool has_longrope = false;            ///< write_members() writes the two lists of factors of frequencies
  bool truncates_yarn = true;           ///< yarn's limits are rounded to whole channels
  bool has_attention_factor = false;    ///< yarn's factor of cos and sin is stored
  bool has_recurrent_layers = false;    ///< layers without heads of keys are recurrent
  bool has_latents = false;             ///< heads are those of latent attention, which write_members() writes
  bool has_own_heads = false;           ///< write_members() writes heads and their rotation
  bool tiles_value_heads = false;       ///< see ValueHeads
  bool stores_products = false;         ///< weights are products with the factors that config.json has
  double log_multiplier_scale = 0.0;    ///< gives yarn's mscale_all_dim from yarn_log_multiplier; 0: it has none
  bool is_moe = false;                  ///< experts replace feed-forward blocks
  bool has_expert_width_alone = false;  ///< intermediate_size is the width of an expert
  std::string_view router = "mlp.gate";
  std::string_view experts = "mlp.experts";
  std::array<std::string_view, 3> expert_parts = {"gate_proj", "up_proj", "down_proj"};
  std::string_view shared_expert = "mlp.shared_experts";
};

/// Returns the family of a model. Throws ErrorException (kData) for one that is not known, with those that are.
[[nodiscard]] const Family& family_of(const Model& model);

/// Returns the names that family_of() knows, each once.
[[nodiscard]] std::span<const std::string_view> architecture_names();

}  // namespace millrace::gguf
