#include <algorithm>

#include "text/tokenizer/regex_translation.h"
#include "text/tokenizer/tokenizer_parts.h"
#include "text/unicode_properties.h"

namespace millrace::text {
namespace {

/// A normaliser may not let a text grow beyond this, so that a file cannot exhaust the memory.
constexpr size_t kMaxGrowth = 256;

SplitBehavior parse_behavior(JsonValue json, std::string_view fallback) {
  const std::string_view name = string_member(json, "behavior", fallback);
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  fail_data("pre_tokenizer: split behavior \"{}\" is not supported", name);
}

/// Returns the factor by which a step lengthens a text at worst.
size_t growth_of(const Normalizer::Step& step) {
  if (const auto* replace = std::get_if<Normalizer::Replace>(&step)) {
    const size_t from = std::max<size_t>(replace->literal.size(), 1);
    return 1 + replace->content.size() / from;
  }
  if (const auto* form = std::get_if<NormalForm>(&step)) return *form == NormalForm::kNfc ? 1 : 3;
  if (const auto* map = std::get_if<Normalizer::Precompiled>(&step)) return (*map)->longest_replacement() + 1;
  if (std::holds_alternative<Normalizer::Bert>(step)) return 4;
  if (std::holds_alternative<Normalizer::ByteLevel>(step) || std::holds_alternative<Normalizer::Lowercase>(step))
    return 2;
  return 1;
}

Normalizer::Bert parse_bert_normalizer(JsonValue json) {
  Normalizer::Bert bert;
  bert.clean_text = bool_member(json, "clean_text", true);
  bert.spaces_around_chinese = bool_member(json, "handle_chinese_chars", true);
  bert.lowercase = bool_member(json, "lowercase", true);
  bert.strip_accents = bool_member(json, "strip_accents", bert.lowercase);
  return bert;
}

void add_normalizer(JsonValue json, Normalizer& normalizer, size_t& growth, int depth) {
  if (depth > kMaxComponentNesting) fail_data("normalizer: nested too deeply");
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
    if (type == "StripAccents") return Normalizer::StripAccents{};
    if (type == "Nmt") return Normalizer::Nmt{};
    if (type == "ByteLevel") return Normalizer::ByteLevel{};
    if (type == "BertNormalizer") return parse_bert_normalizer(json);
    if (type == "Precompiled") {
      return std::make_shared<const CharMap>(string_member(json, "precompiled_charsmap", ""));
    }
    if (type == "Prepend") return Normalizer::Prepend{std::string(string_member(json, "prepend", ""))};
    if (type == "Strip") {
      return Normalizer::Strip{bool_member(json, "strip_left", true), bool_member(json, "strip_right", true)};
    }
    if (type == "Replace") {
      ParsedPattern pattern = parse_pattern(json, "normalizer Replace");
      return Normalizer::Replace{pattern.regex, pattern.literal, std::string(string_member(json, "content", ""))};
    }
    fail_data("normalizer type \"{}\" is not supported", type);
  }();
  growth *= growth_of(step);
  if (growth > kMaxGrowth) fail_data("normalizer: a text may grow to more than {} times its length", kMaxGrowth);
  normalizer.add(step);
}

PreTokenizer::Split parse_split(JsonValue json) {
  const SplitBehavior behavior = parse_behavior(json, "");
  const bool invert = bool_member(json, "invert", false);
  const ParsedPattern pattern = parse_pattern(json, "pre_tokenizer Split");
  if (!pattern.literal.empty()) return {pattern.regex, behavior, invert, std::nullopt};
  return regex_split(string_member(*member(json, "pattern"), "Regex", ""), behavior, invert);
}

void add_byte_level(JsonValue json, TokenizerParts& parts) {
  if (bool_member(json, "add_prefix_space", true)) parts.pre_tokenizer.add(PreTokenizer::PrefixSpace{});
  if (bool_member(json, "use_regex", true)) {
    parts.pre_tokenizer.add(regex_split(kGpt2Pattern, SplitBehavior::kIsolated));
  }
  parts.byte_level = true;
}

PreTokenizer::Split delimiter_split(JsonValue json) {
  const std::string_view delimiter = string_member(json, "delimiter", "");
  if (delimiter.empty()) fail_data("pre_tokenizer CharDelimiterSplit: the delimiter is empty");
  return {Regex::literal(delimiter), SplitBehavior::kRemoved, false, std::nullopt};
}

PreTokenizer::FixedLength parse_fixed_length(JsonValue json) {
  PreTokenizer::FixedLength fixed{.length = 5};
  const auto length = member(json, "length");
  if (length && (!length->get(fixed.length) || fixed.length == 0)) {
    fail_data("pre_tokenizer FixedLength: \"length\" is not a number from 1");
  }
  return fixed;
}

PreTokenizer::Split punctuation_split(SplitBehavior behavior) {
  return regex_split(bracket_expression(punctuation_set()), behavior);
}

PreTokenizer::Split whitespace_split() {
  const std::string word = bracket_expression(rust_word_set());
  const std::string other = bracket_expression(rust_word_set().with(*property_set("space")).complement());
  return regex_split(word + "+|" + other + "+", SplitBehavior::kRemoved, true);
}

/// Adds the stages of one component that is no Sequence and no ByteLevel.
void add_stages(JsonValue json, std::string_view type, PreTokenizer& pre_tokenizer) {
  if (type == "Split") {
    pre_tokenizer.add(parse_split(json));
  } else if (type == "Metaspace") {
    pre_tokenizer.add(parse_metaspace(json));
  } else if (type == "Digits") {
    const bool each = bool_member(json, "individual_digits", false);
    pre_tokenizer.add(regex_split("\\p{N}", each ? SplitBehavior::kIsolated : SplitBehavior::kContiguous));
  } else if (type == "Punctuation") {
    pre_tokenizer.add(punctuation_split(parse_behavior(json, "Isolated")));
  } else if (type == "Whitespace") {
    pre_tokenizer.add(whitespace_split());
  } else if (type == "WhitespaceSplit") {
    pre_tokenizer.add(regex_split("\\s", SplitBehavior::kRemoved));
  } else if (type == "BertPreTokenizer") {
    pre_tokenizer.add(regex_split("\\s", SplitBehavior::kRemoved));
    pre_tokenizer.add(punctuation_split(SplitBehavior::kIsolated));
  } else if (type == "CharDelimiterSplit") {
    pre_tokenizer.add(delimiter_split(json));
  } else if (type == "UnicodeScripts") {
    pre_tokenizer.add(PreTokenizer::Scripts{});
  } else if (type == "FixedLength") {
    pre_tokenizer.add(parse_fixed_length(json));
  } else {
    fail_data("pre_tokenizer type \"{}\" is not supported", type);
  }
}

void add_pre_tokenizer(JsonValue json, TokenizerParts& parts, int depth) {
  if (depth > kMaxComponentNesting) fail_data("pre_tokenizer: nested too deeply");
  const std::string_view type = type_of(json, "pre_tokenizer");
  if (type == "Sequence") {
    for (const JsonValue inner : array_member(json, "pretokenizers")) add_pre_tokenizer(inner, parts, depth + 1);
    return;
  }
  // What follows a ByteLevel works on its alphabet, and so does the model then.
  if (parts.byte_level) parts.pre_tokenizer.add(PreTokenizer::ByteLevelText{});
  parts.byte_level = false;
  if (type == "ByteLevel") {
    add_byte_level(json, parts);
  } else {
    add_stages(json, type, parts.pre_tokenizer);
  }
}

}  // namespace

PreTokenizer::Split regex_split(std::string_view pattern, SplitBehavior behavior, bool invert) {
  PreTokenizer::Split split{Regex::compile(pattern), behavior, invert, std::nullopt};
  if (behavior == SplitBehavior::kIsolated) split.scanner = PretokenScanner::for_pattern(pattern);
  return split;
}

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

ParsedPattern parse_pattern(JsonValue json, std::string_view component) {
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

Normalizer parse_normalizer(JsonValue json) {
  Normalizer normalizer;
  size_t growth = 1;
  add_normalizer(json, normalizer, growth, 0);
  return normalizer;
}

void parse_pre_tokenizer(JsonValue json, TokenizerParts& parts) {
  add_pre_tokenizer(json, parts, 0);
}

}  // namespace millrace::text
