#include "text/tokenizer/normalizer.h"

#include "base/utf8.h"

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

struct ApplyStep {
  std::string& text;
  RegexScratch& scratch;

  void operator()(NormalForm form) const { text = normalize(text, form); }
  void operator()(const Normalizer::Prepend& step) const {
    if (!text.empty()) text.insert(0, step.text);
  }
  void operator()(const Normalizer::Replace& step) const {
    text = step.literal.empty() ? replace_all(text, step.pattern, step.content, scratch)
                                : replace_all(text, step.literal, step.content);
  }
  void operator()(const Normalizer::Lowercase&) const { text = lowercase_each(text); }
  void operator()(const Normalizer::Strip& step) const { text = std::string(strip(text, step.left, step.right)); }
};

}  // namespace

void Normalizer::apply(std::string& text, RegexScratch& scratch) const {
  for (const Step& step : steps_) std::visit(ApplyStep{text, scratch}, step);
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
    // Past an empty match the search goes on behind the next character.
    if (match->begin == match->end) from += from < text.size() ? decode_utf8(text.substr(from)).length : 1;
  }
  return out.append(text, copied);
}

}  // namespace millrace::text
