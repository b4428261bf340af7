#pragma once

#include <stop_token>

#include "app/flags.h"
#include "base/result.h"

namespace millrace::app {

/// Serves as a node other than the first. It finds the head, loads the stages that the head assigns, and joins the ring
/// until SIGTERM or SIGINT, which also stop `download`. Errors are what kept it from taking part.
[[nodiscard]] Result<void> run_worker(const ServeFlags& flags, std::stop_source& download);

}  // namespace millrace::app
