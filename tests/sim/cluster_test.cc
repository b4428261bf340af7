#include "sim/cluster.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "sim/experiment.h"
#include "sim/svg_plot.h"
#include "support/paths.h"

using namespace millrace;
using namespace millrace::sim;

namespace {

Cluster h20() {
  auto cluster = Cluster::load(test::source_dir() / "bench/clusters/h20-qwen3-235b.json");
  REQUIRE(cluster.has_value());
  return *cluster;
}

double time_of(const Cluster& cluster, const ExperimentConfig& setting, const WorkloadOptions& workload) {
  const auto result = run_experiment(cluster, setting, make_workload(workload), 1);
  REQUIRE(result.has_value());
  for (const RequestResult& request : result->requests) REQUIRE(request.ok);
  return result->makespan_s;
}

}  // namespace

TEST_CASE("a description is read whole and faults are named") {
  REQUIRE(h20().layers == 94);
  const auto message = [](const std::string& json) { return Cluster::parse(json).error().message; };
  REQUIRE(message("[1]") == "not a JSON object");
  REQUIRE(message(R"({"layer":{"per_tokens_us":1}})") == "layer.per_tokens_us: unknown");
  REQUIRE(message(R"({"jitter":-1})") == "jitter: wanted a number from 0 to 1000000000");
  REQUIRE_THAT(message(R"({"layers":4,"page_count":2,"context_length":1000})"), Catch::Contains("1000"));
  REQUIRE(message(R"({"layers":2.5})") == "layers: wanted a whole number from 0 to 1048576");
  REQUIRE(message(R"({"page_count":1e12})") == "page_count: wanted a whole number from 0 to 134217728");
  REQUIRE(message(R"({"page_size":4294967295})") == "page_size: wanted a whole number from 0 to 65536");
  REQUIRE(message(R"({"max_running":4294967295})") == "max_running: wanted a whole number from 0 to 65536");
  REQUIRE(message(R"({"layer":{"fixed_us":1e17}})") == "fixed_us: wanted a number from 0 to 1000000000");
  REQUIRE(message(R"({"contention":{"prompt_by_prompt":3e11}})") ==
          "contention.prompt_by_prompt: wanted a number from 0 to 1");
  REQUIRE(message(R"({"slowness":[1,0]})") == "slowness: wanted factors above 0");
  REQUIRE(message(R"({"layers":2,"page_count":2,"context_length":9})") ==
          "layer: costs nothing, and neither does stage");
  REQUIRE(message(R"({"stages":[{"fixed_us":1},{}],"page_count":2,"context_length":9})") == "stages[1]: costs nothing");
  REQUIRE_THAT(message(R"({"layers":2,"page_count":2,"context_length":9,"contention":{"prompt_by_prompt":0.1}})"),
               Catch::Contains("contention: wanted processors"));
}

namespace {

/// Two measured stages of 10 and 30 us per token, and nothing else.
Cluster measured(const std::string& more = "") {
  auto cluster = Cluster::parse(R"({"stages":[{"per_token_us":10},{"per_token_us":30}],"page_size":16,"page_count":1000,
                                    "max_running":4,"context_length":16000)" +
                                more + "}");
  REQUIRE(cluster.has_value());
  return *cluster;
}

}  // namespace

TEST_CASE("measured stages run as measured and only there") {
  REQUIRE_THAT(Cluster::parse(R"({"layers":2,"stages":[{}]})").error().message, Catch::Contains("either layers"));
  REQUIRE_THAT(Cluster::parse(R"({"stages":[{},{"per_tok":1}]})").error().message,
               Catch::Contains("stages[1].per_tok"));
  const Cluster cluster = measured();
  REQUIRE_THAT(cluster.divide(3).error().message, Catch::Contains("2 measured stages"));
  const Workload one{{{0, 1000, 1}}, 0, 0};
  const auto result = run_experiment(cluster, {2, 0, sched::Chunking::kFixed, 1000}, one, 1);
  REQUIRE(result->makespan_s == Approx(0.040).margin(1e-6));
  REQUIRE(run_experiment(measured(R"(,"slowness":[2])"), {2, 0, sched::Chunking::kFixed, 1000}, one, 1)->makespan_s ==
          Approx(0.080).margin(1e-6));
}

