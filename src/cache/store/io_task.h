#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <utility>

#include "base/check.h"

/// Coroutines of a worker thread over FileIo. They are not Asio's. On a thread that makes blocking calls they run from
/// beginning to end like plain functions; on a ring they suspend at every call.
namespace millrace::cache {

/// A step that another step awaits. Starts when awaited; owned by who awaits it.
template <class T>
class [[nodiscard]] IoTask {
 public:
  struct promise_type {
    struct Return {
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> ended) noexcept {
        return ended.promise().waiter;
      }
      void await_resume() noexcept {}
    };
    IoTask get_return_object() { return IoTask(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    Return final_suspend() noexcept { return {}; }
    void return_value(T result) { value = std::move(result); }
    void unhandled_exception() { failure = std::current_exception(); }

    std::optional<T> value;
    std::exception_ptr failure;
    std::coroutine_handle<> waiter;
  };

  explicit IoTask(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  IoTask(const IoTask&) = delete;
  IoTask& operator=(const IoTask&) = delete;
  ~IoTask() { handle_.destroy(); }

  bool await_ready() noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> waiter) noexcept {
    handle_.promise().waiter = waiter;
    return handle_;
  }
  T await_resume() {
    if (handle_.promise().failure) std::rethrow_exception(handle_.promise().failure);
    return std::move(*handle_.promise().value);
  }

 private:
  std::coroutine_handle<promise_type> handle_;
};

/// The outermost coroutine: runs at once until it first suspends, and owns itself. It must not throw.
struct IoRoot {
  struct promise_type {
    IoRoot get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { CHECK(false, "an exception left a worker's coroutine"); }
  };
};

}  // namespace millrace::cache
