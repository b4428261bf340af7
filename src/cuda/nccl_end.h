#pragma once

#include <optional>
#include <span>
#include <stdexcept>

#include "cuda/handles.h"
#include "cuda/nccl_library.h"

namespace millrace::cuda {

/// NCCL has failed: what was called, and NCCL's text.
class NcclFailure : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// One rank of a communicator of two that never blocks the host, with a stream of its own: one end of a channel. Made,
/// used and destroyed on one thread, its device current.
class NcclEnd {
 public:
  NcclEnd(const NcclLibrary& nccl, bool sending) : nccl_(nccl), sending_(sending) {}
  ~NcclEnd() { abort(); }
  NcclEnd(const NcclEnd&) = delete;
  NcclEnd& operator=(const NcclEnd&) = delete;

  /// Calls that are under way on the stream once settled(); until then nothing else may be called. Throw NcclFailure.
  void begin(std::span<const std::byte> id);
  void transfer(std::span<std::byte> memory);
  /// Whether what was called last is under way. Throws NcclFailure when the communicator has failed, at whatever time.
  [[nodiscard]] bool settled() const;
  /// Ends what is under way, and all use of this end; returns when the device has let go of all memory.
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
