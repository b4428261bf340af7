#include "server/openai/custom_input.h"

#include <charconv>

#include "base/json_value.h"
#include "base/utf8.h"

namespace millrace::server::openai {
namespace {

constexpr uint32_t kReplacement = 0xfffd;

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

}  // namespace

bool CustomInput::match_start(size_t& size) const {
  constexpr std::string_view kTokens[] = {"{", "\"input\"", ":", "\""};
  size_t position = 0;
  const std::string_view text = start_;
  for (const std::string_view token : kTokens) {
    while (position < text.size() && is_space(text[position])) ++position;
    const std::string_view found = text.substr(position, token.size());
    if (found != token.substr(0, found.size())) return false;
    position += found.size();
    if (found.size() < token.size()) return true;
  }
  size = position;
  return true;
}

std::string CustomInput::push(std::string_view piece) {
  std::string out;
  if (state_ == State::kStart) {
    size_t size = 0;
    start_ += piece;
    if (!match_start(size) || size == 0) return out;
    piece = piece.substr(piece.size() - (start_.size() - size));
    state_ = State::kText;
  }
  for (const char c : piece) take(c, out);
  return out;
}

void CustomInput::take(char c, std::string& out) {
  if (state_ == State::kUnicode) {
    digits_ += c;
    if (digits_.size() == 4) take_unicode(out);
    return;
  }
  if (state_ == State::kEscape) {
    state_ = State::kText;
    if (c == 'u') {
      state_ = State::kUnicode;
      digits_.clear();
      return;
    }
    append_lone_surrogate(out);
    switch (c) {
      case 'n': out += '\n'; return;
      case 't': out += '\t'; return;
      case 'r': out += '\r'; return;
      case 'b': out += '\b'; return;
      case 'f': out += '\f'; return;
      default: out += c; return;
    }
  }
  if (state_ != State::kText) return;
  if (c == '\\') {
    state_ = State::kEscape;
    return;
  }
  append_lone_surrogate(out);
  if (c == '"') {
    state_ = State::kEnd;
  } else {
    out += c;
  }
}

void CustomInput::take_unicode(std::string& out) {
  state_ = State::kText;
  uint32_t unit = kReplacement;
  const char* end = digits_.data() + digits_.size();
  const auto parsed = std::from_chars(digits_.data(), end, unit, 16);
  if (parsed.ec != std::errc() || parsed.ptr != end) unit = kReplacement;
  if (unit >= 0xdc00 && unit < 0xe000 && high_surrogate_ != 0) {
    append_utf8(out, 0x10000 + ((high_surrogate_ - 0xd800) << 10) + (unit - 0xdc00));
    high_surrogate_ = 0;
    return;
  }
  append_lone_surrogate(out);
  if (unit >= 0xd800 && unit < 0xdc00) {
    high_surrogate_ = unit;
  } else {
    append_utf8(out, unit >= 0xdc00 && unit < 0xe000 ? kReplacement : unit);
  }
}

void CustomInput::append_lone_surrogate(std::string& out) {
  if (high_surrogate_ == 0) return;
  append_utf8(out, kReplacement);
  high_surrogate_ = 0;
}

std::string CustomInput::finish() {
  std::string out;
  if (state_ == State::kStart) {
    // The model wrote something else: the client gets all of it.
    return std::exchange(start_, {});
  }
  append_lone_surrogate(out);
  return out;
}

}  // namespace millrace::server::openai
