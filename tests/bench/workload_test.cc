#include "load/workload.h"

#include <simdjson.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <set>

using namespace millrace;
using namespace millrace::load;

namespace {

double seconds(async::Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

TEST_CASE("prompts depend on seed and index alone and keep their bounds") {
  Options options;
  options.input_len = 100;
  options.output_len = 10;
  options.range_ratio = 0.5;
  options.vocab_size = 50;
  const Workload first(options);
  const Workload second(options);
  std::set<uint32_t> lengths;
  for (uint32_t i = 0; i < 200; ++i) {
    const Prompt prompt = first.prompt(i);
    REQUIRE(prompt.ids == second.prompt(i).ids);
    REQUIRE(prompt.ids != first.warmup(i).ids);
    REQUIRE(prompt.length == prompt.ids.size());
    REQUIRE((prompt.length >= 50 && prompt.length <= 150));
    REQUIRE((prompt.output_tokens >= 5 && prompt.output_tokens <= 15));
    for (const TokenId id : prompt.ids) REQUIRE((id >= 0 && id < 50));
    lengths.insert(prompt.length);
  }
  REQUIRE(lengths.size() > 50);
  Options other = options;
  other.seed = 1;
  REQUIRE(Workload(other).prompt(0).ids != first.prompt(0).ids);
}

TEST_CASE("prompts of one group share their prefix and nothing else") {
  Options options;
  options.dataset = Dataset::kSharedPrefix;
  options.input_len = 20;
  options.prefix_len = 40;
  options.prefix_count = 3;
  const Workload workload(options);
  std::set<std::vector<TokenId>> prefixes;
  std::set<std::vector<TokenId>> rests;
  for (uint32_t i = 0; i < 100; ++i) {
    const Prompt prompt = workload.prompt(i);
    REQUIRE(prompt.ids.size() == 60);
    prefixes.emplace(prompt.ids.begin(), prompt.ids.begin() + 40);
    rests.emplace(prompt.ids.begin() + 40, prompt.ids.end());
  }
  REQUIRE(prefixes.size() == 3);
  REQUIRE(rests.size() == 100);
}

TEST_CASE("prefixes of one prefix seed are alike whatever the seed") {
  Options options;
  options.dataset = Dataset::kSharedPrefix;
  options.prefix_count = 1;
  options.prefix_len = 40;
  options.prefix_seed = 3;
  Options other = options;
  other.seed = 1;
  const auto first = Workload(options).prompt(0).ids;
  const auto second = Workload(other).prompt(0).ids;
  REQUIRE(std::equal(first.begin(), first.begin() + 40, second.begin()));
  REQUIRE(first != second);
}

TEST_CASE("a turn of a conversation repeats the history and adds to it") {
  Options options;
  options.dataset = Dataset::kMultiTurn;
  options.text = true;
  options.num_prompts = 12;
  options.turn_count = 3;
  options.input_len = 4;
  const Workload workload(options);
  REQUIRE(workload.conversation_count() == 4);
  const Prompt first = workload.prompt(1);
  const Prompt second = workload.prompt(5, {" yes"});
  const Prompt third = workload.prompt(9, {" yes", " no"});
  REQUIRE((first.messages.size() == 1 && first.length == 4));
  REQUIRE((second.messages.size() == 3 && second.length == 8));
  REQUIRE((third.messages.size() == 5 && third.length == 12));
  REQUIRE(std::equal(second.messages.begin(), second.messages.end(), third.messages.begin()));
  REQUIRE(second.messages[0] == first.messages[0]);
  REQUIRE(second.messages[1] == " yes");
  REQUIRE(second.messages[2] != first.messages[0]);
  REQUIRE(workload.prompt(2).messages[0] != first.messages[0]);
  simdjson::dom::parser parser;
  const std::string_view plain = parser.parse(workload.body(third, 9, "m"))["prompt"];
  REQUIRE(plain == third.messages[0] + " yes " + third.messages[2] + " no " + third.messages[4]);
  options.endpoint = Endpoint::kChat;
  const auto chat = parser.parse(Workload(options).body(third, 9, "m"));
  REQUIRE(chat["messages"].get_array().value().size() == 5);
  REQUIRE(std::string_view(chat["messages"].at(3)["role"]) == "assistant");
  REQUIRE(std::string_view(chat["messages"].at(3)["content"]) == " no");
}

TEST_CASE("request bodies are the JSON that the endpoint wants") {
  Options options;
  options.input_len = 3;
  options.output_len = 5;
  simdjson::dom::parser parser;
  const auto parse = [&parser](const Options& with, uint32_t index) {
    const Workload workload(with);
    return parser.parse(workload.body(workload.prompt(index), index, "m\"x"));
  };
  auto ids = parse(options, 0);
  REQUIRE(std::string_view(ids["model"]) == "m\"x");
  REQUIRE(ids["prompt"].get_array().value().size() == 3);
  REQUIRE(int64_t(ids["max_tokens"]) == 5);
  REQUIRE(bool(ids["stream"]));
  REQUIRE(bool(ids["stream_options"]["include_usage"]));
  REQUIRE(ids["seed"].error() == simdjson::NO_SUCH_FIELD);
  REQUIRE(ids["ignore_eos"].error() == simdjson::NO_SUCH_FIELD);

  options.endpoint = Endpoint::kChat;
  options.text = true;
  options.ignore_eos = true;
  options.temperature = 0.5;
  options.seed = 40;
  auto chat = parse(options, 2);
  REQUIRE(std::string_view(chat["messages"].at(0)["role"]) == "user");
  const std::string_view content = chat["messages"].at(0)["content"];
  REQUIRE(std::count(content.begin(), content.end(), ' ') == 2);
  REQUIRE(bool(chat["ignore_eos"]));
  REQUIRE(int64_t(chat["seed"]) == 42);
}

TEST_CASE("arrivals have the rate and the burstiness that was asked for") {
  Options options;
  options.num_prompts = 20000;
  options.request_rate = 50;
  for (const double shape : {0.25, 1.0, 4.0}) {
    options.burstiness = shape;
    const auto due = Workload(options).arrivals();
    REQUIRE(due.front() == async::Duration{0});
    REQUIRE(std::is_sorted(due.begin(), due.end()));
    const double mean = seconds(due.back()) / static_cast<double>(due.size() - 1);
    REQUIRE(mean == Approx(1.0 / 50).epsilon(0.05));
    double squares = 0;
    for (size_t i = 1; i < due.size(); ++i) squares += std::pow(seconds(due[i] - due[i - 1]) - mean, 2);
    const double variation = squares / static_cast<double>(due.size() - 1) / (mean * mean);
    REQUIRE(variation == Approx(1.0 / shape).epsilon(0.1));
  }
}

TEST_CASE("arrivals ramp up linearly") {
  Options options;
  options.num_prompts = 10000;
  options.request_rate = 100;
  options.burstiness = 1000;
  options.ramp_up_s = 40;
  const auto due = Workload(options).arrivals();
  const auto arrived_by = [&due](double at_s) {
    return std::count_if(due.begin(), due.end(), [at_s](async::Duration at) { return seconds(at) < at_s; });
  };
  REQUIRE(arrived_by(20) == Approx(500).margin(10));
  REQUIRE(arrived_by(40) == Approx(2000).margin(10));
  REQUIRE(arrived_by(50) == Approx(3000).margin(15));
}

TEST_CASE("without a rate everything is due at once") {
  Options options;
  const auto due = Workload(options).arrivals();
  REQUIRE(due.size() == options.num_prompts);
  REQUIRE(std::all_of(due.begin(), due.end(), [](async::Duration at) { return at == async::Duration{0}; }));
}
