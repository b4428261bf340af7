#pragma once

#include <string>
#include <vector>

#include "app/flags.h"

namespace CLI {
class App;
}

/// The flags of `millrace serve`, a file per topic. Each function declares a group of flags that write into `flags`,
/// which outlives the parser.
namespace millrace::app {

/// Values that are complete only once all flags are known.
struct UnresolvedFlags {
  std::vector<std::string> served_model_names;
  std::string dist_init_addr;
  std::string dp_address;
  int32_t dp_rank = -1;  ///< negative: not said
};

/// Declare how a hub is asked for a model, and where downloads are kept.
void add_hub_flags(CLI::App& command, ModelRef& model);
void add_download_dir_flag(CLI::App& command, ModelRef& model);

void add_model_flags(CLI::App& serve, ServeFlags& flags, UnresolvedFlags& unresolved);
void add_device_flags(CLI::App& serve, ServeFlags& flags);
void add_ring_flags(CLI::App& serve, ServeFlags& flags, UnresolvedFlags& unresolved);
void add_scheduler_flags(CLI::App& serve, ServeFlags& flags);
void add_cache_flags(CLI::App& serve, ServeFlags& flags);
void add_server_flags(CLI::App& serve, ServeFlags& flags);
void add_limit_flags(CLI::App& serve, ServeFlags& flags);
void add_operation_flags(CLI::App& serve, ServeFlags& flags);

/// Completes the cluster options by --dist-init-addr and the launcher's environment. Returns what is wrong with them,
/// or nothing.
[[nodiscard]] std::string resolve_cluster(const CLI::App& serve, const std::string& dist_init_addr,
                                          ClusterOptions& cluster_options);
/// Completes where the rings of a front run. Returns what is wrong with it, or nothing.
[[nodiscard]] std::string resolve_rings(const UnresolvedFlags& unresolved, ServeFlags& flags);
/// Returns which flags contradict each other, or nothing.
[[nodiscard]] std::string ring_contradiction(const ServeFlags& flags);
[[nodiscard]] std::string scheduler_contradiction(const ServeFlags& flags);
[[nodiscard]] std::string cache_contradiction(const ServeFlags& flags);

}  // namespace millrace::app
