#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "base/log.h"
#include "server/openai/request.h"
#include "support/captured_log.h"

using namespace millrace;
using namespace millrace::server::openai;
using millrace::test::CapturedLog;

namespace {

const RequestLimits kRequestLimits{.vocab_size = 1000, .max_choices = 64};

/// Returns the param of the refusal, or "ok".
std::string completion_outcome(const std::string& member) {
  const auto parsed = parse_completion_request(fmt::format(R"({{"prompt":"p",{}}})", member), kRequestLimits);
  return parsed.has_error() ? parsed.error().param : "ok";
}

std::string chat_outcome(const std::string& member) {
  const auto parsed =
      parse_chat_request(fmt::format(R"({{"messages":[{{"role":"user","content":"c"}}],{}}})", member), kRequestLimits);
  return parsed.has_error() ? parsed.error().param : "ok";
}

/// Returns a JSON array of stop strings of one length.
std::string stops(size_t count, size_t length = 1) {
  std::string list;
  for (size_t i = 0; i < count; ++i) list += fmt::format("{}\"{}\"", i == 0 ? "" : ",", std::string(length, 'x'));
  return '[' + list + ']';
}

std::string messages_outcome(const std::string& messages) {
  const auto parsed = parse_chat_request(fmt::format(R"({{"messages":{}}})", messages), kRequestLimits);
  return parsed.has_error() ? parsed.error().param : "ok";
}

/// Values of one field, and whether the parser accepts them.
struct Case {
  const char* name;
  std::vector<const char*> good;
  std::vector<const char*> bad;
};

void check(const std::vector<Case>& cases) {
  for (const Case& item : cases) {
    for (const char* value : item.good) {
      INFO(item.name << " " << value);
      CHECK(completion_outcome(fmt::format("\"{}\":{}", item.name, value)) == "ok");
    }
    for (const char* value : item.bad) {
      INFO(item.name << " " << value);
      const std::string outcome = completion_outcome(fmt::format("\"{}\":{}", item.name, value));
      CHECK(outcome.substr(0, outcome.find('.')) == item.name);
    }
  }
}

}  // namespace

