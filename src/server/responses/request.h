#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/openai/request.h"

/// The requests of /v1/responses. They become chat requests, and the members that only this API has.
namespace millrace::server::responses {

class ResponseStore;

/// The tool of the request from which one function that the model is shown comes.
struct ToolOrigin {
  std::string name;
  std::string name_space;  ///< empty: the tool is in none
};

/// The tools of a request by the names that the model is shown.
using ToolOrigins = std::unordered_map<std::string, ToolOrigin>;

/// The forms in which a summary that replaces a conversation may be asked for.
enum class Compaction : uint8_t {
  kNone,
  kItem,    ///< asked for by an item of the input: a response with one item
  kObject,  ///< of /v1/responses/compact: the items that the client goes on with
};

struct ResponsesRequest : openai::ChatRequest {
  Compaction compaction = Compaction::kNone;
  bool store = true;
  bool background = false;
  bool drops_oldest = false;         ///< truncation "auto": the oldest items go where the context is too short
  std::string previous_response_id;  ///< empty: none
  std::vector<std::string> input;    ///< with store: all items as JSON with ids, previous responses' included. Of
                                     ///< /v1/responses/compact: the user's messages
  std::string echo;                  ///< members that the response repeats, as JSON without the braces
  ToolOrigins origins;
};

/// Parses the body of POST /v1/responses, or with kObject that of /v1/responses/compact. `store` has previous responses
/// and the items that references name. Items without an id get one that contains `id_base`. Errors: 400, and 404 for a
/// previous response that is not stored.
[[nodiscard]] openai::ApiResult<ResponsesRequest> parse_responses_request(const std::string& body,
                                                                          const openai::RequestLimits& limits,
                                                                          const ResponseStore& store,
                                                                          std::string_view id_base,
                                                                          Compaction compaction = Compaction::kNone);

/// Parses a body of POST /v1/chat/completions that has the form of /v1/responses: input instead of messages. Returns
/// nothing for another body. Its response is a chat completion, so that it can continue no stored response.
[[nodiscard]] std::optional<openai::ApiResult<openai::ChatRequest>> parse_chat_of_items(
    const std::string& body, const openai::RequestLimits& limits);

/// Appends "ResponsesRequest": {schema}, for the components of an OpenAPI document.
void append_request_schema(std::string& out, const openai::RequestLimits& limits);

}  // namespace millrace::server::responses
