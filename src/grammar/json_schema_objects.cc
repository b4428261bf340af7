#include <fmt/format.h>

#include <algorithm>

#include "grammar/json_schema_members.h"
#include "grammar/json_schema_parts.h"
#include "grammar/json_set_network.h"

namespace millrace::grammar {
namespace {

/// Limits the total size of the names that other members must differ from. Beyond it there are no others.
constexpr size_t kMaxKnownNameBytes = 8192;
/// Limits the combinations of members of one object that are distinguished.
constexpr uint32_t kMaxSetNodes = 256;
constexpr uint32_t kMinSetNodes = 8;

/// Reads the members of one object. Lives for one call.
class ObjectReader {
 public:
  ObjectReader(const ObjectConditions& object, const std::string& path, SchemaParts& parts,
               const MemberNotation* notation)
      : object_(object),
        path_(path),
        parts_(parts),
        notation_(notation),
        work_(parts.document.work()),
        names_check_(parts.document) {}

  ExpressionPtr read() {
    if (object_.unnamed && object_.has_unevaluated) {
      fail_at(object_.unnamed->path, "the keyword 'unevaluatedProperties' is not supported together with 'not'");
    }
    read_witnesses();
    find_names();
    for (const std::string_view name : known_) add_member(name);
    set_.min = object_.min;
    set_.max = object_.max;
    set_.may_repeat = notation_ == nullptr && !parts_.rules.notation().sorts_keys;
    if (is_impossible_) return choice({});
    add_others();
    const uint32_t nodes = take_set_nodes(set_, parts_);
    if (notation_ != nullptr) {
      return set_network(set_, notation_->separator, literal(""), nodes, parts_.definition);
    }
    const ExpressionPtr space = parts_.rules.space();
    ExpressionPtr members = set_network(set_, parts_.rules.comma(), space, nodes, parts_.definition);
    return sequence({literal("{"), space, std::move(members), literal("}")});
  }

 private:
  /// The names that a wanted member may have, and a condition on its value if there is one.
  struct Witness {
    TextLanguage names;
    std::optional<SchemaTerm> value;
  };

  /// The names that a member may have: one, or those of a language.
  struct Names {
    std::optional<std::string_view> one;
    std::optional<TextLanguage> others;

    [[nodiscard]] std::string identity() const { return one ? fmt::format("one {}", *one) : others->key(); }
  };

  /// Returns the rule of members whose values satisfy all terms. Members with equal names share a rule.
  ExpressionPtr member_of(const Names& names, std::vector<SchemaTerm> terms) {
    if (notation_ != nullptr) {
      ExpressionPtr key = names.one ? literal(*names.one)
                                    : names.others->expression([](const CharSet& chars) { return one_of(chars); });
      return notation_->write(names.one, std::move(key), std::move(terms));
    }
    ExpressionPtr& member = parts_.members[{names.identity(), keys_of(terms, parts_.document)}];
    if (member != nullptr) return member;
    ExpressionPtr value = terms.empty() ? parts_.rules.value() : parts_.read(std::move(terms));
    ExpressionPtr key = at_position(
        path_, [&] { return names.one ? parts_.rules.key(*names.one) : parts_.rules.key(*names.others, work_); });
    member = reference(parts_.definition.add("a member", sequence({std::move(key), std::move(value)})));
    return member;
  }

  /// Finds the names that the schemas know, each once.
  void find_names() {
    const auto add = [this](std::string_view name) {
      work_.spend(kMemberSteps + known_.size() / 8);
      if (std::ranges::find(known_, name) == known_.end()) known_.push_back(name);
    };
    for (const ObjectConditions::Source& source : object_.sources) {
      for (const JsonMember& property : source.properties) add(property.key);
    }
    for (const auto& [name, term] : object_.members) add(name);
    for (const std::string_view name : object_.required) add(name);
    for (const std::string_view name : object_.forbidden) add(name);
    if (parts_.rules.notation().sorts_keys) std::ranges::sort(known_);
  }