TEST_CASE("Every bound is kept and every bad value names its field") {
  const std::vector<Case> cases = {
      {"temperature", {"0", "2", "0.5", "null"}, {"-0.1", "2.1", "\"1\"", "true", "[]"}},
      {"top_p", {"1", "0.001", "0"}, {"1.01", "-1"}},
      {"min_p", {"0", "1"}, {"-0.1", "1.1"}},
      {"top_k", {"-1", "0", "50"}, {"-2", "1.5", "\"k\"", "3000000000"}},
      {"n", {"1", "64", "2.0"}, {"0", "65", "-1", "1.5", "1e300"}},
      {"max_tokens", {"1", "100000"}, {"0", "-1", "1e10", "{}", "18446744073709551615"}},
      {"presence_penalty", {"-2", "2"}, {"-2.1", "2.1"}},
      {"frequency_penalty", {"-2", "2"}, {"-2.1", "2.1"}},
      {"repetition_penalty", {"0.1", "2"}, {"0", "-1", "11"}},
      {"seed", {"0", "-9223372036854775808", "9223372036854775807"}, {"1.5", "9223372036854775808", "\"s\""}},
      {"stop", {"\"x\"", "[\"a\",\"b\"]", "[]", "null"}, {"\"\"", "[\"a\",\"\"]", "[1]", "5"}},
      {"stop_token_ids", {"[]", "[999]", "[2.0,3e1]"}, {"[1000]", "[-1]", "[\"a\"]", "5"}},
      {"logit_bias",
       {"{}", "{\"999\":100}"},
       {"{\"1000\":1}", "{\"-1\":1}", "{\"x\":1}", "{\"5\":101}", "{\"5\":\"a\"}", "[]"}},
      {"logprobs", {"0", "20"}, {"21", "-1", "true"}},
      {"prompt_logprobs", {"0", "20"}, {"21", "-1"}},
      {"min_tokens", {"0"}, {"-1"}},
      {"echo", {"true"}, {"1", "\"true\""}},
      {"stream", {"true"}, {"1"}},
      {"ignore_eos", {"true"}, {"0"}},
      {"priority", {"0", "null"}, {"1.5", "5", "-5"}},
      {"truncate_prompt_tokens", {"1", "-1"}, {"0", "-2"}},
      {"request_id", {"\"abc\""}, {"5"}},
      {"model", {"\"m\""}, {"5"}},
      {"tools", {"[]"}, {}},
      {"suffix", {"\"\""}, {"\"end\""}},
      {"best_of", {"1"}, {"2"}},
      {"stop_regex", {"\"\"", "null"}, {"\"a+\"", "[\"a+\"]"}},
      {"no_stop_trim", {"false"}, {"true"}},
      {"samplers", {"[]"}, {"[\"top_k\"]", "\"k\""}},
      {"thinking_token_budget", {"null"}, {"0", "100"}},
      {"n_predict", {"-1", "null"}, {"16", "0"}},
      {"typical_p", {"1", "1.0", "false"}, {"0.9", "\"1\""}},
      {"mirostat", {"0", "0.0"}, {"1", "true"}},
      {"dry_multiplier", {"0"}, {"0.8"}},
      {"xtc_probability", {"0"}, {"0.5"}},
      {"dynatemp_range", {"0"}, {"0.2"}},
      {"smoothing_factor", {"0", "null"}, {"0.3"}},
      {"top_n_sigma", {"-1", "0", "-1.0", "null"}, {"1", "2.5", "true"}},
      {"thinking_budget", {"-1", "null"}, {"0", "100"}},
      {"thinking_budget_tokens", {"-1"}, {"512"}},
      {"detokenize", {"true", "null"}, {"false", "0", "\"\""}},
      {"parse_tool_calls", {"true"}, {"false"}},
      {"token_ids_logprob", {"[]", "null"}, {"[5]", "5"}},
      {"return_logprob", {"false"}, {"true"}},
      {"top_logprobs_num", {"0"}, {"2"}},
      {"n_probs", {"0"}, {"3"}},
      {"t_max_predict_ms", {"0", "-1"}, {"100"}},
      {"num_beams", {"1"}, {"4"}},
      {"vllm_xargs", {"{}"}, {"{\"a\":1}"}},
      {"repeat_penalty", {"0.1", "2"}, {"0", "11"}},
      {"rid", {"\"abc\""}, {"5", "[\"a\"]"}},
      {"return_tokens_as_token_ids", {"true"}, {"1"}},
      {"truncation_side", {"\"left\"", "\"right\"", "null"}, {"\"middle\"", "\"\"", "1"}},
      {"unknown_field", {"5", "{\"deep\":[1]}"}, {}},
  };
  check(cases);
}

