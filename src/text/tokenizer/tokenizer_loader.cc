#include <algorithm>

#include "base/utf8.h"
#include "text/tokenizer/tokenizer_parts.h"

namespace millrace::text {
namespace {

AddedToken parse_added_token(JsonValue json, TokenId id) {
  AddedToken token;
  token.id = id;
  token.content = string_member(json, "content", "");
  token.single_word = bool_member(json, "single_word", false);
  token.lstrip = bool_member(json, "lstrip", false);
  token.rstrip = bool_member(json, "rstrip", false);
  token.normalized = bool_member(json, "normalized", false);
  token.special = bool_member(json, "special", false);
  return token;
}

/// Returns the added tokens of tokenizer.json, and those that only the config's added_tokens_decoder has.
std::vector<AddedToken> parse_added_tokens(JsonValue document, const std::vector<AddedToken>& of_config) {
  std::vector<AddedToken> tokens;
  if (member(document, "added_tokens")) {
    for (const JsonValue json : array_member(document, "added_tokens")) {
      const auto id = member(json, "id");
      if (!id) fail_data("an added token has no id");
      tokens.push_back(parse_added_token(json, checked_id(*id, "an added token")));
    }
  }
  for (const AddedToken& more : of_config) {
    const bool known =
        std::any_of(tokens.begin(), tokens.end(), [&](const AddedToken& token) { return token.id == more.id; });
    if (!known) tokens.push_back(more);
  }
  return tokens;
}

/// Enters the added tokens. `spellings` are the tokens as the decoder takes them: normalized ones in their normalised
/// form.
void add_added_tokens(const std::vector<AddedToken>& tokens, TokenizerParts& parts,
                      std::vector<std::string>& spellings) {
  RegexScratch scratch;
  std::vector<std::pair<TokenId, std::string>> normalized;
  for (AddedToken token : tokens) {
    if (token.content.empty()) continue;
    // A token of the model keeps its id, whatever the list says: so does the reference.
    if (const auto it = parts.ids.find(token.content); it != parts.ids.end()) token.id = it->second;
    register_token(parts, token.id, token.content, token.kind());
    if (!token.normalized) {
      parts.raw_added.add(token, token.content);
      continue;
    }
    std::string pattern = token.content;
    parts.normalizer.apply(pattern, scratch);
    parts.normalized_added.add(token, pattern);
    normalized.emplace_back(token.id, std::move(pattern));
  }
  spellings = parts.tokens;
  for (auto& [id, spelling] : normalized) spellings[static_cast<size_t>(id)] = std::move(spelling);
}

/// The Llama tokenizer class builds its post-processor anew from add_bos_token and add_eos_token.
void apply_llama_class(JsonValue config, TokenizerParts& parts) {
  const std::string_view tokenizer_class = string_member(config, "tokenizer_class", "");
  if (tokenizer_class != "LlamaTokenizer" && tokenizer_class != "LlamaTokenizerFast") return;
  if (!member(config, "add_bos_token") && !member(config, "add_eos_token")) return;
  using Piece = PostProcessor::Piece;
  PostProcessor& processor = parts.post_processor;
  const auto around = [&](Piece::Kind kind, uint32_t type_id, std::vector<Piece>& pieces) {
    if (bool_member(config, "add_bos_token", true) && parts.bos) {
      pieces.push_back({.kind = Piece::Kind::kTokens, .type_id = type_id, .tokens = {*parts.bos}});
    }
    pieces.push_back({.kind = kind, .type_id = type_id, .tokens = {}});
    if (bool_member(config, "add_eos_token", false) && parts.eos) {
      pieces.push_back({.kind = Piece::Kind::kTokens, .type_id = type_id, .tokens = {*parts.eos}});
    }
  };
  processor = {.single = {}, .pair = {}};
  around(Piece::Kind::kFirst, 0, processor.single);
  processor.pair = processor.single;
  around(Piece::Kind::kSecond, 1, processor.pair);
}

TokenizerParts parse_parts(JsonValue document, const std::vector<AddedToken>& of_config) {
  TokenizerParts parts;
  if (const auto json = member(document, "normalizer")) parts.normalizer = parse_normalizer(*json);
  if (const auto json = member(document, "pre_tokenizer")) parse_pre_tokenizer(*json, parts);
  const auto model = member(document, "model");
  if (!model) fail_data("\"model\" is missing");
  parse_model(*model, parts);
  std::vector<std::string> spellings;
  add_added_tokens(parse_added_tokens(document, of_config), parts, spellings);
  std::vector<TokenDecoder::Step> steps = {TokenDecoder::JoinWithSpaces{}};
  if (const auto json = member(document, "decoder")) steps = parse_decoder(*json);
  parts.decoder.compile(steps, spellings);
  if (const auto json = member(document, "post_processor")) parts.post_processor = parse_post_processor(*json, parts);
  return parts;
}

}  // namespace

JsonDocument parse_document(std::string_view json, std::string_view name) {
  auto document = JsonDocument::parse(json, kModelFileJson);
  if (document.has_error()) {
    throw ErrorException(make_error(ErrorCode::kData, "{}: {}", name, document.error().message));
  }
  if (!document->root().is_object()) throw ErrorException(make_error(ErrorCode::kData, "{}: not a JSON object", name));
  return std::move(*document);
}

ConfigDocument parse_config(std::string_view config_json) {
  if (config_json.empty()) return {};
  ConfigDocument config{.document = parse_document(config_json, kConfigName), .root = std::nullopt};
  config.root = config.document.root();
  return config;
}

std::vector<AddedToken> parse_added_tokens_decoder(std::optional<JsonValue> config) {
  std::vector<AddedToken> tokens;
  const auto decoder = config ? member(*config, "added_tokens_decoder") : std::nullopt;
  JsonObject entries;
  if (!decoder || !decoder->get(entries)) return tokens;
  for (const auto entry : entries) {
    if (entry.key.empty()) fail_data("added_tokens_decoder: an empty name is no id");
    TokenId id = 0;
    for (const char c : entry.key) {
      if (c < '0' || c > '9' || id > TokenizerParts::kMaxTokenId / 10 - 1)
        fail_data("added_tokens_decoder: \"{}\" is no id", entry.key);
      id = id * 10 + (c - '0');
    }
    tokens.push_back(parse_added_token(entry.value, id));
  }
  return tokens;
}

std::optional<TokenId> config_token(std::optional<JsonValue> config, std::string_view name,
                                    const TokenizerParts& parts) {
  const auto json = config ? member(*config, name) : std::nullopt;
  if (!json) return std::nullopt;
  std::string_view content;  // a string, or an object with "content"
  if (!json->get(content)) content = string_member(*json, "content", "");
  const auto it = parts.ids.find(content);
  if (it == parts.ids.end()) return std::nullopt;
  return it->second;
}

TokenizerParts parse_tokenizer(std::string_view tokenizer_json, std::string_view config_json) {
  const JsonDocument tokenizer = parse_document(tokenizer_json, "tokenizer.json");
  const JsonValue document = tokenizer.root();
  const ConfigDocument config = parse_config(config_json);
  const auto of_config = in_file(kConfigName, [&] { return parse_added_tokens_decoder(config.root); });
  TokenizerParts parts = in_file("tokenizer.json", [&] { return parse_parts(document, of_config); });
  in_file(kConfigName, [&] {
    parts.bos = config_token(config.root, "bos_token", parts);
    parts.eos = config_token(config.root, "eos_token", parts);
    if (config.root) apply_llama_class(*config.root, parts);
  });
  return parts;
}

}  // namespace millrace::text
