#include "sched/stage/copy_acks.h"

#include <algorithm>

#include "base/result.h"

namespace millrace::sched {
namespace {

/// Acknowledgements that travel together; links bound the bytes of a message.
constexpr size_t kAcksPerMessage = 65536;
/// Copies that wait for further acknowledgements. The head asks for a few copies with each plan and request.
constexpr size_t kMaxPartialAcks = size_t{1} << 20;

}  // namespace

void CopyAcks::add_own(cache::CopyId copy, size_t done) {
  merge({copy, static_cast<uint32_t>(done)}, source_count_);
}

void CopyAcks::add(size_t source, std::span<const cache::CopyAck> acks) {
  for (const cache::CopyAck& ack : acks) merge(ack, source);
}

void CopyAcks::merge(const cache::CopyAck& ack, size_t source) {
  const auto [found, is_first] = partial_.try_emplace(ack.copy);
  if (is_first && partial_.size() > kMaxPartialAcks) {
    throw ErrorException(make_error(ErrorCode::kData, "over {} copies have not ended", kMaxPartialAcks));
  }
  PartialAck& partial = found->second;
  const uint64_t bit = uint64_t{1} << source;
  if ((partial.sources & bit) != 0) {
    throw ErrorException(make_error(ErrorCode::kData, "copy {} is acknowledged twice", ack.copy.value()));
  }
  partial.sources |= bit;
  partial.done = std::min(partial.done, ack.done);
  if (++partial.count <= source_count_) return;
  complete_.push_back({ack.copy, partial.done});
  partial_.erase(found);
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
