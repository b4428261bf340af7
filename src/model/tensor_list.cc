#include "model/tensor_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <unordered_set>

#include "base/check.h"
#include "base/log.h"
#include "model/encoder_tensors.h"

namespace millrace::model {
namespace {

void add_experts(const ModelConfig& config, int32_t layer, std::vector<TensorSpec>& specs) {
  const int64_t hidden = config.hidden_size;
  const int64_t intermediate = config.moe.intermediate_size;
  specs.push_back({router_name(config, layer), {config.moe.expert_count, hidden}});
  for (int32_t expert = 0; expert < config.moe.expert_count; ++expert) {
    const auto add = [&](ExpertPart part, tensor::Shape shape) {
      specs.push_back({expert_tensor_name(config, layer, expert, part), shape, true, Division::kNone, expert});
    };
    add(ExpertPart::kGate, {intermediate, hidden});
    add(ExpertPart::kUp, {intermediate, hidden});
    add(ExpertPart::kDown, {hidden, intermediate});
  }
}

void add_layer(const ModelConfig& config, int32_t layer, std::vector<TensorSpec>& specs) {
  const int64_t hidden = config.hidden_size;
  const int64_t intermediate = config.intermediate_size;
  const int64_t query = config.query_width();
  const int64_t kv = config.kv_width();
  const auto add = [&](std::string_view part, tensor::Shape shape, Division division = Division::kNone) {
    specs.push_back({layer_tensor_name(layer, part), shape, shape.rank() == 2, division});
  };
  add("input_layernorm.weight", {hidden});
  add("self_attn.q_proj.weight", {query, hidden}, Division::kHeadRows);
  add("self_attn.k_proj.weight", {kv, hidden}, Division::kKvHeadRows);
  add("self_attn.v_proj.weight", {kv, hidden}, Division::kKvHeadRows);
  if (config.qkv_bias) {
    add("self_attn.q_proj.bias", {query}, Division::kHeadRows);
    add("self_attn.k_proj.bias", {kv}, Division::kKvHeadRows);
    add("self_attn.v_proj.bias", {kv}, Division::kKvHeadRows);
  }
  if (config.qk_norm) {
    add("self_attn.q_norm.weight", {config.head_dim});
    add("self_attn.k_norm.weight", {config.head_dim});
  }
  add("self_attn.o_proj.weight", {hidden, query}, Division::kHeadColumns);
  if (config.output_bias) add("self_attn.o_proj.bias", {hidden});
  add("post_attention_layernorm.weight", {hidden});
  if (config.is_sparse(layer)) return add_experts(config, layer, specs);
  add("mlp.gate_proj.weight", {intermediate, hidden}, Division::kFeatureRows);
  add("mlp.up_proj.weight", {intermediate, hidden}, Division::kFeatureRows);
  add("mlp.down_proj.weight", {hidden, intermediate}, Division::kFeatureColumns);
}

/// Tensors of a layer that derive from config.json, so that a checkpoint's copies are ignored. Old checkpoints of Llama
/// have the first, those of some trainers the others.
constexpr std::array<std::string_view, 3> kDerived = {
    ".self_attn.rotary_emb.inv_freq", ".self_attn.rotary_emb.cos_cached", ".self_attn.rotary_emb.sin_cached"};

/// Returns whether a tensor belongs to the span's layers, or to its embedding, last norm or head besides the weight.
bool is_of_span(std::string_view name, StageSpan span) {
  constexpr std::string_view kLayers = "model.layers.";
  if (name.starts_with("model.embed_tokens.")) return span.first && name != kEmbeddingName;
  if (name.starts_with("model.norm.")) return span.last && name != kFinalNormName;
  if (name.starts_with("lm_head.")) return span.last && name != kHeadName;
  if (!name.starts_with(kLayers)) return false;
  const std::string_view rest = name.substr(kLayers.size());
  int32_t layer = 0;
  const auto [end, failure] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
  if (failure != std::errc() || layer < span.layers.begin || layer >= span.layers.end) return false;
  return std::ranges::find(kDerived, std::string_view(end, rest.data() + rest.size())) == kDerived.end();
}

bool same(const StoredTensor& left, const StoredTensor& right) {
  return left.dtype == right.dtype && std::ranges::equal(left.shape, right.shape) &&
         left.bytes.size() == right.bytes.size() &&
         std::memcmp(left.bytes.data(), right.bytes.data(), left.bytes.size()) == 0;
}

}  // namespace

Result<void> untie_separate_head(const Checkpoint& checkpoint, ModelConfig& config) {
  if (!config.has_output_head || !config.tied_embeddings || !checkpoint.contains(kHeadName)) return {};
  const auto head = checkpoint.find_stored(kHeadName);
  if (!head) return head.error();
  const auto embedding = checkpoint.find_stored(kEmbeddingName);
  if (!embedding) return embedding.error();
  config.tied_embeddings = same(*head, *embedding);
  checkpoint.release(kHeadName);
  checkpoint.release(kEmbeddingName);
  if (!config.tied_embeddings)
    log::warn("{}: {} differs from {} and is the output head, though config.json says tie_word_embeddings true",
              checkpoint.folder().string(), kHeadName, kEmbeddingName);
  return {};
}

std::string layer_tensor_name(int32_t layer, std::string_view part) {
  return fmt::format("model.layers.{}.{}", layer, part);
}

std::string router_name(const ModelConfig& config, int32_t layer) {
  const bool mlp = config.moe.names == ExpertNaming::kMlp;
  return layer_tensor_name(layer, mlp ? "mlp.gate.weight" : "block_sparse_moe.gate.weight");
}

std::string expert_tensor_name(const ModelConfig& config, int32_t layer, int32_t expert, ExpertPart part) {
  constexpr std::array<std::string_view, 3> kMlpNames = {"gate_proj", "up_proj", "down_proj"};
  constexpr std::array<std::string_view, 3> kBlockSparseMoeNames = {"w1", "w3", "w2"};
  const auto index = static_cast<size_t>(part);
  if (config.moe.names == ExpertNaming::kMlp)
    return fmt::format("model.layers.{}.mlp.experts.{}.{}.weight", layer, expert, kMlpNames[index]);
  return fmt::format("model.layers.{}.block_sparse_moe.experts.{}.{}.weight", layer, expert,
                     kBlockSparseMoeNames[index]);
}

std::string_view head_name(const ModelConfig& config) {
  return config.tied_embeddings ? kEmbeddingName : kHeadName;
}

std::vector<TensorSpec> stage_tensors(const ModelConfig& config, StageSpan span) {
  CHECK(0 <= span.layers.begin && span.layers.begin <= span.layers.end && span.layers.end <= config.layer_count,
        "layers [{}, {}) of {}", span.layers.begin, span.layers.end, config.layer_count);
  if (config.encoder) return encoder_tensors(config, span);
  const tensor::Shape table{config.vocab_size, config.hidden_size};
  std::vector<TensorSpec> specs;
  if (span.first) specs.push_back({std::string(kEmbeddingName), table});
  for (int32_t layer = span.layers.begin; layer < span.layers.end; ++layer) add_layer(config, layer, specs);
  if (span.last) {
    specs.push_back({std::string(kFinalNormName), {config.hidden_size}});
    if (config.has_output_head && !(span.first && config.tied_embeddings))
      specs.push_back({std::string(head_name(config)), table, !config.tied_embeddings, Division::kVocabularyRows});
  }
  return specs;
}

namespace {

/// Returns whether a tensor of a quantized checkpoint is part of a known weight, or changes nothing. The latter are
/// scales of an 8-bit KV cache, which is not used here, and biases of zeros, which some writers add.
bool belongs_to_weight(const Checkpoint& checkpoint, const std::string& name,
                       const std::unordered_set<std::string>& known) {
  constexpr std::array<std::string_view, 4> kCacheScales = {".k_scale", ".v_scale", ".kv_scale", ".output_scale"};
  const auto ends_name = [&name](std::string_view ending) { return name.ends_with(ending); };
  if (std::ranges::any_of(kCacheScales, ends_name)) return true;
  if (const auto weight = weights::weight_of_companion(name)) return known.contains(*weight);
  constexpr std::string_view kBias = ".bias";
  if (!name.ends_with(kBias) || !known.contains(name.substr(0, name.size() - kBias.size()) + ".weight")) return false;
  const auto bias = checkpoint.find_stored(name);
  return bias && std::ranges::all_of(bias->bytes, [](std::byte each) { return each == std::byte{0}; });
}

}  // namespace

Result<void> reject_unknown_tensors(const Checkpoint& checkpoint, const ModelConfig& config, StageSpan span) {
  std::unordered_set<std::string> known;
  // An encoder's norms belong to the stage of the next layer.
  const StageSpan whole{.layers = {0, config.layer_count}, .first = true, .last = true};
  for (const TensorSpec& spec : stage_tensors(config, config.encoder ? whole : span)) {
    known.insert(spec.name);
    if (config.quantization != Quantization::kNone && spec.projection) known.insert(scale_name(spec.name));
  }
  const bool is_decoded = config.weight_format.method != weights::QuantMethod::kNone;
  std::string unknown;  // the first in the order of names
  for (const std::string& name : checkpoint.names()) {
    const bool is_checked = config.encoder ? is_encoder_part(name) : is_of_span(name, span);
    if (!is_checked || known.contains(name)) continue;
    if (is_decoded && belongs_to_weight(checkpoint, name, known)) continue;
    if (unknown.empty() || name < unknown) unknown = name;
  }
  if (unknown.empty()) return {};
  return make_error(ErrorCode::kData, "{}: tensor '{}' is unknown to {}, the architecture in config.json",
                    checkpoint.folder().string(), unknown, config.architecture);
}

bool stored_in_w8(const Checkpoint& checkpoint, const ModelConfig& config, const TensorSpec& spec) {
  return config.quantization != Quantization::kNone && config.weight_format.method == weights::QuantMethod::kNone &&
         spec.projection && checkpoint.contains(scale_name(spec.name));
}

uint64_t parameter_count(const ModelConfig& config, StageSpan span) {
  uint64_t count = 0;
  for (const TensorSpec& spec : stage_tensors(config, span)) count += static_cast<uint64_t>(spec.shape.elements());
  return count;
}

uint64_t parameter_count(const ModelConfig& config) {
  return parameter_count(config, {.layers = {0, config.layer_count}, .first = true, .last = true});
}

}  // namespace millrace::model
