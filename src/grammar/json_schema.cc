#include "grammar/json_schema.h"

#include <fmt/format.h>

#include <map>

#include "base/json_value.h"
#include "grammar/json_rules.h"
#include "grammar/json_schema_case.h"
#include "grammar/json_schema_cases.h"
#include "grammar/json_schema_document.h"
#include "grammar/json_schema_parts.h"
#include "grammar/regex_parser.h"

namespace millrace::grammar {
namespace {

/// Limits the sets of terms that are read, each of which is a rule.
constexpr size_t kMaxTermSets = 20'000;
/// Steps to find the rule of a term among the known ones.
constexpr uint64_t kReadSteps = 10;
/// Limits the combinations of members that all objects together distinguish.
constexpr size_t kMaxMemberNodes = 16'384;

/// Reads the sets of terms that a schema leads to, each into a rule of its own.
class JsonSchemaParser {
 public:
  JsonSchemaParser(JsonValue root, Definition& definition, const SchemaOptions& options)
      : document_(root),
        cases_(document_, options.unsupported),
        rules_(definition, options.notation),
        texts_(definition, {.has_escapes = false, .quote = "", .uncut = options.notation.uncut}),
        definition_(definition),
        unsupported_(options.unsupported),
        parts_{.document = document_,
               .cases = cases_,
               .rules = rules_,
               .definition = definition,
               .read = [this](std::vector<SchemaTerm> terms) { return read(std::move(terms)); },
               .nodes_left = kMaxMemberNodes,
               .only_declared = options.only_declared} {}

  ExpressionPtr read_root() {
    ExpressionPtr root = read({{document_.root(), false, "schema"}});
    read_open();
    const Expression& whole = *definition_.rules[root->rule].expression;
    if (whole.kind == Expression::Kind::kChoice && whole.parts.empty()) fail_at("schema", "no value satisfies it");
    return root;
  }

  ExpressionPtr read_arguments() {
    ExpressionPtr arguments = rules_.notation().has_keyword_arguments ? keyword_arguments() : objects(nullptr);
    read_open();
    return arguments;
  }

  /// Returns the members of the outermost object one after another, and adds them to `members`.
  ExpressionPtr read_members(const MemberSyntax& syntax, std::vector<SchemaMember>& members) {
    const MemberNotation notation{
        .keys = TextLanguage::of_expression(**parse_regex(syntax.key_pattern), document_.work()),
        .separator = literal(""),
        .write = [&](std::optional<std::string_view> name, ExpressionPtr key, std::vector<SchemaTerm> terms) {
          SchemaMember member{.key = std::move(key)};
          if (name) member.name = std::string(*name);
          fill(member, std::move(terms), syntax.has_texts(member.name));
          members.push_back(std::move(member));
          return reference(members.back().rule);
        }};
    ExpressionPtr written = objects(&notation);
    read_open();
    return written;
  }

 private:
  struct Pending {
    RuleIndex rule;
    std::vector<SchemaTerm> terms;
  };

  /// Returns the objects that satisfy the schema, or with a notation their members alone.
  ExpressionPtr objects(const MemberNotation* notation) {
    const std::string path = "schema";
    std::vector<ExpressionPtr> ways;
    for (const SchemaCase& each : cases_.cases_of({{document_.root(), false, path}})) {
      if (each.listed && notation != nullptr) {
        fail_at(path, "objects that are listed as a whole are not supported in calls of this model");
      } else if (each.listed) {
        for (const JsonValue value : *each.listed) {
          if (value.is_object()) ways.push_back(constant(value, rules_, path));
        }
      } else if ((each.types & kObjectType) != 0) {
        ways.push_back(object_expression(each.object, path, parts_, notation));
      }
    }
    if (ways.empty()) fail_at(path, "no object satisfies it");
    return choice(std::move(ways));
  }

  /// Returns the outermost object as arguments with keywords.
  ExpressionPtr keyword_arguments() {
    const MemberNotation notation{
        .keys = rules_.writer().bare_keys(),
        .separator = rules_.comma(),
        .write = [this](std::optional<std::string_view> name, const ExpressionPtr& key, std::vector<SchemaTerm> terms) {
          ExpressionPtr begin =
              name ? at_position("schema", [&] { return literal(rules_.writer().argument_key(*name)); })
                   : sequence({key, literal("=")});
          ExpressionPtr value = terms.empty() ? rules_.value() : read(std::move(terms));
          return reference(definition_.add("a member", sequence({std::move(begin), std::move(value)})));
        }};
    return rules_.arguments_of(objects(&notation));
  }

