#pragma once

#include <cstdint>
#include <filesystem>
#include <utility>
#include <vector>

namespace millrace {

/// The processors and memory that this process may use, within the limits of its container or systemd unit. Reads /proc
/// and the control groups (v2 and v1) at each call. Unreadable limits count as absent. Thread-safe.
class Machine {
 public:
  /// Takes other folders in tests.
  explicit Machine(std::filesystem::path proc = "/proc", std::filesystem::path groups = "/sys/fs/cgroup",
                   std::filesystem::path nodes = "/sys/devices/system/node")
      : proc_(std::move(proc)), groups_(std::move(groups)), nodes_(std::move(nodes)) {}

  /// Returns how many processors the process may use, limited by its quota of CPU time. At least 1.
  [[nodiscard]] uint32_t processors() const;
  /// Returns the numbers of the processors that the calling thread may run on, ascending and never empty. Ignores
  /// quotas.
  [[nodiscard]] static std::vector<int> allowed_processors();
  /// Returns the processors of each NUMA node on which the calling thread may run, in the order of the nodes. Nodes
  /// without such processors are left out. Where the system names no nodes there is one.
  [[nodiscard]] std::vector<std::vector<int>> numa_nodes() const;
  /// Returns the bytes that can be allocated without swapping (MemAvailable), within the memory limits of the groups.
  /// File pages count as free.
  [[nodiscard]] uint64_t available_memory() const;

 private:
  std::filesystem::path proc_;
  std::filesystem::path groups_;
  std::filesystem::path nodes_;
};

}  // namespace millrace
