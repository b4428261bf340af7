#include "text/tool_calls/tool_calls.h"

#include <algorithm>
#include <utility>

#include "base/json_value.h"
#include "text/tool_calls/partial_match.h"

namespace millrace::text {
namespace {

/// What may stand between [TOOL_CALLS] and the arguments.
constexpr size_t kMaxHeadBytes = 1024;

bool is_space(char c) {
  return kAsciiSpace.find(c) != std::string_view::npos;
}

/// A JSON string with its quotes; nothing if it is none.
std::optional<std::string> decode_string(const std::string& quoted) {
  const auto document = JsonDocument::parse(quoted);
  std::string_view text;
  if (document.has_error() || !document->root().get(text)) return std::nullopt;
  return std::string(text);
}

}  // namespace

void append_call_part(std::vector<ToolCallPart>& parts, ToolCallPart part) {
  if (parts.empty() || parts.back().index != part.index) {
    parts.push_back(std::move(part));
    return;
  }
  parts.back().name += part.name;
  parts.back().arguments += part.arguments;
}

JsonCallParser::State JsonCallParser::feed(char c) {
  switch (phase_) {
    case Phase::kBefore:
      if (is_space(c)) return State::kOpen;
      phase_ = Phase::kMember;
      return c == '{' ? State::kOpen : State::kBad;
    case Phase::kMember:
      if (is_space(c) || c == ',') return State::kOpen;
      if (c == '}') {
        if (has_name() && !saw_arguments_) arguments_ = "{}";
        phase_ = Phase::kEnd;
        return has_name() ? State::kDone : State::kBad;
      }
      key_.clear();
      phase_ = Phase::kKey;
      return c == '"' ? State::kOpen : State::kBad;
    case Phase::kKey:
      if (c == '"') {
        phase_ = Phase::kColon;
      } else {
        key_ += c;
      }
      return c == '\\' ? State::kBad : State::kOpen;
    case Phase::kColon:
      if (is_space(c)) return State::kOpen;
      phase_ = Phase::kValueStart;
      return c == ':' ? State::kOpen : State::kBad;
    case Phase::kValueStart:
      if (is_space(c)) return State::kOpen;
      if (!begin_value(c)) return State::kBad;
      break;
    case Phase::kValue: break;
    case Phase::kEnd: return State::kBad;
  }
  // A number or a word ends before the byte that follows it.
  if (is_scalar_ && (c == ',' || c == '}' || is_space(c))) {
    if (!end_value()) return State::kBad;
    return feed(c);
  }
  if (in_value(c) && !end_value()) return State::kBad;
  return State::kOpen;
}

bool JsonCallParser::begin_value(char c) {
  phase_ = Phase::kValue;
  target_ = Target::kNone;
  if (key_ == "name") target_ = Target::kName;
  if (key_ == "arguments" || key_ == "parameters") target_ = Target::kArguments;
  if (target_ == Target::kArguments && std::exchange(saw_arguments_, true)) return false;
  value_.clear();
  is_string_ = c == '"';
  is_scalar_ = !is_string_ && c != '{' && c != '[';
  in_string_ = false;
  escaped_ = false;
  depth_ = 0;
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
    return closes && depth_ == 0;
  }
  if (c == '"') in_string_ = true;
  if (c == '{' || c == '[') ++depth_;
  return (c == '}' || c == ']') && --depth_ == 0;
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

std::string_view ToolCallParser::opener() const {
  return format_ == ToolFormat::kLlama3 ? kPythonTag : tool_call_start_tag(format_);
}

void ToolCallParser::push(std::string_view text, std::string& content, std::vector<ToolCallPart>& calls) {
  pending_ += text;
  Out out{content, calls};
  while (step(out)) {
  }
}

void ToolCallParser::finish(std::string& content) {
  // What is begun has been told, and space behind a call is dropped.
  const bool is_text = phase_ == Phase::kText && (started_calls_ == 0 || !without_space(pending_).empty());
  if (is_text || !held_back_.empty()) content += held_back_ + pending_;
  held_back_.clear();
  pending_.clear();
}

bool ToolCallParser::step(Out& out) {
  switch (phase_) {
    case Phase::kText: return step_text(out);
    case Phase::kFirst: return step_first();
    case Phase::kCall:
      return format_ == ToolFormat::kQwen3Coder ? step_call(parameters_, out) : step_call(object_, out);
    case Phase::kBetween: return step_between(out);
    case Phase::kHead: return step_head(out);
    case Phase::kArguments: return step_arguments(out);
    case Phase::kTail: return step_tail();
  }
  return false;
}

bool ToolCallParser::step_text(Out& out) {
  if (format_ == ToolFormat::kLlama3) return step_start_of_json(out);
  const size_t at = pending_.find(opener());
  const bool is_found = at != std::string::npos;
  size_t end = is_found ? at : pending_.size() - partial_match_length(pending_, opener());
  const size_t without_space = size_without_space(std::string_view(pending_).substr(0, end));
  if (is_found || end - without_space <= kMaxHeldBackSpace) end = without_space;
  out.content.append(pending_, 0, end);
  pending_.erase(0, is_found ? at : end);
  if (!is_found) return false;
  held_back_ = opener();
  pending_.erase(0, opener().size());
  switch (format_) {
    case ToolFormat::kHermes:
    case ToolFormat::kQwen3Coder: open(Phase::kCall); break;
    case ToolFormat::kMistral: phase_ = Phase::kFirst; break;
    default: phase_ = Phase::kBetween;
  }
  return true;
}

/// An answer is a call from its first byte, or none at all.
bool ToolCallParser::step_start_of_json(Out& out) {
  if (!is_text_) {
    const size_t first = pending_.find_first_not_of(kAsciiSpace);
    if (first == std::string::npos) return false;
    if (pending_[first] != '{') {
      const std::string_view rest = std::string_view(pending_).substr(first);
      if (kPythonTag.starts_with(rest) && rest.size() < kPythonTag.size()) return false;
      is_text_ = !rest.starts_with(kPythonTag);
    }
    if (!is_text_) {
      const size_t skipped = pending_[first] == '{' ? first : first + kPythonTag.size();
      held_back_ = pending_.substr(0, skipped);
      pending_.erase(0, skipped);
      open(Phase::kCall);
      return true;
    }
  }
  out.content += std::exchange(pending_, {});
  return false;
}

void ToolCallParser::open(Phase phase) {
  phase_ = phase;
  object_ = JsonCallParser();
  parameters_ = XmlCallParser(types_.get());
  depth_ = 0;
  in_string_ = false;
  escaped_ = false;
}

void ToolCallParser::begin_call(std::string name, Out& out) {
  held_back_.clear();
  append_call_part(out.calls, {started_calls_++, std::move(name), {}});
}

void ToolCallParser::end_call(Phase next) {
  ++finished_calls_;
  phase_ = next;
}

void ToolCallParser::abandon_call(Out& out) {
  out.content += std::exchange(held_back_, {});
  phase_ = Phase::kText;
  is_text_ = true;
}

template <class Call>
bool ToolCallParser::step_call(Call& call, Out& out) {
  using State = typename Call::State;
  const bool was_named = call.has_name();
  State state = State::kOpen;
  size_t count = 0;
  while (count < pending_.size() && state == State::kOpen) state = call.feed(pending_[count++]);
  const bool is_broken = state == State::kBad && call.has_name();
  if (!call.has_name()) held_back_.append(pending_, 0, count);
  // What breaks a call off is none of it.
  pending_.erase(0, is_broken ? count - 1 : count);
  if (is_broken) pending_.insert(0, call.unconsumed_bytes());
  if (!was_named && call.has_name()) begin_call(call.name(), out);
  if (call.has_name()) append_call_part(out.calls, {started_calls_ - 1, {}, call.take_arguments()});
  if (state == State::kOpen) return false;
  if (state == State::kDone || call.has_name()) {
    end_call(Phase::kBetween);
  } else {
    abandon_call(out);
  }
  return true;
}

/// Parses what stands between calls, or before the first one.
bool ToolCallParser::step_between(Out& out) {
  skip_space(format_ == ToolFormat::kLlama3 || format_ == ToolFormat::kMistral ? ",;" : "");
  if (pending_.empty()) return false;
  switch (format_) {
    case ToolFormat::kHermes:
    case ToolFormat::kQwen3Coder: return step_word(kHermesClose, Phase::kText, out);
    case ToolFormat::kDeepSeekV3: {
      const auto call = take_word(kDeepSeekCall);
      if (!call) return false;
      if (!*call) return step_word(kDeepSeekClose, Phase::kText, out);
      held_back_ += kDeepSeekCall;
      open(Phase::kHead);
      return true;
    }
    case ToolFormat::kLlama3:
    case ToolFormat::kMistral: break;
  }
  if (format_ == ToolFormat::kMistral && take_word("]") == true) {
    phase_ = Phase::kText;
  } else if (pending_.front() == '{') {
    open(Phase::kCall);
  } else if (format_ == ToolFormat::kLlama3) {
    return step_word(kPythonTag, Phase::kBetween, out);
  } else {
    abandon_call(out);
  }
  return true;
}

/// `word` leads to `next`; anything else ends the calls.
bool ToolCallParser::step_word(std::string_view word, Phase next, Out& out) {
  const auto taken = take_word(word);
  if (!taken) return false;
  if (*taken) {
    phase_ = next;
  } else {
    abandon_call(out);
  }
  return true;
}

/// Parses what follows [TOOL_CALLS]: an array of objects, or a name.
bool ToolCallParser::step_first() {
  skip_space();
  if (pending_.empty()) return false;
  if (pending_.front() == '[') {
    held_back_ += '[';
    pending_.erase(0, 1);
    phase_ = Phase::kBetween;
  } else {
    open(Phase::kHead);
  }
  return true;
}

bool ToolCallParser::step_head(Out& out) {
  std::string name;
  size_t end = 0;
  if (format_ == ToolFormat::kMistral) {
    end = pending_.find('{');
    if (end == std::string::npos) {
      if (pending_.size() <= kMaxHeadBytes) return false;
    } else {
      name = without_space(std::string_view(pending_).substr(0, std::min(end, pending_.find('['))));
    }
  } else {
    const size_t at = pending_.find(kDeepSeekSeparator);
    if (at == std::string::npos) return false;
    name = without_space(std::string_view(pending_).substr(0, at));
    end = at + kDeepSeekSeparator.size();
    if (name == kDeepSeekType) {
      const size_t line_end = pending_.find('\n', end);
      if (line_end == std::string::npos) return false;
      name = without_space(std::string_view(pending_).substr(end, line_end - end));
      end = line_end + 1;
    }
  }
  if (name.empty()) {
    abandon_call(out);
    return true;
  }
  pending_.erase(0, end);
  begin_call(std::move(name), out);
  open(Phase::kArguments);
  return true;
}

bool ToolCallParser::step_arguments(Out& out) {
  const bool has_tail = format_ == ToolFormat::kDeepSeekV3;
  if (depth_ == 0) {
    // A fence, with the language that it names.
    const size_t first = pending_.find_first_of(has_tail ? "{<" : "{");
    if (first == std::string::npos) {
      pending_.clear();
      return false;
    }
    pending_.erase(0, first);
    if (pending_.front() == '<') {
      append_call_part(out.calls, {started_calls_ - 1, {}, "{}"});
      end_call(Phase::kTail);
      return true;
    }
  }
  size_t count = 0;
  do {
    const char c = pending_[count++];
    if (in_string_) {
      if (c == '"' && !escaped_) in_string_ = false;
      escaped_ = c == '\\' && !escaped_;
      continue;
    }
    if (c == '"') in_string_ = true;
    if (c == '{' || c == '[') ++depth_;
    if (c == '}' || c == ']') --depth_;
  } while (count < pending_.size() && depth_ > 0);
  append_call_part(out.calls, {started_calls_ - 1, {}, pending_.substr(0, count)});
  pending_.erase(0, count);
  if (depth_ > 0) return false;
  end_call(has_tail ? Phase::kTail : Phase::kText);
  return true;
}

/// The other end of the fence.
bool ToolCallParser::step_tail() {
  const size_t at = pending_.find(kDeepSeekCallEnd);
  if (at == std::string::npos) {
    pending_.erase(0, pending_.size() - partial_match_length(pending_, kDeepSeekCallEnd));
    return false;
  }
  pending_.erase(0, at + kDeepSeekCallEnd.size());
  phase_ = Phase::kBetween;
  return true;
}

void ToolCallParser::skip_space(std::string_view also) {
  const auto is_passed = [also](char c) { return is_space(c) || also.find(c) != std::string_view::npos; };
  pending_.erase(0, static_cast<size_t>(std::ranges::find_if_not(pending_, is_passed) - pending_.begin()));
}

std::optional<bool> ToolCallParser::take_word(std::string_view word) {
  if (pending_.starts_with(word)) {
    pending_.erase(0, word.size());
    return true;
  }
  if (word.starts_with(pending_)) return std::nullopt;
  return false;
}

}  // namespace millrace::text
