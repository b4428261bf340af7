#include "model/generation_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "model/field_reader.h"
#include "model/gguf_files.h"
#include "model/mapped_file.h"

namespace millrace::model {
namespace {

constexpr double kMinPositive = 1e-6;

std::optional<float> to_float(std::optional<double> value) {
  if (!value) return std::nullopt;
  return static_cast<float>(*value);
}

template <class T>
void replace(std::optional<T>& value, const std::optional<T>& by) {
  if (by) value = by;
}

constexpr std::array<std::string_view, 6> kFields = {"eos_token_id", "temperature", "top_p",
                                                     "min_p",        "top_k",       "repetition_penalty"};

Result<void> reject_unknown_fields(std::string_view json, std::string_view source) {
  JsonDocument document;
  const Result<JsonObject> object = parse_object(document, source, json, kMaxConfigNesting);
  if (!object) return object.error();
  for (const auto member : *object) {
    if (std::ranges::find(kFields, member.key) != kFields.end()) continue;
    return make_error(ErrorCode::kInvalidArgument, "{}: '{}' is not known, wanted {}", source, member.key,
                      fmt::join(kFields, ", "));
  }
  return {};
}

}  // namespace

Result<GenerationConfig> parse_generation_config(std::string_view json, std::string_view source) {
  JsonDocument document;
  const Result<JsonObject> object = parse_config_object(document, source, json);
  if (!object) return object.error();
  FieldReader fields(std::string(source), *object);
  GenerationConfig config;
  config.eos_token_ids = fields.token_ids("eos_token_id");
  config.temperature = to_float(fields.optional_number("temperature", 0.0, 100.0));
  config.top_p = to_float(fields.optional_number("top_p", kMinPositive, 1.0));
  config.min_p = to_float(fields.optional_number("min_p", 0.0, 1.0));
  config.repetition_penalty = to_float(fields.optional_number("repetition_penalty", kMinPositive, 100.0));
  // Some checkpoints write -1 for "off".
  config.top_k = fields.optional_integer("top_k", -1, INT32_MAX);
  if (config.top_k == -1) config.top_k = 0;
  if (fields.error()) return *fields.error();
  return config;
}

Result<void> override_generation_config(GenerationConfig& config, std::string_view json, std::string_view source) {
  Result<GenerationConfig> given = parse_generation_config(json, source);
  if (!given) return make_error(ErrorCode::kInvalidArgument, "{}", given.error().message);
  RETURN_IF_ERROR(reject_unknown_fields(json, source));
  if (!given->eos_token_ids.empty()) config.eos_token_ids = std::move(given->eos_token_ids);
  replace(config.temperature, given->temperature);
  replace(config.top_p, given->top_p);
  replace(config.min_p, given->min_p);
  replace(config.top_k, given->top_k);
  replace(config.repetition_penalty, given->repetition_penalty);
  return {};
}

Result<GenerationConfig> read_generation_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = description_folder(folder) / "generation_config.json";
  const Result<std::string> text = read_file(path, kMaxConfigBytes);
  if (text) return parse_generation_config(*text, path.string());
  if (text.error().code == ErrorCode::kNotFound) return GenerationConfig{};
  return text.error();
}

}  // namespace millrace::model
