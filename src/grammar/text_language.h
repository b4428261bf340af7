#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/expression.h"
#include "grammar/read_work.h"
#include "grammar/regex_parser.h"

namespace millrace::grammar {

/// A regular language over characters, as a deterministic automaton without needless states. Immutable; copies share
/// their states. Functions that make one throw an ErrorException without a position beyond kMaxStates states, and
/// beyond the limit of the work that they count.
class TextLanguage {
 public:
  static constexpr size_t kMaxStates = 20'000;

  struct Edge {
    char32_t low;
    char32_t high;  ///< inclusive
    uint32_t to;
  };
  struct State {
    std::vector<Edge> edges;  ///< ascending, without overlaps; no text goes on by other characters
    bool is_end = false;
  };

  /// Begins in state 0.
  [[nodiscard]] static TextLanguage from_states(std::vector<State> states, ReadWork& work);
  [[nodiscard]] static TextLanguage any();
  [[nodiscard]] static TextLanguage of_lengths(uint32_t min, std::optional<uint32_t> max);
  [[nodiscard]] static TextLanguage exactly(const std::vector<std::string_view>& texts, ReadWork& work);
  /// Makes the language of an expression without references, whose characters are as parse_regex() makes them.
  [[nodiscard]] static TextLanguage of_expression(const Expression& expression, ReadWork& work);

  [[nodiscard]] TextLanguage and_also(const TextLanguage& other, ReadWork& work) const;
  [[nodiscard]] TextLanguage or_else(const TextLanguage& other, ReadWork& work) const;
  [[nodiscard]] TextLanguage complement(ReadWork& work) const;

  [[nodiscard]] bool is_empty() const;
  [[nodiscard]] bool accepts(std::string_view utf8) const;
  /// Returns a text that is equal for languages with equal automata.
  [[nodiscard]] std::string key() const;
  [[nodiscard]] size_t state_count() const { return states_->size(); }
  /// Returns the expression of the texts. `write` makes the expression of one character of a set.
  [[nodiscard]] ExpressionPtr expression(const CharEncoder& write) const;

 private:
  explicit TextLanguage(std::vector<State> states);
  template <class IsEnd>
  [[nodiscard]] TextLanguage product(const TextLanguage& other, const IsEnd& is_end, ReadWork& work) const;

  std::shared_ptr<const std::vector<State>> states_;
};

}  // namespace millrace::grammar
