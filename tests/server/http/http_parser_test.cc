#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "server/http/http_parser.h"
#include "support/mentions.h"

using namespace millrace::server;
using millrace::test::Mentions;

namespace {

/// Feeds `bytes` in pieces of `piece` and returns the final state; `rest` receives what belongs to the next request.
HttpParser::State feed_all(HttpParser& parser, const std::string& bytes, size_t piece, std::string& rest) {
  HttpParser::State state = HttpParser::State::kNeedMore;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    rest += bytes.substr(at, piece);
    for (;;) {
      state = parser.feed(rest);
      if (state != HttpParser::State::kHead) break;
    }
    if (state == HttpParser::State::kDone || state == HttpParser::State::kFailed) {
      rest += bytes.substr(std::min(bytes.size(), at + piece));
      break;
    }
  }
  return state;
}

}  // namespace

TEST_CASE("A request parses the same however its bytes arrive") {
  const std::string request =
      "POST /v1/models/a%2Fb?x=1 HTTP/1.1\r\nHost: h\r\nauthorization: Bearer k\r\nContent-Type: application/json\r\n"
      "Content-Length: 7\r\n\r\n{\"a\":1}";
  for (const size_t piece : {1u, 3u, 50u, 1000u}) {
    HttpParser parser({});
    std::string rest;
    REQUIRE(feed_all(parser, request + "GET / HTTP/1.1\r\nHost: h\r\n", piece, rest) == HttpParser::State::kDone);
    const HttpRequest parsed = parser.take();
    CHECK(parsed.method == Method::kPost);
    CHECK(parsed.path == "/v1/models/a/b");
    CHECK(parsed.query == "x=1");
    CHECK(parsed.authorization == "Bearer k");
    CHECK(parsed.content_type == "application/json");
    CHECK(parsed.body == "{\"a\":1}");
    CHECK(parsed.keep_alive);
    CHECK(rest == "GET / HTTP/1.1\r\nHost: h\r\n");
  }
}

TEST_CASE("Chunked bodies old versions and absolute targets parse") {
  HttpParser chunked({});
  std::string rest;
  const std::string bytes =
      "POST http://host:1/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
  REQUIRE(feed_all(chunked, bytes, 4, rest) == HttpParser::State::kDone);
  const HttpRequest request = chunked.take();
  CHECK(request.body == "abcde");
  CHECK(request.path == "/x");
  HttpParser old({});
  rest.clear();
  REQUIRE(feed_all(old, "GET / HTTP/1.0\r\n\r\n", 100, rest) == HttpParser::State::kDone);
  CHECK_FALSE(old.head().keep_alive);
  CHECK_FALSE(old.head().http11);
}

TEST_CASE("An empty chunked body may come in any pieces") {
  for (const size_t piece : {1u, 2u, 3u, 4u, 5u}) {
    for (const char* chunks : {"0\r\n\r\n", "0\r\nT: x\r\n\r\n", "1\r\na\r\n0\r\n\r\n", "000\r\n\r\n"}) {
      HttpParser parser({});
      std::string rest;
      const std::string bytes =
          std::string("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n") + chunks;
      INFO(piece << " " << chunks);
      CHECK(feed_all(parser, bytes, piece, rest) == HttpParser::State::kDone);
      CHECK(rest.empty());
    }
  }
}

