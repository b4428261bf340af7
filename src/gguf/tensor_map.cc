#include "gguf/tensor_map.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>

#include "gguf/config_members.h"
#include "gguf/families.h"

namespace millrace::gguf {
namespace {

constexpr std::string_view kEmbedding = "token_embd.weight";
constexpr std::string_view kHead = "output.weight";
/// The second name is that of models whose final norm has the name of an embedding's.
constexpr std::array<std::string_view, 2> kFinalNorms = {"output_norm.weight", "token_embd_norm.weight"};
/// A tensor outside of layers, and its name in safetensors.
struct OuterName {
  std::string_view stored;
  std::string_view name;
};
/// What makes the own inputs of layers.
constexpr std::array<OuterName, 3> kLayerInputs = {
    OuterName{"per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"},
    OuterName{"per_layer_model_proj.weight", "model.per_layer_model_projection.weight"},
    OuterName{"per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"}};
/// Tensors that config_json() takes into account, or that follow from config.json.
constexpr std::array<std::string_view, 2> kRotary = {"rope_freqs.weight", "rope.freqs"};
constexpr std::array<std::string_view, 2> kLongRotary = {"rope_factors_long.weight", "rope_factors_short.weight"};
/// Beginnings of the names of parts for images and sounds, and of those that predict further tokens.
constexpr std::array<std::string_view, 4> kOtherParts = {"v.", "a.", "mm.", "mtp."};
constexpr std::array<TensorRule, 19> kInLayer = {TensorRule{"attn_norm", "input_layernorm"},
                                                 TensorRule{"attn_q", "self_attn.q_proj"},
                                                 TensorRule{"attn_k", "self_attn.k_proj"},
                                                 TensorRule{"attn_v", "self_attn.v_proj"},
                                                 TensorRule{"attn_output", "self_attn.o_proj"},
                                                 TensorRule{"attn_q_norm", "self_attn.q_norm"},
                                                 TensorRule{"attn_k_norm", "self_attn.k_norm"},
                                                 TensorRule{"ffn_norm", "post_attention_layernorm"},
                                                 TensorRule{"ffn_gate", "mlp.gate_proj"},
                                                 TensorRule{"ffn_up", "mlp.up_proj"},
                                                 TensorRule{"ffn_down", "mlp.down_proj"},
                                                 TensorRule{"attn_rot_embd", "self_attn.rotary_emb"},
                                                 TensorRule{"ssm_in", "mamba.in_proj"},
                                                 TensorRule{"ssm_out", "mamba.out_proj"},
                                                 TensorRule{"ssm_conv1d", "mamba.conv1d", TensorForm::kPlane},
                                                 TensorRule{"ssm_dt", "mamba.dt_bias", TensorForm::kVector, false},
                                                 TensorRule{"ssm_a", "mamba.A_log", TensorForm::kVector, false},
                                                 TensorRule{"ssm_d", "mamba.D", TensorForm::kVector, false},
                                                 TensorRule{"ssm_norm", "mamba.norm", TensorForm::kVector}};
constexpr std::array<std::string_view, 3> kExpertParts = {"ffn_gate", "ffn_up", "ffn_down"};
constexpr std::array<std::string_view, 3> kMlpNames = {"gate_proj", "up_proj", "down_proj"};
constexpr std::string_view kWeight = ".weight";
/// The ending of a tensor with a factor of a weight, as NVFP4 has it.
constexpr std::string_view kScale = ".scale";
constexpr std::string_view kInputScale = ".input_scale";

/// "blk.7.attn_q.weight" in its parts.
struct LayerName {
  int32_t layer = 0;
  std::string_view part;    ///< "attn_q"
  std::string_view ending;  ///< "weight"; empty: the name ends with the part
};

std::optional<LayerName> parse_layer_name(std::string_view name) {
  constexpr std::string_view kLayer = "blk.";
  if (!name.starts_with(kLayer)) return std::nullopt;
  name.remove_prefix(kLayer.size());
  LayerName parsed;
  const auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), parsed.layer);
  const auto digits = static_cast<size_t>(end - name.data());
  const bool is_number = failure == std::errc() && parsed.layer >= 0;
  if (!is_number || digits + 1 >= name.size() || name[digits] != '.') return std::nullopt;
  parsed.part = name.substr(digits + 1);
  const size_t dot = parsed.part.rfind('.');
  if (dot == name.npos) return parsed;
  parsed.ending = parsed.part.substr(dot + 1);
  parsed.part = parsed.part.substr(0, dot);
  return parsed;
}

