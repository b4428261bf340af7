#pragma once

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>

#include "async/real_runtime.h"

namespace millrace::test {

/// Runs `task` and everything it leaves behind to the end on this thread; rethrows what it throws.
inline void run_to_end(asio::io_context& context, asio::awaitable<void> task) {
  std::exception_ptr error;
  asio::co_spawn(context, std::move(task), [&error](std::exception_ptr failure) { error = std::move(failure); });
  context.restart();
  context.run();
  if (error) std::rethrow_exception(error);
}

/// Until everything that can happen without a timer has happened on this executor.
inline asio::awaitable<void> settle(async::Runtime& runtime) {
  for (int turn = 0; turn < 100; ++turn) co_await asio::post(runtime.executor(), asio::use_awaitable);
}

}  // namespace millrace::test
