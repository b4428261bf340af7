#include "sim/cluster.h"

#include <catch2/catch.hpp>

#include "sim/experiment.h"
#include "support/paths.h"

using namespace millrace;
using namespace millrace::sim;

namespace {

Cluster h20() {
  auto cluster = Cluster::load(test::source_dir() / "bench/clusters/h20-qwen3-235b.json");
  REQUIRE(cluster.has_value());
  return *cluster;
}

double time_of(const Cluster& cluster, const Setting& setting, const WorkloadOptions& workload) {
  const auto result = run_experiment(cluster, setting, make_workload(workload), 1);
  REQUIRE(result.has_value());
  for (const RequestResult& request : result->requests) REQUIRE(request.ok);
  return result->makespan_s;
}

}  // namespace

TEST_CASE("a description is read whole, and what is wrong with it is named") {
  REQUIRE(h20().layers == 94);
  const auto message = [](const std::string& json) { return Cluster::parse(json).error().message; };
  REQUIRE(message("[1]") == "not a JSON object");
  REQUIRE(message(R"({"layer":{"per_tokens_us":1}})") == "layer.per_tokens_us: unknown");
  REQUIRE(message(R"({"jitter":-1})") == "jitter: wanted a number that is not negative");
  REQUIRE_THAT(message(R"({"layers":4,"page_count":2,"context_length":1000})"), Catch::Contains("1000"));
}

TEST_CASE("balanced chunks are faster than fixed and published ones on the described cluster") {
  const Cluster cluster = h20();
  WorkloadOptions workload;
  workload.requests = 16;
  const double fixed = time_of(cluster, {8, 0, sched::Chunking::kFixed, 6144}, workload);
  const double published = time_of(cluster, {8, 0, sched::Chunking::kPublished, 18432}, workload);
  const double balanced = time_of(cluster, {8, 2, sched::Chunking::kBalanced, 24576}, workload);
  REQUIRE(published < fixed);
  REQUIRE(balanced < 0.9 * published);
}

TEST_CASE("an experiment is a function of its seed") {
  const Cluster cluster = h20();
  WorkloadOptions workload;
  workload.requests = 20;
  workload.rate_per_s = 2;
  workload.input_length = 1000;
  workload.output_length = 20;
  workload.spread = 0.5;
  const Setting setting{4, 1, sched::Chunking::kBalanced, 4096};
  REQUIRE(time_of(cluster, setting, workload) == time_of(cluster, setting, workload));
}

TEST_CASE("a million tokens of context run through") {
  WorkloadOptions workload;
  workload.requests = 1;
  workload.input_length = 1 << 20;
  REQUIRE(time_of(h20(), {8, 2, sched::Chunking::kBalanced, 24576}, workload) < 420);
}
