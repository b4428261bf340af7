#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "grammar/expression.h"

namespace millrace::grammar {

using StateId = uint32_t;

/// A recursive transition network over bytes: per rule a nondeterministic automaton, whose edges read a byte, read
/// nothing, or run another rule. Every state lies on a way to the end of its rule, and no rule runs itself before it
/// has read a byte. Immutable.
class Automaton {
 public:
  struct ByteEdge {
    uint8_t low;
    uint8_t high;  ///< in it
    StateId to;
  };
  struct Call {
    StateId begin;  ///< of the rule that runs
    StateId to;     ///< where it goes on behind that
  };
  /// A rule that runs so and so often, one run behind the other.
  struct Counted {
    StateId begin;  ///< of the rule
    StateId loop;   ///< a state at which the same rule may run for ever
  };
  /// Where it goes on behind one of the runs.
  struct CountedPlace {
    StateId loop = 0;   ///< 0: it is no such place
    uint32_t left = 0;  ///< runs that may follow; kUnbounded: any number
  };
  static constexpr uint32_t kUnbounded = UINT32_MAX;
  static constexpr size_t kMostStates = 200'000;

  /// kInvalidArgument: no text matches, only the empty one does, a rule runs itself without reading anything, or there
  /// are more than kMostStates states.
  [[nodiscard]] static Result<Automaton> compile(const Definition& definition);

  [[nodiscard]] StateId begin() const { return begin_; }
  [[nodiscard]] size_t state_count() const { return is_end_.size(); }
  [[nodiscard]] std::span<const ByteEdge> bytes_of(StateId state) const { return of(bytes_, byte_begin_, state); }
  [[nodiscard]] std::span<const StateId> empties_of(StateId state) const { return of(empties_, empty_begin_, state); }
  [[nodiscard]] std::span<const Call> calls_of(StateId state) const { return of(calls_, call_begin_, state); }
  /// The end of its rule; nothing leaves it.
  [[nodiscard]] bool is_end(StateId state) const { return is_end_[state]; }
  [[nodiscard]] CountedPlace counted_place(StateId state) const { return counted_places_[state]; }
  [[nodiscard]] const std::vector<Counted>& counted() const { return counted_; }

 private:
  friend class AutomatonBuilder;

  template <class T>
  [[nodiscard]] static std::span<const T> of(const std::vector<T>& edges, const std::vector<uint32_t>& begin,
                                             StateId state) {
    return std::span(edges).subspan(begin[state], begin[state + 1] - begin[state]);
  }

  StateId begin_ = 0;
  std::vector<bool> is_end_;
  std::vector<CountedPlace> counted_places_;  // [states]
  std::vector<Counted> counted_;
  std::vector<ByteEdge> bytes_;
  std::vector<StateId> empties_;
  std::vector<Call> calls_;
  std::vector<uint32_t> byte_begin_;   // [states + 1]
  std::vector<uint32_t> empty_begin_;  // [states + 1]
  std::vector<uint32_t> call_begin_;   // [states + 1]
};

}  // namespace millrace::grammar
