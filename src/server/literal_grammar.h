#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"
#include "grammar/expression.h"
#include "server/uncut_values.h"
#include "text/tool_calls/tool_formats.h"

namespace millrace::server {

/// Builds the expressions of arguments that a format writes as an object in a language of its own. Lives as long as
/// build_grammar runs.
class LiteralGrammar {
 public:
  LiteralGrammar(const text::LiteralDialect& dialect, grammar::Definition& definition)
      : dialect_(dialect), definition_(definition) {
    if (!dialect.quote.empty()) quoted_texts_.emplace(std::vector{dialect.quote}, definition);
  }

  /// Returns the arguments that the schema of a tool allows.
  [[nodiscard]] Result<grammar::ExpressionPtr> of(JsonValue schema);
  /// Returns the argument `input` alone, a text of another definition.
  [[nodiscard]] Result<grammar::ExpressionPtr> of_input(const grammar::Definition& source);
  /// Returns the arguments of a tool without a schema.
  [[nodiscard]] grammar::ExpressionPtr any();

 private:
  /// The schema of a value, and the document that its references point into.
  struct Schema {
    JsonValue value;
    JsonValue root;
    int depth = 0;  ///< of references and members
  };

  [[nodiscard]] static Schema followed(Schema schema);
  [[nodiscard]] grammar::ExpressionPtr object(Schema schema, bool is_top);
  [[nodiscard]] grammar::ExpressionPtr value_of(Schema schema);
  [[nodiscard]] grammar::ExpressionPtr value_of_type(std::string_view type, Schema schema);
  [[nodiscard]] grammar::ExpressionPtr list(Schema schema);
  [[nodiscard]] grammar::ExpressionPtr string(Schema schema);
  [[nodiscard]] grammar::ExpressionPtr text_of(Schema schema);
  [[nodiscard]] grammar::ExpressionPtr constant(JsonValue value);
  [[nodiscard]] grammar::ExpressionPtr key(std::string_view name, bool is_top);
  [[nodiscard]] grammar::ExpressionPtr quoted(std::string_view text);
  /// Notes the first thing that the language cannot write.
  void refuse(std::string_view what, std::string_view text);
  [[nodiscard]] grammar::ExpressionPtr in_brackets(grammar::ExpressionPtr members, bool is_top) const;
  [[nodiscard]] grammar::ExpressionPtr any_members(bool is_top);
  [[nodiscard]] grammar::ExpressionPtr any_value();
  /// Returns the JSON that the schema allows, or any of its type if the schema is not supported.
  [[nodiscard]] grammar::ExpressionPtr json_of(Schema schema, std::string_view type);

  const text::LiteralDialect& dialect_;
  grammar::Definition& definition_;
  std::optional<UncutValues> quoted_texts_;  // if strings have the dialect's quotes
  std::optional<grammar::RuleIndex> any_value_;
  size_t value_count_ = 0;  // values with a schema
  std::optional<Error> refused_;
};

}  // namespace millrace::server