class Mapper {
 public:
  explicit Mapper(const Model& model)
      : model_(model),
        family_(family_of(model)),
        metadata_(model.metadata()),
        prefix_(std::string(family_.name) + '.') {
    if (metadata_.has(prefix_ + "nextn_predict_layers")) layer_count_ = layer_count_of(model, family_.name);
  }

  TensorMap map() {
    for (const Tensor& tensor : model_.tensors()) {
      // add() finds a scale with its weight. Those of inputs are for arithmetic in 4 bits.
      if (is_scale(tensor) || tensor.name.ends_with(kInputScale)) continue;
      if (const auto in_layer = parse_layer_name(tensor.name)) {
        map_layer_tensor(tensor, *in_layer);
      } else {
        map_outer_tensor(tensor);
      }
    }
    return std::move(map_);
  }

 private:
  void map_outer_tensor(const Tensor& tensor) {
    const auto is_one_of = [&tensor](const auto& names) {
      return std::ranges::find(names, tensor.name) != names.end();
    };
    const auto begins_name = [&tensor](std::string_view begin) { return tensor.name.starts_with(begin); };
    if (std::ranges::any_of(kOtherParts, begins_name)) return;
    if (is_one_of(kRotary) || (family_.has_longrope && is_one_of(kLongRotary))) return;
    const bool has_embedding_norm = family_.has_recurrent_layers;
    if (tensor.name == kEmbedding) {
      add(std::string(family_.embedding), tensor, 0, rows_of(tensor));
    } else if (const auto own = std::ranges::find(kLayerInputs, tensor.name, &OuterName::stored);
               own != kLayerInputs.end() && family_.has_own_heads) {
      add(std::string(own->name), tensor, 0, rows_of(tensor));
    } else if (tensor.name == kHead) {
      add("lm_head.weight", tensor, 0, rows_of(tensor));
    } else if (tensor.name == kFinalNorms[0] || (has_embedding_norm && tensor.name == kFinalNorms[1])) {
      add_norm(std::string(family_.final_norm), tensor);
    } else {
      metadata_.fail("tensor '{}' has no meaning here for the architecture '{}'", tensor.name, family_.name);
    }
  }

  void map_layer_tensor(const Tensor& tensor, const LayerName& name) {
    if (name.layer >= layer_count_) return;
    if (const auto* rule = find_own_rule(name)) return map_by_rule(tensor, name, *rule);
    if (name.part == "attn_qkv") return map_fused_attention(tensor, name);
    const bool is_expansion = family_.has_latents && (name.part == "attn_k_b" || name.part == "attn_v_b");
    // Some files have the expansions of keys and values both joined and apart.
    if (is_expansion && model_.find(fmt::format("blk.{}.attn_kv_b.weight", name.layer)) != nullptr) return;
    if (is_expansion && name.part == "attn_k_b") return map_latent_expansion(tensor, name);
    if (is_expansion) return (void)partner(tensor, name, "attn_k_b");
    if (name.part == "ffn_gate_inp") return (void)add(in_layer(name, family_.router), tensor, 0, rows_of(tensor));
    if (name.part == "ffn_gate_up_exps") return map_stacked(tensor, name, std::array<size_t, 2>{0, 1});
    for (size_t part = 0; part < kExpertParts.size(); ++part) {
      if (!name.part.starts_with(kExpertParts[part])) continue;
      const std::string_view rest = name.part.substr(kExpertParts[part].size());
      if (rest == "_exps" && name.ending == "bias") return map_expert_biases(tensor, name, part);
      if (rest == "_exps") return map_stacked(tensor, name, std::array<size_t, 1>{part});
      if (rest == "_shexp")
        return (void)add(in_layer(name, fmt::format("{}.{}", family_.shared_expert, kMlpNames[part])), tensor, 0,
                         rows_of(tensor));
      if (const auto expert = expert_number(rest))
        return (void)add(expert_name(name, *expert, part), tensor, 0, rows_of(tensor));
    }
    if (const auto* rule = find_rule(kInLayer, name.part)) return map_by_rule(tensor, name, *rule);
    add(in_layer(name, name.part), tensor, 0, rows_of(tensor));
  }

