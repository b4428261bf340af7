#pragma once

#include <span>
#include <string>

#include "server/openai/request.h"
#include "server/options.h"
#include "server/route.h"

namespace millrace::server {

/// Appends the OpenAPI 3.1 document of this server: paths from `routes`, requests from the parser's tables,
/// responses from openapi_responses.json. Tests compare each with what the server does.
void append_openapi(std::string& out, const ServerOptions& options, const openai::RequestLimits& limits,
                    std::span<const Route> routes);

}  // namespace millrace::server
