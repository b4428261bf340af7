#include "text/tokenizer/regex_translation.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/utf8.h"
#include "text/tokenizer/pcre_properties.h"
#include "text/tokenizer/regex_class_parser.h"

namespace millrace::text {
namespace {

/// The content of a bracket expression, and how many ranges and properties it lists.
struct Listing {
  std::string text;
  size_t entries = 0;
};

Listing list_of(CodePointSet set, const RegexClassParser::Items& items) {
  Listing listing;
  for (const std::string& item : items) {
    const CodePointSet* members = pcre_property_set(item);
    if (members == nullptr || members->common_with(set).empty() || !set.includes(*members)) continue;
    set = set.minus(*members);
    listing.text += item;
    ++listing.entries;
  }
  for (const CodePointRange& range : set.ranges()) {
    listing.text += fmt::format("\\x{{{:x}}}", static_cast<uint32_t>(range.first));
    if (range.last != range.first) listing.text += fmt::format("-\\x{{{:x}}}", static_cast<uint32_t>(range.last));
    ++listing.entries;
  }
  return listing;
}

std::string bracket_of(const CodePointSet& set, const RegexClassParser::Items& items) {
  if (set.empty()) return "(?!)";
  const Listing plain = list_of(set, items);
  const CodePointSet others = set.complement();
  if (others.empty()) return "(?s:.)";
  const Listing negated = list_of(others, items);
  return negated.entries < plain.entries ? "[^" + negated.text + "]" : "[" + plain.text + "]";
}

/// Rewrites one pattern, element by element.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern), classes_(pattern) { groups_.emplace_back(); }

  std::string run() {
    while (at_ < pattern_.size()) step();
    close_options();
    return std::move(out_);
  }

 private:
  struct Group {
    size_t start = 0;         ///< in out_
    size_t open_options = 0;  ///< groups that (?i) and the like opened, which end with this one
    bool any_case = false;
  };

  void step() {
    switch (pattern_[at_]) {
      case '\\': return escape();
      case '[': return bracket();
      case '(': return open_group();
      case ')': return close_group();
      case '*':
      case '+':
      case '?': return quantifier(std::string(1, pattern_[at_++]), false, false);
      case '{': return interval();
      case '|':
        atom_.reset();
        out_ += pattern_[at_++];
        return;
      default: return copy_atom(std::max<size_t>(decode_utf8(pattern_.substr(at_)).length, 1));
    }
  }

  void begin_atom() {
    atom_ = out_.size();
    is_quantified_ = false;
  }

  void copy_atom(size_t length) {
    begin_atom();
    out_ += pattern_.substr(at_, length);
    at_ += length;
  }

  void append_class(const CodePointSet& set, const RegexClassParser::Items& items) {
    begin_atom();
    const std::string text = bracket_of(set, items);
    out_ += groups_.back().any_case ? "(?-i:" + text + ")" : text;
  }

  void bracket() {
    RegexClassParser::Items items;
    const CodePointSet set = classes_.bracket(++at_, groups_.back().any_case, items);
    append_class(set, items);
  }

  void escape() {
    RegexClassParser::Items items;
    if (const auto set = classes_.escape(at_, items)) return append_class(*set, items);
    const std::string_view rest = pattern_.substr(at_);
    const char letter = rest.size() > 1 ? rest[1] : ' ';
    if (letter == 'b' || letter == 'B') return word_border(letter == 'b');
    begin_atom();
    if (letter == 'u' && rest.size() >= 6) {
      out_.append("\\x{").append(rest.substr(2, 4)).append("}");
      at_ += 6;
    } else if (letter == 'O') {
      out_ += "(?s:.)";
      at_ += 2;
    } else {
      const size_t end = rest.find('>');
      const bool is_named = (letter == 'k' || letter == 'g') && rest.substr(2, 1) == "<" && end < rest.size();
      const size_t brace = rest.find('}');
      const bool is_numbered = letter == 'x' && rest.substr(2, 1) == "{" && brace < rest.size();
      size_t length = rest.size() > 1 ? 1 + std::max<size_t>(decode_utf8(rest.substr(1)).length, 1) : 1;
      if (is_named) length = end + 1;
      if (is_numbered) length = brace + 1;
      copy_atom(length);
    }
  }

  void word_border(bool is_border) {
    begin_atom();
    at_ += 2;
    RegexClassParser::Items items;
    size_t start = 0;
    const std::string word = bracket_of(*RegexClassParser("\\w").escape(start, items), items);
    const std::string_view after_word = is_border ? "!" : "=";
    const std::string_view after_other = is_border ? "=" : "!";
    out_ += fmt::format("(?:(?<={0})(?{1}{0})|(?<!{0})(?{2}{0}))", word, after_word, after_other);
  }

