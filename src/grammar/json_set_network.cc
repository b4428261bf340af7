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
  SetNetworkMaker(const JsonSet& set, const ExpressionPtr& comma, const ExpressionPtr& end, uint32_t max_nodes)
      : set_(set), comma_(comma), end_(end) {
    const auto required = static_cast<uint32_t>(std::ranges::count_if(set.members, &JsonSet::Member::is_required));
    const auto all = static_cast<uint32_t>(set.members.size());
    const bool has_min = set.min > required;
    const bool has_max = set.max && (*set.max < all || !set.others.empty());
    if (has_min || has_max) most_counted_ = std::max(set.min, has_max ? *set.max : 0);
    has_max_ = has_max;
    divide(max_nodes);
  }

  /// Returns the number of combinations of free and ordered members.
  [[nodiscard]] size_t combinations() const { return combinations(free_.size()); }

  ExpressionPtr make() {
    const Position first{};
    if (set_.max == 0u) return may_end(first) && set_.min == 0 ? nothing_ : choice({});
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
    auto operator<=>(const Position&) const = default;
  };

  [[nodiscard]] size_t combinations(size_t free) const {
    const size_t counts = most_counted_ + size_t{1};
    return (size_t{1} << free) * (set_.members.size() - free + 1) * (set_.others.empty() ? 1 : counts);
  }

  /// Lets members come in any order, the required ones first, until there are too many combinations.
  void divide(uint32_t max_nodes) {
    constexpr size_t kMaxFree = 16;
    std::vector<size_t> order(set_.members.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::sort(order, {}, [&](size_t i) { return std::pair(!set_.members[i].is_required, i); });
    size_t free = 0;
    while (free < std::min(order.size(), kMaxFree) && combinations(free + 1) <= max_nodes) ++free;
    std::vector<bool> is_free(order.size());
    for (size_t i = 0; i < free; ++i) is_free[order[i]] = true;
    for (size_t i = 0; i < order.size(); ++i) (is_free[i] ? free_ : ordered_).push_back(&set_.members[i]);
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
    return set_.min == 0 || most_counted_ == 0 || at.count >= set_.min;
  }

  /// Returns the position after one more member.
  [[nodiscard]] Position after(Position at) const {
    at.stage = Stage::kAfter;
    at.count = std::min(at.count + 1, most_counted_);
    return at;
  }

  void add_members(const Position& at) {
    const uint32_t node = node_of(at);
    for (size_t i = 0; i < free_.size(); ++i) {
      if ((at.free >> i & 1) != 0) continue;
      Position next = after(at);
      next.free |= uint32_t{1} << i;
      network_.add_edge(node, node_of(next), free_[i]->expression);
    }
    for (const ExpressionPtr& other : set_.others) network_.add_edge(node, node_of(after(at)), other);
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
    network_.add_edge(node, node_of(after(skipped)), member.expression);
    if (!member.is_required && skipped.ordered < ordered_.size()) {
      network_.add_edge(node, node_of(skipped), nothing_);
    }
  }

  void add_comma_and_end(const Position& at) {
    const uint32_t node = node_of(at);
    if (may_end(at)) network_.add_edge(node, NetworkBuilder::kEnd, end_);
    const bool has_more = !set_.others.empty() || at.ordered < ordered_.size() ||
                          static_cast<size_t>(std::popcount(at.free)) < free_.size();
    if (!has_more || (has_max_ && at.count >= *set_.max)) return;
    Position next = at;
    next.stage = Stage::kBefore;
    network_.add_edge(node, node_of(next), comma_);
  }

  const JsonSet& set_;
  const ExpressionPtr& comma_;
  const ExpressionPtr& end_;
  const ExpressionPtr nothing_ = literal("");
  std::vector<const JsonSet::Member*> free_;
  std::vector<const JsonSet::Member*> ordered_;
  uint32_t most_counted_ = 0;  // 0: the count does not matter
  bool has_max_ = false;
  NetworkBuilder network_;
  std::map<Position, uint32_t> nodes_;
  std::vector<Position> open_;
};

}  // namespace

ExpressionPtr set_network(const JsonSet& set, const ExpressionPtr& comma, const ExpressionPtr& end,
                          uint32_t max_nodes) {
  return SetNetworkMaker(set, comma, end, max_nodes).make();
}

size_t set_network_nodes(const JsonSet& set, uint32_t max_nodes) {
  return SetNetworkMaker(set, literal(""), literal(""), max_nodes).combinations();
}

}  // namespace millrace::grammar
