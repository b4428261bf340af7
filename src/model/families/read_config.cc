#include "model/families/read_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "model/families/block.h"
#include "model/families/families.h"
#include "model/families/gguf_config.h"
#include "model/families/mistral_params.h"
#include "model/field_reader.h"
#include "model/gguf_files.h"
#include "model/mapped_file.h"

namespace millrace::model {
namespace {

constexpr std::string_view kGenerates = "ForCausalLM";
/// The architectures of a decoder family that have no output head.
constexpr std::array<std::string_view, 2> kPools = {"Model", "ForSequenceClassification"};

bool is_of_family(std::string_view architecture, const Family& family) {
  if (family.kind != FamilyKind::kDecoder) return architecture == family.name;
  if (!architecture.starts_with(family.name)) return false;
  const std::string_view rest = architecture.substr(family.name.size());
  return rest == kGenerates || std::ranges::find(kPools, rest) != kPools.end();
}

/// Returns the names of the architectures of one kind, for a message.
std::string known_architectures(FamilyKind kind) {
  std::vector<std::string> names;
  for (const Family& family : families()) {
    if (family.kind == kind)
      names.push_back(fmt::format("{}{}", family.name, kind == FamilyKind::kDecoder ? kGenerates : ""));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

const Family* find_family(FieldReader& fields, ModelConfig& config) {
  const std::vector<std::string> names = fields.strings("architectures");
  if (names.empty()) {
    fields.fail_with("architectures is missing or empty, wanted one of {}", known_architectures(FamilyKind::kDecoder));
    return nullptr;
  }
  const auto found =
      std::ranges::find_if(families(), [&](const Family& each) { return is_of_family(names.front(), each); });
  if (found != families().end()) {
    config.architecture = names.front();
    config.has_output_head = found->kind != FamilyKind::kDecoder || config.architecture.ends_with(kGenerates);
    return &*found;
  }
  const std::string wrappers = known_architectures(FamilyKind::kWrapper);
  fields.fail_with("architecture '{}' is not known, wanted one of {}, or the same with {} in place of {}, or {}{}{}",
                   names.front(), known_architectures(FamilyKind::kDecoder), fmt::join(kPools, " or "), kGenerates,
                   wrappers, wrappers.empty() ? "" : ", ", known_architectures(FamilyKind::kEncoder));
  return nullptr;
}

/// Reads the dtype of a checkpoint. Some name that of codes in 8 bits, which are decoded to bfloat16.
void read_dtype(FieldReader& fields, ModelConfig& config) {
  const char* key = fields.has("dtype") ? "dtype" : "torch_dtype";
  const std::string name = fields.text_or(key, "float32");
  const Result<tensor::DType> dtype = tensor::parse_dtype(name.starts_with("float8_") ? "bfloat16" : name);
  if (dtype)
    config.dtype = *dtype;
  else
    fields.fail_with("{}: {}", key, dtype.error().message);
}

void read_special_tokens(FieldReader& fields, ModelConfig& config) {
  if (fields.has("eos_token_id")) config.eos_token_ids = fields.token_ids("eos_token_id");
  const std::vector<TokenId> bos = fields.token_ids("bos_token_id");
  if (!bos.empty()) config.bos_token_id = bos.front();
}

void read_stored_quantization(FieldReader& fields, ModelConfig& config) {
  const StoredQuantization stored = read_quantization(fields);
  config.quantization = stored.quantization;
  config.keeps_unquantized_projections = stored.has_unquantized_projections;
  config.weight_format = stored.format;
}

void describe(const Family& family, FieldReader& fields, ModelConfig& config) {
  family.describe(fields, config);
  if (family.kind != FamilyKind::kEncoder) refuse_unread_arithmetic(fields, config);
}

bool has_dtype(const FieldReader& fields) {
  return fields.has("dtype") || fields.has("torch_dtype");
}

/// Describes the text part of a wrapper, whose config is the member text_config, or in older files all of it. What lies
/// outside of it goes before what lies in it. The head is tied if either says so: where the two differ, a stored head
/// decides, see untie_separate_head.
void describe_wrapped(const Family& family, FieldReader& fields, ModelConfig& config) {
  constexpr const char* kTextConfig = "text_config";
  const auto object = fields.object(kTextConfig);
  if (!object && fields.has("hidden_size")) return describe(family, fields, config);
  if (!object) return fields.fail_with("{} is missing, wanted the config of the text model", kTextConfig);
  FieldReader text(fields.source() + ": " + kTextConfig, *object);
  if (!has_dtype(fields) && has_dtype(text)) read_dtype(text, config);
  if (!fields.has("quantization_config") && text.has("quantization_config")) read_stored_quantization(text, config);
  describe(family, text, config);
  read_special_tokens(text, config);
  fields.take_error_of(text);
  config.tied_embeddings = fields.flag_or("tie_word_embeddings", false) || config.tied_embeddings;
}

/// A file in which a quantizer describes weights next to config.json, and the method of one that does not say it.
struct QuantizationFile {
  std::string_view name;
  std::string_view usual_method;
};
constexpr std::array<QuantizationFile, 3> kQuantizationFiles = {{
    {"hf_quant_config.json", "modelopt"},
    {"quantize_config.json", "gptq"},
    {"quant_config.json", "awq"},
}};

/// Returns whether a file says how weights are quantized. Exporters to ONNX write others under the same name.
bool describes_weights(JsonObject object) {
  constexpr std::array<const char*, 6> kMembers = {"quant_method", "method",     "bits",
                                                   "w_bit",        "quant_algo", "quantization"};
  return std::ranges::any_of(kMembers, [object](const char* name) { return !object[name].is_missing(); });
}

/// Reads such a file; nothing where there is none, or it does not describe weights.
Result<std::optional<weights::WeightFormat>> read_format_file(const std::filesystem::path& path,
                                                              std::string_view usual_method) {
  const Result<std::string> text = read_file(path, kMaxConfigBytes);
  if (!text && text.error().code == ErrorCode::kNotFound) return std::nullopt;
  if (!text) return text.error();
  JsonDocument document;
  const Result<JsonObject> object = parse_config_object(document, path.string(), *text);
  if (!object) return object.error();
  if (!describes_weights(*object)) return std::nullopt;
  auto format = weights::parse_weight_format(*object, usual_method);
  if (!format) return make_error(format.error().code, "{}: {}", path.string(), format.error().message);
  return std::move(*format);
}

/// Takes the weight format of the first such file. What is wrong with it matters only to a checkpoint in codes.
void find_format_file(const std::filesystem::path& folder, ModelConfig& config) {
  for (const QuantizationFile& file : kQuantizationFiles) {
    const std::filesystem::path path = folder / file.name;
    auto format = read_format_file(path, file.usual_method);
    if (format && !*format) continue;
    config.format_file = {.path = path.string(), .fault = format ? std::string() : format.error().message};
    if (format) config.weight_format = std::move(**format);
    return;
  }
}

/// Reads the description of a model in Mistral's own format.
Result<ModelConfig> read_mistral_params(const std::filesystem::path& path) {
  const Result<std::string> params = read_file(path, kMaxConfigBytes);
  if (!params) return params.error();
  const Result<std::string> text = config_of_params(*params, path.string());
  if (!text) return text.error();
  Result<ModelConfig> config = parse_config(*text, path.string());
  if (config) config->names = mistral_names();
  return config;
}

/// Reads config.json of a folder, and what describes weights besides it.
Result<ModelConfig> read_folder_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  const Result<std::string> text = read_file(path, kMaxConfigBytes);
  if (!text && text.error().code == ErrorCode::kNotFound && std::filesystem::exists(folder / kMistralParamsName))
    return read_mistral_params(folder / kMistralParamsName);
  if (!text) return text.error();
  Result<ModelConfig> config = parse_config(*text, path.string());
  const bool is_described = !config || config->quantization != Quantization::kNone ||
                            config->weight_format.method != weights::QuantMethod::kNone;
  if (!is_described) find_format_file(folder, *config);
  return config;
}

}  // namespace

Result<ModelConfig> parse_config(std::string_view json, std::string_view source) {
  JsonDocument document;
  const Result<JsonObject> object = parse_config_object(document, source, json);
  if (!object) return object.error();
  FieldReader fields(std::string(source), *object);
  ModelConfig config;
  const Family* family = find_family(fields, config);
  if (family == nullptr) return *fields.error();
  if (has_dtype(fields)) read_dtype(fields, config);
  read_stored_quantization(fields, config);
  if (family->kind == FamilyKind::kWrapper) {
    describe_wrapped(*family, fields, config);
  } else {
    describe(*family, fields, config);
  }
  read_special_tokens(fields, config);
  if (fields.error()) return *fields.error();
  return config;
}

Result<ModelConfig> read_config(const std::filesystem::path& folder) {
  Result<ModelConfig> config = is_gguf_path(folder) ? read_gguf_config(folder) : read_folder_config(folder);
  if (config) drop_wide_windows(*config);
  return config;
}

}  // namespace millrace::model