TEST_CASE("only stages that share processors slow each other") {
  // Four prompts of a chunk each. The second stage takes 30 ms for each: with a processor of its own it ends at 10 + 4
  // x 30.
  const Workload four{{{0, 1000, 1}, {0, 1000, 1}, {0, 1000, 1}, {0, 1000, 1}}, 0, 0};
  const ExperimentConfig setting{2, 0, sched::Chunking::kFixed, 1000};
  const auto time_with = [&](const std::string& more) {
    return run_experiment(measured(more), setting, four, 1)->makespan_s;
  };
  REQUIRE(time_with("") == Approx(0.130).margin(1e-6));
  REQUIRE(time_with(R"(,"processors":2)") == Approx(0.130).margin(1e-6));
  REQUIRE(time_with(R"(,"processors":1)") == Approx(0.160).margin(1e-6));  // all the work, one after the other
  REQUIRE(time_with(R"(,"processors":3,"threads":2)") > 0.1301);
}

TEST_CASE("stages on one machine are slowed down by what the others do") {
  const Workload four{{{0, 1000, 1}, {0, 1000, 1}, {0, 1000, 1}, {0, 1000, 1}}, 0, 0};
  const ExperimentConfig setting{2, 0, sched::Chunking::kFixed, 1000};
  const auto time_with = [&](const std::string& more) {
    return run_experiment(measured(more), setting, four, 1)->makespan_s;
  };
  const std::string machine = R"(,"processors":2,"contention":)";
  // The second stage has the first beside it three times, which needs 15 ms for its 10, and loses 5 of them.
  REQUIRE(time_with(machine + R"({"prompt_by_prompt":0.5})") == Approx(0.010 + 4 * 0.030 + 3 * 0.005).margin(1e-5));
  REQUIRE(time_with(machine + R"({"other_by_other":0.5,"prompt_by_other":0.5})") == Approx(0.130).margin(1e-6));
  const auto message = [](const std::string& json) { return Cluster::parse(json).error().message; };
  REQUIRE(message(R"({"contention":{"prompt":1}})") == "contention.prompt: unknown");
  REQUIRE_THAT(message(R"({"contention":{"prompt_by_other":-1}})"), Catch::Contains("contention.prompt_by_other"));
}

TEST_CASE("transit through the head and client delays take their time") {
  WorkloadOptions options;
  options.requests = 1;
  options.input_length = 16;
  options.output_length = 11;
  const auto decode = [&](const std::string& more) {
    const auto cluster = Cluster::parse(R"({"stages":[{"per_token_us":1,"per_decode_us":1000}],"page_size":16,
                                            "page_count":100,"max_running":4,"context_length":1600)" +
                                        more + "}");
    REQUIRE(cluster.has_value());
    return run_experiment(*cluster, {1, 0, sched::Chunking::kFixed, 1000}, make_workload(options), 1)->makespan_s;
  };
  REQUIRE(decode("") == Approx(0.010016).margin(1e-6));
  REQUIRE(decode(R"(,"head_latency_us":500)") == Approx(0.010016 + 11 * 0.0005).margin(1e-6));

  options.requests = 4;
  options.output_length = 1;
  options.max_concurrency = 1;
  Workload workload = make_workload(options);
  const ExperimentConfig setting{2, 0, sched::Chunking::kFixed, 1000};
  const double prompt_by_prompt_s = run_experiment(measured(), setting, workload, 1)->makespan_s;
  workload.client_latency_s = 0.25;
  REQUIRE(run_experiment(measured(), setting, workload, 1)->makespan_s ==
          Approx(prompt_by_prompt_s + 0.75).margin(1e-6));
}

TEST_CASE("records of an experiment exclude the profile") {
  const Workload two{{{0, 1000, 3}, {0, 600, 3}}, 0, 0};
  for (const auto chunking : {sched::Chunking::kFixed, sched::Chunking::kPublished, sched::Chunking::kBalanced}) {
    PlanRecords records;
    const auto result = run_experiment(measured(), {2, 0, chunking, 1000}, two, 1, &records);
    uint64_t prefill = 0;
    uint64_t decode = 0;
    uint64_t working = 0;
    for (const sched::PlanRecord& record : records.complete) {
      prefill += record.prefill_rows;
      decode += record.decode_rows;
      working += record.sequences > 0 ? 1 : 0;
    }
    REQUIRE(prefill == 1600);
    REQUIRE(decode == 4);
    REQUIRE(working == result->plans);
    REQUIRE(records.lost == 0);
  }
}

