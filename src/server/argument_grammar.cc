#include "server/argument_grammar.h"

#include <utility>

#include "base/json_value.h"
#include "grammar/json_rules.h"
#include "grammar/lark.h"
#include "grammar/regex_parser.h"

namespace millrace::server {
namespace {

using grammar::ExpressionPtr;
using grammar::literal;
using grammar::sequence;

Result<grammar::Definition> read_input(const openai::InputGrammar& input) {
  grammar::Definition definition;
  auto root = input.syntax == openai::InputGrammar::Syntax::kLark ? grammar::parse_lark(input.definition, definition)
                                                                  : grammar::parse_regex(input.definition);
  if (root.has_error()) return root.error();
  definition.root = std::move(*root);
  return definition;
}

}  // namespace

ArgumentGrammar::ArgumentGrammar(const text::ToolCallSyntax& syntax, grammar::Definition& definition)
    : definition_(definition) {
  if (syntax.notation == text::ArgumentNotation::kParameters) parameters_.emplace(syntax, definition);
  if (syntax.notation == text::ArgumentNotation::kLiterals) literals_.emplace(*syntax.dialect, definition);
}

Result<ExpressionPtr> ArgumentGrammar::of(const openai::Tool& tool, const grammar::SchemaOptions& options) {
  const auto document = JsonDocument::parse(tool.parameters);
  if (document.has_error() || !document->root().is_object()) {
    return make_error(ErrorCode::kInvalidArgument, "it is no JSON object");
  }
  if (parameters_) return parameters_->of(tool.parameters, options);
  if (!literals_) return grammar::parse_json_schema(tool.parameters, definition_, options);
  // What JSON could not enforce is refused here too.
  grammar::Definition as_json;
  const auto read = grammar::parse_json_schema(tool.parameters, as_json, options);
  if (read.has_error()) return read.error();
  return literals_->of(document->root());
}

Result<ExpressionPtr> ArgumentGrammar::of_input(const openai::InputGrammar& input) {
  const auto source = read_input(input);
  if (source.has_error()) return source.error();
  if (parameters_) return parameters_->of_input(*source);
  if (literals_) return literals_->of_input(*source);
  grammar::JsonRules json(definition_);
  return sequence({literal("{"), json.space(), literal("\"input\":"), json.space(), json.string_of(*source),
                   json.space(), literal("}")});
}

ExpressionPtr ArgumentGrammar::any() {
  if (parameters_) return parameters_->any();
  if (literals_) return literals_->any();
  return grammar::any_json_object(definition_);
}

}  // namespace millrace::server
