#include "sim/processors.h"

#include <algorithm>
#include <cmath>

namespace millrace::sim {

/// A job among those that compute, also when its coroutine is destroyed before the work is done.
class Processors::Registration {
 public:
  Registration(Processors& home, Job& job) : home_(home), job_(job) { home_.jobs_.push_back(&job); }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration() { std::erase(home_.jobs_, &job_); }

 private:
  Processors& home_;
  Job& job_;
};

double Processors::rate() const {
  uint64_t wanted = 0;
  for (const Job* job : jobs_) wanted += job->threads;
  return wanted <= count_ ? 1 : static_cast<double>(count_) / static_cast<double>(wanted);
}

void Processors::settle(async::TimePoint now) {
  const double done_ns = static_cast<double>((now - settled_).count()) * rate();
  for (Job* job : jobs_) job->left_ns -= done_ns;
  settled_ = now;
}

void Processors::wake_others(const Job& changed) {
  for (Job* job : jobs_) {
    if (job != &changed) job->rate_changed.notify_all();
  }
}

asio::awaitable<void> Processors::compute(async::Runtime& runtime, async::Duration work, uint32_t threads) {
  settle(runtime.now());
  Job job{async::WaitList(runtime), static_cast<double>(work.count()), threads};
  {
    const double rate_without = rate();
    const Registration registration(*this, job);
    if (rate() != rate_without) wake_others(job);
    while (job.left_ns > 0.5) {
      const async::Duration wait(static_cast<int64_t>(std::ceil(job.left_ns / rate())));
      (void)co_await job.rate_changed.wait_until(runtime.now() + wait);
      settle(runtime.now());
    }
  }
  wake_others(job);
}

}  // namespace millrace::sim
