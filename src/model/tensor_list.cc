#include "model/tensor_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ranges>
#include <unordered_set>

#include "base/check.h"
#include "model/layer_tensors.h"
#include "weights/companions.h"

namespace millrace::model {
namespace {

/// Tensors of a layer that derive from config.json, so that a checkpoint's copies are ignored. Old checkpoints of Llama
/// have the first, those of some trainers the others.
constexpr std::array<std::string_view, 3> kDerived = {
    ".self_attn.rotary_emb.inv_freq", ".self_attn.rotary_emb.cos_cached", ".self_attn.rotary_emb.sin_cached"};

/// Returns the name of a tensor's module with the dot after it: "lm_head." for "lm_head.weight".
std::string_view module_of(std::string_view name) {
  return name.substr(0, name.rfind('.') + 1);
}

/// Returns whether a part of a layer makes keys and values.
bool is_of_keys(std::string_view part, const TensorNames& names) {
  return std::ranges::any_of(std::array{names.key, names.value, names.key_norm}, [part](std::string_view name) {
    return part.starts_with(name) && part.substr(name.size()).starts_with('.');
  });
}

/// Returns whether a tensor belongs to the span's layers, or to its embedding, last norm or head besides the weight.
bool is_of_span(std::string_view name, const ModelConfig& config, StageSpan span) {
  const TensorNames& names = config.names;
  if (name.starts_with(module_of(names.embedding))) return span.first && name != names.embedding;
  if (name.starts_with(module_of(names.final_norm))) return span.last && name != names.final_norm;
  if (name.starts_with(module_of(names.head))) return span.last && name != names.head;
  if (!name.starts_with(names.layers)) return false;
  const std::string_view rest = name.substr(names.layers.size());
  int32_t layer = 0;
  const auto [end, failure] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
  if (failure != std::errc() || layer < span.layers.begin || layer >= span.layers.end) return false;
  const std::string_view part(end, rest.data() + rest.size());  // with the dot before it
  if (config.layer(layer).attention.keys_of && part.starts_with('.') && is_of_keys(part.substr(1), names)) return false;
  if (!names.ignored_layer_part.empty() && part.starts_with(names.ignored_layer_part)) return false;
  return std::ranges::find(kDerived, part) == kDerived.end();
}

/// Returns whether a tensor is a part of the layers or embeddings of an encoder, and none that derives from
/// config.json.
bool is_of_encoder(std::string_view name, const TensorNames& names) {
  const std::string_view embeddings = names.embedding_norm.substr(0, names.embedding_norm.find('.') + 1);
  return name.starts_with(names.layers) ||
         (name.starts_with(embeddings) && name.substr(embeddings.size()) != "position_ids");
}

/// Returns whether a tensor is one of a wrapper's other parts.
bool is_skipped(std::string_view name, const TensorNames& names) {
  for (const auto part : std::views::split(names.skipped_parts, ' ')) {
    if (name.starts_with(std::string_view(part.begin(), part.end()))) return true;
  }
  return false;
}

/// Returns whether a tensor of a wrapper belongs to no part at all.
bool is_of_no_part(std::string_view name, const TensorNames& names) {
  if (names.skipped_parts.empty() || is_skipped(name, names)) return false;
  const auto begins = [name](std::string_view prefix) { return name.starts_with(prefix); };
  return !begins(names.layers) && !begins(module_of(names.embedding)) && !begins(module_of(names.final_norm)) &&
         !begins(module_of(names.head));
}

}  // namespace

std::vector<int64_t> row_order(const TensorSpec& spec, tensor::TermRange rows) {
  const PairedRows& paired = spec.paired;
  const TensorPart part = spec.part.value_or(TensorPart{});
  if (paired.head_rows == 0 && part.row_step == part.row_block) return {};
  std::vector<int64_t> order;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    int64_t source = row;
    if (paired.head_rows > 0) {
      const int64_t at = row % paired.head_rows - paired.first;
      const int64_t half = paired.count / 2;
      if (at >= 0 && at < paired.count) source += (at < half ? 2 * at : 2 * (at - half) + 1) - at;
    }
    order.push_back(part.stored_row(source) - part.stored_row(rows.begin));
  }
  return order;
}