  void add_member(std::string_view name) {
    const bool is_required = std::ranges::find(object_.required, name) != object_.required.end();
    auto terms = terms_of_member(object_, name, parts_.document);
    const bool is_allowed =
        terms && std::ranges::all_of(object_.names, [&](const SchemaTerm& term) { return is_valid_name(name, term); });
    is_impossible_ = is_impossible_ || (is_required && !is_allowed);
    if (!is_allowed) return;
    uint32_t named = 0;  // the witnesses that a member of this name may be
    for (size_t i = 0; i < witnesses_.size(); ++i) named |= witnesses_[i].names.accepts(name) ? uint32_t{1} << i : 0;
    set_.members.push_back({.ways = ways_of({.one = name}, *terms, named), .is_required = is_required});
  }

  bool is_valid_name(std::string_view name, const SchemaTerm& term) {
    return at_position(term.path, [&] { return names_check_.is_valid_name(name, term.schema) != term.is_negated; });
  }

  void add_others() {
    size_t bytes = 0;
    for (const std::string_view name : known_) bytes += name.size();
    if (bytes > kMaxKnownNameBytes || set_.max == 0u) return;
    const bool has_properties = std::ranges::any_of(object_.sources, [](const ObjectConditions::Source& source) {
      return source.properties.identity() != nullptr;
    });
    const bool is_closed = parts_.only_declared && has_properties;
    std::optional<TextLanguage> valid;
    if (!object_.names.empty()) valid = valid_names();
    if (notation_ != nullptr) valid = valid ? valid->and_also(notation_->keys, work_) : notation_->keys;
    for (MemberClass& each : other_members(object_, known_, path_, parts_.document)) {
      if (is_closed && !each.is_declared) continue;
      const TextLanguage names =
          !valid ? each.names : at_position(path_, [&] { return each.names.and_also(*valid, work_); });
      if (names.is_empty()) continue;
      for (const auto& divided : divided_by_witnesses(names)) {
        const TextLanguage& part = divided.first;
        const uint32_t named = divided.second;
        const auto ways = ways_of({.others = part}, each.terms, named);
        set_.others.insert(set_.others.end(), ways.begin(), ways.end());
      }
    }
  }

  /// Divides names by the witnesses that members of these names may be.
  std::vector<std::pair<TextLanguage, uint32_t>> divided_by_witnesses(const TextLanguage& names) {
    std::vector<std::pair<TextLanguage, uint32_t>> parts{{names, 0}};
    for (size_t i = 0; i < witnesses_.size(); ++i) {
      std::vector<std::pair<TextLanguage, uint32_t>> divided;
      for (const auto& [part, named] : parts) {
        const TextLanguage inside = part.and_also(witnesses_[i].names, work_);
        const TextLanguage outside = part.and_also(witnesses_[i].names.complement(work_), work_);
        if (!inside.is_empty()) divided.emplace_back(inside, named | uint32_t{1} << i);
        if (!outside.is_empty()) divided.emplace_back(outside, named);
      }
      parts = std::move(divided);
    }
    return parts;
  }

  /// Returns a way for each set of witnesses that a member can be at once.
  std::vector<JsonSet::Way> ways_of(const Names& names, const std::vector<SchemaTerm>& terms, uint32_t named) {
    uint32_t certain = 0;
    for (size_t i = 0; i < witnesses_.size(); ++i) {
      if ((named >> i & 1) != 0 && !witnesses_[i].value) certain |= uint32_t{1} << i;
    }
    std::vector<JsonSet::Way> ways;
    for (uint32_t set = 0; set < uint32_t{1} << witnesses_.size(); ++set) {
      if ((set & ~named) != 0 || (set & certain) != 0) continue;
      std::vector<SchemaTerm> further = terms;
      for (size_t i = 0; i < witnesses_.size(); ++i) {
        if ((set >> i & 1) != 0) further.push_back(*witnesses_[i].value);
      }
      ways.push_back({member_of(names, std::move(further)), set | certain});
    }
    return ways;
  }

