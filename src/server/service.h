#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "sched/head/engine.h"
#include "server/http/http.h"
#include "text/chat_template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace millrace::server {

/// What applies where a request is silent: the model's generation_config.json, or the neutral values.
struct GenerationDefaults {
  float temperature = 1.0f;
  float top_p = 1.0f;
  float min_p = 0.0f;
  int32_t top_k = 0;
  float repetition_penalty = 1.0f;
  std::vector<TokenId> eos_token_ids;
};

/// What /openapi.json says of a route, besides its path. Without a summary the route is left out.
struct RouteDoc {
  std::string_view summary;
  std::string_view request;   ///< the schema of its JSON body; empty: it takes none
  std::string_view response;  ///< the schema of what it answers with, or the media type if that is not JSON
  bool body_optional = false;
  std::string_view event = {};  ///< the schema of the data of an event, where the answer may be a stream of them
};

/// A route that the front does not know itself (administration, the live page). Called on the front's thread; must not
/// block.
struct ExtraRoute {
  Method method = Method::kGet;
  std::string path;
  std::function<HttpResponse(const HttpRequest&)> handler;
  bool is_public = false;  ///< answered without the API key
  RouteDoc doc = {};
  bool is_admin = false;  ///< wants the admin's key where there is one
};

/// What the front serves. The engine outlives the server.
struct Service {
  sched::Engine* engine = nullptr;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatTemplate> chat_template;  ///< null: the model has none, chat requests are refused
  text::ChatTemplate::SpecialTokens special_tokens;         ///< for a request's own template
  GenerationDefaults defaults;
  std::vector<ExtraRoute> extra_routes;
  /// Appends further metrics in Prometheus' text form; may be empty. Called on the front's thread.
  std::function<void(std::string&)> extra_metrics;
  /// Adds members to what /server_info says; may be empty. Called on the front's thread.
  std::function<void(JsonWriter&)> extra_info;
};

}  // namespace millrace::server
