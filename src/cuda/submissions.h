#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "cuda/device.h"
#include "cuda/kernels.h"
#include "tensor/backend.h"

namespace millrace::cuda {

/// An uploaded batch: UploadedBatch::handle points to one.
struct CudaBatch {
  DeviceBatch device;
  BatchBounds bounds;
};

/// Pinned blocks that are handed out in order, again from the first after rewind(). A block that is too small is
/// replaced by one of at least twice its size, and stays: freeing it would wait for all that runs on the device.
class PinnedBlocks {
 public:
  [[nodiscard]] std::byte* take(size_t bytes);
  /// Makes the blocks that are handed out first so large at least.
  void reserve(std::span<const size_t> bytes);
  void rewind() { next_ = 0; }

 private:
  std::vector<tensor::Buffer> blocks_;
  std::vector<tensor::Buffer> ring_builder_;
  size_t next_ = 0;
};

/// The work of the compute stream: runs what is submitted at once, since ops only launch, and keeps for each piece of
/// work the host memory that the device reads and writes until it is complete. Owned by a backend. submit() may be
/// called from any thread; the rest inside submitted work only.
class Submissions {
 public:
  explicit Submissions(Device& device) : device_(device) {}

  void submit(const std::function<void()>& work, tensor::CompletionHandler done);
  /// Takes the memory for uploads and downloads of these sizes, in the order of one piece of work. Before any work.
  void reserve(std::span<const size_t> uploads, std::span<const size_t> downloads);
  /// Whether the calling thread is inside submitted work.
  [[nodiscard]] bool inside() const { return thread_.load() == std::this_thread::get_id(); }

  /// Brings `bytes` that `fill` writes to the device. What is brought nth in a piece of work has the same address in
  /// each one, until it has to be moved because it grows (Device::relocations).
  [[nodiscard]] const std::byte* upload(size_t bytes, const std::function<void(std::byte*)>& fill);
  /// A batch whose parts are uploaded; its address is good as long as the work runs.
  [[nodiscard]] const CudaBatch* keep(const CudaBatch& batch);
  /// Copies `bytes` to the host; `finish` reads them there when the work is complete, unless it failed.
  void download(const void* from, size_t bytes, std::function<void(const std::byte*)> finish);

 private:
  /// What one piece of work uses until it is complete.
  struct InFlightWork {
    PinnedBlocks uploads;
    PinnedBlocks downloads;
    std::deque<CudaBatch> batches;
    std::vector<std::function<void()>> finishers;
    std::exception_ptr failure;  // of the call itself
  };
  [[nodiscard]] std::shared_ptr<InFlightWork> take_in_flight();
  void land(const std::shared_ptr<InFlightWork>& flight, std::exception_ptr failure,
            const tensor::CompletionHandler& done);

  Device& device_;
  std::mutex submit_mutex_;              // one piece of work at a time
  std::atomic<std::thread::id> thread_;  // of the work that is being submitted
  std::shared_ptr<InFlightWork> current_;
  std::vector<GrowingBuffer> uploads_;  // on the device, by order
  size_t next_upload_ = 0;
  std::mutex free_mutex_;
  std::vector<std::shared_ptr<InFlightWork>> free_;  // guarded by free_mutex_
};

}  // namespace millrace::cuda
