#include "cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#include "base/check.h"
#include "base/log.h"
#include "base/result.h"
#include "base/thread_name.h"

namespace millrace::cpu {
namespace {

constexpr int kHelperSpins = 4000;
constexpr int kCallerSpins = 2000;
thread_local bool inside_region = false;

struct Ticket {
  uint32_t generation = 0;
  uint32_t chunks = 0;
  uint32_t next = 0;
  [[nodiscard]] bool open() const { return next < chunks; }
};

Ticket unpack(uint64_t word) {
  return {static_cast<uint32_t>(word >> 32), static_cast<uint32_t>(word >> 16) & 0xFFFFu,
          static_cast<uint32_t>(word) & 0xFFFFu};
}

uint64_t pack(Ticket ticket) {
  return (uint64_t{ticket.generation} << 32) | (uint64_t{ticket.chunks} << 16) | ticket.next;
}

}  // namespace

void pin_to_cpu(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  const int error = pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
  if (error != 0) log::warn("cannot pin a thread to CPU {}: {}", cpu, std::strerror(error));
}

ThreadPool::ThreadPool(int threads, const std::vector<int>& pin) {
  CHECK(threads >= 1, "a pool of {} threads", threads);
  helpers_.reserve(static_cast<size_t>(threads - 1));
  try {
    for (int slot = 1; slot < threads; ++slot) {
      helpers_.emplace_back([this, slot, pin] {
        name_thread(fmt::format("compute {}", slot));
        if (!pin.empty()) pin_to_cpu(pin[static_cast<size_t>(slot) % pin.size()]);
        helper_loop(slot);
      });
    }
  } catch (const std::system_error& refused) {
    const size_t started = helpers_.size() + 1;
    end_helpers();
    throw ErrorException(make_error(ErrorCode::kExhausted, "of {} compute threads only {} can be started: {}", threads,
                                    started, refused.code().message()));
  }
}

ThreadPool::~ThreadPool() {
  end_helpers();
}

void ThreadPool::end_helpers() {
  closing_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::run_erased(uint32_t chunks, Erased body, void* context) {
  if (chunks == 0) return;
  CHECK(chunks <= kMaxChunks, "a region of {} chunks, at most {} fit", chunks, kMaxChunks);
  CHECK(!inside_region, "parallel regions do not nest");
  if (helpers_.empty()) {
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) body(context, chunk, 0);
    return;
  }
  const std::lock_guard lock(run_mutex_);
  body_.store(body, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  unfinished_.store(static_cast<int32_t>(chunks), std::memory_order_relaxed);
  const uint32_t generation = unpack(ticket_.load(std::memory_order_relaxed)).generation + 1;
  ticket_.store(pack({generation, chunks, 0}));
  if (sleepers_.load() != 0) {
    wake_.fetch_add(1);
    wake_.notify_all();
  }
  work_on_region(0);
  for (int spin = 0; unfinished_.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < kCallerSpins) {
      spin_pause();
    } else if (const int32_t left = unfinished_.load(std::memory_order_acquire); left != 0) {
      unfinished_.wait(left, std::memory_order_acquire);
    }
  }
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::work_on_region(int slot) {
  uint64_t word = ticket_.load(std::memory_order_acquire);
  inside_region = true;
  for (Ticket ticket = unpack(word); ticket.open(); ticket = unpack(word)) {
    const Erased body = body_.load(std::memory_order_relaxed);
    void* const context = context_.load(std::memory_order_relaxed);
    if (!ticket_.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    try {
      body(context, ticket.next, slot);
    } catch (...) {
      const std::lock_guard lock(failure_mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1 && slot != 0) unfinished_.notify_one();
    word = ticket_.load(std::memory_order_acquire);
  }
  inside_region = false;
}

void ThreadPool::helper_loop(int slot) {
  int spins = 0;
  while (!closing_.load(std::memory_order_relaxed)) {
    if (unpack(ticket_.load(std::memory_order_acquire)).open()) {
      work_on_region(slot);
      spins = 0;
    } else if (++spins < kHelperSpins) {
      spin_pause();
    } else {
      const int32_t seen = wake_.load();
      sleepers_.fetch_add(1);
      if (!unpack(ticket_.load()).open() && !closing_.load()) wake_.wait(seen);
      sleepers_.fetch_sub(1);
      spins = 0;
    }
  }
}

}  // namespace millrace::cpu
