#include "app/launcher_env.h"

#include <catch2/catch.hpp>
#include <map>

using namespace millrace;

namespace {

std::optional<app::LauncherInfo> find(const std::map<std::string, std::string>& variables) {
  return app::find_launcher([&variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

}  // namespace

TEST_CASE("torchrun names rank and head and a port that may be taken") {
  std::map<std::string, std::string> variables = {
      {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "host-a"}, {"MASTER_PORT", "29500"}};
  auto place = find(variables);
  REQUIRE(place->launcher == "torchrun");
  REQUIRE(place->node_rank == 1);
  REQUIRE(place->node_count == 4);
  REQUIRE(place->head_host == "host-a");
  REQUIRE(place->head_port == 29500);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  REQUIRE(find(variables)->head_port == 29500);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  REQUIRE_FALSE(find(variables)->head_port.has_value());
  variables["MASTER_PORT"] = "70000";
  variables.erase("TORCHELASTIC_USE_AGENT_STORE");
  REQUIRE_FALSE(find(variables)->head_port.has_value());
}

TEST_CASE("only Slurm and LeaderWorkerSet name rank and head") {
  const auto slurm = find({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.7"}});
  REQUIRE(slurm->launcher == "Slurm");
  REQUIRE(slurm->node_rank == 0);
  REQUIRE(slurm->node_count == 2);
  REQUIRE(slurm->head_host == "10.0.0.7");
  REQUIRE_FALSE(slurm->head_port.has_value());
  const auto kubernetes =
      find({{"LWS_WORKER_INDEX", "2"}, {"LWS_GROUP_SIZE", "3"}, {"LWS_LEADER_ADDRESS", "millrace-0.millrace.default"}});
  REQUIRE(kubernetes->launcher == "LeaderWorkerSet");
  REQUIRE(kubernetes->node_rank == 2);
  REQUIRE(kubernetes->head_host == "millrace-0.millrace.default");
  const auto mpi = find({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  REQUIRE(mpi->launcher == "Open MPI");
  REQUIRE(mpi->node_rank == 1);
  REQUIRE_FALSE(mpi->head_host.has_value());
}

TEST_CASE("no launcher or one process or a senseless rank gives no rank") {
  REQUIRE_FALSE(find({}).has_value());
  REQUIRE_FALSE(find({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).has_value());
  REQUIRE_FALSE(find({{"RANK", "2"}, {"WORLD_SIZE", "2"}}).has_value());
  REQUIRE_FALSE(find({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}).has_value());
  REQUIRE_FALSE(find({{"RANK", "one"}, {"WORLD_SIZE", "2"}}).has_value());
  REQUIRE_FALSE(find({{"RANK", "1"}}).has_value());
}

TEST_CASE("an outer batch allocation does not hide the inner launcher") {
  const std::string tasks = GENERATE("1", "4");
  const auto place = find(
      {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", tasks}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  REQUIRE(place->launcher == "Open MPI");
  REQUIRE(place->node_rank == 1);
  REQUIRE(place->node_count == 2);
}
