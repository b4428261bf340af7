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
constexpr uint32_t kPartsOfRest = 4;  // a claim takes this fraction of the rest of a zone
thread_local bool inside_region = false;

struct Claims {
  uint32_t generation = 0;
  uint32_t end = 0;
  uint32_t next = 0;
  [[nodiscard]] bool open() const { return next < end; }
};

Claims unpack(uint64_t word) {
  return {static_cast<uint32_t>(word >> 32), static_cast<uint32_t>(word >> 16) & 0xFFFFu,
          static_cast<uint32_t>(word) & 0xFFFFu};
}

uint64_t pack(Claims claims) {
  return (uint64_t{claims.generation} << 32) | (uint64_t{claims.end} << 16) | claims.next;
}

}  // namespace

void pin_to_cpu(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  const int error = pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
  if (error != 0) log::warn("cannot pin a thread to CPU {}: {}", cpu, std::strerror(error));
}

ThreadPool::ThreadPool(int threads, const std::vector<int>& pin) : zones_(static_cast<size_t>(std::max(threads, 1))) {
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
    throw ErrorException(make_error(ErrorCode::kExhausted, "only {} of {} compute threads can be started: {}", started,
                                    threads, refused.code().message()));
  }
}

ThreadPool::~ThreadPool() {
  end_helpers();
}

void ThreadPool::end_helpers() {
  closing_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::run_erased(uint32_t chunks, uint32_t zones, Erased body, void* context) {
  if (chunks == 0) return;
  CHECK(chunks <= kMaxChunks, "a region of {} chunks, at most {} fit", chunks, kMaxChunks);
  CHECK(!inside_region, "parallel regions do not nest");
  if (helpers_.empty()) return body(context, 0, chunks, 0);
  const std::lock_guard lock(run_mutex_);
  body_.store(body, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  zone_count_.store(zones, std::memory_order_relaxed);
  unfinished_.store(static_cast<int32_t>(chunks), std::memory_order_relaxed);
  const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  const auto begin_of = [&](uint32_t zone) { return (chunks * zone + zones - 1) / zones; };  // one chunk: zone 0
  for (uint32_t zone = 0; zone < zones; ++zone) {
    zones_[zone].word.store(pack({generation, begin_of(zone + 1), begin_of(zone)}), std::memory_order_release);
  }
  generation_.store(generation);
  if (sleepers_.load() != 0) generation_.notify_all();
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
  inside_region = true;
  const uint32_t zones = zone_count_.load(std::memory_order_relaxed);
  const auto own = static_cast<uint32_t>(slot) % zones;
  empty_zone(zones_[own], true, slot);
  for (uint32_t other = 1; other < zones; ++other) empty_zone(zones_[(own + other) % zones], false, slot);
  inside_region = false;
}

void ThreadPool::empty_zone(Zone& zone, bool own, int slot) {
  uint64_t word = zone.word.load(std::memory_order_acquire);
  for (Claims claims = unpack(word); claims.open(); claims = unpack(word)) {
    // They are those of the region that the word is of, or the exchange fails: a region ends when its zones are empty.
    const Erased body = body_.load(std::memory_order_relaxed);
    void* const context = context_.load(std::memory_order_relaxed);
    const bool ordered = zone_count_.load(std::memory_order_relaxed) == 1;
    const uint32_t count = ordered ? 1 : std::max(1u, (claims.end - claims.next) / kPartsOfRest);
    uint32_t begin = claims.next;
    if (ordered || own) {
      claims.next += count;
    } else {
      begin = claims.end -= count;
    }
    if (!zone.word.compare_exchange_weak(word, pack(claims), std::memory_order_acq_rel, std::memory_order_acquire)) {
      continue;
    }
    try {
      body(context, begin, begin + count, slot);
    } catch (...) {
      const std::lock_guard lock(failure_mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
    const auto done = static_cast<int32_t>(count);
    if (unfinished_.fetch_sub(done, std::memory_order_acq_rel) == done && slot != 0) unfinished_.notify_one();
    word = zone.word.load(std::memory_order_acquire);
  }
}

void ThreadPool::helper_loop(int slot) {
  uint32_t seen = 0;
  while (!closing_.load(std::memory_order_relaxed)) {
    for (int spin = 0; spin < kHelperSpins && generation_.load(std::memory_order_acquire) == seen; ++spin) spin_pause();
    if (generation_.load(std::memory_order_acquire) == seen) {
      sleepers_.fetch_add(1);
      generation_.wait(seen);
      sleepers_.fetch_sub(1);
    }
    seen = generation_.load(std::memory_order_acquire);
    work_on_region(slot);
  }
}

}  // namespace millrace::cpu
