#include <fmt/format.h>

#include <algorithm>

#include "grammar/json_schema_members.h"
#include "grammar/json_schema_parts.h"
#include "grammar/json_set_network.h"

namespace millrace::grammar {
namespace {

/// Limits the total size of the names that other members must differ from. Beyond it there are no others.
constexpr size_t kMaxKnownNameBytes = 8192;
/// Limits the combinations of members of one object that are told apart.
constexpr uint32_t kMaxSetNodes = 256;
constexpr uint32_t kMinSetNodes = 8;

/// Reads the members of one object. Lives for one call.
class ObjectReader {
 public:
  ObjectReader(const ObjectConditions& object, const std::string& path, SchemaParts& parts)
      : object_(object), path_(path), parts_(parts), names_check_(parts.document) {}

  ExpressionPtr read() {
    for (const ObjectConditions::Source& source : object_.sources) {
      for (const JsonMember& property : source.properties) add_member(property.key);
    }
    for (const auto& [name, term] : object_.members) add_member(name);
    for (const std::string_view name : object_.required) add_member(name);
    for (const std::string_view name : object_.forbidden) add_member(name);
    set_.min = object_.min;
    set_.max = object_.max;
    if (is_impossible_) return choice({});
    add_others();
    const ExpressionPtr space = parts_.rules.space();
    const ExpressionPtr comma = sequence({literal(","), space});
    const uint32_t nodes = take_set_nodes(set_, parts_);
    return sequence({literal("{"), space, set_network(set_, comma, space, nodes), literal("}")});
  }

 private:
  ExpressionPtr member_of(ExpressionPtr key, std::vector<SchemaTerm> terms) {
    ExpressionPtr value = terms.empty() ? parts_.rules.value() : parts_.read(std::move(terms));
    return reference(parts_.definition.add(
        "a member", sequence({std::move(key), literal(":"), parts_.rules.space(), std::move(value)})));
  }

  void add_member(std::string_view name) {
    if (std::ranges::find(known_, name) != known_.end()) return;
    known_.push_back(name);
    const bool is_required = std::ranges::find(object_.required, name) != object_.required.end();
    auto terms = terms_of_member(object_, name, parts_.document);
    const bool is_allowed =
        terms && std::ranges::all_of(object_.names, [&](const SchemaTerm& term) { return is_valid_name(name, term); });
    is_impossible_ = is_impossible_ || (is_required && !is_allowed);
    if (!is_allowed) return;
    set_.members.push_back({member_of(JsonRules::quoted(name), std::move(*terms)), is_required});
  }

  bool is_valid_name(std::string_view name, const SchemaTerm& term) {
    return at_position(term.path, [&] { return names_check_.is_valid_name(name, term.schema) != term.is_negated; });
  }

  void add_others() {
    size_t bytes = 0;
    for (const std::string_view name : known_) bytes += name.size();
    if (bytes > kMaxKnownNameBytes || set_.max == 0u) return;
    std::optional<TextLanguage> valid;
    if (!object_.names.empty()) valid = valid_names();
    for (MemberClass& each : other_members(object_, known_, path_, parts_.document)) {
      const TextLanguage names = !valid ? each.names : at_position(path_, [&] { return each.names.and_also(*valid); });
      if (names.is_empty()) continue;
      set_.others.push_back(member_of(parts_.rules.string_of(names), std::move(each.terms)));
    }
  }

  /// Returns the names that "propertyNames" allow.
  TextLanguage valid_names() {
    TextLanguage names = TextLanguage::any();
    for (const SchemaTerm& term : object_.names) {
      TextLanguage allowed = TextLanguage::any().complement();
      for (const SchemaCase& each : parts_.cases.cases_of({term})) {
        if ((each.types & kStringType) == 0) continue;
        allowed =
            allowed.or_else(each.listed ? listed_names(*each.listed) : string_language(each.string, term.path, parts_));
      }
      names = names.and_also(allowed);
    }
    return names;
  }

  static TextLanguage listed_names(const std::vector<JsonValue>& values) {
    std::vector<std::string_view> texts;
    std::string_view text;
    for (const JsonValue value : values) {
      if (value.get(text)) texts.push_back(text);
    }
    return TextLanguage::exactly(texts);
  }

  const ObjectConditions& object_;
  const std::string& path_;
  SchemaParts& parts_;
  SchemaCheck names_check_;
  JsonSet set_;
  std::vector<std::string_view> known_;
  bool is_impossible_ = false;
};

}  // namespace

uint32_t take_set_nodes(const JsonSet& set, SchemaParts& parts) {
  const auto share = static_cast<uint32_t>(std::clamp<size_t>(parts.nodes_left / 32, kMinSetNodes, kMaxSetNodes));
  parts.nodes_left -= std::min(parts.nodes_left, set_network_nodes(set, share));
  return share;
}

ExpressionPtr object_expression(const ObjectConditions& object, const std::string& path, SchemaParts& parts) {
  const bool is_any = object.sources.empty() && object.members.empty() && object.required.empty() &&
                      object.forbidden.empty() && object.names.empty() && object.min == 0 && !object.max &&
                      !object.unnamed;
  return is_any ? parts.rules.object() : ObjectReader(object, path, parts).read();
}

}  // namespace millrace::grammar
