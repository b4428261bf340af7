#include "server/argument_grammar.h"

#include <utility>

#include "base/json_value.h"
#include "grammar/json_rules.h"
#include "grammar/lark.h"
#include "grammar/regex_parser.h"
#include "text/tool_calls/literal_arguments.h"

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

grammar::JsonNotation notation_of(const text::LiteralDialect& dialect) {
  const bool is_python = dialect.quote.empty();
  return {.has_escapes = is_python,
          .quote = is_python ? "\"" : dialect.quote,
          .has_space = false,
          .separator = dialect.separator,
          .colon = is_python ? ": " : ":",
          .bare_keys = text::kBareKey,
          .true_word = dialect.true_word,
          .false_word = dialect.false_word,
          .null_word = dialect.null_word,
          .sorts_keys = dialect.sorts_keys,
          .has_keyword_arguments = is_python};
}

}  // namespace

ArgumentGrammar::ArgumentGrammar(const text::ToolCallSyntax& syntax, grammar::Definition& definition)
    : definition_(definition) {
  if (syntax.notation == text::ArgumentNotation::kParameters) parameters_.emplace(syntax, definition);
  if (syntax.dialect != nullptr) notation_ = notation_of(*syntax.dialect);
  std::vector<std::string_view> ends = syntax.value_ends();
  if (!notation_.has_escapes) ends = {notation_.quote};
  if (!ends.empty()) notation_.uncut = &uncut_.emplace(std::move(ends));
}

Result<ExpressionPtr> ArgumentGrammar::of(const openai::Tool& tool, grammar::SchemaOptions options) {
  const auto document = JsonDocument::parse(tool.parameters);
  if (document.has_error() || !document->root().is_object()) {
    return make_error(ErrorCode::kInvalidArgument, "it is no JSON object");
  }
  options.notation = notation_;
  auto arguments = parameters_ ? parameters_->of(tool.parameters, options)
                               : grammar::parse_argument_schema(tool.parameters, definition_, options);
  // The caller gives up the rules of a schema that is refused.
  if (arguments.has_error() && uncut_) uncut_->forget_shared();
  return arguments;
}

Result<ExpressionPtr> ArgumentGrammar::of_input(const openai::InputGrammar& input) {
  const auto source = read_input(input);
  if (source.has_error()) return source.error();
  grammar::JsonNotation notation = notation_;
  if (parameters_) notation = {.has_escapes = false, .quote = "", .uncut = notation_.uncut};
  grammar::JsonRules rules(definition_, notation);
  auto text = rules.string_of(*source);
  if (text.has_error()) return text;
  if (parameters_) return parameters_->of_input(std::move(*text));
  return rules.arguments_of(
      sequence({literal(rules.writer().argument_key("input")), rules.space(), std::move(*text), rules.space()}));
}

ExpressionPtr ArgumentGrammar::any() {
  return parameters_ ? parameters_->any() : grammar::any_json_object(definition_, notation_);
}

}  // namespace millrace::server
