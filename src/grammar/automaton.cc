#include "grammar/automaton.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>

#include "base/check.h"
#include "base/utf8.h"
#include "grammar/rule_network.h"

namespace millrace::grammar {
namespace {

/// A repeated part becomes a rule of its own if it has many repeats, or a few repeats and many nodes.
constexpr size_t kSmallPart = 4;
constexpr uint32_t kFewRepeats = 4;
constexpr uint32_t kManyRepeats = 16;

Error invalid(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

}  // namespace

/// Builds an automaton by Thompson's construction (Communications of the ACM 11, 1968) with edges that call rules. Then
/// removes states that lead to no end. Lives for one compile() call.
class AutomatonBuilder {
 public:
  AutomatonBuilder(const Definition& definition, const Vocabulary& vocabulary)
      : definition_(definition), vocabulary_(vocabulary), unspellable_(vocabulary.spellable().complement()) {}

  Result<Automaton> build() {
    CHECK(definition_.root != nullptr, "a definition without a root");
    for (const Definition::Rule& rule : definition_.rules) {
      CHECK(rule.expression != nullptr, "rule {} is not defined", rule.name);
      add_rule(rule.name);
    }
    root_ = add_rule("the whole");
    const Rule whole = rules_[root_];
    const std::string_view given = unspellable_.empty() ? std::string_view() : definition_.prefix;
    (void)build_begun(*definition_.root, whole.begin, whole.end, given);
    for (size_t i = 0; i < definition_.rules.size(); ++i) {
      build(*definition_.rules[i].expression, Rule(rules_[i]));
    }
    if (is_too_large_) {
      return invalid(fmt::format("it takes more than {} states (large counts, or many parts)", Automaton::kMaxStates));
    }
    is_productive_ = states_reaching_end(network_, true);
    if (!is_productive_[rules_[root_].begin]) return invalid(no_text_reason());
    is_nullable_ = states_reaching_end(network_, false);
    RETURN_IF_ERROR(check_recursion(network_, is_nullable_));
    Automaton automaton = flatten();
    if (!accepts_nonempty_text()) return invalid("only the empty text matches it");
    return automaton;
  }

 private:
  using State = RuleNetwork::State;
  using Rule = RuleNetwork::Rule;
  using CallEdge = RuleNetwork::CallEdge;

  StateId add_state() {
    is_too_large_ = is_too_large_ || states_.size() >= Automaton::kMaxStates;
    if (is_too_large_) return 0;
    states_.emplace_back();
    return static_cast<StateId>(states_.size() - 1);
  }

  RuleIndex add_rule(std::string name) {
    const StateId begin = add_state();
    rules_.push_back({begin, add_state(), std::move(name)});
    return static_cast<RuleIndex>(rules_.size() - 1);
  }

  void build(const Expression& expression, const Rule& rule) { build(expression, rule.begin, rule.end); }

  void build(const Expression& expression, StateId from, StateId to) {
    if (is_too_large_) return;
    switch (expression.kind) {
      case Expression::Kind::kLiteral: build_text(expression.text, from, to, false); break;
      case Expression::Kind::kTagged: build_text(expression.text, from, to, true); break;
      case Expression::Kind::kChar: build_char(expression.chars, from, to); break;
      case Expression::Kind::kSequence: (void)build_begun_sequence(expression.parts, from, to, ""); break;
      case Expression::Kind::kChoice: (void)build_begun_choice(expression.parts, from, to, ""); break;
      case Expression::Kind::kRepeat: build_repeat(expression, from, to); break;
      case Expression::Kind::kReference: states_[from].calls.push_back({expression.rule, to}); break;
      case Expression::Kind::kNetwork: build_network(expression, from, to); break;
      case Expression::Kind::kAssertion: CHECK(false, "an assertion is no part of an automaton over bytes");
    }
  }

  [[nodiscard]] std::string no_text_reason() const {
    if (missing_.empty()) return "no text matches it";
    return fmt::format("no tokens of the model spell a text that matches it: no token is '{}' alone",
                       fmt::join(missing_, "' or '"));
  }

