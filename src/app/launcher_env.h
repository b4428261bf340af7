#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace millrace::app {

/// This process among the nodes, as a launcher's environment says.
struct LauncherInfo {
  std::string launcher;  ///< its name, for the log
  int32_t node_rank = 0;
  int32_t node_count = 1;
  std::optional<std::string> head_host;  ///< of the node of rank 0, if the launcher sets it
  std::optional<uint16_t> head_port;     ///< a port that is free there
};

/// Returns the value of an environment variable, or null when it is not set.
using Environment = std::function<const char*(const char* name)>;

/// Looks for torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), Open MPI (OMPI_COMM_WORLD_RANK,
/// OMPI_COMM_WORLD_SIZE), Slurm (SLURM_PROCID, SLURM_NTASKS, SLURM_LAUNCH_NODE_IPADDR) and Kubernetes LeaderWorkerSet
/// (LWS_WORKER_INDEX, LWS_GROUP_SIZE, LWS_LEADER_ADDRESS), in this order. Nothing when none of them is there, or when
/// it started one process only.
[[nodiscard]] std::optional<LauncherInfo> find_launcher(const Environment& environment);

}  // namespace millrace::app
