#include "load/stream_reader.h"

#include <fmt/core.h>

namespace millrace::load {
namespace {

constexpr size_t kShownBytes = 200;

/// simdjson reads up to SIMDJSON_PADDING bytes past the end.
simdjson::padded_string_view padded(std::string& text) {
  if (text.capacity() < text.size() + simdjson::SIMDJSON_PADDING) {
    text.reserve(text.size() + simdjson::SIMDJSON_PADDING);
  }
  return simdjson::padded_string_view(text.data(), text.size(), text.capacity());
}

std::string_view shown(std::string_view text) {
  return text.substr(0, kShownBytes);
}

std::string message_of(simdjson::ondemand::value error) {
  std::string_view message;
  if (error.get_string().get(message) == simdjson::SUCCESS) return std::string(message);
  simdjson::ondemand::object object;
  if (error.get_object().get(object) == simdjson::SUCCESS &&
      object["message"].get_string().get(message) == simdjson::SUCCESS) {
    return std::string(message);
  }
  return "an error without a message";
}

void read_count(simdjson::ondemand::object& usage, const char* key, std::optional<uint64_t>& into) {
  uint64_t count = 0;
  if (usage[key].get_uint64().get(count) == simdjson::SUCCESS) into = count;
}

/// What a choice brings. One that only names the role, or why the text ends, brings nothing.
struct Piece {
  bool has_tokens = false;
  std::string text;
};

/// A completion's choice has a text, a chat's a delta with a content, thoughts or calls; either may have ids.
bool read_piece(simdjson::ondemand::object choice, Piece& piece) {
  for (auto field : choice) {
    simdjson::ondemand::field member;
    std::string_view key;
    if (std::move(field).get(member) != simdjson::SUCCESS) return false;
    if (member.unescaped_key().get(key) != simdjson::SUCCESS) return false;
    simdjson::ondemand::value value = member.value();
    if (key == "delta") {
      simdjson::ondemand::object delta;
      if (value.get_object().get(delta) == simdjson::SUCCESS && !read_piece(delta, piece)) return false;
    } else if (key == "text" || key == "content" || key == "reasoning_content" || key == "reasoning") {
      std::string_view text;
      if (value.get_string().get(text) != simdjson::SUCCESS) continue;  // null
      piece.has_tokens |= !text.empty();
      if (key == "text" || key == "content") piece.text += text;
    } else if (key == "token_ids" || key == "tool_calls") {
      simdjson::ondemand::array list;
      bool empty = true;
      if (value.get_array().get(list) != simdjson::SUCCESS) continue;
      if (list.is_empty().get(empty) != simdjson::SUCCESS) return false;
      piece.has_tokens |= !empty;
    }
  }
  return true;
}

}  // namespace

void StreamReader::fail(FailureKind kind, std::string message) {
  if (!failure_) failure_ = {kind, std::move(message)};
}

void StreamReader::feed(std::string_view bytes, async::TimePoint at) {
  const bool fits = sse_.feed(bytes, [this, at](std::string& data) { read_event(data, at); });
  if (!fits) fail(FailureKind::kBadData, fmt::format("an event is larger than {} bytes", SseParser::kMaxEventBytes));
}

void StreamReader::read_event(std::string& data, async::TimePoint at) {
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  simdjson::ondemand::document document;
  simdjson::ondemand::object object;
  event_has_choices_ = event_has_tokens_ = false;
  bool good = json_.iterate(padded(data)).get(document) == simdjson::SUCCESS &&
              document.get_object().get(object) == simdjson::SUCCESS;
  if (good) {
    for (auto field : object) {
      simdjson::ondemand::field member;
      good = std::move(field).get(member) == simdjson::SUCCESS && read_field(member);
      if (!good) break;
    }
  }
  if (!good) fail(FailureKind::kBadData, fmt::format("not a JSON object: {}", shown(data)));
  if (!good || !event_has_choices_) return;
  had_choices_ = true;
  end_ = at;
  if (!event_has_tokens_) return;
  if (chunk_count_++ == 0) {
    first_ = at;
  } else {
    gaps_.push_back(at - last_);
  }
  last_ = at;
}

bool StreamReader::read_choices(simdjson::ondemand::array choices) {
  for (auto element : choices) {
    simdjson::ondemand::object choice;
    if (element.get_object().get(choice) != simdjson::SUCCESS) return false;
    Piece piece;
    if (!read_piece(choice, piece)) return false;
    if (keeps_text_ && !event_has_choices_) text_ += piece.text;
    event_has_choices_ = true;
    event_has_tokens_ |= piece.has_tokens;
  }
  return true;
}

bool StreamReader::read_field(simdjson::ondemand::field& field) {
  std::string_view key;
  if (field.unescaped_key().get(key) != simdjson::SUCCESS) return false;
  if (key == "choices") {
    simdjson::ondemand::array choices;
    if (field.value().get_array().get(choices) != simdjson::SUCCESS) return false;
    return read_choices(choices);
  }
  if (key == "usage") {
    simdjson::ondemand::object usage;
    if (field.value().get_object().get(usage) != simdjson::SUCCESS) return true;  // null in all chunks but the last
    read_count(usage, "prompt_tokens", input_tokens_);
    read_count(usage, "completion_tokens", output_tokens_);
  } else if (key == "error") {
    bool is_null = false;
    if (field.value().is_null().get(is_null) == simdjson::SUCCESS && is_null) return true;
    fail(FailureKind::kErrorEvent, message_of(field.value()));
  }
  return true;
}

Failure StreamReader::failure_of(const HttpReply& reply) const {
  if (reply.failure) return reply.failure;
  if (reply.status != 200) {
    return {FailureKind::kHttpStatus, fmt::format("{}: {}", reply.status, error_message_of(reply.body))};
  }
  if (failure_) return failure_;
  if (!done_) return {FailureKind::kCut, "the stream ends without [DONE]"};
  if (!had_choices_) return {FailureKind::kBadData, "the stream holds no chunk with choices"};
  return {};
}

void StreamReader::finish(const HttpReply& reply, uint32_t prompt_length, RequestRecord& record) {
  record.sent_at = reply.sent_at;
  record.failure = failure_of(reply);
  record.finished = record.failure.kind != FailureKind::kCancelled;
  if (had_choices_) {
    record.ttft = (chunk_count_ > 0 ? first_ : end_) - reply.sent_at;
    record.latency = end_ - reply.sent_at;
  }
  record.gaps = std::move(gaps_);
  record.counted_by_server = input_tokens_ && output_tokens_;
  record.input_tokens = input_tokens_.value_or(prompt_length);
  record.output_tokens = output_tokens_.value_or(chunk_count_);
}

std::string error_message_of(std::string_view body) {
  std::string text(body);
  simdjson::ondemand::parser parser;
  simdjson::ondemand::document document;
  simdjson::ondemand::value error;
  if (parser.iterate(padded(text)).get(document) == simdjson::SUCCESS &&
      document["error"].get(error) == simdjson::SUCCESS) {
    return message_of(error);
  }
  return std::string(shown(body));
}

}  // namespace millrace::load
