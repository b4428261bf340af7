#pragma once

#include <boost/asio/awaitable.hpp>
#include <functional>
#include <stop_token>

#include "async/runtime.h"
#include "async/task_group.h"
#include "base/result.h"

namespace millrace::hub {

/// The coroutine of a blocking call. It may spawn others in `workers` and joins them by join_workers().
using BlockingWork = std::function<asio::awaitable<void>(async::Runtime& runtime, async::TaskGroup& workers)>;

/// Runs a coroutine on a thread of its own and blocks until it and its workers have ended. Returns the error of an
/// ErrorException, and kAborted when `stop` was requested, which cancels them.
[[nodiscard]] Result<void> run_blocking(const BlockingWork& work, const std::stop_token& stop);

/// Returns when no worker is left, also when the caller is cancelled: the workers are cancelled with it.
[[nodiscard]] asio::awaitable<void> join_workers(async::TaskGroup& workers);

}  // namespace millrace::hub
