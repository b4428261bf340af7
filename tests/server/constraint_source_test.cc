#include "server/constraint_source.h"

#include <fmt/core.h>

#include <catch2/catch.hpp>

using namespace millrace;
using namespace millrace::server;

namespace {

OutputConstraint with_format(openai::ResponseFormat::Kind kind, std::vector<std::string> texts) {
  OutputConstraint constraint;
  constraint.response_format = openai::ResponseFormat{
      .kind = kind, .texts = std::move(texts), .field = "response_format", .name = "response_format.schema"};
  return constraint;
}

OutputConstraint with_calls() {
  OutputConstraint constraint = with_format(openai::ResponseFormat::Kind::kJsonSchema, {R"({"type":"object"})"});
  constraint.reasoning = ReasoningMode::kOpened;
  constraint.reasoning_format = text::ReasoningFormat::kHarmony;
  constraint.prefix = "\"begun\n\xc3\xa4";
  constraint.calls = ToolCallConstraint{
      .format = text::ToolFormat::kHarmony,
      .tools = {{.name = "find", .parameters = R"({"a":1})", .is_strict = true, .path = "tools[0].function"},
                {.name = "go", .parameters = "", .is_strict = false, .path = "tools[1].function"}},
      .must_call = true,
      .allow_parallel = false};
  return constraint;
}

}  // namespace

TEST_CASE("every constraint survives as the source of a grammar") {
  using Kind = openai::ResponseFormat::Kind;
  const OutputConstraint constraint =
      GENERATE(with_format(Kind::kJsonObject, {}), with_format(Kind::kJsonSchema, {R"({"enum":["\u0000",1e2]})"}),
               with_format(Kind::kRegex, {R"(\d+"\\)"}), with_format(Kind::kGrammar, {"root ::= \"a\"\n"}),
               with_format(Kind::kChoice, {"north", "",
                                           "s\xc3\xbc"
                                           "d"}),
               with_calls());
  const auto read = decode_constraint(encode_constraint(constraint));
  REQUIRE(read.has_value());
  REQUIRE(encode_constraint(*read) == encode_constraint(constraint));
  REQUIRE(read->response_format->field == constraint.response_format->field);
  REQUIRE(read->response_format->name == constraint.response_format->name);
  REQUIRE(read->calls.has_value() == constraint.calls.has_value());
  for (size_t i = 0; constraint.calls && i < constraint.calls->tools.size(); ++i)
    REQUIRE(read->calls->tools[i].path == constraint.calls->tools[i].path);
}

TEST_CASE("a malformed source of a grammar is refused") {
  const std::string source = encode_constraint(with_calls());
  const auto replaced = [&source](const std::string& part, const std::string& by) {
    std::string changed = source;
    changed.replace(changed.find(part), part.size(), by);
    return changed;
  };
  for (const std::string& bad :
       {std::string("{"), std::string("[]"), replaced("\"kind\":1", "\"kind\":9"), replaced("\"find\"", "7"),
        replaced("\"reasoning\":2", "\"reasoning\":3"), replaced("\"must_call\":true", "\"must_call\":1"),
        replaced("harmony", "unknown"),
        replaced(fmt::format("\"format\":{}", static_cast<int>(text::ToolFormat::kHarmony)), "\"format\":99")}) {
    INFO(bad);
    const auto read = decode_constraint(bad);
    REQUIRE(read.has_error());
    REQUIRE(read.error().code == ErrorCode::kData);
  }
}
