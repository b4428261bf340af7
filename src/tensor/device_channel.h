#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <vector>

/// One direction between devices of two processes: bytes go from the memory of one to the memory of the other, past
/// both hosts.
namespace millrace::tensor {

/// What a device has to offer as an end of a channel.
struct ChannelSupport {
  std::string device;    ///< its name among all of a ring; two ends need different devices. Empty: memory of the host
  std::string protocol;  ///< "NCCL 2.28.9"; two ends need the same
  std::string unavailable_reason;  ///< why there is no channel from and to this device; empty: there may be
};

struct ChannelOptions {
  bool sending = false;       ///< which end this is
  std::vector<std::byte> id;  ///< Backend::make_channel_id of the sending end, the same on both
  std::string name;           ///< of the link, for errors: "stage 0 -> stage 1"
  std::string peer;           ///< who is at the other end, for errors: "stage 1"
  std::chrono::milliseconds open_timeout{30'000};
  /// Of each transfer, from its launch or the end of the one before; a channel with one that is later ends.
  std::chrono::milliseconds transfer_timeout{60'000};
  /// Each is called on a thread of the channel's. Once: both ends are there, or why they are not.
  std::function<void(std::exception_ptr)> opened;
  /// At most once, after `opened` without a failure, unless abort() comes first: the channel ends by itself. It comes
  /// before the ends of what is under way, which may wait for other channels on the device until those are aborted.
  std::function<void(std::exception_ptr)> lost;
};

/// One end of a channel. What is sent nth lands in what is received nth, which has its size; `what` it is, errors say.
/// From any thread; nothing here blocks but the destructor, which aborts: then no memory of the user's is touched any
/// more.
class DeviceChannel {
 public:
  using Handler = std::function<void(std::exception_ptr)>;
  virtual ~DeviceChannel() = default;
  /// `from` holds what to send when the call is made, and stays as it is until `done`.
  virtual void send(std::span<const std::byte> from, std::string what, Handler done) = 0;
  /// `launched`: ops may be submitted that read `into` (Backend::copy_in); they come after what arrives. `done`: it has
  /// arrived. Each is called once, with a failure when the channel ends before.
  virtual void receive(std::span<std::byte> into, std::string what, Handler launched, Handler done) = 0;
  /// Ends what is under way with `reason`, and all that follows.
  virtual void abort(std::string reason) = 0;
};

}  // namespace millrace::tensor
