#include <algorithm>

#include "base/utf8.h"
#include "text/tokenizer/tokenizer_parts.h"

namespace millrace::text {
namespace {

/// Several times the largest vocabulary; a file with larger ids is broken or hostile.
constexpr int64_t kMaxTokenId = (int64_t{1} << 23) - 1;

TokenId checked_id(JsonValue json, std::string_view what) {
  int64_t id = -1;
  if (!json.get(id) || id < 0 || id > kMaxTokenId) {
    fail_data("the id of {} is not a number from 0 to {}", what, kMaxTokenId);
  }
  return static_cast<TokenId>(id);
}

JsonDocument parse_document(std::string_view json, std::string_view name) {
  auto document = JsonDocument::parse(json, kModelFileJson);
  if (document.has_error()) {
    throw ErrorException(make_error(ErrorCode::kData, "{}: {}", name, document.error().message));
  }
  if (!document->root().is_object()) throw ErrorException(make_error(ErrorCode::kData, "{}: not a JSON object", name));
  return std::move(*document);
}

void register_token(TokenizerParts& parts, TokenId id, std::string_view text, bool special) {
  const auto index = static_cast<size_t>(id);
  if (parts.tokens.size() <= index) {
    parts.tokens.resize(index + 1);
    parts.is_special.resize(index + 1);
  }
  parts.tokens[index] = text;
  parts.is_special[index] = special;
  parts.ids.insert_or_assign(std::string(text), id);
}

void parse_vocabulary(JsonValue model, TokenizerParts& parts) {
  const auto vocab = member(model, "vocab");
  JsonObject entries;
  if (!vocab || !vocab->get(entries)) fail_data("model: \"vocab\" is not an object");
  for (const auto entry : entries) register_token(parts, checked_id(entry.value, entry.key), entry.key, false);
}

/// "a b". Where the tokens hold spaces themselves, the cut is the one that gives tokens of the vocabulary.
Bpe::Merge cut_merge(std::string_view text, const TokenMap& vocab) {
  const size_t space = text.find(' ');
  if (space == text.rfind(' ') && space != std::string_view::npos)
    return {text.substr(0, space), text.substr(space + 1)};
  for (size_t at = space; at < text.size(); at = text.find(' ', at + 1)) {
    const Bpe::Merge merge = {text.substr(0, at), text.substr(at + 1)};
    if (vocab.find(merge.first) == vocab.end() || vocab.find(merge.second) == vocab.end()) continue;
    if (vocab.find(std::string(merge.first).append(merge.second)) != vocab.end()) return merge;
  }
  fail_data("merge \"{}\" is not two tokens with a space between", text);
}

/// "a b" or ["a", "b"].
Bpe::Merge parse_merge(JsonValue json, const TokenMap& vocab) {
  std::string_view text;
  if (json.get(text)) return cut_merge(text, vocab);
  JsonArray pair;
  Bpe::Merge merge;
  if (!json.get(pair) || pair.size() != 2 || !pair.at(0).get(merge.first) || !pair.at(1).get(merge.second)) {
    fail_data("a merge is neither \"a b\" nor [\"a\", \"b\"]");
  }
  return merge;
}

void parse_model(JsonValue model, TokenizerParts& parts) {
  const std::string_view type = string_member(model, "type", "BPE");
  if (type != "BPE") fail_data("model type \"{}\" is not supported", type);
  for (const std::string_view name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!string_member(model, name, "").empty()) fail_data("model: a {} is not supported", name);
  }
  double dropout = 0;
  if (const auto given = member(model, "dropout"); given && (given->get(dropout) || dropout != 0)) {
    fail_data("model: dropout is not supported");
  }
  parse_vocabulary(model, parts);
  std::vector<Bpe::Merge> merges;
  for (const JsonValue merge : array_member(model, "merges")) merges.push_back(parse_merge(merge, parts.ids));
  Bpe::Config config;
  config.byte_level = parts.byte_level;
  config.byte_fallback = bool_member(model, "byte_fallback", false);
  config.fuse_unk = bool_member(model, "fuse_unk", false);
  config.ignore_merges = bool_member(model, "ignore_merges", false);
  config.unk_token = string_member(model, "unk_token", "");
  if (config.byte_level && config.byte_fallback) fail_data("model: byte_fallback behind ByteLevel is not supported");
  parts.bpe = std::make_unique<const Bpe>(config, parts.ids, merges);
}

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
std::vector<AddedToken> parse_added_tokens(JsonValue document, std::optional<JsonValue> config) {
  std::vector<AddedToken> tokens;
  if (member(document, "added_tokens")) {
    for (const JsonValue json : array_member(document, "added_tokens")) {
      const auto id = member(json, "id");
      if (!id) fail_data("an added token has no id");
      tokens.push_back(parse_added_token(json, checked_id(*id, "an added token")));
    }
  }
  const auto more = config ? member(*config, "added_tokens_decoder") : std::nullopt;
  JsonObject entries;
  if (!more || !more->get(entries)) return tokens;
  for (const auto entry : entries) {
    TokenId id = 0;
    for (const char c : entry.key) {
      if (c < '0' || c > '9' || id > kMaxTokenId / 10 - 1)
        fail_data("added_tokens_decoder: \"{}\" is no id", entry.key);
      id = id * 10 + (c - '0');
    }
    const bool known =
        std::any_of(tokens.begin(), tokens.end(), [&](const AddedToken& token) { return token.id == id; });
    if (!known) tokens.push_back(parse_added_token(entry.value, id));
  }
  return tokens;
}

void add_added_tokens(const std::vector<AddedToken>& tokens, TokenizerParts& parts) {
  RegexScratch scratch;
  for (AddedToken token : tokens) {
    if (token.content.empty()) continue;
    // A token of the model keeps its id, whatever the list says: so does the reference.
    if (const auto it = parts.ids.find(token.content); it != parts.ids.end()) token.id = it->second;
    register_token(parts, token.id, token.content, token.special);
    if (!token.normalized) {
      parts.raw_added.add(token, token.content);
      continue;
    }
    std::string pattern = token.content;
    parts.normalizer.apply(pattern, scratch);
    parts.normalized_added.add(token, pattern);
  }
}

/// "bos_token" and the like: a string, or an object with "content".
std::optional<TokenId> config_token(std::optional<JsonValue> config, std::string_view name,
                                    const TokenizerParts& parts) {
  const auto json = config ? member(*config, name) : std::nullopt;
  if (!json) return std::nullopt;
  std::string_view content;
  if (!json->get(content)) content = string_member(*json, "content", "");
  const auto it = parts.ids.find(content);
  if (it == parts.ids.end()) return std::nullopt;
  return it->second;
}

/// The Llama tokenizer class builds its post-processor anew from add_bos_token and add_eos_token.
void apply_llama_class(JsonValue config, TokenizerParts& parts) {
  const std::string_view tokenizer_class = string_member(config, "tokenizer_class", "");
  if (tokenizer_class != "LlamaTokenizer" && tokenizer_class != "LlamaTokenizerFast") return;
  if (!member(config, "add_bos_token") && !member(config, "add_eos_token")) return;
  parts.prefix.clear();
  parts.suffix.clear();
  if (bool_member(config, "add_bos_token", true) && parts.bos) parts.prefix.push_back(*parts.bos);
  if (bool_member(config, "add_eos_token", false) && parts.eos) parts.suffix.push_back(*parts.eos);
}

}  // namespace

