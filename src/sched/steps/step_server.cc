#include "sched/steps/step_server.h"

#include <algorithm>
#include <utility>

namespace millrace::sched {
namespace {

constexpr auto kStepMessage = comm::MessageKind::kPlan;

class RemoteBoard final : public StepBoard {
 public:
  explicit RemoteBoard(comm::Link link) : link_(std::move(link)) {}

  [[nodiscard]] uint64_t target() const override { return target_; }
  void start_step(uint64_t step) override { link_.sender->send(kStepMessage, RingEpoch(), PlanId(step), {}); }
  [[nodiscard]] asio::awaitable<void> wait_beyond(uint64_t seen) override {
    while (target_ <= seen) {
      const comm::Message message = co_await link_.receiver->receive(kStepMessage);
      target_ = std::max(target_, message.plan.value());
    }
  }
  void leave(const std::string& reason) override {
    link_.sender->close(reason);
    link_.receiver->close(reason);
  }

 private:
  comm::Link link_;
  uint64_t target_ = 0;
};

}  // namespace

std::unique_ptr<StepBoard> make_remote_board(comm::Link link) {
  return std::make_unique<RemoteBoard>(std::move(link));
}

asio::awaitable<void> StepServer::run() {
  for (size_t i = 0; i < participants_.size(); ++i) tasks_.spawn("steps of " + participants_[i].name, serve(i));
  co_await tasks_.join();
}

asio::awaitable<void> StepServer::serve(size_t index) {
  std::string reason;
  try {
    for (;;) {
      const comm::Message message = co_await participants_[index].link.receiver->receive(kStepMessage);
      const auto step = coordinator_.start_step(message.plan.value());
      if (!step) continue;
      for (Participant& each : participants_) each.link.sender->send(kStepMessage, RingEpoch(), PlanId(*step), {});
    }
  } catch (const std::exception& ended) {
    reason = ended.what();
  }
  stop(participants_[index].name + ": " + reason);
}

void StepServer::stop(const std::string& reason) {
  if (std::exchange(stopped_, true)) return;
  for (Participant& each : participants_) {
    each.link.sender->close(reason);
    each.link.receiver->close(reason);
  }
}

}  // namespace millrace::sched
