#include "text/tool_calls/literal_arguments.h"

#include <utility>

#include "base/json.h"
#include "base/json_value.h"
#include "base/utf8.h"
#include "text/tool_calls/json_text.h"
#include "text/tool_calls/partial_match.h"

namespace millrace::text {
namespace {

constexpr size_t kMaxDepth = 256;

bool is_blank(char c) {
  return kAsciiSpace.find(c) != std::string_view::npos;
}

/// Returns the number of hexadecimal digits of an escape, or 0 if it has none.
size_t hex_digits(char kind) {
  switch (kind) {
    case 'x': return 2;
    case 'u': return 4;
    case 'U': return 8;
    default: return 0;
  }
}

bool is_key_char(char c) {
  return c == '_' || c == '-' || c == '.' || c == '$' || c == '@' || c == '/' || (c >= '0' && c <= '9') ||
         (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80;
}

}  // namespace

LiteralArguments::LiteralArguments(const LiteralDialect& dialect, std::string tool,
                                   std::shared_ptr<const ParameterTypes> types)
    : dialect_(dialect),
      tool_(std::move(tool)),
      types_(std::move(types)),
      close_(dialect.close),
      key_end_(dialect.key_end) {}

ArgumentState LiteralArguments::feed(char c) {
  switch (phase_) {
    case Phase::kStart:
      if (c != dialect_.open && c != '(') return fail();
      if (c == '(') {
        // Models mix the other languages with Python's arguments.
        close_ = ')';
        key_end_ = '=';
      }
      push(Container::kArguments);
      return ArgumentState::kOpen;
    case Phase::kKey: return feed_key(c);
    case Phase::kBareKey: return feed_bare_key(c);
    case Phase::kKeyEnd: {
      if (is_blank(c)) return ArgumentState::kOpen;
      const char wanted = containers_.back() == Container::kArguments ? key_end_ : ':';
      if (c != wanted) {
        pending_ = std::move(value_);
        return fail();
      }
      end_key();
      return ArgumentState::kOpen;
    }
    case Phase::kValue: return feed_value(c);
    case Phase::kWord: return feed_word(c);
    case Phase::kString: return feed_string(c);
    case Phase::kQuoteEnd: return feed_quote_end(c);
    case Phase::kPython: return feed_python_string(c);
    case Phase::kAfter: return feed_after(c);
    case Phase::kEnd: break;
  }
  return ArgumentState::kBad;
}

ArgumentState LiteralArguments::feed_key(char c) {
  if (pending_.empty() && (is_blank(c) || c == ',')) return ArgumentState::kOpen;
  const char close = containers_.back() == Container::kArguments ? close_ : '}';
  if (pending_.empty() && c == close) return pop();
  if (may_quote(c)) {
    is_key_ = true;
    if (take_quote(c)) begin_string(c);
    return ArgumentState::kOpen;
  }
  phase_ = Phase::kBareKey;
  return feed_bare_key(c);
}

ArgumentState LiteralArguments::feed_bare_key(char c) {
  if (is_key_char(c)) {
    pending_ += c;
    return ArgumentState::kOpen;
  }
  if (pending_.empty()) return fail();
  value_ = std::exchange(pending_, {});
  phase_ = Phase::kKeyEnd;
  return feed(c);
}

void LiteralArguments::end_key() {
  separate();
  append_json_string(arguments_, value_);
  arguments_ += ": ";
  needs_value_ = true;
  phase_ = Phase::kValue;
}

ArgumentState LiteralArguments::feed_value(char c) {
  if (pending_.empty() && is_blank(c)) return ArgumentState::kOpen;
  const bool in_list = containers_.back() == Container::kList;
  if (may_quote(c)) {
    is_key_ = false;
    if (take_quote(c)) begin_string(c);
    return ArgumentState::kOpen;
  }
  if (!pending_.empty() || containers_.size() > kMaxDepth) return fail();
  const bool is_python = dialect_.quote.empty();
  if (in_list && (c == ']' || (is_python && c == ')'))) return pop();
  if (c == '{') {
    if (in_list) separate();
    push(Container::kObject);
  } else if (c == '[' || (is_python && c == '(')) {
    if (in_list) separate();
    push(Container::kList);
  } else if (c == ',' || c == ':' || c == '}' || c == ']' || c == ')' || c == '=') {
    if (!in_list || c != ',') return fail();
  } else {
    pending_ += c;
    phase_ = Phase::kWord;
  }
  return ArgumentState::kOpen;
}

ArgumentState LiteralArguments::feed_word(char c) {
  const bool is_python = dialect_.quote.empty();
  const bool ends =
      c == ',' || c == '}' || c == ']' || (c == ')' && (is_python || close_ == ')')) || (is_python && is_blank(c));
  if (!ends) {
    pending_ += c;
    // Models leave out the mark before a string.
    if (!is_python && pending_.ends_with(dialect_.quote)) {
      pending_.resize(pending_.size() - dialect_.quote.size());
      end_word(true);
    }
    return ArgumentState::kOpen;
  }
  end_word(false);
  return feed(c);
}

void LiteralArguments::end_word(bool is_string) {
  if (containers_.back() == Container::kList) separate();
  needs_value_ = false;
  const std::string word(without_space(pending_));
  pending_.clear();
  phase_ = Phase::kAfter;
  if (is_string) {
    append_json_string(arguments_, word);
  } else if (word == "true" || word == "True") {
    arguments_ += "true";
  } else if (word == "false" || word == "False") {
    arguments_ += "false";
  } else if (word == "null" || word == "None") {
    arguments_ += "null";
  } else if (is_json_number(word)) {
    arguments_ += word;
  } else {
    append_json_string(arguments_, word);
  }
}

bool LiteralArguments::may_quote(char c) const {
  if (dialect_.quote.empty()) return c == '"' || c == '\'';
  const std::string word = pending_ + c;
  return dialect_.quote.starts_with(word) || word == "\"" || word == "'";
}

bool LiteralArguments::take_quote(char c) {
  pending_ += c;
  const bool is_complete = dialect_.quote.empty() || pending_ == dialect_.quote || pending_ == "\"" || pending_ == "'";
  if (is_complete) pending_.clear();
  return is_complete;
}

void LiteralArguments::begin_string(char quote) {
  // JSON's own quotes are read in every dialect.
  phase_ = quote == '"' || quote == '\'' ? Phase::kPython : Phase::kString;
  python_quote_ = quote;
  const bool is_typed =
      phase_ == Phase::kString && dialect_.types_strings && types_ != nullptr && !is_key_ && containers_.size() == 1;
  is_buffered_ = is_key_ || (is_typed && types_->of(tool_, value_) != kStringOnly);
  if (is_key_) {
    value_.clear();
    return;
  }
  if (containers_.back() == Container::kList) separate();
  if (is_buffered_) return;
  needs_value_ = false;
  arguments_ += '"';
}

ArgumentState LiteralArguments::feed_string(char c) {
  pending_ += c;
  if (pending_.ends_with(dialect_.quote)) {
    pending_.resize(pending_.size() - dialect_.quote.size());
    phase_ = Phase::kQuoteEnd;
    return ArgumentState::kOpen;
  }
  if (is_buffered_) return ArgumentState::kOpen;
  const size_t kept = partial_match_length(pending_, dialect_.quote);
  append_escaped(arguments_, std::string_view(pending_).substr(0, pending_.size() - kept));
  pending_.erase(0, pending_.size() - kept);
  return ArgumentState::kOpen;
}

ArgumentState LiteralArguments::feed_quote_end(char c) {
  const bool may_be_text = dialect_.quote.find('"') != std::string_view::npos;
  const bool ends = c == ',' || c == '}' || c == ']' || c == ':' || c == ')' || !may_be_text;
  const bool is_nested_quote = c == ')' && close_ != ')';
  if (ends && !is_nested_quote) {
    end_string();
    return feed(c);
  }
  phase_ = Phase::kString;
  if (!is_buffered_) {
    append_escaped(arguments_, std::exchange(pending_, {}));
    append_escaped(arguments_, "\"");
  } else {
    pending_ += '"';
  }
  return feed_string(c);
}

/// Reads a string in quotes. pending_ is an unfinished escape, or the text of a key as JSON.
ArgumentState LiteralArguments::feed_python_string(char c) {
  std::string& out = is_key_ ? value_ : arguments_;
  if (!pending_.empty()) {
    escape(c);
  } else if (c == '\\') {
    pending_ += c;
  } else if (c == python_quote_) {
    end_string();
  } else if (is_key_) {
    out += c;
  } else {
    append_escaped(out, std::string_view(&c, 1));
  }
  return ArgumentState::kOpen;
}

/// Reads a byte of an escape, which pending_ begins.
void LiteralArguments::escape(char c) {
  pending_ += c;
  const char kind = pending_[1];
  const auto emit = [this](std::string_view text) {
    pending_.clear();
    if (is_key_) {
      value_ += text;
    } else {
      append_escaped(arguments_, text);
    }
  };
  if (const size_t digits = hex_digits(kind); digits > 0) {
    const bool is_digit = std::string_view("0123456789abcdefABCDEF").find(c) != std::string_view::npos;
    if (pending_.size() > 2 && !is_digit) return emit(std::string(pending_));
    if (pending_.size() < 2 + digits) return;
    const unsigned long value = std::stoul(pending_.substr(2), nullptr, 16);
    const bool is_surrogate = value >= 0xD800 && value < 0xE000;
    if (is_surrogate && !is_key_) {
      // A pair comes as two escapes, which JSON writes in the same way.
      arguments_ += pending_.substr(0, 1) + 'u' + pending_.substr(pending_.size() - 4);
      pending_.clear();
      return;
    }
    std::string text;
    append_utf8(text, value > 0x10FFFF || is_surrogate ? 0xFFFD : static_cast<char32_t>(value));
    return emit(text);
  }
  switch (kind) {
    case 'n': return emit("\n");
    case 't': return emit("\t");
    case 'r': return emit("\r");
    case 'b': return emit("\b");
    case 'f': return emit("\f");
    case '\n': return emit("");
    case '\\':
    case '\'':
    case '"':
    case '/': return emit(std::string(1, kind));
    default: return emit(std::string(pending_));
  }
}

void LiteralArguments::end_string() {
  if (is_key_) {
    if (phase_ == Phase::kQuoteEnd) value_ = std::exchange(pending_, {});
    pending_.clear();
    phase_ = Phase::kKeyEnd;
    return;
  }
  if (is_buffered_) {
    arguments_ += value_to_json(pending_, types_->of(tool_, value_));
  } else {
    append_escaped(arguments_, pending_);
    arguments_ += '"';
  }
  pending_.clear();
  is_buffered_ = false;
  needs_value_ = false;
  phase_ = Phase::kAfter;
}

ArgumentState LiteralArguments::feed_after(char c) {
  if (is_blank(c)) return ArgumentState::kOpen;
  const bool in_list = containers_.back() == Container::kList;
  if (c == ',') {
    phase_ = in_list ? Phase::kValue : Phase::kKey;
    return ArgumentState::kOpen;
  }
  const char close = containers_.back() == Container::kArguments ? close_ : in_list ? ']' : '}';
  const bool closes_tuple = in_list && dialect_.quote.empty() && c == ')';
  return c == close || closes_tuple ? pop() : fail();
}

void LiteralArguments::push(Container container) {
  needs_value_ = false;
  is_first_ = true;
  containers_.push_back(container);
  arguments_ += container == Container::kList ? '[' : '{';
  phase_ = container == Container::kList ? Phase::kValue : Phase::kKey;
}

ArgumentState LiteralArguments::pop() {
  arguments_ += containers_.back() == Container::kList ? ']' : '}';
  containers_.pop_back();
  is_first_ = false;
  phase_ = containers_.empty() ? Phase::kEnd : Phase::kAfter;
  return containers_.empty() ? ArgumentState::kDone : ArgumentState::kOpen;
}

void LiteralArguments::separate() {
  if (!std::exchange(is_first_, false)) arguments_ += ", ";
}

ArgumentState LiteralArguments::fail() {
  if (needs_value_) arguments_ += "null";
  for (; !containers_.empty(); containers_.pop_back()) {
    arguments_ += containers_.back() == Container::kList ? ']' : '}';
  }
  phase_ = Phase::kEnd;
  return ArgumentState::kBad;
}

std::string LiteralArguments::take_arguments() {
  return std::exchange(arguments_, {});
}

}  // namespace millrace::text
