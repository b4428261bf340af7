#include "sim/processors.h"

#include <algorithm>
#include <cmath>

#include "sim/max_duration.h"

namespace millrace::sim {

/// Registers a job for its lifetime, so that it also leaves when its coroutine is destroyed before the work is done.
class Processors::Registration {
 public:
  Registration(Processors& home, Job& job) : home_(home), job_(job) {
    home_.jobs_.push_back(&job);
    home_.prompt_shares_ += job.prompt_share;
  }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration() {
    std::erase(home_.jobs_, &job_);
    home_.prompt_shares_ = home_.jobs_.empty() ? 0 : home_.prompt_shares_ - job_.prompt_share;
  }

 private:
  Processors& home_;
  Job& job_;
};

double Processors::rate(const Job& job) const {
  const size_t running = jobs_.size();
  const double part = machine_.overlap_share(running);
  const double neighbours = part * static_cast<double>(running - 1);
  const double prompt_shares = part * (prompt_shares_ - job.prompt_share);
  return machine_.processor_share(running) / machine_.contention.slowdown(job.prompt_share, neighbours, prompt_shares);
}

void Processors::settle(async::TimePoint now) {
  const double passed_ns = static_cast<double>((now - settled_).count());
  for (Job* job : jobs_) job->left_ns -= passed_ns * rate(*job);
  settled_ = now;
}

void Processors::wake_others(const Job& changed) {
  for (Job* job : jobs_) {
    if (job != &changed) job->rate_changed.notify_all();
  }
}

asio::awaitable<void> Processors::compute(async::Runtime& runtime, async::Duration work, double prompt_share) {
  settle(runtime.now());
  Job job{async::WaitList(runtime), static_cast<double>(work.count()), prompt_share};
  {
    const Registration registration(*this, job);
    wake_others(job);
    const async::TimePoint latest = runtime.now() + kMaxDuration;
    while (job.left_ns > 0.5 && runtime.now() < latest) {
      const async::Duration wait = clamped_duration(std::ceil(job.left_ns / rate(job)));
      (void)co_await job.rate_changed.wait_until(std::min(runtime.now() + wait, latest));
      settle(runtime.now());
    }
  }
  wake_others(job);
}

}  // namespace millrace::sim
