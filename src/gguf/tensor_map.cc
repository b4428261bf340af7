#include "gguf/tensor_map.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>

#include "gguf/families.h"

namespace millrace::gguf {
namespace {

struct NamePair {
  std::string_view stored;
  std::string_view name;
};

constexpr std::array<NamePair, 3> kOutside = {NamePair{"token_embd.weight", "model.embed_tokens.weight"},
                                              NamePair{"output_norm.weight", "model.norm.weight"},
                                              NamePair{"output.weight", "lm_head.weight"}};
/// Tensors that config_json() takes into account, or that follow from config.json.
constexpr std::array<std::string_view, 2> kWithoutName = {"rope_freqs.weight", "rope.freqs"};
constexpr std::array<NamePair, 12> kInLayer = {
    NamePair{"attn_norm", "input_layernorm"},    NamePair{"attn_q", "self_attn.q_proj"},
    NamePair{"attn_k", "self_attn.k_proj"},      NamePair{"attn_v", "self_attn.v_proj"},
    NamePair{"attn_output", "self_attn.o_proj"}, NamePair{"attn_q_norm", "self_attn.q_norm"},
    NamePair{"attn_k_norm", "self_attn.k_norm"}, NamePair{"ffn_norm", "post_attention_layernorm"},
    NamePair{"ffn_gate", "mlp.gate_proj"},       NamePair{"ffn_up", "mlp.up_proj"},
    NamePair{"ffn_down", "mlp.down_proj"},       NamePair{"attn_rot_embd", "self_attn.rotary_emb"}};
constexpr std::array<std::string_view, 3> kExpertParts = {"ffn_gate", "ffn_up", "ffn_down"};
constexpr std::array<std::string_view, 3> kMlpNames = {"gate_proj", "up_proj", "down_proj"};
constexpr std::array<std::string_view, 3> kMixtralNames = {"w1", "w3", "w2"};
constexpr std::string_view kWeight = ".weight";
/// The ending of a tensor with a factor of a weight, as NVFP4 has it.
constexpr std::string_view kScale = ".scale";

/// "blk.7.attn_q.weight" in its parts.
struct LayerName {
  int32_t layer = 0;
  std::string_view part;    ///< "attn_q"
  std::string_view ending;  ///< "weight"
};

std::optional<LayerName> parse_layer_name(std::string_view name) {
  constexpr std::string_view kLayer = "blk.";
  if (!name.starts_with(kLayer)) return std::nullopt;
  name.remove_prefix(kLayer.size());
  LayerName parsed;
  const auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), parsed.layer);
  const auto digits = static_cast<size_t>(end - name.data());
  const size_t dot = name.rfind('.');
  const bool is_number = failure == std::errc() && parsed.layer >= 0;
  if (!is_number || dot == name.npos || digits >= dot || name[digits] != '.') return std::nullopt;
  parsed.part = name.substr(digits + 1, dot - digits - 1);
  parsed.ending = name.substr(dot + 1);
  return parsed;
}

class Mapper {
 public:
  explicit Mapper(const Model& model)
      : model_(model),
        family_(family_of(model)),
        metadata_(model.metadata()),
        prefix_(std::string(family_.name) + '.') {
    head_count_ = metadata_.required_integer(prefix_ + "attention.head_count", 1, 1 << 16);
    kv_head_count_ = metadata_.integer(prefix_ + "attention.head_count_kv", 1, 1 << 16).value_or(head_count_);
  }

