#include "server/observe/process_metrics.h"

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

#include "base/log_drops.h"
#include "server/observe/metric_writer.h"

namespace millrace::server {
namespace {

std::string read_all(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Returns the numbers of /proc/self/stat from its fourth field on (proc(5)). The name before them may hold anything.
std::vector<double> read_stat() {
  constexpr size_t kStateLength = 4;  // ") S "
  const std::string text = read_all("/proc/self/stat");
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream rest(text.substr(std::min(text.size(), name_end + kStateLength)));
  return {std::istream_iterator<double>(rest), {}};
}

/// Returns when the system was booted, in seconds since the Unix epoch; 0 if that is not known.
double boot_time() {
  constexpr std::string_view kName = "\nbtime ";
  const std::string text = read_all("/proc/stat");
  const size_t at = text.find(kName);
  return at == std::string::npos ? 0 : std::strtod(text.c_str() + at + kName.size(), nullptr);
}

}  // namespace

void append_process_metrics(std::string& out) {
  constexpr size_t kStartTime = 18;  // fields 22 and 24
  constexpr size_t kResidentPages = 20;
  MetricWriter(out).single("log_lines_dropped_total", "counter", "Log lines dropped because stderr was not read.",
                           log::dropped_lines());
  MetricWriter writer(out, "process_");
  const std::vector<double> stat = read_stat();
  if (stat.size() > kResidentPages) {
    writer.single("resident_memory_bytes", "gauge", "Resident memory.",
                  stat[kResidentPages] * static_cast<double>(sysconf(_SC_PAGESIZE)));
  }
  rusage used{};
  if (getrusage(RUSAGE_SELF, &used) == 0) {
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    writer.single("cpu_seconds_total", "counter", "CPU time of user and system.",
                  seconds(used.ru_utime) + seconds(used.ru_stime));
  }
  std::error_code failure;
  const std::filesystem::directory_iterator descriptors("/proc/self/fd", failure);
  if (!failure) {
    // One of them is the iterator's own.
    writer.single("open_fds", "gauge", "Open descriptors.",
                  static_cast<double>(std::distance(begin(descriptors), end(descriptors)) - 1));
  }
  const double boot = boot_time();
  if (boot > 0 && stat.size() > kStartTime) {
    writer.single("start_time_seconds", "gauge", "Start of the process, since the Unix epoch.",
                  boot + stat[kStartTime] / static_cast<double>(sysconf(_SC_CLK_TCK)));
  }
}

}  // namespace millrace::server
