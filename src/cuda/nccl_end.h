#pragma once

#include <optional>
#include <span>
#include <stdexcept>

#include "cuda/handles.h"
#include "cuda/nccl_library.h"

namespace millrace::cuda {

/// A failure of NCCL: the call and NCCL's text.
class NcclFailure : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// One end of a channel: a rank in a communicator of two that never blocks the host, with a stream of its own. Made,
/// used and destroyed on one thread with its device current.
class NcclEnd {
 public:
  NcclEnd(const NcclLibrary& nccl, bool sending) : nccl_(nccl), sending_(sending) {}
  ~NcclEnd() { abort(); }
  NcclEnd(const NcclEnd&) = delete;
  NcclEnd& operator=(const NcclEnd&) = delete;

  /// These calls are under way on the stream once settled() is true. No other call may be made before. They throw
  /// NcclFailure.
  void begin(std::span<const std::byte> id);
  void transfer(std::span<std::byte> memory);
  /// Returns whether the last call is under way. Throws NcclFailure when the communicator has failed.
  [[nodiscard]] bool settled() const;
  /// Aborts all pending work and ends the use of this end. Returns when the device has released all memory.
  void abort() noexcept;
  [[nodiscard]] const Stream& stream() const { return stream_; }

 private:
  void accept(const char* what, ncclResult_t result) const;

  const NcclLibrary& nccl_;
  const bool sending_;
  const Stream stream_{{.urgent = true}};  // the other end waits for it
  ncclComm_t comm_ = nullptr;
};

}  // namespace millrace::cuda
