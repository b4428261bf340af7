#include "server/observe/process_metrics.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <vector>

namespace millrace::server {
namespace {

std::string read_all(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The numbers of /proc/self/stat from its fourth field on (proc(5)): those behind the name, which may hold anything,
/// and the state.
std::vector<double> read_stat() {
  constexpr size_t kBehindName = 4;  // ") S "
  const std::string text = read_all("/proc/self/stat");
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream rest(text.substr(std::min(text.size(), name_end + kBehindName)));
  return {std::istream_iterator<double>(rest), {}};
}

/// Of the system, in seconds since the Unix epoch; 0 if it is not known.
double boot_time() {
  constexpr std::string_view kName = "\nbtime ";
  const std::string text = read_all("/proc/stat");
  const size_t place = text.find(kName);
  return place == std::string::npos ? 0 : std::strtod(text.c_str() + place + kName.size(), nullptr);
}

void append(std::string& out, std::string_view type, std::string_view name, std::string_view help, double value) {
  fmt::format_to(std::back_inserter(out), "# HELP {0} {1}\n# TYPE {0} {2}\n{0} {3}\n", name, help, type, value);
}

}  // namespace

void append_process_metrics(std::string& out) {
  constexpr size_t kStartTime = 18;  // fields 22 and 24
  constexpr size_t kResidentPages = 20;
  const std::vector<double> stat = read_stat();
  if (stat.size() > kResidentPages) {
    append(out, "gauge", "process_resident_memory_bytes", "Resident memory.",
           stat[kResidentPages] * static_cast<double>(sysconf(_SC_PAGESIZE)));
  }
  rusage used{};
  if (getrusage(RUSAGE_SELF, &used) == 0) {
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    append(out, "counter", "process_cpu_seconds_total", "CPU time of user and system.",
           seconds(used.ru_utime) + seconds(used.ru_stime));
  }
  std::error_code failure;
  const std::filesystem::directory_iterator descriptors("/proc/self/fd", failure);
  if (!failure) {
    // One of them is that of the folder itself.
    append(out, "gauge", "process_open_fds", "Open descriptors.",
           static_cast<double>(std::distance(begin(descriptors), end(descriptors)) - 1));
  }
  const double boot = boot_time();
  if (boot > 0 && stat.size() > kStartTime) {
    append(out, "gauge", "process_start_time_seconds", "Start of the process, since the Unix epoch.",
           boot + stat[kStartTime] / static_cast<double>(sysconf(_SC_CLK_TCK)));
  }
}

}  // namespace millrace::server