TEST_CASE("too slow stages fail or refuse requests with the reason") {
  const Workload two{{{0, 1000, 1}, {0, 600, 1}}, 0, 0};
  // A run of a thousand hours, and one of which no clock can tell the end; with processors of its own or shared ones.
  for (const std::string more : {R"(,"slowness":[1e9])", R"(,"slowness":[1e9],"processors":1,"threads":65536)"}) {
    const Cluster slow = measured(more);
    const auto failed = run_experiment(slow, {2, 0, sched::Chunking::kFixed, 1000}, two, 1);
    REQUIRE(failed.has_value());
    REQUIRE(failed->failed_count() == 2);
    REQUIRE(failed->makespan_s == 0);
    REQUIRE_THAT(failed->first_error()->message, Catch::Contains("the ring is broken: "));
    const auto refused = run_experiment(slow, {2, 0, sched::Chunking::kBalanced, 1000}, two, 1);
    REQUIRE_THAT(refused.error().message, Catch::Contains("more than 30 days to be ready"));
  }
  const auto refused =
      run_experiment(measured(R"(,"link_gb_per_s":1e-300)"), {2, 0, sched::Chunking::kFixed, 1000}, two, 1);
  REQUIRE_THAT(refused.error().message, Catch::Contains("more than 30 days to be ready"));
}

TEST_CASE("a plot is XML whatever its title is") {
  const std::string plot = plot_svg(
      "a\x01<b>\n&\x1F"
      "µ",
      "x", "y", {{"line", {{1, 2}}}});
  REQUIRE_THAT(plot, Catch::Contains(">a&lt;b>&amp;µ</text>"));
}

TEST_CASE("a limit of concurrency holds requests back") {
  WorkloadOptions options;
  options.requests = 8;
  options.input_length = 1000;
  const ExperimentConfig setting{2, 0, sched::Chunking::kFixed, 1000};
  const auto free = run_experiment(measured(), setting, make_workload(options), 1);
  options.max_concurrency = 1;
  const auto limited = run_experiment(measured(), setting, make_workload(options), 1);
  REQUIRE(limited->makespan_s == Approx(8 * 0.040).margin(1e-6));
  REQUIRE(limited->ttft_s(1.0) == Approx(0.040).margin(1e-6));
  REQUIRE(free->makespan_s < limited->makespan_s);
}

TEST_CASE("thousands of requests are told apart") {
  const WorkloadOptions many{.requests = 3000, .input_length = 20, .output_length = 2};
  REQUIRE(time_of(measured(), {2, 0, sched::Chunking::kFixed, 1000}, many) > 0);
}

TEST_CASE("a common prefix is computed once up to full pages") {
  WorkloadOptions options;
  options.requests = 20;
  options.input_length = 160;
  options.prefix_length = 1600;
  options.prefix_count = 2;
  options.max_concurrency = 1;
  const ExperimentConfig setting{2, 0, sched::Chunking::kFixed, 1000};
  const auto shared = run_experiment(measured(), setting, make_workload(options), 1);
  REQUIRE(shared->cached_share == Approx(18.0 * 1600 / (20 * 1760)));  // all but the first of each group
  // 1600 tokens fill the pool but for one request's own: the group that came last has its pages still, no other.
  const auto cluster = Cluster::parse(R"({"stages":[{"per_token_us":10}],"page_size":16,"page_count":112,
                                          "max_running":4,"context_length":1792})");
  const auto tight = run_experiment(*cluster, {1, 0, sched::Chunking::kFixed, 1000}, make_workload(options), 1);
  REQUIRE(tight->cached_share > 0);
  REQUIRE(tight->cached_share < shared->cached_share);
}

