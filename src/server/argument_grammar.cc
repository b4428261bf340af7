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
  if (!syntax.cuts.empty()) uncut_.emplace(syntax.value_ends(), definition);
}

template <class Make>
Result<ExpressionPtr> ArgumentGrammar::json(const Make& make) {
  if (!uncut_) return make(definition_);
  grammar::Definition source;
  Result<ExpressionPtr> root = make(source);
  if (root.has_error()) return root;
  return uncut_->json(source, *root);
}

Result<ExpressionPtr> ArgumentGrammar::of(const openai::Tool& tool, const grammar::SchemaOptions& options) {
  const auto document = JsonDocument::parse(tool.parameters);
  if (document.has_error() || !document->root().is_object()) {
    return make_error(ErrorCode::kInvalidArgument, "it is no JSON object");
  }
  if (parameters_) return parameters_->of(tool.parameters, options);
  if (!literals_) {
    return json([&](auto& target) { return grammar::parse_json_schema(tool.parameters, target, options); });
  }
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
  return json([&](grammar::Definition& target) -> Result<ExpressionPtr> {
    grammar::JsonRules rules(target);
    return sequence({literal("{"), rules.space(), literal("\"input\":"), rules.space(), rules.string_of(*source),
                     rules.space(), literal("}")});
  });
}

ExpressionPtr ArgumentGrammar::any() {
  if (parameters_) return parameters_->any();
  if (literals_) return literals_->any();
  return *json([](grammar::Definition& target) -> Result<ExpressionPtr> { return grammar::any_json_object(target); });
}

}  // namespace millrace::server