TEST_CASE("A request of HTTP 1.1 names one host") {
  const auto host = [](const std::string& head) {
    HttpParser parser({});
    std::string rest;
    if (feed_all(parser, head + "\r\n", 7, rest) == HttpParser::State::kFailed) return parser.failure().message;
    return parser.take().host;
  };
  CHECK(host("GET / HTTP/1.1\r\nHost: a:1\r\n") == "a:1");
  CHECK(host("GET / HTTP/1.1\r\nHost:\r\n").empty());
  CHECK(host("GET / HTTP/1.0\r\n").empty());
  CHECK(host("GET http://b:2/x HTTP/1.1\r\nHost: a:1\r\n") == "b:2");
  CHECK(host("GET http://b:2 HTTP/1.1\r\nHost: a:1\r\n") == "b:2");
  CHECK(host("GET http://b:2?x=/y HTTP/1.1\r\nHost: a:1\r\n") == "b:2");
  CHECK(host("GET http://b:2#/y HTTP/1.1\r\nHost: a:1\r\n") == "b:2");
  CHECK(host("GET /x?u=http://b:2/ HTTP/1.1\r\nHost: a:1\r\n") == "a:1");
  for (const char* target : {"http:///x", "http://", "http://?x", "http://#x"}) {
    CHECK_THAT(host(fmt::format("GET {} HTTP/1.1\r\nHost: a:1\r\n", target)), Mentions("no host"));
  }
  CHECK_THAT(host("GET / HTTP/1.1\r\nAccept: */*\r\n"), Mentions("Host", "missing"));
  CHECK_THAT(host("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n"), Mentions("several Host headers"));
  CHECK_THAT(host("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n"), Mentions("1.0"));
}

TEST_CASE("Limits and malformed requests fail with their status") {
  const auto status = [](const std::string& bytes) {
    HttpParser parser({.header_bytes = 1024, .body_bytes = 100});
    std::string rest;
    const auto state = feed_all(parser, bytes, 64, rest);
    return state == HttpParser::State::kFailed ? parser.failure().status : 0u;
  };
  CHECK(status("GET / HTTP/1.1\r\nHost: h\r\nX: " + std::string(5000, 'x') + "\r\n\r\n") == 431);
  CHECK(status("GET /" + std::string(5000, 'x')) == 431);
  CHECK(status("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 101\r\n\r\n") == 413);
  CHECK(status("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n80\r\n" + std::string(128, 'x')) ==
        413);
  CHECK(status("NONSENSE\r\n\r\n") == 400);
  CHECK(status("GET / HTTP/2.0\r\n\r\n") == 400);
  CHECK(status("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n") == 400);
  CHECK(status("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n") == 400);
  for (const char* coding : {"xchunked", "identity", "gzip", "chunked, identity",
                             "chunked\r\nTransfer-Encoding: identity", "identity\r\nTransfer-Encoding: chunked", ""}) {
    INFO(coding);
    CHECK(status(fmt::format("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: {}\r\n\r\n0\r\n\r\n", coding)) == 400);
  }
  CHECK(status(std::string("\x16\x03\x01\x02\x00\x01\x00", 7) + std::string(100, '\x01')) == 400);
}

TEST_CASE("Percent escapes and secret comparison") {
  CHECK(percent_decode("a%2fb%zz%4") == "a/b%zz%4");
  CHECK(equal_in_constant_time("key", "key"));
  CHECK_FALSE(equal_in_constant_time("key", "kex"));
  CHECK_FALSE(equal_in_constant_time("key", "keykey"));
  CHECK_FALSE(equal_in_constant_time("", "key"));
  CHECK_FALSE(equal_in_constant_time("key", ""));
}

TEST_CASE("Chunk headers and trailers are bounded as the header is") {
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string& begin : {std::string("5;x="), std::string("5\r\nabcde\r\n5;x="), std::string("0\r\nX: ")}) {
    for (const size_t piece : {7u, 100u, 100'000u}) {
      INFO(begin << " in pieces of " << piece);
      HttpParser parser({.header_bytes = 1024, .body_bytes = 100});
      std::string rest;
      CHECK(feed_all(parser, head + begin + std::string(100'000, 'y'), piece, rest) == HttpParser::State::kFailed);
      CHECK(parser.failure().status == 431);
      HttpParser patient({.header_bytes = 1024, .body_bytes = 100});
      rest.clear();
      CHECK(feed_all(patient, head + begin + std::string(500, 'y'), piece, rest) == HttpParser::State::kNeedMore);
    }
  }
}

TEST_CASE("Empty lines before a request are skipped") {
  for (const size_t piece : {1u, 2u, 3u, 100u}) {
    HttpParser parser({});
    std::string rest;
    CHECK(feed_all(parser, "\r\n\r\nGET /x HTTP/1.1\r\nHost: h\r\n\r\n", piece, rest) == HttpParser::State::kDone);
    CHECK(parser.take().path == "/x");
  }
}