  /// Notes some characters that the grammar asks for and no tokens spell.
  void note_missing(char32_t c) {
    const bool is_control = c < 0x20 || (c >= 0x7F && c < 0xA0);
    std::string spelling = is_control ? fmt::format("U+{:04X}", static_cast<uint32_t>(c)) : "";
    if (!is_control) append_utf8(spelling, c);
    if (missing_.size() < kMaxMissing && std::ranges::find(missing_, spelling) == missing_.end())
      missing_.push_back(std::move(spelling));
  }

  [[nodiscard]] bool is_spellable(std::string_view text) {
    for (std::string_view rest = text; !rest.empty();) {
      const DecodedUtf8 next = decode_utf8(rest);
      if (next.valid && unspellable_.contains(next.code_point)) {
        if (vocabulary_.can_spell(text)) return true;
        note_missing(next.code_point);
        return false;
      }
      rest.remove_prefix(next.length);
    }
    return true;
  }

  using TagInText = Vocabulary::TagInText;

  /// Returns the parts of a text that other tokens than tags spell: all of it, or what is next to its tags.
  std::vector<TagInText> spelled_parts(std::string_view text, const std::vector<TagInText>& tags) {
    if (unspellable_.empty() || is_spellable(text)) return {{0, text.size()}};
    std::vector<TagInText> parts;
    size_t begin = 0;
    for (const TagInText& tag : tags) {
      if (tag.begin < begin) continue;
      if (is_spellable(text.substr(begin, tag.begin - begin))) parts.push_back({begin, tag.begin});
      begin = tag.end;
    }
    if (is_spellable(text.substr(begin))) parts.push_back({begin, text.size()});
    return parts;
  }

  /// Returns the states between the characters of a text, with new ones at its ends where none are given.
  std::vector<StateId> states_of(std::string_view text, std::optional<StateId> from, std::optional<StateId> to) {
    std::vector<StateId> states{from ? *from : add_state()};
    while (states.size() < text.size()) states.push_back(add_state());
    states.push_back(to ? *to : add_state());
    return states;
  }

  /// Builds a text that tags may be parts of. With `needs_tag` the way leads over to other states at its first tag.
  void build_text(std::string_view text, StateId from, StateId to, bool needs_tag) {
    const std::vector<TagInText> tags = vocabulary_.tags_in(text);
    if (needs_tag && tags.empty()) return;
    if (text.empty()) return states_[from].epsilons.push_back(to);
    const auto before = states_of(text, from, needs_tag ? std::nullopt : std::optional(to));
    const auto after = needs_tag ? states_of(text, std::nullopt, to) : before;
    if (is_too_large_) return;
    for (const TagInText& part : spelled_parts(text, tags)) {
      for (size_t i = part.begin; i < part.end; ++i) {
        const auto byte = static_cast<uint8_t>(text[i]);
        states_[before[i]].bytes.push_back({byte, byte, before[i + 1]});
        if (needs_tag) states_[after[i]].bytes.push_back({byte, byte, after[i + 1]});
      }
    }
    for (const TagInText& tag : tags) {
      build_tag(text.substr(tag.begin, tag.end - tag.begin), before[tag.begin], after[tag.end]);
      if (needs_tag) build_tag(text.substr(tag.begin, tag.end - tag.begin), after[tag.begin], after[tag.end]);
    }
  }

  void build_tag(std::string_view tag, StateId from, StateId to) {
    build_bytes(Vocabulary::kTagByte + std::string(tag), from, to);
  }

  /// Returns the only text of an expression of one character or literal, else nothing.
  static std::optional<std::string> fixed_text(const Expression& expression) {
    if (expression.kind == Expression::Kind::kLiteral) return expression.text;
    if (expression.kind != Expression::Kind::kChar || expression.chars.ranges().size() != 1) return std::nullopt;
    const auto range = expression.chars.ranges().front();
    if (range.low != range.high) return std::nullopt;
    std::string text;
    append_utf8(text, range.low);
    return text;
  }

  /// Adds the tags that neighbours of a sequence spell together: some notations read a text one by one.
  void build_tags_between(const std::vector<ExpressionPtr>& parts, const std::vector<StateId>& states) {
    for (size_t first = 0; first < parts.size() && !is_too_large_; ++first) {
      std::string text;
      std::map<size_t, StateId> boundaries;
      const size_t begin = first;
      for (; first < parts.size(); ++first) {
        const auto part = fixed_text(*parts[first]);
        if (!part) break;
        boundaries.emplace(text.size(), states[first]);
        text += *part;
      }
      if (first < begin + 2) continue;
      boundaries.emplace(text.size(), states[first]);
      for (const TagInText& tag : vocabulary_.tags_in(text)) {
        const auto from = boundaries.find(tag.begin);
        const auto to = boundaries.find(tag.end);
        if (from != boundaries.end() && to != boundaries.end() && std::next(from) != to)
          build_tag(text.substr(tag.begin, tag.end - tag.begin), from->second, to->second);
      }
    }
  }

