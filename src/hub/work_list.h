#pragma once

#include <boost/asio/awaitable.hpp>
#include <deque>
#include <exception>
#include <functional>
#include <utility>

#include "async/runtime.h"

namespace millrace::hub {

/// Items that several coroutines of one executor take in turn. The first failure ends all of them between two items.
/// Outlives the coroutines.
template <class Item>
class WorkList {
 public:
  explicit WorkList(std::deque<Item> items) : items_(std::move(items)) {}

  /// Does `work` for one item after another until none is left, or one has failed.
  [[nodiscard]] asio::awaitable<void> take_in_turn(std::function<asio::awaitable<void>(const Item&)> work) {
    while (!items_.empty() && !failure_) {
      const Item item = std::move(items_.front());
      items_.pop_front();
      try {
        co_await work(item);
      } catch (...) {
        if (!failure_) failure_ = std::current_exception();
      }
    }
  }
  /// Throws the first failure, if there was one.
  void check() const {
    if (failure_) std::rethrow_exception(failure_);
  }
  [[nodiscard]] size_t size() const { return items_.size(); }

 private:
  std::deque<Item> items_;
  std::exception_ptr failure_;
};

}  // namespace millrace::hub
