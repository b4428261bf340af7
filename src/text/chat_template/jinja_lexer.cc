#include "text/chat_template/jinja_lexer.h"

#include <array>

#include "base/utf8.h"
#include "text/chat_template/jinja_value.h"
#include "text/unicode.h"

namespace millrace::text::jinja {
namespace {

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// Every line end becomes \n, and one at the very end is dropped.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

std::string_view rstrip(std::string_view text) {
  while (!text.empty()) {
    const size_t last = last_code_point(text);
    if (!is_python_space(decode_utf8(text.substr(last)).code_point)) break;
    text = text.substr(0, last);
  }
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) lex_text_and_tag();
    add(TokenType::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail_here(std::string message) const { throw TemplateError{line_, std::move(message)}; }

  void add(TokenType type, std::string text) { tokens_.push_back({type, line_, std::move(text)}); }

  [[nodiscard]] char peek(size_t ahead = 0) const { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; }
  [[nodiscard]] bool looking_at(std::string_view text) const { return source_.substr(at_, text.size()) == text; }

  void advance(size_t count) {
    for (size_t i = 0; i < count && at_ < source_.size(); ++i) line_ += source_[at_++] == '\n';
  }
  void skip_spaces() {
    while (at_ < source_.size() && is_space(source_[at_])) advance(1);
  }

  [[nodiscard]] size_t find_tag() const {
    for (size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] == '{' && (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#')) return i;
    }
    return source_.size();
  }

  /// Adds the text before a tag, less what the tag's sign or lstrip_blocks takes from its end.
  void add_text(std::string_view text, char sign, bool is_print) {
    if (sign == '-') {
      text = rstrip(text);
    } else if (sign != '+' && !is_print) {
      const size_t newline = text.rfind('\n');
      const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
      const std::string_view indent = text.substr(line_begin);
      if ((line_begin > 0 || at_line_start_) && rstrip(indent).empty()) text = text.substr(0, line_begin);
    }
    if (!text.empty()) add(TokenType::kText, std::string(text));
  }

  void lex_text_and_tag() {
    const size_t tag = find_tag();
    const std::string_view text = source_.substr(at_, tag - at_);
    if (tag == source_.size()) {
      if (!text.empty()) add(TokenType::kText, std::string(text));
      at_ = tag;
      return;
    }
    const char kind = source_[tag + 1];
    const char after = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const char sign = after == '-' || after == '+' ? after : '\0';
    add_text(text, sign, kind == '{');
    advance(tag - at_ + 2 + (sign != '\0'));
    if (kind == '#') {
      lex_comment();
    } else if (kind == '{') {
      add(TokenType::kPrintBegin, "");
      lex_expression("}}", TokenType::kPrintEnd);
    } else if (!lex_raw()) {
      add(TokenType::kBlockBegin, "");
      lex_expression("%}", TokenType::kBlockEnd);
    }
    at_line_start_ = at_ > 0 && source_[at_ - 1] == '\n';
  }

  /// Takes a tag's end; `-` before it also takes the white space after it, else `trims` takes one newline.
  bool take_end(std::string_view end, bool trims = true) {
    if (peek() == '-' && source_.substr(at_ + 1, end.size()) == end) {
      advance(1 + end.size());
      skip_spaces();
      return true;
    }
    if (trims && peek() == '+' && source_.substr(at_ + 1, end.size()) == end) {
      advance(1 + end.size());
      return true;
    }
    if (!looking_at(end)) return false;
    advance(end.size());
    if (trims && peek() == '\n') advance(1);
    return true;
  }

  void lex_comment() {
    while (at_ < source_.size()) {
      if (take_end("#}")) return;
      advance(1);
    }
    fail_here("Missing end of comment tag");
  }

  /// Reads a `raw` block, whose tag was begun: `{% raw %} ... {% endraw %}` is text.
  bool lex_raw() {
    const size_t start = at_;
    const int start_line = line_;
    skip_spaces();
    if (looking_at("raw") && !is_name_start(peek(3)) && !is_digit(peek(3))) {
      advance(3);
      skip_spaces();
      if (take_end("%}", false)) return lex_raw_body();
    }
    at_ = start;
    line_ = start_line;
    return false;
  }

  bool lex_raw_body() {
    const size_t begin = at_;
    at_line_start_ = begin > 0 && source_[begin - 1] == '\n';
    while (at_ < source_.size()) {
      if (!looking_at("{%")) {
        advance(1);
        continue;
      }
      const std::string_view text = source_.substr(begin, at_ - begin);
      advance(2);
      const char sign = peek() == '-' || peek() == '+' ? peek() : '\0';
      if (sign != '\0') advance(1);
      skip_spaces();
      if (!looking_at("endraw")) continue;
      advance(6);
      skip_spaces();
      if (!take_end("%}")) continue;
      add_text(text, sign, false);
      return true;
    }
    fail_here("Missing end of raw directive");
  }

  void lex_expression(std::string_view end, TokenType end_type) {
    std::string brackets;
    while (true) {
      skip_spaces();
      if (at_ >= source_.size()) fail_here("unexpected end of template");
      const int line = line_;
      if (brackets.empty() && take_end(end, end_type == TokenType::kBlockEnd)) {
        tokens_.push_back({end_type, line, ""});
        return;
      }
      lex_token(brackets);
    }
  }

  void lex_token(std::string& brackets) {
    const char c = peek();
    if (is_name_start(c)) return lex_name();
    if (is_digit(c)) return lex_number();
    if (c == '"' || c == '\'') return lex_string(c);
    constexpr std::array<std::string_view, 6> kTwo = {"**", "//", "==", "!=", "<=", ">="};
    for (const std::string_view op : kTwo) {
      if (looking_at(op)) {
        add(TokenType::kOperator, std::string(op));
        return advance(2);
      }
    }
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos) {
      fail_here(std::string("unexpected char '") + c + "'");
    }
    if (c == '(' || c == '[' || c == '{') brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (brackets.empty()) fail_here(std::string("unexpected '") + c + "'");
      if (brackets.back() != c) fail_here(std::string("unexpected '") + c + "', expected '" + brackets.back() + "'");
      brackets.pop_back();
    }
    add(TokenType::kOperator, std::string(1, c));
    advance(1);
  }

