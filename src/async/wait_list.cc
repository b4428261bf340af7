#include "async/wait_list.h"

namespace millrace::async {

WaitList::~WaitList() {
  while (head_ != nullptr) {
    Node* node = head_;
    unlink(*node);
    if (node->timer) runtime_.disarm(*node->timer);
    delete node;
  }
}

asio::awaitable<bool> WaitList::wait() {
  return wait_impl(std::nullopt);
}

asio::awaitable<bool> WaitList::wait_until(TimePoint deadline) {
  return wait_impl(deadline);
}

asio::awaitable<bool> WaitList::wait_impl(std::optional<TimePoint> deadline) {
  auto initiation = [this, deadline](auto handler) {
    auto* node = new HandlerNode<decltype(handler)>(*this, std::move(handler));
    link(*node);
    if (deadline) {
      node->timer = runtime_.arm(*deadline, [this, node] {
        node->timer.reset();
        finish(*node, Outcome::kTimedOut);
      });
    }
  };
  return asio::async_initiate<const asio::use_awaitable_t<>, void(boost::system::error_code, bool)>(
      initiation, asio::use_awaitable);
}

void WaitList::notify_one() {
  if (head_ != nullptr) finish(*head_, Outcome::kNotified);
}

void WaitList::notify_all() {
  while (head_ != nullptr) finish(*head_, Outcome::kNotified);
}

void WaitList::resume_one() {
  if (head_ != nullptr) finish(*head_, Outcome::kNotified, When::kNow);
}

void WaitList::resume_all() {
  if (head_ == tail_) return resume_one();
  notify_all();
}

void WaitList::finish(Node& node, Outcome outcome, When when) {
  unlink(node);
  if (node.timer) runtime_.disarm(*node.timer);
  node.complete(outcome, when);
}

void WaitList::link(Node& node) {
  node.previous = tail_;
  (tail_ != nullptr ? tail_->next : head_) = &node;
  tail_ = &node;
}

void WaitList::unlink(Node& node) {
  (node.previous != nullptr ? node.previous->next : head_) = node.next;
  (node.next != nullptr ? node.next->previous : tail_) = node.previous;
  node.previous = node.next = nullptr;
}

asio::awaitable<void> sleep_for(Runtime& runtime, Duration duration) {
  WaitList never(runtime);
  co_await never.wait_until(runtime.now() + duration);
}

}  // namespace millrace::async