  void open_group() {
    const std::string_view rest = pattern_.substr(at_);
    Group group{.start = out_.size(), .open_options = 0, .any_case = groups_.back().any_case};
    const size_t comment_end = rest.find(')');
    if (rest.starts_with("(?#") && comment_end < rest.size()) {
      at_ += comment_end + 1;
      return;
    }
    const size_t letters_end = rest.find_first_not_of("imx-", 2);
    const bool is_option = rest.starts_with("(?") && letters_end != 2 && letters_end < rest.size() &&
                           (rest[letters_end] == ':' || rest[letters_end] == ')');
    if (!is_option) {
      // Names of groups and the kinds of lookaround are spelt alike.
      const size_t length = rest.starts_with("(?<") ? 3 : std::min<size_t>(rest.starts_with("(?") ? 3 : 1, rest.size());
      out_ += rest.substr(0, length);
      at_ += length;
      groups_.push_back(group);
      atom_.reset();
      return;
    }
    const std::string_view letters = rest.substr(2, letters_end - 2);
    const size_t minus = std::min(letters.find('-'), letters.size());
    if (letters.substr(0, minus).find('i') != std::string_view::npos) group.any_case = true;
    if (letters.substr(minus).find('i') != std::string_view::npos) group.any_case = false;
    out_ += "(?";
    for (const char letter : letters) out_ += letter == 'm' ? 's' : letter;  // Ruby's m lets a dot match newlines
    out_ += ':';
    at_ += letters_end + 1;
    atom_.reset();
    if (rest[letters_end] == ':') {
      groups_.push_back(group);
    } else {
      groups_.back().any_case = group.any_case;
      ++groups_.back().open_options;
    }
  }

  void close_options() { out_.append(std::exchange(groups_.back().open_options, 0), ')'); }

  void close_group() {
    close_options();
    out_ += pattern_[at_++];
    atom_.reset();
    if (groups_.size() == 1) return;  // PCRE2 reports it
    atom_ = groups_.back().start;
    is_quantified_ = false;
    groups_.pop_back();
  }

  /// Reads {n}, {n,}, {,m} or {n,m}; any other brace is a character.
  void interval() {
    const size_t end = pattern_.find('}', at_);
    const std::string_view body = pattern_.substr(at_ + 1, end == std::string_view::npos ? 0 : end - at_ - 1);
    const size_t comma = body.find(',');
    const std::string_view low = body.substr(0, comma);
    const std::string_view high = comma < body.size() ? body.substr(comma + 1) : std::string_view();
    const auto is_number = [](std::string_view text) {
      return text.find_first_not_of("0123456789") == std::string_view::npos;
    };
    if (!is_number(low) || !is_number(high) || (low.empty() && high.empty())) {
      begin_atom();
      out_ += "\\{";
      ++at_;
      return;
    }
    at_ = end + 1;
    const bool is_exact = comma == std::string_view::npos;
    const std::string_view from = low.empty() ? "0" : low;
    quantifier(is_exact ? fmt::format("{{{}}}", from) : fmt::format("{{{},{}}}", from, high), true, is_exact);
  }

  /// Appends a quantifier with its suffix. After an interval `+` repeats it, and after {n} so does `?`.
  void quantifier(std::string text, bool is_interval, bool is_exact) {
    if (atom_ && is_quantified_) {
      out_.insert(*atom_, "(?:");
      out_ += ')';
    }
    const char suffix = at_ < pattern_.size() ? pattern_[at_] : '\0';
    if ((suffix == '?' && !is_exact) || (suffix == '+' && !is_interval)) {
      text += suffix;
      ++at_;
    }
    out_ += text;
    is_quantified_ = true;
  }

  std::string_view pattern_;
  RegexClassParser classes_;
  std::string out_;
  size_t at_ = 0;
  std::vector<Group> groups_;
  std::optional<size_t> atom_;  ///< where in out_ the element begins that a quantifier repeats
  bool is_quantified_ = false;
};

}  // namespace

std::string translate_regex(std::string_view pattern) {
  return Translator(pattern).run();
}

std::string bracket_expression(const CodePointSet& set) {
  return bracket_of(set, {"\\p{L}", "\\p{M}", "\\p{Nd}", "\\p{Nl}", "\\p{Pc}", "\\p{P}"});
}

}  // namespace millrace::text
