#include "base/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

/// Returns the first word of a file, if that is a number. No limit is "max" (v2), -1 or a number beyond any memory
/// (v1).
std::optional<uint64_t> read_number(const fs::path& file) {
  std::ifstream in(file);
  int64_t number = 0;
  if (!(in >> number) || number < 0) return std::nullopt;
  return static_cast<uint64_t>(number);
}

/// Returns the sum of the named lines of a file of "name number" lines.
uint64_t read_sum(const fs::path& file, std::string_view first, std::string_view second) {
  std::ifstream in(file);
  uint64_t sum = 0;
  std::string name;
  for (uint64_t number = 0; in >> name >> number;) {
    if (name == first || name == second) sum += number;
  }
  return sum;
}

/// Returns the folders of this process's group, from its own up to the root: for a controller of v1, or of v2's one
/// hierarchy (""). A path that another namespace sees differently leads to the root alone.
std::vector<fs::path> group_folders(const fs::path& proc, const fs::path& groups, std::string_view controller) {
  std::ifstream in(proc / "self" / "cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::istringstream names(line.substr(first + 1, second - first - 1));
    bool found = controller.empty() && second == first + 1;
    for (std::string name; std::getline(names, name, ',');) found = found || name == controller;
    if (!found) continue;
    const fs::path root = controller.empty() ? groups : groups / controller;
    std::vector<fs::path> folders;
    fs::path path = fs::path(line.substr(second + 1)).relative_path().lexically_normal();
    for (; !path.empty() && path != "."; path = path.parent_path()) folders.push_back(root / path);
    folders.push_back(root);
    return folders;
  }
  return {};
}

uint64_t room_below(const fs::path& limit_file, const fs::path& usage_file, uint64_t file_pages) {
  const auto limit = read_number(limit_file);
  if (!limit) return kUnlimited;
  const uint64_t usage = read_number(usage_file).value_or(0);
  const uint64_t taken = usage - std::min(usage, file_pages);
  return *limit - std::min(*limit, taken);
}

uint64_t quota_processors(uint64_t quota, uint64_t period) {
  return period == 0 ? kUnlimited : std::max<uint64_t>(1, (quota + period - 1) / period);
}

uint64_t meminfo_available(const fs::path& proc) {
  std::ifstream in(proc / "meminfo");
  for (std::string name, unit; in >> name;) {
    uint64_t kib = 0;
    in >> kib;
    std::getline(in, unit);
    if (name == "MemAvailable:") return kib * 1024;
  }
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

/// Parses a list of processors such as "0-3,8,10-11".
std::vector<int> parse_processors(const std::string& text) {
  std::vector<int> numbers;
  std::istringstream ranges(text);
  for (std::string range; std::getline(ranges, range, ',');) {
    int first = 0;
    int last = 0;
    const int found = std::sscanf(range.c_str(), "%d-%d", &first, &last);
    if (found < 1) continue;
    for (int number = first; number <= (found == 2 ? last : first); ++number) numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

std::vector<std::vector<int>> Machine::numa_nodes() const {
  const std::vector<int> allowed = allowed_processors();
  std::map<int, std::vector<int>> nodes;  // by their numbers
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(nodes_, ignored)) {
    int number = 0;
    if (std::sscanf(entry.path().filename().c_str(), "node%d", &number) != 1) continue;
    std::string text;
    std::ifstream(entry.path() / "cpulist") >> text;
    for (const int processor : parse_processors(text)) {
      if (std::ranges::binary_search(allowed, processor)) nodes[number].push_back(processor);
    }
  }
  std::vector<std::vector<int>> found;
  for (auto& [number, processors] : nodes) found.push_back(std::move(processors));
  if (found.empty()) found.push_back(allowed);
  return found;
}

std::vector<int> Machine::allowed_processors() {
  std::vector<int> numbers;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int number = 0; number < CPU_SETSIZE; ++number) {
      if (CPU_ISSET(static_cast<size_t>(number), &set)) numbers.push_back(number);
    }
  }
  if (numbers.empty()) numbers.push_back(0);
  return numbers;
}

uint32_t Machine::processors() const {
  uint64_t count = std::max(1u, std::thread::hardware_concurrency());
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) count = static_cast<uint64_t>(std::max(1, CPU_COUNT(&set)));
  for (const fs::path& folder : group_folders(proc_, groups_, "")) {
    std::ifstream in(folder / "cpu.max");
    uint64_t quota = 0;
    uint64_t period = 0;
    if (in >> quota >> period) count = std::min(count, quota_processors(quota, period));
  }
  for (const fs::path& folder : group_folders(proc_, groups_, "cpu")) {
    const auto quota = read_number(folder / "cpu.cfs_quota_us");
    const auto period = read_number(folder / "cpu.cfs_period_us");
    if (quota && period) count = std::min(count, quota_processors(*quota, *period));
  }
  return static_cast<uint32_t>(count);
}

uint64_t Machine::available_memory() const {
  uint64_t bytes = meminfo_available(proc_);
  for (const fs::path& folder : group_folders(proc_, groups_, "")) {
    const uint64_t file_pages = read_sum(folder / "memory.stat", "inactive_file", "active_file");
    bytes = std::min(bytes, room_below(folder / "memory.max", folder / "memory.current", file_pages));
  }
  for (const fs::path& folder : group_folders(proc_, groups_, "memory")) {
    const uint64_t file_pages = read_sum(folder / "memory.stat", "total_inactive_file", "total_active_file");
    bytes = std::min(bytes, room_below(folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes", file_pages));
  }
  return bytes;
}

}  // namespace millrace