  static const TensorRule* find_rule(std::span<const TensorRule> rules, std::string_view part) {
    const auto found = std::ranges::find(rules, part, &TensorRule::stored);
    return found == rules.end() ? nullptr : &*found;
  }

  /// Finds the family's rule for a tensor, with its ending or without.
  [[nodiscard]] const TensorRule* find_own_rule(const LayerName& name) const {
    const auto* exact = find_rule(family_.tensors, fmt::format("{}.{}", name.part, name.ending));
    return exact != nullptr ? exact : find_rule(family_.tensors, name.part);
  }

  void map_by_rule(const Tensor& tensor, const LayerName& name, const TensorRule& rule) {
    // Some norms are stored without an ending.
    const bool is_weight = name.ending == "weight" || name.ending.empty();
    std::string own = without_ending(name, rule.name);
    if (rule.has_ending) own += is_weight ? kWeight : '.' + std::string(name.ending);
    const bool is_vector = rule.form == TensorForm::kVector;
    if (!is_vector && name.part.ends_with("norm") && is_weight) return add_norm(std::move(own), tensor);
    const bool is_query = name.part == "attn_q";
    const bool is_paired = family_.pairs_rows && (is_query || name.part == "attn_k");
    MappedTensor& mapped =
        add(std::move(own), tensor, 0, rows_of(tensor),
            is_paired ? heads_of(is_query ? "attention.head_count" : "attention.head_count_kv", name) : 0);
    if (rule.value_heads != ValueHeads::kNone && tiles_value_heads()) order_value_heads(rule, mapped);
    if (is_vector) mapped.shape = {values_of(mapped.shape)};
    if (rule.form == TensorForm::kSame || is_vector || (rule.has_ending && name.ending == "bias")) return;
    const bool is_row = rule.form == TensorForm::kRow;
    if (is_row && mapped.shape.size() == 2 && mapped.shape[0] == 1) return;
    const size_t wanted = is_row ? 1 : 2;
    if (mapped.shape.size() != wanted)
      metadata_.fail("tensor '{}' has shape [{}], wanted {} dimensions", tensor.name, fmt::join(tensor.shape, ", "),
                     wanted);
    mapped.shape.insert(mapped.shape.begin() + (is_row ? 0 : 1), 1);
  }

  void add_norm(std::string name, const Tensor& tensor) {
    MappedTensor& mapped = add(std::move(name), tensor, 0, rows_of(tensor));
    if (family_.stores_norms_plus_1) mapped.addend = -1.0f;
  }

  /// Returns whether value heads are stored by their number within a key head: as the family's files do, unless a file
  /// says it otherwise.
  [[nodiscard]] bool tiles_value_heads() const {
    return metadata_.flag(prefix_ + "ssm.v_head_reordered").value_or(family_.tiles_value_heads);
  }

  /// Says how the rows or columns of value heads are stored.
  void order_value_heads(const TensorRule& rule, MappedTensor& mapped) const {
    const auto size = [this](std::string_view key) {
      return metadata_.required_integer(prefix_ + std::string(key), 1, kMaxSize);
    };
    const int64_t key_heads = size("ssm.group_count");
    const int64_t value_heads = size("ssm.time_step_rank");
    const int64_t inner = size("ssm.inner_size");
    if (value_heads % key_heads != 0 || inner % value_heads != 0)
      metadata_.fail("{}ssm.group_count {}, ssm.time_step_rank {} and ssm.inner_size {} do not divide each other",
                     prefix_, key_heads, value_heads, inner);
    if (value_heads == key_heads) return;
    weights::StoredOrder order{.outer = key_heads, .inner = value_heads / key_heads, .block = inner / value_heads};
    if (rule.value_heads == ValueHeads::kElements) order.block = 1;
    if (rule.value_heads == ValueHeads::kRowsAfterKeys) order.first = 2 * key_heads * size("ssm.state_size");
    const bool is_columns = rule.value_heads == ValueHeads::kColumns;
    const int64_t wanted = order.first + value_heads * order.block;
    const size_t side = is_columns ? 1 : 0;
    if (mapped.shape.size() <= side || mapped.shape[side] != wanted)
      metadata_.fail("tensor '{}' has shape [{}], wanted {} {} of heads", mapped.stored_name,
                     fmt::join(mapped.shape, ", "), wanted, is_columns ? "columns" : "rows");
    (is_columns ? mapped.column_order : mapped.row_order) = order;
  }

