#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "text/tool_calls/tool_formats.h"

namespace millrace::server {

/// The part of an output that is reasoning: from <think> to </think>, or none. kAuto is kThink if the chat template has
/// reasoning.
enum class ReasoningParser : uint8_t { kAuto, kThink, kNone };

inline constexpr EnumName<ReasoningParser> kReasoningParserNames[] = {
    {ReasoningParser::kAuto, "auto"},
    {ReasoningParser::kThink, "think"},
    {ReasoningParser::kNone, "none"},
};
constexpr std::span<const EnumName<ReasoningParser>> enum_names(ReasoningParser) {
  return kReasoningParserNames;
}

/// How the HTTP front listens, whom it serves, and the bound of everything a client could make grow.
struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 30000;                        ///< 0: the operating system chooses
  std::string served_model_name = "default";    ///< of answers to requests that name none
  std::vector<std::string> other_model_names;   ///< that it answers to as well
  std::string admin_api_key;                    ///< opens every route; wanted by those that change the server
  std::vector<std::string> api_keys;            ///< each opens what clients need; none: no authorisation
  bool metrics_public = false;                  ///< /metrics wants no key
  std::string profile_dir = ".";                ///< where /start_profile writes
  std::string cors_origin = "*";                ///< empty: no CORS headers
  std::string default_chat_template_kwargs;     ///< a JSON object, or empty; a request's own go before them
  bool allow_request_chat_template = false;     ///< a request may bring its own template
  bool detect_tool_format = true;               ///< the chat template decides how tool calls are written
  std::optional<text::ToolFormat> tool_format;  ///< without detection; empty: no tools
  ReasoningParser reasoning_parser = ReasoningParser::kAuto;
  bool has_priorities = false;      ///< the queue goes by them; else a request that has one is refused
  bool low_priority_first = false;  ///< the smaller priority goes first

  std::optional<uint64_t> random_seed;  ///< of the seeds of requests without one, in the order of their coming

  size_t max_connections = 4096;         ///< beyond: 503 and close
  size_t max_requests_in_flight = 2048;  ///< generations; beyond: 429
  size_t max_choices = 512;              ///< prompts times n of one request
  uint32_t max_logprobs = 20;            ///< alternatives beside a token
  size_t max_body_bytes = 16u << 20;
  size_t max_bodies_bytes = 512u << 20;  ///< of all connections together, see BodyBudget; beyond: 503
  uint32_t max_header_bytes = 16u << 10;
  size_t max_pipelined_bytes = 64u << 10;  ///< read ahead while a request is served

  std::chrono::milliseconds header_timeout{10'000};    ///< from the first byte to the end of the header
  std::chrono::milliseconds body_timeout{60'000};      ///< from the end of the header to the end of the body
  std::chrono::milliseconds idle_timeout{75'000};      ///< between requests
  std::chrono::milliseconds write_timeout{30'000};     ///< without any progress of a write
  std::chrono::milliseconds comment_interval{15'000};  ///< of keep-alive comments on an idle stream
  int send_buffer_bytes = 0;                           ///< SO_SNDBUF; 0: the system's choice
};

}  // namespace millrace::server
