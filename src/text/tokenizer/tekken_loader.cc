#include <algorithm>
#include <array>
#include <charconv>

#include "base/base64.h"
#include "text/tokenizer/tokenizer_parts.h"

/// Reads Mistral's tekken.json. Ids are ranks after the special tokens, which have the first ids.
namespace millrace::text {
namespace {

constexpr std::string_view kTekkenFile = "tekken.json";
constexpr std::string_view kBos = "<s>";
constexpr std::string_view kEos = "</s>";

/// The special tokens of files that name none, which have a version up to kLastUnnamedVersion. Source: mistral_common.
constexpr std::array<std::string_view, 20> kUnnamedSpecialTokens = {"<unk>",
                                                                    kBos,
                                                                    kEos,
                                                                    "[INST]",
                                                                    "[/INST]",
                                                                    "[AVAILABLE_TOOLS]",
                                                                    "[/AVAILABLE_TOOLS]",
                                                                    "[TOOL_RESULTS]",
                                                                    "[/TOOL_RESULTS]",
                                                                    "[TOOL_CALLS]",
                                                                    "[IMG]",
                                                                    "<pad>",
                                                                    "[IMG_BREAK]",
                                                                    "[IMG_END]",
                                                                    "[PREFIX]",
                                                                    "[MIDDLE]",
                                                                    "[SUFFIX]",
                                                                    "[SYSTEM_PROMPT]",
                                                                    "[/SYSTEM_PROMPT]",
                                                                    "[TOOL_CONTENT]"};
constexpr int kLastUnnamedVersion = 7;
/// Bounds the names that the loader makes for special tokens without one. Files have 1000.
constexpr size_t kMaxSpecialTokens = 65'536;

struct TekkenConfig {
  std::string_view pattern;
  int version = 0;
  size_t vocab_size = 0;     ///< special tokens included
  size_t special_count = 0;  ///< ids of special tokens, named or not
};

size_t count_member(JsonValue json, std::string_view name) {
  uint64_t count = 0;
  const auto found = member(json, name);
  if (!found || !found->get(count) || count > static_cast<uint64_t>(TokenizerParts::kMaxTokenId)) {
    fail_data("config: \"{}\" is not a number up to {}", name, TokenizerParts::kMaxTokenId);
  }
  return count;
}

/// Reads "v13".
int parse_version(std::string_view text) {
  int version = 0;
  const char* end = text.data() + text.size();
  if (!text.starts_with('v') || std::from_chars(text.data() + 1, end, version).ptr != end || version < 1) {
    fail_data("config: version is \"{}\", wanted a letter v and a number", text);
  }
  return version;
}

TekkenConfig parse_tekken_config(JsonValue document) {
  const auto json = member(document, "config");
  if (!json) fail_data("\"config\" is missing");
  TekkenConfig config;
  config.pattern = string_member(*json, "pattern", "");
  if (config.pattern.empty()) fail_data("config: \"pattern\" is missing");
  config.version = parse_version(string_member(*json, "version", ""));
  config.vocab_size = count_member(*json, "default_vocab_size");
  config.special_count = count_member(*json, "default_num_special_tokens");
  if (config.special_count > kMaxSpecialTokens) {
    fail_data("config: default_num_special_tokens is {}, wanted at most {}", config.special_count, kMaxSpecialTokens);
  }
  if (config.special_count >= config.vocab_size) {
    fail_data("config: default_vocab_size is {}, wanted more than the {} special tokens", config.vocab_size,
              config.special_count);
  }
  return config;
}

std::vector<AddedToken> named_special_tokens(JsonValue document, const TekkenConfig& config) {
  std::vector<AddedToken> tokens;
  if (!member(document, "special_tokens")) {
    if (config.version > kLastUnnamedVersion) {
      fail_data("special_tokens is missing, wanted the tokens of version v{}", config.version);
    }
    for (const std::string_view name : kUnnamedSpecialTokens) {
      tokens.push_back({.id = static_cast<TokenId>(tokens.size()), .content = std::string(name), .special = true});
    }
    return tokens;
  }
  for (const JsonValue json : array_member(document, "special_tokens")) {
    const size_t wanted = tokens.size();
    const auto rank = member(json, "rank");
    uint64_t found = 0;
    if (!rank || !rank->get(found) || found != wanted) {
      fail_data("special_tokens: the rank of entry {} is {}, wanted {}", wanted,
                rank ? to_short_json(*rank, 40) : "missing", wanted);
    }
    AddedToken token{.id = static_cast<TokenId>(wanted)};
    token.content = string_member(json, "token_str", "");
    token.special = bool_member(json, "is_control", true);
    if (token.content.empty()) fail_data("special_tokens: entry {} has no token_str", wanted);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

std::vector<AddedToken> parse_special_tokens(JsonValue document, const TekkenConfig& config) {
  std::vector<AddedToken> tokens = named_special_tokens(document, config);
  if (tokens.size() > config.special_count) {
    fail_data("special_tokens has {} entries, wanted at most {}, which is default_num_special_tokens", tokens.size(),
              config.special_count);
  }
  while (tokens.size() < config.special_count) {
    const auto id = static_cast<TokenId>(tokens.size());
    tokens.push_back({.id = id, .content = fmt::format("<SPECIAL_{}>", id), .special = true});
  }
  return tokens;
}

/// Reads the words of reasoning_effort from the settings that the model knows.
TekkenFormat parse_format(JsonValue document, int version) {
  TekkenFormat format{.version = version};
  const auto settings = member(document, "model_settings_builder");
  const auto effort = settings ? member(*settings, "reasoning_effort") : std::nullopt;
  if (!effort) return format;
  for (const JsonValue word : array_member(*effort, "values")) {
    std::string_view text;
    if (!word.get(text) || text.empty()) {
      fail_data("model_settings_builder: a value of reasoning_effort is {}, wanted a word", to_short_json(word, 40));
    }
    format.efforts.emplace_back(text);
  }
  format.default_effort = string_member(*effort, "default", "");
  if (std::ranges::find(format.efforts, format.default_effort) == format.efforts.end()) {
    fail_data("model_settings_builder: the default of reasoning_effort is '{}', wanted one of its values",
              format.default_effort);
  }
  return format;
}

/// Returns the tokens by rank, without those that default_vocab_size cuts off.
std::vector<std::string> parse_vocabulary(JsonValue document, size_t wanted) {
  const JsonArray entries = array_member(document, "vocab");
  std::vector<std::string> tokens;
  tokens.reserve(std::min(wanted, entries.size()));
  for (const JsonValue entry : entries) {
    if (tokens.size() == wanted) return tokens;
    const size_t rank = tokens.size();
    JsonObject members;
    uint64_t found = 0;
    std::string_view base64;
    if (!entry.get(members) || !members["rank"].get(found) || found != rank) {
      fail_data("vocab: entry {} is {}, wanted an object of rank {}", rank, to_short_json(entry, 60), rank);
    }
    auto bytes = members["token_bytes"].get(base64) ? decode_base64(base64) : std::nullopt;
    if (!bytes) {
      fail_data("vocab: token_bytes of rank {} is {}, wanted base64", rank, to_short_json(members["token_bytes"], 60));
    }
    tokens.push_back(*std::move(bytes));
  }
  if (tokens.size() < wanted) fail_data("vocab has {} tokens, wanted at least {}", tokens.size(), wanted);
  return tokens;
}

TokenizerParts parse_parts_of_tekken(JsonValue document) {
  const TekkenConfig config = parse_tekken_config(document);
  RankedVocabulary vocabulary;
  vocabulary.first_id = static_cast<TokenId>(config.special_count);
  vocabulary.pattern = config.pattern;
  vocabulary.added = parse_special_tokens(document, config);
  vocabulary.tokens = parse_vocabulary(document, config.vocab_size - config.special_count);
  TokenizerParts parts = build_ranked(vocabulary);
  parts.tekken = parse_format(document, config.version);
  if (const TokenId bos = find_id(parts.ids, kBos); bos >= 0) parts.bos = bos;
  if (const TokenId eos = find_id(parts.ids, kEos); eos >= 0) parts.eos = eos;
  return parts;
}

}  // namespace

TokenizerParts parse_tekken(std::string_view tekken_json, std::string_view config_json) {
  const JsonDocument document = parse_document(tekken_json, kTekkenFile);
  TokenizerParts parts = in_file(kTekkenFile, [&] { return parse_parts_of_tekken(document.root()); });
  const ConfigDocument config = parse_config(config_json);
  in_file(kConfigName, [&] {
    if (const auto bos = config_token(config.root, "bos_token", parts)) parts.bos = bos;
    if (const auto eos = config_token(config.root, "eos_token", parts)) parts.eos = eos;
  });
  if (!parts.bos) return parts;
  using Piece = PostProcessor::Piece;
  const Piece bos{.kind = Piece::Kind::kTokens, .type_id = 0, .tokens = {*parts.bos}};
  PostProcessor& processor = parts.post_processor;
  processor.single.insert(processor.single.begin(), bos);
  processor.pair.insert(processor.pair.begin(), bos);
  return parts;
}

}  // namespace millrace::text
