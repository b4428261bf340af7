#include "text/tool_calls/tool_calls.h"

#include <algorithm>
#include <utility>

#include "text/tool_calls/partial_match.h"

namespace millrace::text {
namespace {

/// What may stand between a call's start and its arguments.
constexpr size_t kMaxHeadBytes = 1024;

bool is_space(char c) {
  return kAsciiSpace.find(c) != std::string_view::npos;
}

/// Returns the position of the first of `words`, or npos.
size_t find_first_word(std::string_view text, std::span<const std::string_view> words) {
  size_t first = std::string_view::npos;
  for (const std::string_view word : words) first = std::min(first, text.find(word));
  return first;
}

/// Returns the id that the text before the arguments holds, or nothing.
std::string read_id(std::string_view head, const ToolCallSyntax& syntax) {
  if (syntax.id == CallIdSyntax::kNone) return {};
  const size_t at = head.find(syntax.id_open);
  if (at == std::string_view::npos) return {};
  std::string_view id = head.substr(at + syntax.id_open.size());
  id = without_space(id.substr(0, std::min(id.find(syntax.before_arguments), id.size())));
  const auto is_alphanumeric = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  if (id.empty() || !std::ranges::all_of(id, is_alphanumeric)) return {};
  if (syntax.id == CallIdSyntax::kNineCharacters) return id.size() == 9 ? std::string(id) : std::string();
  return std::string(syntax.before_name) + std::string(without_space(head.substr(0, at))) +
         std::string(syntax.id_open) + std::string(id);
}

void add_word(std::vector<std::string_view>& words, std::string_view word) {
  word = without_space(word);
  if (!word.empty() && std::ranges::find(words, word) == words.end()) words.push_back(word);
}

}  // namespace

void append_call_part(std::vector<ToolCallPart>& parts, ToolCallPart part) {
  if (parts.empty() || parts.back().index != part.index) {
    parts.push_back(std::move(part));
    return;
  }
  parts.back().name += part.name;
  parts.back().arguments += part.arguments;
  parts.back().id += part.id;
}

ToolCallParser::ToolCallParser(ToolFormat format, std::shared_ptr<const ParameterTypes> types)
    : row_(row_of(format)), types_(std::move(types)), syntax_(&row_.read.front()) {
  for (const ToolCallSyntax& syntax : row_.read) {
    add_word(starts_, syntax.section_open);
    add_word(starts_, syntax.call_open);
    if (syntax.before_name.starts_with('<')) add_word(starts_, syntax.before_name);
  }
  for (const std::string_view word : also_read()) add_word(starts_, word);
}

void ToolCallParser::push(std::string_view text, std::string& content, std::vector<ToolCallPart>& calls) {
  pending_ += text;
  Out out{content, calls};
  while (step(out)) {
  }
}

void ToolCallParser::finish(std::string& content) {
  // A begun call has been emitted, and space after a call is dropped.
  const bool is_text = phase_ == Phase::kText && (started_calls_ == 0 || !without_space(pending_).empty());
  if (is_text || !held_back_.empty()) content += held_back_ + pending_;
  held_back_.clear();
  pending_.clear();
}

bool ToolCallParser::step(Out& out) {
  switch (phase_) {
    case Phase::kText: return syntax_->is_whole_output ? step_whole_output(out) : step_text(out);
    case Phase::kBetween: return step_between(out);
    case Phase::kObject: return step_object(out);
    case Phase::kHead: return step_head(out);
    case Phase::kArguments: return step_arguments(out);
  }
  return false;
}

bool ToolCallParser::step_text(Out& out) {
  const size_t at = find_first_word(pending_, starts_);
  const bool is_found = at != std::string::npos;
  size_t end = at;
  if (!is_found) {
    size_t partial = 0;
    for (const std::string_view word : starts_) partial = std::max(partial, partial_match_length(pending_, word));
    end = pending_.size() - partial;
  }
  // Longer white space is content, whichever pieces it comes in.
  const size_t trimmed = size_without_space(std::string_view(pending_).substr(0, end));
  const size_t shown = end - ((end - trimmed) % (kMaxHeldBackSpace + 1));
  out.content.append(pending_, 0, shown);
  pending_.erase(0, shown);
  if (!is_found) return false;
  hold_back(end - shown);
  open_section();
  return true;
}

/// Reads an output that is calls from its first byte, or none at all.
bool ToolCallParser::step_whole_output(Out& out) {
  if (!is_text_) {
    const size_t first = pending_.find_first_not_of(kAsciiSpace);
    if (first == std::string::npos) return false;
    const std::string_view rest = std::string_view(pending_).substr(first);
    const auto opens = [&rest](const ToolCallSyntax& syntax) {
      return rest.front() == (syntax.is_list() ? syntax.list_open.front() : '{');
    };
    bool is_call = std::ranges::any_of(row_.read, opens);
    for (const std::string_view word : starts_) {
      if (word.size() > rest.size() && word.starts_with(rest)) return false;
      is_call = is_call || rest.starts_with(word);
    }
    is_text_ = !is_call;
    if (is_call) {
      hold_back(first);
      open_section();
      return true;
    }
  }
  out.content += std::exchange(pending_, {});
  return false;
}

void ToolCallParser::open_section() {
  phase_ = Phase::kBetween;
  is_call_open_ = false;
  is_section_open_ = false;
  is_list_open_ = false;
  has_section_call_ = false;
}

void ToolCallParser::hold_back(size_t count) {
  held_back_.append(pending_, 0, count);
  pending_.erase(0, count);
}

void ToolCallParser::drop(size_t count) {
  // Nothing after a call is text again, unless an opening marker has come.
  if (!has_section_call_ || !held_back_.empty()) return hold_back(count);
  space_.clear();
  pending_.erase(0, count);
}

ToolCallParser::Match ToolCallParser::match(std::string_view word) const {
  word = without_space(word);
  if (word.empty()) return Match::kNo;
  if (pending_.starts_with(word)) return Match::kYes;
  return word.starts_with(pending_) ? Match::kPartial : Match::kNo;
}

/// Chooses between a list of objects and a notation of the same marker, and between the notations of whole outputs.
void ToolCallParser::prefer_syntax() {
  if (has_section_call_ || is_list_open_) return;
  if (syntax_->is_whole_output) {
    const bool is_single = pending_.front() == '{';
    const auto opens = [is_single](const ToolCallSyntax& syntax) { return syntax.is_list() != is_single; };
    const auto found = std::ranges::find_if(row_.read, opens);
    if (found != row_.read.end()) syntax_ = &*found;
    return;
  }
  if (!is_section_open_) return;
  const bool is_object = pending_.front() == '[' || pending_.front() == '{';
  const auto fits = [is_object](const ToolCallSyntax& syntax) {
    return (syntax.notation == ArgumentNotation::kJsonCall) == is_object;
  };
  if (fits(*syntax_)) return;
  const auto found = std::ranges::find_if(row_.read, fits);
  if (found != row_.read.end()) syntax_ = &*found;
}

ToolCallParser::Match ToolCallParser::take_opening() {
  Match best = Match::kNo;
  for (const ToolCallSyntax& syntax : row_.read) {
    for (const std::string_view word : {syntax.section_open, syntax.call_open}) {
      const Match found = match(word);
      best = std::max(best, found);
      if (found != Match::kYes) continue;
      if (syntax.section_close != syntax_->section_close || syntax.notation != syntax_->notation) syntax_ = &syntax;
      is_section_open_ = true;
      is_call_open_ = is_call_open_ || word == syntax.call_open || syntax.call_open.empty();
      hold_back(without_space(word).size());
      return Match::kYes;
    }
  }
  return best;
}

ToolCallParser::Match ToolCallParser::take_closing() {
  // A call that has been opened and not begun is none.
  if (is_call_open_ && !held_back_.empty() && has_section_call_) return Match::kNo;
  if (!has_section_call_) return Match::kNo;
  Match best = Match::kNo;
  for (const std::string_view word : {syntax_->after_arguments, syntax_->call_close, syntax_->section_close}) {
    if (syntax_->notation == ArgumentNotation::kJsonCall && word == syntax_->after_arguments) continue;
    const Match found = match(word);
    best = std::max(best, found);
    if (found != Match::kYes) continue;
    drop(without_space(word).size());
    const bool ends = word == syntax_->section_close ||
                      (word == syntax_->call_close && syntax_->section_close.empty() && !syntax_->is_whole_output);
    if (ends) phase_ = Phase::kText;
    return Match::kYes;
  }
  return best;
}

ToolCallParser::Match ToolCallParser::take_marker() {
  const Match opening = take_opening();
  if (opening == Match::kYes) return opening;
  const Match closing = take_closing();
  if (closing == Match::kYes) return closing;
  Match best = std::max(opening, closing);
  for (const std::string_view word : also_read()) {
    const Match found = match(word);
    best = std::max(best, found);
    if (found != Match::kYes) continue;
    drop(word.size());
    return found;
  }
  if (best == Match::kPartial) return best;
  const char c = pending_.front();
  const bool is_json = syntax_->notation == ArgumentNotation::kJsonCall;
  const bool may_list = is_json || syntax_->is_list();
  if (c == '[' && may_list && !is_list_open_) {
    is_list_open_ = true;
    is_call_open_ = true;
    hold_back(1);
    return Match::kYes;
  }
  const bool has_separator = (c == ',' || c == ';') && has_section_call_ && (may_list || syntax_->is_whole_output);
  if (has_separator || (c == ']' && is_list_open_ && has_section_call_)) {
    drop(1);
    is_call_open_ = has_separator;
    if (c != ']') return Match::kYes;
    is_list_open_ = false;
    const bool is_open = !syntax_->section_close.empty() || !syntax_->call_close.empty() || !also_read().empty();
    if (!is_open) phase_ = Phase::kText;
    return Match::kYes;
  }
  return Match::kNo;
}

ToolCallParser::Match ToolCallParser::take_call_start() {
  if (syntax_->notation == ArgumentNotation::kJsonCall) {
    if (pending_.front() != '{') return Match::kNo;
    object_ = JsonCallParser();
    phase_ = Phase::kObject;
    return Match::kYes;
  }
  const Match found = match(syntax_->before_name);
  if (found == Match::kPartial) return found;
  if (found == Match::kYes) hold_back(without_space(syntax_->before_name).size());
  const bool begins = found == Match::kYes || (is_call_open_ && !syntax_->name_needs_before_name);
  if (begins) phase_ = Phase::kHead;
  return begins ? Match::kYes : Match::kNo;
}

/// Parses what stands between calls, or before the first one.
bool ToolCallParser::step_between(Out& out) {
  const auto first = static_cast<size_t>(std::ranges::find_if_not(pending_, is_space) - pending_.begin());
  const std::string space = std::exchange(space_, {}) + pending_.substr(0, first);
  drop(first);
  if (has_section_call_ && held_back_.empty()) space_ = space;
  if (pending_.empty()) return false;
  prefer_syntax();
  const Match marker = take_marker();
  if (marker != Match::kNo) return marker == Match::kYes;
  const Match call = take_call_start();
  if (call != Match::kNo) return call == Match::kYes;
  abandon_call(out);
  return true;
}

void ToolCallParser::begin_call(std::string name, std::string id, Out& out) {
  held_back_.clear();
  space_.clear();
  append_call_part(out.calls, {.index = started_calls_++,
                               .name = std::move(name),
                               .arguments = {},
                               .id = std::move(id),
                               .content_before = out.content.size()});
}

void ToolCallParser::end_call(bool is_closed) {
  ++finished_calls_;
  has_section_call_ = true;
  is_call_open_ = false;
  const bool has_more = is_list_open_ || syntax_->is_whole_output || !syntax_->section_close.empty() ||
                        (!syntax_->call_close.empty() && !is_closed) || !also_read().empty();
  phase_ = has_more ? Phase::kBetween : Phase::kText;
}

void ToolCallParser::abandon_call(Out& out) {
  out.content += std::exchange(space_, {}) + std::exchange(held_back_, {});
  phase_ = Phase::kText;
  is_text_ = true;
}

bool ToolCallParser::step_object(Out& out) {
  const bool was_named = object_.has_name();
  ArgumentState state = ArgumentState::kOpen;
  size_t count = 0;
  while (count < pending_.size() && state == ArgumentState::kOpen) state = object_.feed(pending_[count++]);
  const bool is_broken = state == ArgumentState::kBad && object_.has_name();
  if (!object_.has_name()) held_back_.append(pending_, 0, count);
  // What breaks a call off is none of it.
  pending_.erase(0, is_broken ? count - 1 : count);
  if (!was_named && object_.has_name()) begin_call(object_.name(), {}, out);
  if (object_.has_name()) {
    append_call_part(out.calls, {.index = started_calls_ - 1,
                                 .name = {},
                                 .arguments = object_.take_arguments(),
                                 .id = {},
                                 .content_before = out.content.size()});
  }
  if (state == ArgumentState::kOpen) return false;
  if (state == ArgumentState::kDone || object_.has_name()) {
    end_call(false);
  } else {
    abandon_call(out);
  }
  return true;
}

bool ToolCallParser::step_head(Out& out) {
  const std::string_view call_close = without_space(syntax_->call_close);
  size_t end = std::string::npos;
  switch (syntax_->notation) {
    case ArgumentNotation::kJson:
      end = std::min(pending_.find_first_of("{\""), call_close.empty() ? std::string::npos : pending_.find(call_close));
      break;
    case ArgumentNotation::kLiterals: end = std::min(pending_.find(syntax_->dialect->open), pending_.find('(')); break;
    default: end = find_first_word(pending_, syntax_->name_ends);
  }
  const std::string_view head = std::string_view(pending_).substr(0, end);
  const std::string name(without_space(head.substr(0, find_first_word(head, syntax_->name_ends))));
  if (end == std::string::npos) {
    const bool is_python = syntax_->is_whole_output && !name.empty() && !syntax_->can_write(name);
    if (!is_python && pending_.size() <= kMaxHeadBytes) return false;
  }
  if (end == std::string::npos || !syntax_->can_write(name)) {
    abandon_call(out);
    return true;
  }
  begin_call(name, read_id(head, *syntax_), out);
  pending_.erase(0, end);
  switch (syntax_->notation) {
    case ArgumentNotation::kParameters:
      if (match(syntax_->before_arguments) == Match::kYes) {
        pending_.erase(0, without_space(syntax_->before_arguments).size());
      }
      arguments_.emplace<TaggedArguments>(*syntax_, name, types_);
      break;
    case ArgumentNotation::kLiterals: arguments_.emplace<LiteralArguments>(*syntax_->dialect, name, types_); break;
    default: arguments_.emplace<JsonArguments>();
  }
  phase_ = Phase::kArguments;
  if (syntax_->notation == ArgumentNotation::kJson && pending_.front() != '{' && pending_.front() != '"') {
    append_call_part(
        out.calls,
        {.index = started_calls_ - 1, .name = {}, .arguments = "{}", .id = {}, .content_before = out.content.size()});
    end_call(false);
  }
  return true;
}

bool ToolCallParser::step_arguments(Out& out) {
  const auto parse = [&](auto& arguments) {
    ArgumentState state = ArgumentState::kOpen;
    size_t count = 0;
    while (count < pending_.size() && state == ArgumentState::kOpen) state = arguments.feed(pending_[count++]);
    pending_.erase(0, state == ArgumentState::kBad ? count - 1 : count);
    if (state == ArgumentState::kBad) pending_.insert(0, arguments.unconsumed_bytes());
    append_call_part(out.calls, {.index = started_calls_ - 1,
                                 .name = {},
                                 .arguments = arguments.take_arguments(),
                                 .id = {},
                                 .content_before = out.content.size()});
    return state;
  };
  const ArgumentState state = std::visit(parse, arguments_);
  if (state == ArgumentState::kOpen) return false;
  const auto* tagged = std::get_if<TaggedArguments>(&arguments_);
  end_call(tagged != nullptr && tagged->has_closed_call());
  return true;
}

}  // namespace millrace::text