  /// Returns the heads of a layer. The heads of keys are those of queries where a file does not say them.
  [[nodiscard]] int64_t heads_of(std::string_view key, const LayerName& name) const {
    constexpr int64_t kMaxHeads = 1 << 16;
    const std::string whole = prefix_ + std::string(key);
    const Value* value = metadata_.find(whole);
    if (value == nullptr && key == "attention.head_count_kv") return heads_of("attention.head_count", name);
    const auto list = value == nullptr ? std::nullopt : value->integers();
    if (!list) return metadata_.required_integer(whole, 1, kMaxHeads);
    const auto layer = static_cast<size_t>(name.layer);
    if (layer >= list->size() || (*list)[layer] < 1 || (*list)[layer] > kMaxHeads)
      metadata_.fail("{} is [{}], wanted a number from 1 to {} for layer {}", whole, fmt::join(*list, ", "), kMaxHeads,
                     name.layer);
    return (*list)[layer];
  }

  /// Finds the tensor of the same layer that another one is joined with.
  const Tensor& partner(const Tensor& tensor, const LayerName& name, std::string_view part) const {
    const std::string other = fmt::format("blk.{}.{}.{}", name.layer, part, name.ending);
    const Tensor* found = model_.find(other);
    if (found == nullptr) metadata_.fail("tensor '{}' is there without '{}', wanted both", tensor.name, other);
    return *found;
  }

  /// Maps biases of all experts, [experts, rows]. Safetensors have those of gate and up in turn.
  void map_expert_biases(const Tensor& tensor, const LayerName& name, size_t part) {
    if (part == 1) return (void)partner(tensor, name, "ffn_gate_exps");
    if (part == 2)
      return (void)add(without_ending(name, fmt::format("{}.down_proj_bias", family_.experts)), tensor, 0,
                       rows_of(tensor));
    const Tensor& up = partner(tensor, name, "ffn_up_exps");
    if (tensor.shape.size() != 2 || up.shape != tensor.shape)
      metadata_.fail("tensors '{}' [{}] and '{}' [{}] differ, wanted [experts, rows]", tensor.name,
                     fmt::join(tensor.shape, ", "), up.name, fmt::join(up.shape, ", "));
    MappedTensor joined = whole(tensor);
    joined.shape = {tensor.shape[0], 2 * tensor.shape[1]};
    joined.join = TensorJoin::kColumnsInTurn;
    joined.parts = {whole(tensor), whole(up)};
    insert(without_ending(name, fmt::format("{}.gate_up_proj_bias", family_.experts)), std::move(joined));
  }

  /// Maps the expansions of keys [heads, latents, key] and of values [heads, value, latents].
  void map_latent_expansion(const Tensor& keys, const LayerName& name) {
    const Tensor& values = partner(keys, name, "attn_v_b");
    if (keys.shape.size() != 3 || values.shape.size() != 3 || keys.shape[0] != values.shape[0] ||
        keys.shape[1] != values.shape[2])
      metadata_.fail(
          "tensors '{}' [{}] and '{}' [{}] do not fit, wanted [heads, latents, key] and [heads, value, "
          "latents]",
          keys.name, fmt::join(keys.shape, ", "), values.name, fmt::join(values.shape, ", "));
    MappedTensor joined = whole(keys);
    joined.shape = {keys.shape[0] * (keys.shape[2] + values.shape[1]), keys.shape[1]};
    joined.join = TensorJoin::kLatentExpansion;
    joined.parts = {whole(keys), whole(values)};
    for (MappedTensor& part : joined.parts) part.shape = {part.shape[0] * part.shape[1], part.shape[2]};
    insert(in_layer(name, "self_attn.kv_b_proj"), std::move(joined));
  }

