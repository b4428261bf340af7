#include "gguf/tokenizer_json.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "base/log.h"
#include "base/utf8.h"
#include "gguf/pre_tokenizers.h"
#include "gguf/score_merges.h"
#include "gguf/special_tokens.h"
#include "gguf/token_types.h"

namespace millrace::gguf {
namespace {

constexpr std::string_view kModelKey = "tokenizer.ggml.model";
constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";
constexpr std::string_view kScoresKey = "tokenizer.ggml.scores";
constexpr std::string_view kPreKey = "tokenizer.ggml.pre";
constexpr std::string_view kTemplateKey = "tokenizer.chat_template";
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";
constexpr std::string_view kByteLevelModel = "gpt2";
constexpr std::string_view kScoredModel = "llama";
constexpr std::string_view kMarkedModel = "gemma4";

/// Returns the name of the pre-tokenizer of files from before tokenizer.ggml.pre, where the model says it otherwise.
std::string_view usual_pre_tokenizer(const Model& model, const std::vector<std::string_view>& tokens) {
  if (model.architecture().starts_with("qwen")) return "qwen2";
  const bool is_llama3 = std::ranges::find(tokens, "<|begin_of_text|>") != tokens.end();
  return is_llama3 ? "llama-bpe" : "";
}

class TokenizerWriter {
 public:
  explicit TokenizerWriter(const Model& model) : model_(model), metadata_(model.metadata()) {
    const auto tokens = metadata_.texts(kTokensKey);
    if (!tokens || tokens->empty())
      metadata_.fail("{} is missing, wanted a vocabulary, or the model's tokenizer.json in the same folder",
                     kTokensKey);
    tokens_ = *tokens;
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (!is_valid_utf8(tokens_[id])) metadata_.fail("{}: token {} is not UTF-8", kTokensKey, id);
    }
    types_.assign(tokens_.size(), static_cast<int64_t>(TokenType::kNormal));
    if (metadata_.has(kTokenTypesKey)) {
      types_ = token_types(metadata_);
      check_length(kTokenTypesKey, types_.size());
    }
    special_ = special_tokens(metadata_);
  }

  std::string write() {
    const auto kind = metadata_.text(kModelKey);
    if (kind == kByteLevelModel) {
      write_byte_level();
    } else if (kind == kScoredModel) {
      write_scored();
    } else if (kind == kMarkedModel) {
      write_marked();
    } else {
      metadata_.fail("{} is '{}', wanted {}, {} or {}, or the model's tokenizer.json in the same folder", kModelKey,
                     kind.value_or("missing"), kByteLevelModel, kScoredModel, kMarkedModel);
    }
    return std::move(text_);
  }

 private:
  [[nodiscard]] TokenType type_of(size_t id) const { return static_cast<TokenType>(types_[id]); }
  [[nodiscard]] bool is_added(size_t id) const {
    const TokenType type = type_of(id);
    return type == TokenType::kControl || type == TokenType::kUserDefined || type == TokenType::kUnknown;
  }
  /// Returns whether a token fills the vocabulary up to the embedding's rows.
  [[nodiscard]] bool is_padding(size_t id) const {
    return tokens_[id].empty() || (type_of(id) == TokenType::kUnused && tokens_[id].starts_with("[PAD"));
  }
  void check_length(std::string_view key, size_t length) const {
    if (length != tokens_.size())
      metadata_.fail("{} has {} items, wanted {}, one for each token", key, length, tokens_.size());
  }

