#pragma once

#include <cstddef>

#include "server/http/body_budget.h"

namespace millrace::server {

/// What the HTTP server holds at the moment. Owned by the Server; its executor only. HttpServer and its connections
/// write it, the routes that report on the server read it. Outlives both.
struct HttpUsage {
  BodyBudget bodies;
  size_t connections = 0;
};

}  // namespace millrace::server
