#include "server/stream_set.h"

#include <boost/system/system_error.hpp>

#include "sched/plan/request.h"

namespace millrace::server {
namespace {

/// Returns the error for a client whose engine threw an exception.
Error engine_failure(const std::exception& failure) {
  return make_error(ErrorCode::kInternal, "the engine failed: {}", failure.what());
}

}  // namespace

StreamSet::StreamSet(async::Runtime& runtime, sched::Engine& engine)
    : runtime_(runtime), engine_(engine), changed_(runtime), tasks_(runtime) {}

Result<void> StreamSet::submit(sched::GenerateRequest request) {
  auto& slot = slots_.emplace_back(std::make_unique<Slot>(runtime_));
  try {
    auto stream = engine_.submit(std::move(request), runtime_);
    if (stream.has_error()) return stream.error();
    slot->stream = std::move(*stream);
  } catch (const std::exception& failure) {
    return engine_failure(failure);
  }
  tasks_.spawn("token stream", pump(slots_.size() - 1));
  return {};
}

asio::awaitable<void> StreamSet::pump(size_t index) {
  Slot& slot = *slots_[index];
  bool last = false;
  while (!last && !slot.dropped) {
    sched::GenerateEvent event;
    try {
      event = co_await slot.stream->next();
    } catch (const boost::system::system_error& failure) {
      if (failure.code() == asio::error::operation_aborted) throw;
      event.error = engine_failure(failure);
    } catch (const std::exception& failure) {
      event.error = engine_failure(failure);
    }
    if (slot.dropped) break;
    last = event.last();
    slot.event = std::move(event);
    ready_.push_back(index);
    changed_.notify_all();
    while (!last && slot.event && !slot.dropped) co_await slot.taken.wait();
  }
  slot.stream.reset();
}

std::optional<StreamSet::Arrival> StreamSet::take() {
  while (!ready_.empty()) {
    const size_t index = ready_.front();
    ready_.erase(ready_.begin());
    Slot& slot = *slots_[index];
    if (slot.dropped || !slot.event) continue;
    Arrival arrival{index, std::move(*slot.event)};
    slot.event.reset();
    slot.taken.notify_all();
    return arrival;
  }
  return std::nullopt;
}

void StreamSet::drop(size_t index) {
  Slot& slot = *slots_[index];
  slot.dropped = true;
  slot.event.reset();
  slot.taken.notify_all();
}

asio::awaitable<void> StreamSet::finish() {
  for (size_t index = 0; index < slots_.size(); ++index) drop(index);
  tasks_.cancel();
  co_await tasks_.join();
}

}  // namespace millrace::server