TEST_CASE("Output constraints are read in every dialect") {
  check({
      {"guided_json", {"{\"type\":\"object\"}", "\"{}\"", "{}", "null"}, {"5", "[]", "true", "\"\""}},
      {"json_schema", {"{}", "\"{}\""}, {"5", "[]", "\"\""}},
      {"response_format",
       {"{\"type\":\"text\"}", "{\"type\":\"json_object\"}", "{\"type\":\"json_schema\",\"json_schema\":{}}",
        "{\"type\":\"json_object\",\"schema\":null}", "{\"type\":\"json_object\",\"schema\":{\"type\":\"null\"}}",
        "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":\"null\"},\"name\":\"a\",\"strict\":true}}"},
       {"{}", "5", "{\"type\":5}", "{\"type\":\"yaml\"}", "{\"type\":\"json_object\",\"schema\":[]}",
        "{\"type\":\"json_schema\"}", "{\"type\":\"json_schema\",\"json_schema\":5}",
        "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":[]}}"}},
      {"structured_outputs",
       {"{}", "{\"json\":{}}", "{\"json\":\"{}\"}", "{\"regex\":\"a\"}", "{\"choice\":[\"a\"]}", "{\"grammar\":\"a\"}",
        "{\"json_object\":true}", "{\"json_object\":false}", "{\"regex\":null}", "{\"other\":5}"},
       {"5", "[]", "{\"json\":5}", "{\"regex\":5}", "{\"choice\":[\"\"]}", "{\"choice\":\"a\"}", "{\"json_object\":1}",
        "{\"structural_tag\":\"a\"}", "{\"whitespace_pattern\":\"a\"}", "{\"json\":\"\"}", "{\"regex\":\"\"}",
        "{\"choice\":[]}", "{\"grammar\":\"\"}"}},
      {"guided_regex", {"\"a+\"", "null"}, {"5", "{}", "\"\""}},
      {"regex", {"\"a+\""}, {"5", "\"\""}},
      {"guided_grammar", {"\"root ::= a\""}, {"5", "\"\""}},
      {"grammar", {"\"root ::= a\""}, {"5", "\"\""}},
      {"ebnf", {"\"root ::= a\""}, {"5", "\"\""}},
      {"guided_choice", {"[\"a\",\"b\"]", "null"}, {"[\"a\",\"\"]", "[1]", "\"a\"", "[]"}},
  });
}

TEST_CASE("A JSON object may have a schema") {
  const auto format_of = [](const std::string& format) {
    const auto request =
        parse_completion_request(R"({"prompt":"p","response_format":)" + format + "}", kRequestLimits).value();
    return request.response_format.value();
  };
  using Kind = ResponseFormat::Kind;
  const auto with = format_of(R"({"type":"json_object","schema":{"type":"object","required":["a"]}})");
  CHECK(with.kind == Kind::kJsonSchema);
  CHECK(with.name == "response_format.schema");
  CHECK(with.texts == std::vector<std::string>{R"({"type":"object","required":["a"]})"});
  CHECK(format_of(R"({"type":"json_object"})").kind == Kind::kJsonObject);
  CHECK(format_of(R"({"type":"json_object","schema":null})").kind == Kind::kJsonObject);
  CHECK(format_of(R"({"type":"json_object","schema":{}})").kind == Kind::kJsonObject);
}

TEST_CASE("An empty output constraint is refused by its member") {
  const auto message_of = [](const std::string& member) {
    return parse_completion_request(R"({"prompt":"p",)" + member + "}", kRequestLimits).error().message;
  };
  for (const std::string name : {"json", "regex", "grammar", "choice"}) {
    const std::string empty = name == "choice" ? "[]" : R"("")";
    CHECK(message_of(fmt::format(R"("guided_{}":{})", name, empty)).starts_with(fmt::format("guided_{}: ", name)));
    CHECK(message_of(fmt::format(R"("structured_outputs":{{"{}":{}}})", name, empty))
              .starts_with(fmt::format("structured_outputs.{}: ", name)));
  }
}

