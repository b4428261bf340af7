#include "text/tokenizer/tokenizer_parts.h"

/// The components that a tokenizer applies after the model: the post-processor and the decoder.
namespace millrace::text {
namespace {

using Piece = PostProcessor::Piece;

TokenDecoder::Strip parse_strip(JsonValue json) {
  TokenDecoder::Strip strip;
  strip.content = string_member(json, "content", "");
  const auto start = member(json, "start");
  const auto stop = member(json, "stop");
  if (strip.content.size() != 1) fail_data("decoder Strip: content \"{}\" is not one ASCII character", strip.content);
  uint64_t count = 0;
  if (stop && (!stop->get(count) || count != 0)) {
    fail_data("decoder Strip: a stop other than 0 is not supported");
  }
  if (start && !start->get(count)) fail_data("decoder Strip: start is not a count");
  strip.start = start ? count : 0;
  return strip;
}

void add_decoder(JsonValue json, std::vector<TokenDecoder::Step>& steps, int depth) {
  if (depth > kMaxComponentNesting) fail_data("decoder: nested too deeply");
  const std::string_view type = type_of(json, "decoder");
  if (type == "Sequence") {
    for (const JsonValue inner : array_member(json, "decoders")) add_decoder(inner, steps, depth + 1);
  } else if (type == "ByteLevel") {
    steps.push_back(TokenDecoder::ByteLevel{});
  } else if (type == "ByteFallback") {
    steps.push_back(TokenDecoder::ByteFallback{});
  } else if (type == "Fuse") {
    steps.push_back(TokenDecoder::Fuse{});
  } else if (type == "Strip") {
    steps.push_back(parse_strip(json));
  } else if (type == "Metaspace") {
    const PreTokenizer::Metaspace parsed = parse_metaspace(json);
    steps.push_back(
        TokenDecoder::Metaspace{parsed.replacement, parsed.prepend != PreTokenizer::Metaspace::Prepend::kNever});
  } else if (type == "Replace") {
    ParsedPattern pattern = parse_pattern(json, "decoder Replace");
    steps.push_back(
        TokenDecoder::Replace{pattern.literal, pattern.regex, std::string(string_member(json, "content", ""))});
  } else if (type == "WordPiece") {
    steps.push_back(
        TokenDecoder::WordPiece{std::string(string_member(json, "prefix", "##")), bool_member(json, "cleanup", true)});
  } else if (type == "BPEDecoder") {
    steps.push_back(TokenDecoder::WordSuffix{std::string(string_member(json, "suffix", "</w>"))});
  } else {
    fail_data("decoder type \"{}\" is not supported", type);
  }
}

Piece text_piece(Piece::Kind kind, uint32_t type_id) {
  return {.kind = kind, .type_id = type_id, .tokens = {}};
}

Piece token_piece(std::vector<TokenId> tokens, uint32_t type_id) {
  return {.kind = Piece::Kind::kTokens, .type_id = type_id, .tokens = std::move(tokens)};
}

TokenId checked_special_id(JsonValue json, const TokenizerParts& parts, std::string_view name) {
  int64_t value = -1;
  if (!json.get(value) || value < 0 || value >= static_cast<int64_t>(parts.tokens.size())) {
    fail_data("post_processor: an id of special token \"{}\" is outside the vocabulary", name);
  }
  return static_cast<TokenId>(value);
}

/// Returns the ids that one SpecialToken of a template stands for.
std::vector<TokenId> template_ids(JsonValue json, std::string_view name, const TokenizerParts& parts) {
  const auto tokens = member(json, "special_tokens");
  const auto token = tokens ? member(*tokens, name) : std::nullopt;
  if (!token) fail_data("post_processor: special token \"{}\" is not defined", name);
  std::vector<TokenId> ids;
  for (const JsonValue id : array_member(*token, "ids")) ids.push_back(checked_special_id(id, parts, name));
  return ids;
}

uint32_t type_id_of(JsonValue piece) {
  uint64_t type_id = 0;
  const auto given = member(piece, "type_id");
  if (given && (!given->get(type_id) || type_id > UINT32_MAX)) fail_data("post_processor: a type_id is not a number");
  return static_cast<uint32_t>(type_id);
}

/// Reads "single" or "pair" of a TemplateProcessing.
std::vector<Piece> parse_pieces(JsonValue json, std::string_view name, const TokenizerParts& parts) {
  std::vector<Piece> pieces;
  for (const JsonValue item : array_member(json, name)) {
    const auto special = member(item, "SpecialToken");
    const auto sequence = member(item, "Sequence");
    if (special) {
      pieces.push_back(token_piece(template_ids(json, string_member(*special, "id", ""), parts), type_id_of(*special)));
      continue;
    }
    const std::string_view id = sequence ? string_member(*sequence, "id", "") : std::string_view();
    if (id != "A" && (id != "B" || name == "single")) {
      fail_data("post_processor: \"{}\" has an item that is neither a SpecialToken nor a Sequence of it", name);
    }
    pieces.push_back(text_piece(id == "A" ? Piece::Kind::kFirst : Piece::Kind::kSecond, type_id_of(*sequence)));
  }
  return pieces;
}

/// Reads ["[SEP]", 102].
TokenId named_token(JsonValue json, std::string_view name, const TokenizerParts& parts) {
  const JsonArray pair = array_member(json, name);
  if (pair.size() != 2) fail_data("post_processor: \"{}\" is not a token and its id", name);
  return checked_special_id(pair.at(1), parts, name);
}

/// Builds what BERT and RoBERTa put around texts; RoBERTa has two separators between them and one type.
PostProcessor bert_processor(JsonValue json, const TokenizerParts& parts, bool is_roberta) {
  const TokenId cls = named_token(json, "cls", parts);
  const TokenId sep = named_token(json, "sep", parts);
  const uint32_t second_type = is_roberta ? 0 : 1;
  PostProcessor processor;
  processor.single = {token_piece({cls}, 0), text_piece(Piece::Kind::kFirst, 0), token_piece({sep}, 0)};
  processor.pair = processor.single;
  if (is_roberta) processor.pair.push_back(token_piece({sep}, 0));
  processor.pair.push_back(text_piece(Piece::Kind::kSecond, second_type));
  processor.pair.push_back(token_piece({sep}, second_type));
  return processor;
}

void add_post_processor(JsonValue json, const TokenizerParts& parts, int depth, std::optional<PostProcessor>& result) {
  if (depth > kMaxComponentNesting) fail_data("post_processor: nested too deeply");
  const std::string_view type = type_of(json, "post_processor");
  if (type == "ByteLevel") return;  // which moves offsets only
  if (type == "Sequence") {
    for (const JsonValue inner : array_member(json, "processors")) add_post_processor(inner, parts, depth + 1, result);
    return;
  }
  if (result) fail_data("post_processor: \"{}\" after another one that adds tokens is not supported", type);
  if (type == "TemplateProcessing") {
    result = PostProcessor{.single = parse_pieces(json, "single", parts), .pair = {}};
    if (member(json, "pair")) result->pair = parse_pieces(json, "pair", parts);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    result = bert_processor(json, parts, type == "RobertaProcessing");
  } else {
    fail_data("post_processor type \"{}\" is not supported", type);
  }
}

}  // namespace

std::vector<TokenDecoder::Step> parse_decoder(JsonValue json) {
  std::vector<TokenDecoder::Step> steps;
  add_decoder(json, steps, 0);
  return steps;
}

PostProcessor parse_post_processor(JsonValue json, const TokenizerParts& parts) {
  std::optional<PostProcessor> result;
  add_post_processor(json, parts, 0, result);
  return result.value_or(PostProcessor{});
}

}  // namespace millrace::text