  void build_bytes(std::string_view text, StateId from, StateId to) {
    if (text.empty()) states_[from].epsilons.push_back(to);
    for (size_t i = 0; i < text.size(); ++i) {
      const StateId next = i + 1 == text.size() ? to : add_state();
      const auto byte = static_cast<uint8_t>(text[i]);
      states_[from].bytes.push_back({byte, byte, next});
      from = next;
    }
  }

  /// Builds a part that the text reaches with `given`, the rest of the prefix: no token spells what that covers.
  /// Returns the rest after the part; "" where it is not one, and nothing where the part does not begin with `given`.
  std::optional<std::string_view> build_begun(const Expression& part, StateId from, StateId to,
                                              std::string_view given) {
    if (!given.empty() && !is_too_large_) {
      switch (part.kind) {
        case Expression::Kind::kLiteral: return build_begun_literal(part.text, from, to, given);
        case Expression::Kind::kSequence: return build_begun_sequence(part.parts, from, to, given);
        case Expression::Kind::kChoice: return build_begun_choice(part.parts, from, to, given);
        case Expression::Kind::kReference:
          // A copy of the rule, whose other uses are not covered. Left recursion is refused later.
          if (copies_of_rules_ == kMaxCopiesOfRules) break;
          ++copies_of_rules_;
          return build_begun(*definition_.rules[part.rule].expression, from, to, given);
        default: break;
      }
    }
    build(part, from, to);
    return "";
  }

  std::optional<std::string_view> build_begun_literal(std::string_view text, StateId from, StateId to,
                                                      std::string_view given) {
    const size_t covered = std::min(text.size(), given.size());
    if (text.substr(0, covered) != given.substr(0, covered)) return std::nullopt;
    const StateId next = covered == text.size() ? to : add_state();
    build_bytes(text.substr(0, covered), from, next);
    if (covered < text.size()) build_text(text.substr(covered), next, to, false);
    return given.substr(covered);
  }

  std::optional<std::string_view> build_begun_sequence(const std::vector<ExpressionPtr>& parts, StateId from,
                                                       StateId to, std::string_view given) {
    if (parts.empty()) states_[from].epsilons.push_back(to);
    std::optional<std::string_view> rest = given;
    std::vector<StateId> states{from};
    for (size_t i = 0; i < parts.size() && rest; ++i) {
      states.push_back(i + 1 == parts.size() ? to : add_state());
      rest = build_begun(*parts[i], states[i], states[i + 1], *rest);
    }
    if (vocabulary_.has_tags() && rest) build_tags_between(parts, states);
    return rest;
  }

  std::optional<std::string_view> build_begun_choice(const std::vector<ExpressionPtr>& parts, StateId from, StateId to,
                                                     std::string_view given) {
    std::optional<std::string_view> rest;
    for (const ExpressionPtr& part : parts) {
      const auto own = build_begun(*part, from, to, given);
      if (own) rest = rest && *rest != *own ? "" : *own;
    }
    return rest;
  }

  void build_char(const CharSet& all, StateId from, StateId to) {
    const CharSet chars = unspellable_.empty() ? all : all.without(unspellable_);
    if (chars.empty() && !all.empty()) note_missing(all.ranges().front().low);
    const std::vector<Utf8ByteRange> runs = utf8_byte_ranges(chars);
    std::map<ByteEdges, StateId> known;
    const ByteEdges edges = utf8_edges(runs, 0, to, known);
    states_[from].bytes.insert(states_[from].bytes.end(), edges.begin(), edges.end());
  }

  using ByteEdges = std::vector<Automaton::ByteEdge>;

