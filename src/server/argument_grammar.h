#pragma once

#include <optional>

#include "base/result.h"
#include "grammar/expression.h"
#include "grammar/json_schema.h"
#include "server/literal_grammar.h"
#include "server/openai/request.h"
#include "server/parameter_grammar.h"
#include "server/uncut_values.h"
#include "text/tool_calls/tool_formats.h"

namespace millrace::server {

/// Builds the expressions of tools' arguments, as one format writes them. Lives as long as build_grammar runs.
class ArgumentGrammar {
 public:
  ArgumentGrammar(const text::ToolCallSyntax& syntax, grammar::Definition& definition);

  /// Returns the arguments that the tool's schema allows, as far as the notation can enforce it.
  [[nodiscard]] Result<grammar::ExpressionPtr> of(const openai::Tool& tool, const grammar::SchemaOptions& options);
  /// Returns the arguments of a custom tool whose input is held to a grammar.
  [[nodiscard]] Result<grammar::ExpressionPtr> of_input(const openai::InputGrammar& input);
  /// Returns the arguments of a tool without a schema.
  [[nodiscard]] grammar::ExpressionPtr any();

 private:
  /// Returns JSON that `make` adds to a definition, without what would cut it.
  template <class Make>
  [[nodiscard]] Result<grammar::ExpressionPtr> json(const Make& make);

  grammar::Definition& definition_;
  std::optional<UncutValues> uncut_;  // of JSON that words may cut
  // Without either the format writes JSON.
  std::optional<ParameterGrammar> parameters_;
  std::optional<LiteralGrammar> literals_;
};

}  // namespace millrace::server
