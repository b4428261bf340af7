#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "grammar/json_schema.h"
#include "grammar/json_schema_case.h"
#include "grammar/json_schema_check.h"
#include "grammar/json_schema_document.h"

namespace millrace::grammar {

/// The keys of terms in ascending order, each once: what identifies a set of terms.
using TermKeys = std::vector<std::pair<const void*, bool>>;
[[nodiscard]] TermKeys keys_of(const std::vector<SchemaTerm>& terms, SchemaDocument& document);

/// Rewrites sets of terms into cases, one of which a value satisfies if and only if it satisfies all terms. Leaves out
/// ways to violate a schema that a grammar cannot write. Bounds the number of cases. Lives while one schema is read.
/// Functions throw an ErrorException with the position of a malformed schema, or of a keyword that is not supported.
class SchemaCases {
 public:
  SchemaCases(SchemaDocument& document, UnsupportedKeywords unsupported)
      : document_(document), check_(document), unsupported_(unsupported) {}

  [[nodiscard]] std::vector<SchemaCase> cases_of(const std::vector<SchemaTerm>& terms);
  /// Returns whether no value is known to satisfy all terms. Looks into required members `depth` deep.
  [[nodiscard]] bool are_unsatisfiable(const std::vector<SchemaTerm>& terms, int depth);

 private:
  struct Expansion {
    const std::vector<SchemaTerm>& terms;
    std::vector<SchemaCase> cases = {};
    size_t drafts = 0;
    size_t trials = 0;
    int depth = 0;                     ///< how deep required members are looked into
    size_t max_violations = SIZE_MAX;  ///< of one schema
  };

  [[nodiscard]] std::vector<SchemaCase> cases_with(const std::vector<SchemaTerm>& terms, size_t max_violations);
  [[nodiscard]] bool decide(CaseDraft& draft, Expansion& expansion, std::shared_ptr<const CaseChoice>& choice,
                            std::vector<const CaseWay*>& ways);
  [[nodiscard]] bool is_implied(const CaseDraft& draft, const CaseWay& way);
  [[nodiscard]] bool may_be_taken(const CaseDraft& draft, const CaseWay& way, Expansion& expansion);
  [[nodiscard]] std::pair<const void*, bool> key_of(const SchemaTerm& term) {
    return {document_.identity_of(term.schema), term.is_negated};
  }
  [[nodiscard]] bool add_all_terms(CaseDraft& draft);

  void expand(CaseDraft draft, Expansion& expansion);
  [[nodiscard]] bool add_open_terms(CaseDraft& draft);
  [[nodiscard]] bool add_term(CaseDraft& draft, const SchemaTerm& term);
  [[nodiscard]] bool add_keywords(CaseDraft& draft, JsonObject schema, const std::string& path);
  [[nodiscard]] bool add_applicator(CaseDraft& draft, JsonObject schema, const JsonMember& keyword,
                                    const std::string& path);
  [[nodiscard]] bool add_exactly_one(CaseDraft& draft, const std::vector<SchemaTerm>& parts);
  [[nodiscard]] bool are_exclusive(const CaseDraft& draft, const SchemaTerm& left, const SchemaTerm& right);
  [[nodiscard]] bool add_violation(CaseDraft& draft, JsonObject schema, const std::string& path);
  [[nodiscard]] bool is_impossible(const SchemaCase& made, int depth);
  void add_listed_values(CaseDraft draft, Expansion& expansion);
  void refuse_unless_ignored(const std::string& path, std::string_view keyword) const;

  SchemaDocument& document_;
  SchemaCheck check_;
  const UnsupportedKeywords unsupported_;
  std::map<std::pair<TermKeys, int>, bool> unsatisfiable_;  // without a final value while it is being found
};

/// Returns the schemas of a list. Fails at `path` for anything else.
[[nodiscard]] std::vector<SchemaTerm> terms_of_list(JsonValue list, const std::string& path, bool is_negated = false);

}  // namespace millrace::grammar
