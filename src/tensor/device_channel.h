#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <vector>

/// One-way transfers from the memory of one process's device to another's, bypassing both hosts.
namespace millrace::tensor {

/// Describes a device as an end of a channel.
struct ChannelSupport {
  std::string device;              ///< unique in a ring; two ends need different devices. Empty: host memory
  std::string protocol;            ///< e.g. "NCCL 2.28.9"; both ends need the same
  std::string unavailable_reason;  ///< why this device can have no channel; empty: it can
};

/// What one end of a channel needs to open.
struct ChannelOptions {
  bool sending = false;       ///< whether this end sends
  std::vector<std::byte> id;  ///< Backend::make_channel_id of the sending end, equal on both
  std::string name;           ///< of the link, for error messages: "stage 0 -> stage 1"
  std::string peer;           ///< the other end, for error messages: "stage 1"
  std::chrono::milliseconds open_timeout{30'000};
  /// Limits each transfer, from its launch or the end of the previous one. A channel with a later transfer ends.
  std::chrono::milliseconds transfer_timeout{60'000};
  /// A callback on a thread of the channel, called once: with null when both ends are connected, else with the failure.
  std::function<void(std::exception_ptr)> opened;
  /// A callback on a thread of the channel, called at most once, when the channel ends by itself after a successful
  /// `opened`. abort() suppresses it. It precedes the failures of pending transfers, which may wait for other channels
  /// on the device until those are aborted.
  std::function<void(std::exception_ptr)> lost;
};

/// One end of a channel. The nth send arrives in the nth receive, which has the same size; `what` names it in errors.
/// All methods may be called from any thread. Only the destructor blocks: it aborts, and no caller's memory is touched
/// afterwards.
class DeviceChannel {
 public:
  using Handler = std::function<void(std::exception_ptr)>;
  virtual ~DeviceChannel() = default;
  /// Sends `from`, which holds its data at the call and stays unchanged until `done`.
  virtual void send(std::span<const std::byte> from, std::string what, Handler done) = 0;
  /// Receives into `into`. After `launched`, ops that read `into` (Backend::copy_in) may be submitted; they wait for
  /// the data. `done` reports the arrival. Each is called once, with a failure when the channel ends first.
  virtual void receive(std::span<std::byte> into, std::string what, Handler launched, Handler done) = 0;
  /// Fails all pending and later transfers with `reason`.
  virtual void abort(std::string reason) = 0;
};

}  // namespace millrace::tensor