  void write_byte_level() {
    const PreTokenizer& pre = pre_tokenizer();
    const std::vector<std::string_view> merges = stored_merges(kByteLevelModel);
    json_.begin_object().member("version", "1.0");
    write_added_tokens("");
    json_.key("normalizer");
    if (pre.normalizes) {
      json_.begin_object().member("type", "NFC").end_object();
    } else {
      json_.null();
    }
    json_.key("pre_tokenizer").begin_object().member("type", "Sequence").key("pretokenizers").begin_array();
    for (const std::string_view pattern : pre.patterns) {
      json_.begin_object().member("type", "Split").key("pattern").begin_object().member("Regex", pattern).end_object();
      json_.member("behavior", "Isolated").member("invert", false).end_object();
    }
    write_byte_level_component(pre.uses_gpt2_pattern);
    json_.end_array().end_object();
    json_.key("decoder");
    write_byte_level_component(false);
    write_post_processor(pre.adds_bos);
    json_.key("model").begin_object().member("type", "BPE").member("ignore_merges", pre.ignores_merges);
    write_vocabulary();
    json_.key("merges").begin_array();
    for (const std::string_view merge : merges) write_merge(merge);
    json_.end_array().end_object().end_object();
  }

  [[nodiscard]] std::vector<std::string_view> stored_merges(std::string_view kind) const {
    auto merges = metadata_.texts(kMergesKey);
    if (!merges)
      metadata_.fail(
          "{} is missing, wanted the merges of a vocabulary of the kind {}, or the model's tokenizer.json in "
          "the same folder",
          kMergesKey, kind);
    return std::move(*merges);
  }

  void write_byte_level_component(bool uses_pattern) {
    json_.begin_object().member("type", "ByteLevel").member("add_prefix_space", false);
    json_.member("trim_offsets", true).member("use_regex", uses_pattern).end_object();
  }

  /// Writes "left right". The alphabet of bytes has no space, but a part may be one where a vocabulary is odd.
  void write_merge(std::string_view merge) {
    const size_t space = merge.find(' ', 1);
    if (space == merge.npos || space + 1 == merge.size())
      metadata_.fail("{}: '{}' is not two tokens with a space between", kMergesKey, merge);
    json_.begin_array().value(merge.substr(0, space)).value(merge.substr(space + 1)).end_array();
  }

  const PreTokenizer& pre_tokenizer() const {
    std::string_view name = metadata_.text(kPreKey).value_or("");
    if (name.empty() || name == "default") {
      const std::string_view usual = usual_pre_tokenizer(model_, tokens_);
      if (usual.empty())
        metadata_.fail(
            "{} is '{}', which does not say how texts are cut, wanted one of {}, or the model's "
            "tokenizer.json in the same folder",
            kPreKey, name, fmt::join(pre_tokenizer_names(), ", "));
      log::warn("{}: {} is '{}': texts are cut as '{}' says", metadata_.source(), kPreKey, name, usual);
      name = usual;
    }
    const PreTokenizer* found = find_pre_tokenizer(name);
    if (found == nullptr)
      metadata_.fail("{} '{}' is not known, wanted one of {}, or the model's tokenizer.json in the same folder",
                     kPreKey, name, fmt::join(pre_tokenizer_names(), ", "));
    return *found;
  }

  void write_scored() {
    const auto scores = metadata_.numbers(kScoresKey);
    if (!scores)
      metadata_.fail("{} is missing, wanted the scores of a vocabulary of the kind {}", kScoresKey, kScoredModel);
    check_length(kScoresKey, scores->size());
    std::vector<ScoredPiece> pieces;
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (!std::isfinite((*scores)[id]))
        metadata_.fail("{}: that of token {} is {}, wanted a finite number", kScoresKey, id, (*scores)[id]);
      const bool is_piece = type_of(id) == TokenType::kNormal && !is_padding(id);
      if (is_piece) pieces.push_back({tokens_[id], (*scores)[id]});
    }
    begin_marked(true);
    for (const auto& [left, right] : merges_by_score(pieces)) json_.begin_array().value(left).value(right).end_array();
    json_.end_array().end_object().end_object();
  }

  /// Writes a vocabulary with marks for spaces whose merges are stored, as Gemma 4 has it. Some of its files deny the
  /// token that begins every text, which the model needs.
  void write_marked() {
    const std::vector<std::string_view> merges = stored_merges(kMarkedModel);
    begin_marked(false, true);
    for (const std::string_view merge : merges) write_merge(merge);
    json_.end_array().end_object().end_object();
  }

