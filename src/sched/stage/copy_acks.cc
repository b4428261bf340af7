#include "sched/stage/copy_acks.h"

#include <algorithm>

#include "base/result.h"

namespace millrace::sched {
namespace {

/// Acknowledgements that travel together; links bound the bytes of a message.
constexpr size_t kAcksPerMessage = 65536;
/// Copies that wait for their second acknowledgement. The head asks for a few copies with each plan and request.
constexpr size_t kMaxPartialAcks = size_t{1} << 20;

}  // namespace

void CopyAcks::add_own(cache::CopyId copy, size_t done) {
  const cache::CopyAck ack{copy, static_cast<uint32_t>(done)};
  first_ ? complete(ack) : merge(ack, true);
}

void CopyAcks::add_upstream(std::span<const cache::CopyAck> acks) {
  for (const cache::CopyAck& ack : acks) merge(ack, false);
}

void CopyAcks::merge(const cache::CopyAck& ack, bool own) {
  const auto [other, is_first] = partial_.try_emplace(ack.copy, ack.done, own);
  if (is_first && partial_.size() <= kMaxPartialAcks) return;
  if (is_first) throw ErrorException(make_error(ErrorCode::kData, "over {} copies have not ended", kMaxPartialAcks));
  if (other->second.own == own) {
    throw ErrorException(make_error(ErrorCode::kData, "copy {} is acknowledged twice", ack.copy.value()));
  }
  const uint32_t done = std::min(ack.done, other->second.done);
  partial_.erase(other);
  complete({ack.copy, done});
}

void CopyAcks::complete(const cache::CopyAck& ack) {
  complete_.push_back(ack);
  ready_signal_.notify_all();
}

asio::awaitable<std::vector<cache::CopyAck>> CopyAcks::next() {
  while (complete_.empty() && !stopping_) co_await ready_signal_.wait();
  if (stopping_) co_return std::vector<cache::CopyAck>{};
  const size_t count = std::min(complete_.size(), kAcksPerMessage);
  const auto end = complete_.begin() + static_cast<std::ptrdiff_t>(count);
  std::vector<cache::CopyAck> taken(complete_.begin(), end);
  complete_.erase(complete_.begin(), end);
  co_return taken;
}

void CopyAcks::stop() {
  stopping_ = true;
  ready_signal_.notify_all();
}

}  // namespace millrace::sched