TEST_CASE("the requests of a load run are replayed") {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("millrace-requests-{}.json", getpid());
  const auto load = [&path](const std::string& content) {
    std::ofstream(path) << content;
    return load_workload(path);
  };
  const auto open = load(R"({"max_concurrency":0,"input_lens":[5,6],"output_lens":[1,2],"start_times":[0.5,0.25]})");
  REQUIRE(open->arrivals.size() == 2);
  REQUIRE(open->arrivals[0].at_s == 0.25);
  REQUIRE(open->arrivals[0].input_length == 6);
  const auto closed = load(R"({"max_concurrency":3,"input_lens":[5],"output_lens":[1],"start_times":[0.5]})");
  REQUIRE(closed->max_concurrency == 3);
  REQUIRE(closed->arrivals[0].at_s == 0);
  // Requests that had to wait for another's end count from that end, not from their arrival.
  const auto waited =
      load(R"({"max_concurrency":2,"input_lens":[5,6,7],"output_lens":[1,1,1],"start_times":[1.5,1.25,9]})");
  REQUIRE(waited->arrivals[0].input_length == 6);
  REQUIRE(waited->arrivals[1].at_s == 0.25);
  REQUIRE(waited->arrivals[2].at_s == 0.25);
  const auto named = load(R"({"max_concurrency":2,"request_rate":"inf","input_lens":[5,6,7],"output_lens":[1,1,1],
                              "start_times":[1.5,1.25,9]})");
  REQUIRE(named->arrivals[2].at_s == 0.25);
  // With a rate clients come at times of their own; a limit may hold them up besides.
  const auto rated = load(R"({"max_concurrency":1,"request_rate":0.2,"input_lens":[5,6,7],"output_lens":[1,1,1],
                              "start_times":[0.5,5.5,12]})");
  REQUIRE(rated->max_concurrency == 1);
  REQUIRE(rated->arrivals[1].at_s == 5.5);
  REQUIRE(rated->arrivals[2].at_s == 12);
  const auto due = load(R"({"max_concurrency":1,"request_rate":0.2,"input_lens":[5,6,7],"output_lens":[1,1,1],
                            "start_times":[0.5,5.5,12],"due_times":[0,5,10]})");
  REQUIRE(due->arrivals[2].at_s == 10);
  REQUIRE_THAT(load(R"({"input_lens":[5],"output_lens":[1,2],"start_times":[0]})").error().message,
               Catch::Contains("1, 2 and 1 entries"));
  REQUIRE_THAT(load(R"({"input_lens":[5],"output_lens":[0],"start_times":[0]})").error().message,
               Catch::Contains("did it fail?"));
  REQUIRE_THAT(load(R"({"input_lens":[5],"output_lens":[1.5],"start_times":[0]})").error().message,
               Catch::Contains("output_lens[0]: wanted a whole number"));
  REQUIRE_THAT(load(R"({"input_lens":[3000000000],"output_lens":[1],"start_times":[0]})").error().message,
               Catch::Contains("input_lens[0]: 3000000000 tokens"));
  REQUIRE_THAT(load(R"({"max_concurrency":"4","input_lens":[5],"output_lens":[1],"start_times":[0]})").error().message,
               Catch::Contains("max_concurrency"));
  REQUIRE_THAT(load(R"({"input_lens":[5],"output_lens":[1],"start_times":[1e300]})").error().message,
               Catch::Contains("start_times: wanted seconds"));
  REQUIRE_THAT(load("nonsense").error().message, Catch::Contains(path.string()));
  std::filesystem::remove(path);
}

TEST_CASE("balanced chunks beat fixed and published ones") {
  const Cluster cluster = h20();
  WorkloadOptions workload;
  workload.requests = 16;
  const double fixed = time_of(cluster, {8, 0, sched::Chunking::kFixed, 6144}, workload);
  const double published = time_of(cluster, {8, 0, sched::Chunking::kPublished, 18432}, workload);
  const double balanced = time_of(cluster, {8, 2, sched::Chunking::kBalanced, 24576}, workload);
  REQUIRE(published < fixed);
  REQUIRE(balanced < 0.9 * published);
}

TEST_CASE("balanced chunks win at every depth when attention dominates") {
  Cluster cluster = h20();
  cluster.layer = {430, 0.4708, 3.0158e-5, 0.5, 0.0008};
  cluster.stage = {.fixed_us = 400};
  cluster.jitter = 0.026;
  WorkloadOptions workload;
  workload.requests = 16;
  for (const int32_t depth : {0, 2}) {
    const double published = time_of(cluster, {8, depth, sched::Chunking::kPublished, 24576}, workload);
    const double balanced = time_of(cluster, {8, depth, sched::Chunking::kBalanced, 24576}, workload);
    REQUIRE(balanced < 0.96 * published);
  }
}

TEST_CASE("a window deeper than the stages does not slow decode down") {
  const Cluster cluster = h20();
  WorkloadOptions workload;
  workload.requests = 32;
  workload.input_length = 512;
  workload.output_length = 100;
  const double plain = time_of(cluster, {4, 0, sched::Chunking::kBalanced, 8192}, workload);
  const double deep = time_of(cluster, {4, 4, sched::Chunking::kBalanced, 8192}, workload);
  REQUIRE(deep < 1.05 * plain);
}

TEST_CASE("an experiment is a function of its seed") {
  const Cluster cluster = h20();
  WorkloadOptions workload;
  workload.requests = 20;
  workload.rate_per_s = 2;
  workload.input_length = 1000;
  workload.output_length = 20;
  workload.spread = 0.5;
  const ExperimentConfig setting{4, 1, sched::Chunking::kBalanced, 4096};
  const double time_s = time_of(cluster, setting, workload);
  REQUIRE(time_of(cluster, setting, workload) == time_s);
  workload.seed = 1;
  REQUIRE(time_of(cluster, setting, workload) != time_s);
  const auto other_jitter = run_experiment(cluster, setting, make_workload(workload), 2);
  REQUIRE(other_jitter->makespan_s != time_of(cluster, setting, workload));
}

TEST_CASE("a million tokens of context run through") {
  WorkloadOptions workload;
  workload.requests = 1;
  workload.input_length = 1 << 20;
  REQUIRE(time_of(h20(), {8, 2, sched::Chunking::kBalanced, 24576}, workload) < 420);
}
