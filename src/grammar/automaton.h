#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "grammar/expression.h"
#include "grammar/vocabulary.h"

namespace millrace::grammar {

using StateId = uint32_t;

/// A recursive transition network over bytes: one nondeterministic automaton per rule. Edges read a byte, read nothing,
/// or call another rule. Every state leads to the end of its rule, and no rule is left-recursive. Owned by a Grammar;
/// immutable.
class Automaton {
 public:
  struct ByteEdge {
    uint8_t low;
    uint8_t high;  ///< inclusive
    StateId to;
    friend auto operator<=>(const ByteEdge&, const ByteEdge&) = default;
  };
  struct Call {
    StateId begin;  ///< of the called rule
    StateId to;     ///< the state after the call
  };
  /// A rule for a part that a count repeats.
  struct RepeatedRule {
    StateId begin;  ///< of the rule
    StateId loop;   ///< a state that repeats the same rule without a limit
  };
  /// A state's position in a counted repetition: after one run of the repeated rule.
  struct RepeatPosition {
    StateId loop = 0;        ///< 0: the state is not in a repetition
    uint32_t remaining = 0;  ///< how many runs may follow, or kUnbounded
  };
  static constexpr uint32_t kUnbounded = UINT32_MAX;
  static constexpr size_t kMaxStates = 200'000;

  /// Compiles a definition, without the texts that the vocabulary may be unable to spell to their end. Fails with
  /// kInvalidArgument if no text or only the empty text is left, for left recursion, and beyond kMaxStates states.
  [[nodiscard]] static Result<Automaton> compile(const Definition& definition, const Vocabulary& vocabulary);

  [[nodiscard]] StateId begin() const { return begin_; }
  [[nodiscard]] size_t state_count() const { return is_end_.size(); }
  [[nodiscard]] std::span<const ByteEdge> byte_edges_of(StateId state) const { return of(bytes_, byte_begin_, state); }
  [[nodiscard]] std::span<const StateId> epsilons_of(StateId state) const {
    return of(epsilons_, epsilon_begin_, state);
  }
  [[nodiscard]] std::span<const Call> calls_of(StateId state) const { return of(calls_, call_begin_, state); }
  /// Returns whether the state is the end of its rule. No edge leaves an end.
  [[nodiscard]] bool is_end(StateId state) const { return is_end_[state]; }
  /// Returns the class of a byte. No edge distinguishes bytes of one class.
  [[nodiscard]] uint32_t byte_class_of(uint8_t byte) const { return byte_classes_[byte]; }
  [[nodiscard]] uint32_t byte_class_count() const { return byte_classes_[255] + 1u; }
  /// Returns the approximate memory use.
  [[nodiscard]] size_t bytes() const;
  [[nodiscard]] RepeatPosition repeat_position(StateId state) const { return repeat_positions_[state]; }
  [[nodiscard]] const std::vector<RepeatedRule>& repeated_rules() const { return repeated_rules_; }

 private:
  friend class AutomatonBuilder;

  template <class T>
  [[nodiscard]] static std::span<const T> of(const std::vector<T>& edges, const std::vector<uint32_t>& begin,
                                             StateId state) {
    return std::span(edges).subspan(begin[state], begin[state + 1] - begin[state]);
  }

  StateId begin_ = 0;
  std::array<uint8_t, 256> byte_classes_{};  // ascending
  std::vector<bool> is_end_;
  std::vector<RepeatPosition> repeat_positions_;  // [states]
  std::vector<RepeatedRule> repeated_rules_;
  std::vector<ByteEdge> bytes_;
  std::vector<StateId> epsilons_;
  std::vector<Call> calls_;
  std::vector<uint32_t> byte_begin_;     // [states + 1]
  std::vector<uint32_t> epsilon_begin_;  // [states + 1]
  std::vector<uint32_t> call_begin_;     // [states + 1]
};

}  // namespace millrace::grammar
