#pragma once

#include <fmt/format.h>
#include <simdjson.h>

#include <concepts>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/request.h"

/// Private to openai/: readers of single JSON values that name the field, what was found and what was wanted.
namespace millrace::server::openai {

using Json = simdjson::dom::element;
/// Nothing, or why the value is refused.
using Refusal = std::optional<ApiError>;

/// One known member of a request object. A null value never reaches `read`: it means the default.
template <class Request>
struct Field {
  std::string_view name;
  Refusal (*read)(std::string_view name, Json value, const RequestLimits& limits, Request& request);
};

[[nodiscard]] std::string describe(Json value);
[[nodiscard]] ApiError wrong_type(std::string_view name, Json value, std::string_view wanted);

[[nodiscard]] Refusal read_bool(std::string_view name, Json value, bool& out);
[[nodiscard]] Refusal read_string(std::string_view name, Json value, std::string& out);
/// A number in [low, high], or (low, high] with `open_low`.
[[nodiscard]] Refusal read_float(std::string_view name, Json value, double low, double high, bool open_low,
                                 float& out);
[[nodiscard]] Refusal read_integer(std::string_view name, Json value, int64_t low, int64_t high, int64_t& out);
[[nodiscard]] Refusal read_token_ids(std::string_view name, Json value, uint32_t vocab_size,
                                     std::vector<TokenId>& out);

template <std::integral T>
[[nodiscard]] Refusal read_int(std::string_view name, Json value, int64_t low, int64_t high, T& out) {
  int64_t wide = 0;
  if (Refusal refusal = read_integer(name, value, low, high, wide)) return refusal;
  out = static_cast<T>(wide);
  return std::nullopt;
}

/// Reads every known member of `object` with the first table entry that has its name. A reader replaces what an earlier
/// member of the same name gave.
template <class Request>
[[nodiscard]] Refusal read_members(simdjson::dom::object object, const RequestLimits& limits, Request& request,
                                   std::span<const Field<Request>> fields) {
  for (const auto& member : object) {
    if (member.value.is_null()) continue;
    for (const Field<Request>& field : fields) {
      if (field.name != member.key) continue;
      if (Refusal refusal = field.read(field.name, member.value, limits, request)) return refusal;
      break;
    }
  }
  return std::nullopt;
}

/// A request body: one JSON object, at most 64 levels deep.
class Document {
 public:
  [[nodiscard]] Refusal parse(const std::string& body);
  [[nodiscard]] simdjson::dom::object object() const { return object_; }

 private:
  simdjson::dom::parser parser_;
  simdjson::dom::object object_;
};

[[nodiscard]] std::span<const Field<CommonRequest>> common_fields();
/// What holds between fields, once all are read.
[[nodiscard]] Refusal check_common(const CommonRequest& request);
/// Refuses what changes the answer and is not implemented (tools, grammars, adapters, …).
[[nodiscard]] Refusal check_unsupported(simdjson::dom::object object);
[[nodiscard]] std::span<const Field<Conversation>> conversation_fields();
[[nodiscard]] Refusal check_conversation(const Conversation& conversation);

}  // namespace millrace::server::openai
