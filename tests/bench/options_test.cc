#include "load/options.h"

#include <catch2/catch.hpp>
#include <cmath>

using namespace millrace;
using namespace millrace::load;

namespace {

ParsedOptions parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "load");
  return parse_options(static_cast<int>(arguments.size()), arguments.data());
}

}  // namespace

TEST_CASE("base URLs are taken apart") {
  const auto plain = parse_base_url("http://127.0.0.1:30000").value();
  REQUIRE((plain.host == "127.0.0.1" && plain.port == "30000" && plain.prefix.empty()));
  const auto named = parse_base_url("http://a.example/x/y/").value();
  REQUIRE((named.host == "a.example" && named.port == "80" && named.prefix == "/x/y"));
  const auto with_v1 = parse_base_url("http://h:1/v1/").value();
  REQUIRE((with_v1.host == "h" && with_v1.port == "1" && with_v1.prefix.empty()));
  const auto v6 = parse_base_url("http://[::1]:8080").value();
  REQUIRE((v6.host == "::1" && v6.port == "8080"));
  REQUIRE(parse_base_url("http://[::1]").value().port == "80");
  for (const char* bad : {"https://h:1", "h:1", "http://", "http://:5", "http://h:"}) {
    INFO(bad);
    REQUIRE(parse_base_url(bad).has_error());
  }
}

TEST_CASE("goodput limits are parsed and bad ones named") {
  const Goodput limits = parse_goodput({"ttft:200", "tpot:50.5"}).value();
  REQUIRE(limits.ttft_ms == 200.0);
  REQUIRE(limits.tpot_ms == 50.5);
  REQUIRE_FALSE(limits.e2el_ms.has_value());
  for (const char* bad : {"ttft", "ttft:", "ttft:x", "ttft:0", "foo:1", "tpot:5ms"}) {
    INFO(bad);
    REQUIRE(parse_goodput({bad}).has_error());
  }
}

TEST_CASE("the command line fills the options") {
  const auto parsed = parse({"--request-rate", "2.5", "--endpoint", "/v1/chat/completions", "--percentiles", "50,99.9",
                             "--goodput", "ttft:1", "e2el:2", "--dataset", "shared-prefix"});
  REQUIRE_FALSE(parsed.exit_code.has_value());
  REQUIRE(parsed.options.request_rate == 2.5);
  REQUIRE(parsed.options.endpoint == Endpoint::kChat);
  REQUIRE(parsed.options.text);
  REQUIRE(parsed.options.percentiles == std::vector<double>{50, 99.9});
  REQUIRE(parsed.options.goodput.e2el_ms == 2.0);
  REQUIRE(parsed.options.dataset == Dataset::kSharedPrefix);
  REQUIRE(std::isinf(parse({}).options.request_rate));
  const auto chat = parse({"--dataset", "multi-turn", "--num-prompts", "12", "--num-turns", "3", "--seed", "5"});
  REQUIRE((chat.options.dataset == Dataset::kMultiTurn && chat.options.text));
  REQUIRE(chat.options.prefix_seed == 5);
}

TEST_CASE("a wrong command line ends with code 1") {
  REQUIRE(parse({"--nonsense"}).exit_code == 1);
  REQUIRE(parse({"--request-rate", "0"}).exit_code == 1);
  REQUIRE(parse({"--request-rate", "fast"}).exit_code == 1);
  REQUIRE(parse({"--base-url", "https://h"}).exit_code == 1);
  REQUIRE(parse({"--ramp-up-s", "3"}).exit_code == 1);
  REQUIRE(parse({"--num-prompts", "0"}).exit_code == 1);
  REQUIRE(parse({"--endpoint", "embeddings"}).exit_code == 1);
  REQUIRE(parse({"--dataset", "multi-turn", "--num-prompts", "10", "--num-turns", "4"}).exit_code == 1);
}
