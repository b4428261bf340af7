#include "comm/frame_stream.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <cstring>

#include "base/check.h"
#include "comm/send_budget.h"

namespace millrace::comm {
namespace {

constexpr size_t kReadBufferBytes = size_t{16} << 10;
constexpr size_t kPieceBytes = size_t{1} << 20;
/// Frames up to this size are written by push() itself.
constexpr size_t kSmallBytes = size_t{64} << 10;
/// Bytes written to a path that was fast before it is measured again; a fraction of what a slow one may hold.
constexpr size_t kUnprobedBytes = size_t{8} << 10;
/// Pause of a link that is held back; a slow link carries a few kilobytes meanwhile.
constexpr async::Duration kBudgetPause = std::chrono::milliseconds(2);

/// Adds to a counter without a locked instruction, since only one thread writes each counter.
void add(std::atomic<uint64_t>& counter, uint64_t count) {
  counter.store(counter.load(std::memory_order_relaxed) + count, std::memory_order_relaxed);
}

}  // namespace

FrameReader::FrameReader(tcp::socket& socket, FrameLimits limits, LinkCounters& counters, SilenceWatch& silence)
    : socket_(socket), limits_(limits), counters_(counters), silence_(silence), buffer_(kReadBufferBytes) {}

asio::awaitable<FrameHeader> FrameReader::read_header() {
  while (buffered_.size() < kFrameHeaderBytes) {
    const std::span<std::byte> room = begin_fill();
    const size_t count = co_await socket_.async_read_some(asio::buffer(room.data(), room.size()), asio::use_awaitable);
    end_fill(count);
  }
  const auto header = decode_header(buffered_.first<kFrameHeaderBytes>());
  buffered_ = buffered_.subspan(kFrameHeaderBytes);
  if (header.has_error()) throw ErrorException(header.error());
  const auto allowed = limits_.check(*header);
  if (allowed.has_error()) throw ErrorException(allowed.error());
  co_return *header;
}

asio::awaitable<void> FrameReader::read(std::span<std::byte> target) {
  while (!target.empty()) {
    if (buffered_.empty() && target.size() >= buffer_.size()) {
      const size_t count = co_await read_into(target);
      target = target.subspan(count);
      continue;
    }
    if (buffered_.empty()) co_await fill_buffer();
    const std::span<std::byte> part = target.first(std::min(buffered_.size(), target.size()));
    (void)take(part);
    target = target.subspan(part.size());
  }
}

bool FrameReader::take(std::span<std::byte> target) {
  if (target.size() > buffered_.size()) return false;
  if (!target.empty()) std::memcpy(target.data(), buffered_.data(), target.size());
  buffered_ = buffered_.subspan(target.size());
  return true;
}

asio::awaitable<void> FrameReader::skip(uint64_t count) {
  while (count > 0) {
    if (buffered_.empty()) co_await fill_buffer();
    const uint64_t taken = std::min<uint64_t>(buffered_.size(), count);
    buffered_ = buffered_.subspan(taken);
    count -= taken;
  }
}

asio::awaitable<void> FrameReader::fill_buffer() {
  const std::span<std::byte> room = begin_fill();
  const size_t count = co_await socket_.async_read_some(asio::buffer(room.data(), room.size()), asio::use_awaitable);
  end_fill(count);
}

std::span<std::byte> FrameReader::begin_fill() {
  if (!buffered_.empty()) std::memmove(buffer_.data(), buffered_.data(), buffered_.size());
  buffered_ = std::span(buffer_).first(buffered_.size());
  return std::span(buffer_).subspan(buffered_.size());
}

void FrameReader::count_received(size_t count) {
  add(counters_.bytes_received, count);
  silence_.on_receive();
}

void FrameReader::end_fill(size_t count) {
  count_received(count);
  // The socket may have been closed between the read and this: the target is not to be touched then.
  if (!socket_.is_open()) throw boost::system::system_error(asio::error::operation_aborted);
  buffered_ = std::span(buffer_).first(buffered_.size() + count);
}

/// Reads what the socket holds. If that is not all, the executor does other work before the return.
asio::awaitable<size_t> FrameReader::read_into(std::span<std::byte> target) {
  for (;;) {
    boost::system::error_code failure;
    const size_t count = socket_.receive(asio::buffer(target.data(), target.size()), 0, failure);
    if (failure == asio::error::would_block || failure == asio::error::try_again) {
      co_await socket_.async_wait(tcp::socket::wait_read, asio::use_awaitable);
      continue;
    }
    if (failure) throw boost::system::system_error(failure);
    count_received(count);
    if (count < target.size()) co_await asio::post(socket_.get_executor(), asio::use_awaitable);
    co_return count;
  }
}

void FrameWriter::push(const FrameHeader& header, Payload payload, bool borrowed) {
  CHECK(!finishing_, "a {} frame after the last one", to_string(header.kind));
  CHECK(header.payload_bytes == payload.bytes().size());
  if (abandoned_) return;
  queue_.push_back({encode_header(header), header.kind, borrowed, std::move(payload)});
  ++waiting_[static_cast<size_t>(header.kind)];
  // A failure comes up again in run().
  if (queue_.size() == 1 && header.payload_bytes <= kSmallBytes && socket_.is_open()) (void)write_piece();
  if (!queue_.empty()) wake_.notify_all();
}

void FrameWriter::finish() {
  finishing_ = true;
  wake_.notify_all();
}

void FrameWriter::abandon() {
  abandoned_ = true;
  queue_.clear();
  written_ = 0;
  waiting_ = {};
  wake_.notify_all();
}

bool FrameWriter::holds_borrowed() const {
  return std::any_of(queue_.begin(), queue_.end(), [](const Frame& frame) { return frame.borrowed; });
}

asio::awaitable<void> FrameWriter::run() {
  while (!abandoned_) {
    if (queue_.empty()) {
      if (finishing_) co_return;
      co_await wake_.wait();
      continue;
    }
    const boost::system::error_code failure = write_piece();
    if (failure == asio::error::no_buffer_space) {
      (void)co_await wake_.wait_until(runtime_.now() + kBudgetPause);
    } else if (failure == asio::error::would_block || failure == asio::error::try_again) {
      co_await socket_.async_wait(tcp::socket::wait_write, asio::use_awaitable);
    } else if (failure) {
      throw boost::system::system_error(failure);
    } else if (!queue_.empty()) {
      co_await asio::post(socket_.get_executor(), asio::use_awaitable);
    }
  }
}

boost::system::error_code FrameWriter::write_piece() {
  const Frame& frame = queue_.front();
  const size_t budget = budget_for(kFrameHeaderBytes + frame.payload.bytes().size() - written_);
  if (budget == 0) return asio::error::no_buffer_space;
  const size_t header_written = std::min(written_, kFrameHeaderBytes);
  const std::span<const std::byte> payload = frame.payload.bytes().subspan(written_ - header_written);
  const std::array<asio::const_buffer, 2> buffers = {
      asio::buffer(frame.header.data() + header_written, kFrameHeaderBytes - header_written),
      asio::buffer(payload.data(), std::min({payload.size(), budget, kPieceBytes}))};
  boost::system::error_code failure;
  const size_t count = socket_.send(buffers, 0, failure);
  if (failure) return failure;
  add(counters_.bytes_sent, count);
  unprobed_bytes_ -= std::min(unprobed_bytes_, count);
  written_ += count;
  if (written_ < kFrameHeaderBytes + frame.payload.bytes().size()) return {};
  if (message_kind_of(frame.kind)) add(counters_.messages_sent, 1);
  --waiting_[static_cast<size_t>(frame.kind)];
  written_ = 0;
  queue_.pop_front();
  return {};
}

size_t FrameWriter::budget_for(size_t wanted) {
  if (wanted <= unprobed_bytes_) return wanted;
  const size_t budget = send_budget(socket_.native_handle());
  unprobed_bytes_ = budget == kUnboundedBudget ? kUnprobedBytes : 0;
  return budget;
}

}  // namespace millrace::comm