TEST_CASE("Relations between fields are checked") {
  CHECK(completion_outcome(R"("stream_options":{"include_usage":true})") == "stream_options");
  CHECK(completion_outcome(R"("stream":true,"stream_options":{"include_usage":true})") == "ok");
  CHECK(completion_outcome(R"("stream":true,"stream_options":{"include_usage":1})") == "stream_options.include_usage");
  CHECK(completion_outcome(R"("max_tokens":2,"min_tokens":3)") == "min_tokens");
  CHECK(parse_completion_request(R"({"prompt":"p","n":65})", kRequestLimits).error().message ==
        "n: found 65, wanted at most 64 (--max-choices)");
  const auto ids = [](size_t count) {
    std::string list = "[1";
    for (size_t i = 1; i < count; ++i) list += ",1";
    return "\"stop_token_ids\":" + list + "]";
  };
  CHECK(completion_outcome("\"stop\":" + stops(16)) == "ok");
  CHECK(completion_outcome("\"stop\":" + stops(17)) == "stop");
  CHECK(completion_outcome("\"stop\":" + stops(4, 1024)) == "ok");
  CHECK(completion_outcome("\"stop\":" + stops(5, 1024)) == "stop");
  const auto stop = [](size_t length) { return fmt::format("\"stop\":[\"{}\"]", std::string(length, 'x')); };
  CHECK(completion_outcome(stop(1024)) == "ok");
  CHECK(completion_outcome(stop(1025)) == "stop");
  CHECK(completion_outcome(ids(4096)) == "ok");
  CHECK(completion_outcome(ids(4097)) == "stop_token_ids");
  CHECK(completion_outcome(R"("max_tokens":0,"echo":true)") == "ok");
  CHECK(completion_outcome(R"("stream":true,"prompt_logprobs":1)") == "prompt_logprobs");
  CHECK(chat_outcome(R"("top_logprobs":3)") == "top_logprobs");
  CHECK(chat_outcome(R"("top_logprobs":3,"logprobs":true)") == "ok");
  CHECK(chat_outcome(R"("logprobs":1)") == "logprobs");
  CHECK(chat_outcome(R"("max_tokens":0)") == "max_tokens");
  CHECK(chat_outcome(R"("tools":[{"type":"function"}])") == "tools[0]");
  CHECK(chat_outcome(R"("tools":[{"function":{"name":"f"}},{"function":{}}])") == "tools[1].function");
  CHECK(chat_outcome(R"("tools":[{"function":{"name":"f","parameters":1}}])") == "tools[0].function.parameters");
  CHECK(chat_outcome(R"("echo":true)") == "echo");
  CHECK(chat_outcome(R"("echo":false)") == "ok");
  CHECK(chat_outcome(R"("tool_choice":"required")") == "tool_choice");
  CHECK(chat_outcome(R"("tool_choice":"none")") == "ok");
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":)";
  CHECK(chat_outcome(tools + "\"required\"") == "ok");
  CHECK(chat_outcome(tools + R"({"type":"function","function":{"name":"f"}})") == "ok");
  CHECK(chat_outcome(tools + R"({"type":"function","function":{"name":"g"}})") == "tool_choice");
  CHECK(chat_outcome(R"("reasoning_effort":"some")") == "reasoning_effort");
  CHECK(chat_outcome(R"("tool_choice":"none","functions":[{"name":"f"}],"function_call":"none")") == "ok");
  CHECK(chat_outcome(R"("functions":[{"name":"f"}],"tool_choice":"none")") == "functions");
  CHECK(chat_outcome(R"("tools":{"type":"function"},"tool_choice":"none")") == "tools");
  CHECK(chat_outcome(R"("chat_template":"x")") == "ok");
  CHECK(chat_outcome(R"("chat_template":1)") == "chat_template");
  CHECK(chat_outcome(R"("documents":[{"text":"a"}])") == "ok");
  CHECK(chat_outcome(R"("documents":["a"])") == "documents[0]");
  CHECK(chat_outcome(R"("chat_template_kwargs":[])") == "chat_template_kwargs");
  CHECK(chat_outcome(R"("continue_final_message":true)") == "continue_final_message");
  const auto parsed = parse_chat_request(
      R"({"messages":[{"role":"user","content":"c"}],"max_tokens":5,"max_completion_tokens":7})", kRequestLimits);
  CHECK(parsed->max_tokens == 7u);
}

TEST_CASE("A priority counts only where the queue goes by them") {
  RequestLimits limits = kRequestLimits;
  const auto outcome = [&](const char* value) {
    const auto parsed = parse_completion_request(fmt::format(R"({{"prompt":"p","priority":{}}})", value), limits);
    return parsed.has_error() ? parsed.error().message : "ok";
  };
  CHECK_THAT(outcome("5"),
             Catch::StartsWith("priority: found 5, but") && Catch::Contains("--schedule-policy priority"));
  limits.has_priorities = true;
  for (const char* good : {"5", "-2147483648", "2147483647"}) CHECK(outcome(good) == "ok");
  for (const char* bad : {"-2147483649", "2147483648"}) CHECK_THAT(outcome(bad), Catch::Contains("wanted an integer"));
}

