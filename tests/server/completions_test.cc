#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "server/test_server.h"

using namespace millrace;
using namespace millrace::test;

namespace {

/// Joins the texts of a stream's chunks for one choice.
std::string streamed_text(const HttpReply& reply, int64_t index = 0) {
  std::string text;
  for (const std::string& event : reply.events()) {
    if (event == "[DONE]") continue;
    const ParsedJson json(event);
    if (json.size("/choices") == 0 || json.integer("/choices/0/index") != index) continue;
    text += json.string("/choices/0/text");
  }
  return text;
}

}  // namespace

TEST_CASE("A completion has the OpenAI shape") {
  TestServer server;
  const HttpReply reply = server.complete(R"({"model":"fake","prompt":"abc"})");
  REQUIRE(reply.status == 200);
  REQUIRE(reply.header("Content-Type") == "application/json");
  const ParsedJson json(reply.body);
  CHECK_THAT(json.string("/id"), Catch::StartsWith("cmpl-"));
  CHECK(json.string("/object") == "text_completion");
  CHECK(json.string("/model") == "fake");
  CHECK(json.integer("/created") > 1'700'000'000);
  CHECK(json.string("/choices/0/text") == "Hello, world!");
  CHECK(json.string("/choices/0/finish_reason") == "stop");
  CHECK(json.is_null("/choices/0/logprobs"));
  CHECK(json.integer("/usage/prompt_tokens") == 3);
  CHECK(json.integer("/usage/completion_tokens") == 14);
  CHECK(json.integer("/usage/total_tokens") == 17);
  CHECK(json.integer("/usage/prompt_tokens_details/cached_tokens") == 0);
  CHECK(server.engine.seen().front().max_tokens == 16);
}

TEST_CASE("max_tokens ends a completion by length") {
  TestServer server;
  const ParsedJson json(server.complete(R"({"prompt":"abc","max_tokens":5})").body);
  CHECK(json.string("/choices/0/text") == "Hello");
  CHECK(json.string("/choices/0/finish_reason") == "length");
  CHECK(json.integer("/usage/completion_tokens") == 5);
}

TEST_CASE("A streamed completion equals the whole one however merged") {
  TestServer server;
  const std::string text =
      "Gr\xC3\xBC\xC3\x9F"
      "e \xE2\x82\xAC \xF0\x9F\x98\x80 STOP end";
  for (const size_t per_event : {1u, 2u, 5u, 100u}) {
    server.engine.on_submit = [&](const sched::GenerateRequest&) {
      return ScriptedReply{.text = text, .tokens_per_event = per_event};
    };
    for (const char* stop : {"null", R"(["ST","xyz"])", R"("zzz")", R"(["\u20ac"])"}) {
      const std::string fields = fmt::format(R"("prompt":"p","max_tokens":100,"stop":{})", stop);
      const ParsedJson whole(server.complete("{" + fields + "}").body);
      const HttpReply stream = server.complete("{" + fields + R"(,"stream":true})");
      REQUIRE(stream.status == 200);
      REQUIRE(stream.header("Content-Type") == "text/event-stream");
      REQUIRE(stream.events().back() == "[DONE]");
      CHECK(streamed_text(stream) == whole.string("/choices/0/text"));
      const ParsedJson last(stream.events()[stream.events().size() - 2]);
      CHECK(last.string("/choices/0/finish_reason") == whole.string("/choices/0/finish_reason"));
    }
  }
  REQUIRE(server.engine.wait_until_idle());
}

TEST_CASE("Stop strings cut across tokens and end the engine request") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) {
    return ScriptedReply{.text = "one two three", .hangs = true};
  };
  const ParsedJson json(server.complete(R"({"prompt":"p","max_tokens":50,"stop":["two","zz"]})").body);
  CHECK(json.string("/choices/0/text") == "one ");
  CHECK(json.string("/choices/0/finish_reason") == "stop");
  CHECK(json.string("/choices/0/stop_reason") == "two");
  CHECK(json.integer("/usage/completion_tokens") == 7);
  const ParsedJson kept(
      server.complete(R"({"prompt":"p","max_tokens":50,"stop":"two","include_stop_str_in_output":true})").body);
  CHECK(kept.string("/choices/0/text") == "one two");
  REQUIRE(server.engine.wait_until_idle());
  CHECK(server.engine.destroyed_early == 2);
}

