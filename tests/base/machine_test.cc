#include "base/machine.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <string>

using namespace millrace;
namespace fs = std::filesystem;

namespace {

/// Folders like /proc and /sys/fs/cgroup, gone at the end.
class FakeMachine {
 public:
  explicit FakeMachine(const std::map<std::string, std::string>& files) {
    write("proc/meminfo", "MemTotal: 4000 kB\nMemAvailable:    3000 kB\n");
    for (const auto& [name, text] : files) write(name, text);
  }
  ~FakeMachine() { fs::remove_all(root_); }
  FakeMachine(const FakeMachine&) = delete;
  FakeMachine& operator=(const FakeMachine&) = delete;
  [[nodiscard]] Machine machine() const { return Machine(root_ / "proc", root_ / "group", root_ / "node"); }

 private:
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }

  std::string pattern_ = (fs::temp_directory_path() / "millrace-machine-XXXXXX").string();
  fs::path root_ = mkdtemp(pattern_.data());
};

constexpr uint64_t kKib = 1024;

}  // namespace

TEST_CASE("Without groups the machine is what there is") {
  const FakeMachine plain({});
  CHECK(plain.machine().available_memory() == 3000 * kKib);
  CHECK(plain.machine().processors() == Machine().processors());
  CHECK(Machine().processors() >= 1);
  CHECK(Machine().available_memory() > 0);
}

TEST_CASE("NUMA nodes have the processors that the process may use") {
  const std::vector<int> allowed = Machine::allowed_processors();
  CHECK(FakeMachine({}).machine().numa_nodes() == std::vector<std::vector<int>>{allowed});
  const int first = allowed.front();
  const int last = allowed.back();
  const FakeMachine split({{"node/node1/cpulist", std::to_string(first) + "\n"},
                           {"node/node0/cpulist", std::to_string(first + 1) + "-" + std::to_string(last) + ",5000\n"},
                           {"node/node2/cpulist", "\n"},
                           {"node/possible", "0-2\n"}});
  std::vector<std::vector<int>> wanted;
  if (allowed.size() > 1) wanted.emplace_back(allowed.begin() + 1, allowed.end());
  wanted.push_back({first});
  CHECK(split.machine().numa_nodes() == wanted);
}

TEST_CASE("limits of a control group and of its parents count") {
  const std::map<std::string, std::string> files = {
      {"proc/self/cgroup", "0::/outer/inner\n"},
      {"group/outer/memory.max", "1048576\n"},
      {"group/outer/memory.current", "524288\n"},
      {"group/outer/memory.stat", "anon 1\ninactive_file 102400\nfile 5\nactive_file 102400\n"},
      {"group/outer/inner/memory.max", "max\n"},
      {"group/outer/inner/memory.current", "99999999\n"},
      {"group/outer/inner/cpu.max", "50000 100000\n"},
  };
  const FakeMachine nested(files);
  CHECK(nested.machine().available_memory() == 1048576 - (524288 - 204800));
  CHECK(nested.machine().processors() == 1);
  auto full = files;
  full["group/outer/memory.current"] = "2000000";
  CHECK(FakeMachine(full).machine().available_memory() == 0);
  auto wide = files;
  wide["group/outer/memory.max"] = "99999999999";
  wide["group/outer/inner/cpu.max"] = "6400000 100000\n";
  CHECK(FakeMachine(wide).machine().available_memory() == 3000 * kKib);
  CHECK(FakeMachine(wide).machine().processors() == std::min(64u, Machine().processors()));
}

TEST_CASE("A container sees its own group at the root") {
  const FakeMachine second({{"proc/self/cgroup", "0::/\n"},
                            {"group/memory.max", "1000000\n"},
                            {"group/memory.current", "400000\n"},
                            {"group/cpu.max", "max 100000\n"}});
  CHECK(second.machine().available_memory() == 600000);
  CHECK(second.machine().processors() == Machine().processors());
  const FakeMachine first({{"proc/self/cgroup", "7:cpu,cpuacct:/docker/a\n4:memory:/docker/a\n0::/\n"},
                           {"group/memory/memory.limit_in_bytes", "1000000\n"},
                           {"group/memory/memory.usage_in_bytes", "500000\n"},
                           {"group/memory/memory.stat", "total_inactive_file 100000\ntotal_active_file 0\n"},
                           {"group/cpu/cpu.cfs_quota_us", "100000\n"},
                           {"group/cpu/cpu.cfs_period_us", "100000\n"}});
  CHECK(first.machine().available_memory() == 600000);
  CHECK(first.machine().processors() == 1);
}
