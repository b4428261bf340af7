#include <cmath>

#include "text/tokenizer/tokenizer_parts.h"

/// Reads the "model" of a tokenizer.json.
namespace millrace::text {
namespace {

/// A bound far beyond any log-probability; sums of such scores stay exact enough to compare.
constexpr double kMaxScore = 1e30;

void parse_vocabulary(JsonValue model, TokenizerParts& parts) {
  const auto vocab = member(model, "vocab");
  JsonObject entries;
  if (!vocab || !vocab->get(entries)) fail_data("model: \"vocab\" is not an object");
  for (const auto entry : entries)
    register_token(parts, checked_id(entry.value, entry.key), entry.key, TokenKind::kPlain);
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

/// Words arrive in the alphabet of a ByteLevel that ends the pre-tokenizer.
void spell_bytes(TokenizerParts& parts) {
  if (parts.byte_level) parts.pre_tokenizer.add(PreTokenizer::ByteLevelText{});
  parts.byte_level = false;
}

TokenModel parse_bpe(JsonValue model, TokenizerParts& parts) {
  double dropout = 0;
  if (const auto given = member(model, "dropout"); given && (!given->get(dropout) || dropout != 0)) {
    fail_data("model: dropout is not supported");
  }
  parse_vocabulary(model, parts);
  std::vector<Bpe::Merge> merges;
  for (const JsonValue merge : array_member(model, "merges")) {
    std::string_view text;
    const bool is_comment = merge.get(text) && text.starts_with("#version");
    if (!is_comment) merges.push_back(parse_merge(merge, parts.ids));
  }
  Bpe::Config config;
  config.byte_level = parts.byte_level;
  config.byte_fallback = bool_member(model, "byte_fallback", false);
  config.fuse_unk = bool_member(model, "fuse_unk", false);
  config.ignore_merges = bool_member(model, "ignore_merges", false);
  config.unk_token = string_member(model, "unk_token", "");
  config.continuing_subword_prefix = string_member(model, "continuing_subword_prefix", "");
  config.end_of_word_suffix = string_member(model, "end_of_word_suffix", "");
  return Bpe(config, parts.ids, merges);
}

TokenModel parse_word_piece(JsonValue model, TokenizerParts& parts, bool whole_words_only) {
  parse_vocabulary(model, parts);
  WordPiece::Config config;
  config.vocab = parts.ids;
  config.unk_token = string_member(model, "unk_token", whole_words_only ? "<unk>" : "[UNK]");
  config.continuing_subword_prefix = string_member(model, "continuing_subword_prefix", "##");
  config.whole_words_only = whole_words_only;
  const auto max = member(model, "max_input_chars_per_word");
  if (max && !max->get(config.max_characters)) fail_data("model: \"max_input_chars_per_word\" is not a count");
  return WordPiece(std::move(config));
}

TokenModel parse_unigram(JsonValue model, TokenizerParts& parts) {
  Unigram::Config config;
  for (const JsonValue entry : array_member(model, "vocab")) {
    JsonArray pair;
    std::string_view token;
    double score = 0;
    if (!entry.get(pair) || pair.size() != 2 || !pair.at(0).get(token) || !pair.at(1).get(score)) {
      fail_data("model: an entry of \"vocab\" is not a token and its score");
    }
    if (!(std::abs(score) <= kMaxScore)) fail_data("model: the score of \"{}\" is not a number", token);
    if (config.vocab.size() > static_cast<size_t>(TokenizerParts::kMaxTokenId)) fail_data("model: too many tokens");
    register_token(parts, static_cast<TokenId>(config.vocab.size()), token, TokenKind::kPlain);
    config.vocab.emplace_back(token, score);
  }
  uint64_t unk_id = 0;
  if (const auto given = member(model, "unk_id")) {
    if (!given->get(unk_id) || unk_id >= config.vocab.size()) fail_data("model: \"unk_id\" is not in the vocabulary");
    config.unk_id = static_cast<TokenId>(unk_id);
  }
  config.byte_fallback = bool_member(model, "byte_fallback", false);
  return Unigram(config);
}

/// Files from before "type" tell the models apart by their members.
std::string_view model_type(JsonValue model) {
  const std::string_view type = string_member(model, "type", "");
  if (!type.empty()) return type;
  if (member(model, "merges")) return "BPE";
  JsonArray entries;
  const auto vocab = member(model, "vocab");
  if (vocab && vocab->get(entries)) return "Unigram";
  return member(model, "max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

}  // namespace

TokenId checked_id(JsonValue json, std::string_view what) {
  int64_t id = -1;
  if (!json.get(id) || id < 0 || id > TokenizerParts::kMaxTokenId) {
    fail_data("the id of {} is not a number from 0 to {}", what, TokenizerParts::kMaxTokenId);
  }
  return static_cast<TokenId>(id);
}

void register_token(TokenizerParts& parts, TokenId id, std::string_view text, TokenKind kind) {
  const auto index = static_cast<size_t>(id);
  if (parts.tokens.size() <= index) {
    parts.tokens.resize(index + 1);
    parts.kinds.resize(index + 1);
  }
  parts.tokens[index] = text;
  parts.kinds[index] = kind;
  parts.ids.insert_or_assign(std::string(text), id);
}

void parse_model(JsonValue model, TokenizerParts& parts) {
  const std::string_view type = model_type(model);
  // Only BPE works on raw bytes, and only where they are all that a word is made of.
  if (type != "BPE" || bool_member(model, "byte_fallback", false)) spell_bytes(parts);
  const auto parsed = [&]() -> TokenModel {
    if (type == "BPE") return parse_bpe(model, parts);
    if (type == "Unigram") return parse_unigram(model, parts);
    if (type == "WordPiece") return parse_word_piece(model, parts, false);
    if (type == "WordLevel") return parse_word_piece(model, parts, true);
    fail_data("model type \"{}\" is not supported", type);
  };
  parts.model = std::make_unique<const TokenModel>(parsed());
}

}  // namespace millrace::text