TEST_CASE("A stop string counts behind min_tokens only") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.text = "abcabcabc"}; };
  const auto text_with = [&server](int min_tokens) {
    const std::string fields = fmt::format(R"("prompt":"p","max_tokens":20,"stop":["bc"],"min_tokens":{})", min_tokens);
    const ParsedJson whole(server.complete("{" + fields + "}").body);
    CHECK(streamed_text(server.complete("{" + fields + R"(,"stream":true})")) == whole.string("/choices/0/text"));
    return whole.string("/choices/0/text");
  };
  CHECK(text_with(0) == "a");
  CHECK(text_with(2) == "a");
  CHECK(text_with(3) == "abca");
  CHECK(text_with(5) == "abca");
  CHECK(text_with(6) == "abcabca");
  CHECK(text_with(9) == "abcabcabc");
}

TEST_CASE("The text of a stop token is not shown") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.text = "ab"}; };
  const ParsedJson json(server.complete(R"({"prompt":"p","skip_special_tokens":false})").body);
  CHECK(json.string("/choices/0/text") == "ab");
  const ParsedJson ignored(
      server.complete(R"({"prompt":"p","skip_special_tokens":false,"ignore_eos":true,"stop_token_ids":[65]})").body);
  CHECK(ignored.string("/choices/0/text") == "ab<eos>");
  CHECK(server.engine.seen().back().sampling.stop_token_ids == std::vector<TokenId>{65});
}

TEST_CASE("stop_reason names only stops that the request asked for") {
  TestServer server;
  const auto answer = [&](std::string_view members) {
    const HttpReply whole = server.complete(fmt::format(R"({{"prompt":"p"{}}})", members));
    const auto events = server.complete(fmt::format(R"({{"prompt":"p","stream":true{}}})", members)).events();
    CHECK(simdjson::minify(ParsedJson(events[events.size() - 2]).at("/choices/0/stop_reason")) ==
          simdjson::minify(ParsedJson(whole.body).at("/choices/0/stop_reason")));
    return whole.body;
  };
  const ParsedJson own(answer(""));
  CHECK(own.string("/choices/0/finish_reason") == "stop");
  CHECK(own.is_null("/choices/0/stop_reason"));
  const ParsedJson other(answer(R"(,"stop_token_ids":[65])"));
  CHECK(other.is_null("/choices/0/stop_reason"));
  const ParsedJson listed(answer(R"(,"stop_token_ids":[65,257])"));
  CHECK(listed.integer("/choices/0/stop_reason") == FakeEngine::kEos);
}

TEST_CASE("Several prompts and n give indexed choices with own seeds") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest& request) {
    return ScriptedReply{.text = fmt::format("{}{}", static_cast<char>(request.prompt[0]), request.sampling.seed)};
  };
  for (const char* stream : {"false", "true"}) {
    const HttpReply reply =
        server.complete(fmt::format(R"({{"prompt":["a","bb"],"n":2,"seed":40,"stream":{},"stream_options":{}}})",
                                    stream, std::string_view(stream) == "true" ? R"({"include_usage":true})" : "null"));
    REQUIRE(reply.status == 200);
    const std::vector<std::string> wanted = {"a40", "a41", "b40", "b41"};
    if (std::string_view(stream) == "false") {
      const ParsedJson json(reply.body);
      REQUIRE(json.size("/choices") == 4);
      for (size_t i = 0; i < 4; ++i) {
        CHECK(json.integer(fmt::format("/choices/{}/index", i)) == static_cast<int64_t>(i));
        CHECK(json.string(fmt::format("/choices/{}/text", i)) == wanted[i]);
      }
      CHECK(json.integer("/usage/prompt_tokens") == 3);
      CHECK(json.integer("/usage/completion_tokens") == 16);
    } else {
      for (size_t i = 0; i < 4; ++i) CHECK(streamed_text(reply, static_cast<int64_t>(i)) == wanted[i]);
      const ParsedJson usage(reply.events()[reply.events().size() - 2]);
      CHECK(usage.size("/choices") == 0);
      CHECK(usage.integer("/usage/total_tokens") == 19);
    }
  }
}

