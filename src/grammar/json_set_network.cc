#include "grammar/json_set_network.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

namespace millrace::grammar {
namespace {

/// Builds the network of one set. A node knows which of the free members have come, how far the ordered ones have, and
/// how many members there are if a count matters.
class SetNetworkMaker {
 public:
  SetNetworkMaker(const JsonSet& set, uint32_t max_nodes) : set_(set), others_(set.others) {
    const auto required = static_cast<uint32_t>(std::ranges::count_if(set.members, &JsonSet::Member::is_required));
    const auto all = static_cast<uint32_t>(set.members.size());
    const bool has_min = set.min > required;
    if (set.max && (*set.max < all || !set.others.empty())) max_ = set.max;
    if (has_min || max_) max_count_ = std::max(set.min, max_.value_or(0));
    divide(max_nodes, set.may_repeat && !has_min && set.witnesses == 0);
  }

  /// Returns the number of combinations of free and ordered members.
  [[nodiscard]] size_t combinations() const { return combinations(free_.size()); }

  ExpressionPtr make(const ExpressionPtr& comma, const ExpressionPtr& end, Definition& definition) {
    comma_ = comma;
    end_ = end;
    const Position first{};
    if (set_.max == 0u) return may_end(first) && set_.min == 0 ? nothing_ : choice({});
    add_repeated(definition);
    network_.add_edge(NetworkBuilder::kBegin, node_of(first), nothing_);
    if (may_end(first)) network_.add_edge(NetworkBuilder::kBegin, NetworkBuilder::kEnd, nothing_);
    while (!open_.empty()) {
      const Position at = open_.back();
      open_.pop_back();
      switch (at.stage) {
        case Stage::kBefore: add_members(at); break;
        case Stage::kOrdered: add_ordered(at); break;
        case Stage::kAfter: add_comma_and_end(at); break;
      }
    }
    return std::move(network_).build();
  }

 private:
  enum class Stage : uint8_t { kBefore, kOrdered, kAfter };
  struct Position {
    Stage stage = Stage::kBefore;
    uint32_t free = 0;     // a bit for each that has come
    uint32_t ordered = 0;  // the next one
    uint32_t count = 0;    // of all members, as far as it matters
    uint32_t witnesses = 0;
    auto operator<=>(const Position&) const = default;
  };

  /// Returns the combinations if the first members of `divided_` are free.
  [[nodiscard]] size_t combinations(size_t free) const {
    const size_t counts = max_ || !others_.empty() || !repeated_.empty() ? max_count_ + size_t{1} : 1;
    return (size_t{1} << (free + static_cast<size_t>(std::popcount(set_.witnesses)))) * (divided_.size() - free + 1) *
           counts;
  }

  /// Lets members come in any order, the required ones first, until there are too many combinations.
  void divide(uint32_t max_nodes, bool may_repeat) {
    constexpr size_t kMaxFree = 16;
    for (const bool is_required : {true, false}) {
      for (const JsonSet::Member& member : set_.members) {
        if (member.is_required == is_required) divided_.push_back(&member);
      }
    }
    const auto find_max_free = [&] {
      size_t free = 0;
      while (free < std::min(divided_.size(), kMaxFree) && combinations(free + 1) <= max_nodes) ++free;
      return free;
    };
    size_t free = find_max_free();
    if (free < divided_.size() && may_repeat) {
      const auto optional = std::ranges::find_if(divided_, [](const auto* member) { return !member->is_required; });
      repeated_.assign(optional, divided_.end());
      divided_.erase(optional, divided_.end());
      // Without other members there is a bound, so that a model cannot repeat one for ever.
      if (others_.empty() && !max_) {
        max_ = static_cast<uint32_t>(set_.members.size());
        max_count_ = *max_;
      }
      free = find_max_free();
    }
    std::ranges::sort(divided_.begin() + static_cast<std::ptrdiff_t>(free), divided_.end());
    free_.assign(divided_.begin(), divided_.begin() + static_cast<std::ptrdiff_t>(free));
    ordered_.assign(divided_.begin() + static_cast<std::ptrdiff_t>(free), divided_.end());
  }