  void read_witnesses() {
    if (object_.witnesses.size() > kMaxWitnesses) {
      fail_at(object_.witnesses.front().path, "it is excluded together with too many others");
    }
    for (const ObjectConditions::Witness& each : object_.witnesses) {
      witnesses_.push_back(at_position(each.path, [&] { return read_witness(each); }));
      set_.witnesses = set_.witnesses << 1 | 1;
    }
  }

  Witness read_witness(const ObjectConditions::Witness& witness) {
    if (witness.keyword == "patternProperties") {
      return {parts_.document.pattern_language(witness.pattern.key), violation_of(witness.pattern.value, witness.path)};
    }
    if (witness.keyword == "propertyNames") {
      return {names_of({{witness.schema["propertyNames"], true, witness.path}}), std::nullopt};
    }
    std::vector<std::string_view> named;
    JsonObject members;
    if (witness.schema["properties"].get(members)) {
      for (const JsonMember& member : members) named.push_back(member.key);
    }
    TextLanguage names = TextLanguage::exactly(named, work_).complement(work_);
    if (witness.schema["patternProperties"].get(members)) {
      for (const JsonMember& pattern : members) {
        names = names.and_also(parts_.document.pattern_language(pattern.key).complement(work_), work_);
      }
    }
    return {names, violation_of(witness.schema["additionalProperties"], witness.path)};
  }

  static std::optional<SchemaTerm> violation_of(JsonValue schema, const std::string& path) {
    if (schema.is_false()) return std::nullopt;
    return SchemaTerm{schema, true, path};
  }

  /// Returns the names that "propertyNames" allow.
  TextLanguage valid_names() {
    TextLanguage names = TextLanguage::any();
    for (const SchemaTerm& term : object_.names) names = names.and_also(names_of({term}), work_);
    return names;
  }

  /// Returns the strings that satisfy all terms.
  TextLanguage names_of(const std::vector<SchemaTerm>& terms) {
    TextLanguage names = TextLanguage::any().complement(work_);
    for (const SchemaCase& each : parts_.cases.cases_of(terms)) {
      if ((each.types & kStringType) == 0) continue;
      names = names.or_else(
          each.listed ? listed_names(*each.listed) : string_language(each.string, terms.front().path, parts_), work_);
    }
    return names;
  }

  TextLanguage listed_names(const std::vector<JsonValue>& values) {
    std::vector<std::string_view> texts;
    std::string_view text;
    for (const JsonValue value : values) {
      if (value.get(text)) texts.push_back(text);
    }
    return TextLanguage::exactly(texts, work_);
  }

  static constexpr size_t kMaxWitnesses = 4;
  static constexpr uint64_t kMemberSteps = 20;

  const ObjectConditions& object_;
  const std::string& path_;
  SchemaParts& parts_;
  const MemberNotation* const notation_;  // null: JSON
  ReadWork& work_;
  SchemaCheck names_check_;
  JsonSet set_;
  std::vector<Witness> witnesses_;  // a bit each
  std::vector<std::string_view> known_;
  bool is_impossible_ = false;
};

}  // namespace

uint32_t take_set_nodes(const JsonSet& set, SchemaParts& parts) {
  const auto share = static_cast<uint32_t>(std::clamp<size_t>(parts.nodes_left / 32, kMinSetNodes, kMaxSetNodes));
  parts.nodes_left -= std::min(parts.nodes_left, set_network_nodes(set, share));
  return share;
}

ExpressionPtr object_expression(const ObjectConditions& object, const std::string& path, SchemaParts& parts,
                                const MemberNotation* notation) {
  const bool is_any = object.sources.empty() && object.members.empty() && object.required.empty() &&
                      object.forbidden.empty() && object.names.empty() && object.witnesses.empty() && object.min == 0 &&
                      !object.max && !object.unnamed;
  return is_any && notation == nullptr ? parts.rules.object() : ObjectReader(object, path, parts, notation).read();
}

}  // namespace millrace::grammar
