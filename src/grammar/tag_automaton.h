#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "grammar/char_set.h"

namespace millrace::grammar {

/// The automaton of Aho and Corasick over the characters of a text, which finds the first of some tags in it. A state
/// below state_count() is the longest beginning of a tag that the text ends with; state 0 is none. A larger one is a
/// whole tag, and has no next state.
class TagAutomaton {
 public:
  /// The tags are not empty.
  explicit TagAutomaton(std::span<const std::string_view> tags);

  [[nodiscard]] uint32_t state_count() const { return static_cast<uint32_t>(steps_.size()); }
  /// Returns the state at the end of `tag`, an index of the tags.
  [[nodiscard]] uint32_t end_of(uint32_t tag) const { return state_count() + tag; }
  [[nodiscard]] bool is_end(uint32_t state) const { return state >= state_count(); }
  [[nodiscard]] uint32_t next(uint32_t state, char32_t c) const;
  /// Returns the state after a text, or at the end of the first tag in it.
  [[nodiscard]] uint32_t after(std::string_view text, uint32_t state = 0) const;
  /// Returns the characters of the set by which a state leads to each other one.
  [[nodiscard]] std::map<uint32_t, CharSet> steps(const CharSet& chars, uint32_t state) const;

 private:
  std::vector<std::map<char32_t, uint32_t>> steps_;  // by state; other characters lead to state 0
};

}  // namespace millrace::grammar
