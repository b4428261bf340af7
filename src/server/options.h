#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/http/http_options.h"
#include "text/tool_calls/reasoning_formats.h"
#include "text/tool_calls/tool_formats.h"

namespace millrace::server {

/// How the server listens, whom it serves, and the bound of everything that a client could make grow.
struct ServerOptions {
  HttpOptions http;
  std::string served_model_name = "default";    ///< in responses to requests that name no model
  std::vector<std::string> other_model_names;   ///< accepted in requests as well
  std::string admin_api_key;                    ///< opens every route; required by routes that change the server
  std::vector<std::string> api_keys;            ///< each opens the clients' routes; none: no authorisation
  bool metrics_public = false;                  ///< /metrics requires no key
  std::string profile_dir = ".";                ///< where /start_profile writes
  std::string cors_origin = "*";                ///< empty: no CORS headers
  std::string default_chat_template_kwargs;     ///< a JSON object, or empty; those of a request override them
  bool allow_request_chat_template = false;     ///< a request may bring its own template
  bool detect_tool_format = true;               ///< the chat template decides how tool calls are written
  std::optional<text::ToolFormat> tool_format;  ///< without detection; empty: no tools
  bool uses_response_template = false;          ///< the model's own description of its outputs replaces both formats
  bool detect_reasoning_format = true;          ///< the chat template decides how reasoning is written
  std::optional<text::ReasoningFormat> reasoning_format;  ///< without detection; empty: none
  bool has_priorities = false;      ///< the queue is ordered by them; else a request that has one is refused
  bool low_priority_first = false;  ///< a smaller number is scheduled first

  std::optional<uint64_t> random_seed;  ///< draws the seeds of requests that bring none, in order of arrival

  size_t max_requests_in_flight = 2048;                ///< generations; beyond: 429
  size_t max_choices = 512;                            ///< prompts times n of one request
  size_t response_store_bytes = 64u << 20;             ///< of responses that can be fetched again
  uint32_t max_logprobs = 20;                          ///< alternatives per token
  std::chrono::milliseconds comment_interval{15'000};  ///< of keep-alive comments on an idle stream
};

}  // namespace millrace::server
