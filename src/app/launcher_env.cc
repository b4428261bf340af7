#include "app/launcher_env.h"

#include <array>
#include <charconv>
#include <string_view>

namespace millrace::app {
namespace {

struct Launcher {
  const char* name;
  const char* rank;
  const char* count;
  const char* host = nullptr;        // null: the launcher sets none
  const char* port = nullptr;        // null: the launcher sets none
  const char* port_taken = nullptr;  // "True": the launcher itself listens on the port; null: it never does
};

constexpr std::array kLaunchers{
    Launcher{.name = "torchrun",
             .rank = "RANK",
             .count = "WORLD_SIZE",
             .host = "MASTER_ADDR",
             .port = "MASTER_PORT",
             .port_taken = "TORCHELASTIC_USE_AGENT_STORE"},
    // Open MPI precedes Slurm: mpirun within an allocation hands its processes the variables of the batch script or of
    // its daemons.
    Launcher{.name = "Open MPI", .rank = "OMPI_COMM_WORLD_RANK", .count = "OMPI_COMM_WORLD_SIZE"},
    Launcher{.name = "Slurm", .rank = "SLURM_PROCID", .count = "SLURM_NTASKS", .host = "SLURM_LAUNCH_NODE_IPADDR"},
    Launcher{
        .name = "LeaderWorkerSet", .rank = "LWS_WORKER_INDEX", .count = "LWS_GROUP_SIZE", .host = "LWS_LEADER_ADDRESS"},
};

std::optional<int32_t> number(const char* text) {
  if (text == nullptr) return std::nullopt;
  const std::string_view digits(text);
  int32_t value = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (read.ec != std::errc() || read.ptr != digits.data() + digits.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<LauncherInfo> find_launcher(const Environment& environment) {
  for (const Launcher& launcher : kLaunchers) {
    const auto rank = number(environment(launcher.rank));
    const auto count = number(environment(launcher.count));
    if (!rank || !count || *count < 2 || *rank < 0 || *rank >= *count) continue;
    LauncherInfo info{.launcher = launcher.name, .node_rank = *rank, .node_count = *count};
    if (launcher.host != nullptr) {
      if (const char* host = environment(launcher.host)) info.head_host = host;
    }
    const char* taken = launcher.port_taken == nullptr ? nullptr : environment(launcher.port_taken);
    if (launcher.port != nullptr && (taken == nullptr || taken != std::string_view("True"))) {
      const auto port = number(environment(launcher.port));
      if (port && *port > 0 && *port <= UINT16_MAX) info.head_port = static_cast<uint16_t>(*port);
    }
    return info;
  }
  return std::nullopt;
}

}  // namespace millrace::app
