#include "grammar/text_nfa.h"

#include <algorithm>
#include <array>
#include <compare>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"

namespace millrace::grammar {
namespace {

/// How a character counts at a word's boundary. Standards differ on letters, digits and marks beyond ASCII. A boundary
/// is between kWord and kOther; there is none between two of one kind.
enum class CharKind : uint8_t {
  kBegin,   ///< there is no character; counts as kOther
  kOther,   ///< no word character by any standard
  kWord,    ///< a word character by all standards
  kUnsure,  ///< a character beyond ASCII
};

struct KindRange {
  char32_t low;
  CharKind kind;
};
/// The kinds of all characters: each range ends where the next one begins. Beyond ASCII, the usual signs next to words
/// are known to be none.
constexpr KindRange kKindRanges[] = {
    {0, CharKind::kOther},        {U'0', CharKind::kWord},      {U'9' + 1, CharKind::kOther},
    {U'A', CharKind::kWord},      {U'Z' + 1, CharKind::kOther}, {U'_', CharKind::kWord},
    {U'_' + 1, CharKind::kOther}, {U'a', CharKind::kWord},      {U'z' + 1, CharKind::kOther},
    {0x80, CharKind::kUnsure},    {0xA0, CharKind::kOther},     {0xAA, CharKind::kUnsure},
    {0xAB, CharKind::kOther},     {0xB2, CharKind::kUnsure},    {0xB6, CharKind::kOther},
    {0xB9, CharKind::kUnsure},    {0xBB, CharKind::kOther},     {0xBC, CharKind::kUnsure},
    {0xBF, CharKind::kOther},     {0xC0, CharKind::kUnsure},    {0x2010, CharKind::kOther},
    {0x203F, CharKind::kUnsure},  {0x20A0, CharKind::kOther},   {0x20C0, CharKind::kUnsure},
    {0x3001, CharKind::kOther},   {0x3004, CharKind::kUnsure},  {0x3008, CharKind::kOther},
    {0x3021, CharKind::kUnsure},
};

/// The neighbours of a position, as far as assertions need them.
struct Position {
  CharKind before = CharKind::kOther;
  CharKind after = CharKind::kOther;
  bool is_end = false;

  [[nodiscard]] bool satisfies(Expression::Assertion assertion) const {
    const CharKind left = before == CharKind::kBegin ? CharKind::kOther : before;
    switch (assertion) {
      case Expression::Assertion::kBegin: return before == CharKind::kBegin;
      case Expression::Assertion::kEnd: return is_end;
      case Expression::Assertion::kNoBoundary: return left == after;
      case Expression::Assertion::kBoundary: break;
    }
    return left != after && left != CharKind::kUnsure && after != CharKind::kUnsure;
  }
};

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
    (void)number_of(has_assertions_ ? CharKind::kBegin : CharKind::kOther, {kBegin});
    for (size_t i = 0; i < sets_.size(); ++i) {
      work_ += sets_[i].states.size();
      if (sets_.size() > max_states_ || work_ > kMaxWork) return std::nullopt;
      shared_work_.spend(work_ - std::exchange(spent_, work_));
      const Set set = sets_[i];
      const std::vector<uint32_t> last = closure(set.states, Position{.before = set.before, .is_end = true});
      TextLanguage::State state{.edges = {}, .is_end = std::ranges::binary_search(last, kEnd)};
      if (has_boundaries_) {
        add_edges_by_kind(set, state.edges);
      } else {
        const bool is_open = has_assertions_;
        for (const Range& range : ranges_of(is_open ? closure(set.states, Position{.before = set.before}) : set.states))
          state.edges.push_back({range.low, range.high, number_of(CharKind::kOther, range.targets)});
      }
      shared_work_.spend(state.edges.size() / kEdgesPerStep);
      states.push_back(std::move(state));
    }
    return states;
  }

 private:
  static constexpr uint32_t kBegin = 0;
  static constexpr uint32_t kEnd = 1;
  static constexpr size_t kMaxNfaStates = 100'000;
  static constexpr size_t kMaxWork = 4'000'000;
  static constexpr size_t kEdgesPerStep = 4;

