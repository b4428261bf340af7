#include "text/tokenizer/normalizer.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/tokenizer/byte_level.h"
#include "text/unicode_properties.h"

namespace millrace::text {
namespace {

std::string_view strip(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const DecodedUtf8 step = decode_utf8(text);
    if (!is_white_space(step.code_point)) break;
    text.remove_prefix(step.length);
  }
  while (right && !text.empty()) {
    const size_t last = last_code_point(text);
    if (!is_white_space(decode_utf8(text.substr(last)).code_point)) break;
    text = text.substr(0, last);
  }
  return text;
}

/// Calls `append` with every code point and the text so far.
template <class Append>
std::string rewrite_each(std::string_view text, Append append) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const DecodedUtf8 step = decode_utf8(text);
    append(step.code_point, out);
    text.remove_prefix(step.length);
  }
  return out;
}

std::string without(std::string_view text, const CodePointSet& set) {
  return rewrite_each(text, [&](char32_t c, std::string& out) {
    if (!set.contains(c)) append_utf8(out, c);
  });
}

std::string clean(std::string_view text) {
  const CodePointSet& control = bert_control_set();
  return rewrite_each(text, [&](char32_t c, std::string& out) {
    if (c == 0xFFFD || control.contains(c)) return;
    append_utf8(out, is_white_space(c) ? U' ' : c);
  });
}

/// Returns whether BERT takes it for a Chinese character: the blocks that its first tokenizer lists.
bool is_chinese(char32_t c) {
  constexpr CodePointRange kBlocks[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
                                        {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F}};
  return std::ranges::any_of(kBlocks, [c](const CodePointRange& block) { return c >= block.first && c <= block.last; });
}

bool is_removed_by_nmt(char32_t c) {
  return (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
}

std::string apply_nmt(std::string_view text) {
  return rewrite_each(text, [](char32_t c, std::string& out) {
    const bool is_blank = c == '\t' || c == '\n' || c == '\f' || c == '\r' || c == 0x1680 ||
                          (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
                          c == 0xFFFD;
    if (!is_removed_by_nmt(c)) append_utf8(out, is_blank ? U' ' : c);
  });
}

/// Returns whether the first character is in `set`.
bool starts_in(std::string_view text, const CodePointSet& set) {
  return !text.empty() && set.contains(decode_utf8(text).code_point);
}

struct ApplyStep {
  std::string& text;
  RegexScratch& scratch;
  bool& keeps_start;

  void operator()(NormalForm form) const { text = normalize(text, form); }
  void operator()(const Normalizer::Prepend& step) const {
    if (!text.empty()) text.insert(0, step.text);
  }
  void operator()(const Normalizer::Replace& step) const {
    text = step.literal.empty() ? replace_all(text, step.pattern, step.content, scratch)
                                : replace_all(text, step.literal, step.content);
  }
  void operator()(const Normalizer::Lowercase&) const { text = lowercase_each(text); }
  void operator()(const Normalizer::Bert& step) const {
    if (step.clean_text) {
      keeps_start = keeps_start && !starts_in(text, bert_control_set());
      text = clean(text);
    }
    if (step.spaces_around_chinese) {
      text = rewrite_each(text, [](char32_t c, std::string& out) {
        const bool is_spaced = is_chinese(c);
        if (is_spaced) out += ' ';
        append_utf8(out, c);
        if (is_spaced) out += ' ';
      });
    }
    if (step.strip_accents) text = without(normalize(text, NormalForm::kNfd), bert_accent_set());
    if (step.lowercase) text = lowercase_each(text);
  }
  void operator()(const Normalizer::StripAccents&) const {
    keeps_start = keeps_start && !starts_in(text, combining_mark_set());
    text = without(text, combining_mark_set());
  }
  void operator()(const Normalizer::Nmt&) const {
    keeps_start = keeps_start && (text.empty() || !is_removed_by_nmt(decode_utf8(text).code_point));
    text = apply_nmt(text);
  }
  void operator()(const Normalizer::ByteLevel&) const { text = byte_level_text(text); }
  void operator()(const Normalizer::Precompiled& map) const { text = map->apply(text); }
  void operator()(const Normalizer::Strip& step) const {
    const std::string stripped(strip(text, step.left, step.right));
    keeps_start = keeps_start && text.starts_with(stripped);
    text = stripped;
  }
};

}  // namespace

bool Normalizer::apply(std::string& text, RegexScratch& scratch) const {
  bool keeps_start = true;
  for (const Step& step : steps_) std::visit(ApplyStep{text, scratch, keeps_start}, step);
  return keeps_start;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  size_t begin = 0;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, begin)) {
    out.append(text, begin, at - begin).append(to);
    begin = at + from.size();
  }
  return out.append(text, begin);
}

std::string replace_all(std::string_view text, const Regex& pattern, std::string_view to, RegexScratch& scratch) {
  std::string out;
  size_t copied = 0;
  size_t from = 0;
  while (from <= text.size()) {
    const auto match = pattern.find(text, from, scratch);
    if (!match) break;
    out.append(text, copied, match->begin - copied).append(to);
    copied = match->end;
    from = match->end;
    // Past an empty match the search goes on after the next character.
    if (match->begin == match->end) from += from < text.size() ? decode_utf8(text.substr(from)).length : 1;
  }
  return out.append(text, copied);
}

}  // namespace millrace::text
