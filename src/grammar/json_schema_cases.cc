#include "grammar/json_schema_cases.h"

#include <fmt/format.h>

#include <algorithm>

#include "grammar/json_schema_keywords.h"
#include "grammar/json_schema_members.h"
#include "grammar/json_schema_type_keywords.h"
#include "grammar/json_schema_violations.h"

namespace millrace::grammar {
namespace {

constexpr size_t kMaxCases = 256;
constexpr size_t kMaxDrafts = 4096;
/// How deep required members are looked into, so that branches that exclude each other are told apart.
constexpr int kSearchDepth = 2;

bool has(const TermKeys& keys, const std::pair<const void*, bool>& key) {
  return std::ranges::find(keys, key) != keys.end();
}

CaseStep opens(std::vector<SchemaTerm> terms) {
  return [terms = std::move(terms)](CaseDraft& draft) {
    draft.open.insert(draft.open.end(), terms.begin(), terms.end());
    return true;
  };
}

}  // namespace

TermKeys keys_of(const std::vector<SchemaTerm>& terms) {
  TermKeys keys;
  for (const SchemaTerm& term : terms) keys.push_back(term.key());
  std::ranges::sort(keys);
  keys.erase(std::ranges::unique(keys).begin(), keys.end());
  return keys;
}

std::vector<SchemaTerm> terms_of_list(JsonValue list, const std::string& path, bool is_negated) {
  JsonArray array;
  if (!list.get(array) || array.empty()) fail_at(path, "wanted an array of at least one schema");
  std::vector<SchemaTerm> terms;
  for (const JsonValue item : array) terms.push_back({item, is_negated, fmt::format("{}[{}]", path, terms.size())});
  return terms;
}

std::vector<SchemaCase> SchemaCases::cases_of(const std::vector<SchemaTerm>& terms) {
  Expansion expansion{.terms = terms, .cases = {}, .drafts = 0, .depth = kSearchDepth};
  expand({.made = {}, .open = terms, .choices = {}, .done = {}, .is_alone = terms.size() == 1}, expansion);
  return std::move(expansion.cases);
}

bool SchemaCases::are_unsatisfiable(const std::vector<SchemaTerm>& terms, int depth) {
  const auto [entry, is_new] = unsatisfiable_.try_emplace({keys_of(terms), depth}, false);
  if (!is_new) return entry->second;
  Expansion expansion{.terms = terms, .cases = {}, .drafts = 0, .depth = depth};
  try {
    expand({.made = {}, .open = terms, .choices = {}, .done = {}, .is_alone = terms.size() == 1}, expansion);
  } catch (const ErrorException&) {
    return false;  // whoever needs these terms reports it
  }
  return entry->second = expansion.cases.empty();
}

void SchemaCases::expand(CaseDraft draft, Expansion& expansion) {
  if (++expansion.drafts > kMaxDrafts || expansion.cases.size() > kMaxCases) {
    fail_at(expansion.terms.front().path,
            fmt::format("its schemas combine in too many ways (wanted at most {})", kMaxCases));
  }
  if (!add_open_terms(draft)) return;
  if (!draft.made.lists.empty()) return add_listed_values(std::move(draft), expansion);
  const bool is_branch = expansion.drafts > 1 || expansion.terms.size() > 1;
  if (is_branch && is_impossible(draft.made, draft.choices.empty() ? expansion.depth : 0)) return;
  if (draft.choices.empty()) {
    expansion.cases.push_back(std::move(draft.made));
    return;
  }
  const auto fewest =
      std::ranges::min_element(draft.choices, {}, [](const auto& choice) { return choice->ways.size(); });
  const std::shared_ptr<const CaseChoice> choice = *fewest;
  draft.choices.erase(fewest);
  for (const CaseStep& way : choice->ways) {
    CaseDraft branch = draft;
    if (way(branch)) expand(std::move(branch), expansion);
  }
}

bool SchemaCases::add_open_terms(CaseDraft& draft) {
  while (!draft.open.empty()) {
    const SchemaTerm term = std::move(draft.open.back());
    draft.open.pop_back();
    const auto key = term.key();
    if (has(draft.done, key)) continue;
    if (has(draft.done, {key.first, !key.second})) return false;
    draft.done.push_back(key);
    if (!add_term(draft, term)) return false;
  }
  return draft.made.types != 0;
}

bool SchemaCases::add_term(CaseDraft& draft, const SchemaTerm& term) {
  if (term.schema.is_bool()) return term.schema.is_true() != term.is_negated;
  JsonObject schema;
  if (!term.schema.get(schema)) fail_at(term.path, "wanted an object, true or false");
  if (const auto keyword = unenforced_keyword(schema); !keyword.empty()) refuse_unless_ignored(term.path, keyword);
  if (term.is_negated) return add_violation(draft, schema, term.path);
  if (!schema["nullable"].is_true()) return add_keywords(draft, schema, term.path);
  const auto is_null = [](CaseDraft& way) { return way.keep_types(kNullType); };
  const auto is_other = [this, schema, path = term.path](CaseDraft& way) { return add_keywords(way, schema, path); };
  return draft.choose({is_other, is_null});
}

bool SchemaCases::add_keywords(CaseDraft& draft, JsonObject schema, const std::string& path) {
  for (const JsonMember& keyword : schema) {
    if (!is_constraint(schema, keyword)) continue;
    const bool is_possible = is_keyword_for(keyword.key, Constrained::kAny)
                                 ? add_applicator(draft, schema, keyword, path)
                                 : add_type_keyword(draft, schema, keyword, path);
    if (!is_possible) return false;
  }
  return true;
}

bool SchemaCases::add_applicator(CaseDraft& draft, JsonObject schema, const JsonMember& keyword,
                                 const std::string& path) {
  const auto& [key, value] = keyword;
  const std::string inner = fmt::format("{}.{}", path, key);
  if (key == "type") return draft.keep_types(types_named(value, path));
  if (key == "const") {
    draft.made.lists.push_back({value});
    return true;
  }
  if (key == "enum") {
    JsonArray array;
    if (!value.get(array) || array.empty()) fail_at(path, "enum: wanted an array of at least one value");
    draft.made.lists.emplace_back(array.begin(), array.end());
    return true;
  }
  if (key == "not") return opens({{value, true, inner}})(draft);
  if (key == "allOf") return opens(terms_of_list(value, inner))(draft);
  if (key == "oneOf") return add_exactly_one(draft, terms_of_list(value, inner));
  if (key == "anyOf") {
    std::vector<CaseStep> ways;
    for (SchemaTerm& term : terms_of_list(value, inner)) ways.push_back(opens({std::move(term)}));
    return draft.choose(std::move(ways));
  }
  if (key == "if") {
    const auto branch = [&](bool is_met, const char* name) {
      std::vector<SchemaTerm> terms{{value, !is_met, inner}};
      if (!schema[name].is_missing()) terms.push_back({schema[name], false, fmt::format("{}.{}", path, name)});
      return opens(std::move(terms));
    };
    return draft.choose({branch(true, "then"), branch(false, "else")});
  }
  return opens({referred_term(document_, value, false, path)})(draft);
}

// A branch that no other one overlaps needs no further condition. Elsewhere the others are excluded one by one.
bool SchemaCases::add_exactly_one(CaseDraft& draft, const std::vector<SchemaTerm>& parts) {
  std::vector<CaseStep> ways;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::vector<SchemaTerm> terms{parts[i]};
    for (size_t j = 0; j < parts.size(); ++j) {
      if (i == j || are_unsatisfiable({parts[i], parts[j]}, kSearchDepth)) continue;
      terms.push_back(parts[j]);
      terms.back().is_negated = true;
    }
    ways.push_back(opens(std::move(terms)));
  }
  return draft.choose(std::move(ways));
}