  struct State {
    std::vector<uint32_t> epsilons;
    std::vector<std::pair<Expression::Assertion, uint32_t>> assertions;
    std::vector<std::pair<CharSet::Range, uint32_t>> edges;
  };
  /// A state of the deterministic automaton: what the text so far leads to, before the next assertion or character.
  struct Set {
    CharKind before;  // kOther throughout, unless assertions need it
    std::vector<uint32_t> states;
    friend auto operator<=>(const Set&, const Set&) = default;
  };
  /// Characters on which the states of a set go to the same states.
  struct Range {
    char32_t low;
    char32_t high;
    std::vector<uint32_t> targets;
    std::optional<uint32_t> number;  // of the state that they make
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
        CHECK(expression.text.empty(), "a literal is not a set of characters");
        states_[from].epsilons.push_back(to);
        break;
      case Expression::Kind::kAssertion: build_assertion(expression.assertion, from, to); break;
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
      case Expression::Kind::kTagged:
      case Expression::Kind::kReference:
      case Expression::Kind::kNetwork: CHECK(false, "a regular expression has neither tags nor rules nor networks");
    }
  }

  void build_assertion(Expression::Assertion assertion, uint32_t from, uint32_t to) {
    using enum Expression::Assertion;
    has_boundaries_ = has_boundaries_ || assertion == kBoundary || assertion == kNoBoundary;
    has_assertions_ = has_assertions_ || assertion != kEnd;
    states_[from].assertions.emplace_back(assertion, to);
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

  /// Returns the number of the state of the deterministic automaton for what a character leads to.
  uint32_t number_of(CharKind before, const std::vector<uint32_t>& targets) {
    Set set{before, closure(targets, {})};
    const auto [entry, is_new] = numbers_.try_emplace(std::move(set), static_cast<uint32_t>(sets_.size()));
    if (is_new) sets_.push_back(entry->first);
    return entry->second;
  }

  /// Adds the edges of a set whose next states depend on the kind of the next character.
  void add_edges_by_kind(const Set& set, std::vector<TextLanguage::Edge>& edges) {
    std::array<std::vector<Range>, 4> ranges;
    for (const CharKind after : {CharKind::kOther, CharKind::kWord, CharKind::kUnsure})
      ranges[static_cast<size_t>(after)] =
          ranges_of(closure(set.states, Position{.before = set.before, .after = after}));
    for (size_t i = 0; i < std::size(kKindRanges); ++i) {
      const auto& [low, kind] = kKindRanges[i];
      const char32_t high =
          i + 1 < std::size(kKindRanges) ? kKindRanges[i + 1].low - 1 : char32_t{CharSet::kMaxCodePoint};
      for (Range& range : ranges[static_cast<size_t>(kind)]) {
        if (range.high < low || range.low > high) continue;
        if (!range.number) range.number = number_of(kind, range.targets);
        edges.push_back({std::max(low, range.low), std::min(high, range.high), *range.number});
      }
    }
  }

  /// Returns the states that a set reaches without a character, as far as they matter. Without a position, assertions
  /// are left open.
  std::vector<uint32_t> closure(std::vector<uint32_t> set, const std::optional<Position>& position) {
    seen_.resize(states_.size());
    ++round_;
    std::vector<uint32_t> reached;
    for (size_t i = 0; i < set.size(); ++i) {
      const uint32_t state = set[i];
      if (std::exchange(seen_[state], round_) == round_) continue;
      const State& at = states_[state];
      if (state == kEnd || !at.edges.empty() || !at.assertions.empty()) reached.push_back(state);
      set.insert(set.end(), at.epsilons.begin(), at.epsilons.end());
      for (const auto& [assertion, to] : at.assertions) {
        if (position && position->satisfies(assertion)) set.push_back(to);
      }
    }
    work_ += set.size();
    std::ranges::sort(reached);
    return reached;
  }

  std::vector<Range> ranges_of(const std::vector<uint32_t>& set) {
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
    std::vector<Range> ranges;
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
      ranges.push_back({.low = at, .high = events[i].at - 1, .targets = std::move(targets), .number = {}});
    }
    return ranges;
  }

  const size_t max_states_;
  ReadWork& shared_work_;
  std::vector<State> states_;
  std::vector<uint64_t> seen_;
  uint64_t round_ = 0;
  size_t work_ = 0;
  size_t spent_ = 0;       // the part of work_ that shared_work_ has counted
  std::vector<Set> sets_;  // of the states of the deterministic automaton
  std::map<Set, uint32_t> numbers_;
  bool is_too_large_ = false;
  bool has_assertions_ = false;  // that depend on what is before them
  bool has_boundaries_ = false;
};

}  // namespace

std::optional<std::vector<TextLanguage::State>> determinized(const Expression& expression, size_t max_states,
                                                             ReadWork& work) {
  TextNfa nfa(max_states, work);
  if (!nfa.build(expression)) return std::nullopt;
  return nfa.determinize();
}

}  // namespace millrace::grammar