TEST_CASE("How many alternatives a token may have is said at the start") {
  RequestLimits limits = kRequestLimits;
  limits.max_logprobs = 100;
  for (const char* name : {"logprobs", "prompt_logprobs"}) {
    const auto parsed = [&](int count) {
      return parse_completion_request(fmt::format(R"({{"prompt":"p","{}":{}}})", name, count), limits);
    };
    CHECK(parsed(100).has_value());
    CHECK(parsed(101).error().message == fmt::format("{}: found 101, wanted at most 100 (--max-logprobs)", name));
  }
  const auto chat =
      parse_chat_request(R"({"messages":[{"role":"user","content":"c"}],"logprobs":true,"top_logprobs":100})", limits);
  REQUIRE(chat.has_value());
  CHECK(chat->top_logprobs == 100);
}

TEST_CASE("Names that other servers have mean the same") {
  const auto parsed = parse_completion_request(
      R"({"prompt":"p","rid":"mine","repeat_penalty":1.5,"truncation_side":"right"})", kRequestLimits);
  REQUIRE(parsed.has_value());
  CHECK(parsed->request_id == "mine");
  CHECK(parsed->repetition_penalty == 1.5f);
  CHECK(parsed->keep_prompt_start);
}

TEST_CASE("Ignored members are logged at debug without their values") {
  const std::string body = fmt::format(R"({{"prompt":"p","n":1,"user":"secret","two words\u001b":"secret",{}"{}":1}})",
                                       R"("tools":[],"typical_p":1,"temperature":1,"x":null,)", std::string(100, 'y'));
  const auto logged = [&body](log::Level level) {
    log::configure(level, false);
    const CapturedLog captured;
    CHECK(parse_completion_request(body, kRequestLimits).has_value());
    log::configure(log::Level::kError, false);
    return captured.text();
  };
  CHECK(logged(log::Level::kInfo).empty());
  CHECK_THAT(logged(log::Level::kDebug), Catch::Contains("a request's members that are ignored: user, two?words?, x, " +
                                                         std::string(64, 'y') + "\n"));
}

TEST_CASE("A member may come any number of times") {
  const auto outcome = [](std::string members, std::string_view unit) {
    while (members.size() < 16u << 20) members += unit;
    return completion_outcome(members + R"("tool_choice":"none")");
  };
  CHECK(outcome("", R"("tools":[1],)") == "ok");
  CHECK(outcome(R"("tools":5,)", R"("tools":[1],)") == "tools");
  CHECK(outcome(R"("functions":[1],)", R"("tools":[1],)") == "functions");
}

TEST_CASE("Prompts come in four forms") {
  const auto count = [](const char* prompt) {
    const auto parsed = parse_completion_request(fmt::format(R"({{"prompt":{}}})", prompt), kRequestLimits);
    return parsed.has_error() ? -1 : static_cast<int>(parsed->prompts.size());
  };
  CHECK(count(R"("text")") == 1);
  CHECK(count(R"(["a","b"])") == 2);
  CHECK(count("[1,2,3]") == 1);
  CHECK(count("[[1],[2,3]]") == 2);
  for (const char* bad : {"[]", "5", "{}", "[1,\"a\"]", "[\"a\",1]", "[[1],2]", "[true]", "[1000]", "[1.5]", "null"}) {
    INFO(bad);
    CHECK(count(bad) == -1);
  }
}