std::string gate_name(const ModelConfig& config, int32_t layer) {
  const std::string_view own = config.names.attention_gate;
  return own.empty() ? config.names.weight(layer, config.names.query) + ":gate" : config.names.weight(layer, own);
}

std::string router_name(const ModelConfig& config, int32_t layer) {
  return config.names.weight(layer, config.names.router);
}

std::span<const ExpertPart> expert_parts(const FeedForwardConfig& feed_forward) {
  static constexpr std::array kParts = {ExpertPart::kGate, ExpertPart::kUp, ExpertPart::kDown};
  return std::span(kParts).subspan(feed_forward.gated ? 0 : 1);
}

std::string expert_tensor_name(const ModelConfig& config, int32_t layer, int32_t expert, ExpertPart part) {
  const TensorNames& names = config.names;
  const std::array<std::string_view, 3> parts = {names.expert_gate, names.expert_up, names.expert_down};
  return fmt::format("{}{}.{}{}.{}.weight", names.layers, layer, names.experts, expert,
                     parts[static_cast<size_t>(part)]);
}

std::string fused_bias_name(const ModelConfig& config, int32_t layer, ExpertPart part) {
  const TensorNames& names = config.names;
  const bool is_down = part == ExpertPart::kDown;
  return names.plain(layer, is_down ? names.fused_experts_down : names.fused_experts_gate_up) + "_bias";
}

std::string_view head_name(const ModelConfig& config) {
  return config.tied_embeddings ? config.names.embedding : config.names.head;
}

namespace {

/// Lists what makes the own inputs of a span's layers: the whole table, and the layers' rows of the projection, which
/// keeps its precision.
void add_layer_inputs(const ModelConfig& config, StageSpan span, std::vector<TensorSpec>& specs) {
  const int64_t width = config.layer_inputs->width;
  const int64_t all = config.layer_count() * width;
  const std::string projection(config.names.layer_input_projection);
  specs.push_back({.name = std::string(config.names.layer_input_embedding), .shape = {config.vocab_size, all}});
  specs.push_back(
      {.name = projection,
       .shape = {span.layers.size() * width, config.hidden_size},
       .projection = true,
       .keeps_precision = true,
       .part = TensorPart{
           .tensor = projection, .shape = {all, config.hidden_size}, .first_row = span.layers.begin * width}});
  specs.push_back({.name = std::string(config.names.layer_input_norm), .shape = {width}});
}

}  // namespace

std::vector<TensorSpec> stage_tensors(const ModelConfig& config, StageSpan span) {
  CHECK(0 <= span.layers.begin && span.layers.begin <= span.layers.end && span.layers.end <= config.layer_count(),
        "layers [{}, {}) of {}", span.layers.begin, span.layers.end, config.layer_count());
  const int64_t hidden = config.hidden_size;
  const tensor::Shape table{config.vocab_size, hidden};
  std::vector<TensorSpec> specs;
  if (config.embeds(span.first)) {
    specs.push_back({.name = std::string(config.names.embedding), .shape = table});
    if (config.encoder) {
      specs.push_back(
          {.name = std::string(config.names.position_embedding), .shape = {config.encoder->position_rows, hidden}});
      specs.push_back({.name = std::string(config.names.type_embedding), .shape = {config.encoder->type_rows, hidden}});
    }
  }
  if (config.layer_inputs && span.layers.size() > 0) add_layer_inputs(config, span, specs);
  for (int32_t layer = span.layers.begin; layer < span.layers.end; ++layer) add_layer_tensors(config, layer, specs);
  if (span.last) {
    add_norm_before_layer(config, config.layer_count(), specs);
    if (config.has_output_head && !(config.embeds(span.first) && config.tied_embeddings))
      specs.push_back({.name = std::string(head_name(config)),
                       .shape = table,
                       .projection = !config.tied_embeddings,
                       .division = Division::kVocabularyRows});
  }
  return specs;
}

