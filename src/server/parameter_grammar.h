#pragma once

#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"
#include "grammar/expression.h"
#include "grammar/json_schema.h"
#include "text/tool_calls/tool_formats.h"

namespace millrace::server {

/// Builds the expressions of arguments that a format writes parameter by parameter, strings without quotes. A value
/// ends where the parser ends it, so that it holds none of the tags that may do so. Lives as long as build_grammar
/// runs.
class ParameterGrammar {
 public:
  ParameterGrammar(const text::ToolCallSyntax& syntax, grammar::Definition& definition);

  /// Returns the arguments that the schema of a tool allows. Texts obey "enum" only.
  [[nodiscard]] Result<grammar::ExpressionPtr> of(JsonValue schema, const grammar::SchemaOptions& options);
  /// Returns the argument `input` alone, a text of another definition.
  [[nodiscard]] Result<grammar::ExpressionPtr> of_input(const grammar::Definition& source);
  /// Returns the arguments of a tool without a schema.
  [[nodiscard]] grammar::ExpressionPtr any();

 private:
  [[nodiscard]] Result<grammar::ExpressionPtr> parameter(std::string_view key, JsonValue property, JsonValue root,
                                                         const grammar::SchemaOptions& options);
  /// Returns a text and what ends it. Only an "enum" of the schema constrains the text.
  [[nodiscard]] Result<grammar::ExpressionPtr> text_value(std::string_view key, JsonValue property) const;
  /// Returns the JSON that the schema of a value allows.
  [[nodiscard]] Result<grammar::ExpressionPtr> json_value(std::string_view schema,
                                                          const grammar::SchemaOptions& options);
  /// Returns any text and what ends it.
  [[nodiscard]] grammar::ExpressionPtr free_text() const;

  const text::ParameterTags& tags_;
  const std::vector<std::string_view> value_ends_;
  grammar::Definition& definition_;
};

}  // namespace millrace::server