TokenizerParts parse_tokenizer(std::string_view tokenizer_json, std::string_view config_json) {
  const JsonDocument tokenizer = parse_document(tokenizer_json, "tokenizer.json");
  const JsonValue document = tokenizer.root();
  JsonDocument config_document;
  std::optional<JsonValue> config;
  if (!config_json.empty()) {
    config_document = parse_document(config_json, "tokenizer_config.json");
    config = config_document.root();
  }

  TokenizerParts parts;
  if (const auto json = member(document, "normalizer")) parts.normalizer = parse_normalizer(*json);
  if (const auto json = member(document, "pre_tokenizer")) parse_pre_tokenizer(*json, parts);
  const auto model = member(document, "model");
  if (!model) fail_data("\"model\" is missing");
  parse_model(*model, parts);
  add_added_tokens(parse_added_tokens(document, config), parts);
  std::vector<TokenDecoder::Step> steps = {TokenDecoder::JoinWithSpaces{}};
  if (const auto json = member(document, "decoder")) steps = parse_decoder(*json);
  parts.decoder.compile(steps, parts.tokens);
  if (const auto json = member(document, "post_processor")) parse_post_processor(*json, parts);
  parts.bos = config_token(config, "bos_token", parts);
  parts.eos = config_token(config, "eos_token", parts);
  if (config) apply_llama_class(*config, parts);
  return parts;
}

}  // namespace millrace::text
