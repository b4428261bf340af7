#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "base/utf8.h"
#include "text/chat_template/jinja_builtins.h"
#include "text/chat_template/jinja_operators.h"
#include "text/unicode.h"

// The filters that lay text and lists out.
namespace millrace::text::jinja {
namespace {

using Args = CallArguments;

bool is_given(const Value& value) {
  return !value.is(Kind::kAbsent) && !value.is(Kind::kNone);
}

std::string_view first_code_points(std::string_view text, int64_t count) {
  return text.substr(0, code_point_offset(text, static_cast<size_t>(std::max<int64_t>(count, 0))));
}

Value filter_batch(Evaluator& evaluator, const Value& self, Args& args) {
  const int64_t size = int_argument(args.positional[0], 1);
  std::vector<Value> rows;
  std::vector<Value> row;
  for (const Value& item : evaluator.iterate(self)) {
    if (static_cast<int64_t>(row.size()) == size) rows.push_back(evaluator.heap().list(std::exchange(row, {})));
    row.push_back(item);
  }
  if (!row.empty()) {
    const auto width = static_cast<size_t>(std::max<int64_t>(size, 0));
    if (is_given(args.positional[1]) && row.size() < width) {
      evaluator.heap().charge(width);
      row.resize(width, args.positional[1]);
    }
    rows.push_back(evaluator.heap().list(std::move(row)));
  }
  return evaluator.heap().list(std::move(rows));
}

/// Columns of nearly the same length; the first ones are longer, and others are filled up if there is something to.
Value filter_slice(Evaluator& evaluator, const Value& self, Args& args) {
  const std::vector<Value> items = evaluator.iterate(self);
  const int64_t count = int_argument(args.positional[0], 1);
  if (count <= 0) fail("slice: found ", std::to_string(count), " slices, wanted at least 1");
  evaluator.heap().charge(static_cast<size_t>(count));
  evaluator.charge_steps(static_cast<uint64_t>(count));
  const size_t shortest = items.size() / static_cast<size_t>(count);
  const size_t longer = items.size() % static_cast<size_t>(count);
  std::vector<Value> columns;
  for (size_t i = 0, at = 0; i < static_cast<size_t>(count); ++i) {
    const size_t size = shortest + (i < longer ? 1 : 0);
    std::vector<Value> column(items.begin() + static_cast<std::ptrdiff_t>(at),
                              items.begin() + static_cast<std::ptrdiff_t>(at + size));
    at += size;
    if (is_given(args.positional[1]) && i >= longer) column.push_back(args.positional[1]);
    columns.push_back(evaluator.heap().list(std::move(column)));
  }
  return evaluator.heap().list(std::move(columns));
}

Value filter_center(Evaluator& evaluator, const Value& self, Args& args) {
  const Value text = self.is(Kind::kString) ? self : evaluator.string(to_str(self));
  CallArguments width;
  width.positional.push_back(args.positional[0].is(Kind::kAbsent) ? Value(int64_t{80}) : args.positional[0]);
  return evaluator.call(attribute(evaluator, text, evaluator.string("center").string_object()), std::move(width));
}

Value filter_truncate(Evaluator& evaluator, const Value& self, Args& args) {
  constexpr int64_t kLeeway = 5;  // of Jinja's policies
  const std::string_view text = string_argument(self, "");
  const int64_t length = int_argument(args.positional[0], 255);
  const bool cuts_words = !args.positional[1].is(Kind::kAbsent) && is_true(args.positional[1]);
  const std::string_view end = string_argument(args.positional[2], "...");
  const int64_t leeway = int_argument(args.positional[3], kLeeway);
  const auto end_length = static_cast<int64_t>(count_code_points(end));
  if (length < end_length)
    fail("truncate: the length is ", std::to_string(length), ", wanted at least that of the end");
  if (leeway < 0) fail("truncate: the leeway is negative");
  evaluator.charge_steps(text.size() / 16);
  const auto size = static_cast<int64_t>(count_code_points(text));
  if (size <= length || size - length <= leeway) return self;
  std::string_view kept = first_code_points(text, length - end_length);
  if (!cuts_words) kept = kept.substr(0, kept.rfind(' '));
  return string_like(evaluator, self, std::string(kept) + std::string(self.is_markup() ? escape_html(end) : end));
}

Value filter_file_size(Evaluator& evaluator, const Value& self, Args& args) {
  static constexpr std::array<std::string_view, 8> kDecimal = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
  static constexpr std::array<std::string_view, 8> kBinary = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
  CallArguments none;
  none.positional.push_back(Value());
  const Value number = evaluator.apply_filter("float", self, std::move(none));
  if (!number.is_number()) fail("could not convert to float: ", to_repr(self));
  const double bytes = number.number();
  const bool is_binary = !args.positional[0].is(Kind::kAbsent) && is_true(args.positional[0]);
  const double base = is_binary ? 1024 : 1000;
  if (bytes == 1) return evaluator.string("1 Byte");
  if (bytes < base) return evaluator.string(fmt::format("{:.0f} Bytes", std::trunc(bytes)));
  const auto& units = is_binary ? kBinary : kDecimal;
  size_t i = 0;
  double unit = base * base;
  for (; i + 1 < units.size() && bytes >= unit; ++i) unit *= base;
  return evaluator.string(fmt::format("{:.1f} {}", base * bytes / unit, units[i]));
}

Value filter_xml_attributes(Evaluator& evaluator, const Value& self, Args& args) {
  if (!self.is(Kind::kDict)) fail("xmlattr needs a mapping, not ", type_name(self.kind()));
  const bool with_space = args.positional[0].is(Kind::kAbsent) || is_true(args.positional[0]);
  std::string out;
  for (const auto& [key, value] : self.entries().entries) {
    if (value.is(Kind::kNone) || value.is(Kind::kUndefined)) continue;
    const std::string name = to_str(key);
    if (name.find_first_of(" \t\n\r\f\v/>=") != std::string::npos) {
      fail("Invalid character in attribute name: ", to_repr(key));
    }
    if (!out.empty() || with_space) out += ' ';
    out += escape_html(name) + "=\"" + escaped(value) + '"';
  }
  return evaluator.string(std::move(out));
}

Value filter_random(Evaluator& evaluator, const Value& self, Args&) {
  const std::vector<Value> items = evaluator.iterate(self);
  if (items.empty()) return Value::undefined(nullptr);
  std::random_device device;
  return items[std::uniform_int_distribution<size_t>(0, items.size() - 1)(device)];
}

Value filter_word_count(Evaluator& evaluator, const Value& self, Args&) {
  const std::string text = to_str(self);
  evaluator.charge_steps(text.size() / 8);
  int64_t count = 0;
  bool within = false;
  for (std::string_view rest = text; !rest.empty();) {
    const DecodedUtf8 step = decode_utf8(rest);
    const bool is_within = is_word(step.code_point);
    if (is_within && !within) ++count;
    within = is_within;
    rest.remove_prefix(step.length);
  }
  return Value(count);
}

std::string encode_url(std::string_view text, bool is_query) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                          std::string_view(is_query ? "_.-~" : "_.-~/").find(c) != std::string_view::npos;
    const auto byte = static_cast<unsigned char>(c);
    if (is_plain) {
      out += c;
    } else if (c == ' ' && is_query) {
      out += '+';
    } else {
      out += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out;
}

Value filter_url_encode(Evaluator& evaluator, const Value& self, Args&) {
  evaluator.charge_steps(self.is(Kind::kString) ? self.string().size() / 16 : 1);
  if (!self.is(Kind::kDict) && !self.is_sequence()) return evaluator.string(encode_url(to_str(self), false));
  const Value pairs = self.is(Kind::kDict) ? evaluator.apply_filter("items", self, {}) : self;
  std::string out;
  for (const Value& item : pairs.items()) {
    const std::vector<Value> pair = evaluator.iterate(item);
    if (pair.size() != 2) fail("urlencode: an item is not a pair");
    if (!out.empty()) out += '&';
    out += encode_url(to_str(pair[0]), true) + '=' + encode_url(to_str(pair[1]), true);
  }
  return evaluator.string(std::move(out));
}

constexpr Builtin kLayoutFilters[] = {
    {"batch", 1, "linecount,fill_with", filter_batch},
    {"center", 0, "width", filter_center},
    {"filesizeformat", 0, "binary", filter_file_size},
    {"random", 0, "", filter_random},
    {"slice", 1, "slices,fill_with", filter_slice},
    {"truncate", 0, "length,killwords,end,leeway", filter_truncate},
    {"urlencode", 0, "", filter_url_encode},
    {"wordcount", 0, "", filter_word_count},
    {"xmlattr", 0, "autospace", filter_xml_attributes},
};

}  // namespace

std::span<const Builtin> layout_filters() {
  return kLayoutFilters;
}

}  // namespace millrace::text::jinja
