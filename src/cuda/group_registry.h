#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace millrace::cuda {

/// Finds the groups of ranks of this process by id. The ends of a group own it. Thread-safe.
template <class Group>
class GroupRegistry {
 public:
  /// Returns the group with this id. It is made of `args` if it has no end yet.
  template <class... Args>
  [[nodiscard]] std::shared_ptr<Group> find(const std::vector<std::byte>& id, const Args&... args) {
    const std::lock_guard lock(mutex_);
    std::erase_if(groups_, [](const auto& each) { return each.second.expired(); });
    auto group = groups_[id].lock();
    if (group == nullptr) groups_[id] = group = std::make_shared<Group>(args...);
    return group;
  }

 private:
  std::mutex mutex_;
  std::map<std::vector<std::byte>, std::weak_ptr<Group>> groups_;  // guarded by mutex_
};

}  // namespace millrace::cuda