TEST_CASE("Without a seed every choice draws its own") {
  for (const char* seed : {"null", "-1"}) {
    TestServer server;
    REQUIRE(server.complete(fmt::format(R"({{"prompt":["a","a","b"],"n":2,"seed":{}}})", seed)).status == 200);
    std::set<uint64_t> seeds;
    for (const sched::GenerateRequest& request : server.engine.seen()) seeds.insert(request.sampling.seed);
    CHECK(seeds.size() == 6);
  }
}

TEST_CASE("With a server seed each start draws the same seeds") {
  const auto seeds = [](std::optional<uint64_t> random_seed, int other_requests) {
    server::ServerOptions options;
    options.random_seed = random_seed;
    TestServer server(options);
    for (int i = 0; i < other_requests; ++i) CHECK(server.get("/health").status == 200);
    for (int i = 0; i < 2; ++i) REQUIRE(server.complete(R"({"prompt":["a","b"]})").status == 200);
    std::set<uint64_t> found;
    for (const sched::GenerateRequest& request : server.engine.seen()) found.insert(request.sampling.seed);
    CHECK(found.size() == 4);
    return found;
  };
  CHECK(seeds(7, 0) == seeds(7, 3));
  CHECK(seeds(7, 0) != seeds(8, 0));
  CHECK(seeds({}, 0) != seeds({}, 0));
}

TEST_CASE("Prompts may be token ids") {
  TestServer server;
  REQUIRE(server.complete(R"({"prompt":[1,2,3]})").status == 200);
  CHECK(server.engine.seen().back().prompt == std::vector<TokenId>{1, 2, 3});
  const ParsedJson json(server.complete(R"({"prompt":[[1],[2,3]]})").body);
  CHECK(json.size("/choices") == 2);
  CHECK(server.complete(R"({"prompt":[1,258]})").status == 400);
  CHECK(server.complete(R"({"prompt":[-1]})").status == 400);
}

TEST_CASE("Logprobs have tokens alternatives and offsets") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.text = "a\xC3\xA9z"}; };
  const ParsedJson json(server.complete(R"({"prompt":"p","logprobs":2,"max_tokens":4})").body);
  CHECK(json.string("/choices/0/logprobs/tokens/0") == "a");
  CHECK(json.string("/choices/0/logprobs/tokens/1") == "bytes:\\xc3");
  CHECK(json.number("/choices/0/logprobs/token_logprobs/1") == -0.25);
  CHECK(json.number("/choices/0/logprobs/top_logprobs/0/b") == -1.125);
  CHECK(json.integer("/choices/0/logprobs/text_offset/3") == 2);
}

TEST_CASE("Logprobs name tokens by their ids when asked for") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.text = "a"}; };
  const std::string ids = R"("max_tokens":1,"return_tokens_as_token_ids":true)";
  const ParsedJson json(server.complete(fmt::format(R"({{"prompt":"p","logprobs":2,{}}})", ids)).body);
  CHECK(json.string("/choices/0/logprobs/tokens/0") == "token_id:97");
  CHECK(json.number("/choices/0/logprobs/top_logprobs/0/token_id:98") == -1.125);
  const ParsedJson chat(
      server
          .chat(fmt::format(R"({{"messages":[{{"role":"user","content":"c"}}],"logprobs":true,"top_logprobs":2,{}}})",
                            ids))
          .body);
  CHECK(chat.string("/choices/0/logprobs/content/0/token") == "token_id:97");
  CHECK(chat.integer("/choices/0/logprobs/content/0/bytes/0") == 'a');
  CHECK(chat.string("/choices/0/logprobs/content/0/top_logprobs/1/token") == "token_id:98");
}

