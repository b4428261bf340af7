#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cuda/handles.h"

namespace millrace::cuda {

/// Where a channel is about to write, so that work which reads there comes after it. Thread-safe.
class PendingReceives {
 public:
  /// `event` stands behind the write of `memory` on the channel's stream.
  void add(std::span<const std::byte> memory, std::shared_ptr<const Event> event);
  /// The write is complete, or has been given up.
  void remove(const void* memory);
  /// What `stream` is given from now on comes after the write of the memory that `from` is in, if there is one.
  void order_after(const void* from, const Stream& stream);

 private:
  struct Write {
    std::span<const std::byte> memory;
    std::shared_ptr<const Event> event;
  };
  std::mutex mutex_;
  std::vector<Write> writes_;  // as many as are posted
};

}  // namespace millrace::cuda