  void read_open() {
    while (!open_.empty()) {
      const Pending next = std::move(open_.back());
      open_.pop_back();
      definition_.rules[next.rule].expression = expression_of(next.terms);
    }
    if (document_.work().is_exhausted() && unsupported_ == UnsupportedKeywords::kRefuse) {
      throw ErrorException(document_.work().error());
    }
  }

  /// Adds the values that satisfy all terms to a member. With `has_texts` strings are texts. Where that cannot be
  /// enforced and need not be, any value of the type.
  void fill(SchemaMember& member, std::vector<SchemaTerm> terms, bool has_texts) {
    member.rule = definition_.add("a parameter");
    if (!has_texts) {
      member.json = terms.empty() ? rules_.value() : read(std::move(terms));
      return;
    }
    if (terms.empty()) return fill_with({SchemaCase()}, "schema", member);
    try {
      fill_with(cases_.cases_of(terms), terms.front().path, member);
    } catch (const ErrorException&) {
      if (unsupported_ == UnsupportedKeywords::kRefuse) throw;
      member.is_any_text = false;
      fill_with({any_case_of(terms.front().schema)}, terms.front().path, member);
    }
  }

  void fill_with(const std::vector<SchemaCase>& cases, const std::string& path, SchemaMember& member) {
    std::vector<ExpressionPtr> texts;
    std::vector<ExpressionPtr> others;
    for (const SchemaCase& each : cases) {
      if (each.listed) {
        for (const JsonValue value : *each.listed) {
          (value.is_string() ? texts : others).push_back(constant(value, value.is_string() ? texts_ : rules_, path));
        }
        continue;
      }
      SchemaCase other = each;
      other.types = types_of(each) & static_cast<TypeSet>(~kStringType);
      other.has_types = true;
      if (other.types != 0) add_values(other, path, others);
      if ((types_of(each) & kStringType) == 0) continue;
      const StringConditions& string = each.string;
      const bool is_any = string.patterns.empty() && string.formats.empty() && string.excluded.empty() &&
                          string.min == 0 && !string.max;
      ExpressionPtr text = is_any ? nullptr : string_expression(string, path, parts_, texts_);
      member.is_any_text = member.is_any_text || text == nullptr;
      if (text != nullptr) texts.push_back(std::move(text));
    }
    if (!texts.empty()) member.text = choice(std::move(texts));
    if (!others.empty()) member.json = choice(std::move(others));
  }

  static ExpressionPtr constant(JsonValue value, JsonRules& rules, const std::string& path) {
    return at_position(path, [&] { return literal(rules.writer().value(value)); });
  }

  /// Returns the case of the types that a schema names, whatever else it says. Without them it has no types of its own.
  static SchemaCase any_case_of(JsonValue schema) {
    SchemaCase any;
    if (schema["type"].is_missing()) return any;
    try {
      any.types = types_named(schema["type"], "");
      any.has_types = true;
    } catch (const ErrorException&) {
    }
    return any;
  }

  /// Returns the types of a case, without those that no keyword is about if they do not count.
  [[nodiscard]] TypeSet types_of(const SchemaCase& each) const {
    const bool is_narrowed = parts_.only_declared && !each.has_types && (each.types & each.keyword_types) != 0;
    return is_narrowed ? each.types & each.keyword_types : each.types;
  }

  /// Returns the rule of a set of terms, which is read later. Equal sets share a rule, so that recursion comes to an
  /// end.
  ExpressionPtr read(std::vector<SchemaTerm> terms) {
    document_.work().spend(kReadSteps * (terms.size() + 1));
    const auto [entry, is_new] = by_keys_.try_emplace(keys_of(terms, document_), 0);
    if (is_new) {
      if (by_keys_.size() > kMaxTermSets) {
        fail_at(terms.front().path, fmt::format("its schemas combine in more than {} ways", kMaxTermSets));
      }
      entry->second = definition_.add(terms.front().path);
      open_.push_back({entry->second, std::move(terms)});
    }
    return reference(entry->second);
  }

