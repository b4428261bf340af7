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
  const char* host;        // null: the launcher does not set it
  const char* port;        // null: the launcher does not set it
  const char* port_taken;  // "True": the launcher itself listens on the port; null: it never does
};

constexpr std::array kLaunchers{
    Launcher{"torchrun", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"},
    // Before Slurm: mpirun within an allocation hands its processes the variables of the batch script or of its
    // daemons.
    Launcher{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", nullptr, nullptr, nullptr},
    Launcher{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LAUNCH_NODE_IPADDR", nullptr, nullptr},
    Launcher{"LeaderWorkerSet", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "LWS_LEADER_ADDRESS", nullptr, nullptr},
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
    LauncherInfo info{launcher.name, *rank, *count, std::nullopt, std::nullopt};
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
