#include <algorithm>

#include "base/utf8.h"
#include "text/tokenizer/tokenizer_parts.h"

namespace millrace::text {
namespace {

constexpr int kMaxNesting = 8;
/// A normaliser may not let a text grow beyond this, so that a file cannot exhaust the memory.
constexpr size_t kMaxGrowth = 64;
/// Matches Unicode's and ASCII's punctuation, as Rust's tokenizers define it.
constexpr std::string_view kPunctuationPattern = "[\\p{P}!-/:-@\\[-`{-~]";

struct Pattern {
  Regex regex;
  std::string literal;
};

/// {"String": s} or {"Regex": r}.
Pattern parse_pattern(JsonValue json, std::string_view component) {
  const auto pattern = member(json, "pattern");
  if (!pattern) fail_data("{}: \"pattern\" is missing", component);
  if (member(*pattern, "String")) {
    const std::string_view text = string_member(*pattern, "String", "");
    if (text.empty()) fail_data("{}: the pattern is empty", component);
    return {Regex::literal(text), std::string(text)};
  }
  if (member(*pattern, "Regex")) return {Regex::compile(string_member(*pattern, "Regex", "")), ""};
  fail_data("{}: \"pattern\" is neither a String nor a Regex", component);
}

SplitBehavior parse_behavior(JsonValue json, std::string_view fallback) {
  const std::string_view name = string_member(json, "behavior", fallback);
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  fail_data("pre_tokenizer: split behavior \"{}\" is not supported", name);
}

/// What a step does to the length of a text, at worst.
size_t growth_of(const Normalizer::Step& step) {
  if (const auto* replace = std::get_if<Normalizer::Replace>(&step)) {
    const size_t from = std::max<size_t>(replace->literal.size(), 1);
    return 1 + replace->content.size() / from;
  }
  if (const auto* form = std::get_if<NormalForm>(&step)) return *form == NormalForm::kNfc ? 1 : 3;
  return 1;
}

void add_normalizer(JsonValue json, Normalizer& normalizer, size_t& growth, int depth) {
  if (depth > kMaxNesting) fail_data("normalizer: nested too deeply");
  const std::string_view type = type_of(json, "normalizer");
  if (type == "Sequence") {
    for (const JsonValue inner : array_member(json, "normalizers"))
      add_normalizer(inner, normalizer, growth, depth + 1);
    return;
  }
  const auto step = [&]() -> Normalizer::Step {
    if (type == "NFC") return NormalForm::kNfc;
    if (type == "NFD") return NormalForm::kNfd;
    if (type == "NFKC") return NormalForm::kNfkc;
    if (type == "NFKD") return NormalForm::kNfkd;
    if (type == "Lowercase") return Normalizer::Lowercase{};
    if (type == "Prepend") return Normalizer::Prepend{std::string(string_member(json, "prepend", ""))};
    if (type == "Strip") {
      return Normalizer::Strip{bool_member(json, "strip_left", true), bool_member(json, "strip_right", true)};
    }
    if (type == "Replace") {
      Pattern pattern = parse_pattern(json, "normalizer Replace");
      return Normalizer::Replace{pattern.regex, pattern.literal, std::string(string_member(json, "content", ""))};
    }
    fail_data("normalizer type \"{}\" is not supported", type);
  }();
  growth *= growth_of(step);
  if (growth > kMaxGrowth) fail_data("normalizer: a text may grow to more than {} times its length", kMaxGrowth);
  normalizer.add(step);
}

PreTokenizer::Split regex_split(std::string_view pattern, SplitBehavior behavior, bool invert = false) {
  PreTokenizer::Split split{Regex::compile(pattern), behavior, invert, std::nullopt};
  if (behavior == SplitBehavior::kIsolated) split.scanner = PretokenScanner::for_pattern(pattern);
  return split;
}

PreTokenizer::Split parse_split(JsonValue json) {
  const SplitBehavior behavior = parse_behavior(json, "");
  const bool invert = bool_member(json, "invert", false);
  const Pattern pattern = parse_pattern(json, "pre_tokenizer Split");
  if (!pattern.literal.empty()) return {pattern.regex, behavior, invert, std::nullopt};
  return regex_split(string_member(*member(json, "pattern"), "Regex", ""), behavior, invert);
}

PreTokenizer::Metaspace parse_metaspace(JsonValue json) {
  PreTokenizer::Metaspace metaspace;
  metaspace.replacement = string_member(json, "replacement", "\xE2\x96\x81");
  if (metaspace.replacement.empty()) fail_data("pre_tokenizer Metaspace: the replacement is empty");
  metaspace.split = bool_member(json, "split", true);
  // Files from before prepend_scheme have add_prefix_space.
  const bool adds = bool_member(json, "add_prefix_space", true);
  const std::string_view scheme = string_member(json, "prepend_scheme", adds ? "always" : "never");
  if (scheme == "always") {
    metaspace.prepend = PreTokenizer::Metaspace::Prepend::kAlways;
  } else if (scheme == "first") {
    metaspace.prepend = PreTokenizer::Metaspace::Prepend::kFirst;
  } else if (scheme == "never") {
    metaspace.prepend = PreTokenizer::Metaspace::Prepend::kNever;
  } else {
    fail_data("Metaspace: prepend_scheme \"{}\" is not supported", scheme);
  }
  return metaspace;
}

void add_byte_level(JsonValue json, TokenizerParts& parts) {
  if (bool_member(json, "add_prefix_space", true)) parts.pre_tokenizer.add(PreTokenizer::PrefixSpace{});
  if (bool_member(json, "use_regex", true)) {
    parts.pre_tokenizer.add(regex_split(kGpt2Pattern, SplitBehavior::kIsolated));
  }
  parts.byte_level = true;
}

void add_pre_tokenizer(JsonValue json, TokenizerParts& parts, int depth) {
  if (depth > kMaxNesting) fail_data("pre_tokenizer: nested too deeply");
  const std::string_view type = type_of(json, "pre_tokenizer");
  if (type == "Sequence") {
    for (const JsonValue inner : array_member(json, "pretokenizers")) add_pre_tokenizer(inner, parts, depth + 1);
    return;
  }
  if (parts.byte_level) fail_data("pre_tokenizer \"{}\" after ByteLevel is not supported", type);
  PreTokenizer& pre_tokenizer = parts.pre_tokenizer;
  if (type == "ByteLevel") {
    add_byte_level(json, parts);
  } else if (type == "Split") {
    pre_tokenizer.add(parse_split(json));
  } else if (type == "Metaspace") {
    pre_tokenizer.add(parse_metaspace(json));
  } else if (type == "Digits") {
    const bool each = bool_member(json, "individual_digits", false);
    pre_tokenizer.add(regex_split("\\p{N}", each ? SplitBehavior::kIsolated : SplitBehavior::kContiguous));
  } else if (type == "Punctuation") {
    pre_tokenizer.add(regex_split(kPunctuationPattern, parse_behavior(json, "Isolated")));
  } else if (type == "Whitespace") {
    pre_tokenizer.add(regex_split("\\w+|[^\\w\\s]+", SplitBehavior::kRemoved, true));
  } else if (type == "WhitespaceSplit") {
    pre_tokenizer.add(regex_split("\\s", SplitBehavior::kRemoved));
  } else {
    fail_data("pre_tokenizer type \"{}\" is not supported", type);
  }
}

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
  if (depth > kMaxNesting) fail_data("decoder: nested too deeply");
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
    const Pattern pattern = parse_pattern(json, "decoder Replace");
    if (pattern.literal.empty()) fail_data("decoder Replace: a Regex is not supported");
    steps.push_back(TokenDecoder::Replace{pattern.literal, std::string(string_member(json, "content", ""))});
  } else {
    fail_data("decoder type \"{}\" is not supported", type);
  }
}