  [[nodiscard]] MappedTensor whole(const Tensor& tensor) const {
    return {.stored_name = tensor.name,
            .type = tensor.type,
            .shape = tensor.shape,
            .bytes = tensor.bytes,
            .factor = factor_of(tensor, 0)};
  }

  /// Maps experts of one or two parts, of which a tensor holds [experts, rows, columns].
  template <size_t N>
  void map_stacked(const Tensor& tensor, const LayerName& name, const std::array<size_t, N>& parts) {
    if (tensor.shape.size() != 3)
      metadata_.fail("tensor '{}' has shape [{}], wanted [experts, rows, columns]", tensor.name,
                     fmt::join(tensor.shape, ", "));
    const int64_t experts = tensor.shape[0];
    const int64_t rows = tensor.shape[1];
    if (rows % static_cast<int64_t>(N) != 0)
      metadata_.fail("tensor '{}' has {} rows an expert, wanted a multiple of {}", tensor.name, rows, N);
    const int64_t own = rows / static_cast<int64_t>(N);
    for (int64_t expert = 0; expert < experts; ++expert) {
      for (size_t i = 0; i < N; ++i)
        add(expert_name(name, expert, parts[i]), tensor, expert * rows + static_cast<int64_t>(i) * own, own, 0, expert);
    }
  }

  /// Maps the rows of q, k and v, which follow one another.
  void map_fused_attention(const Tensor& tensor, const LayerName& name) {
    const int64_t rows = rows_of(tensor);
    const int64_t query_heads = heads_of("attention.head_count", name);
    const int64_t kv_heads = heads_of("attention.head_count_kv", name);
    const int64_t heads = query_heads + 2 * kv_heads;
    if (rows % heads != 0)
      metadata_.fail("tensor '{}' has {} rows, wanted a multiple of {} heads", tensor.name, rows, heads);
    const int64_t head = rows / heads;
    const int64_t query = head * query_heads;
    const int64_t kv = head * kv_heads;
    add(in_layer(name, "self_attn.q_proj"), tensor, 0, query, family_.pairs_rows ? query_heads : 0);
    add(in_layer(name, "self_attn.k_proj"), tensor, query, kv, family_.pairs_rows ? kv_heads : 0);
    add(in_layer(name, "self_attn.v_proj"), tensor, query + kv, kv);
  }

  static std::optional<int64_t> expert_number(std::string_view rest) {
    int64_t expert = 0;
    if (!rest.starts_with('.')) return std::nullopt;
    const auto [end, failure] = std::from_chars(rest.data() + 1, rest.data() + rest.size(), expert);
    if (failure != std::errc() || end != rest.data() + rest.size()) return std::nullopt;
    return expert;
  }

  [[nodiscard]] std::string in_layer(const LayerName& name, std::string_view part) const {
    return without_ending(name, part) + (name.ending.empty() ? "" : ".") + std::string(name.ending);
  }
  [[nodiscard]] std::string without_ending(const LayerName& name, std::string_view part) const {
    return fmt::format("{}{}.{}", family_.layers, name.layer, part);
  }
  [[nodiscard]] std::string expert_name(const LayerName& name, int64_t expert, size_t part) const {
    return in_layer(name, fmt::format("{}.{}.{}", family_.experts, expert, family_.expert_parts[part]));
  }

  /// Returns the rows of a matrix, the elements of a vector.
  static int64_t rows_of(const Tensor& tensor) { return tensor.shape.empty() ? 1 : tensor.shape.front(); }
  static int64_t values_of(const std::vector<int64_t>& shape) {
    int64_t values = 1;
    for (const int64_t side : shape) values *= side;
    return values;
  }

