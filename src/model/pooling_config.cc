#include "model/pooling_config.h"

#include <fmt/ranges.h>

#include <array>

#include "model/field_reader.h"
#include "model/gguf_files.h"
#include "model/mapped_file.h"

namespace millrace::model {
namespace {

constexpr int32_t kMaxVectorWidth = 1 << 20;
constexpr int32_t kMaxSequenceLength = 1 << 28;

struct NamedActivation {
  std::string_view name;  // of the class in torch.nn
  Activation activation;
};
constexpr std::array kNamedActivations = {
    NamedActivation{"Identity", Activation::kIdentity}, NamedActivation{"Sigmoid", Activation::kSigmoid},
    NamedActivation{"Tanh", Activation::kTanh},         NamedActivation{"ReLU", Activation::kRelu},
    NamedActivation{"GELU", Activation::kGelu},
};

struct NamedMode {
  std::string_view word;  // of the newer "pooling_mode"
  std::string_view flag;  // of the older members, of which one is true
  std::optional<PoolingMode> mode;
};
constexpr std::array kNamedModes = {
    NamedMode{"cls", "pooling_mode_cls_token", PoolingMode::kCls},
    NamedMode{"mean", "pooling_mode_mean_tokens", PoolingMode::kMean},
    NamedMode{"lasttoken", "pooling_mode_lasttoken", PoolingMode::kLast},
    NamedMode{"max", "pooling_mode_max_tokens", std::nullopt},
    NamedMode{"mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", std::nullopt},
    NamedMode{"weightedmean", "pooling_mode_weightedmean_tokens", std::nullopt},
};

/// Returns the part of a dotted name after the last dot.
std::string_view class_name(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

Activation read_activation(FieldReader& fields, std::string_view key, std::string_view name) {
  for (const NamedActivation& each : kNamedActivations) {
    if (class_name(name) == each.name) return each.activation;
  }
  fields.fail_with("{} '{}' is not computed here, wanted Identity, Sigmoid, Tanh, ReLU or GELU", key, name);
  return Activation::kIdentity;
}

/// Returns the mode that the members choose; the default of sentence-transformers is the mean.
PoolingMode read_mode(FieldReader& fields) {
  std::vector<std::string_view> chosen;
  std::optional<PoolingMode> mode = PoolingMode::kMean;
  const std::string word = fields.text_or("pooling_mode", "");
  for (const NamedMode& each : kNamedModes) {
    const bool is_chosen = word.empty() ? fields.flag_or(each.flag, false) : word == each.word;
    if (!is_chosen) continue;
    chosen.push_back(word.empty() ? each.flag : each.word);
    mode = each.mode;
  }
  if (!word.empty() && chosen.empty()) chosen.push_back(word), mode = std::nullopt;
  if (chosen.size() > 1 || !mode) {
    fields.fail_with("pooling by {} is not computed here, wanted one of cls, mean and lasttoken",
                     fmt::join(chosen, " and "));
  }
  return mode.value_or(PoolingMode::kMean);
}

struct ParsedFile {
  std::string text;
  JsonDocument document;
};

/// Reads a JSON object from a file; none where the file is absent.
Result<std::optional<JsonObject>> read_object(const std::filesystem::path& path, ParsedFile& file) {
  Result<std::string> text = read_file(path, kMaxConfigBytes);
  if (!text) {
    if (text.error().code == ErrorCode::kNotFound) return std::optional<JsonObject>();
    return text.error();
  }
  file.text = std::move(*text);
  const Result<JsonObject> object = parse_object(file.document, path.string(), file.text, kMaxConfigNesting);
  if (!object) return object.error();
  return std::optional(*object);
}

/// Reads a JSON object from a file that must exist.
Result<JsonObject> read_required_object(const std::filesystem::path& path, ParsedFile& file) {
  const auto object = read_object(path, file);
  if (!object) return object.error();
  if (!*object) return make_error(ErrorCode::kNotFound, "{}: modules.json names it, but it is missing", path.string());
  return **object;
}

/// Reads the modules of sentence-transformers one after another.
class ModulesReader {
 public:
  explicit ModulesReader(const std::filesystem::path& folder)
      : folder_(folder), source_((folder / "modules.json").string()) {}

  Result<PoolingConfig> read(JsonArray modules) {
    config_.has_modules = true;
    config_.normalizes = false;
    for (const JsonValue module : modules) RETURN_IF_ERROR(read_module(module));
    return config_;
  }

 private:
  Result<void> read_module(JsonValue module) {
    JsonObject members;
    if (!module.get(members)) return make_error(ErrorCode::kData, "{}: wanted a list of objects", source_);
    FieldReader fields(source_, members);
    const std::string path = fields.text_or("path", "");
    const std::string type = fields.text("type");
    if (fields.error()) return *fields.error();
    const std::string_view kind = class_name(type);
    const bool leaves_folder = path.starts_with('/') || path.find("..") != std::string::npos;
    if (leaves_folder) return make_error(ErrorCode::kData, "{}: path '{}' leaves the model's folder", source_, path);
    if (kind == "Transformer" || kind == "Dropout") return {};
    if (config_.normalizes) return make_error(ErrorCode::kData, "{}: {} after Normalize", source_, kind);
    if (kind == "Pooling") return read_pooling(folder_ / path / "config.json");
    if (kind == "Dense") return read_dense(folder_ / path);
    if (kind == "LogitScore") return read_token_score(folder_ / path / "config.json");
    if (kind != "Normalize") {
      return make_error(ErrorCode::kData,
                        "{}: module '{}' is not computed here, wanted Transformer, Pooling, Dense, Normalize or "
                        "LogitScore",
                        source_, type);
    }
    config_.normalizes = true;
    return {};
  }

  Result<void> read_pooling(const std::filesystem::path& path) {
    ParsedFile file;
    const auto object = read_required_object(path, file);
    if (!object) return object.error();
    FieldReader fields(path.string(), *object);
    config_.mode = read_mode(fields);
    config_.pools_prompts = fields.flag_or("include_prompt", true);
    const char* key = fields.has("embedding_dimension") ? "embedding_dimension" : "word_embedding_dimension";
    config_.input_width = fields.integer_or(key, 0, 0, kMaxVectorWidth);
    if (fields.error()) return *fields.error();
    return {};
  }

  Result<void> read_dense(const std::filesystem::path& folder) {
    ParsedFile file;
    const std::filesystem::path path = folder / "config.json";
    const auto object = read_required_object(path, file);
    if (!object) return object.error();
    FieldReader fields(path.string(), *object);
    DenseConfig dense{.folder = folder,
                      .inputs = fields.integer("in_features", 1, kMaxVectorWidth),
                      .outputs = fields.integer("out_features", 1, kMaxVectorWidth),
                      .has_bias = fields.flag_or("bias", true)};
    dense.activation = read_activation(fields, "activation_function",
                                       fields.text_or("activation_function", "torch.nn.modules.activation.Tanh"));
    if (fields.error()) return *fields.error();
    config_.dense.push_back(std::move(dense));
    return {};
  }

  Result<void> read_token_score(const std::filesystem::path& path) {
    ParsedFile file;
    const auto object = read_required_object(path, file);
    if (!object) return object.error();
    FieldReader fields(path.string(), *object);
    config_.token_score = {.true_token = fields.integer("true_token_id", 0, INT32_MAX),
                           .false_token = fields.optional_integer("false_token_id", 0, INT32_MAX)};
    if (fields.error()) return *fields.error();
    return {};
  }

  const std::filesystem::path& folder_;
  const std::string source_;
  PoolingConfig config_;
};

Result<void> read_sentence_config(const std::filesystem::path& path, PoolingConfig& config) {
  ParsedFile file;
  const auto object = read_object(path, file);
  if (!object) return object.error();
  if (!*object) return {};
  FieldReader fields(path.string(), **object);
  config.max_sequence_length = fields.integer_or("max_seq_length", 0, 1, kMaxSequenceLength);
  if (fields.flag_or("do_lower_case", false)) fields.fail("do_lower_case true is not supported, wanted false");
  if (fields.error()) return *fields.error();
  return {};
}

}  // namespace

Result<PoolingMode> parse_pooling_mode(std::string_view json, std::string_view source) {
  JsonDocument document;
  const Result<JsonObject> object = parse_object(document, source, json, kMaxConfigNesting);
  if (!object) return object.error();
  FieldReader fields(std::string(source), *object);
  const PoolingMode mode = read_mode(fields);
  if (fields.error()) return *fields.error();
  return mode;
}

Result<ScoreConfig> parse_score_config(std::string_view json, std::string_view source) {
  JsonDocument document;
  const Result<JsonObject> object = parse_object(document, source, json, kMaxConfigNesting);
  if (!object) return object.error();
  FieldReader fields(std::string(source), *object);
  ScoreConfig config;
  if (fields.text_or("problem_type", "") == "regression") config.activation = Activation::kIdentity;
  constexpr std::string_view kOlder = "sbert_ce_default_activation_function";
  if (const std::string name = fields.text_or(kOlder, ""); !name.empty())
    config.activation = read_activation(fields, kOlder, name);
  if (const auto nested = fields.object("sentence_transformers")) {
    FieldReader own(fields.source() + ": sentence_transformers", *nested);
    if (const std::string name = own.text_or("activation_fn", ""); !name.empty())
      config.activation = read_activation(own, "activation_fn", name);
    fields.take_error_of(own);
  }
  if (const auto code = fields.object("auto_map")) {
    FieldReader classes(fields.source() + ": auto_map", *code);
    config.own_code = classes.text_or("AutoModel", "");
    fields.take_error_of(classes);
  }
  config.classifier_from_token = fields.strings("classifier_from_token");
  if (!config.classifier_from_token.empty() && config.classifier_from_token.size() != 2)
    fields.fail_with("classifier_from_token names {} words, wanted 2", config.classifier_from_token.size());
  config.matryoshka_dimensions = fields.integers("matryoshka_dimensions", 1, kMaxVectorWidth);
  config.is_matryoshka = fields.flag_or("is_matryoshka", !config.matryoshka_dimensions.empty());
  if (fields.error()) return *fields.error();
  return config;
}

Result<PoolingConfig> read_pooling_config(const std::filesystem::path& model_path) {
  const std::filesystem::path folder = description_folder(model_path);
  PoolingConfig config;
  const std::filesystem::path path = folder / "modules.json";
  const Result<std::string> text = read_file(path, kMaxConfigBytes);
  if (text) {
    const auto document = JsonDocument::parse(*text, {.max_depth = kMaxConfigNesting});
    if (!document) return make_error(ErrorCode::kData, "{}: {}", path.string(), document.error().message);
    JsonArray modules;
    if (!document->root().get(modules)) return make_error(ErrorCode::kData, "{}: wanted a list", path.string());
    auto read = ModulesReader(folder).read(modules);
    if (!read) return read.error();
    config = std::move(*read);
  } else if (text.error().code != ErrorCode::kNotFound) {
    return text.error();
  }
  RETURN_IF_ERROR(read_sentence_config(folder / "sentence_bert_config.json", config));
  return config;
}

Result<ScoreConfig> read_score_config(const std::filesystem::path& model_path) {
  const std::filesystem::path folder = description_folder(model_path);
  const std::filesystem::path path = folder / "config.json";
  const Result<std::string> text = read_file(path, kMaxConfigBytes);
  if (!text && text.error().code == ErrorCode::kNotFound && is_gguf_path(model_path)) return ScoreConfig();
  if (!text) return text.error();
  Result<ScoreConfig> config = parse_score_config(*text, path.string());
  if (!config) return config;
  ParsedFile file;
  const std::filesystem::path own = folder / "config_sentence_transformers.json";
  const auto object = read_object(own, file);
  if (!object) return object.error();
  if (!*object) return config;
  FieldReader fields(own.string(), **object);
  if (const std::string name = fields.text_or("activation_fn", ""); !name.empty())
    config->activation = read_activation(fields, "activation_fn", name);
  if (fields.error()) return *fields.error();
  return config;
}

}  // namespace millrace::model
