#include "grammar/tag_automaton.h"

#include <algorithm>
#include <set>
#include <string>

#include "base/check.h"
#include "base/utf8.h"

namespace millrace::grammar {
namespace {

std::u32string decoded(std::string_view text) {
  std::u32string chars;
  while (!text.empty()) {
    const DecodedUtf8 step = decode_utf8(text);
    chars += step.code_point;
    text.remove_prefix(step.length);
  }
  return chars;
}

}  // namespace

TagAutomaton::TagAutomaton(std::span<const std::string_view> tags) {
  std::vector<std::u32string> words;
  std::set<std::u32string> begins;
  std::set<char32_t> alphabet;
  for (const std::string_view tag : tags) {
    const std::u32string& word = words.emplace_back(decoded(tag));
    CHECK(!word.empty(), "a tag has characters");
    for (size_t size = 0; size < word.size(); ++size) begins.insert(word.substr(0, size));
    alphabet.insert(word.begin(), word.end());
  }
  // The empty beginning is the first of the sorted ones.
  const std::vector<std::u32string> states(begins.begin(), begins.end());
  steps_.resize(states.size());
  const auto state_after = [&](const std::u32string& text) {
    const auto ends_text = [&](const std::u32string& word) { return text.ends_with(word); };
    const auto whole = std::ranges::find_if(words, ends_text);
    if (whole != words.end()) return end_of(static_cast<uint32_t>(whole - words.begin()));
    for (size_t from = 0;; ++from) {
      const auto state = std::ranges::lower_bound(states, text.substr(from));
      if (state != states.end() && *state == text.substr(from)) return static_cast<uint32_t>(state - states.begin());
    }
  };
  for (size_t state = 0; state < states.size(); ++state) {
    for (const char32_t c : alphabet) {
      if (const uint32_t to = state_after(states[state] + c); to != 0) steps_[state][c] = to;
    }
  }
}

uint32_t TagAutomaton::next(uint32_t state, char32_t c) const {
  const auto step = steps_[state].find(c);
  return step == steps_[state].end() ? 0 : step->second;
}

uint32_t TagAutomaton::after(std::string_view text, uint32_t state) const {
  while (!text.empty() && !is_end(state)) {
    const DecodedUtf8 step = decode_utf8(text);
    state = next(state, step.code_point);
    text.remove_prefix(step.length);
  }
  return state;
}

std::map<uint32_t, CharSet> TagAutomaton::steps(const CharSet& chars, uint32_t state) const {
  std::map<uint32_t, CharSet> sets;
  CharSet others = chars;
  for (const auto& [c, to] : steps_[state]) {
    if (!chars.contains(c)) continue;
    others = others.without(CharSet(c));
    sets[to].add(c, c);
  }
  if (!others.empty()) sets[0].add(others);
  return sets;
}

}  // namespace millrace::grammar
