#include "grammar/json_schema_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <unordered_set>

#include "grammar/json_equality.h"
#include "grammar/json_schema_keywords.h"
#include "grammar/json_schema_members.h"
#include "grammar/json_schema_type_keywords.h"
#include "grammar/json_schema_violations.h"

namespace millrace::grammar {
namespace {

constexpr size_t kMaxCases = 256;
constexpr size_t kMaxDrafts = 2048;
/// Limits the ways that are tried before a choice is made. Beyond it any way counts as possible.
constexpr size_t kMaxTrials = 10'000;
/// Steps to copy a draft, and to add a term to it.
constexpr uint64_t kDraftSteps = 40;
constexpr uint64_t kTermSteps = 20;

/// An exception for terms that take more cases than the bound allows.
struct TooManyCases {};
/// How deep required members are looked into, so that branches that exclude each other are distinguished.
constexpr int kSearchDepth = 2;

bool has(const TermKeys& keys, const std::pair<const void*, bool>& key) {
  return std::ranges::find(keys, key) != keys.end();
}

CaseWay opening(std::vector<SchemaTerm> terms) {
  return {.types = kAllTypes, .forbidden = {}, .open = std::move(terms), .further = {}, .cost = 0};
}

}  // namespace

TermKeys keys_of(const std::vector<SchemaTerm>& terms, SchemaDocument& document) {
  TermKeys keys;
  for (const SchemaTerm& term : terms) keys.emplace_back(document.identity_of(term.schema), term.is_negated);
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

// With fewer ways to violate a schema there are fewer cases. What is left out is valid, but not written.
std::vector<SchemaCase> SchemaCases::cases_of(const std::vector<SchemaTerm>& terms) {
  for (const size_t max_violations : {SIZE_MAX, size_t{3}, size_t{1}}) {
    try {
      return cases_with(terms, max_violations);
    } catch (const TooManyCases&) {
      continue;
    }
  }
  fail_at(terms.front().path, fmt::format("its schemas combine in too many ways (wanted at most {})", kMaxCases));
}

std::vector<SchemaCase> SchemaCases::cases_with(const std::vector<SchemaTerm>& terms, size_t max_violations) {
  Expansion expansion{.terms = terms, .depth = kSearchDepth, .max_violations = max_violations};
  expand({.made = {}, .open = terms, .choices = {}, .exclusive = {}, .done = {}, .is_alone = terms.size() == 1},
         expansion);
  return std::move(expansion.cases);
}

bool SchemaCases::are_unsatisfiable(const std::vector<SchemaTerm>& terms, int depth) {
  const auto [entry, is_new] = unsatisfiable_.try_emplace({keys_of(terms, document_), depth}, false);
  if (!is_new) return entry->second;
  Expansion expansion{.terms = terms, .depth = depth};
  try {
    expand({.made = {}, .open = terms, .choices = {}, .exclusive = {}, .done = {}, .is_alone = terms.size() == 1},
           expansion);
  } catch (const TooManyCases&) {
    return false;
  } catch (const ErrorException&) {
    return false;  // whoever needs these terms reports it
  }
  return entry->second = expansion.cases.empty();
}

void SchemaCases::expand(CaseDraft draft, Expansion& expansion) {
  if (++expansion.drafts > kMaxDrafts || expansion.cases.size() > kMaxCases) {
    throw TooManyCases();
  }
  std::vector<const CaseWay*> ways;
  std::shared_ptr<const CaseChoice> choice;
  do {
    if (!add_all_terms(draft)) return;
    if (!draft.made.lists.empty()) return add_listed_values(std::move(draft), expansion);
    if (!decide(draft, expansion, choice, ways)) return;
  } while (choice != nullptr && ways.empty());
  if (choice == nullptr) {
    const bool is_branch = expansion.drafts > 1 || expansion.terms.size() > 1;
    if (!is_branch || !is_impossible(draft.made, expansion.depth)) expansion.cases.push_back(std::move(draft.made));
    return;
  }
  for (const CaseWay* way : ways) {
    CaseDraft branch = draft;
    if (branch.take(*way)) expand(std::move(branch), expansion);
  }
}

/// Finds the choice with the fewest ways that are possible, and removes it. Takes a way that is the only one; then
/// `choice` is set and `ways` is empty. Leaves `choice` null if there is no choice left. Returns false if a choice has
/// no way.
bool SchemaCases::decide(CaseDraft& draft, Expansion& expansion, std::shared_ptr<const CaseChoice>& choice,
                         std::vector<const CaseWay*>& ways) {
  choice = nullptr;
  ways.clear();
  for (size_t i = 0; i < draft.choices.size();) {
    const std::shared_ptr<const CaseChoice> each = draft.choices[i];
    if (std::ranges::any_of(each->ways, [&](const CaseWay& way) { return is_implied(draft, way); })) {
      draft.choices.erase(draft.choices.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    std::vector<const CaseWay*> possible;
    for (const CaseWay& way : each->ways) {
      if (may_be_taken(draft, way, expansion)) possible.push_back(&way);
    }
    if (each->may_omit && possible.size() > expansion.max_violations) {
      std::ranges::sort(possible, {}, [](const CaseWay* way) { return std::pair(way->cost, way); });
      possible.resize(expansion.max_violations);
    }
    if (choice == nullptr || possible.size() < ways.size()) {
      choice = each;
      ways = std::move(possible);
    }
    if (ways.size() <= 1) break;
    ++i;
  }
  if (choice == nullptr) return true;
  std::erase(draft.choices, choice);
  if (ways.empty()) return false;
  if (ways.size() > 1) return true;
  const CaseWay* only = ways.front();
  ways.clear();
  return draft.take(*only);
}

/// Returns whether a way adds nothing to a draft.
bool SchemaCases::is_implied(const CaseDraft& draft, const CaseWay& way) {
  if (way.further || (draft.made.types & static_cast<TypeSet>(~way.types)) != 0) return false;
  if (!std::ranges::all_of(way.open, [&](const SchemaTerm& term) { return has(draft.done, key_of(term)); }))
    return false;
  if (!way.forbidden) return true;
  try {
    return !terms_of_member(draft.made.object, *way.forbidden, document_).has_value();
  } catch (const ErrorException&) {
    return false;  // of a pattern that is reported when the object is read
  }
}

/// Returns whether a draft with a way is not known to be impossible.
bool SchemaCases::may_be_taken(const CaseDraft& draft, const CaseWay& way, Expansion& expansion) {
  if (++expansion.trials > kMaxTrials) return true;
  CaseDraft tried = draft;
  tried.choices.clear();
  tried.exclusive.clear();
  if (!tried.take(way) || !add_open_terms(tried)) return false;
  return !is_impossible(tried.made, std::min(expansion.depth, 1));
}

bool SchemaCases::add_all_terms(CaseDraft& draft) {
  if (!add_open_terms(draft)) return false;
  while (!draft.exclusive.empty() && draft.made.lists.empty()) {
    const std::vector<SchemaTerm> parts = std::move(draft.exclusive.back());
    draft.exclusive.pop_back();
    if (!add_exactly_one(draft, parts) || !add_open_terms(draft)) return false;
  }
  return true;
}

bool SchemaCases::add_open_terms(CaseDraft& draft) {
  document_.work().spend(kDraftSteps);
  while (!draft.open.empty()) {
    document_.work().spend(kTermSteps + draft.done.size() / 8);
    const SchemaTerm term = std::move(draft.open.back());
    draft.open.pop_back();
    const auto key = key_of(term);
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
  CaseWay other;
  other.further = [this, schema, path = term.path](CaseDraft& way) { return add_keywords(way, schema, path); };
  return draft.choose({std::move(other), CaseWay{.types = kNullType}});
}

bool SchemaCases::add_keywords(CaseDraft& draft, JsonObject schema, const std::string& path) {
  for (const JsonMember& keyword : schema) {
    if (!document_.is_effective(schema, keyword)) continue;
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
    draft.made.lists.push_back(std::make_shared<const std::vector<JsonValue>>(1, value));
    return true;
  }
  if (key == "enum") {
    JsonArray array;
    if (!value.get(array) || array.empty()) fail_at(path, "enum: wanted an array of at least one value");
    draft.made.lists.push_back(std::make_shared<const std::vector<JsonValue>>(array.begin(), array.end()));
    return true;
  }
  if (key == "not") return draft.take(opening({{value, true, inner}}));
  if (key == "allOf") return draft.take(opening(terms_of_list(value, inner)));
  if (key == "oneOf") {
    draft.exclusive.push_back(terms_of_list(value, inner));
    return true;
  }
  if (key == "anyOf") {
    std::vector<CaseWay> ways;
    for (SchemaTerm& term : terms_of_list(value, inner)) ways.push_back(opening({std::move(term)}));
    return draft.choose(std::move(ways));
  }
  if (key == "if") {
    const auto branch = [&](bool is_met, const char* name) {
      std::vector<SchemaTerm> terms{{value, !is_met, inner}};
      if (!schema[name].is_missing()) terms.push_back({schema[name], false, fmt::format("{}.{}", path, name)});
      return opening(std::move(terms));
    };
    return draft.choose({branch(true, "then"), branch(false, "else")});
  }
  return draft.take(opening({referred_term(document_, keyword, false, path)}));
}

/// Returns whether no value is known to satisfy what a draft has so far, and two more terms.
bool SchemaCases::are_exclusive(const CaseDraft& draft, const SchemaTerm& left, const SchemaTerm& right) {
  if (are_unsatisfiable({left, right}, kSearchDepth)) return true;
  CaseDraft both = draft;
  both.choices.clear();
  both.exclusive.clear();
  both.open = {left, right};
  const std::vector<SchemaTerm> terms = both.open;
  Expansion inner{.terms = terms, .depth = kSearchDepth};
  try {
    expand(std::move(both), inner);
  } catch (const TooManyCases&) {
    return false;
  } catch (const ErrorException&) {
    return false;  // whoever needs these terms reports it
  }
  return inner.cases.empty();
}

// A branch that no other one overlaps needs no further condition. Elsewhere the others are excluded one by one.
bool SchemaCases::add_exactly_one(CaseDraft& draft, const std::vector<SchemaTerm>& parts) {
  std::vector<CaseWay> ways;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::vector<SchemaTerm> terms{parts[i]};
    for (size_t j = 0; j < parts.size(); ++j) {
      if (i == j || are_exclusive(draft, parts[i], parts[j])) continue;
      terms.push_back(parts[j]);
      terms.back().is_negated = true;
    }
    ways.push_back(opening(std::move(terms)));
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
  return draft.choose(std::move(violations.ways), true);
}

void SchemaCases::add_listed_values(CaseDraft draft, Expansion& expansion) {
  std::vector<JsonValue> values;
  try {
    std::vector<std::unordered_set<std::string>> others;  // the values of all lists but the first
    for (const ValueList& list : std::span(draft.made.lists).subspan(1)) {
      others.emplace_back();
      for (const JsonValue value : *list) others.back().insert(equality_key(value, document_.work()));
    }
    const auto is_valid = [&](JsonValue value) {
      const std::string key = others.empty() ? std::string() : equality_key(value, document_.work());
      return std::ranges::all_of(others, [&](const auto& keys) { return keys.contains(key); }) &&
             std::ranges::all_of(expansion.terms, [&](const SchemaTerm& term) {
               return check_.is_valid(value, term.schema) != term.is_negated;
             });
    };
    std::ranges::copy_if(*draft.made.lists.front(), std::back_inserter(values), is_valid);
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
  const std::set<std::string_view> required(object.required.begin(), object.required.end());
  if (object.max && (*object.max < object.min || *object.max < required.size())) return true;
  for (const std::string_view name : required) {
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
