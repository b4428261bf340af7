#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "grammar/expression.h"
#include "grammar/json_schema.h"
#include "text/tool_calls/parameter_types.h"
#include "text/tool_calls/tool_formats.h"

namespace millrace::server {

/// Builds the expressions of arguments that a format writes parameter by parameter, strings without quotes. A value
/// ends where the parser ends it, so that it holds none of the tags that may do so. Lives as long as build_grammar
/// runs.
class ParameterGrammar {
 public:
  ParameterGrammar(const text::ToolCallSyntax& syntax, grammar::Definition& definition);

  /// Returns the arguments that the schema of a tool allows. A text obeys its bounds and patterns unless that takes too
  /// many states.
  [[nodiscard]] Result<grammar::ExpressionPtr> of(std::string_view schema, const grammar::SchemaOptions& options);
  /// Returns the argument `input` alone, of which `text` are the characters.
  [[nodiscard]] grammar::ExpressionPtr of_input(grammar::ExpressionPtr text);
  /// Returns the arguments of a tool without a schema.
  [[nodiscard]] grammar::ExpressionPtr any();

 private:
  /// Returns the keys of parameters that no schema lists, as the parser reads them.
  [[nodiscard]] std::string key_pattern() const;
  [[nodiscard]] bool can_write_key(std::string_view key) const;
  /// Returns a member whose value the parser reads as one of `types`.
  [[nodiscard]] grammar::ExpressionPtr parameter(const grammar::SchemaMember& member, text::ValueTypes types) const;

  const text::ParameterTags& tags_;
  grammar::Definition& definition_;
  const grammar::RuleIndex free_text_;  // any text and what ends it
};

}  // namespace millrace::server
