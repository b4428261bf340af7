#pragma once

#include <fmt/format.h>

#include <concepts>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "server/openai/schema.h"

/// Private to the parsers of requests: readers of JSON values, whose errors name the field, what was found and what was
/// wanted.
namespace millrace::server::openai {

inline constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

using Json = JsonValue;
/// The reason why a value is refused; nothing when it is accepted.
using FieldError = std::optional<ApiError>;

/// One known member of a request object. A null value never reaches `read`: it means the default.
template <class Request>
struct Field {
  std::string_view name;
  FieldError (*read)(std::string_view name, Json value, const RequestLimits& limits, Request& request);
  void (*describe)(SchemaWriter& schema);  ///< what `read` takes
  std::string_view note = {};              ///< for the reader of the schema
};

/// Returns whether a member stands for its default.
[[nodiscard]] inline bool is_absent(Json value) {
  return value.is_missing() || value.is_null();
}
[[nodiscard]] std::string describe(Json value);
[[nodiscard]] ApiError wrong_type(std::string_view name, Json value, std::string_view wanted);

[[nodiscard]] FieldError read_bool(std::string_view name, Json value, bool& out);
[[nodiscard]] FieldError read_string(std::string_view name, Json value, std::string& out);
/// Reads one of some words. `out` gets that of the list.
[[nodiscard]] FieldError read_word(std::string_view name, Json value, std::span<const std::string_view> words,
                                   std::string_view& out);
/// Reads a text as one part, or an array of text parts.
[[nodiscard]] FieldError read_parts(const std::string& path, Json value, std::vector<std::string>& parts);
/// Reads a text, or an array of text parts, which are joined by newlines.
[[nodiscard]] FieldError read_content(const std::string& path, Json value, std::string& content);
[[nodiscard]] FieldError read_float(std::string_view name, Json value, double low, double high, float& out);
/// Reads a count of alternatives per token.
[[nodiscard]] FieldError read_alternatives(std::string_view name, Json value, const RequestLimits& limits,
                                           int32_t& out);
[[nodiscard]] FieldError read_integer(std::string_view name, Json value, int64_t low, int64_t high, int64_t& out);
[[nodiscard]] FieldError read_token_ids(std::string_view name, Json value, uint32_t vocab_size,
                                        std::vector<TokenId>& out);

template <std::integral T>
[[nodiscard]] FieldError read_int(std::string_view name, Json value, int64_t low, int64_t high, T& out) {
  int64_t wide = 0;
  if (FieldError field_error = read_integer(name, value, low, high, wide)) return field_error;
  out = static_cast<T>(wide);
  return std::nullopt;
}

/// Returns the value to read into; an optional member gets one.
template <class T>
T& target_of(T& member) {
  return member;
}
template <class T>
T& target_of(std::optional<T>& member) {
  return member.emplace();
}

/// Fields without code of their own: the member that takes the value, and its bounds, which reader and schema share.
template <class Request, auto kMember>
constexpr Field<Request> flag_field(std::string_view name, std::string_view note = {}) {
  return {name,
          [](std::string_view n, Json v, const RequestLimits&, Request& r) {
            return read_bool(n, v, target_of(r.*kMember));
          },
          [](SchemaWriter& schema) { schema.type("boolean"); }, note};
}
template <class Request, auto kMember>
constexpr Field<Request> string_field(std::string_view name, std::string_view note = {}) {
  return {name,
          [](std::string_view n, Json v, const RequestLimits&, Request& r) {
            return read_string(n, v, target_of(r.*kMember));
          },
          [](SchemaWriter& schema) { schema.type("string"); }, note};
}
/// A field that takes one of kWords; `kUse` puts it into the request.
template <class Request, const auto& kWords, void (*kUse)(std::string_view word, Request& request)>
constexpr Field<Request> word_field(std::string_view name, std::string_view note = {}) {
  return {name,
          [](std::string_view n, Json v, const RequestLimits&, Request& r) {
            std::string_view word;
            FieldError field_error = read_word(n, v, kWords, word);
            if (!field_error) kUse(word, r);
            return field_error;
          },
          [](SchemaWriter& schema) { schema.words(kWords); }, note};
}
template <class Request, auto kMember, int64_t kLow, int64_t kHigh>
constexpr Field<Request> integer_field(std::string_view name, std::string_view note = {}) {
  return {name,
          [](std::string_view n, Json v, const RequestLimits&, Request& r) {
            return read_int(n, v, kLow, kHigh, target_of(r.*kMember));
          },
          [](SchemaWriter& schema) { schema.integer(kLow, kHigh); }, note};
}
template <class Request, auto kMember>
constexpr Field<Request> alternatives_field(std::string_view name, std::string_view note = {}) {
  return {name,
          [](std::string_view n, Json v, const RequestLimits& limits, Request& r) {
            return read_alternatives(n, v, limits, target_of(r.*kMember));
          },
          [](SchemaWriter& schema) { schema.integer(0, schema.limits().max_logprobs); }, note};
}
template <class Request, auto kMember, double kLow, double kHigh>
constexpr Field<Request> number_field(std::string_view name, std::string_view note = {}) {
  return {name,
          [](std::string_view n, Json v, const RequestLimits&, Request& r) {
            return read_float(n, v, kLow, kHigh, target_of(r.*kMember));
          },
          [](SchemaWriter& schema) { schema.number(kLow, kHigh); }, note};
}

/// Writes the members of "properties"; null is refused for the one that is `required`.
template <class Request>
void describe_members(SchemaWriter& schema, std::span<const Field<Request>> fields, std::string_view required = {}) {
  for (const Field<Request>& field : fields) {
    schema.json().key(field.name).begin_object();
    schema.set_nullable(field.name != required);
    field.describe(schema);
    if (!field.note.empty()) schema.json().member("description", field.note);
    schema.json().end_object();
  }
}

/// Reads every known member of `object` with the first table entry that has its name. A reader replaces what an earlier
/// member of the same name gave.
template <class Request>
[[nodiscard]] FieldError read_members(JsonObject object, const RequestLimits& limits, Request& request,
                                      std::span<const Field<Request>> fields) {
  for (const auto& member : object) {
    if (member.value.is_null()) continue;
    for (const Field<Request>& field : fields) {
      if (field.name != member.key) continue;
      if (FieldError field_error = field.read(field.name, member.value, limits, request)) return field_error;
      break;
    }
  }
  return std::nullopt;
}

/// Parses a request body: one JSON object, at most 512 levels deep.
class Document {
 public:
  /// `body` outlives it.
  [[nodiscard]] FieldError parse(std::string_view body);
  [[nodiscard]] JsonObject object() const { return object_; }

