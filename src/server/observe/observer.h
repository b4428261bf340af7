#pragma once

#include "server/options.h"
#include "server/service.h"

namespace millrace::server {

/// Adds to `service` what shows the ring: the live page at "/", its data at "/live", "/cost_model",
/// "/start_profile" and "/stop_profile", and the ring's part of "/metrics". As long as the engine has no RingStats they
/// answer 503.
void add_observer_routes(Service& service, const ServerOptions& options);

}  // namespace millrace::server
