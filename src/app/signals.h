#pragma once

#include <csignal>

namespace millrace::app {

/// Blocks SIGTERM and SIGINT in this thread and those it starts, and ignores SIGPIPE: one thread waits for signals.
/// Call before any thread is started.
[[nodiscard]] sigset_t block_signals();
/// Waits for one of them and returns it. The next one ends the process at once.
int wait_for_signal(const sigset_t& signals);

}  // namespace millrace::app
