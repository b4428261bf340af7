#pragma once

#include <boost/asio/awaitable.hpp>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "async/runtime.h"
#include "server/http/http.h"
#include "server/openai/error.h"

namespace millrace::server {

struct Exchange;

/// The callers that may use a route.
enum class Access : uint8_t {
  kPublic,          ///< anyone, without a key
  kClient,          ///< whoever has an API key
  kClientSameSite,  ///< a client, but no page of another site: the route ends requests of others
  kAdmin,           ///< whoever has the admin's key, and no page of another site: the route changes what others see
};

/// The description of a route in /openapi.json, without its path. A route without a summary is left out.
struct RouteDoc {
  std::string_view summary;
  std::string_view request = {};   ///< the schema of its JSON body; empty: it takes none
  std::string_view response = {};  ///< the schema of its response, or the media type if that is not JSON
  bool body_optional = false;
  std::string_view query = {};  ///< the parameters of the query, as JSON objects with commas between them
  std::string_view event = {};  ///< the schema of an event's data, where the response may be a stream of events
};

/// A path and method that the server answers. The handler is called on the server's thread and must not block.
struct Route {
  /// Answers at once.
  using Handler = std::function<HttpResponse(const HttpRequest&)>;
  /// Answers later; returns nothing when it has sent the response itself, or when the client is gone.
  using AsyncHandler = std::function<asio::awaitable<std::optional<HttpResponse>>(Exchange&)>;

  Method method = Method::kGet;
  std::string path;  ///< as requested; a segment "{id}" stands for any text
  Access access = Access::kClient;
  std::variant<Handler, AsyncHandler> handler = {};
  bool takes_json = false;         ///< other media types and encoded bodies are refused
  bool uses_worker = false;        ///< a Handler whose work grows with the body: large ones run on the worker thread
  bool is_probe = false;           ///< called all the time: logged at debug level
  bool answers_when_full = false;  ///< the response needs no room in the budget of bodies
  openai::ErrorDialect make_error = &openai::error_response;  ///< of errors that the server finds before the handler
  RouteDoc doc = {};
};

}  // namespace millrace::server
