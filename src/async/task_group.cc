#include "async/task_group.h"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/system/system_error.hpp>
#include <vector>

#include "base/check.h"
#include "base/log.h"

namespace millrace::async {
namespace {

bool is_cancellation(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const boost::system::system_error& failure) {
    return failure.code() == asio::error::operation_aborted;
  } catch (...) {
    return false;
  }
}

}  // namespace

TaskGroup::TaskGroup(Runtime& runtime, ErrorHandler on_error)
    : runtime_(runtime), on_error_(std::move(on_error)), empty_(runtime) {}

TaskGroup::~TaskGroup() {
  CHECK(tasks_.empty(), "a task group ends with {} tasks, the first is '{}'", tasks_.size(), tasks_.front().name);
}

bool TaskGroup::spawn(std::string name, asio::awaitable<void> task) {
  if (closed_) return false;
  tasks_.emplace_back();
  const auto place = std::prev(tasks_.end());
  place->name = std::move(name);
  asio::co_spawn(runtime_.executor(), std::move(task),
                 asio::bind_cancellation_slot(place->cancellation.slot(), [this, place](std::exception_ptr error) {
                   finish(place, std::move(error));
                 }));
  return true;
}

void TaskGroup::cancel() {
  // Emitting may finish other tasks only through the executor's queue, so the list is stable here.
  for (Task& task : tasks_) {
    task.cancelled = true;
    task.cancellation.emit(asio::cancellation_type::terminal);
  }
}

void TaskGroup::finish(std::list<Task>::iterator task, std::exception_ptr error) {
  const bool expected = !error || (task->cancelled && is_cancellation(error));
  const std::string name = std::move(task->name);
  tasks_.erase(task);
  if (!expected) {
    if (on_error_) {
      on_error_(name, error);
    } else {
      log::error("task '{}' failed: {}", name, describe(error));
    }
  }
  if (tasks_.empty()) empty_.notify_all();
}

asio::awaitable<void> TaskGroup::join() {
  while (!tasks_.empty()) co_await empty_.wait();
}

asio::awaitable<bool> TaskGroup::join_until(TimePoint deadline) {
  while (!tasks_.empty()) {
    const bool notified = co_await empty_.wait_until(deadline);
    if (!notified && !tasks_.empty()) co_return false;
  }
  co_return true;
}

std::string describe(const std::exception_ptr& error) {
  if (!error) return "no error";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& failure) {
    return failure.what();
  } catch (...) {
    return "unknown exception";
  }
}

}  // namespace millrace::async
