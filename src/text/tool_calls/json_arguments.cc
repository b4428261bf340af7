#include "text/tool_calls/json_arguments.h"

#include <optional>
#include <utility>

#include "base/json_value.h"
#include "text/tool_calls/partial_match.h"

namespace millrace::text {
namespace {

bool is_json_space(char c) {
  return kAsciiSpace.find(c) != std::string_view::npos;
}

/// Returns the text of a JSON string with its quotes, or nothing if it is none.
std::optional<std::string> decode_string(const std::string& quoted) {
  const auto document = JsonDocument::parse(quoted);
  std::string_view text;
  if (document.has_error() || !document->root().get(text)) return std::nullopt;
  return std::string(text);
}

/// Notes the bracket that an opening one wants, or that a closing one has come.
void track_bracket(char c, std::string& closers) {
  if (c == '{') closers += '}';
  if (c == '[') closers += ']';
  if ((c == '}' || c == ']') && !closers.empty()) closers.pop_back();
}

/// Appends the brackets that are missing.
void append_closers(std::string& closers, std::string& out) {
  out.append(closers.rbegin(), closers.rend());
  closers.clear();
}

}  // namespace

ArgumentState JsonArguments::feed(char c) {
  if (in_string_) {
    arguments_ += c;
    const bool closes = c == '"' && !escaped_;
    escaped_ = c == '\\' && !escaped_;
    if (!closes) return ArgumentState::kOpen;
    in_string_ = false;
    if (!is_encoded_) return ArgumentState::kOpen;
    if (auto text = decode_string(arguments_)) arguments_ = *std::move(text);
    return ArgumentState::kDone;
  }
  if (c == '<') {
    append_closers(closers_, arguments_);
    return ArgumentState::kBad;
  }
  arguments_ += c;
  in_string_ = c == '"';
  is_encoded_ = in_string_ && closers_.empty();
  track_bracket(c, closers_);
  return closers_.empty() && !in_string_ ? ArgumentState::kDone : ArgumentState::kOpen;
}

std::string JsonArguments::take_arguments() {
  // A string is decoded at its end.
  if (is_encoded_ && in_string_) return {};
  return std::exchange(arguments_, {});
}

ArgumentState JsonCallParser::feed(char c) {
  switch (phase_) {
    case Phase::kBefore:
      if (is_json_space(c)) return ArgumentState::kOpen;
      phase_ = Phase::kMember;
      return c == '{' ? ArgumentState::kOpen : ArgumentState::kBad;
    case Phase::kMember:
      if (is_json_space(c) || c == ',') return ArgumentState::kOpen;
      if (c == '}') {
        if (has_name() && !saw_arguments_) arguments_ = "{}";
        phase_ = Phase::kEnd;
        return has_name() ? ArgumentState::kDone : ArgumentState::kBad;
      }
      key_.clear();
      phase_ = Phase::kKey;
      return c == '"' ? ArgumentState::kOpen : ArgumentState::kBad;
    case Phase::kKey:
      if (c == '"') {
        phase_ = Phase::kColon;
      } else {
        key_ += c;
      }
      return c == '\\' ? ArgumentState::kBad : ArgumentState::kOpen;
    case Phase::kColon:
      if (is_json_space(c)) return ArgumentState::kOpen;
      phase_ = Phase::kValueStart;
      return c == ':' ? ArgumentState::kOpen : ArgumentState::kBad;
    case Phase::kValueStart:
      if (is_json_space(c)) return ArgumentState::kOpen;
      if (!begin_value(c)) return ArgumentState::kBad;
      break;
    case Phase::kValue: break;
    case Phase::kEnd: return ArgumentState::kBad;
  }
  // A number or a word ends before the byte that follows it.
  if (is_scalar_ && (c == ',' || c == '}' || is_json_space(c))) {
    if (!end_value()) return ArgumentState::kBad;
    return feed(c);
  }
  if (c == '<' && !in_string_) {
    if (target_ == Target::kArguments) append_closers(closers_, arguments_);
    return ArgumentState::kBad;
  }
  if (in_value(c) && !end_value()) return ArgumentState::kBad;
  return ArgumentState::kOpen;
}

bool JsonCallParser::begin_value(char c) {
  phase_ = Phase::kValue;
  target_ = Target::kNone;
  if (key_ == "name" || key_ == "tool_name") target_ = Target::kName;
  if (key_ == "arguments" || key_ == "parameters") target_ = Target::kArguments;
  if (target_ == Target::kArguments && std::exchange(saw_arguments_, true)) return false;
  value_.clear();
  is_string_ = c == '"';
  is_scalar_ = !is_string_ && c != '{' && c != '[';
  in_string_ = false;
  escaped_ = false;
  closers_.clear();
  return true;
}

bool JsonCallParser::in_value(char c) {
  if (target_ == Target::kArguments && !is_string_) {
    arguments_ += c;
  } else if (target_ != Target::kNone) {
    value_ += c;
  }
  if (is_scalar_) return false;
  if (in_string_) {
    const bool closes = c == '"' && !escaped_;
    escaped_ = c == '\\' && !escaped_;
    if (closes) in_string_ = false;
    return closes && closers_.empty();
  }
  if (c == '"') in_string_ = true;
  track_bracket(c, closers_);
  return (c == '}' || c == ']') && closers_.empty();
}

bool JsonCallParser::end_value() {
  phase_ = Phase::kMember;
  is_scalar_ = false;
  if (target_ == Target::kName) {
    const auto name = decode_string(value_);
    if (!name || name->empty() || has_name()) return false;
    name_ = *name;
  }
  if (target_ != Target::kArguments) return true;
  if (is_string_) {
    auto text = decode_string(value_);
    if (!text) return false;
    arguments_ = *std::move(text);
  } else if (arguments_ == "null") {
    arguments_ = "{}";
  }
  return true;
}

std::string JsonCallParser::take_arguments() {
  // A word may become "null".
  if (!has_name() || (is_scalar_ && phase_ == Phase::kValue)) return {};
  return std::exchange(arguments_, {});
}

}  // namespace millrace::text