TEST_CASE("Echo with logprobs and no tokens scores the prompt") {
  TestServer server;
  const ParsedJson json(server.complete(R"({"prompt":"abc","logprobs":1,"echo":true,"max_tokens":0})").body);
  CHECK(json.string("/choices/0/text") == "abc");
  CHECK(json.size("/choices/0/logprobs/tokens") == 3);
  CHECK(json.is_null("/choices/0/logprobs/token_logprobs/0"));
  CHECK(json.is_null("/choices/0/logprobs/top_logprobs/0"));
  CHECK(json.number("/choices/0/logprobs/token_logprobs/2") == -0.375);
  CHECK(json.integer("/choices/0/logprobs/text_offset/2") == 2);
  CHECK(json.string("/choices/0/finish_reason") == "length");
  CHECK(json.integer("/usage/completion_tokens") == 0);
  CHECK(server.engine.seen().back().prompt_top_logprobs == 1);
}

TEST_CASE("Echoed special tokens have offsets in the text as given") {
  TestServer server;
  const ParsedJson json(server.complete(R"({"prompt":"a<eos>b","logprobs":0,"echo":true,"max_tokens":1})").body);
  CHECK(json.string("/choices/0/text") == "a<eos>bH");
  CHECK(json.integer("/choices/0/logprobs/text_offset/1") == 1);
  CHECK(json.integer("/choices/0/logprobs/text_offset/2") == 6);
  CHECK(json.integer("/choices/0/logprobs/text_offset/3") == 7);
}

TEST_CASE("Echo precedes the text streamed or not") {
  TestServer server;
  const std::string fields = R"("prompt":"Say: ","echo":true,"logprobs":0)";
  const ParsedJson whole(server.complete("{" + fields + "}").body);
  CHECK(whole.string("/choices/0/text") == "Say: Hello, world!");
  CHECK(whole.size("/choices/0/logprobs/tokens") == 19);
  CHECK(whole.integer("/choices/0/logprobs/text_offset/5") == 5);
  const HttpReply stream = server.complete("{" + fields + R"(,"stream":true})");
  CHECK(streamed_text(stream) == "Say: Hello, world!");
}

TEST_CASE("Token ids and prompt logprobs come when asked for") {
  TestServer server;
  const ParsedJson json(
      server.complete(R"({"prompt":"abc","max_tokens":2,"return_token_ids":true,"prompt_logprobs":1})").body);
  CHECK(json.integer("/choices/0/token_ids/1") == 'e');
  CHECK(json.integer("/choices/0/prompt_token_ids/2") == 'c');
  CHECK(json.is_null("/choices/0/prompt_logprobs/0"));
  CHECK(json.string("/choices/0/prompt_logprobs/1/98/decoded_token") == "b");
}

TEST_CASE("Echoed and prompt logprobs have their own alternative counts") {
  TestServer server;
  const auto sizes = [&](int logprobs, int prompt_logprobs) {
    const ParsedJson json(
        server
            .complete(fmt::format(R"({{"prompt":"abc","echo":true,"max_tokens":2,"logprobs":{},"prompt_logprobs":{}}})",
                                  logprobs, prompt_logprobs))
            .body);
    const auto size = [&](std::string_view pointer) { return simdjson::dom::object(json.at(pointer)).size(); };
    return std::pair(size("/choices/0/logprobs/top_logprobs/1"), size("/choices/0/prompt_logprobs/1"));
  };
  CHECK(sizes(1, 4) == std::pair<size_t, size_t>(1, 4));
  CHECK(sizes(4, 1) == std::pair<size_t, size_t>(4, 1));
  CHECK(sizes(0, 0) == std::pair<size_t, size_t>(1, 1));
}