 private:
  JsonDocument document_;
  JsonObject object_;
};

[[nodiscard]] std::span<const Field<CommonRequest>> common_fields();
/// Returns the names that servers give to the bound of an output's reasoning. A null or -1 is no bound.
[[nodiscard]] std::span<const Field<ChatRequest>> thinking_budget_fields();
/// Checks the relations between fields, once all are read.
[[nodiscard]] FieldError check_common(const CommonRequest& request);
/// Refuses members that change the outputs of other servers and are not supported here (adapters, audio, …), and tools
/// outside of chats.
[[nodiscard]] FieldError check_unsupported(JsonObject object, bool is_chat);
/// Returns whether check_unsupported looks at members of this name.
[[nodiscard]] bool is_checked_field(std::string_view name);
/// Describes the members that check_unsupported looks at, with the values that it accepts.
void describe_unsupported(SchemaWriter& schema, bool is_chat);
/// Writes "allOf" next to "properties": which members others turn off.
void describe_switches(SchemaWriter& schema, bool is_chat);
[[nodiscard]] std::span<const Field<Conversation>> conversation_fields();
/// Describes one message.
void describe_message(SchemaWriter& schema);
/// Checks the relations between the members, once all are read, and leaves the tools that may be called.
[[nodiscard]] FieldError finish_conversation(Conversation& conversation);

}  // namespace millrace::server::openai
