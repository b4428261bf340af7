#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <unordered_map>

#include "server/openai/error.h"
#include "server/options.h"
#include "server/random_source.h"

namespace millrace::server {

/// The tasks of one kind of route that are in flight, by response id. A task lives in the coroutine that adds it, and
/// that removes it at its end. The server's executor only.
template <class Task>
class ActiveTasks {
 public:
  /// Both outlive the object.
  ActiveTasks(const ServerOptions& options, RandomSource& request_ids) : options_(options), request_ids_(request_ids) {}

  [[nodiscard]] size_t size() const { return tasks_.size(); }
  void add(const std::string& id, Task& task) { tasks_.emplace(id, &task); }
  void remove(const std::string& id) { tasks_.erase(id); }

  /// Returns 429 when no further task may begin.
  [[nodiscard]] std::optional<openai::ApiError> check_room() const {
    if (size() < options_.max_requests_in_flight) return std::nullopt;
    return openai::ApiError{429, fmt::format("{} requests are in flight already (--max-requests-in-flight)", size()),
                            ""};
  }

  /// Gives the response an id that no other task has; returns 409 where the client chose one that is taken.
  template <class Spec>
  [[nodiscard]] std::optional<openai::ApiError> make_id_unique(Spec& spec) const {
    if (!tasks_.contains(spec.info.id)) return std::nullopt;
    if (spec.has_own_id) {
      return openai::ApiError{409, fmt::format("request_id: '{}' is in flight already", spec.info.id), "request_id"};
    }
    spec.set_id(spec.info.id + '-' + request_ids_.hex_id());
    return std::nullopt;
  }

  /// Aborts the task whose response id is `id` after one of the prefixes. Returns the count of aborted sequences.
  size_t abort(std::initializer_list<const char*> prefixes, const std::string& id) {
    for (const char* prefix : prefixes) {
      const auto found = tasks_.find(prefix + id);
      if (found != tasks_.end()) return found->second->abort();
    }
    return 0;
  }

  size_t abort_all() {
    size_t count = 0;
    for (const auto& [id, task] : tasks_) count += task->abort();
    return count;
  }

  void wake_all() {
    for (const auto& [id, task] : tasks_) task->wake();
  }

 private:
  const ServerOptions& options_;
  RandomSource& request_ids_;
  std::unordered_map<std::string, Task*> tasks_;
};

}  // namespace millrace::server
