#include "text/tokenizer/tokenizer.h"

#include <array>
#include <filesystem>
#include <mutex>

#include <simdjson.h>

#include "base/check.h"
#include "base/text_file.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer_parts.h"

namespace millrace::text {
namespace {

/// A borrowed scratch above this is freed instead of kept, so that one long prompt does not hold its memory for ever.
constexpr size_t kKeptSymbols = size_t{1} << 16;
constexpr size_t kMaxIdleScratches = 8;

/// Vocabularies in other formats, from many of which transformers makes a tokenizer.json.
constexpr std::array<std::string_view, 5> kOtherVocabularies = {"tokenizer.model", "qwen.tiktoken", "hy.tiktoken",
                                                                "vocab.json", "vocab.txt"};

/// Returns the error of a folder without a vocabulary that can be read.
Error without_vocabulary(const std::filesystem::path& folder, const Error& missing) {
  for (const std::string_view name : kOtherVocabularies) {
    std::error_code ignored;
    if (!std::filesystem::exists(folder / name, ignored)) continue;
    return make_error(missing.code,
                      "{}: has {} but no tokenizer.json, wanted the latter, as save_pretrained of a fast tokenizer "
                      "of transformers writes it",
                      folder.string(), name);
  }
  return missing;
}

}  // namespace

/// The working memory of one encode call.
struct Tokenizer::Scratch {
  BpeScratch bpe;
  std::vector<UnigramNode> unigram;
  RegexScratch regex;
  std::string valid;
  std::string normalized;
  std::vector<AddedTokenMatcher::Part> parts;
  std::vector<AddedTokenMatcher::Part> inner_parts;
};

/// Idle scratches, each with the word cache that earlier calls filled. Any thread; lent for one call.
class Tokenizer::ScratchPool {
 public:
  std::unique_ptr<Scratch> borrow() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        auto scratch = std::move(idle_.back());
        idle_.pop_back();
        return scratch;
      }
    }
    return std::make_unique<Scratch>();
  }

  void give_back(std::unique_ptr<Scratch> scratch) {
    if (scratch->bpe.symbols.capacity() > kKeptSymbols) scratch->bpe = {.cache = std::move(scratch->bpe.cache)};
    if (scratch->unigram.capacity() > kKeptSymbols) scratch->unigram = {};
    const std::lock_guard lock(mutex_);
    if (idle_.size() < kMaxIdleScratches) idle_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> idle_;
};

Tokenizer::Tokenizer(TokenizerParts parts)
    : parts_(std::make_unique<const TokenizerParts>(std::move(parts))), scratches_(std::make_unique<ScratchPool>()) {}

