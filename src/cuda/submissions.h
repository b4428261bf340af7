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

/// An uploaded batch. UploadedBatch::handle points to one.
struct CudaBatch {
  DeviceBatch device;
  BatchBounds bounds;
};

/// Pinned blocks that are handed out in order, and again from the first one after rewind(). A block that is too small
/// is replaced by one of at least twice its size and kept. Freeing it would wait for all work on the device.
class PinnedBlocks {
 public:
  /// Returns the next block, of at least `bytes`.
  [[nodiscard]] std::byte* take(size_t bytes);
  /// Enlarges the first blocks to at least these sizes.
  void reserve(std::span<const size_t> bytes);
  void rewind() { next_ = 0; }

 private:
  std::vector<tensor::Buffer> blocks_;
  std::vector<tensor::Buffer> outgrown_;
  size_t next_ = 0;
};

/// The work of the compute stream. It runs submitted work at once, since ops only launch. For each piece of work it
/// keeps the host memory that the device reads and writes until completion. Owned by a backend. submit() may be called
/// from any thread, the other methods only inside submitted work.
class Submissions {
 public:
  /// Throws why the results of work that is complete do not count.
  using Check = std::function<void()>;

  explicit Submissions(Device& device) : device_(device) {}

  /// Runs `work` and calls `done` when all that it launched is complete.
  void submit(const std::function<void()>& work, tensor::CompletionHandler done);
  /// Reserves memory for uploads and downloads of these sizes, in the order of one piece of work. Called before any
  /// work.
  void reserve(std::span<const size_t> uploads, std::span<const size_t> downloads);
  /// Returns whether the calling thread is inside submitted work.
  [[nodiscard]] bool inside() const { return thread_.load() == std::this_thread::get_id(); }

  /// Sets what is called when the work is complete, before it is reported so.
  void check_at_end(std::shared_ptr<const Check> check) const { current_->check = std::move(check); }
  /// Returns what check_at_end() has set; null: nothing.
  [[nodiscard]] const std::shared_ptr<const Check>& check_at_end() const { return current_->check; }

  /// Copies `bytes` that `fill` writes to the device. The nth upload of each piece of work has the same address, until
  /// it grows and moves (Device::relocations).
  [[nodiscard]] const std::byte* upload(size_t bytes, const std::function<void(std::byte*)>& fill);
  /// Keeps an uploaded batch. Its address is valid while the work runs.
  [[nodiscard]] const CudaBatch* keep(const CudaBatch& batch);
  /// Copies `bytes` to the host. `finish` reads them there when the work is complete, unless it failed.
  void download(const void* from, size_t bytes, std::function<void(const std::byte*)> finish);

 private:
  /// The memory that one piece of work uses until it is complete.
  struct InFlightWork {
    PinnedBlocks uploads;
    PinnedBlocks downloads;
    std::deque<CudaBatch> batches;
    std::vector<std::function<void()>> finishers;
    std::shared_ptr<const Check> check;
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
