#include "grammar/text_nfa.h"

#include <algorithm>
#include <map>

#include "base/check.h"

namespace millrace::grammar {
namespace {

/// A nondeterministic automaton over characters by Thompson's construction. Lives for one call of determinized().
class TextNfa {
 public:
  TextNfa(size_t max_states, ReadWork& work) : max_states_(max_states), shared_work_(work) {
    add_state();
    add_state();
  }

  /// Returns false if the expression takes too many states.
  bool build(const Expression& expression) {
    build(expression, kBegin, kEnd);
    return !is_too_large_;
  }

  std::optional<std::vector<TextLanguage::State>> determinize() {
    std::vector<TextLanguage::State> states;
    std::map<std::vector<uint32_t>, uint32_t> numbers;
    std::vector<std::vector<uint32_t>> sets;
    const auto number_of = [&](std::vector<uint32_t> set) {
      const auto [entry, is_new] = numbers.try_emplace(std::move(set), static_cast<uint32_t>(sets.size()));
      if (is_new) sets.push_back(entry->first);
      return entry->second;
    };
    (void)number_of(closure({kBegin}, true, false));
    for (size_t i = 0; i < sets.size(); ++i) {
      work_ += sets[i].size();
      if (sets.size() > max_states_ || work_ > kMaxWork) return std::nullopt;
      shared_work_.spend(work_ - std::exchange(spent_, work_));
      const std::vector<uint32_t> set = sets[i];
      const std::vector<uint32_t> last = closure(set, i == 0, true);
      TextLanguage::State state{.edges = {}, .is_end = std::ranges::binary_search(last, kEnd)};
      for_each_range(set, [&](char32_t low, char32_t high, std::vector<uint32_t> targets) {
        state.edges.push_back({low, high, number_of(closure(std::move(targets), false, false))});
      });
      states.push_back(std::move(state));
    }
    return states;
  }

 private:
  static constexpr uint32_t kBegin = 0;
  static constexpr uint32_t kEnd = 1;
  static constexpr size_t kMaxNfaStates = 100'000;
  static constexpr size_t kMaxWork = 4'000'000;

  struct State {
    std::vector<uint32_t> epsilons;
    std::vector<uint32_t> at_begin;  // reached without a character before all text
    std::vector<uint32_t> at_end;    // and after it
    std::vector<std::pair<CharSet::Range, uint32_t>> edges;
  };

  uint32_t add_state() {
    is_too_large_ = is_too_large_ || states_.size() >= kMaxNfaStates;
    if (is_too_large_) return kBegin;
    states_.emplace_back();
    return static_cast<uint32_t>(states_.size() - 1);
  }

  void build(const Expression& expression, uint32_t from, uint32_t to) {
    if (is_too_large_) return;
    switch (expression.kind) {
      case Expression::Kind::kLiteral:
        CHECK(expression.text.size() <= 1, "a literal is not a set of characters");
        if (expression.text.empty()) {
          states_[from].epsilons.push_back(to);
        } else {
          (expression.text == "^" ? states_[from].at_begin : states_[from].at_end).push_back(to);
        }
        break;
      case Expression::Kind::kChar: build_char(expression.chars, from, to); break;
      case Expression::Kind::kSequence: {
        uint32_t at = from;
        for (const ExpressionPtr& part : expression.parts) {
          const uint32_t next = add_state();
          build(*part, at, next);
          at = next;
        }
        states_[at].epsilons.push_back(to);
        break;
      }
      case Expression::Kind::kChoice:
        for (const ExpressionPtr& part : expression.parts) build(*part, from, to);
        break;
      case Expression::Kind::kRepeat: build_repeat(expression, from, to); break;
      case Expression::Kind::kReference:
      case Expression::Kind::kNetwork: CHECK(false, "a regular expression has neither rules nor networks");
    }
  }

  void build_char(const CharSet& chars, uint32_t from, uint32_t to) {
    for (CharSet::Range range : chars.ranges()) {
      // Sets leave out surrogates, which no text has. With them a set of all other characters is one range.
      if (range.high == 0xD7FF) range.high = 0xDFFF;
      states_[from].edges.emplace_back(range, to);
    }
  }

  void build_repeat(const Expression& expression, uint32_t from, uint32_t to) {
    const Expression& part = *expression.parts.front();
    uint32_t at = add_state();
    states_[from].epsilons.push_back(at);
    for (uint32_t i = 0; i < expression.min && !is_too_large_; ++i) {
      const uint32_t next = add_state();
      build(part, at, next);
      at = next;
    }
    if (!expression.max) {
      const uint32_t loop = add_state();
      states_[at].epsilons.push_back(loop);
      build(part, loop, loop);
      at = loop;
    }
    for (uint32_t i = expression.min; i < expression.max.value_or(0) && !is_too_large_; ++i) {
      states_[at].epsilons.push_back(to);
      const uint32_t next = add_state();
      build(part, at, next);
      at = next;
    }
    states_[at].epsilons.push_back(to);
  }

  /// Returns the states that a set reaches without a character, as far as they matter.
  std::vector<uint32_t> closure(std::vector<uint32_t> set, bool is_begin, bool is_last) {
    seen_.resize(states_.size());
    ++round_;
    std::vector<uint32_t> reached;
    for (size_t i = 0; i < set.size(); ++i) {
      const uint32_t state = set[i];
      if (std::exchange(seen_[state], round_) == round_) continue;
      const State& at = states_[state];
      if (state == kEnd || !at.edges.empty() || !at.at_end.empty()) reached.push_back(state);
      set.insert(set.end(), at.epsilons.begin(), at.epsilons.end());
      if (is_begin) set.insert(set.end(), at.at_begin.begin(), at.at_begin.end());
      if (is_last) set.insert(set.end(), at.at_end.begin(), at.at_end.end());
    }
    work_ += set.size();
    std::ranges::sort(reached);
    return reached;
  }

  /// Calls `use` for each range of characters on which the states of a set go to the same states.
  template <class Use>
  void for_each_range(const std::vector<uint32_t>& set, const Use& use) {
    struct Event {
      char32_t at;
      bool is_begin;
      uint32_t to;
    };
    std::vector<Event> events;
    for (const uint32_t state : set) {
      for (const auto& [range, to] : states_[state].edges) {
        events.push_back({range.low, true, to});
        events.push_back({range.high + 1, false, to});
      }
    }
    std::ranges::sort(events, {}, &Event::at);
    std::map<uint32_t, uint32_t> open;  // targets and how many edges lead there
    for (size_t i = 0; i < events.size();) {
      const char32_t at = events[i].at;
      for (; i < events.size() && events[i].at == at; ++i) {
        if (events[i].is_begin) {
          ++open[events[i].to];
        } else if (--open[events[i].to] == 0) {
          open.erase(events[i].to);
        }
      }
      if (open.empty() || i == events.size()) continue;
      std::vector<uint32_t> targets;
      for (const auto& [to, count] : open) targets.push_back(to);
      use(at, events[i].at - 1, std::move(targets));
    }
  }

  const size_t max_states_;
  ReadWork& shared_work_;
  std::vector<State> states_;
  std::vector<uint64_t> seen_;
  uint64_t round_ = 0;
  size_t work_ = 0;
  size_t spent_ = 0;  // the part of work_ that shared_work_ has counted
  bool is_too_large_ = false;
};

}  // namespace

std::optional<std::vector<TextLanguage::State>> determinized(const Expression& expression, size_t max_states,
                                                             ReadWork& work) {
  TextNfa nfa(max_states, work);
  if (!nfa.build(expression)) return std::nullopt;
  return nfa.determinize();
}

}  // namespace millrace::grammar