  /// Returns edges that read the runs from their byte `depth` on. The runs are ascending and equal before that byte.
  /// States with equal edges are made once, since sets of letters have hundreds of runs.
  ByteEdges utf8_edges(std::span<const Utf8ByteRange> runs, uint32_t depth, StateId to,
                       std::map<ByteEdges, StateId>& known) {
    ByteEdges edges;
    for (size_t begin = 0; begin < runs.size();) {
      const Utf8ByteRange& first = runs[begin];
      size_t end = begin + 1;
      while (end < runs.size() && runs[end].low[depth] == first.low[depth]) ++end;
      StateId next = to;
      if (first.length > depth + 1) {
        const ByteEdges rest = utf8_edges(runs.subspan(begin, end - begin), depth + 1, to, known);
        const auto [entry, is_new] = known.try_emplace(rest, 0);
        if (is_new) {
          entry->second = add_state();
          states_[entry->second].bytes = rest;
        }
        next = entry->second;
      }
      if (!edges.empty() && edges.back().to == next && edges.back().high + 1 == first.low[depth]) {
        edges.back().high = first.high[depth];
      } else {
        edges.push_back({first.low[depth], first.high[depth], next});
      }
      begin = end;
    }
    return edges;
  }

  void build_network(const Expression& expression, StateId from, StateId to) {
    std::vector<StateId> nodes(expression.node_count, to);
    for (uint32_t i = 0; i < expression.node_count; ++i) {
      if (i != NetworkBuilder::kEnd) nodes[i] = add_state();
    }
    if (is_too_large_) return;
    states_[from].epsilons.push_back(nodes[NetworkBuilder::kBegin]);
    for (const Expression::Edge& edge : expression.edges) {
      build(*expression.parts[edge.part], nodes[edge.from], nodes[edge.to]);
    }
  }

  void build_repeat(const Expression& expression, StateId from, StateId to) {
    const Expression& part = *expression.parts.front();
    const uint32_t copies = expression.max.value_or(expression.min);
    const bool as_rule = copies >= kManyRepeats || (copies >= kFewRepeats && size_of(part) > kSmallPart);
    const RepeatedRule counted = as_rule ? repeat_rule(expression.parts.front()) : RepeatedRule{};
    const auto build_part = [&](StateId begin, StateId end, uint32_t left) {
      if (!as_rule) return build(part, begin, end);
      states_[begin].calls.push_back({counted.rule, end});
      if (begin != end) states_[end].counted = {counted.loop, left};
    };
    for (uint32_t i = 0; i < expression.min && !is_too_large_; ++i) {
      const StateId next = add_state();
      build_part(from, next, expression.max ? *expression.max - i - 1 : Automaton::kUnbounded);
      from = next;
    }
    if (!expression.max) {
      const StateId loop = add_state();
      states_[from].epsilons.push_back(loop);
      build_part(loop, loop, Automaton::kUnbounded);
      from = loop;
    }
    for (uint32_t i = expression.min; i < expression.max.value_or(0) && !is_too_large_; ++i) {
      const StateId next = add_state();
      states_[from].epsilons.push_back(to);
      build_part(from, next, *expression.max - i - 1);
      from = next;
    }
    states_[from].epsilons.push_back(to);
  }

  /// Counts the nodes of the tree. Stops counting soon after kSmallPart.
  static size_t size_of(const Expression& expression) {
    size_t size = 1 + expression.text.size() + expression.chars.ranges().size();
    for (const ExpressionPtr& part : expression.parts) {
      if (size > kSmallPart) break;
      size += size_of(*part);
    }
    return size;
  }

  struct RepeatedRule {
    RuleIndex rule = 0;
    StateId loop = 0;
  };

  /// Returns the rule of a part that a count repeats, and the loop state of its unlimited repetition.
  RepeatedRule repeat_rule(const ExpressionPtr& part) {
    const auto [entry, is_new] = repeated_rules_.try_emplace(part.get());
    if (!is_new) return entry->second;
    RepeatedRule counted{add_rule("a repeated part"), 0};
    const RuleIndex any_number = add_rule("repeated parts");
    if (is_too_large_) return counted;
    counted.loop = rules_[any_number].begin;
    states_[counted.loop].calls.push_back({counted.rule, counted.loop});
    states_[counted.loop].epsilons.push_back(rules_[any_number].end);
    repeated_rules_[part.get()] = counted;
    const Rule ends = rules_[counted.rule];
    build(*part, ends);
    return counted;
  }