TEST_CASE("Messages are text and other parts are named") {
  CHECK(messages_outcome(R"([{"role":"user","content":"a"}])") == "ok");
  const std::string parts = R"([{"type":"text","text":"a"},{"type":"text","text":"b"}])";
  CHECK(messages_outcome(fmt::format(R"([{{"role":"user","content":{}}}])", parts)) == "ok");
  const std::string image = R"([{"type":"image_url","image_url":{}}])";
  CHECK(messages_outcome(fmt::format(R"([{{"role":"user","content":{}}}])", image)) == "messages[0].content");
  CHECK(messages_outcome(R"([{"role":"user"}])") == "messages[0].content");
  CHECK(messages_outcome(R"([{"content":"a"}])") == "messages[0].role");
  CHECK(messages_outcome(R"([{"role":"user","content":"a"},{"role":"tool","content":"b"}])") == "ok");
  CHECK(messages_outcome(R"([{"role":"user","content":"a"},{"role":"tool"}])") == "ok");
  CHECK(messages_outcome(R"([{"role":"user","content":"a"},{"role":"tool","content":null}])") == "ok");
  CHECK(messages_outcome(R"([{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}])") == "ok");
  CHECK(messages_outcome(R"([{"role":"user","content":[{"type":"text","text":"t","refusal":true}]}])") ==
        "messages[0].content.refusal");
  CHECK(messages_outcome(R"([{"role":"assistant","content":[{"type":"refusal","text":"no"}]}])") ==
        "messages[0].content");
  CHECK(messages_outcome(R"([{"role":"robot","content":"b"}])") == "messages[0].role");
  CHECK(messages_outcome(R"([{"role":"assistant","tool_calls":[{}]}])") == "messages[0].tool_calls[0]");
  CHECK(messages_outcome(R"([{"role":"user","content":"a","tool_calls":[{"function":{"name":"f"}}]}])") ==
        "messages[0].tool_calls");
  CHECK(messages_outcome(R"([{"role":"assistant","content":null}])") == "ok");
  CHECK(messages_outcome(R"([5])") == "messages[0]");
  CHECK(messages_outcome("[]") == "messages");
  CHECK(messages_outcome("{}") == "messages");
  const auto parsed =
      parse_chat_request(fmt::format(R"({{"messages":[{{"role":"developer","content":{}}}]}})", parts), kRequestLimits);
  CHECK(parsed->conversation.messages[0].content == "a\nb");
  CHECK(parsed->conversation.messages[0].parts == std::vector<std::string>{"a", "b"});
  CHECK(parsed->conversation.messages[0].role == "system");
}

TEST_CASE("Parts may have the types of other APIs") {
  const auto parsed = parse_chat_request(
      R"({"messages":[{"role":"user","content":[{"type":"input_text","text":"q"}]},{"role":"assistant","content":[)"
      R"({"type":"thinking","thinking":[{"type":"text","text":"h"},{"type":"text","text":"m"}],"closed":true},)"
      R"({"type":"thinking","thinking":"!"},{"type":"output_text","text":"a"}]}]})",
      kRequestLimits);
  REQUIRE(parsed.has_value());
  CHECK(parsed->conversation.messages[0].content == "q");
  CHECK(parsed->conversation.messages[1].content == "a");
  CHECK(parsed->conversation.messages[1].reasoning == "h\nm!");
  CHECK(messages_outcome(R"([{"role":"user","content":[{"type":"thinking","thinking":"t"}]}])") ==
        "messages[0].content");
  CHECK(messages_outcome(R"([{"content":[{"type":"thinking","thinking":5}],"role":"assistant"}])") ==
        "messages[0].content.thinking");
}

TEST_CASE("Of repeated members the last counts") {
  const std::string body =
      R"({"prompt":["a","b"],"prompt":"c","stop":"x","stop":["y"],"stop_token_ids":[1],"stop_token_ids":[2]})";
  const auto parsed = parse_completion_request(body, kRequestLimits);
  REQUIRE(parsed.has_value());
  CHECK(parsed->prompts.size() == 1);
  CHECK(parsed->stop == std::vector<std::string>{"y"});
  CHECK(parsed->stop_token_ids == std::vector<TokenId>{2});
}

