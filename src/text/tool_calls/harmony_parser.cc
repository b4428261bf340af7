#include "text/tool_calls/harmony_parser.h"

#include <algorithm>
#include <array>

#include "text/tool_calls/partial_match.h"
#include "text/tool_calls/tool_formats.h"

namespace millrace::text {
namespace {

constexpr std::string_view kMessage = "<|message|>";
constexpr std::string_view kChannel = "<|channel|>";
constexpr std::string_view kStart = "<|start|>";
constexpr std::string_view kRecipient = "to=";
constexpr std::string_view kFunctions = "functions.";
/// Longer text is no header.
constexpr size_t kMaxHeaderBytes = 1024;
/// What a header begins with: nothing else is one.
constexpr std::array<std::string_view, 4> kHeaderBegins = {kStart, kChannel, kRecipient, "<|constrain|>"};
/// Recipients that are no functions of the request.
constexpr std::array<std::string_view, 5> kOthers = {"assistant", "user", "python", "browser", "container"};

/// Returns the word after `mark`, up to white space or the next tag.
std::string_view word_after(std::string_view header, std::string_view mark) {
  const size_t at = header.find(mark);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = header.substr(at + mark.size());
  return rest.substr(0, std::min(rest.find_first_of(" \t\r\n<"), rest.size()));
}

/// Returns the function that a message is for, or nothing.
std::string_view function_of(std::string_view header) {
  std::string_view recipient = word_after(header, kRecipient);
  if (recipient.starts_with(kFunctions)) return recipient.substr(kFunctions.size());
  const std::string_view first = recipient.substr(0, recipient.find('.'));
  return std::ranges::find(kOthers, first) != kOthers.end() ? std::string_view() : recipient;
}

}  // namespace

void HarmonyParser::push(std::string_view text, Out out) {
  pending_ += text;
  while (!pending_.empty() && step(out)) {
  }
}

bool HarmonyParser::step(Out& out) {
  return kind_ == Kind::kHeader ? step_header(out) : step_body(out);
}

bool HarmonyParser::step_header(Out& out) {
  const std::string_view header = without_space(pending_);
  if (header.empty()) return false;
  const bool may_be_header = std::ranges::any_of(kHeaderBegins, [header](std::string_view begin) {
    return header.starts_with(begin) || begin.starts_with(header);
  });
  if (!may_be_header) {
    // Here comes text without a header, or an end without a message.
    for (const std::string_view end : kHarmonyEnds) {
      if (header.size() < end.size() && end.starts_with(header)) return false;
      if (!header.starts_with(end)) continue;
      pending_.erase(0, pending_.find(end) + end.size());
      return true;
    }
    begin_message({}, out);
    return true;
  }
  const size_t at = pending_.find(kMessage);
  const bool is_too_long =
      at == std::string::npos ? pending_.size() >= kMaxHeaderBytes + kMessage.size() : at > kMaxHeaderBytes;
  if (at == std::string::npos && !is_too_long) return false;
  if (is_too_long) {
    // Its first byte begins a text, so that what follows ends at the next tag.
    begin_message({}, out);
    append_body(std::string_view(pending_).substr(0, 1), out);
    pending_.erase(0, 1);
    return true;
  }
  // A header without a message may precede another one.
  const std::string_view all = std::string_view(pending_).substr(0, at);
  const size_t last = all.rfind(kStart);
  begin_message(all.substr(last == std::string_view::npos ? 0 : last), out);
  pending_.erase(0, at + kMessage.size());
  return true;
}

void HarmonyParser::begin_message(std::string_view header, Out& out) {
  has_body_ = false;
  const std::string_view function = function_of(header);
  if (!function.empty()) {
    kind_ = Kind::kCall;
    out.calls.push_back({.index = started_calls_++,
                         .name = std::string(function),
                         .arguments = {},
                         .id = {},
                         .content_before = out.content.size()});
    return;
  }
  kind_ = word_after(header, kChannel) == "analysis" ? Kind::kReasoning : Kind::kContent;
}

bool HarmonyParser::step_body(Out& out) {
  size_t at = std::string::npos;
  size_t length = 0;
  size_t partial = 0;
  for (const std::string_view end : kHarmonyEnds) {
    const size_t found = pending_.find(end);
    if (found < at) {
      at = found;
      length = end == kStart || end == kChannel ? 0 : end.size();
    }
    partial = std::max(partial, partial_match_length(pending_, end));
  }
  const bool is_found = at != std::string::npos;
  append_body(std::string_view(pending_).substr(0, is_found ? at : pending_.size() - partial), out);
  pending_.erase(0, is_found ? at + length : pending_.size() - partial);
  if (is_found) end_message(out);
  return is_found;
}

void HarmonyParser::append_body(std::string_view text, Out& out) {
  if (text.empty()) return;
  if (kind_ == Kind::kCall) {
    append_call_part(out.calls, {.index = started_calls_ - 1, .name = {}, .arguments = std::string(text), .id = {}});
    has_body_ = true;
    return;
  }
  std::string& target = kind_ == Kind::kReasoning ? out.reasoning : out.content;
  bool& has_text = kind_ == Kind::kReasoning ? has_reasoning_ : has_content_;
  // Messages of one kind are lines of one text.
  if (!has_body_ && has_text) target += '\n';
  target += text;
  has_body_ = true;
  has_text = true;
}

void HarmonyParser::end_message(Out& out) {
  if (kind_ == Kind::kCall) {
    if (!has_body_) append_body("{}", out);
    ++finished_calls_;
  }
  kind_ = Kind::kHeader;
}

void HarmonyParser::finish(Out out) {
  // The beginning of a tag is no text. What an unfinished header has after its channel may be text without a mark.
  if (kind_ == Kind::kHeader) {
    const std::string_view channel = word_after(pending_, kChannel);
    const size_t end = channel.empty() ? pending_.size() : pending_.find(channel) + channel.size();
    const std::string text(without_space(std::string_view(pending_).substr(end)));
    if (!text.empty() && !text.starts_with('<') && !text.starts_with("to=")) {
      begin_message({}, out);
      append_body(text, out);
    }
  } else if (!pending_.starts_with("<|")) {
    append_body(pending_, out);
  }
  pending_.clear();
  // The tag that ends a call is a stop token, which is not shown.
  if (kind_ == Kind::kCall) end_message(out);
}

}  // namespace millrace::text
