#pragma once

#include <optional>

#include "base/result.h"
#include "grammar/expression.h"
#include "grammar/json_notation.h"
#include "grammar/json_schema.h"
#include "grammar/uncut_values.h"
#include "server/openai/request.h"
#include "server/parameter_grammar.h"
#include "text/tool_calls/tool_formats.h"

namespace millrace::server {

/// Builds the expressions of tools' arguments, as one format writes them. Lives as long as build_grammar runs.
class ArgumentGrammar {
 public:
  ArgumentGrammar(const text::ToolCallSyntax& syntax, grammar::Definition& definition);

  /// Returns the arguments that the tool's schema allows, as far as the notation can enforce it.
  [[nodiscard]] Result<grammar::ExpressionPtr> of(const openai::Tool& tool, grammar::SchemaOptions options);
  /// Returns the arguments of a custom tool whose input is held to a grammar.
  [[nodiscard]] Result<grammar::ExpressionPtr> of_input(const openai::InputGrammar& input);
  /// Returns the arguments of a tool without a schema.
  [[nodiscard]] grammar::ExpressionPtr any();

 private:
  grammar::Definition& definition_;
  std::optional<grammar::UncutValues> uncut_;
  grammar::JsonNotation notation_;  // of values, or of texts that parameters have
  std::optional<ParameterGrammar> parameters_;
};

}  // namespace millrace::server