bool SchemaCases::add_violation(CaseDraft& draft, JsonObject schema, const std::string& path) {
  if (schema["nullable"].is_true() && !draft.keep_types(kAllTypes & ~kNullType)) return false;
  Violations violations = violations_of(schema, path, document_);
  if (violations.ways.empty() && !violations.unwritable.empty()) {
    refuse_unless_ignored(path, violations.unwritable);
    return true;
  }
  return draft.choose(std::move(violations.ways));
}

void SchemaCases::add_listed_values(CaseDraft draft, Expansion& expansion) {
  std::vector<JsonValue> values;
  const auto is_valid = [&](JsonValue value) {
    const bool is_in_all = std::ranges::all_of(draft.made.lists, [&](const std::vector<JsonValue>& list) {
      return std::ranges::any_of(list, [&](JsonValue each) { return are_equal(value, each); });
    });
    return is_in_all && std::ranges::all_of(expansion.terms, [&](const SchemaTerm& term) {
             return check_.is_valid(value, term.schema) != term.is_negated;
           });
  };
  try {
    std::ranges::copy_if(draft.made.lists.front(), std::back_inserter(values), is_valid);
  } catch (const ErrorException& failure) {
    fail_at(expansion.terms.front().path, failure.error().message);
  }
  if (values.empty()) return;
  draft.made.listed = std::move(values);
  expansion.cases.push_back(std::move(draft.made));
}

bool SchemaCases::is_impossible(const SchemaCase& made, int depth) {
  if (made.number.low && made.number.high && *made.number.low > *made.number.high && made.has_types &&
      (made.types & ~kNumberTypes) == 0) {
    return true;
  }
  if (!made.has_types || made.types != kObjectType) return false;
  const ObjectConditions& object = made.object;
  if (object.max && (*object.max < object.min || *object.max < object.required.size())) return true;
  for (const std::string_view name : object.required) {
    try {
      const auto terms = terms_of_member(object, name, document_);
      if (!terms) return true;
      if (depth > 0 && !terms->empty() && are_unsatisfiable(*terms, depth - 1)) return true;
    } catch (const ErrorException&) {
      continue;  // of a pattern that is reported when the object is read
    }
  }
  return false;
}

void SchemaCases::refuse_unless_ignored(const std::string& path, std::string_view keyword) const {
  if (unsupported_ == UnsupportedKeywords::kIgnore) return;
  fail_at(path, fmt::format("the keyword '{}' is not supported", keyword));
}

}  // namespace millrace::grammar
