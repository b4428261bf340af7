#include "model/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <ranges>

#include "model/encoder_config.h"
#include "model/field_reader.h"
#include "model/gguf_config.h"
#include "model/gguf_files.h"
#include "model/mapped_file.h"
#include "model/moe_config.h"
#include "model/rope_config.h"

namespace millrace::model {
namespace {

// A bound far above any model, and far below numbers whose product overflows.
constexpr int32_t kMaxVocab = 1 << 22;
constexpr int32_t kMaxWidth = 1 << 18;
constexpr int32_t kMaxIntermediate = 1 << 20;
constexpr int32_t kMaxLayerCount = 1024;
constexpr int32_t kMaxHeadCount = 4096;
constexpr int32_t kMaxHeadDim = 256;  // limit of the attention kernels
constexpr int32_t kMaxPosition = 1 << 28;

enum class Family : uint8_t { kLlama, kMistral, kQwen2, kQwen3, kQwen3Moe, kMixtral, kBert, kRoberta };

struct KnownFamily {
  std::string_view name;
  Family family;
};

constexpr std::array kKnownFamilies{
    KnownFamily{"Llama", Family::kLlama},       KnownFamily{"Mistral", Family::kMistral},
    KnownFamily{"Qwen2", Family::kQwen2},       KnownFamily{"Qwen3", Family::kQwen3},
    KnownFamily{"Qwen3Moe", Family::kQwen3Moe}, KnownFamily{"Mixtral", Family::kMixtral},
};
/// Architectures of encoders, which have no output head.
constexpr std::array kEncoders{
    KnownFamily{"BertModel", Family::kBert},
    KnownFamily{"RobertaModel", Family::kRoberta},
    KnownFamily{"XLMRobertaModel", Family::kRoberta},
    KnownFamily{"CamembertModel", Family::kRoberta},
};
constexpr std::string_view kGenerates = "ForCausalLM";
/// The architectures of a family that have no output head.
constexpr std::array<std::string_view, 2> kPools = {"Model", "ForSequenceClassification"};

std::optional<Family> read_architecture(FieldReader& fields, ModelConfig& config) {
  const std::vector<std::string> names = fields.strings("architectures");
  std::string known;
  for (const KnownFamily& entry : kKnownFamilies) {
    if (!names.empty() && names.front().starts_with(entry.name)) {
      const std::string_view rest = std::string_view(names.front()).substr(entry.name.size());
      config.has_output_head = rest == kGenerates;
      config.architecture = names.front();
      if (config.has_output_head || std::ranges::find(kPools, rest) != kPools.end()) return entry.family;
    }
    known += fmt::format("{}{}{}", known.empty() ? "" : ", ", entry.name, kGenerates);
  }
  for (const KnownFamily& entry : kEncoders) {
    if (names.empty() || names.front() != entry.name) continue;
    config.architecture = names.front();
    return entry.family;
  }
  if (names.empty())
    fields.fail_with("architectures is missing or empty, wanted one of {}", known);
  else
    fields.fail_with("architecture '{}' is not known, wanted one of {}, or the same with {} in place of {}, or {}",
                     names.front(), known, fmt::join(kPools, " or "), kGenerates,
                     fmt::join(kEncoders | std::views::transform(&KnownFamily::name), ", "));
  return std::nullopt;
}

/// Refuses the models of these families whose attention looks ahead, since attention here is causal.
void refuse_bidirectional(FieldReader& fields) {
  if (!fields.flag_or("is_causal", true))
    fields.fail("is_causal false is not computed here, wanted a model with causal attention");
  if (fields.flag_or("use_bidirectional_attention", false))
    fields.fail("use_bidirectional_attention true is not computed here, wanted a model with causal attention");
}

void read_dimensions(FieldReader& fields, Family family, ModelConfig& config) {
  config.vocab_size = fields.integer("vocab_size", 1, kMaxVocab);
  config.hidden_size = fields.integer("hidden_size", 1, kMaxWidth);
  config.intermediate_size = fields.integer("intermediate_size", 1, kMaxIntermediate);
  config.layer_count = fields.integer("num_hidden_layers", 1, kMaxLayerCount);
  config.head_count = fields.integer("num_attention_heads", 1, kMaxHeadCount);
  config.kv_head_count = fields.integer_or("num_key_value_heads", config.head_count, 1, kMaxHeadCount);
  config.max_position = fields.integer("max_position_embeddings", 1, kMaxPosition);
  const double norm_epsilon = family == Family::kMixtral ? 1e-5 : 1e-6;
  config.norm_epsilon = static_cast<float>(fields.number_or("rms_norm_eps", norm_epsilon, 0.0, 1.0));
  if (config.head_count % config.kv_head_count != 0)
    fields.fail_with("num_attention_heads {} is not a multiple of num_key_value_heads {}", config.head_count,
                     config.kv_head_count);
  const std::optional<int32_t> head_dim = fields.optional_integer("head_dim", 2, kMaxHeadDim);
  if (head_dim) {
    config.head_dim = *head_dim;
  } else if (family == Family::kQwen3) {
    config.head_dim = 128;
  } else {
    if (config.hidden_size % config.head_count != 0)
      fields.fail_with("hidden_size {} is not a multiple of num_attention_heads {}, and head_dim is missing",
                       config.hidden_size, config.head_count);
    config.head_dim = std::max(config.hidden_size / config.head_count, 1);
  }
  if (config.head_dim % 2 != 0 || config.head_dim > kMaxHeadDim)
    fields.fail_with("head_dim {} is not an even number from 2 to {}", config.head_dim, kMaxHeadDim);
  if (config.query_width() > kMaxWidth)
    fields.fail_with("num_attention_heads {} times head_dim {} is above {}", config.head_count, config.head_dim,
                     kMaxWidth);
}

/// Switches that change the arithmetic of the families that have them. An absent, null, false, 0, 1 or empty member
/// changes nothing.
constexpr std::array<std::string_view, 22> kOtherArithmetic{"attention_multiplier",
                                                            "attn_logit_softcapping",
                                                            "attn_temperature_tuning",
                                                            "clip_qkv",
                                                            "dim_model_base",
                                                            "embedding_multiplier",
                                                            "final_logit_softcapping",
                                                            "logit_scale",
                                                            "logits_scaling",
                                                            "moe_intermediate_size",
                                                            "n_routed_experts",
                                                            "no_rope_layers",
                                                            "num_experts",
                                                            "num_local_experts",
                                                            "qk_layernorm",
                                                            "query_pre_attn_scalar",
                                                            "residual_multiplier",
                                                            "scale_depth",
                                                            "scale_emb",
                                                            "use_mrope",
                                                            "use_parallel_residual",
                                                            "use_qk_norm"};

bool changes_nothing(JsonValue value) {
  if (value.is_null()) return true;
  if (value.is_bool()) return !value.is_true();
  if (JsonArray array; value.get(array)) return array.empty();
  double number = 0;
  return value.get(number) && (number == 0.0 || number == 1.0);
}

/// Returns whether the family computes what a key of kOtherArithmetic names.
bool computes(Family family, std::string_view key) {
  switch (family) {
    case Family::kQwen3Moe: return key == "num_experts" || key == "num_local_experts" || key == "moe_intermediate_size";
    case Family::kMixtral: return key == "num_local_experts";
    default: return false;
  }
}

void refuse_unsupported(FieldReader& fields, Family family) {
  for (const std::string_view key : kOtherArithmetic) {
    const auto value = fields.find(key);
    if (value && !computes(family, key) && !changes_nothing(*value))
      fields.fail_with("{} {} is not computed here, wanted a model without it", key, json_excerpt(*value));
  }
  const std::string activation = fields.text_or("hidden_act", "silu");
  if (activation != "silu") fields.fail_with("hidden_act '{}' is not supported, wanted 'silu'", activation);
  if (fields.flag_or("mlp_bias", false)) fields.fail("mlp_bias true is not supported, wanted false");
}

void read_biases(FieldReader& fields, Family family, ModelConfig& config) {
  config.qk_norm = family == Family::kQwen3 || family == Family::kQwen3Moe;
  switch (family) {
    case Family::kLlama:
    case Family::kQwen3:
    case Family::kQwen3Moe: config.qkv_bias = config.output_bias = fields.flag_or("attention_bias", false); break;
    case Family::kMistral:
    case Family::kMixtral: break;
    case Family::kQwen2: config.qkv_bias = true; break;
    case Family::kBert:
    case Family::kRoberta: break;  // read_encoder
  }
}

void read_experts(FieldReader& fields, Family family, ModelConfig& config) {
  if (family == Family::kQwen3Moe) read_qwen3_moe(fields, config);
  if (family == Family::kMixtral) read_mixtral(fields, config);
}

/// Returns the window of the layers that slide; 0 where none may.
int32_t read_window(FieldReader& fields, Family family) {
  // The families' default, which Mistral 7B v0.1 leaves out; an explicit null is a later Mistral without a window.
  const int32_t fallback = fields.has_key("sliding_window") || family == Family::kMixtral ? 0 : 4096;
  const int32_t window = fields.integer_or("sliding_window", fallback, 1, kMaxPosition);
  const bool always = family == Family::kMistral || family == Family::kMixtral;
  const bool used = always || fields.flag_or("use_sliding_window", false);
  return used ? window : 0;
}

void read_layer_types(FieldReader& fields, int32_t window, ModelConfig& config) {
  const std::vector<std::string> types = fields.strings("layer_types");
  if (types.size() != static_cast<size_t>(config.layer_count)) {
    fields.fail_with("layer_types names {} layers, num_hidden_layers {}", types.size(), config.layer_count);
    return;
  }
  for (size_t layer = 0; layer < types.size(); ++layer) {
    if (types[layer] == "full_attention") continue;
    if (types[layer] != "sliding_attention")
      fields.fail_with("layer_types names '{}' for layer {}, wanted full_attention or sliding_attention", types[layer],
                       layer);
    else if (window == 0)
      fields.fail_with("layer_types names sliding_attention for layer {}, but no sliding_window is in use", layer);
    config.sliding_windows[layer] = window;
  }
}

void read_windows(FieldReader& fields, Family family, ModelConfig& config) {
  config.sliding_windows.assign(static_cast<size_t>(config.layer_count), 0);
  if (family == Family::kLlama) return;
  const int32_t window = read_window(fields, family);
  if (fields.has("layer_types")) {
    read_layer_types(fields, window, config);
    return;
  }
  int32_t first = 0;  // the others slide on every layer, if at all
  if (family == Family::kQwen2 || family == Family::kQwen3)
    first = std::min(fields.integer_or("max_window_layers", 28, 0, kMaxPosition), config.layer_count);
  std::fill(config.sliding_windows.begin() + first, config.sliding_windows.end(), window);
}

/// Returns the context up to which dual chunk attention equals plain attention: the one that the model was trained on.
void read_dual_chunks(FieldReader& fields, ModelConfig& config) {
  constexpr const char* kKey = "dual_chunk_attention_config";
  const auto object = fields.object(kKey);
  if (!object) return;
  FieldReader chunks(fields.source() + ": " + kKey, *object);
  const auto trained = chunks.optional_integer("original_max_position_embeddings", 1, kMaxPosition);
  const int32_t chunk = chunks.integer_or("chunk_size", config.max_position, 1, kMaxPosition);
  const int32_t local = chunks.integer_or("local_size", 0, 0, kMaxPosition);
  if (!trained && local >= chunk) chunks.fail_with("local_size {} is not below chunk_size {}", local, chunk);
  config.max_plain_attention_context = trained.value_or(chunk - local);
  fields.take_error_of(chunks);
}

void read_dtype(FieldReader& fields, ModelConfig& config) {
  const char* key = fields.has("dtype") ? "dtype" : "torch_dtype";
  const Result<tensor::DType> dtype = tensor::parse_dtype(fields.text_or(key, "float32"));
  if (dtype)
    config.dtype = *dtype;
  else
    fields.fail_with("{}: {}", key, dtype.error().message);
}

void read_decoder(FieldReader& fields, Family family, ModelConfig& config) {
  refuse_unsupported(fields, family);
  refuse_bidirectional(fields);
  read_dimensions(fields, family, config);
  read_biases(fields, family, config);
  read_windows(fields, family, config);
  read_experts(fields, family, config);
  read_dual_chunks(fields, config);
  config.rope = parse_rope(fields, config.max_position, family == Family::kMixtral ? 1e6 : 1e4);
  config.tied_embeddings = fields.flag_or("tie_word_embeddings", false);
}

}  // namespace

int32_t ModelConfig::context_length() const {
  const double stretched = rope.kind == RopeKind::kYarn ? rope.factor * rope.original_max_position : 0.0;
  const int32_t reached = std::max(max_position, static_cast<int32_t>(std::min<double>(stretched, kMaxPosition)));
  return std::min(reached, max_plain_attention_context);
}

Result<ModelConfig> parse_config(std::string_view json, std::string_view source) {
  JsonDocument document;
  const Result<JsonObject> object = parse_object(document, source, json, kMaxConfigNesting);
  if (!object) return object.error();
  RETURN_IF_ERROR(reject_duplicate_keys(source, *object));
  FieldReader fields(std::string(source), *object);
  ModelConfig config;
  const std::optional<Family> family = read_architecture(fields, config);
  if (!family) return *fields.error();
  const StoredQuantization stored = read_quantization(fields);
  config.quantization = stored.quantization;
  config.keeps_unquantized_projections = stored.has_unquantized_projections;
  config.weight_format = stored.format;
  if (*family == Family::kBert || *family == Family::kRoberta) {
    read_encoder(fields, *family == Family::kRoberta, config);
  } else {
    read_decoder(fields, *family, config);
  }
  read_dtype(fields, config);
  config.eos_token_ids = fields.token_ids("eos_token_id");
  const std::vector<TokenId> bos = fields.token_ids("bos_token_id");
  if (!bos.empty()) config.bos_token_id = bos.front();
  if (fields.error()) return *fields.error();
  return config;
}

Result<ModelConfig> read_config(const std::filesystem::path& folder) {
  if (is_gguf_path(folder)) return read_gguf_config(folder);
  const std::filesystem::path path = folder / "config.json";
  const Result<std::string> text = read_file(path, kMaxConfigBytes);
  if (!text) return text.error();
  return parse_config(*text, path.string());
}

}  // namespace millrace::model