  /// Adds the members that may repeat to the others, as one rule.
  void add_repeated(Definition& definition) {
    std::vector<ExpressionPtr> ways;
    for (const JsonSet::Member* member : repeated_) ways.push_back(member->ways.front().expression);
    if (!ways.empty()) others_.push_back({reference(definition.add("an optional member", choice(std::move(ways)))), 0});
  }

  uint32_t node_of(const Position& position) {
    const auto [entry, is_new] = nodes_.try_emplace(position, 0);
    if (is_new) {
      entry->second = network_.add_node();
      open_.push_back(position);
    }
    return entry->second;
  }

  [[nodiscard]] bool may_end(const Position& at) const {
    for (size_t i = 0; i < free_.size(); ++i) {
      if (free_[i]->is_required && (at.free >> i & 1) == 0) return false;
    }
    for (size_t i = at.ordered; i < ordered_.size(); ++i) {
      if (ordered_[i]->is_required) return false;
    }
    return at.witnesses == set_.witnesses && (max_count_ == 0 || at.count >= std::min(set_.min, max_count_));
  }

  /// Returns the position after one more member.
  [[nodiscard]] Position after(Position at, const JsonSet::Way& way) const {
    at.stage = Stage::kAfter;
    at.witnesses |= way.witnesses;
    at.count = std::min(at.count + 1, max_count_);
    return at;
  }

  void add_members(const Position& at) {
    const uint32_t node = node_of(at);
    for (size_t i = 0; i < free_.size(); ++i) {
      if ((at.free >> i & 1) != 0) continue;
      for (const JsonSet::Way& way : free_[i]->ways) {
        Position next = after(at, way);
        next.free |= uint32_t{1} << i;
        network_.add_edge(node, node_of(next), way.expression);
      }
    }
    for (const JsonSet::Way& way : others_) network_.add_edge(node, node_of(after(at, way)), way.expression);
    if (at.ordered < ordered_.size()) {
      Position chain = at;
      chain.stage = Stage::kOrdered;
      network_.add_edge(node, node_of(chain), nothing_);
    }
  }

  void add_ordered(const Position& at) {
    const uint32_t node = node_of(at);
    const JsonSet::Member& member = *ordered_[at.ordered];
    Position skipped = at;
    ++skipped.ordered;
    for (const JsonSet::Way& way : member.ways) {
      network_.add_edge(node, node_of(after(skipped, way)), way.expression);
    }
    if (!member.is_required && skipped.ordered < ordered_.size()) {
      network_.add_edge(node, node_of(skipped), nothing_);
    }
  }

  void add_comma_and_end(const Position& at) {
    const uint32_t node = node_of(at);
    if (may_end(at)) network_.add_edge(node, NetworkBuilder::kEnd, end_);
    const bool has_more =
        !others_.empty() || at.ordered < ordered_.size() || static_cast<size_t>(std::popcount(at.free)) < free_.size();
    if (!has_more || (max_ && at.count >= *max_)) return;
    Position next = at;
    next.stage = Stage::kBefore;
    network_.add_edge(node, node_of(next), comma_);
  }

  const JsonSet& set_;
  ExpressionPtr comma_;
  ExpressionPtr end_;
  const ExpressionPtr nothing_ = literal("");
  std::vector<JsonSet::Way> others_;
  std::vector<const JsonSet::Member*> divided_;  // the required ones first; without those that repeat
  std::vector<const JsonSet::Member*> free_;
  std::vector<const JsonSet::Member*> ordered_;
  std::vector<const JsonSet::Member*> repeated_;
  std::optional<uint32_t> max_;
  uint32_t max_count_ = 0;  // 0: the count does not matter
  NetworkBuilder network_;
  std::map<Position, uint32_t> nodes_;
  std::vector<Position> open_;
};

}  // namespace

ExpressionPtr set_network(const JsonSet& set, const ExpressionPtr& comma, const ExpressionPtr& end, uint32_t max_nodes,
                          Definition& definition) {
  return SetNetworkMaker(set, max_nodes).make(comma, end, definition);
}

size_t set_network_nodes(const JsonSet& set, uint32_t max_nodes) {
  return SetNetworkMaker(set, max_nodes).combinations();
}

}  // namespace millrace::grammar