/// The ids that one SpecialToken of a template stands for.
void append_template_ids(JsonValue json, std::string_view name, size_t vocab_size, std::vector<TokenId>& out) {
  const auto tokens = member(json, "special_tokens");
  const auto token = tokens ? member(*tokens, name) : std::nullopt;
  if (!token) fail_data("post_processor: special token \"{}\" is not defined", name);
  for (const JsonValue id : array_member(*token, "ids")) {
    int64_t value = -1;
    if (!id.get(value) || value < 0 || value >= static_cast<int64_t>(vocab_size)) {
      fail_data("post_processor: an id of special token \"{}\" is outside the vocabulary", name);
    }
    out.push_back(static_cast<TokenId>(value));
  }
}

void parse_template(JsonValue json, TokenizerParts& parts) {
  bool text_seen = false;
  for (const JsonValue item : array_member(json, "single")) {
    if (const auto special = member(item, "SpecialToken")) {
      append_template_ids(json, string_member(*special, "id", ""), parts.tokens.size(),
                          text_seen ? parts.suffix : parts.prefix);
    } else if (member(item, "Sequence") && !text_seen) {
      text_seen = true;
    } else {
      fail_data("post_processor: \"single\" has an item that is neither a SpecialToken nor the one Sequence");
    }
  }
}

void add_post_processor(JsonValue json, TokenizerParts& parts, int depth) {
  if (depth > kMaxNesting) fail_data("post_processor: nested too deeply");
  const std::string_view type = type_of(json, "post_processor");
  if (type == "Sequence") {
    for (const JsonValue inner : array_member(json, "processors")) add_post_processor(inner, parts, depth + 1);
  } else if (type == "TemplateProcessing") {
    parse_template(json, parts);
  } else if (type != "ByteLevel") {  // which moves offsets only
    fail_data("post_processor type \"{}\" is not supported", type);
  }
}

}  // namespace

std::optional<JsonValue> member(JsonValue json, std::string_view name) {
  JsonObject object;
  JsonValue value;
  if (!json.get(object)) return std::nullopt;
  if (!object[name].get(value) || value.is_null()) return std::nullopt;
  return value;
}

bool bool_member(JsonValue json, std::string_view name, bool fallback) {
  const auto found = member(json, name);
  if (found && !found->get(fallback)) fail_data("\"{}\" is not a boolean", name);
  return fallback;
}

std::string_view string_member(JsonValue json, std::string_view name, std::string_view fallback) {
  const auto found = member(json, name);
  if (found && !found->get(fallback)) fail_data("\"{}\" is not a string", name);
  return fallback;
}

JsonArray array_member(JsonValue json, std::string_view name) {
  const auto found = member(json, name);
  JsonArray array;
  if (!found || !found->get(array)) fail_data("\"{}\" is not an array", name);
  return array;
}

std::string_view type_of(JsonValue json, std::string_view component) {
  const std::string_view type = string_member(json, "type", "");
  if (type.empty()) fail_data("{}: \"type\" is missing", component);
  return type;
}

Normalizer parse_normalizer(JsonValue json) {
  Normalizer normalizer;
  size_t growth = 1;
  add_normalizer(json, normalizer, growth, 0);
  return normalizer;
}

void parse_pre_tokenizer(JsonValue json, TokenizerParts& parts) {
  add_pre_tokenizer(json, parts, 0);
}

std::vector<TokenDecoder::Step> parse_decoder(JsonValue json) {
  std::vector<TokenDecoder::Step> steps;
  add_decoder(json, steps, 0);
  return steps;
}

void parse_post_processor(JsonValue json, TokenizerParts& parts) {
  add_post_processor(json, parts, 0);
}

}  // namespace millrace::text
