#pragma once

#include <boost/asio/co_spawn.hpp>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "async/event.h"

namespace millrace::async {

/// Runs `task` on another Runtime and resumes here with its result or exception. Not cancelled with the caller: the
/// task runs to its end.
template <class T>
[[nodiscard]] asio::awaitable<T> run_on(Runtime& there, Runtime& here, asio::awaitable<T> task) {
  struct Outcome {
    std::optional<T> value;
    std::exception_ptr failure;
  };
  auto outcome = std::make_shared<Outcome>();
  const Event done(here);
  asio::co_spawn(there.executor(), std::move(task), [outcome, done](std::exception_ptr failure, T value) {
    outcome->failure = std::move(failure);
    if (!outcome->failure) outcome->value.emplace(std::move(value));
    done.set();
  });
  co_await done.wait();
  if (outcome->failure) std::rethrow_exception(outcome->failure);
  co_return std::move(*outcome->value);
}

}  // namespace millrace::async
