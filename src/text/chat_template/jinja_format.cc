#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "base/utf8.h"
#include "text/chat_template/jinja_builtins.h"
#include "text/chat_template/jinja_operators.h"
#include "text/unicode.h"

// Python's two ways to format strings, as far as chat templates use them.
namespace millrace::text::jinja {
namespace {

constexpr int64_t kMaxWidth = 1000;

/// [[fill]align][sign][#][0][width][.precision][type], shared by both ways.
struct Spec {
  std::string fill = " ";
  char align = '\0';
  char sign = '-';
  bool alternate = false;
  int64_t width = 0;
  int64_t precision = -1;
  char type = '\0';
};

int64_t take_count(std::string_view& text) {
  int64_t value = 0;
  while (!text.empty() && text[0] >= '0' && text[0] <= '9') {
    value = value * 10 + (text[0] - '0');
    if (value > kMaxWidth) fail("a width or precision above 1000 is not supported");
    text.remove_prefix(1);
  }
  return value;
}

std::string pad(std::string text, const Spec& spec, char default_align) {
  const auto length = static_cast<int64_t>(count_code_points(text));
  if (length >= spec.width) return text;
  const auto missing = static_cast<size_t>(spec.width - length);
  const char align = spec.align == '\0' ? default_align : spec.align;
  const size_t left = align == '>' || align == '=' ? missing : align == '^' ? missing / 2 : 0;
  std::string fill_left;
  std::string fill_right;
  for (size_t i = 0; i < missing; ++i) (i < left ? fill_left : fill_right) += spec.fill;
  const bool after_sign = align == '=' && !text.empty() && (text[0] == '-' || text[0] == '+');
  if (after_sign) return text[0] + fill_left + text.substr(1);
  return fill_left + text + fill_right;
}

std::string with_sign(bool negative, char sign, std::string digits) {
  if (negative) return "-" + digits;
  return sign == '-' ? digits : sign + digits;
}

std::string group_thousands(std::string digits) {
  const size_t end = std::min(digits.find_first_of(".e"), digits.size());
  for (size_t at = end; at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::string integer_digits(int64_t value, const Spec& spec) {
  const uint64_t size = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  switch (spec.type) {
    case 'x': return (spec.alternate ? "0x" : "") + fmt::format("{:x}", size);
    case 'X': return (spec.alternate ? "0X" : "") + fmt::format("{:X}", size);
    case 'o': return (spec.alternate ? "0o" : "") + fmt::format("{:o}", size);
    case 'b': return (spec.alternate ? "0b" : "") + fmt::format("{:b}", size);
    case ',': return group_thousands(std::to_string(size));
    default: return std::to_string(size);
  }
}

std::string big_integer_digits(const std::string& digits, const Spec& spec) {
  if (std::string_view("xXob").find(spec.type) != std::string_view::npos && spec.type != '\0') {
    fail("integer overflow");
  }
  return spec.type == ',' ? group_thousands(digits) : digits;
}

std::string float_digits(double value, const Spec& spec) {
  const double size = std::fabs(value);
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  if (std::isnan(size)) return "nan";
  if (std::isinf(size)) return "inf";
  switch (spec.type) {
    case 'f':
    case 'F': return fmt::format("{:.{}f}", size, precision);
    case 'e': return fmt::format("{:.{}e}", size, precision);
    case 'g': return fmt::format("{:.{}g}", size, precision);
    case '%': return fmt::format("{:.{}f}%", size * 100, precision);
    case ',': return group_thousands(spec.precision < 0 ? float_repr(size) : fmt::format("{:.{}f}", size, precision));
    default: return spec.precision < 0 ? float_repr(size) : fmt::format("{:.{}g}", size, precision);
  }
}

std::string format_number(const Value& value, const Spec& spec) {
  const bool as_float = value.is(Kind::kFloat) || std::string_view("fFeg%").find(spec.type) != std::string_view::npos;
  if (as_float) {
    const double number = value.number();
    return pad(with_sign(std::signbit(number), spec.sign, float_digits(number, spec)), spec, '>');
  }
  if (value.is(Kind::kBigInt)) {
    const bool negative = value.number() < 0;
    return pad(with_sign(negative, spec.sign, big_integer_digits(value.digits().substr(negative ? 1 : 0), spec)), spec,
               '>');
  }
  return pad(with_sign(value.integer() < 0, spec.sign, integer_digits(value.integer(), spec)), spec, '>');
}

std::string format_text(std::string text, const Spec& spec) {
  if (spec.precision >= 0) text.resize(code_point_offset(text, static_cast<size_t>(spec.precision)));
  return pad(std::move(text), spec, '<');
}

bool is_align(char c) {
  return c == '<' || c == '>' || c == '^' || c == '=';
}

Spec parse_spec(std::string_view text) {
  Spec spec;
  const size_t first = text.empty() ? 0 : decode_utf8(text).length;
  if (text.size() > first && is_align(text[first])) {
    spec.fill = text.substr(0, first);
    spec.align = text[first];
    text.remove_prefix(first + 1);
  } else if (!text.empty() && is_align(text[0])) {
    spec.align = text[0];
    text.remove_prefix(1);
  }
  if (!text.empty() && (text[0] == '+' || text[0] == '-' || text[0] == ' ')) {
    spec.sign = text[0];
    text.remove_prefix(1);
  }
  if (text.starts_with('#')) {
    spec.alternate = true;
    text.remove_prefix(1);
  }
  if (text.starts_with('0') && spec.align == '\0') {
    spec.fill = "0";
    spec.align = '=';
  }
  spec.width = take_count(text);
  if (text.starts_with(',')) {
    spec.type = ',';
    text.remove_prefix(1);
  }
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    spec.precision = take_count(text);
  }
  if (text.size() == 1 && (spec.type == '\0' || text[0] == 'f' || text[0] == 'd')) {
    if (spec.type == '\0') spec.type = text[0];
    if (spec.type == ',' && text[0] == 'f' && spec.precision < 0) spec.precision = 6;
    text.remove_prefix(1);
  }
  if (!text.empty() ||
      (spec.type != '\0' && std::string_view("sdxXobfFeg%,").find(spec.type) == std::string_view::npos)) {
    fail("the format spec is not supported");
  }
  return spec;
}

std::string format_value(const Value& value, const Spec& spec) {
  if (value.is(Kind::kBool) && spec.type == '\0') return format_text(to_str(value), spec);
  if (value.is_number()) {
    if (spec.type == 's') fail("Unknown format code 's' for object of type '", type_name(value.kind()), "'");
    return format_number(value, spec);
  }
  if (spec.type != '\0' && spec.type != 's') {
    fail("Unknown format code '", std::string(1, spec.type), "' for object of type '", type_name(value.kind()), "'");
  }
  return format_text(to_str(value), spec);
}

/// One `{...}` of str.format, without its braces.
class Field {
 public:
  Field(Evaluator& evaluator, const CallArguments& arguments, size_t& next_index)
      : evaluator_(evaluator), arguments_(arguments), next_index_(next_index) {}

  std::string format(std::string_view field) {
    const size_t colon = std::min(field.find(':'), field.size());
    std::string_view path = field.substr(0, colon);
    const std::string_view spec = field.substr(std::min(colon + 1, field.size()));
    char conversion = '\0';
    if (path.size() >= 2 && path[path.size() - 2] == '!') {
      conversion = path.back();
      path.remove_suffix(2);
    }
    Value value = lookup(path);
    if (conversion == 'r') value = evaluator_.string(to_repr(value));
    if (conversion == 's') value = evaluator_.string(to_str(value));
    return format_value(value, parse_spec(spec));
  }

 private:
  Value lookup(std::string_view path) {
    const size_t end = std::min(path.find_first_of(".["), path.size());
    Value value = first(path.substr(0, end));
    path.remove_prefix(end);
    while (!path.empty()) {
      const bool is_attribute = path[0] == '.';
      path.remove_prefix(1);
      const size_t stop = std::min(is_attribute ? path.find_first_of(".[") : path.find(']'), path.size());
      const std::string_view name = path.substr(0, stop);
      path.remove_prefix(is_attribute ? stop : std::min(stop + 1, path.size()));
      const std::optional<int64_t> index = is_attribute ? std::nullopt : number(name);
      value = subscript(evaluator_, value, index ? Value(*index) : evaluator_.string(std::string(name)));
    }
    return value;
  }

  static std::optional<int64_t> number(std::string_view name) {
    if (name.empty() || name.size() > 9) return std::nullopt;
    int64_t value = 0;
    for (const char c : name) {
      if (c < '0' || c > '9') return std::nullopt;
      value = value * 10 + (c - '0');
    }
    return value;
  }

  Value first(std::string_view name) {
    const std::optional<int64_t> given = name.empty() ? static_cast<int64_t>(next_index_++) : number(name);
    if (given) {
      const auto index = static_cast<size_t>(*given);
      if (index >= arguments_.positional.size()) fail("Replacement index ", std::to_string(index), " out of range");
      return arguments_.positional[index];
    }
    for (const auto& [argument, value] : arguments_.named) {
      if (argument->text == name) return value;
    }
    fail("KeyError: '", name, "'");
  }

  Evaluator& evaluator_;
  const CallArguments& arguments_;
  size_t& next_index_;
};

}  // namespace

std::string brace_format(Evaluator& evaluator, std::string_view format, const CallArguments& arguments) {
  std::string out;
  size_t next_index = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    if (c != '{' && c != '}') {
      out += c;
    } else if (i + 1 < format.size() && format[i + 1] == c) {
      out += c;
      ++i;
    } else {
      const size_t end = format.find('}', i);
      if (c == '}' || end == std::string_view::npos)
        fail("Single '", std::string(1, c), "' encountered in format string");
      const std::string part = Field(evaluator, arguments, next_index).format(format.substr(i + 1, end - i - 1));
      evaluator.heap().charge(part.size());
      out += part;
      i = end;
    }
  }
  return out;
}

std::string percent_format(Evaluator& evaluator, const Value& format_string, const Value& values) {
  std::string_view format = format_string.string();
  std::vector<Value> items = values.is(Kind::kTuple) ? values.items() : std::vector<Value>{values};
  if (format_string.is_markup()) {
    for (Value& item : items) item = escaped_argument(evaluator, item);
  }
  size_t next = 0;
  std::string out;
  while (!format.empty()) {
    const size_t percent = std::min(format.find('%'), format.size());
    out += format.substr(0, percent);
    format.remove_prefix(percent);
    if (format.empty()) break;
    format.remove_prefix(1);
    Spec spec;
    spec.align = '>';
    for (; !format.empty() && std::string_view("-+ 0#").find(format[0]) != std::string_view::npos;
         format.remove_prefix(1)) {
      if (format[0] == '-') spec.align = '<';
      if (format[0] == '+' || format[0] == ' ') spec.sign = format[0];
      if (format[0] == '#') spec.alternate = true;
      if (format[0] == '0' && spec.align != '<') spec.fill = "0", spec.align = '=';
    }
    spec.width = take_count(format);
    if (format.starts_with('.')) {
      format.remove_prefix(1);
      spec.precision = take_count(format);
    }
    if (format.empty()) fail("incomplete format");
    spec.type = format[0];
    format.remove_prefix(1);
    if (spec.type == '%') {
      out += '%';
      continue;
    }
    if (next >= items.size()) fail("not enough arguments for format string");
    const Value& item = items[next++];
    std::string part;
    if (spec.type == 's' || spec.type == 'r') {
      if (spec.fill == "0") spec.fill = " ";
      part = format_text(spec.type == 's' ? to_str(item) : to_repr(item), spec);
    } else if (std::string_view("dioxXeEfFg").find(spec.type) != std::string_view::npos) {
      if (!item.is_number())
        fail("%", std::string(1, spec.type), " format: a real number is required, not ", type_name(item.kind()));
      const bool truncates = (spec.type == 'd' || spec.type == 'i') && item.is(Kind::kFloat);
      if (truncates && !(std::fabs(item.number()) < 9e18)) fail("%d format: the number is too large");
      part = format_number(truncates ? Value(static_cast<int64_t>(item.number())) : item, spec);
    } else {
      fail("unsupported format character '", std::string(1, spec.type), "'");
    }
    evaluator.heap().charge(part.size());
    out += part;
  }
  if (next < items.size() && !values.is(Kind::kDict)) fail("not all arguments converted during string formatting");
  return out;
}

}  // namespace millrace::text::jinja
