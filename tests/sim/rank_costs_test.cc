// Tensor-parallel ranks in described clusters, and what was published about them.
#include <catch2/catch.hpp>

#include "sim/cluster.h"
#include "sim/experiment.h"
#include "support/mentions.h"
#include "support/paths.h"

using namespace millrace;
using namespace millrace::sim;
using test::Mentions;

namespace {

constexpr const char* kRanks = R"("ranks":{"size":2,"node_ranks":4,"bytes_per_token":1000,"gb_per_s":1,"latency_us":3,
                                           "node_gb_per_s":0.5,"node_latency_us":10})";

std::string description(const std::string& ranks) {
  return R"({"layers":4,"layer":{"fixed_us":7,"per_token_us":16,"per_pair_us":8,"per_decode_us":4,"per_context_us":2},
             "stage":{"fixed_us":100},"output_head":{"per_decode_us":64},"activation_bytes_per_token":4096,
             "page_size":16,"page_count":1000,"max_running":4,"context_length":16000,)" +
         ranks + "}";
}

Cluster small() {
  return Cluster::parse(description(kRanks)).value();
}

std::string parse_failure(const std::string& ranks) {
  const auto cluster = Cluster::parse(description(ranks));
  REQUIRE(cluster.has_error());
  REQUIRE(cluster.error().code == ErrorCode::kData);
  return cluster.error().message;
}

}  // namespace

TEST_CASE("ranks share all costs of a layer but the fixed ones") {
  const auto alone = small().divide(1, 1).value();
  REQUIRE(alone[0].coefficients.fixed_us == Approx(4 * 7 + 100));
  REQUIRE(alone[0].coefficients.per_token_us == Approx(4 * 16));
  const auto two = small().divide(2).value();  // the described size
  REQUIRE(two.size() == 2);
  // Two all-reduces per layer of two steps each; half the bytes go out and half come back.
  REQUIRE(two[0].coefficients.fixed_us == Approx(2 * (7 + 2 * 2 * 3) + 100));
  REQUIRE(two[0].coefficients.per_token_us == Approx(2 * (16.0 / 2 + 2 * 2 * 0.5 * 1000 / 1e9 * 1e6)));
  REQUIRE(two[0].coefficients.per_pair_us == Approx(2 * 8.0 / 2));
  REQUIRE(two[0].coefficients.per_context_us == Approx(2 * 2.0 / 2));
  REQUIRE(two[1].coefficients.per_decode_us == Approx(2 * 4.0 / 2 + 64.0 / 2));
  REQUIRE(two[0].output_row_bytes == 4096 / 2);
  REQUIRE(two[1].input_row_bytes == 4096 / 2);
}

TEST_CASE("ranks on several nodes reduce within and between nodes") {
  const auto eight = small().divide(1, 8).value();
  const double within = 2 * 3.0 / 4 * 1000 / 1e9 * 1e6;
  const double between = 2 * 1.0 / 2 * 1000 / 0.5e9 * 1e6;
  REQUIRE(eight[0].coefficients.per_token_us == Approx(4 * (16.0 / 8 + 2 * (within + between))));
  REQUIRE(eight[0].coefficients.fixed_us == Approx(4 * (7 + 2 * (4 * 3 + 2 * 10)) + 100));
}

TEST_CASE("faults in a description of ranks are named") {
  REQUIRE_THAT(parse_failure(R"("ranks":3)"), Mentions("ranks", "object"));
  REQUIRE_THAT(parse_failure(R"("ranks":{"size":3})"), Mentions("ranks.size", "3", "power of two"));
  REQUIRE_THAT(parse_failure(R"("ranks":{"node_ranks":0})"), Mentions("ranks.node_ranks", "0"));
  REQUIRE_THAT(parse_failure(R"("ranks":{"gbps":3})"), Mentions("ranks.gbps"));
  REQUIRE_THAT(parse_failure(R"("ranks":{"latency_us":-1})"), Mentions("ranks.latency_us", "0 to"));
  const auto measured = Cluster::parse(R"({"stages":[{"fixed_us":1}],"ranks":{"size":2},"page_count":2,"page_size":16,
                                           "context_length":9})");
  REQUIRE_THAT(measured.error().message, Mentions("ranks", "layers"));
  const auto odd = small().divide(1, 6);
  REQUIRE(odd.error().code == ErrorCode::kInvalidArgument);
  REQUIRE_THAT(odd.error().message, Mentions("--tp-size 6", "power of two"));
  const Cluster without = Cluster::parse(description(R"("jitter":0)")).value();
  REQUIRE(without.divide(1, 1).has_value());
  REQUIRE_THAT(without.divide(1, 2).error().message, Mentions("--tp-size 2", "ranks"));
}

TEST_CASE("published figures of DeepSeek-V3.1 on H20 come out") {
  const Cluster cluster = Cluster::load(test::source_dir() / "bench/clusters/h20-deepseek-v3.1.json").value();
  const auto run = [&](uint32_t requests, const ExperimentConfig& setting) {
    WorkloadOptions options;
    options.requests = requests;
    options.input_length = 131072;
    const auto result = run_experiment(cluster, setting, make_workload(options), 1);
    REQUIRE(result.has_value());
    REQUIRE(result->failed_count() == 0);
    return *result;
  };
  ExperimentConfig tp8{1, 0, sched::Chunking::kFixed, 12288};
  ExperimentConfig tp32 = tp8;
  tp32.tp_size = 32;
  const ExperimentConfig dynamic{4, 0, sched::Chunking::kPublished, 12288, 0.65};
  const ExperimentConfig fixed{4, 0, sched::Chunking::kFixed, 4096};
  const double tp8_s = run(16, tp8).makespan_s;
  constexpr double kBound = 0.02;  // of every published figure
  CHECK(run(1, tp8).ttft_s(0.5) == Approx(48.5).epsilon(kBound));
  CHECK(run(1, dynamic).ttft_s(0.5) == Approx(15.5).epsilon(kBound));
  CHECK(tp8_s / run(16, dynamic).makespan_s == Approx(3.31).epsilon(kBound));
  CHECK(tp8_s / run(16, fixed).makespan_s == Approx(3.20).epsilon(kBound));
  CHECK(tp8_s / run(16, tp32).makespan_s == Approx(2.54).epsilon(kBound));
  CHECK(tp8_s / run(16, dynamic).makespan_s / 4 == Approx(0.828).epsilon(kBound));
}
