#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "grammar/json_schema_parts.h"
#include "grammar/json_set_network.h"

namespace millrace::grammar {
namespace {

/// Limits the positions and counts that are distinguished where an array has to contain items.
constexpr size_t kMaxContainNodes = 4096;
constexpr size_t kMaxContained = 3;
/// Limits the values whose arrays of distinct items are distinguished.
constexpr size_t kMaxDistinctValues = 64;
/// Whole numbers between two bounds that are looked at, at most.
constexpr int64_t kMaxWholeNumbers = 1000;

/// Returns the number without its fraction, or nothing where it has more than 18 digits.
std::optional<int64_t> whole_part(const Decimal& number) {
  constexpr size_t kDigits = 18;
  if (number.whole.size() > kDigits) return std::nullopt;
  const int64_t whole = std::stoll(number.whole);
  return number.is_negative ? -whole : whole;
}

bool satisfies(const Decimal& number, const NumberConditions& conditions) {
  const auto above = number <=> *conditions.low;
  const auto below = number <=> *conditions.high;
  if (above < 0 || below > 0 || (above == 0 && conditions.excludes_low) || (below == 0 && conditions.excludes_high)) {
    return false;
  }
  const bool is_excluded = std::ranges::find(conditions.excluded, number) != conditions.excluded.end();
  return !is_excluded && std::ranges::all_of(conditions.multiples, [&](const NumberConditions::Multiple& multiple) {
    return is_multiple_of(number, multiple.divisor) != multiple.is_negated;
  });
}

/// Returns the whole numbers that satisfy the conditions if their bounds are close together.
std::optional<std::vector<std::string>> few_whole_numbers(const NumberConditions& conditions) {
  const auto first = conditions.low ? whole_part(*conditions.low) : std::nullopt;
  const auto last = conditions.high ? whole_part(*conditions.high) : std::nullopt;
  if (!first || !last || *last - *first > kMaxWholeNumbers) return std::nullopt;
  std::vector<std::string> numbers;
  for (int64_t number = *first; number <= *last; ++number) {
    std::string text = std::to_string(number);
    if (satisfies(*parse_decimal(text), conditions)) numbers.push_back(std::move(text));
  }
  return numbers;
}

/// Reads the items of one array. Lives for one call.
class ArrayReader {
 public:
  ArrayReader(const ArrayConditions& array, SchemaParts& parts) : array_(array), parts_(parts), max_(array.max) {}

  ExpressionPtr read() {
    for (const ArrayConditions::Source& source : array_.sources) {
      known_ = std::max(known_, static_cast<uint32_t>(source.prefix.size()));
    }
    for (const auto& [index, term] : array_.items) known_ = std::max(known_, index + 1);
    if (max_) known_ = std::min(known_, *max_);
    if (max_ && array_.min > *max_) return choice({});
    const ExpressionPtr space = parts_.rules.space();
    return sequence({literal("["), space, items(), literal("]")});
  }

 private:
  /// Returns the conditions on the item at a position. All positions from known_ on have the same.
  [[nodiscard]] std::vector<SchemaTerm> terms_at(uint32_t index) const {
    std::vector<SchemaTerm> terms = array_.every;
    for (const ArrayConditions::Source& source : array_.sources) {
      if (index < source.prefix.size()) {
        terms.push_back({source.prefix.at(index), false, fmt::format("{}[{}]", source.prefix_path, index)});
      } else if (!source.rest.is_missing()) {
        terms.push_back({source.rest, false, source.rest_path});
      }
    }
    for (const auto& [position, term] : array_.items) {
      if (position == index) terms.push_back(term);
    }
    std::erase_if(terms, [](const SchemaTerm& term) { return term.schema.is_true() && !term.is_negated; });
    return terms;
  }

  /// Returns the item at a position. Null if there may be none.
  ExpressionPtr item_at(uint32_t index, const std::vector<SchemaTerm>& further = {}) {
    std::vector<SchemaTerm> terms = terms_at(index);
    terms.insert(terms.end(), further.begin(), further.end());
    for (const SchemaTerm& term : terms) {
      if (term.schema.is_bool() && term.schema.is_true() == term.is_negated) return nullptr;
    }
    return terms.empty() ? parts_.rules.value() : parts_.read(std::move(terms));
  }

