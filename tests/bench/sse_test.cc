#include "load/sse.h"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

using millrace::load::SseParser;

namespace {

using Events = std::vector<std::string>;

Events parse(const std::vector<std::string_view>& pieces) {
  SseParser parser;
  Events events;
  for (const std::string_view piece : pieces) {
    REQUIRE(parser.feed(piece, [&events](const std::string& data) { events.push_back(data); }));
  }
  return events;
}

const std::string kStream =
    "\xEF\xBB\xBF: a comment\n\ndata: {\"a\":1}\n\nevent: x\ndata:no space\r\ndata:  two\r\n\r\ndata\n\nid: 4\n\n"
    "data: one\rdata: two\r\rdata: [DONE]\n\ndata: never ended";
const Events kEvents = {"{\"a\":1}", "no space\n two", "", "one\ntwo", "[DONE]"};

}  // namespace

TEST_CASE("an event stream is taken apart as the standard says") {
  REQUIRE(parse({kStream}) == kEvents);
}

TEST_CASE("an event stream may be cut anywhere") {
  for (size_t cut = 0; cut <= kStream.size(); ++cut) {
    const std::string_view all = kStream;
    INFO("cut at " << cut);
    REQUIRE(parse({all.substr(0, cut), all.substr(cut)}) == kEvents);
  }
  std::vector<std::string_view> bytes;
  for (size_t i = 0; i < kStream.size(); ++i) bytes.push_back(std::string_view(kStream).substr(i, 1));
  REQUIRE(parse(bytes) == kEvents);
}

TEST_CASE("an event stream in random pieces gives the same events") {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::string_view> pieces;
    std::string_view rest = kStream;
    while (!rest.empty()) {
      const size_t size = std::min<size_t>(rest.size(), random() % 9);
      pieces.push_back(rest.substr(0, size));
      rest.remove_prefix(size);
    }
    REQUIRE(parse(pieces) == kEvents);
  }
}

TEST_CASE("an event that never ends is refused") {
  SseParser parser;
  const std::string piece(1 << 20, 'x');
  const auto ignore = [](const std::string&) {};
  REQUIRE(parser.feed("data: ", ignore));
  int accepted = 0;
  while (accepted < 100 && parser.feed(piece, ignore)) ++accepted;
  REQUIRE(accepted == 15);
}
