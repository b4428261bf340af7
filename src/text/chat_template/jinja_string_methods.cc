#include <algorithm>
#include <span>

#include "base/utf8.h"
#include "text/chat_template/jinja_builtins.h"
#include "text/unicode.h"

// The methods of str that templates may call.
namespace millrace::text::jinja {
namespace {

using Args = CallArguments;

/// Returns how many bytes at the start of `text` are white space (`spaces`), or are not.
size_t run_length(std::string_view text, bool spaces) {
  size_t length = 0;
  while (length < text.size()) {
    const DecodedUtf8 step = decode_utf8(text.substr(length));
    if (is_python_space(step.code_point) != spaces) break;
    length += step.length;
  }
  return length;
}

/// Returns the length of the run at the end of `text`.
size_t last_run_length(std::string_view text, bool spaces) {
  const size_t size = text.size();
  while (!text.empty()) {
    const size_t last = last_code_point(text);
    if (is_python_space(decode_utf8(text.substr(last)).code_point) != spaces) break;
    text = text.substr(0, last);
  }
  return size - text.size();
}

/// The part of a text between the arguments `start` and `end` of a method, which count code points as a slice does.
struct Range {
  std::string_view text;
  int64_t start = 0;     ///< code points before the part
  bool is_there = true;  ///< start lies within the text
};

Range range_of(std::string_view text, const Value& start, const Value& end) {
  const bool is_whole =
      (start.is(Kind::kAbsent) || start.is(Kind::kNone)) && (end.is(Kind::kAbsent) || end.is(Kind::kNone));
  if (is_whole) return {.text = text};
  const auto size = static_cast<int64_t>(count_code_points(text));
  const auto place = [&](const Value& given, int64_t fallback) {
    const int64_t index = int_argument(given, fallback);
    return index < 0 ? std::max<int64_t>(index + size, 0) : index;
  };
  const int64_t first = place(start, 0);
  const int64_t last = std::min(place(end, size), size);
  if (first > last) return {.start = first, .is_there = false};
  const size_t begin = code_point_offset(text, static_cast<size_t>(first));
  const size_t stop = code_point_offset(text, static_cast<size_t>(last));
  return {.text = text.substr(begin, stop - begin), .start = first};
}

/// Splits at runs of white space, from the end where `from_end`, at most `limit` times.
std::vector<Value> split_spaces(Evaluator& evaluator, std::string_view text, int64_t limit, bool from_end) {
  evaluator.charge_steps(text.size() / 16);
  const auto run = [&](bool spaces) { return from_end ? last_run_length(text, spaces) : run_length(text, spaces); };
  const auto drop = [&](size_t length) { from_end ? text.remove_suffix(length) : text.remove_prefix(length); };
  std::vector<Value> parts;
  while (true) {
    drop(run(true));
    if (text.empty()) return parts;
    const size_t length = limit-- == 0 ? text.size() : run(false);
    parts.push_back(evaluator.string(std::string(text.substr(from_end ? text.size() - length : 0, length))));
    drop(length);
  }
}

/// Splits at a separator, from the end where `from_end`, at most `limit` times.
std::vector<Value> split_at(Evaluator& evaluator, std::string_view text, std::string_view separator, int64_t limit,
                            bool from_end) {
  if (separator.empty()) fail("empty separator");
  evaluator.charge_search(text, separator);
  std::vector<Value> parts;
  for (int64_t i = 0; i != limit; ++i) {
    const size_t at = from_end ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    const std::string_view before = text.substr(0, at);
    const std::string_view after = text.substr(at + separator.size());
    parts.push_back(evaluator.string(std::string(from_end ? after : before)));
    text = from_end ? before : after;
  }
  parts.push_back(evaluator.string(std::string(text)));
  return parts;
}

/// Splits as Python's split and rsplit do. The parts are in the order of the text.
Value split(Evaluator& evaluator, const Value& self, const Args& args, bool from_end) {
  const int64_t limit = int_argument(args.positional[1], -1);
  const Value& separator = args.positional[0];
  const bool at_spaces = separator.is(Kind::kAbsent) || separator.is(Kind::kNone);
  std::vector<Value> parts = at_spaces
                                 ? split_spaces(evaluator, self.string(), limit, from_end)
                                 : split_at(evaluator, self.string(), string_argument(separator, ""), limit, from_end);
  if (from_end) std::reverse(parts.begin(), parts.end());
  return evaluator.heap().list(std::move(parts));
}

Value str_split(Evaluator& evaluator, const Value& self, Args& args) {
  return split(evaluator, self, args, false);
}

Value str_rsplit(Evaluator& evaluator, const Value& self, Args& args) {
  return split(evaluator, self, args, true);
}

Value str_splitlines(Evaluator& evaluator, const Value& self, Args& args) {
  const bool keeps = !args.positional[0].is(Kind::kAbsent) && is_true(args.positional[0]);
  std::vector<Value> lines;
  for (std::string_view rest = self.string(); !rest.empty();) {
    const size_t end = std::min(rest.find_first_of("\n\r"), rest.size());
    const size_t next = std::min(end + (rest.substr(end, 2) == "\r\n" ? 2 : 1), rest.size());
    lines.push_back(evaluator.string(std::string(rest.substr(0, keeps ? next : end))));
    rest.remove_prefix(next);
  }
  return evaluator.heap().list(std::move(lines));
}

template <bool left, bool right>
Value str_strip(Evaluator& evaluator, const Value& self, Args& args) {
  evaluator.charge_steps(self.string().size() / 8);
  return evaluator.string(strip(self.string(), args.positional[0], left, right));
}

/// One affix, or a tuple of them.
template <bool at_start>
Value str_has_affix(Evaluator& evaluator, const Value& self, Args& args) {
  const Value& given = args.positional[0];
  const std::vector<Value> affixes = given.is(Kind::kTuple) ? evaluator.iterate(given) : std::vector<Value>{given};
  const Range range = range_of(self.string(), args.positional[1], args.positional[2]);
  return Value(std::any_of(affixes.begin(), affixes.end(), [&](const Value& affix) {
    const std::string_view text = string_argument(affix, "");
    evaluator.charge_steps(text.size() / 64);
    return range.is_there && (at_start ? range.text.starts_with(text) : range.text.ends_with(text));
  }));
}

template <bool at_start>
Value str_remove_affix(Evaluator& evaluator, const Value& self, Args& args) {
  const std::string_view affix = string_argument(args.positional[0], "");
  std::string_view text = self.string();
  if (at_start && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (!at_start && text.ends_with(affix)) text.remove_suffix(affix.size());
  return evaluator.string(std::string(text));
}

template <std::string (*map)(std::string_view)>
Value str_map(Evaluator& evaluator, const Value& self, Args&) {
  evaluator.charge_steps(self.string().size() / 16);
  return evaluator.string(map(self.string()));
}

Value str_replace(Evaluator& evaluator, const Value& self, Args& args) {
  const std::string_view given = string_argument(args.positional[1], "");
  const std::string to = self.is_markup() ? escaped(args.positional[1]) : std::string(given);
  return evaluator.string(replace(evaluator, self.string(), string_argument(args.positional[0], ""), to,
                                  int_argument(args.positional[2], -1)));
}

template <bool from_right>
Value str_find(Evaluator& evaluator, const Value& self, Args& args) {
  const Range range = range_of(self.string(), args.positional[1], args.positional[2]);
  const std::string_view text = range.text;
  const std::string_view needle = string_argument(args.positional[0], "");
  evaluator.charge_search(text, needle);
  const size_t at = from_right ? text.rfind(needle) : text.find(needle);
  if (!range.is_there || at == std::string_view::npos) return Value(int64_t{-1});
  return Value(range.start + static_cast<int64_t>(count_code_points(text.substr(0, at))));
}

template <bool from_right>
Value str_index(Evaluator& evaluator, const Value& self, Args& args) {
  const Value found = str_find<from_right>(evaluator, self, args);
  if (found.integer() < 0) fail("substring not found");
  return found;
}

Value str_count(Evaluator& evaluator, const Value& self, Args& args) {
  const Range range = range_of(self.string(), args.positional[1], args.positional[2]);
  const std::string_view text = range.text;
  const std::string_view needle = string_argument(args.positional[0], "");
  evaluator.charge_search(text, needle);
  if (!range.is_there) return Value(int64_t{0});
  if (needle.empty()) return Value(static_cast<int64_t>(count_code_points(text)) + 1);
  int64_t count = 0;
  for (size_t at = text.find(needle); at != std::string_view::npos; at = text.find(needle, at + needle.size())) ++count;
  return Value(count);
}

Value str_join(Evaluator& evaluator, const Value& self, Args& args) {
  std::vector<Value> items = evaluator.iterate(args.positional[0]);
  if (self.is_markup()) {
    for (Value& item : items) item = evaluator.string(escaped(item));
  }
  for (const Value& item : items) {
    if (!item.is(Kind::kString)) fail("sequence item: expected str instance, ", type_name(item.kind()), " found");
  }
  return evaluator.string(join(evaluator, items, self.string()));
}

Value str_format(Evaluator& evaluator, const Value& self, Args& args) {
  if (self.is_markup()) {
    for (Value& value : args.positional) value = escaped_argument(evaluator, value);
    for (auto& [name, value] : args.named) value = escaped_argument(evaluator, value);
  }
  return evaluator.string(brace_format(evaluator, self.string(), args));
}

Value str_partition(Evaluator& evaluator, const Value& self, Args& args) {
  const std::string_view text = self.string();
  const std::string_view sep = string_argument(args.positional[0], "");
  if (sep.empty()) fail("empty separator");
  evaluator.charge_search(text, sep);
  const size_t at = std::min(text.find(sep), text.size());
  const size_t end = std::min(at + sep.size(), text.size());
  return evaluator.heap().tuple({evaluator.string(std::string(text.substr(0, at))),
                                 evaluator.string(std::string(text.substr(at, end - at))),
                                 evaluator.string(std::string(text.substr(end)))});
}

Value str_rpartition(Evaluator& evaluator, const Value& self, Args& args) {
  const std::string_view text = self.string();
  const std::string_view sep = string_argument(args.positional[0], "");
  if (sep.empty()) fail("empty separator");
  evaluator.charge_search(text, sep);
  const size_t found = text.rfind(sep);
  const size_t at = found == std::string_view::npos ? 0 : found;
  const size_t end = found == std::string_view::npos ? 0 : at + sep.size();
  return evaluator.heap().tuple({evaluator.string(std::string(text.substr(0, at))),
                                 evaluator.string(std::string(text.substr(at, end - at))),
                                 evaluator.string(std::string(text.substr(end)))});
}

/// Returns the text with `left` and `right` copies of a character around it.
Value padded(Evaluator& evaluator, const Value& self, std::string_view fill, int64_t left, int64_t right) {
  if (count_code_points(fill) != 1) fail("The fill character must be exactly one character long");
  evaluator.heap().charge(static_cast<size_t>(left + right) * fill.size());
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += self.string();
  for (int64_t i = 0; i < right; ++i) out += fill;
  return evaluator.string(std::move(out));
}

enum class Align : uint8_t { kLeft, kCenter, kRight };

template <Align align>
Value str_justify(Evaluator& evaluator, const Value& self, Args& args) {
  constexpr int64_t kMaxWidth = int64_t{1} << 30;
  const int64_t width = std::min(int_argument(args.positional[0], 0), kMaxWidth);
  const auto size = static_cast<int64_t>(count_code_points(self.string()));
  const int64_t missing = std::max<int64_t>(width - size, 0);
  // In an odd width, the greater half of an odd padding goes to the left.
  const int64_t left = align == Align::kLeft    ? 0
                       : align == Align::kRight ? missing
                                                : missing / 2 + (missing & width & 1);
  return padded(evaluator, self, string_argument(args.positional[1], " "), left, missing - left);
}

Value str_zfill(Evaluator& evaluator, const Value& self, Args& args) {
  const std::string& text = self.string();
  const bool is_signed = text.starts_with('-') || text.starts_with('+');
  const auto size = static_cast<int64_t>(count_code_points(text));
  const int64_t missing = std::clamp<int64_t>(int_argument(args.positional[0], 0) - size, 0, int64_t{1} << 30);
  const Value digits = padded(evaluator, evaluator.string(text.substr(is_signed ? 1 : 0)), "0", missing, 0);
  return evaluator.string(text.substr(0, is_signed ? 1 : 0) + digits.string());
}

std::string swap_case(std::string_view text) {
  std::string out;
  for (; !text.empty(); text.remove_prefix(decode_utf8(text).length)) {
    const DecodedUtf8 step = decode_utf8(text);
    const std::string_view one = text.substr(0, step.length);
    out += is_upper(step.code_point) ? to_lower(one) : is_lower(step.code_point) ? to_upper(one) : std::string(one);
  }
  return out;
}

std::string case_fold(std::string_view text) {
  return to_lower(to_upper(text));
}

Value str_expand_tabs(Evaluator& evaluator, const Value& self, Args& args) {
  const int64_t width = std::clamp<int64_t>(int_argument(args.positional[0], 8), 0, 1000);
  std::string out;
  int64_t column = 0;
  for (const char c : self.string()) {
    if (c == '\t') {
      const int64_t spaces = width == 0 ? 0 : width - column % width;
      evaluator.heap().charge(static_cast<size_t>(spaces));
      out.append(static_cast<size_t>(spaces), ' ');
      column += spaces;
      continue;
    }
    out += c;
    const bool begins = (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    column = c == '\n' || c == '\r' ? 0 : column + (begins ? 1 : 0);
  }
  return evaluator.string(std::move(out));
}

Value str_is_title(Evaluator& evaluator, const Value& self, Args&) {
  evaluator.charge_steps(self.string().size() / 8);
  bool some = false;
  bool within = false;
  for (std::string_view rest = self.string(); !rest.empty();) {
    const DecodedUtf8 step = decode_utf8(rest);
    const bool is_cased_here = is_cased(step.code_point);
    if (is_cased_here && is_upper(step.code_point) == within) return Value(false);
    some = some || is_cased_here;
    within = is_cased_here;
    rest.remove_prefix(step.length);
  }
  return Value(some);
}

Value str_is_ascii(Evaluator& evaluator, const Value& self, Args&) {
  evaluator.charge_steps(self.string().size() / 64);
  return Value(std::ranges::all_of(self.string(), [](char c) { return static_cast<unsigned char>(c) < 0x80; }));
}

Value str_is_printable(Evaluator& evaluator, const Value& self, Args&) {
  evaluator.charge_steps(self.string().size() / 8);
  for (std::string_view rest = self.string(); !rest.empty();) {
    const DecodedUtf8 step = decode_utf8(rest);
    if (!is_printable(step.code_point)) return Value(false);
    rest.remove_prefix(step.length);
  }
  return Value(true);
}

Value str_is_identifier(Evaluator& evaluator, const Value& self, Args&) {
  evaluator.charge_steps(self.string().size() / 8);
  bool is_first = true;
  for (std::string_view rest = self.string(); !rest.empty(); is_first = false) {
    const DecodedUtf8 step = decode_utf8(rest);
    const char32_t c = step.code_point;
    const bool is_digit_here = c >= '0' && c <= '9';
    if (c != '_' && !is_alphabetic(c) && (is_first || !is_digit_here)) return Value(false);
    rest.remove_prefix(step.length);
  }
  return Value(!is_first);
}

Value str_format_map(Evaluator& evaluator, const Value& self, Args& args) {
  if (!args.positional[0].is(Kind::kDict)) fail("format_map() takes a dict");
  CallArguments named;
  for (const auto& [key, value] : args.positional[0].entries().entries) {
    if (key.is(Kind::kString)) named.named.emplace_back(key.string_object(), value);
  }
  return str_format(evaluator, self, named);
}

template <bool (*accepts)(char32_t)>
Value str_all(Evaluator& evaluator, const Value& self, Args&) {
  evaluator.charge_steps(self.string().size() / 8);
  for (std::string_view rest = self.string(); !rest.empty();) {
    const DecodedUtf8 step = decode_utf8(rest);
    if (!accepts(step.code_point)) return Value(false);
    rest.remove_prefix(step.length);
  }
  return Value(!self.string().empty());
}

bool is_digit(char32_t c) {
  return c >= '0' && c <= '9';
}
bool is_alphanumeric(char32_t c) {
  return is_digit(c) || is_alphabetic(c);
}

Value str_is_case(Evaluator& evaluator, const Value& self, std::string_view test) {
  return Value(evaluator.apply_test(test, self, {}));
}
Value str_islower(Evaluator& evaluator, const Value& self, Args&) {
  return str_is_case(evaluator, self, "lower");
}
Value str_isupper(Evaluator& evaluator, const Value& self, Args&) {
  return str_is_case(evaluator, self, "upper");
}

constexpr Builtin kStringMethods[] = {
    {"split", 0, "sep,maxsplit", str_split},
    {"rsplit", 0, "sep,maxsplit", str_rsplit},
    {"splitlines", 0, "keepends", str_splitlines},
    {"strip", 0, "chars", str_strip<true, true>},
    {"lstrip", 0, "chars", str_strip<true, false>},
    {"rstrip", 0, "chars", str_strip<false, true>},
    {"startswith", 1, "prefix,start,end", str_has_affix<true>},
    {"endswith", 1, "suffix,start,end", str_has_affix<false>},
    {"removeprefix", 1, "prefix", str_remove_affix<true>},
    {"removesuffix", 1, "suffix", str_remove_affix<false>},
    {"upper", 0, "", str_map<to_upper>},
    {"lower", 0, "", str_map<to_lower>},
    {"title", 0, "", str_map<to_title>},
    {"capitalize", 0, "", str_map<capitalize>},
    {"replace", 2, "old,new,count", str_replace},
    {"find", 1, "sub,start,end", str_find<false>},
    {"rfind", 1, "sub,start,end", str_find<true>},
    {"index", 1, "sub,start,end", str_index<false>},
    {"rindex", 1, "sub,start,end", str_index<true>},
    {"count", 1, "sub,start,end", str_count},
    {"join", 1, "iterable", str_join},
    {"format", 0, "*", str_format},
    {"format_map", 1, "mapping", str_format_map},
    {"partition", 1, "sep", str_partition},
    {"rpartition", 1, "sep", str_rpartition},
    {"center", 1, "width,fillchar", str_justify<Align::kCenter>},
    {"ljust", 1, "width,fillchar", str_justify<Align::kLeft>},
    {"rjust", 1, "width,fillchar", str_justify<Align::kRight>},
    {"zfill", 1, "width", str_zfill},
    {"expandtabs", 0, "tabsize", str_expand_tabs},
    {"swapcase", 0, "", str_map<swap_case>},
    {"casefold", 0, "", str_map<case_fold>},
    {"isascii", 0, "", str_is_ascii},
    {"istitle", 0, "", str_is_title},
    {"isprintable", 0, "", str_is_printable},
    {"isidentifier", 0, "", str_is_identifier},
    {"isnumeric", 0, "", str_all<is_digit>},
    {"isdigit", 0, "", str_all<is_digit>},
    {"isdecimal", 0, "", str_all<is_digit>},
    {"isalpha", 0, "", str_all<is_alphabetic>},
    {"isalnum", 0, "", str_all<is_alphanumeric>},
    {"isspace", 0, "", str_all<is_python_space>},
    {"islower", 0, "", str_islower},
    {"isupper", 0, "", str_isupper},
};

}  // namespace

std::span<const Builtin> string_methods() {
  return kStringMethods;
}

}  // namespace millrace::text::jinja