  [[nodiscard]] bool accepts_nonempty_text() const {
    std::vector<bool> seen(states_.size());
    std::vector<StateId> open{rules_[root_].begin};
    while (!open.empty()) {
      const StateId state = open.back();
      open.pop_back();
      if (seen[state] || !is_productive_[state]) continue;
      seen[state] = true;
      for (const Automaton::ByteEdge& edge : states_[state].bytes) {
        if (is_productive_[edge.to]) return true;
      }
      for (const StateId to : states_[state].epsilons) open.push_back(to);
      for (const CallEdge& call : states_[state].calls) {
        if (!is_productive_[rules_[call.rule].begin] || !is_productive_[call.to]) continue;
        open.push_back(rules_[call.rule].begin);
        if (is_nullable_[rules_[call.rule].begin]) open.push_back(call.to);
      }
    }
    return false;
  }

  [[nodiscard]] Automaton flatten() const {
    Automaton automaton;
    automaton.begin_ = rules_[root_].begin;
    for (const State& state : states_) automaton.repeat_positions_.push_back(state.counted);
    for (const auto& [part, counted] : repeated_rules_) {
      automaton.repeated_rules_.push_back({rules_[counted.rule].begin, counted.loop});
    }
    automaton.is_end_.assign(states_.size(), false);
    for (const Rule& rule : rules_) automaton.is_end_[rule.end] = true;
    for (const State& state : states_) {
      automaton.byte_begin_.push_back(static_cast<uint32_t>(automaton.bytes_.size()));
      automaton.epsilon_begin_.push_back(static_cast<uint32_t>(automaton.epsilons_.size()));
      automaton.call_begin_.push_back(static_cast<uint32_t>(automaton.calls_.size()));
      for (const Automaton::ByteEdge& edge : state.bytes) {
        if (is_productive_[edge.to]) automaton.bytes_.push_back(edge);
      }
      for (const StateId to : state.epsilons) {
        if (is_productive_[to]) automaton.epsilons_.push_back(to);
      }
      for (const CallEdge& call : state.calls) {
        const StateId begin = rules_[call.rule].begin;
        if (is_productive_[call.to] && is_productive_[begin]) automaton.calls_.push_back({begin, call.to});
      }
    }
    automaton.byte_begin_.push_back(static_cast<uint32_t>(automaton.bytes_.size()));
    automaton.epsilon_begin_.push_back(static_cast<uint32_t>(automaton.epsilons_.size()));
    automaton.call_begin_.push_back(static_cast<uint32_t>(automaton.calls_.size()));
    automaton.byte_classes_ = byte_classes(automaton.bytes_);
    return automaton;
  }

  [[nodiscard]] static std::array<uint8_t, 256> byte_classes(const std::vector<Automaton::ByteEdge>& edges) {
    std::array<bool, 257> begins{};
    for (const Automaton::ByteEdge& edge : edges) begins[edge.low] = begins[edge.high + 1u] = true;
    std::array<uint8_t, 256> classes{};
    for (size_t byte = 1; byte < classes.size(); ++byte) {
      classes[byte] = static_cast<uint8_t>(classes[byte - 1] + (begins[byte] ? 1 : 0));
    }
    return classes;
  }

  static constexpr size_t kMaxMissing = 8;
  static constexpr size_t kMaxCopiesOfRules = 64;

  const Definition& definition_;
  const Vocabulary& vocabulary_;
  CharSet unspellable_;
  std::vector<std::string> missing_;  // characters of unspellable_ without which some part has no text
  RuleNetwork network_;
  std::vector<State>& states_ = network_.states;
  std::vector<Rule>& rules_ = network_.rules;
  RuleIndex root_ = 0;
  size_t copies_of_rules_ = 0;
  std::unordered_map<const Expression*, RepeatedRule> repeated_rules_;
  std::vector<bool> is_productive_;
  std::vector<bool> is_nullable_;
  bool is_too_large_ = false;
};

size_t Automaton::bytes() const {
  const size_t per_state = sizeof(RepeatPosition) + 3 * sizeof(uint32_t);
  return state_count() * per_state + bytes_.size() * sizeof(ByteEdge) + epsilons_.size() * sizeof(StateId) +
         calls_.size() * sizeof(Call);
}

Result<Automaton> Automaton::compile(const Definition& definition, const Vocabulary& vocabulary) {
  return AutomatonBuilder(definition, vocabulary).build();
}

}  // namespace millrace::grammar
