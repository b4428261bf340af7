#pragma once

#include <cstdint>
#include <filesystem>
#include <utility>
#include <vector>

namespace millrace {

/// What this process may use of the machine it runs on: of a container or a systemd unit with limits, what these leave.
/// Reads /proc and the control groups (v2 and v1) at each call; what cannot be read limits nothing. Thread-safe.
class Machine {
 public:
  /// Other folders are for tests.
  explicit Machine(std::filesystem::path proc = "/proc", std::filesystem::path groups = "/sys/fs/cgroup")
      : proc_(std::move(proc)), groups_(std::move(groups)) {}

  /// Processors that the scheduler may use for the process, at most as many as its quota of CPU time pays for; >= 1.
  [[nodiscard]] uint32_t processors() const;
  /// The numbers of those that the scheduler may use for the calling thread, ascending, whatever its quota; not empty.
  [[nodiscard]] static std::vector<int> allowed_processors();
  /// Bytes that may be taken without swapping (MemAvailable), at most what the groups' memory limits leave. File pages
  /// do not count as taken.
  [[nodiscard]] uint64_t available_memory() const;

 private:
  std::filesystem::path proc_;
  std::filesystem::path groups_;
};

}  // namespace millrace