  /// Returns the values that satisfy all terms. Where that cannot be enforced and need not be, any value of the type.
  ExpressionPtr expression_of(const std::vector<SchemaTerm>& terms) {
    try {
      const std::vector<SchemaCase> cases = cases_.cases_of(terms);
      if (cases.empty()) refuse_empty_list(terms);
      std::vector<ExpressionPtr> ways;
      for (const SchemaCase& each : cases) add_values(each, terms.front().path, ways);
      return choice(std::move(ways));
    } catch (const ErrorException&) {
      if (unsupported_ == UnsupportedKeywords::kRefuse) throw;
      return any_of_types(terms.front().schema);
    }
  }

  /// Returns the values of the types that a schema names, whatever else it says.
  ExpressionPtr any_of_types(JsonValue schema) {
    if (schema["type"].is_missing()) return schema["properties"].is_object() ? rules_.object() : rules_.value();
    const SchemaCase any = any_case_of(schema);
    if (!any.has_types) return rules_.value();
    std::vector<ExpressionPtr> ways;
    add_values(any, "", ways);
    return choice(std::move(ways));
  }

  /// Refuses a list of values none of which satisfies the other keywords.
  static void refuse_empty_list(const std::vector<SchemaTerm>& terms) {
    if (terms.size() != 1 || terms.front().is_negated) return;
    for (const char* keyword : {"const", "enum"}) {
      if (terms.front().schema[keyword].is_missing()) continue;
      fail_at(terms.front().path, fmt::format("{}: the other keywords allow none of its values", keyword));
    }
  }

  void add_values(const SchemaCase& each, const std::string& path, std::vector<ExpressionPtr>& ways) {
    if (each.listed) {
      for (const JsonValue value : *each.listed) ways.push_back(constant(value, rules_, path));
      return;
    }
    const TypeSet types = types_of(each);
    if (types == kAllTypes && each.keyword_types == 0 && !each.has_exclusions) {
      ways.push_back(rules_.value());
      return;
    }
    const JsonNotation& notation = rules_.notation();
    if ((types & kNullType) != 0) ways.push_back(literal(notation.null_word));
    if ((types & kTrueType) != 0) ways.push_back(literal(notation.true_word));
    if ((types & kFalseType) != 0) ways.push_back(literal(notation.false_word));
    if ((types & kNumberTypes) != 0) ways.push_back(number_expression(each.number, types, path, parts_));
    if ((types & kStringType) != 0) ways.push_back(string_expression(each.string, path, parts_, rules_));
    if ((types & kArrayType) != 0) ways.push_back(array_expression(each.array, parts_));
    if ((types & kObjectType) != 0) ways.push_back(object_expression(each.object, path, parts_));
  }

  SchemaDocument document_;
  SchemaCases cases_;
  JsonRules rules_;
  JsonRules texts_;  // of members without quotes
  Definition& definition_;
  const UnsupportedKeywords unsupported_;
  SchemaParts parts_;
  std::map<TermKeys, RuleIndex> by_keys_;
  std::vector<Pending> open_;
};

template <class Read>
Result<ExpressionPtr> parse_with(std::string_view schema, Definition& definition, const SchemaOptions& options,
                                 const Read& read) {
  const auto document = JsonDocument::parse(schema);
  if (document.has_error()) {
    return make_error(ErrorCode::kInvalidArgument, "schema: it is not valid JSON ({})", document.error().message);
  }
  try {
    JsonSchemaParser parser(document->root(), definition, options);
    return read(parser);
  } catch (const ErrorException& failure) {
    return failure.error();
  }
}

}  // namespace

Result<ExpressionPtr> parse_json_schema(std::string_view schema, Definition& definition, const SchemaOptions& options) {
  return parse_with(schema, definition, options, [](JsonSchemaParser& parser) { return parser.read_root(); });
}

Result<ExpressionPtr> parse_argument_schema(std::string_view schema, Definition& definition,
                                            const SchemaOptions& options) {
  return parse_with(schema, definition, options, [](JsonSchemaParser& parser) { return parser.read_arguments(); });
}

Result<ExpressionPtr> parse_member_schema(std::string_view schema, Definition& definition, const SchemaOptions& options,
                                          const MemberSyntax& syntax, std::vector<SchemaMember>& members) {
  return parse_with(schema, definition, options,
                    [&](JsonSchemaParser& parser) { return parser.read_members(syntax, members); });
}

ExpressionPtr any_json_object(Definition& definition, const JsonNotation& notation) {
  return JsonRules(definition, notation).any_arguments();
}

}  // namespace millrace::grammar
