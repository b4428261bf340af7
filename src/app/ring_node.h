#pragma once

#include "app/flags.h"
#include "app/local_rings.h"
#include "app/signals.h"
#include "base/result.h"
#include "server/service.h"

namespace millrace::app {

/// Starts the ring of this process and serves it to a front in another one (--dp-rank), until a signal. `service` is
/// that of a server over the same engine. Errors are what kept it from taking part.
[[nodiscard]] Result<void> serve_to_front(LocalRings& rings, const server::Service& service, Signals& signals,
                                          const ServeFlags& flags);

}  // namespace millrace::app
