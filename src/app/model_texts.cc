#include "app/model_texts.h"

#include "base/log.h"
#include "base/text_file.h"
#include "gguf/tokenizer_json.h"
#include "model/gguf_files.h"
#include "text/chat_template/mistral_templates.h"

namespace millrace::app {
namespace {

namespace fs = std::filesystem;
using text::ChatTemplate;
using text::Tokenizer;
using ChatTemplatePtr = std::shared_ptr<const ChatTemplate>;

Result<ChatTemplatePtr> or_none(Result<ChatTemplatePtr> loaded) {
  if (loaded.has_error() && loaded.error().code == ErrorCode::kNotFound) return ChatTemplatePtr();
  return loaded;
}

Result<ChatTemplate::SpecialTokens> special_tokens_of(std::string_view config_json, const std::string& source) {
  auto tokens = ChatTemplate::tokens_of(config_json);
  if (tokens.has_error()) return make_error(tokens.error().code, "{}: {}", source, tokens.error().message);
  return tokens;
}

/// Adds the tokens that the tokenizer itself names, as a tekken.json does, where the config names none.
void add_own_tokens(const Tokenizer& tokenizer, ChatTemplate::SpecialTokens& tokens) {
  if (tokenizer.bos_id()) tokens.emplace("bos_token", tokenizer.id_to_token(*tokenizer.bos_id()));
  if (tokenizer.eos_id()) tokens.emplace("eos_token", tokenizer.id_to_token(*tokenizer.eos_id()));
}

/// Returns the template that belongs to a tekken.json; null if none is known.
Result<ChatTemplatePtr> template_of_tekken(const Tokenizer& tokenizer, const ChatTemplate::SpecialTokens& tokens) {
  const bool thinks = tokenizer.token_to_id("[THINK]") && tokenizer.token_to_id("[/THINK]");
  const auto source = text::mistral_template(tokenizer.tekken_format().value_or(text::TekkenFormat()), thinks);
  if (!source) return ChatTemplatePtr();
  log::info("the chat template is the one of tekken.json v{}", tokenizer.tekken_format()->version);
  return ChatTemplate::with_tokens(*source, tokens);
}

Result<ModelTexts> load_from_folder(const fs::path& folder, bool with_chat_template) {
  ModelTexts texts;
  auto tokenizer = Tokenizer::load(folder);
  if (tokenizer.has_error()) return tokenizer.error();
  texts.tokenizer = std::move(*tokenizer);
  const auto config = read_optional_text_file(folder / "tokenizer_config.json");
  if (config.has_error()) return config.error();
  auto special_tokens = special_tokens_of(*config, folder.string());
  if (special_tokens.has_error()) return special_tokens.error();
  texts.special_tokens = std::move(*special_tokens);
  add_own_tokens(*texts.tokenizer, texts.special_tokens);
  if (!with_chat_template) return texts;
  auto chat_template = or_none(ChatTemplate::load(folder, texts.special_tokens));
  if (chat_template.has_value() && !*chat_template)
    chat_template = template_of_tekken(*texts.tokenizer, texts.special_tokens);
  if (chat_template.has_error()) return chat_template.error();
  texts.chat_template = std::move(*chat_template);
  return texts;
}

/// Refuses a tokenizer.json whose tokens are not those of the file. Tokens of the model itself are compared, since
/// added ones may be spelt otherwise.
Result<void> check_tokens(const Tokenizer& tokenizer, const gguf::Model& model, const fs::path& path) {
  const auto stored = gguf::vocabulary(model);
  if (stored.has_error()) return stored.error();
  for (size_t id = 0; id < stored->size(); ++id) {
    const std::string_view wanted = (*stored)[id];
    const std::string_view found = tokenizer.id_to_token(static_cast<TokenId>(id));
    if (!wanted.empty() && found != wanted)
      return make_error(ErrorCode::kData,
                        "{}: token {} is '{}', but '{}' in {}, wanted the tokenizer of the same model", path.string(),
                        id, found, wanted, model.source());
  }
  return {};
}

/// Reads the tokenizer of a GGUF file. `own_config` is the tokenizer_config.json in its folder, which may be empty.
Result<std::shared_ptr<const Tokenizer>> load_tokenizer(const gguf::Model& model, const fs::path& folder,
                                                        std::string_view config_json) {
  const fs::path path = folder / "tokenizer.json";
  const auto own = read_optional_text_file(path);
  if (own.has_error()) return own.error();
  if (own->empty()) {
    const auto stored = gguf::tokenizer_json(model);
    if (stored.has_error()) return stored.error();
    auto made = Tokenizer::from_json(*stored, config_json);
    if (made.has_error()) return make_error(made.error().code, "{}: {}", model.source(), made.error().message);
    return made;
  }
  auto made = Tokenizer::from_json(*own, config_json);
  if (made.has_error()) return make_error(made.error().code, "{}: {}", folder.string(), made.error().message);
  RETURN_IF_ERROR(check_tokens(**made, model, path));
  log::info("{}: the tokenizer is that of {}", model.source(), path.string());
  return made;
}

/// Returns the template of the files in the folder, else that of the metadata; null if there is none.
Result<ChatTemplatePtr> load_gguf_template(const gguf::Model& model, const fs::path& folder,
                                           std::string_view stored_config) {
  auto own = or_none(ChatTemplate::load(folder));
  if (own.has_error() || *own) return own;
  auto stored = or_none(ChatTemplate::from_source({}, stored_config));
  if (stored.has_error()) return make_error(stored.error().code, "{}: {}", model.source(), stored.error().message);
  return stored;
}

Result<ModelTexts> load_from_gguf(const fs::path& path, bool with_chat_template) {
  const auto files = model::GgufFiles::open(path);
  if (files.has_error()) return files.error();
  const gguf::Model& model = (*files)->model();
  const fs::path folder = model::description_folder(path);
  const auto own_config = read_optional_text_file(folder / "tokenizer_config.json");
  if (own_config.has_error()) return own_config.error();
  const auto stored_config = gguf::tokenizer_config_json(model);
  if (stored_config.has_error()) return stored_config.error();
  const std::string& config = own_config->empty() ? *stored_config : *own_config;
  ModelTexts texts;
  auto tokenizer = load_tokenizer(model, folder, config);
  if (tokenizer.has_error()) return tokenizer.error();
  texts.tokenizer = std::move(*tokenizer);
  auto special_tokens = special_tokens_of(config, model.source());
  if (special_tokens.has_error()) return special_tokens.error();
  texts.special_tokens = std::move(*special_tokens);
  if (!with_chat_template) return texts;
  auto chat_template = load_gguf_template(model, folder, *stored_config);
  if (chat_template.has_error()) return chat_template.error();
  texts.chat_template = std::move(*chat_template);
  return texts;
}

}  // namespace

Result<ModelTexts> load_model_texts(const fs::path& model_path, bool with_chat_template) {
  if (model::is_gguf_path(model_path)) return load_from_gguf(model_path, with_chat_template);
  return load_from_folder(model_path, with_chat_template);
}

}  // namespace millrace::app
