#include "base/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/machine.h"
#include "base/thread_name.h"

namespace millrace {
namespace {

class BlockQueue {
 public:
  BlockQueue(const ParallelBlocks& blocks, const std::function<void(int64_t, int64_t)>& body)
      : blocks_(blocks), body_(body) {}

  void run_blocks() {
    try {
      for (int64_t begin; !failed_ && (begin = next_.fetch_add(blocks_.block)) < blocks_.count;)
        body_(begin, std::min(blocks_.count, begin + blocks_.block));
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failed_.exchange(true)) failure_ = std::current_exception();
    }
  }

  void rethrow_failure() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  const ParallelBlocks& blocks_;
  const std::function<void(int64_t, int64_t)>& body_;
  std::atomic<int64_t> next_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::exception_ptr failure_;  // guarded by mutex_ while threads run
};

}  // namespace

void parallel_for(const ParallelBlocks& blocks, const std::function<void(int64_t begin, int64_t end)>& body) {
  CHECK(blocks.count >= 0 && blocks.block > 0, "{} items in blocks of {}", blocks.count, blocks.block);
  const int64_t block_count = (blocks.count + blocks.block - 1) / blocks.block;
  int64_t threads = 1;
  if (block_count > 1)
    threads = std::min<int64_t>(block_count, blocks.threads > 0 ? blocks.threads : Machine().processors());
  BlockQueue queue(blocks, body);
  {
    std::vector<std::jthread> helpers;
    for (int64_t i = 1; i < threads; ++i) {
      helpers.emplace_back([&] {
        name_thread(blocks.thread_name);
        queue.run_blocks();
      });
    }
    queue.run_blocks();
  }
  queue.rethrow_failure();
}

}  // namespace millrace