TEST_CASE("A character begun by the prompt shows only once completed") {
  TestServer server;
  std::string text;
  server.engine.on_submit = [&](const sched::GenerateRequest&) { return ScriptedReply{.text = text}; };
  const auto answer = [&](std::string_view members) {
    return ParsedJson(server.complete(fmt::format(R"({{"prompt":[97,226,130]{}}})", members)).body)
        .string("/choices/0/text");
  };
  CHECK(answer("") == "");
  CHECK(answer(R"(,"echo":true,"max_tokens":0)") == "a\xEF\xBF\xBD");
  text = "b";
  CHECK(answer("") == "b");
  text = "\xAC";
  CHECK(answer("") == "\xE2\x82\xAC");
}

TEST_CASE("An answer holds so many logprobs of prompts at most") {
  TestServer server;
  server.engine.info.context_length = 1000;
  std::string prompt = "97";
  for (int i = 1; i < 800; ++i) prompt += ",97";
  const auto answer = [&](std::string_view members) {
    return server.complete(fmt::format(R"({{"prompt":[{}],"max_tokens":1,{}}})", prompt, members));
  };
  CHECK(answer(R"("n":512)").status == 200);
  CHECK(answer(R"("n":512,"logprobs":20)").status == 200);
  CHECK(answer(R"("n":2,"logprobs":20,"echo":true,"prompt_logprobs":20)").status == 200);
  for (const std::string members : {R"("n":512,"prompt_logprobs":20)", R"("n":512,"logprobs":20,"echo":true)"}) {
    const HttpReply reply = answer(members);
    CHECK(reply.status == 400);
    const std::string message = ParsedJson(reply.body).string("/error/message");
    CHECK_THAT(message, Catch::Contains("512 choices") && Catch::Contains("8601600") && Catch::Contains("8388608"));
  }
}

TEST_CASE("A response of many logprobs is written on the worker") {
  TestServer server;
  server.engine.on_submit = [](const sched::GenerateRequest&) { return ScriptedReply{.ends_with_eos = false}; };
  const std::string fields = R"("prompt":"abc","max_tokens":400,"logprobs":3,"n":2)";
  const ParsedJson whole(server.complete("{" + fields + "}").body);
  for (const int64_t index : {0, 1}) {
    const std::string choice = fmt::format("/choices/{}", index);
    const HttpReply stream = server.complete("{" + fields + R"(,"stream":true})");
    CHECK(whole.string(choice + "/text") == streamed_text(stream, index));
    CHECK(whole.size(choice + "/logprobs/tokens") == 400);
    CHECK(whole.number(choice + "/logprobs/token_logprobs/399") == -50);
  }
}

TEST_CASE("A top_p of nothing leaves the most probable token") {
  TestServer server;
  for (const char* top_p : {"0", "1e-300"}) {
    REQUIRE(server.complete(fmt::format(R"({{"prompt":"p","temperature":2,"top_p":{}}})", top_p)).status == 200);
    CHECK(server.engine.seen().back().sampling.greedy());
    CHECK(server.engine.seen().back().sampling.top_p == 1.0f);
  }
}

TEST_CASE("The engine hears priorities so that larger goes first") {
  for (const bool low_first : {false, true}) {
    server::ServerOptions options;
    options.has_priorities = true;
    options.low_priority_first = low_first;
    TestServer server(options);
    for (const char* priority : {"-2147483648", "-1", "0", "1", "2147483647"}) {
      REQUIRE(server.complete(fmt::format(R"({{"prompt":"p","priority":{}}})", priority)).status == 200);
    }
    std::vector<int32_t> heard;
    for (const sched::GenerateRequest& request : server.engine.seen()) heard.push_back(request.priority);
    if (low_first) std::ranges::reverse(heard);
    CHECK(std::ranges::is_sorted(heard));
    CHECK(std::ranges::adjacent_find(heard) == heard.end());
  }
}