  void lex_name() {
    const size_t begin = at_;
    while (at_ < source_.size() && (is_name_start(peek()) || is_digit(peek()))) ++at_;
    add(TokenType::kName, std::string(source_.substr(begin, at_ - begin)));
  }

  void take_digits(std::string& out) {
    while (is_digit(peek()) || (peek() == '_' && is_digit(peek(1)))) {
      if (peek() != '_') out += peek();
      ++at_;
    }
  }

  void lex_number() {
    std::string digits;
    const char base = static_cast<char>(peek(1) | 0x20);
    if (peek() == '0' && (base == 'x' || base == 'o' || base == 'b')) {
      digits = {'0', base};
      at_ += 2;
      while (hex_value(peek()) >= 0 || peek() == '_') {
        if (peek() != '_') digits += peek();
        ++at_;
      }
      return add(TokenType::kInteger, digits);
    }
    take_digits(digits);
    bool is_float = false;
    if (peek() == '.' && is_digit(peek(1))) {
      is_float = true;
      digits += '.';
      ++at_;
      take_digits(digits);
    }
    const size_t sign = peek(1) == '+' || peek(1) == '-' ? 1 : 0;
    if ((peek() == 'e' || peek() == 'E') && is_digit(peek(1 + sign))) {
      is_float = true;
      digits.append(source_.substr(at_, 1 + sign));
      at_ += 1 + sign;
      take_digits(digits);
    }
    add(is_float ? TokenType::kFloat : TokenType::kInteger, digits);
  }

  void lex_string(char quote) {
    const int line = line_;
    std::string out;
    advance(1);
    while (peek() != quote) {
      if (at_ >= source_.size()) fail_here("a string does not end");
      if (peek() == '\\') {
        lex_escape(out);
      } else {
        out += peek();
        advance(1);
      }
    }
    advance(1);
    tokens_.push_back({TokenType::kString, line, std::move(out)});
  }

  void lex_escape(std::string& out) {
    const char c = peek(1);
    constexpr std::string_view kLetters = "abfnrtv\\'\"";
    constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t found = kLetters.find(c); found != std::string_view::npos && at_ + 1 < source_.size()) {
      out += kMeanings[found];
      return advance(2);
    }
    if (c == '\n') return advance(2);
    if (c == 'x' || c == 'u' || c == 'U') return lex_code_point(c == 'x' ? 2 : c == 'u' ? 4 : 8, out);
    if (c == 'N') fail_here("\\N escapes are not supported");
    if (c >= '0' && c <= '7') {
      char32_t value = 0;
      advance(1);
      for (int i = 0; i < 3 && peek() >= '0' && peek() <= '7'; ++i, advance(1)) {
        value = value * 8 + static_cast<char32_t>(peek() - '0');
      }
      return append_utf8(out, value);
    }
    out += '\\';
    advance(1);
  }

  void lex_code_point(int digits, std::string& out) {
    advance(2);
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, advance(1)) {
      const int digit = hex_value(peek());
      if (digit < 0) fail_here("a truncated \\x, \\u or \\U escape");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) fail_here("an escape is no character");
    append_utf8(out, value);
  }

  std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  const std::string text = normalize_newlines(source);
  return Lexer(text).run();
}

}  // namespace millrace::text::jinja
