#include "text/tool_calls/tagged_arguments.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/json.h"
#include "text/tool_calls/json_text.h"
#include "text/tool_calls/partial_match.h"

namespace millrace::text {
namespace {

/// Limits the size of a key.
constexpr size_t kMaxKeyBytes = 1024;

}  // namespace

TaggedArguments::TaggedArguments(const ToolCallSyntax& syntax, std::string tool,
                                 std::shared_ptr<const ParameterTypes> types)
    : tags_(*syntax.tags),
      tool_(std::move(tool)),
      types_(std::move(types)),
      open_(without_space(tags_.open)),
      value_open_(without_space(tags_.value_open)),
      arguments_end_(without_space(syntax.after_arguments)),
      call_close_(without_space(syntax.call_close)),
      value_ends_(syntax.value_ends()),
      framed_end_('\n' + std::string(value_ends_.front())) {}

ArgumentState TaggedArguments::feed(char c) {
  switch (phase_) {
    case Phase::kBetween: return feed_word(c);
    case Phase::kKey: return feed_key(c);
    case Phase::kValueOpen:
    case Phase::kAttributes: return feed_value_open(c);
    case Phase::kValue: return feed_value(c);
    case Phase::kEnd: break;
  }
  return ArgumentState::kBad;
}

/// Reads towards the next parameter, or the end.
ArgumentState TaggedArguments::feed_word(char c) {
  if (pending_.empty() && kAsciiSpace.find(c) != std::string_view::npos) return ArgumentState::kOpen;
  const std::string word = pending_ + c;
  const std::array ends = {arguments_end_, call_close_};
  const bool may_end = std::ranges::any_of(ends, [&](std::string_view end) { return end.starts_with(word); });
  if (!open_.starts_with(word) && !may_end) return end(ArgumentState::kBad);
  pending_ = word;
  if (may_end && std::ranges::find(ends, word) != ends.end()) {
    has_closed_call_ = word == call_close_;
    pending_.clear();
    return end(ArgumentState::kDone);
  }
  if (word != open_) return ArgumentState::kOpen;
  pending_.clear();
  phase_ = Phase::kKey;
  return ArgumentState::kOpen;
}

ArgumentState TaggedArguments::feed_key(char c) {
  if (c == '\n' || pending_.size() > kMaxKeyBytes) {
    pending_.insert(0, open_);
    return end(ArgumentState::kBad);
  }
  pending_ += c;
  if (!pending_.ends_with(tags_.key_end)) return ArgumentState::kOpen;
  key_ = without_space(std::string_view(pending_).substr(0, pending_.size() - tags_.key_end.size()));
  pending_.clear();
  phase_ = tags_.has_string_attribute ? Phase::kAttributes : Phase::kValueOpen;
  if (phase_ == Phase::kValueOpen && value_open_.empty()) begin_value();
  return ArgumentState::kOpen;
}

ArgumentState TaggedArguments::feed_value_open(char c) {
  if (pending_.empty() && kAsciiSpace.find(c) != std::string_view::npos) return ArgumentState::kOpen;
  const bool is_attribute = phase_ == Phase::kAttributes;
  if (is_attribute && pending_.size() > kMaxKeyBytes) {
    pending_.insert(0, std::string(open_) + key_ + std::string(tags_.key_end));
    return end(ArgumentState::kBad);
  }
  if (!is_attribute && !value_open_.starts_with(pending_ + c)) {
    // Models leave out the tag before a value.
    const std::string value = std::exchange(pending_, {}) + c;
    begin_value();
    for (const char byte : value) (void)feed_value(byte);
    return ArgumentState::kOpen;
  }
  pending_ += c;
  if (is_attribute ? c == '>' : pending_ == value_open_) begin_value();
  return ArgumentState::kOpen;
}

void TaggedArguments::begin_value() {
  value_types_ = types_ == nullptr ? kStringOnly : types_->of(tool_, key_);
  if (pending_.find("string=\"true\"") != std::string::npos) {
    value_types_ = kStringOnly;
  } else if (pending_.find("string=\"false\"") != std::string::npos) {
    value_types_.remove(ValueType::kString);
    if (!value_types_.has_others_than_string()) value_types_ = {};
  } else if (tags_.has_string_attribute && types_ == nullptr) {
    value_types_ = {};
  }
  pending_.clear();
  phase_ = Phase::kValue;
  is_streamed_ = false;
  drops_line_feed_ = tags_.frames_lines;
  arguments_ += std::exchange(has_arguments_, true) ? ", " : "{";
  append_json_string(arguments_, key_);
  arguments_ += ": ";
}

ArgumentState TaggedArguments::feed_value(char c) {
  if (std::exchange(drops_line_feed_, false) && c == '\n') return ArgumentState::kOpen;
  pending_ += c;
  for (const std::string_view tag : value_ends_) {
    if (pending_.ends_with(tag)) return end_value(tag);
  }
  if (value_types_ == kStringOnly && !is_streamed_) {
    is_streamed_ = true;
    arguments_ += '"';
  }
  const bool may_be_null_only = value_types_ == ValueTypes{ValueType::kString, ValueType::kNull};
  if (may_be_null_only && !is_streamed_) {
    const std::string_view start = without_space(pending_);
    const std::string_view word = without_space(start.substr(0, start.find(value_ends_.front().front())));
    if (!std::string_view("null").starts_with(word) && !std::string_view("None").starts_with(word)) {
      is_streamed_ = true;
      arguments_ += '"';
    }
  }
  if (is_streamed_) stream_text();
  return ArgumentState::kOpen;
}

void TaggedArguments::stream_text() {
  size_t kept = tags_.frames_lines ? partial_match_length(pending_, framed_end_) : 0;
  for (const std::string_view tag : value_ends_) kept = std::max(kept, partial_match_length(pending_, tag));
  append_escaped(arguments_, std::string_view(pending_).substr(0, pending_.size() - kept));
  pending_.erase(0, pending_.size() - kept);
}

ArgumentState TaggedArguments::end_value(std::string_view tag) {
  std::string_view value = std::string_view(pending_).substr(0, pending_.size() - tag.size());
  if (tags_.frames_lines && value.ends_with('\n')) value.remove_suffix(1);
  if (is_streamed_) {
    append_escaped(arguments_, value);
    arguments_ += '"';
  } else {
    arguments_ += value_to_json(value, value_types_);
  }
  pending_.clear();
  if (tag == arguments_end_) return end(ArgumentState::kDone);
  phase_ = tag == open_ ? Phase::kKey : Phase::kBetween;
  return ArgumentState::kOpen;
}

/// Completes the object, whatever follows.
ArgumentState TaggedArguments::end(ArgumentState state) {
  phase_ = Phase::kEnd;
  arguments_ += has_arguments_ ? "}" : "{}";
  return state;
}

std::string TaggedArguments::take_arguments() {
  return std::exchange(arguments_, {});
}

}  // namespace millrace::text