  /// Returns the name of a tensor with another ending.
  static std::string with_ending(std::string_view name, std::string_view from, std::string_view to) {
    return std::string(name.substr(0, name.size() - from.size())).append(to);
  }
  /// Returns whether a tensor has factors of another one and no name of its own.
  [[nodiscard]] bool is_scale(const Tensor& tensor) const {
    if (!tensor.name.ends_with(kScale) || model_.find(with_ending(tensor.name, kScale, kWeight)) == nullptr)
      return false;
    const auto in_layer = parse_layer_name(tensor.name);
    return !in_layer || find_own_rule(*in_layer) == nullptr || find_own_rule(*in_layer)->stored == in_layer->part;
  }

  /// Returns the factor of an expert, or of a whole tensor, that some formats store apart.
  [[nodiscard]] float factor_of(const Tensor& tensor, int64_t expert) const {
    if (!tensor.name.ends_with(kWeight)) return 1.0f;
    const std::string name = with_ending(tensor.name, kWeight, kScale);
    const Tensor* scale = model_.find(name);
    if (scale == nullptr || !is_scale(*scale)) return 1.0f;
    const auto count = static_cast<int64_t>(scale->bytes.size() / sizeof(float));
    if (scale->type.name != "F32" || scale->shape.size() > 1 || (count != 1 && expert >= count))
      metadata_.fail("tensor '{}' is {} [{}], wanted F32 of one value, or of one for each expert", name,
                     scale->type.name, fmt::join(scale->shape, ", "));
    float factor = 0;
    std::memcpy(&factor, scale->bytes.data() + static_cast<size_t>(count == 1 ? 0 : expert) * sizeof factor,
                sizeof factor);
    if (!std::isfinite(factor))
      metadata_.fail("tensor '{}': factor {} is {}, wanted a finite number", name, expert, factor);
    return factor;
  }

  /// Adds rows [first, first + count) of a tensor, whose experts count as rows. In `paired_heads` heads rows 2i
  /// and 2i + 1 of the file are rows i and i + half of safetensors; 0: rows are in order.
  MappedTensor& add(std::string name, const Tensor& tensor, int64_t first, int64_t count, int64_t paired_heads = 0,
                    int64_t expert = 0) {
    if (tensor.shape.size() < 2 && tensor.type.block_weights != 1)
      metadata_.fail("tensor '{}' is {}, wanted F32, F16 or BF16 for a vector", tensor.name, tensor.type.name);
    int64_t all_rows = rows_of(tensor);
    const bool is_stack = tensor.shape.size() == 3;
    if (is_stack) all_rows *= tensor.shape[1];
    const size_t row_bytes = tensor.bytes.size() / static_cast<size_t>(all_rows);
    MappedTensor mapped{
        .stored_name = tensor.name,
        .type = tensor.type,
        .shape = tensor.shape,
        .bytes = tensor.bytes.subspan(static_cast<size_t>(first) * row_bytes, static_cast<size_t>(count) * row_bytes),
        .factor = factor_of(tensor, expert)};
    if (is_stack) mapped.shape.erase(mapped.shape.begin());
    if (!mapped.shape.empty()) mapped.shape.front() = count;
    if (paired_heads > 0) {
      if (count % (2 * paired_heads) != 0)
        metadata_.fail("tensor '{}' has {} rows, wanted a multiple of twice {} heads", tensor.name, count,
                       paired_heads);
      mapped.row_order = {.outer = 2, .inner = count / paired_heads / 2};
    }
    return insert(std::move(name), std::move(mapped));
  }

  MappedTensor& insert(std::string name, MappedTensor mapped) {
    const std::string_view stored = mapped.stored_name;
    const auto [position, is_new] = map_.try_emplace(std::move(name), std::move(mapped));
    if (!is_new)
      metadata_.fail("tensors '{}' and '{}' are the same part of the model ({})", position->second.stored_name, stored,
                     position->first);
    return position->second;
  }

  const Model& model_;
  const Family& family_;
  const Metadata& metadata_;
  std::string prefix_;
  int64_t layer_count_ = INT64_MAX;
  TensorMap map_;
};

}  // namespace

Result<TensorMap> map_tensors(const Model& model) {
  try {
    return Mapper(model).map();
  } catch (const ErrorException& failure) {
    return failure.error();
  }
}

}  // namespace millrace::gguf