TEST_CASE("Defaults come from the model and seeds from the request") {
  TestServer server;
  REQUIRE(server.complete(R"({"prompt":"p"})").status == 200);
  constexpr const char* kSaid = R"({"prompt":"p","temperature":0,"seed":-2,"top_k":-1,"logit_bias":{"65":-100}})";
  REQUIRE(server.complete(kSaid).status == 200);
  const auto seen = server.engine.seen();
  CHECK(seen[0].sampling.temperature == 0.7f);
  CHECK(seen[0].sampling.stop_token_ids == std::vector<TokenId>{FakeEngine::kEos});
  CHECK(seen[1].sampling.temperature == 0.0f);
  CHECK(seen[1].sampling.seed == UINT64_MAX - 1);
  CHECK(seen[1].sampling.top_k == 0);
  CHECK(seen[1].sampling.logit_bias.at(0) == std::pair<TokenId, float>(65, -100.0f));
  REQUIRE(server.complete(R"({"prompt":"p"})").status == 200);
  CHECK(server.engine.seen()[2].sampling.seed != seen[0].sampling.seed);
}

TEST_CASE("The context limits prompt and output") {
  TestServer server;
  const HttpReply long_prompt = server.complete(fmt::format(R"({{"prompt":"{}"}})", std::string(600, 'x')));
  REQUIRE(long_prompt.status == 400);
  const ParsedJson error(long_prompt.body);
  CHECK(error.string("/error/param") == "prompt");
  const std::string beginning = "this model's maximum context length is 512 tokens";  // what clients look for
  CHECK_THAT(error.string("/error/message"), Catch::StartsWith(beginning) && Catch::Contains("prompt has 600"));
  const ParsedJson too_many(server.complete(R"({"prompt":"abc","max_tokens":510})").body);
  CHECK(too_many.string("/error/param") == "max_tokens");
  CHECK_THAT(too_many.string("/error/message"), Catch::StartsWith(beginning) && Catch::Contains("max_tokens from 510"));
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    const HttpReply chat =
        server.chat(fmt::format(R"({{"messages":[{{"role":"user","content":"c"}}],"{}":512}})", name));
    CHECK(ParsedJson(chat.body).string("/error/param") == name);
    CHECK_THAT(ParsedJson(chat.body).string("/error/message"), Catch::Contains(fmt::format("lower {} from 512", name)));
  }
  const std::string cut = fmt::format(R"({{"prompt":"{}","truncate_prompt_tokens":10}})", std::string(600, 'x'));
  REQUIRE(server.complete(cut).status == 200);
  CHECK(server.engine.seen().back().prompt.size() == 10);
  const auto fitting = [&](std::string_view more) {
    return server.complete(
        fmt::format(R"({{"prompt":"{}","truncate_prompt_tokens":-1{}}})", std::string(600, 'x'), more));
  };
  REQUIRE(fitting("").status == 200);
  CHECK(server.engine.seen().back().prompt.size() == 512 - 16);
  for (const auto& [side, kept] : {std::pair("left", "yz"), std::pair("right", "xy")}) {
    const HttpReply one_side = server.complete(
        fmt::format(R"({{"prompt":"xyz","echo":true,"truncate_prompt_tokens":2,"truncation_side":"{}"}})", side));
    CHECK_THAT(ParsedJson(one_side.body).string("/choices/0/text"), Catch::StartsWith(kept));
  }
  REQUIRE(fitting(R"(,"max_tokens":100)").status == 200);
  CHECK(server.engine.seen().back().prompt.size() == 412);
  CHECK(ParsedJson(fitting(R"(,"max_tokens":600)").body).string("/error/param") == "max_tokens");
  CHECK(server.complete(R"({"prompt":""})").status == 400);
}

TEST_CASE("A token beyond the vocabulary of the model is a 400") {
  TestServer server;
  server.engine.info.vocab_size = FakeEngine::kEos;
  const HttpReply reply = server.complete(R"({"prompt":["a","a<eos>"]})");
  CHECK(reply.status == 400);
  const ParsedJson json(reply.body);
  CHECK(json.string("/error/param") == "prompt");
  CHECK_THAT(json.string("/error/message"), Catch::StartsWith("prompt[1]: token 257 ('<eos>')"));
  CHECK(server.chat(R"({"messages":[{"role":"user","content":"<eos>"}]})").status == 400);
  CHECK(server.engine.seen().empty());
  CHECK(server.complete(R"({"prompt":"a<bos>"})").status == 200);
}
