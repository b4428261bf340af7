#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "server/openai/response_writer.h"
#include "server/responses/output_items.h"
#include "server/responses/store.h"

/// The response object, which events carry and the store keeps.
namespace millrace::server::responses {

enum class ResponseStatus : uint8_t { kQueued, kInProgress, kCompleted, kIncomplete, kFailed, kCancelled };

[[nodiscard]] std::string_view to_string(ResponseStatus status);

/// What does not change while a response is generated.
struct ResponseHead {
  std::string echo;  ///< members that repeat the request, as JSON without the braces
  float temperature = 1.0f;
  float top_p = 1.0f;
};

/// What changes. Everything that is referred to outlives the value.
struct ResponseState {
  ResponseStatus status = ResponseStatus::kInProgress;
  std::span<const OutputItem> output;
  const openai::Usage* usage = nullptr;     ///< null: not known yet
  const openai::ApiError* error = nullptr;  ///< of a failed response
};

/// Writes the response object.
void write_response(JsonWriter& json, const ResponseHead& head, const ResponseState& state,
                    const openai::ResponseInfo& info, const ChoiceOptions& options);
/// Writes the object of /v1/responses/compact, whose output is the items that are `kept`, and then those of `state`.
void write_compaction(JsonWriter& json, std::span<const StoredItem> kept, const ResponseState& state,
                      const openai::ResponseInfo& info, const ChoiceOptions& options);
/// Returns the name of an error inside of a response.
[[nodiscard]] std::string_view failure_code(const openai::ApiError& error);

}  // namespace millrace::server::responses
