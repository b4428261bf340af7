#pragma once

#include "app/flags.h"
#include "base/result.h"

namespace millrace::app {

/// Loads the model, serves it until SIGTERM or SIGINT, drains, and returns. A second signal ends the process at once.
/// Errors are what kept it from serving.
[[nodiscard]] Result<void> serve(const ServeFlags& flags);

}  // namespace millrace::app
