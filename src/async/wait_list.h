#pragma once

#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <optional>
#include <utility>

#include "async/runtime.h"

namespace millrace::async {

/// The one suspension primitive: coroutines wait, plain code notifies. A notification without a waiter is lost, so
/// waiting stands in a loop over the condition. Used on one executor. It must outlive the waits; destroying it destroys
/// the coroutines that still wait.
class WaitList {
 public:
  explicit WaitList(Runtime& runtime) : runtime_(runtime) {}
  WaitList(const WaitList&) = delete;
  WaitList& operator=(const WaitList&) = delete;
  ~WaitList();

  /// Returns true after a notification. A cancelled wait throws operation_aborted.
  [[nodiscard]] asio::awaitable<bool> wait();
  /// Acts as wait(), but returns false when `deadline` comes first.
  [[nodiscard]] asio::awaitable<bool> wait_until(TimePoint deadline);

  void notify_one();
  void notify_all();
  /// Acts as notify_one(), but resumes the coroutine within the call where the executor allows it, which saves a turn
  /// of the executor. The caller may then rely on nothing that the coroutine may change, including this list.
  void resume_one();
  /// Resumes a single waiter within the call, and several from the executor's queue, as notify_all() does.
  void resume_all();
  [[nodiscard]] bool has_waiters() const { return head_ != nullptr; }

 private:
  enum class Outcome { kNotified, kTimedOut, kCancelled };
  enum class When { kQueued, kNow };

  struct Node {
    explicit Node(WaitList& owner) : list(owner) {}
    virtual ~Node() = default;
    virtual void complete(Outcome outcome, When when) = 0;
    WaitList& list;
    Node* previous = nullptr;
    Node* next = nullptr;
    std::optional<TimerId> timer;
  };

  template <class Handler>
  struct HandlerNode final : Node {
    HandlerNode(WaitList& owner, Handler&& handler) : Node(owner), handler_(std::move(handler)) {
      auto slot = asio::get_associated_cancellation_slot(handler_);
      if (slot.is_connected()) {
        slot.assign([this](asio::cancellation_type type) {
          if (type != asio::cancellation_type::none) list.finish(*this, Outcome::kCancelled);
        });
      }
    }
    void complete(Outcome outcome, When when) override {
      auto slot = asio::get_associated_cancellation_slot(handler_);
      if (slot.is_connected()) slot.clear();
      Handler handler = std::move(handler_);
      auto executor = list.runtime_.executor();
      delete this;
      auto resume = [handler = std::move(handler), outcome]() mutable {
        const boost::system::error_code failure =
            outcome == Outcome::kCancelled ? asio::error::operation_aborted : boost::system::error_code{};
        std::move(handler)(failure, outcome == Outcome::kNotified);
      };
      if (when == When::kNow) {
        asio::dispatch(executor, std::move(resume));
      } else {
        asio::post(executor, std::move(resume));
      }
    }
    Handler handler_;
  };

  [[nodiscard]] asio::awaitable<bool> wait_impl(std::optional<TimePoint> deadline);
  void link(Node& node);
  void unlink(Node& node);
  void finish(Node& node, Outcome outcome, When when = When::kQueued);

  Runtime& runtime_;
  Node* head_ = nullptr;
  Node* tail_ = nullptr;
};

}  // namespace millrace::async
