#pragma once

#include <string_view>
#include <vector>

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
  /// Returns the argument `input` alone, a text of another definition.
  [[nodiscard]] Result<grammar::ExpressionPtr> of_input(const grammar::Definition& source);
  /// Returns the arguments of a tool without a schema.
  [[nodiscard]] grammar::ExpressionPtr any();

 private:
  using Tags = std::vector<std::string_view>;

  [[nodiscard]] std::string key_pattern() const;
  [[nodiscard]] bool can_write_key(std::string_view key) const;
  /// Returns a member of the schema that `source` was read from. The parser reads its value as one of `types`.
  [[nodiscard]] Result<grammar::ExpressionPtr> parameter(const grammar::SchemaMember& member,
                                                         const text::ValueTypes& types, grammar::Definition& source);
  /// Returns a text and what ends it.
  [[nodiscard]] Result<grammar::ExpressionPtr> text_value(const grammar::SchemaMember& member,
                                                          grammar::Definition& source);
  /// Returns JSON without the tags that end a value, and its end.
  [[nodiscard]] grammar::ExpressionPtr json_value(const grammar::ExpressionPtr& json, grammar::Definition& source);
  /// Returns a value without the tags, or nothing if that takes too many states.
  [[nodiscard]] grammar::ExpressionPtr without(const Tags& tags, const grammar::ExpressionPtr& value,
                                               grammar::Definition& source);
  /// Returns any text and what ends it.
  [[nodiscard]] grammar::ExpressionPtr free_text() const;

  const text::ParameterTags& tags_;
  const Tags value_ends_;
  std::string_view common_part_;  ///< of all value_ends_
  grammar::Definition& definition_;
  size_t edge_count_ = 0;  ///< of all values without tags
};

}  // namespace millrace::server
