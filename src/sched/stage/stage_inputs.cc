#include "sched/stage/stage_inputs.h"

#include "base/result.h"

namespace millrace::sched {
namespace {

std::span<std::byte> input_memory(StageRunner& runner, const StageBounds& bounds, StageRunner::Memory where) {
  const size_t largest = CircularAllocator::footprint(bounds.max_batch_tokens * runner.input_row_bytes());
  return runner.input_memory(StageInputs::kBufferedPlans * largest, where);
}

}  // namespace

StageInputs::StageInputs(comm::LinkReceiver& upstream, StageRunner& runner, const StageBounds& bounds)
    : upstream_(upstream),
      row_bytes_(runner.input_row_bytes()),
      posts_(row_bytes_ > 0 && upstream.fills_posted()),
      memory_(posts_ ? input_memory(runner, bounds,
                                    upstream.fills_device() ? StageRunner::Memory::kDevice : StageRunner::Memory::kHost)
                     : std::span<std::byte>()) {}

void StageInputs::expect(const Plan& plan) {
  if (!posts_) return;
  unposted_.push_back({plan.id, plan.tokens.size() * row_bytes_});
  post_pending();
}

void StageInputs::post_pending() {
  while (!unposted_.empty()) {
    const auto target = memory_.allocate(unposted_.front().bytes);
    if (!target) return;
    upstream_.post(unposted_.front().plan, *target);
    unposted_.pop_front();
  }
}

asio::awaitable<comm::Message> StageInputs::receive(const Plan& plan) {
  comm::Message input = co_await upstream_.receive(comm::MessageKind::kActivations);
  const size_t wanted = plan.tokens.size() * row_bytes_;
  const size_t found = input.payload.bytes().size();
  if (input.plan != plan.id || found != wanted) {
    throw ErrorException(make_error(ErrorCode::kData, "plan {} wants {} bytes of activations, plan {} brought {}",
                                    plan.id.value(), wanted, input.plan.value(), found));
  }
  co_return input;
}

void StageInputs::release() {
  if (!posts_) return;
  memory_.free_oldest();
  post_pending();
}

}  // namespace millrace::sched