  ExpressionPtr items() {
    if (array_.is_unique && (!max_ || *max_ > 1)) return distinct_items();
    if (!array_.contained.empty()) return containing_items();
    std::vector<ExpressionPtr> known;
    ExpressionPtr further;
    for (uint32_t i = 0; i < known_; ++i) {
      known.push_back(item_at(i));
      if (known.back() != nullptr) continue;
      known.pop_back();
      max_ = std::min(max_.value_or(i), i);
      break;
    }
    if (!max_ || *max_ > known.size()) further = item_at(known_);
    if (further == nullptr) max_ = std::min(max_.value_or(UINT32_MAX), static_cast<uint32_t>(known.size()));
    if (max_ && array_.min > *max_) return choice({});
    if (known.empty() && further != nullptr) known.push_back(further);
    return listed_items(known, further);
  }

  ExpressionPtr listed_items(const std::vector<ExpressionPtr>& known, const ExpressionPtr& further) {
    if (known.empty()) return literal("");
    const auto count = static_cast<uint32_t>(known.size());
    const uint32_t min = array_.min;
    const ExpressionPtr space = parts_.rules.space();
    ExpressionPtr rest = space;
    if (further != nullptr && (!max_ || *max_ > count)) {
      const std::optional<uint32_t> more = max_ ? std::optional(*max_ - count) : std::nullopt;
      ExpressionPtr item = sequence({parts_.rules.comma(), further});
      rest = sequence({parts_.rules.repeated(item, std::max(min, count) - count, more), rest});
    }
    for (uint32_t i = count; i-- > 0;) {
      ExpressionPtr item = i == 0 ? known[i] : sequence({parts_.rules.comma(), known[i]});
      ExpressionPtr with = sequence({std::move(item), rest});
      // The space before the bracket follows an item. In an empty array it has followed the other bracket.
      if (i >= min) with = i == 0 ? optional(std::move(with)) : choice({std::move(with), space});
      rest = std::move(with);
    }
    return rest;
  }

  // A node is a position and how often each wanted item has come.
  ExpressionPtr containing_items() {
    if (array_.contained.size() > kMaxContained) {
      fail_at(array_.contained[0].term.path, fmt::format("wanted at most {} of 'contains'", kMaxContained));
    }
    const uint32_t last = std::max({known_, array_.min, max_.value_or(0)});
    size_t combinations = last + size_t{1};
    for (const auto& contained : array_.contained) combinations *= contained.min + size_t{1};
    if (combinations > kMaxContainNodes) {
      fail_at(array_.contained[0].term.path,
              fmt::format("its counts and positions take more than {} combinations", kMaxContainNodes));
    }
    struct Position {
      uint32_t index = 0;
      std::vector<uint32_t> counts;
      auto operator<=>(const Position&) const = default;
    };
    NetworkBuilder network;
    const ExpressionPtr nothing = literal("");
    const ExpressionPtr space = parts_.rules.space();
    const ExpressionPtr comma = parts_.rules.comma();
    std::map<Position, uint32_t> nodes;  // after the items so far
    std::vector<Position> open;
    std::map<std::pair<uint32_t, uint32_t>, ExpressionPtr> made;  // by position and wanted items that it is
    const auto node_of = [&](const Position& at) {
      const auto [entry, is_new] = nodes.try_emplace(at, 0);
      if (is_new) {
        entry->second = network.add_node();
        open.push_back(at);
      }
      return entry->second;
    };
    network.add_edge(NetworkBuilder::kBegin, node_of({0, std::vector<uint32_t>(array_.contained.size())}), nothing);
    while (!open.empty()) {
      const Position at = open.back();
      open.pop_back();
      const uint32_t node = node_of(at);
      bool has_all = at.index >= array_.min;
      for (size_t i = 0; i < at.counts.size(); ++i) has_all = has_all && at.counts[i] >= array_.contained[i].min;
      if (has_all) network.add_edge(node, NetworkBuilder::kEnd, at.index == 0 ? nothing : space);
      if (max_ && at.index >= *max_) continue;
      const uint32_t before = at.index == 0 ? node : network.add_node();
      if (at.index > 0) network.add_edge(node, before, comma);
      const uint32_t position = std::min(at.index, known_);
      for (uint32_t kinds = 0; kinds < uint32_t{1} << at.counts.size(); ++kinds) {
        const auto [entry, is_new] = made.try_emplace({position, kinds});
        if (is_new) entry->second = item_at(position, wanted_terms(kinds));
        if (entry->second == nullptr) continue;
        // An array without an upper bound stays at a position beyond all bounds. 0 is the empty array alone.
        Position next{std::min(at.index + 1, std::max(last, 1u)), at.counts};
        for (size_t i = 0; i < next.counts.size(); ++i) {
          next.counts[i] = std::min(next.counts[i] + (kinds >> i & 1), array_.contained[i].min);
        }
        network.add_edge(before, node_of(next), entry->second);
      }
    }
    return std::move(network).build();
  }