  /// Writes all of a vocabulary with marks for spaces up to its merges.
  void begin_marked(bool usually_adds_space, bool needs_bos = false) {
    const bool has_bytes = std::ranges::find(types_, static_cast<int64_t>(TokenType::kByte)) != types_.end();
    const bool adds_space = metadata_.flag("tokenizer.ggml.add_space_prefix").value_or(usually_adds_space);
    json_.begin_object().member("version", "1.0");
    write_added_tokens(kSpaceMark);
    write_space_marks(adds_space, has_bytes);
    write_post_processor(true, needs_bos);
    json_.key("model").begin_object().member("type", "BPE").member("byte_fallback", has_bytes);
    json_.member("fuse_unk", true);
    if (const auto unk = unknown_token()) json_.member("unk_token", tokens_[*unk]);
    write_vocabulary();
    json_.key("merges").begin_array();
  }

  /// Writes the normalizer that marks spaces, and the decoder that undoes it.
  void write_space_marks(bool adds_space, bool has_bytes) {
    json_.key("normalizer").begin_object().member("type", "Sequence").key("normalizers").begin_array();
    if (adds_space) json_.begin_object().member("type", "Prepend").member("prepend", kSpaceMark).end_object();
    write_replace(" ", kSpaceMark);
    json_.end_array().end_object();
    json_.key("decoder").begin_object().member("type", "Sequence").key("decoders").begin_array();
    write_replace(kSpaceMark, " ");
    if (has_bytes) json_.begin_object().member("type", "ByteFallback").end_object();
    json_.begin_object().member("type", "Fuse").end_object();
    if (adds_space)
      json_.begin_object()
          .member("type", "Strip")
          .member("content", " ")
          .member("start", 1)
          .member("stop", 0)
          .end_object();
    json_.end_array().end_object();
  }

  void write_replace(std::string_view from, std::string_view to) {
    json_.begin_object().member("type", "Replace").key("pattern").begin_object().member("String", from).end_object();
    json_.member("content", to).end_object();
  }

  [[nodiscard]] std::optional<size_t> unknown_token() const {
    if (special_.unk) return static_cast<size_t>(*special_.unk);
    const auto found = std::ranges::find(types_, static_cast<int64_t>(TokenType::kUnknown));
    if (found == types_.end()) return std::nullopt;
    return static_cast<size_t>(found - types_.begin());
  }

  /// Writes the tokens that are found in texts before anything else. Those of users' own may have marks for spaces.
  void write_added_tokens(std::string_view space_mark) {
    json_.key("added_tokens").begin_array();
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (!is_added(id) || is_padding(id)) continue;
      std::string content(tokens_[id]);
      const bool is_own = type_of(id) == TokenType::kUserDefined;
      if (is_own && !space_mark.empty()) {
        for (size_t at = 0; (at = content.find(space_mark, at)) != std::string::npos;)
          content.replace(at, space_mark.size(), " ");
      }
      json_.begin_object().member("id", id).member("content", content).member("special", !is_own);
      json_.member("single_word", false).member("lstrip", false).member("rstrip", false);
      json_.member("normalized", false).end_object();
    }
    json_.end_array();
  }

  /// Writes all but added tokens and padding. Of tokens with one text the first counts, which is written last.
  void write_vocabulary() {
    const auto unk = unknown_token();
    json_.key("vocab").begin_object();
    for (size_t id = tokens_.size(); id-- > 0;) {
      if (is_padding(id) || (is_added(id) && id != unk)) continue;
      json_.member(tokens_[id], id);
    }
    json_.end_object();
  }

  void write_post_processor(bool usually_adds_bos, bool needs_bos = false) {
    const auto wants = [&](std::string_view key, std::optional<int64_t> id, bool usually) -> std::optional<int64_t> {
      const auto given = metadata_.flag(key);
      if (given == true && !id) metadata_.fail("{} is true, but the vocabulary has no such token", key);
      return given.value_or(usually) ? id : std::nullopt;
    };
    const auto bos = needs_bos ? special_.bos : wants("tokenizer.ggml.add_bos_token", special_.bos, usually_adds_bos);
    const auto eos = wants("tokenizer.ggml.add_eos_token", special_.eos, false);
    json_.key("post_processor");
    if (!bos && !eos) {
      json_.null();
      return;
    }
    json_.begin_object().member("type", "TemplateProcessing");
    json_.key("single").begin_array();
    write_text_pieces("A", 0, bos, eos);
    json_.end_array().key("pair").begin_array();
    write_text_pieces("A", 0, bos, eos);
    write_text_pieces("B", 1, bos, eos);
    json_.end_array().key("special_tokens").begin_object();
    if (bos) write_special(*bos);
    if (eos && eos != bos) write_special(*eos);
    json_.end_object().end_object();
  }

  void write_text_pieces(std::string_view text, int type_id, std::optional<int64_t> bos, std::optional<int64_t> eos) {
    const auto write = [&](std::string_view kind, std::string_view id) {
      json_.begin_object().key(kind).begin_object().member("id", id).member("type_id", type_id).end_object();
      json_.end_object();
    };
    if (bos) write("SpecialToken", token(*bos));
    write("Sequence", text);
    if (eos) write("SpecialToken", token(*eos));
  }

  void write_special(int64_t id) {
    json_.key(token(id)).begin_object().member("id", token(id)).key("ids").begin_array().value(id).end_array();
    json_.key("tokens").begin_array().value(token(id)).end_array().end_object();
  }

  [[nodiscard]] std::string_view token(int64_t id) const { return tokens_[static_cast<size_t>(id)]; }

  const Model& model_;
  const Metadata& metadata_;
  std::vector<std::string_view> tokens_;
  std::vector<int64_t> types_;  // [tokens]
  SpecialTokens special_;
  std::string text_;
  JsonWriter json_{text_};
};

