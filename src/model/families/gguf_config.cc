#include "model/families/gguf_config.h"

#include <array>

#include "base/log.h"
#include "gguf/config_json.h"
#include "gguf/families.h"
#include "model/families/read_config.h"
#include "model/field_reader.h"
#include "model/gguf_files.h"

namespace millrace::model {
namespace {

/// Returns whether a config.json describes a model. Some repositories of GGUF files have one with a name alone.
bool describes_model(const std::string& text, const std::string& source) {
  JsonDocument document;
  const auto object = parse_object(document, source, text, kMaxConfigNesting);
  return !object || !(*object)["architectures"].is_missing();
}

AttentionConfig heads_of(const ModelConfig& config) {
  return config.layers.empty() ? AttentionConfig() : config.layers.front().attention;
}

/// Refuses a config.json of another model. Other differences show in the shapes of tensors.
Result<void> check_agreement(const ModelConfig& own, const ModelConfig& stored, const std::string& own_source,
                             const std::string& stored_source) {
  struct Size {
    std::string_view name;
    int32_t own;
    int32_t stored;
  };
  const std::array sizes = {Size{"hidden_size", own.hidden_size, stored.hidden_size},
                            Size{"num_hidden_layers", own.layer_count(), stored.layer_count()},
                            Size{"num_attention_heads", heads_of(own).head_count, heads_of(stored).head_count},
                            Size{"num_key_value_heads", heads_of(own).kv_head_count, heads_of(stored).kv_head_count},
                            Size{"head_dim", heads_of(own).head_dim, heads_of(stored).head_dim}};
  for (const Size& size : sizes) {
    if (size.own != size.stored)
      return make_error(ErrorCode::kData, "{}: {} is {}, but {} by {} in the same folder, wanted the same model",
                        own_source, size.name, size.own, size.stored, stored_source);
  }
  return {};
}

}  // namespace

Result<ModelConfig> read_gguf_config(const std::filesystem::path& path) {
  const auto files = GgufFiles::open(path);
  if (!files) return files.error();
  const std::string& source = (*files)->model().source();
  const auto stored_text = gguf::config_json((*files)->model());
  if (!stored_text) return stored_text.error();
  auto stored = parse_config(*stored_text, source);
  if (!stored) return stored.error();
  ModelConfig config = *stored;
  const std::filesystem::path own_path = description_folder(path) / "config.json";
  const auto own_text = read_file(own_path, kMaxConfigBytes);
  if (!own_text && own_text.error().code != ErrorCode::kNotFound) return own_text.error();
  const bool is_folded = gguf::family_of((*files)->model()).stores_products;
  if (own_text && is_folded) {
    log::info("{}: {} is passed over, since the weights are products with its multipliers", source, own_path.string());
  } else if (own_text && describes_model(*own_text, own_path.string())) {
    auto own = parse_config(*own_text, own_path.string());
    if (!own) return own.error();
    RETURN_IF_ERROR(check_agreement(*own, *stored, own_path.string(), source));
    log::info("{}: the configuration is that of {}", source, own_path.string());
    config = std::move(*own);
    config.vocab_size = stored->vocab_size;
    config.tied_embeddings = stored->tied_embeddings;
    config.quantization = Quantization::kNone;
    config.keeps_unquantized_projections = false;
  }
  config.weight_format = {.method = weights::QuantMethod::kGguf};
  config.names.expert_storage = ExpertStorage::kSeparate;
  config.names.stores_decay_rates = true;
  return config;
}

}  // namespace millrace::model