  [[nodiscard]] std::vector<SchemaTerm> wanted_terms(uint32_t kinds) const {
    std::vector<SchemaTerm> terms;
    for (size_t i = 0; i < array_.contained.size(); ++i) {
      if ((kinds >> i & 1) != 0) terms.push_back(array_.contained[i].term);
    }
    return terms;
  }

  ExpressionPtr distinct_items() {
    const std::vector<SchemaTerm> terms = terms_at(known_);
    const auto values = known_ == 0 && array_.contained.empty() ? few_values(terms) : std::nullopt;
    if (!values) {
      fail_at(array_.path, fmt::format("the keyword 'uniqueItems' is supported only for items of at most {} values",
                                       kMaxDistinctValues));
    }
    JsonSet set;
    set.min = array_.min;
    set.max = max_;
    for (const ExpressionPtr& value : *values) set.members.push_back({.ways = {{value, 0}}, .is_required = false});
    const uint32_t nodes = take_set_nodes(set, parts_);
    return set_network(set, parts_.rules.comma(), parts_.rules.space(), nodes, parts_.definition);
  }

  /// Returns the values of the items if they are few.
  [[nodiscard]] std::optional<std::vector<ExpressionPtr>> few_values(const std::vector<SchemaTerm>& terms) const {
    if (terms.empty()) return std::nullopt;
    std::vector<ExpressionPtr> values;
    const auto add = [&](ExpressionPtr value) {
      if (values.size() > kMaxDistinctValues) return;  // too many already
      if (std::ranges::find(values, value->text,
                            [](const ExpressionPtr& known) { return std::string_view(known->text); }) == values.end())
        values.push_back(std::move(value));
    };
    const JsonNotation& notation = parts_.rules.notation();
    for (const SchemaCase& each : parts_.cases.cases_of(terms)) {
      if (each.listed) {
        for (const JsonValue value : *each.listed) add(literal(parts_.rules.writer().value(value)));
        continue;
      }
      if ((each.types & ~(kNullType | kTrueType | kFalseType | kWholeType)) != 0) return std::nullopt;
      if ((each.types & kWholeType) != 0) {
        const auto numbers = few_whole_numbers(each.number);
        if (!numbers) return std::nullopt;
        for (const std::string& number : *numbers) add(literal(number));
      }
      if ((each.types & kNullType) != 0) add(literal(notation.null_word));
      if ((each.types & kTrueType) != 0) add(literal(notation.true_word));
      if ((each.types & kFalseType) != 0) add(literal(notation.false_word));
    }
    if (values.size() > kMaxDistinctValues) return std::nullopt;
    return values;
  }

  const ArrayConditions& array_;
  SchemaParts& parts_;
  std::optional<uint32_t> max_;
  uint32_t known_ = 0;  // positions with conditions of their own
};

}  // namespace

ExpressionPtr array_expression(const ArrayConditions& array, SchemaParts& parts) {
  const bool is_any = array.sources.empty() && array.items.empty() && array.every.empty() && array.contained.empty() &&
                      array.min == 0 && !array.max && !array.is_unique;
  return is_any ? parts.rules.array() : ArrayReader(array, parts).read();
}

}  // namespace millrace::grammar
