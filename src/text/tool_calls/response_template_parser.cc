#include <algorithm>
#include <utility>

#include "base/json_value.h"
#include "base/utf8.h"
#include "text/tool_calls/partial_match.h"
#include "text/tool_calls/response_template.h"

namespace millrace::text {
namespace {

/// Returns the length of `text` without an unfinished character at its end.
size_t whole_characters(std::string_view text) {
  const size_t first = text.size() > 4 ? text.size() - 4 : 0;
  for (size_t at = text.size(); at > first; --at) {
    const auto byte = static_cast<unsigned char>(text[at - 1]);
    if (byte < 0x80) break;
    if (byte >= 0xC0) return decode_utf8(text.substr(at - 1)).truncated ? at - 1 : text.size();
  }
  return text.size();
}

}  // namespace

ResponseTemplateParser::ResponseTemplateParser(std::shared_ptr<const ResponseTemplate> description,
                                               std::string_view prompt_end, std::shared_ptr<const ParameterTypes> types)
    : description_(std::move(description)), types_(std::move(types)) {
  std::string ignored;
  std::vector<ToolCallPart> calls;
  in_prompt_ = true;
  pending_ = prompt_end;
  Out out{ignored, ignored, calls};
  parse(out, false);
  in_prompt_ = false;
  finished_calls_ = 0;
}

void ResponseTemplateParser::push(std::string_view text, Out out) {
  pending_ += text;
  parse(out, false);
}

void ResponseTemplateParser::finish(Out out) {
  parse(out, true);
  if (field_ != nullptr) close_region({}, out);
}

bool ResponseTemplateParser::in_reasoning() const {
  return field_ != nullptr && field_->target == Target::kReasoning;
}

void ResponseTemplateParser::parse(Out& out, bool is_end) {
  const size_t whole = is_end ? pending_.size() : whole_characters(pending_);
  const std::string rest = pending_.substr(whole);
  pending_.resize(whole);
  if (!is_valid_utf8(pending_)) pending_ = replace_invalid_utf8(pending_);
  while (!pending_.empty() && step(out, is_end)) {
  }
  pending_ += rest;
}

/// Consumes from pending_. Returns false if more input is needed.
bool ResponseTemplateParser::step(Out& out, bool is_end) {
  if (field_ == nullptr) return step_outside(out, is_end);
  if (!field_->close) {
    append(std::exchange(pending_, {}), out);
    return false;
  }
  const Delimiter::Found found = field_->close->find(pending_, is_end);
  if (found.match) {
    append(std::string_view(pending_).substr(0, found.match->begin), out);
    const std::string closing = pending_.substr(found.match->begin, found.match->end - found.match->begin);
    pending_.erase(0, found.match->end);
    close_region(closing, out);
    return true;
  }
  const size_t known = std::min(found.undecided, pending_.size());
  append(std::string_view(pending_).substr(0, known), out);
  pending_.erase(0, known);
  return false;
}

bool ResponseTemplateParser::step_outside(Out& out, bool is_end) {
  const Field* best_field = nullptr;
  std::optional<Delimiter::Match> best;
  size_t undecided = std::string::npos;
  const auto consider = [&](const Delimiter& delimiter, const Field& field) {
    Delimiter::Found found = delimiter.find(pending_, is_end);
    undecided = std::min(undecided, found.undecided);
    if (!found.match) return;
    const bool is_better = !best || found.match->begin < best->begin ||
                           (found.match->begin == best->begin && found.match->end > best->end);
    if (!is_better) return;
    best = std::move(found.match);
    best_field = &field;
  };
  for (const Field& field : description_->fields()) {
    if (field.open) consider(*field.open, field);
  }
  const Field* outside = description_->implicit_field();
  if (outside != nullptr && outside->close) consider(*outside->close, *outside);
  if (best && undecided > best->begin) {
    append(std::string_view(pending_).substr(0, best->begin), out);
    const Delimiter::Match match = *std::move(best);
    if (best_field == outside || is_outside_open_) {
      if (outside != nullptr) end_text(*outside);
      is_outside_open_ = false;
    }
    if (best_field != outside) open_region(*best_field, match);
    pending_.erase(0, match.end);
    return true;
  }
  const size_t known = std::min(undecided, pending_.size());
  append(std::string_view(pending_).substr(0, known), out);
  pending_.erase(0, known);
  return false;
}

void ResponseTemplateParser::open_region(const Field& field, const Delimiter::Match& match) {
  field_ = &field;
  captures_ = match.groups;
  opening_ = pending_.substr(match.begin, match.end - match.begin);
  region_.clear();
}

void ResponseTemplateParser::append(std::string_view text, Out& out) {
  if (text.empty()) return;
  const Field* field = field_ != nullptr ? field_ : description_->implicit_field();
  if (field_ == nullptr) is_outside_open_ = true;
  if (field == nullptr) return;
  if (field->target == Target::kCalls) {
    region_ += text;
  } else {
    append_text(*field, text, out);
  }
}

/// Emits text without the white space around it.
void ResponseTemplateParser::append_text(const Field& field, std::string_view text, Out& out) {
  if (field.target == Target::kOther) return;
  std::string& target = field.target == Target::kReasoning ? out.reasoning : out.content;
  std::string all = std::exchange(space_, {}) + std::string(text);
  if (field.content.strips) {
    const size_t end = size_without_space(all);
    space_ = all.substr(end);
    all.resize(end);
    if (!has_text_) all.erase(0, std::min(all.find_first_not_of(kAsciiSpace), all.size()));
    if (!has_text_ && all.empty()) space_.clear();
  }
  if (all.empty() || in_prompt_) return;
  const bool is_begun = std::ranges::find(begun_, &field) != begun_.end();
  if (!has_text_ && is_begun) target += field.join;
  if (!is_begun) begun_.push_back(&field);
  has_text_ = true;
  target += all;
}

void ResponseTemplateParser::end_text(const Field&) {
  space_.clear();
  has_text_ = false;
}

void ResponseTemplateParser::close_region(std::string_view closing, Out& out) {
  const Field& field = *std::exchange(field_, nullptr);
  if (field.target == Target::kCalls) {
    if (!emit_calls(field, out)) {
      const Field* outside = description_->implicit_field();
      if (outside != nullptr && outside->target == Target::kContent)
        append_text(*outside, opening_ + region_ + std::string(closing), out);
    }
    region_.clear();
    return;
  }
  end_text(field);
}

bool ResponseTemplateParser::emit_calls(const Field& field, Out& out) {
  const auto content = parse_response_content(field.content, region_);
  if (!content) return false;
  if (field.transform.empty()) return emit_call(*content, out);
  if (!field.transforms_each) {
    const auto value = transform_response(field.transform, captures_, *content, {});
    return value && emit_call(*value, out);
  }
  const auto document = JsonDocument::parse(*content);
  JsonArray items;
  if (document.has_error() || !document->root().get(items)) return false;
  bool is_complete = true;
  for (const JsonValue item : items) {
    const auto value = transform_response(field.transform, captures_, *content, to_json(item));
    is_complete = value && emit_call(*value, out) && is_complete;
  }
  return is_complete;
}

bool ResponseTemplateParser::emit_call(std::string_view value, Out& out) {
  const auto document = JsonDocument::parse(value);
  if (document.has_error()) return false;
  JsonValue call = document->root();
  if (call["function"].is_object()) call = call["function"];
  std::string_view name;
  if (!call["name"].get(name) || name.empty()) return false;
  const JsonValue given = call["arguments"];
  std::string_view text;
  std::string arguments = given.is_missing() || given.is_null() ? "{}" : to_json(given);
  if (given.get(text)) arguments = text;
  if (types_ != nullptr) arguments = cast_arguments(arguments, std::string(name), *types_);
  std::string_view id;
  const bool has_id = document->root()["id"].get(id);
  out.calls.push_back({.index = finished_calls_++,
                       .name = std::string(name),
                       .arguments = std::move(arguments),
                       .id = has_id ? std::string(id) : std::string(),
                       .content_before = out.content.size()});
  return true;
}

}  // namespace millrace::text
