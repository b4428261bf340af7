#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_map>

#include "base/base64.h"
#include "text/tokenizer/pretoken_scanner.h"
#include "text/tokenizer/tokenizer_parts.h"

/// Reads a tiktoken.model: a line for each token, with its bytes in base64 and its rank.
namespace millrace::text {
namespace {

constexpr std::string_view kTiktokenFile = "tiktoken.model";
/// The bytes of a damaged line that an error shows.
constexpr size_t kShownBytes = 60;

/// What a file leaves to the program that comes with it: how texts are split, and the names of the ids after its own.
struct TiktokenFamily {
  std::array<std::string_view, 2> modules;  ///< of auto_map, in whose class it is written
  std::string_view tokenizer_class;
  std::string_view pattern;
  size_t reserved;  ///< ids after the last rank, named or not
};

/// Runs of Han characters are words of their own. Source: tokenization_kimi.py of Kimi K2, whose text is also that of
/// Moonlight and Kimi K2.5.
constexpr TiktokenFamily kKimiFamily = {.modules = {"tokenization_kimi.", "tokenization_moonshot."},
                                        .tokenizer_class = "TikTokenTokenizer",
                                        .pattern = kKimiPattern,
                                        .reserved = 256};

/// Returns the class that auto_map names: "tokenization_kimi.TikTokenTokenizer".
std::string_view mapped_class(JsonValue config) {
  const auto map = member(config, "auto_map");
  const auto names = map ? member(*map, "AutoTokenizer") : std::nullopt;
  std::string_view name;
  JsonArray slow_and_fast;
  if (names && names->get(slow_and_fast)) (void)slow_and_fast.at(0).get(name);
  if (names) (void)names->get(name);
  // A repository may stand before the module: "ORG/NAME--tokenization_kimi.TikTokenTokenizer".
  if (const size_t at = name.rfind("--"); at != name.npos) name.remove_prefix(at + 2);
  return name;
}

const TiktokenFamily& family_of(std::optional<JsonValue> config) {
  if (!config)
    fail_data("the file is missing, wanted its tokenizer_class, which says how {} splits texts", kTiktokenFile);
  const std::string_view tokenizer_class = string_member(*config, "tokenizer_class", "");
  const std::string_view mapped = mapped_class(*config);
  const auto is_mapped = [&](std::string_view module) { return mapped.starts_with(module); };
  const bool is_kimi = tokenizer_class == kKimiFamily.tokenizer_class && mapped.empty();
  if (is_kimi || std::ranges::any_of(kKimiFamily.modules, is_mapped)) return kKimiFamily;
  fail_data("tokenizer_class is \"{}\" and auto_map names \"{}\", wanted {} of Kimi, whose way to split texts is known",
            tokenizer_class, mapped, kKimiFamily.tokenizer_class);
}

/// Reads "base64 rank".
std::pair<std::string, size_t> parse_line(std::string_view line, size_t number) {
  const size_t space = line.find(' ');
  const std::string_view digits = space == line.npos ? std::string_view() : line.substr(space + 1);
  size_t rank = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  auto bytes = decode_base64(line.substr(0, space));
  if (!bytes || digits.empty() || error != std::errc() || end != digits.data() + digits.size()) {
    fail_data("line {} is \"{}\", wanted a token in base64, a blank and its rank", number, line.substr(0, kShownBytes));
  }
  return {*std::move(bytes), rank};
}

/// Returns the tokens by rank. Each rank up to the number of tokens is there once.
std::vector<std::string> parse_ranks(std::string_view text) {
  std::vector<std::string> tokens;
  std::vector<std::pair<size_t, size_t>> places;  // rank and number of the line
  std::vector<std::string> lines;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    auto [bytes, rank] = parse_line(line, number);
    lines.push_back(std::move(bytes));
    places.emplace_back(rank, number);
  }
  if (lines.empty()) fail_data("the file is empty, wanted a line for each token");
  if (lines.size() > static_cast<size_t>(TokenizerParts::kMaxTokenId)) {
    fail_data("there are {} tokens, wanted at most {}", lines.size(), TokenizerParts::kMaxTokenId);
  }
  tokens.resize(lines.size());
  std::vector<size_t> line_of_rank(lines.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto [rank, number] = places[i];
    if (rank >= lines.size()) {
      fail_data("line {}: the rank is {}, wanted less than {}, the number of tokens", number, rank, lines.size());
    }
    if (line_of_rank[rank] != 0) fail_data("lines {} and {} have the same rank {}", line_of_rank[rank], number, rank);
    line_of_rank[rank] = number;
    tokens[rank] = std::move(lines[i]);
  }
  return tokens;
}

/// Returns the tokens that follow the ranks: those of the config, and names for the others.
std::vector<AddedToken> reserved_tokens(std::optional<JsonValue> config, size_t rank_count, size_t reserved) {
  std::unordered_map<TokenId, AddedToken> named;
  for (AddedToken& token : parse_added_tokens_decoder(config)) {
    if (token.content.empty()) continue;
    if (static_cast<size_t>(token.id) < rank_count) {
      fail_data("added_tokens_decoder: \"{}\" has the id {}, which is that of a token of {}", token.content, token.id,
                kTiktokenFile);
    }
    const TokenId id = token.id;
    named.insert_or_assign(id, std::move(token));
  }
  std::vector<AddedToken> tokens;
  for (size_t i = 0; i < reserved; ++i) {
    const auto id = static_cast<TokenId>(rank_count + i);
    AddedToken token{.id = id, .content = fmt::format("<|reserved_token_{}|>", id), .special = true};
    if (const auto it = named.find(id); it != named.end()) {
      token.content = it->second.content;
      token.special = it->second.special;
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

TokenizerParts parse_tiktoken(std::string_view tiktoken_model, std::string_view config_json) {
  const ConfigDocument config = parse_config(config_json);
  const TiktokenFamily& family =
      in_file(kConfigName, [&]() -> const TiktokenFamily& { return family_of(config.root); });
  RankedVocabulary vocabulary;
  vocabulary.tokens = in_file(kTiktokenFile, [&] { return parse_ranks(tiktoken_model); });
  vocabulary.pattern = family.pattern;
  vocabulary.added =
      in_file(kConfigName, [&] { return reserved_tokens(config.root, vocabulary.tokens.size(), family.reserved); });
  TokenizerParts parts = in_file(kTiktokenFile, [&] { return build_ranked(vocabulary); });
  in_file(kConfigName, [&] {
    parts.bos = config_token(config.root, "bos_token", parts);
    parts.eos = config_token(config.root, "eos_token", parts);
  });
  return parts;
}

}  // namespace millrace::text
