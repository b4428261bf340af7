#include "comm/in_process_link.h"

#include <array>
#include <mutex>

#include "async/mailbox.h"
#include "base/result.h"

namespace millrace::comm {
namespace {

/// The state that both ends share: an inbox per kind, and why the link ended.
class Inboxes {
 public:
  Inboxes(async::Runtime& receiver, size_t capacity)
      : inboxes_{inbox(receiver, MessageKind::kPlan, capacity), inbox(receiver, MessageKind::kActivations, capacity),
                 inbox(receiver, MessageKind::kOutput, capacity), inbox(receiver, MessageKind::kAcks, capacity)} {}

  void push(Message message) {
    const MessageKind kind = message.kind;
    if (!of(kind).try_push(std::move(message))) {
      close(std::string("more ") + std::string(to_string(kind)) + " messages wait than the window allows");
    }
  }

  /// Owns the inboxes as long as it waits, since both ends may go meanwhile.
  static asio::awaitable<Message> pop(std::shared_ptr<Inboxes> inboxes, MessageKind kind) {
    auto message = co_await inboxes->of(kind).receive();
    if (!message) throw ErrorException(Error{ErrorCode::kUnavailable, inboxes->reason()});
    co_return std::move(*message);
  }

  void close(std::string reason) {
    {
      const std::lock_guard lock(mutex_);
      if (reason_.empty()) reason_ = std::move(reason);
    }
    for (auto& inbox : inboxes_) inbox.close();
  }

  /// Drops the messages that nobody will receive, which releases borrowed buffers.
  void discard() {
    for (auto& inbox : inboxes_) {
      while (inbox.try_receive()) continue;
    }
  }

 private:
  static async::Mailbox<Message> inbox(async::Runtime& receiver, MessageKind kind, size_t capacity) {
    return {receiver, max_waiting(kind, capacity)};
  }
  async::Mailbox<Message>& of(MessageKind kind) { return inboxes_[static_cast<size_t>(kind)]; }
  std::string reason() {
    const std::lock_guard lock(mutex_);
    return reason_;
  }

  std::array<async::Mailbox<Message>, kMessageKindCount> inboxes_;
  std::mutex mutex_;
  std::string reason_;
};

class InProcessSender final : public LinkSender {
 public:
  InProcessSender(async::Runtime& runtime, std::shared_ptr<Inboxes> inboxes)
      : runtime_(runtime), inboxes_(std::move(inboxes)) {}
  ~InProcessSender() override { inboxes_->close("the sender is gone"); }

  void send(MessageKind kind, RingEpoch epoch, PlanId plan, std::vector<std::byte> bytes) override {
    inboxes_->push({kind, epoch, plan, Payload::own(std::move(bytes)), runtime_.now()});
  }
  Work send_borrowed(MessageKind kind, RingEpoch epoch, PlanId plan, std::span<const std::byte> bytes) override {
    async::Event released(runtime_);
    inboxes_->push({kind, epoch, plan, Payload::borrow(bytes, released), runtime_.now()});
    return Work(std::move(released));
  }
  void close(std::string reason) override { inboxes_->close(std::move(reason)); }

 private:
  async::Runtime& runtime_;
  std::shared_ptr<Inboxes> inboxes_;
};

class InProcessReceiver final : public LinkReceiver {
 public:
  explicit InProcessReceiver(std::shared_ptr<Inboxes> inboxes) : inboxes_(std::move(inboxes)) {}
  ~InProcessReceiver() override { close("the receiver is gone"); }

  asio::awaitable<Message> receive(MessageKind kind) override { return Inboxes::pop(inboxes_, kind); }
  void close(std::string reason) final {
    inboxes_->close(std::move(reason));
    inboxes_->discard();
  }

 private:
  std::shared_ptr<Inboxes> inboxes_;
};

}  // namespace

Link make_in_process_link(async::Runtime& sender, async::Runtime& receiver, size_t capacity) {
  auto inboxes = std::make_shared<Inboxes>(receiver, capacity);
  return {std::make_unique<InProcessSender>(sender, inboxes), std::make_unique<InProcessReceiver>(inboxes)};
}

}  // namespace millrace::comm
