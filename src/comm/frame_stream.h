#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <atomic>
#include <deque>
#include <vector>

#include "async/wait_list.h"
#include "comm/frame.h"
#include "comm/silence_watch.h"

/// Reads and writes frames on a connected socket. Reader and writer live on the socket's executor and throw
/// boost::system::system_error when the connection fails.
namespace millrace::comm {

using tcp = asio::ip::tcp;

/// Counters that the link's executor writes and any thread reads.
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

/// Reads frames. One system call may bring several small ones. Plain calls on the non-blocking socket receive a large
/// payload in place. Once the socket is closed, nothing is written to a target any more. Owned by TcpEnd.
class FrameReader {
 public:
  FrameReader(tcp::socket& socket, FrameLimits limits, LinkCounters& counters, SilenceWatch& silence);

  /// Reads the next header and checks it against the limits. Throws ErrorException (kData) for a malformed one.
  [[nodiscard]] asio::awaitable<FrameHeader> read_header();
  /// Reads the next bytes of the payload.
  [[nodiscard]] asio::awaitable<void> read(std::span<std::byte> target);
  /// Acts as read() if all bytes have come with the header; otherwise returns false and reads nothing.
  [[nodiscard]] bool take(std::span<std::byte> target);
  /// Reads past the next `count` bytes.
  [[nodiscard]] asio::awaitable<void> skip(uint64_t count);

 private:
  [[nodiscard]] asio::awaitable<void> fill_buffer();
  /// The parts of fill_buffer() before and after its wait. Every message passes here, so they are no coroutines.
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

/// Writes frames in the order of push(), header and payload from where they lie. It writes a large frame in pieces
/// between which the executor does other work, and no faster than a slow link takes them (send_budget.h). Only plain
/// calls on the non-blocking socket touch a payload's memory, never a pending operation. Owned by TcpEnd, which bounds
/// the queue.
class FrameWriter {
 public:
  FrameWriter(async::Runtime& runtime, tcp::socket& socket, LinkCounters& counters)
      : runtime_(runtime), socket_(socket), counters_(counters), wake_(runtime) {}

  /// Queues a frame, and writes a small one at once if the queue was empty.
  void push(const FrameHeader& header, Payload payload = {}, bool borrowed = false);
  /// Declares that nothing more is pushed: run() returns when the queue is empty.
  void finish();
  /// Drops the queue of a closed socket, which releases borrowed buffers, and ends run().
  void abandon();
  [[nodiscard]] asio::awaitable<void> run();

  [[nodiscard]] bool finished() const { return finishing_; }
  [[nodiscard]] bool mid_frame() const { return written_ > 0; }
  /// Returns the number of frames that the kernel has not taken completely.
  [[nodiscard]] size_t waiting() const { return queue_.size(); }
  [[nodiscard]] size_t waiting(FrameKind kind) const { return waiting_[static_cast<size_t>(kind)]; }
  /// Returns whether a payload in the queue lies in memory of the link's user.
  [[nodiscard]] bool holds_borrowed() const;

 private:
  struct Frame {
    FrameHeaderBytes header;
    FrameKind kind;
    bool borrowed;
    Payload payload;
  };
  /// Writes a part of the first frame. Returns no_buffer_space when the link is slow and has enough in flight.
  [[nodiscard]] boost::system::error_code write_piece();
  /// Returns how many of the next `wanted` bytes the kernel may get now.
  [[nodiscard]] size_t budget_for(size_t wanted);

  async::Runtime& runtime_;
  tcp::socket& socket_;
  LinkCounters& counters_;
  std::deque<Frame> queue_;
  size_t written_ = 0;         // of the first frame
  size_t unprobed_bytes_ = 0;  // bytes to write before the kernel is asked again how fast the path is
  std::array<size_t, kFrameKindCount> waiting_{};
  bool finishing_ = false;
  bool abandoned_ = false;
  async::WaitList wake_;
};

}  // namespace millrace::comm