Tokenizer::~Tokenizer() = default;

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const std::filesystem::path& model_dir) {
  struct Format {
    const char* file;
    Parse parse;
  };
  constexpr std::array<Format, 3> kFormats = {Format{"tokenizer.json", parse_tokenizer},
                                              Format{"tekken.json", parse_tekken},
                                              Format{"tiktoken.model", parse_tiktoken}};
  std::optional<Error> missing;
  for (const Format& format : kFormats) {
    const auto vocabulary = read_text_file(model_dir / format.file);
    if (vocabulary.has_error() && vocabulary.error().code == ErrorCode::kNotFound) {
      if (!missing) missing = vocabulary.error();
      continue;
    }
    if (vocabulary.has_error()) return vocabulary.error();
    const auto config = read_optional_text_file(model_dir / kConfigName);
    if (config.has_error()) return config.error();
    auto made = make(format.parse, *vocabulary, *config);
    if (made.has_error()) return Error{made.error().code, model_dir.string() + "/" + made.error().message};
    return made;
  }
  return without_vocabulary(model_dir, *missing);
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_json(std::string_view tokenizer_json,
                                                              std::string_view config_json) {
  return make(parse_tokenizer, tokenizer_json, config_json);
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_tekken(std::string_view tekken_json,
                                                                std::string_view config_json) {
  return make(parse_tekken, tekken_json, config_json);
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_tiktoken(std::string_view tiktoken_model,
                                                                  std::string_view config_json) {
  return make(parse_tiktoken, tiktoken_model, config_json);
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::make(Parse parse, std::string_view vocabulary,
                                                         std::string_view config_json) {
  try {
    return std::shared_ptr<const Tokenizer>(new Tokenizer(parse(vocabulary, config_json)));
  } catch (const ErrorException& failure) {
    return failure.error();
  }
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool add_special_tokens, bool parse_special) const {
  std::vector<TokenId> out;
  out.reserve(text.size() / 4 + 8);
  std::unique_ptr<Scratch> scratch = scratches_->borrow();
  for (const PostProcessor::Piece& piece : parts_->post_processor.single) {
    if (piece.kind == PostProcessor::Piece::Kind::kFirst) {
      encode_text(text, !parse_special, *scratch, out);
    } else if (add_special_tokens) {
      out.insert(out.end(), piece.tokens.begin(), piece.tokens.end());
    }
  }
  scratches_->give_back(std::move(scratch));
  return out;
}

Tokenizer::PairEncoding Tokenizer::encode_pair(std::string_view first, std::string_view second, bool add_special_tokens,
                                               bool parse_special) const {
  PairEncoding pair;
  std::unique_ptr<Scratch> scratch = scratches_->borrow();
  const std::vector<PostProcessor::Piece>& given = parts_->post_processor.pair;
  static const PostProcessor kPlain;
  for (const PostProcessor::Piece& piece : given.empty() ? kPlain.pair : given) {
    if (piece.kind != PostProcessor::Piece::Kind::kTokens) {
      encode_text(piece.kind == PostProcessor::Piece::Kind::kFirst ? first : second, !parse_special, *scratch,
                  pair.ids);
    } else if (add_special_tokens) {
      pair.ids.insert(pair.ids.end(), piece.tokens.begin(), piece.tokens.end());
    }
    pair.type_ids.resize(pair.ids.size(), piece.type_id);
  }
  scratches_->give_back(std::move(scratch));
  return pair;
}

void Tokenizer::encode_text(std::string_view text, bool skip_special, Scratch& scratch,
                            std::vector<TokenId>& out) const {
  if (!simdjson::validate_utf8(text.data(), text.size())) {
    scratch.valid = replace_invalid_utf8(text);
    text = scratch.valid;
  }
  encode_valid(text, skip_special, scratch, out);
}

void Tokenizer::encode_valid(std::string_view text, bool skip_special, Scratch& scratch,
                             std::vector<TokenId>& out) const {
  scratch.parts.clear();
  parts_->raw_added.split(text, skip_special, scratch.parts);
  for (const auto& part : scratch.parts) {
    if (part.id >= 0) {
      out.push_back(part.id);
    } else {
      encode_gap(text.substr(part.begin, part.end - part.begin), part.begin == 0, skip_special, scratch, out);
    }
  }
}

void Tokenizer::encode_word(std::string_view word, const char* readable_end, Scratch& scratch,
                            std::vector<TokenId>& out) const {
  if (const auto* bpe = std::get_if<Bpe>(parts_->model.get())) {
    bpe->encode(word, readable_end, scratch.bpe, out);
  } else if (const auto* unigram = std::get_if<Unigram>(parts_->model.get())) {
    unigram->encode(word, readable_end, scratch.bpe.cache, scratch.unigram, out);
  } else {
    std::get<WordPiece>(*parts_->model).encode(word, out);
  }
}

void Tokenizer::encode_gap(std::string_view gap, bool at_text_start, bool skip_special, Scratch& scratch,
                           std::vector<TokenId>& out) const {
  if (!parts_->normalizer.is_identity()) {
    scratch.normalized = gap;
    at_text_start = parts_->normalizer.apply(scratch.normalized, scratch.regex) && at_text_start;
    gap = scratch.normalized;
  }
  const PreTokenizer::Sink sink = [&](std::string_view word, const char* readable_end) {
    encode_word(word, readable_end, scratch, out);
  };
  scratch.inner_parts.clear();
  parts_->normalized_added.split(gap, skip_special, scratch.inner_parts);
  for (const auto& part : scratch.inner_parts) {
    if (part.id >= 0) {
      out.push_back(part.id);
      continue;
    }
    parts_->pre_tokenizer.split(gap.substr(part.begin, part.end - part.begin), at_text_start && part.begin == 0,
                                scratch.regex, sink);
  }
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens, size_t max_bytes) const {
  std::string bytes;
  DecodeState state;
  for (const TokenId id : ids) {
    append_bytes(id, skip_special_tokens, state, bytes);
    if (bytes.size() > max_bytes) break;
  }
  finish_bytes(state, bytes);
  if (simdjson::validate_utf8(bytes.data(), bytes.size())) return bytes;
  return replace_invalid_utf8(bytes);
}

void Tokenizer::append_bytes(TokenId id, bool skip_special_tokens, DecodeState& state, std::string& out) const {
  if (id_to_token(id).empty() || (skip_special_tokens && is_special(id))) return;
  settle_before(id, skip_special_tokens, state, out);
  std::string_view bytes = state.at_first_token ? parts_->decoder.first_bytes(id) : parts_->decoder.bytes(id);
  state.at_first_token = false;
  if (parts_->decoder.is_byte(id)) {
    state.byte_run += bytes;
    return;
  }
  if (parts_->decoder.may_strip(state.stripped)) bytes = parts_->decoder.strip_start(bytes, state.stripped);
  if (parts_->decoder.drops_last_space() && bytes.ends_with(' ')) {
    bytes.remove_suffix(1);
    state.space_pending = true;
  }
  out += bytes;
}

void Tokenizer::settle_before(TokenId id, bool skip_special_tokens, DecodeState& state, std::string& out) const {
  if (id_to_token(id).empty() || (skip_special_tokens && is_special(id))) return;
  if (std::exchange(state.space_pending, false)) out += ' ';
  if (!parts_->decoder.is_byte(id)) finish_bytes(state, out);
}

void Tokenizer::finish_bytes(DecodeState& state, std::string& out) const {
  state.space_pending = false;
  if (state.byte_run.empty()) return;
  const std::string run = std::exchange(state.byte_run, {});
  const size_t own_bytes = run.size() - std::exchange(state.foreign_bytes, 0);
  std::string text;
  if (is_valid_utf8(run)) {
    text = run;
  } else {
    for (size_t i = 0; i < own_bytes; ++i) text += kReplacementUtf8;
  }
  std::string_view rest = text;
  if (parts_->decoder.may_strip(state.stripped)) rest = parts_->decoder.strip_start(rest, state.stripped);
  out += rest;
}

bool Tokenizer::is_run_byte(TokenId id) const {
  return parts_->decoder.is_byte(id);
}

std::string_view Tokenizer::id_to_token(TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) >= parts_->tokens.size()) return {};
  return parts_->tokens[static_cast<size_t>(id)];
}

std::optional<TokenId> Tokenizer::token_to_id(std::string_view token) const {
  const auto it = parts_->ids.find(token);
  if (it == parts_->ids.end()) return std::nullopt;
  return it->second;
}

std::string Tokenizer::token_bytes(TokenId id) const {
  return std::string(parts_->decoder.bytes(id));
}
size_t Tokenizer::vocab_size() const {
  return parts_->tokens.size();
}
std::optional<TokenId> Tokenizer::bos_id() const {
  return parts_->bos;
}
std::optional<TokenId> Tokenizer::eos_id() const {
  return parts_->eos;
}

const std::optional<TekkenFormat>& Tokenizer::tekken_format() const {
  return parts_->tekken;
}

bool Tokenizer::is_special(TokenId id) const {
  return id >= 0 && static_cast<size_t>(id) < parts_->kinds.size() &&
         parts_->kinds[static_cast<size_t>(id)] == TokenKind::kSpecial;
}
bool Tokenizer::is_added(TokenId id) const {
  return id >= 0 && static_cast<size_t>(id) < parts_->kinds.size() &&
         parts_->kinds[static_cast<size_t>(id)] != TokenKind::kPlain;
}

}  // namespace millrace::text
