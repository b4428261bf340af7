#pragma once

#include <sched.h>

#include <span>

namespace millrace {

/// Restricts the calling thread, and the threads that it starts, to some processors while it lives. Without processors,
/// or where the system refuses, it does nothing.
class ScopedAffinity {
 public:
  explicit ScopedAffinity(std::span<const int> processors);
  ~ScopedAffinity();
  ScopedAffinity(const ScopedAffinity&) = delete;
  ScopedAffinity& operator=(const ScopedAffinity&) = delete;

 private:
  cpu_set_t before_{};
  bool changed_ = false;
};

}  // namespace millrace
