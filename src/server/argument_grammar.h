#pragma once

#include <optional>
#include <string_view>

#include "base/json_value.h"
#include "grammar/expression.h"
#include "grammar/json_schema.h"
#include "server/openai/request.h"
#include "text/tool_calls/parameter_types.h"
#include "text/tool_calls/tool_formats.h"

namespace millrace::server {

/// Returns any text up to the first `tag`, the tag, and `then`; with `may_end` also any text without the tag. Adds one
/// rule per matched part of the tag, whose first character must occur only once in it.
[[nodiscard]] grammar::ExpressionPtr until_tag(std::string_view tag, grammar::ExpressionPtr then, bool may_end,
                                               grammar::Definition& definition);

/// Builds the expressions of tools' arguments, as one format writes them. Lives as long as build_grammar runs.
class ArgumentGrammar {
 public:
  ArgumentGrammar(const text::ToolCallSyntax& syntax, grammar::Definition& definition)
      : syntax_(syntax), definition_(definition) {}

  /// Returns the arguments that the tool's schema allows. Strings without quotes obey "enum" only.
  [[nodiscard]] Result<grammar::ExpressionPtr> of(const openai::Tool& tool, const grammar::SchemaOptions& options);
  /// Returns the arguments of a custom tool whose input is held to a grammar.
  [[nodiscard]] Result<grammar::ExpressionPtr> of_input(const openai::InputGrammar& input);
  /// Returns the arguments of a tool without a schema.
  [[nodiscard]] grammar::ExpressionPtr any();

 private:
  /// The schema of a value, and the document that its references point into.
  struct Schema {
    JsonValue value;
    JsonValue root;
    int depth = 0;  ///< of references and members
  };

  [[nodiscard]] Result<grammar::ExpressionPtr> unescaped_input(const grammar::Definition& source);

  // Parameters in tags.
  [[nodiscard]] Result<grammar::ExpressionPtr> parameters(const openai::Tool& tool, JsonValue root,
                                                          const grammar::SchemaOptions& options);
  [[nodiscard]] Result<grammar::ExpressionPtr> parameter(std::string_view key, JsonValue property, JsonValue root,
                                                         const grammar::SchemaOptions& options);
  [[nodiscard]] grammar::ExpressionPtr text_value(JsonValue property);
  [[nodiscard]] grammar::ExpressionPtr any_parameters();
  /// Returns the value_end of the tags without the white space after it, and that white space.
  [[nodiscard]] std::pair<std::string_view, std::string_view> value_end() const;

  // Literals.
  [[nodiscard]] grammar::ExpressionPtr literal_object(Schema schema, bool is_top);
  [[nodiscard]] grammar::ExpressionPtr literal_value(Schema schema);
  [[nodiscard]] grammar::ExpressionPtr literal_of_type(std::string_view type, Schema schema);
  [[nodiscard]] grammar::ExpressionPtr literal_list(Schema schema);
  [[nodiscard]] grammar::ExpressionPtr literal_string(Schema schema);
  [[nodiscard]] grammar::ExpressionPtr constant(JsonValue value);
  [[nodiscard]] grammar::ExpressionPtr key(std::string_view name, bool is_top) const;
  [[nodiscard]] grammar::ExpressionPtr any_members(bool is_top);
  [[nodiscard]] grammar::ExpressionPtr any_literal();
  /// Returns the JSON that the schema allows, or any of its type if the schema is not supported.
  [[nodiscard]] grammar::ExpressionPtr json_of(Schema schema, std::string_view type);

  const text::ToolCallSyntax& syntax_;
  grammar::Definition& definition_;
  std::optional<grammar::RuleIndex> any_literal_;
  size_t literal_count_ = 0;  // values with a schema
};

}  // namespace millrace::server