void write_templates(const Metadata& metadata, JsonWriter& json) {
  const auto own = metadata.text(kTemplateKey);
  const std::string prefix = std::string(kTemplateKey) + '.';
  std::vector<std::string_view> named;
  for (const std::string_view key : metadata.keys()) {
    if (key.starts_with(prefix)) named.push_back(key);
  }
  std::ranges::sort(named);
  if (named.empty()) {
    if (own) json.member("chat_template", *own);
    return;
  }
  json.key("chat_template").begin_array();
  const auto write = [&](std::string_view name, std::string_view source) {
    json.begin_object().member("name", name).member("template", source).end_object();
  };
  if (own) write("default", *own);
  for (const std::string_view key : named) write(key.substr(prefix.size()), metadata.text(key).value_or(""));
  json.end_array();
}

std::string write_tokenizer_config(const Model& model) {
  const Metadata& metadata = model.metadata();
  const auto tokens = metadata.texts(kTokensKey);
  const SpecialTokens special = special_tokens(metadata);
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  const auto add = [&](std::string_view name, std::optional<int64_t> id) {
    if (id) json.member(name, (*tokens)[static_cast<size_t>(*id)]);
  };
  add("bos_token", special.bos);
  add("eos_token", special.eos);
  add("unk_token", special.unk);
  add("pad_token", special.pad);
  write_templates(metadata, json);
  json.end_object();
  return text;
}

}  // namespace

Result<std::vector<std::string_view>> vocabulary(const Model& model) {
  try {
    auto tokens = model.metadata().texts(kTokensKey).value_or(std::vector<std::string_view>());
    const std::vector<int64_t> types = token_types(model.metadata());
    for (size_t id = 0; id < std::min(tokens.size(), types.size()); ++id) {
      if (static_cast<TokenType>(types[id]) != TokenType::kNormal) tokens[id] = {};
    }
    return tokens;
  } catch (const ErrorException& failure) {
    return failure.error();
  }
}

Result<std::string> tokenizer_json(const Model& model) {
  try {
    return TokenizerWriter(model).write();
  } catch (const ErrorException& failure) {
    return failure.error();
  }
}

Result<std::string> tokenizer_config_json(const Model& model) {
  try {
    return write_tokenizer_config(model);
  } catch (const ErrorException& failure) {
    return failure.error();
  }
}

}  // namespace millrace::gguf
