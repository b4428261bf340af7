#include "text/tool_calls.h"

#include <simdjson.h>

#include <algorithm>
#include <utility>

#include "text/partial_match.h"

namespace millrace::text {
namespace {

/// What may stand between [TOOL_CALLS] and the arguments.
constexpr size_t kMostHeadBytes = 1024;

bool is_space(char c) {
  return kAsciiSpace.find(c) != std::string_view::npos;
}

/// A JSON string with its quotes; nothing if it is none.
std::optional<std::string> decode_string(const std::string& quoted) {
  simdjson::dom::parser parser;
  std::string_view text;
  if (parser.parse(quoted).get_string().get(text) != simdjson::SUCCESS) return std::nullopt;
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

CallObject::State CallObject::feed(char c) {
  switch (place_) {
    case Place::kBefore:
      if (is_space(c)) return State::kOpen;
      place_ = Place::kMember;
      return c == '{' ? State::kOpen : State::kBad;
    case Place::kMember:
      if (is_space(c) || c == ',') return State::kOpen;
      if (c == '}') {
        if (has_name() && !saw_arguments_) arguments_ = "{}";
        place_ = Place::kEnd;
        return has_name() ? State::kDone : State::kBad;
      }
      key_.clear();
      place_ = Place::kKey;
      return c == '"' ? State::kOpen : State::kBad;
    case Place::kKey:
      if (c == '"') {
        place_ = Place::kColon;
      } else {
        key_ += c;
      }
      return c == '\\' ? State::kBad : State::kOpen;
    case Place::kColon:
      if (is_space(c)) return State::kOpen;
      place_ = Place::kValueStart;
      return c == ':' ? State::kOpen : State::kBad;
    case Place::kValueStart:
      if (is_space(c)) return State::kOpen;
      if (!begin_value(c)) return State::kBad;
      break;
    case Place::kValue: break;
    case Place::kEnd: return State::kBad;
  }
  // A number or a word ends before the byte that follows it.
  if (is_scalar_ && (c == ',' || c == '}' || is_space(c))) {
    if (!end_value()) return State::kBad;
    return feed(c);
  }
  if (in_value(c) && !end_value()) return State::kBad;
  return State::kOpen;
}

bool CallObject::begin_value(char c) {
  place_ = Place::kValue;
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

bool CallObject::in_value(char c) {
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

bool CallObject::end_value() {
  place_ = Place::kMember;
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

std::string CallObject::take_arguments() {
  // A word may become "null".
  if (!has_name() || (is_scalar_ && place_ == Place::kValue)) return {};
  return std::exchange(arguments_, {});
}

std::string_view ToolCallParser::opener() const {
  return format_ == ToolFormat::kLlama3 ? kPythonTag : call_tag(format_);
}

void ToolCallParser::push(std::string_view text, std::string& content, std::vector<ToolCallPart>& calls) {
  pending_ += text;
  Out out{content, calls};
  while (step(out)) {
  }
}

void ToolCallParser::finish(std::string& content) {
  // What is begun has been told, and space behind a call is dropped.
  const bool is_text = place_ == Place::kText && (begun_ == 0 || !without_space(pending_).empty());
  if (is_text || !held_.empty()) content += held_ + pending_;
  held_.clear();
  pending_.clear();
}

bool ToolCallParser::step(Out& out) {
  switch (place_) {
    case Place::kText: return step_text(out);
    case Place::kFirst: return step_first();
    case Place::kCall:
      return format_ == ToolFormat::kQwen3Coder ? step_call(parameters_, out) : step_call(object_, out);
    case Place::kBetween: return step_between(out);
    case Place::kHead: return step_head(out);
    case Place::kArguments: return step_arguments(out);
    case Place::kTail: return step_tail();
  }
  return false;
}

bool ToolCallParser::step_text(Out& out) {
  if (format_ == ToolFormat::kLlama3) return step_start_of_json(out);
  const size_t at = pending_.find(opener());
  const bool is_found = at != std::string::npos;
  size_t end = is_found ? at : pending_.size() - begun_at_end(pending_, opener());
  const size_t without_space = size_without_space(std::string_view(pending_).substr(0, end));
  if (is_found || end - without_space <= kMostHeldSpace) end = without_space;
  out.content.append(pending_, 0, end);
  pending_.erase(0, is_found ? at : end);
  if (!is_found) return false;
  held_ = opener();
  pending_.erase(0, opener().size());
  switch (format_) {
    case ToolFormat::kHermes:
    case ToolFormat::kQwen3Coder: open(Place::kCall); break;
    case ToolFormat::kMistral: place_ = Place::kFirst; break;
    default: place_ = Place::kBetween;
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
      held_ = pending_.substr(0, skipped);
      pending_.erase(0, skipped);
      open(Place::kCall);
      return true;
    }
  }
  out.content += std::exchange(pending_, {});
  return false;
}

void ToolCallParser::open(Place place) {
  place_ = place;
  object_ = CallObject();
  parameters_ = ParameterCall(types_.get());
  depth_ = 0;
  in_string_ = false;
  escaped_ = false;
}

void ToolCallParser::begin_call(std::string name, Out& out) {
  held_.clear();
  append_call_part(out.calls, {begun_++, std::move(name), {}});
}

void ToolCallParser::end_call(Place next) {
  ++ended_;
  place_ = next;
}

void ToolCallParser::give_up(Out& out) {
  out.content += std::exchange(held_, {});
  place_ = Place::kText;
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
  if (!call.has_name()) held_.append(pending_, 0, count);
  // What breaks a call off is none of it.
  pending_.erase(0, is_broken ? count - 1 : count);
  if (is_broken) pending_.insert(0, call.unread());
  if (!was_named && call.has_name()) begin_call(call.name(), out);
  if (call.has_name()) append_call_part(out.calls, {begun_ - 1, {}, call.take_arguments()});
  if (state == State::kOpen) return false;
  if (state == State::kDone || call.has_name()) {
    end_call(Place::kBetween);
  } else {
    give_up(out);
  }
  return true;
}

/// Behind a call, or before the first one.
bool ToolCallParser::step_between(Out& out) {
  skip_space(format_ == ToolFormat::kLlama3 || format_ == ToolFormat::kMistral ? ",;" : "");
  if (pending_.empty()) return false;
  switch (format_) {
    case ToolFormat::kHermes:
    case ToolFormat::kQwen3Coder: return step_word(kHermesClose, Place::kText, out);
    case ToolFormat::kDeepSeekV3: {
      const auto call = take_word(kDeepSeekCall);
      if (!call) return false;
      if (!*call) return step_word(kDeepSeekClose, Place::kText, out);
      held_ += kDeepSeekCall;
      open(Place::kHead);
      return true;
    }
    case ToolFormat::kLlama3:
    case ToolFormat::kMistral: break;
  }
  if (format_ == ToolFormat::kMistral && take_word("]") == true) {
    place_ = Place::kText;
  } else if (pending_.front() == '{') {
    open(Place::kCall);
  } else if (format_ == ToolFormat::kLlama3) {
    return step_word(kPythonTag, Place::kBetween, out);
  } else {
    give_up(out);
  }
  return true;
}

/// `word` leads to `next`; anything else ends the calls.
bool ToolCallParser::step_word(std::string_view word, Place next, Out& out) {
  const auto taken = take_word(word);
  if (!taken) return false;
  if (*taken) {
    place_ = next;
  } else {
    give_up(out);
  }
  return true;
}

/// Behind [TOOL_CALLS]: an array of objects, or a name.
bool ToolCallParser::step_first() {
  skip_space();
  if (pending_.empty()) return false;
  if (pending_.front() == '[') {
    held_ += '[';
    pending_.erase(0, 1);
    place_ = Place::kBetween;
  } else {
    open(Place::kHead);
  }
  return true;
}

bool ToolCallParser::step_head(Out& out) {
  std::string name;
  size_t end = 0;
  if (format_ == ToolFormat::kMistral) {
    end = pending_.find('{');
    if (end == std::string::npos) {
      if (pending_.size() <= kMostHeadBytes) return false;
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
    give_up(out);
    return true;
  }
  pending_.erase(0, end);
  begin_call(std::move(name), out);
  open(Place::kArguments);
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
      append_call_part(out.calls, {begun_ - 1, {}, "{}"});
      end_call(Place::kTail);
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
  append_call_part(out.calls, {begun_ - 1, {}, pending_.substr(0, count)});
  pending_.erase(0, count);
  if (depth_ > 0) return false;
  end_call(has_tail ? Place::kTail : Place::kText);
  return true;
}

/// The other end of the fence.
bool ToolCallParser::step_tail() {
  const size_t at = pending_.find(kDeepSeekCallEnd);
  if (at == std::string::npos) {
    pending_.erase(0, pending_.size() - begun_at_end(pending_, kDeepSeekCallEnd));
    return false;
  }
  pending_.erase(0, at + kDeepSeekCallEnd.size());
  place_ = Place::kBetween;
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
