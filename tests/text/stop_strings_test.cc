#include "text/stop_strings.h"

#include <catch2/catch.hpp>
#include <algorithm>
#include <random>

using namespace millrace::text;

namespace {

struct Outcome {
  std::string text;
  std::optional<size_t> matched;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

/// The definition: the shortest prefix of the whole stream that ends in a stop; of its stops the longest, then the
/// first.
Outcome naive(const std::string& stream, const std::vector<std::string>& stops, bool include) {
  for (size_t end = 1; end <= stream.size(); ++end) {
    const std::string seen = stream.substr(0, end);
    std::optional<size_t> best;
    for (size_t i = 0; i < stops.size(); ++i) {
      const bool ends = !stops[i].empty() && seen.ends_with(stops[i]);
      if (ends && (!best || stops[i].size() > stops[*best].size())) best = i;
    }
    if (best) return {include ? seen : seen.substr(0, end - stops[*best].size()), best};
  }
  return {stream, std::nullopt};
}

/// Returns whether some stop begins with a non-empty suffix of `text` of at least `length` bytes.
bool could_become_stop(const std::string& text, size_t length, const std::vector<std::string>& stops) {
  return std::any_of(stops.begin(), stops.end(), [&](const std::string& stop) {
    return length < stop.size() && length <= text.size() &&
           stop.compare(0, length, text, text.size() - length, length) == 0;
  });
}

std::string random_text(std::mt19937& random, size_t max_length) {
  std::string text(random() % (max_length + 1), 'a');
  for (char& c : text) c = static_cast<char>('a' + random() % 2);
  return text;
}

}  // namespace

TEST_CASE("stop strings over chunk borders agree with the definition") {
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops(random() % 4);
    for (std::string& stop : stops) stop = random_text(random, 5);
    const bool include = random() % 2 == 0;
    const std::string stream = random_text(random, 40);
    StopMatcher matcher(stops, include);
    std::string emitted;
    for (size_t at = 0; at < stream.size();) {
      const size_t length = 1 + random() % 6;
      emitted += matcher.push(std::string_view(stream).substr(at, length));
      at = std::min(at + length, stream.size());
      if (matcher.matched()) continue;
      // Nothing is held back that cannot become a stop.
      const size_t held = at - emitted.size();
      if (held > 0 && !could_become_stop(stream.substr(0, at), held, stops)) FAIL("held back without need");
    }
    emitted += matcher.flush();
    CAPTURE(stream, stops);
    REQUIRE(Outcome{emitted, matcher.matched()} == naive(stream, stops, include));
  }
}

TEST_CASE("text behind a stop is dropped") {
  StopMatcher matcher({"END", "\n\n"});
  CHECK(matcher.push("one\n") == "one");
  CHECK(matcher.push("two E") == "\ntwo ");
  CHECK(matcher.push("ND three").empty());
  CHECK(matcher.matched() == 0u);
  CHECK(matcher.push("four").empty());
  CHECK(matcher.flush().empty());
}

TEST_CASE("a blocked stop string is text and may overlap a valid one") {
  StopMatcher matcher({"aba", "x"});
  CHECK(matcher.push("x", false) == "x");
  CHECK(matcher.push("aba", false) == "ab");
  CHECK(matcher.push("b") == "");
  CHECK(matcher.push("a") == "");
  CHECK(matcher.matched() == 0u);
}

TEST_CASE("the stop completed first wins and an unfinished is released") {
  StopMatcher overlapping({"abcd", "bc"});
  CHECK(overlapping.push("xabcd") == "xa");
  CHECK(overlapping.matched() == 1u);
  StopMatcher unfinished({"\xE6\x97\xA5\xE6\x9C\xAC"});
  CHECK(unfinished.push("a\xE6\x97\xA5") == "a");
  CHECK(unfinished.flush() == "\xE6\x97\xA5");
  StopMatcher including({"</s>"}, true);
  CHECK(including.push("hi</s>there") == "hi</s>");
}
