#include "load/report.h"

#include <simdjson.h>

#include <catch2/catch.hpp>

using namespace millrace;
using namespace millrace::load;
using namespace std::chrono_literals;

namespace {

RequestRecord completed(async::Duration ttft, std::vector<async::Duration> gaps, uint64_t output_tokens) {
  RequestRecord record;
  record.ttft = ttft;
  record.latency = ttft;
  for (const async::Duration gap : gaps) record.latency += gap;
  record.gaps = std::move(gaps);
  record.input_tokens = 10;
  record.output_tokens = output_tokens;
  record.counted_by_server = true;
  record.finished = true;
  return record;
}

RequestRecord failed(FailureKind kind, std::string message) {
  RequestRecord record;
  record.finished = true;
  record.failure = {kind, std::move(message)};
  return record;
}

RunResult sample_run() {
  RunResult result;
  result.model = "m";
  result.duration = 2s;
  result.records = {completed(100ms, {10ms, 30ms}, 3),
                    completed(300ms, {}, 1),
                    completed(200ms, {60ms}, 4),
                    failed(FailureKind::kHttpStatus, "503: full"),
                    failed(FailureKind::kHttpStatus, "503: full"),
                    failed(FailureKind::kTimeout, "late"),
                    RequestRecord{}};
  return result;
}

}  // namespace

TEST_CASE("statistics use the definitions of numpy") {
  const Statistics four = statistics_of({4, 1, 3, 2}, {0, 25, 90, 100});
  REQUIRE(four.mean == Approx(2.5));
  REQUIRE(four.median == Approx(2.5));
  REQUIRE(four.std == Approx(1.118033988749895));
  REQUIRE(four.percentiles[0] == Approx(1));
  REQUIRE(four.percentiles[1] == Approx(1.75));
  REQUIRE(four.percentiles[2] == Approx(3.7));
  REQUIRE(four.percentiles[3] == Approx(4));
  REQUIRE(statistics_of({7}, {99}).percentiles[0] == Approx(7));
  REQUIRE(statistics_of({}, {99}).mean == 0.0);
}

TEST_CASE("the summary counts completed requests only") {
  Options options;
  options.num_prompts = 7;
  options.goodput = {.ttft_ms = 250, .tpot_ms = 20, .e2el_ms = std::nullopt};
  const Summary summary = summarize(sample_run(), options);
  REQUIRE(summary.completed == 3);
  REQUIRE(summary.failed == 3);
  REQUIRE(summary.unsent == 1);
  REQUIRE(summary.total_input_tokens == 30);
  REQUIRE(summary.total_output_tokens == 8);
  REQUIRE(summary.ttft.mean == Approx(200));
  REQUIRE(summary.itl.mean == Approx(100.0 / 3));
  REQUIRE(summary.tpot.mean == Approx(20));  // 20 ms each; the output of one token has none
  REQUIRE(summary.e2el.mean == Approx(700.0 / 3));
  REQUIRE(summary.good == 2);
  REQUIRE(summary.failures.at("HTTP status").count == 2);
  REQUIRE(summary.failures.at("HTTP status").messages == std::vector<std::string>{"503: full"});
  REQUIRE(summary.failures.at("timeout").count == 1);
}

TEST_CASE("the result file holds the keys that dashboards know") {
  Options options;
  options.num_prompts = 7;
  options.percentiles = {90, 99, 99.9};
  const RunResult result = sample_run();
  simdjson::dom::parser parser;
  auto json = parser.parse(to_json(summarize(result, options), result, options));
  REQUIRE(double(json["duration"]) == Approx(2));
  REQUIRE(int64_t(json["completed"]) == 3);
  REQUIRE(int64_t(json["failed"]) == 3);
  REQUIRE(double(json["request_throughput"]) == Approx(1.5));
  REQUIRE(double(json["output_throughput"]) == Approx(4));
  REQUIRE(double(json["total_token_throughput"]) == Approx(19));
  REQUIRE(json["request_goodput"].is_null());
  for (const char* metric : {"ttft", "tpot", "itl", "e2el"}) {
    for (const char* figure : {"mean", "median", "std", "p90", "p99", "p99.9"}) {
      const std::string key = std::string(figure) + "_" + metric + "_ms";
      INFO(key);
      REQUIRE(json[key].is_double());
    }
  }
  for (const char* name :
       {"input_lens", "output_lens", "start_times", "due_times", "ttfts", "e2els", "itls", "errors"}) {
    INFO(name);
    REQUIRE(json[name].get_array().value().size() == 7);
  }
  REQUIRE(double(json["ttfts"].at(0)) == Approx(0.1));
  REQUIRE(std::string_view(json["errors"].at(5)) == "timeout: late");
  REQUIRE(json["max_late_ms"].error() == simdjson::NO_SUCH_FIELD);
}

TEST_CASE("the report names chunk-counted tokens and failures") {
  Options options;
  RunResult result = sample_run();
  result.records[0].counted_by_server = false;
  const std::string text = to_text(summarize(result, options), result, options);
  REQUIRE(text.find("1 requests came without usage") != std::string::npos);
  REQUIRE(text.find("2 failed: HTTP status\n  503: full\n") != std::string::npos);
}

TEST_CASE("of a run with a rate it is told how late requests were sent") {
  Options options;
  options.request_rate = 5;
  options.goodput.ttft_ms = 200;
  RunResult result = sample_run();
  for (size_t i = 0; i < result.records.size(); ++i) {
    result.records[i].due_at = result.start + 200ms * i;
    result.records[i].sent_at = result.records[i].due_at + 10ms * i;
  }
  const Summary summary = summarize(result, options);
  REQUIRE(summary.late.mean == Approx(25));  // of the six that were sent
  const std::string text = to_text(summary, result, options);
  REQUIRE(text.find("Sent late, mean, ms                  25.00\n") != std::string::npos);
  REQUIRE(text.find("Sent late, at most, ms               50.00\n") != std::string::npos);
  simdjson::dom::parser parser;
  auto json = parser.parse(to_json(summary, result, options));
  REQUIRE(double(json["max_late_ms"]) == Approx(50));
  REQUIRE(double(json["due_times"].at(2)) == Approx(0.4));
  REQUIRE(double(json["start_times"].at(2)) == Approx(0.42));
  REQUIRE(double(json["goodput"]["ttft"]) == Approx(200));
  REQUIRE(int64_t(json["vocab_size"]) == 1000);
}