  TensorMap map() {
    for (const Tensor& tensor : model_.tensors()) {
      if (is_scale(tensor)) continue;  // add() finds it with its weight
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
    if (std::ranges::find(kWithoutName, tensor.name) != kWithoutName.end()) return;
    const auto* const found = std::ranges::find(kOutside, tensor.name, &NamePair::stored);
    if (found == kOutside.end())
      metadata_.fail("tensor '{}' has no meaning here for the architecture '{}'", tensor.name, family_.name);
    add(std::string(found->name), tensor, 0, rows_of(tensor));
  }

  void map_layer_tensor(const Tensor& tensor, const LayerName& name) {
    if (name.part == "attn_qkv") return map_fused_attention(tensor, name);
    if (name.part == "ffn_gate_inp")
      return add(in_layer(name, family_.is_mixtral ? "block_sparse_moe.gate" : "mlp.gate"), tensor, 0, rows_of(tensor));
    if (name.part == "ffn_gate_up_exps") return map_stacked(tensor, name, std::array<size_t, 2>{0, 1});
    for (size_t part = 0; part < kExpertParts.size(); ++part) {
      if (!name.part.starts_with(kExpertParts[part])) continue;
      const std::string_view rest = name.part.substr(kExpertParts[part].size());
      if (rest == "_exps") return map_stacked(tensor, name, std::array<size_t, 1>{part});
      if (const auto expert = expert_number(rest))
        return add(expert_name(name, *expert, part), tensor, 0, rows_of(tensor));
    }
    const auto* const found = std::ranges::find(kInLayer, name.part, &NamePair::stored);
    const bool is_paired = family_.pairs_rows && (name.part == "attn_q" || name.part == "attn_k");
    const int64_t heads = name.part == "attn_q" ? head_count_ : kv_head_count_;
    add(in_layer(name, found == kInLayer.end() ? name.part : found->name), tensor, 0, rows_of(tensor),
        is_paired ? heads : 0);
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
    const int64_t heads = head_count_ + 2 * kv_head_count_;
    if (rows % heads != 0)
      metadata_.fail("tensor '{}' has {} rows, wanted a multiple of {} heads", tensor.name, rows, heads);
    const int64_t head = rows / heads;
    const int64_t query = head * head_count_;
    const int64_t kv = head * kv_head_count_;
    add(in_layer(name, "self_attn.q_proj"), tensor, 0, query, family_.pairs_rows ? head_count_ : 0);
    add(in_layer(name, "self_attn.k_proj"), tensor, query, kv, family_.pairs_rows ? kv_head_count_ : 0);
    add(in_layer(name, "self_attn.v_proj"), tensor, query + kv, kv);
  }

  static std::optional<int64_t> expert_number(std::string_view rest) {
    int64_t expert = 0;
    if (!rest.starts_with('.')) return std::nullopt;
    const auto [end, failure] = std::from_chars(rest.data() + 1, rest.data() + rest.size(), expert);
    if (failure != std::errc() || end != rest.data() + rest.size()) return std::nullopt;
    return expert;
  }

  static std::string in_layer(const LayerName& name, std::string_view part) {
    return fmt::format("model.layers.{}.{}.{}", name.layer, part, name.ending);
  }
  [[nodiscard]] std::string expert_name(const LayerName& name, int64_t expert, size_t part) const {
    if (family_.is_mixtral)
      return in_layer(name, fmt::format("block_sparse_moe.experts.{}.{}", expert, kMixtralNames[part]));
    return in_layer(name, fmt::format("mlp.experts.{}.{}", expert, kMlpNames[part]));
  }

  /// Returns the rows of a matrix, the elements of a vector.
  static int64_t rows_of(const Tensor& tensor) { return tensor.shape.empty() ? 1 : tensor.shape.front(); }

  /// Returns the name of a tensor with another ending.
  static std::string with_ending(std::string_view name, std::string_view from, std::string_view to) {
    return std::string(name.substr(0, name.size() - from.size())).append(to);
  }
  [[nodiscard]] bool is_scale(const Tensor& tensor) const {
    return tensor.name.ends_with(kScale) && model_.find(with_ending(tensor.name, kScale, kWeight)) != nullptr;
  }

  /// Returns the factor of an expert, or of a whole tensor, that some formats store apart.
  [[nodiscard]] float factor_of(const Tensor& tensor, int64_t expert) const {
    if (!tensor.name.ends_with(kWeight)) return 1.0f;
    const std::string name = with_ending(tensor.name, kWeight, kScale);
    const Tensor* scale = model_.find(name);
    if (scale == nullptr) return 1.0f;
    const auto count = static_cast<int64_t>(scale->bytes.size() / sizeof(float));
    if (scale->type.name != "F32" || scale->shape.size() > 1 || (count != 1 && expert >= count))
      metadata_.fail("tensor '{}' is {} [{}], wanted F32 of one value, or of one for each expert", name,
                     scale->type.name, fmt::join(scale->shape, ", "));
    float factor = 0;
    std::memcpy(&factor, scale->bytes.data() + static_cast<size_t>(count == 1 ? 0 : expert) * sizeof factor,
                sizeof factor);
    return factor;
  }

  /// Adds rows [first, first + count) of a tensor, whose experts count as rows. `paired_heads`: see paired_rows.
  void add(std::string name, const Tensor& tensor, int64_t first, int64_t count, int64_t paired_heads = 0,
           int64_t expert = 0) {
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
      mapped.paired_rows = count / paired_heads;
    }
    const auto [position, is_new] = map_.try_emplace(std::move(name), std::move(mapped));
    if (!is_new)
      metadata_.fail("tensors '{}' and '{}' are the same part of the model ({})", position->second.stored_name,
                     tensor.name, position->first);
  }

  const Model& model_;
  const Family& family_;
  const Metadata& metadata_;
  std::string prefix_;
  int64_t head_count_ = 0;
  int64_t kv_head_count_ = 0;
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
