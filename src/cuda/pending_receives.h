#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cuda/handles.h"

namespace millrace::cuda {

/// The memory that channels are about to write, so that work that reads it is ordered after the write. Thread-safe.
class PendingReceives {
 public:
  /// Registers a write of `memory`; `event` follows it on the channel's stream.
  void add(std::span<const std::byte> memory, std::shared_ptr<const Event> event);
  /// Removes a write that is complete or abandoned.
  void remove(const void* memory);
  /// Orders later work of `stream` after the pending write of the memory that contains `from`, if there is one.
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
