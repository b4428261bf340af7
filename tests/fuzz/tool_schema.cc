#include <algorithm>

#include "base/check.h"
#include "fuzz/byte_vocabulary.h"
#include "fuzz/targets.h"
#include "grammar/matcher.h"
#include "server/output_constraint.h"

namespace millrace::fuzz {

void tool_schema(std::string_view input) {
  const size_t end = std::min(input.find('\n'), input.size());
  const size_t blank = std::min(input.find(' '), end);
  const auto format = text::parse_tool_format(input.substr(0, blank));
  if (!format || end == input.size()) return;
  server::OutputConstraint constraint;
  constraint.calls = server::ToolCallConstraint{.format = *format,
                                                .tools = {{.name = "f",
                                                           .parameters = std::string(input.substr(end + 1)),
                                                           .is_strict = input.substr(blank, end - blank) == " strict",
                                                           .path = "tools[0]"}},
                                                .must_call = true};
  const auto built = server::build_grammar(constraint, server::SchemaEnforcement::kAll);
  if (built.has_error()) {
    CHECK(built.error().status == 400 && !built.error().message.empty());
    return;
  }
  const auto grammar = grammar::Grammar::compile(*built, byte_vocabulary(), {kEndToken});
  if (grammar.has_error()) {
    CHECK(grammar.error().code == ErrorCode::kInvalidArgument);
    return;
  }
  grammar::Matcher matcher(*grammar, true);
  for (int i = 0; i < 40 && !matcher.must_end(); ++i) {
    const auto allowed = matcher.allowed();
    if (allowed == nullptr) return;
    TokenId token = 0;
    while (token <= kEndToken && !allowed->contains(token)) ++token;
    CHECK(token <= kEndToken && matcher.advance(token), "a call comes to no end");
    if (token == kEndToken) return;
  }
}

}  // namespace millrace::fuzz
