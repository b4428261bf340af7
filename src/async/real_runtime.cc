#include "async/real_runtime.h"

#include "base/log_label.h"
#include "base/thread_name.h"

namespace millrace::async {

TimePoint RealRuntime::now() const {
  return TimePoint(std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()));
}

TimerId RealRuntime::arm(TimePoint when, std::function<void()> callback) {
  const TimerId id{next_id_++};
  by_id_[id] = deadlines_.emplace(when, std::pair(id, std::move(callback)));
  if (!scheduled_ || when < *scheduled_) schedule();
  return id;
}

void RealRuntime::disarm(TimerId timer) {
  const auto found = by_id_.find(timer);
  if (found == by_id_.end()) return;
  deadlines_.erase(found->second);
  by_id_.erase(found);
  if (deadlines_.empty() && scheduled_) {
    scheduled_.reset();
    timer_.cancel();
  }
}

void RealRuntime::schedule() {
  scheduled_ = deadlines_.begin()->first;
  timer_.expires_at(std::chrono::steady_clock::time_point(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(scheduled_->time_since_epoch())));
  timer_.async_wait([this](boost::system::error_code failure) {
    if (!failure) fire();
  });
}

void RealRuntime::fire() {
  scheduled_.reset();
  const TimePoint present = now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= present) {
    auto entry = std::move(deadlines_.begin()->second);
    deadlines_.erase(deadlines_.begin());
    by_id_.erase(entry.first);
    entry.second();
  }
  if (!deadlines_.empty() && (!scheduled_ || deadlines_.begin()->first < *scheduled_)) schedule();
}

IoThread::IoThread(std::string name)
    : thread_([this, name = std::move(name), label = log::thread_label()] {
        name_thread(label.empty() ? name : label + ' ' + name);
        log::label_thread(label);
        context_.run();
      }) {}

void IoThread::join() {
  work_.reset();
  if (thread_.joinable()) thread_.join();
}

IoThread::~IoThread() {
  join();
}

}  // namespace millrace::async
