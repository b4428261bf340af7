#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <atomic>
#include <deque>
#include <vector>

#include "async/wait_list.h"
#include "comm/frame.h"
#include "comm/silence_watch.h"

/// Frames on a connected socket, in and out. Both parts live on the socket's executor and throw
/// boost::system::system_error when the connection fails.
namespace millrace::comm {

using tcp = asio::ip::tcp;

/// Counted on the link's executor, read from anywhere.
struct LinkCounters {
  std::atomic<bool> open = true;
  std::atomic<uint64_t> bytes_sent = 0;
  std::atomic<uint64_t> bytes_received = 0;
  std::atomic<uint64_t> messages_sent = 0;
  std::atomic<uint64_t> messages_received = 0;
  std::atomic<uint64_t> messages_dropped = 0;
  std::atomic<uint64_t> send_queue_high_water = 0;
  std::atomic<int64_t> round_trip_ns = 0;
};

/// Reads frames. Small ones arrive several in one system call; a large payload is received where it is wanted, by plain
/// calls on the non-blocking socket: once that is closed, nothing is written to a target any more.
class FrameReader {
 public:
  FrameReader(tcp::socket& socket, FrameLimits limits, LinkCounters& counters, SilenceWatch& silence);

  /// The next header, checked against the limits. Throws ErrorException (kData) for a malformed one.
  [[nodiscard]] asio::awaitable<FrameHeader> read_header();
  /// The next bytes, which belong to the payload.
  [[nodiscard]] asio::awaitable<void> read(std::span<std::byte> target);
  /// As read(), of bytes that have come with the header; false, and nothing is read, if they have not.
  [[nodiscard]] bool take(std::span<std::byte> target);
  /// Reads past the next `count` bytes.
  [[nodiscard]] asio::awaitable<void> skip(uint64_t count);

 private:
  [[nodiscard]] asio::awaitable<void> fill_buffer();
  /// What fill_buffer() does before and after it waits; in the way of every message, which a coroutine of its own
  /// slows.
  [[nodiscard]] std::span<std::byte> begin_fill();
  void end_fill(size_t count);
  void count_received(size_t count);
  [[nodiscard]] asio::awaitable<size_t> read_into(std::span<std::byte> target);
  tcp::socket& socket_;
  const FrameLimits limits_;
  LinkCounters& counters_;
  SilenceWatch& silence_;
  std::vector<std::byte> buffer_;
  std::span<const std::byte> buffered_;  // of buffer_: received and not yet read
};

/// Writes frames in the order of push(): the header and the payload from where they lie, a large one in pieces between
/// which the executor does other work, and no faster than a slow link takes them (send_budget.h). Only plain calls on
/// the non-blocking socket touch a payload's memory, never an operation that is pending. The caller bounds the queue.
class FrameWriter {
 public:
  FrameWriter(async::Runtime& runtime, tcp::socket& socket, LinkCounters& counters)
      : runtime_(runtime), socket_(socket), counters_(counters), wake_(runtime) {}

  /// A small frame that nothing waits before is written at once.
  void push(const FrameHeader& header, Payload payload = {}, bool borrowed = false);
  /// No more is pushed; run() returns when the queue is empty.
  void finish();
  /// For a socket that has been closed: drops the queue, which lets borrowed buffers go, and ends run().
  void abandon();
  [[nodiscard]] asio::awaitable<void> run();

  [[nodiscard]] bool finished() const { return finishing_; }
  [[nodiscard]] bool mid_frame() const { return written_ > 0; }
  /// Frames not yet handed to the kernel as a whole.
  [[nodiscard]] size_t waiting() const { return queue_.size(); }
  [[nodiscard]] size_t waiting(FrameKind kind) const { return waiting_[static_cast<size_t>(kind)]; }
  /// Whether a payload in the queue lies in memory of the link's user.
  [[nodiscard]] bool holds_borrowed() const;

 private:
  struct Frame {
    FrameHeaderBytes header;
    FrameKind kind;
    bool borrowed;
    Payload payload;
  };
  /// no_buffer_space: the link is slow, and has enough under way.
  [[nodiscard]] boost::system::error_code write_piece();
  /// Bytes of the next `wanted` that may be handed to the kernel now.
  [[nodiscard]] size_t budget_for(size_t wanted);

  async::Runtime& runtime_;
  tcp::socket& socket_;
  LinkCounters& counters_;
  std::deque<Frame> queue_;
  size_t written_ = 0;         // of the first frame
  size_t unprobed_bytes_ = 0;  // bytes that may go before the kernel is asked how quick the path is
  std::array<size_t, kFrameKindCount> waiting_{};
  bool finishing_ = false;
  bool abandoned_ = false;
  async::WaitList wake_;
};

}  // namespace millrace::comm