namespace {

/// Returns whether a tensor of a quantized checkpoint scales inputs, attention or the KV cache in 8 bits, which is not
/// used here.
bool has_no_use(std::string_view name) {
  constexpr std::array<std::string_view, 8> kEndings = {".q_scale",      ".k_scale",     ".v_scale",
                                                        ".kv_scale",     ".prob_scale",  ".output_scale",
                                                        ".k_zero_point", ".v_zero_point"};
  return weights::names_input_scale(name) ||
         std::ranges::any_of(kEndings, [name](std::string_view ending) { return name.ends_with(ending); });
}

/// Returns whether a tensor of a quantized checkpoint is part of a known weight, or a bias of zeros, which some writers
/// add.
bool belongs_to_weight(const Checkpoint& checkpoint, const std::string& name,
                       const std::unordered_set<std::string>& known) {
  if (const auto weight = weights::weight_of_companion(name)) return known.contains(*weight);
  constexpr std::string_view kBias = ".bias";
  if (!name.ends_with(kBias) || !known.contains(name.substr(0, name.size() - kBias.size()) + ".weight")) return false;
  const auto bias = checkpoint.find_stored(name);
  return bias && std::ranges::all_of(bias->bytes, [](std::byte each) { return each == std::byte{0}; });
}

}  // namespace

Result<void> reject_unknown_tensors(const Checkpoint& checkpoint, const ModelConfig& config, StageSpan span) {
  std::unordered_set<std::string> known;
  const bool is_decoded = config.weight_format.method != weights::QuantMethod::kNone;
  // An encoder's norms belong to the stage of the next layer.
  const StageSpan whole{.layers = {0, config.layer_count()}, .first = true, .last = true};
  for (const TensorSpec& spec : stage_tensors(config, config.encoder ? whole : span)) {
    known.insert(spec.stored_name());
    if (spec.part && !spec.part->scales.empty()) known.insert(spec.part->scales);
    if (is_decoded && spec.expert == 0 && spec.part) {
      for (std::string& name : weights::companion_names(spec.stored_name())) known.insert(std::move(name));
    }
    if (config.quantization != Quantization::kNone && spec.projection) known.insert(scale_name(spec.stored_name()));
  }
  // A stage without layers has none of these.
  if (config.layer_inputs) {
    for (const std::string_view name :
         {config.names.layer_input_embedding, config.names.layer_input_projection, config.names.layer_input_norm})
      known.emplace(name);
  }
  if (is_decoded && config.tied_embeddings) known.emplace(config.names.head);  // with scales that equal the embedding's
  std::string unknown;                                                         // the first in the order of names
  for (const std::string& name : checkpoint.names()) {
    const bool is_checked = config.encoder
                                ? is_of_encoder(name, config.names)
                                : is_of_span(name, config, span) || (span.first && is_of_no_part(name, config.names));
    if (!is_checked || known.contains(name)) continue;
    if (is_decoded && belongs_to_weight(checkpoint, name, known)) continue;
    if ((is_decoded || config.quantization != Quantization::kNone) && has_no_use(name)) continue;
    if (unknown.empty() || name < unknown) unknown = name;
  }
  if (unknown.empty()) return {};
  return make_error(ErrorCode::kData, "{}: tensor '{}' is unknown to {}, the architecture in config.json",
                    checkpoint.folder().string(), unknown, config.architecture);
}

int64_t skipped_tensor_count(const Checkpoint& checkpoint, const ModelConfig& config) {
  if (config.names.skipped_parts.empty()) return 0;
  return std::ranges::count_if(checkpoint.names(),
                               [&config](const std::string& name) { return is_skipped(name, config.names); });
}

bool stored_in_w8(const Checkpoint& checkpoint, const ModelConfig& config, const TensorSpec& spec) {
  return config.quantization != Quantization::kNone && config.weight_format.method == weights::QuantMethod::kNone &&
         spec.projection && checkpoint.contains(scale_name(spec.stored_name()));
}

uint64_t parameter_count(const ModelConfig& config, StageSpan span) {
  uint64_t count = 0;
  for (const TensorSpec& spec : stage_tensors(config, span)) count += static_cast<uint64_t>(spec.shape.elements());
  return count;
}

uint64_t layer_parameter_count(const ModelConfig& config, int32_t layer) {
  std::vector<TensorSpec> specs;
  add_layer_tensors(config, layer, specs);
  uint64_t count = 0;
  for (const TensorSpec& spec : specs) count += static_cast<uint64_t>(spec.shape.elements());
  return count;
}

uint64_t parameter_count(const ModelConfig& config) {
  return parameter_count(config, {.layers = {0, config.layer_count()}, .first = true, .last = true});
}

}  // namespace millrace::model