TEST_CASE("Of repeated contents of a message the last counts") {
  const auto parsed = parse_chat_request(
      R"({"messages":[{"role":"user","content":"a","content":[{"type":"text","text":"b"}]}]})", kRequestLimits);
  REQUIRE(parsed.has_value());
  CHECK(parsed->conversation.messages[0].content == "b");
}

TEST_CASE("Rendering refuses the same prompt options as chat") {
  const std::string body = R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function"}]})";
  CHECK(parse_tokenize_request(body, kRequestLimits).error().param == "tools[0]");
  CHECK(parse_template_request(body, kRequestLimits).error().param == "tools[0]");
}

/// The message of the refusal, or "ok".
std::string chat_message(const std::string& members) {
  const auto parsed = parse_chat_request(fmt::format(R"({{"messages":[{{"role":"user","content":"c"}}],{}}})", members),
                                         kRequestLimits);
  return parsed.has_error() ? parsed.error().message : "ok";
}

TEST_CASE("A number out of range is refused with the range") {
  struct Ranged {
    std::string name;
    std::string wanted;
  };
  const std::vector<Ranged> integers = {{"seed", "an integer in [-9223372036854775808, 9223372036854775807]"},
                                        {"max_tokens", "an integer in [1, 2147483647]"},
                                        {"max_completion_tokens", "an integer in [1, 2147483647]"},
                                        {"min_tokens", "an integer in [0, 2147483647]"},
                                        {"n", "an integer in [1, 64]"},
                                        {"top_k", "an integer in [-1, 2147483647]"},
                                        {"top_logprobs", "an integer in [0, 20]"},
                                        {"priority", "an integer in [-2147483648, 2147483647]"},
                                        {"truncate_prompt_tokens", "an integer in [-1, 2147483647]"},
                                        {"prompt_logprobs", "an integer in [0, 20]"},
                                        {"best_of", "an integer in [1, 1024]"}};
  for (const auto& [name, wanted] : integers) {
    for (const char* number : {"18446744073709551615", "18446744073709551616", "-9223372036854775809",
                               "1000000000000000019884624838656", "1e30", "1e400", "-1e400"}) {
      CHECK(chat_message(fmt::format("\"{}\":{}", name, number)) ==
            fmt::format("{}: found {}, wanted {}", name, number, wanted));
    }
    CHECK(chat_message(fmt::format("\"{}\":1.5", name)) == fmt::format("{}: found 1.5, wanted an integer", name));
  }
  const std::vector<Ranged> numbers = {{"temperature", "a number in [0, 2]"},
                                       {"top_p", "a number in [0, 1]"},
                                       {"min_p", "a number in [0, 1]"},
                                       {"presence_penalty", "a number in [-2, 2]"},
                                       {"frequency_penalty", "a number in [-2, 2]"},
                                       {"repetition_penalty", "a number in [0.001, 10]"}};
  for (const auto& [name, wanted] : numbers) {
    for (const char* number : {"18446744073709551616", "-1e400", "1e400"}) {
      CHECK(chat_message(fmt::format("\"{}\":{}", name, number)) ==
            fmt::format("{}: found {}, wanted {}", name, number, wanted));
    }
  }
  CHECK(chat_message(R"("stop_token_ids":[18446744073709551616])") ==
        "stop_token_ids: token id 18446744073709551616 is outside the vocabulary of 1000 tokens");
  CHECK(chat_message(R"("logit_bias":{"1":1e400})") == "logit_bias: found 1e400, wanted a number in [-100, 100]");
  const std::string long_number(100'000, '7');
  CHECK(chat_message(fmt::format("\"seed\":{}", long_number)).size() < 250);
  CHECK(completion_outcome(R"("prompt":[18446744073709551616])") == "prompt");
}

TEST_CASE("Integers may be written as other servers accept them") {
  const auto seed = [](const char* number) {
    const auto parsed = parse_completion_request(fmt::format(R"({{"prompt":"p","seed":{}}})", number), kRequestLimits);
    return parsed.has_value() ? parsed->seed : std::nullopt;
  };
  CHECK(seed("7.0") == 7u);
  CHECK(seed("1e2") == 100u);
  CHECK(seed("-0") == 0u);
  CHECK(seed("-0.0") == 0u);
  CHECK(seed("9223372036854775807") == 9223372036854775807u);
  CHECK(seed("-9223372036854775808") == uint64_t{1} << 63);
  CHECK(completion_outcome(R"("n":2.0,"best_of":2)") == "ok");
}

TEST_CASE("Numbers without a range keep their text") {
  const std::string number = "1000000000000000019884624838656";
  const auto parsed = parse_chat_request(
      fmt::format(R"({{"messages":[{{"role":"user","content":"c"}},{{"role":"assistant","tool_calls":[{{"function":)"
                  R"({{"name":"f","arguments":{{"id":{0},"x":1.0,"y":1e400,"z":-0}}}}}}]}}],"metadata":{{"a":{0}}},)"
                  R"("tools":[{{"type":"function","function":{{"name":"f","parameters":{{"type":"object",)"
                  R"("properties":{{"id":{{"maximum":18446744073709551616,"minimum":1E2}}}}}}}}}}],)"
                  R"("chat_template_kwargs":{{"k":18446744073709551615}}}})",
                  number),
      kRequestLimits);
  if (parsed.has_error()) FAIL(parsed.error().message);
  const Conversation& conversation = parsed->conversation;
  CHECK(conversation.messages[1].tool_calls[0].arguments ==
        fmt::format(R"({{"id":{},"x":1.0,"y":1e400,"z":-0}})", number));
  CHECK(conversation.tools[0].parameters ==
        R"({"type":"object","properties":{"id":{"maximum":18446744073709551616,"minimum":1E2}}})");
  CHECK(conversation.tools_json.find("18446744073709551616") != std::string::npos);
  CHECK(conversation.chat_template_kwargs == R"({"k":18446744073709551615})");
}

TEST_CASE("A body may begin with a byte-order mark") {
  const auto parsed = parse_completion_request("\xEF\xBB\xBF{\"prompt\":\"p\"}", kRequestLimits);
  CHECK(parsed.has_value());
}

TEST_CASE("A body that is no JSON is answered with where it is not") {
  const auto message = [](const std::string& body) { return parse_chat_request(body, kRequestLimits).error().message; };
  const std::string begin = "the request body is not valid JSON: line 1, column ";
  CHECK(message(R"({"temperature":NaN})") == begin + "16: found NaN, wanted a value");
  CHECK(message(R"({"seed":01})") == begin + "9: found 01, wanted a value");
  CHECK(message(R"({"a":"\ud800"})") ==
        begin + "6: the string has an escape that JSON lacks, or half of a surrogate pair");
  CHECK(message("{\"a\":\"\xC3\"}") == begin + "7: byte 0xc3 is not valid UTF-8");
  CHECK(message(R"({"a":1)") == begin + "7: the text ends, wanted ',' or '}'");
  CHECK(message("{\"a\":" + std::string(512, '[')) == begin + "517: it is nested more than 512 deep");
}

TEST_CASE("Bodies that are not a JSON object are refused") {
  std::string deep = R"({"prompt":"p","x":)";
  for (int i = 0; i < 600; ++i) deep += '[';
  for (int i = 0; i < 600; ++i) deep += ']';
  deep += '}';
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("[]"), std::string("\"a\""), std::string(R"({"temperature":NaN})"),
        std::string(R"({"prompt":"p","temperature":1e999})"), std::string("{\"prompt\":\"\xFF\"}"), deep,
        std::string(R"({"prompt":"p","seed":99999999999999999999999})")}) {
    INFO(body);
    const auto parsed = parse_completion_request(body, kRequestLimits);
    REQUIRE(parsed.has_error());
    CHECK(parsed.error().status == 400);
  }
}
