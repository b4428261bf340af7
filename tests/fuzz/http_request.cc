#include <string>
#include <vector>

#include "base/check.h"
#include "fuzz/targets.h"
#include "server/http/http_parser.h"

namespace millrace::fuzz {
namespace {

using server::HttpParser;
using server::HttpRequest;

constexpr HttpParser::Limits kLimits{.header_bytes = 2048, .body_bytes = 4096};
constexpr size_t kMaxRequests = 64;

/// The requests of a connection, and how it ended.
struct Outcome {
  std::vector<HttpRequest> requests;
  unsigned failure_status = 0;
  bool waits = false;  ///< for more bytes
};

/// Reads requests as a connection does, `piece` bytes at a time.
Outcome read_all(std::string_view input, size_t piece) {
  Outcome outcome;
  std::string buffer;
  while (outcome.requests.size() < kMaxRequests) {
    HttpParser parser(kLimits);
    HttpParser::State state = HttpParser::State::kNeedMore;
    for (;;) {
      state = parser.feed(buffer);
      if (state == HttpParser::State::kHead) {
        CHECK(parser.head_complete());
        continue;
      }
      if (state != HttpParser::State::kNeedMore || input.empty()) break;
      const size_t taken = std::min(piece, input.size());
      buffer += input.substr(0, taken);
      input.remove_prefix(taken);
    }
    if (state == HttpParser::State::kFailed) {
      outcome.failure_status = parser.failure().status;
      CHECK(outcome.failure_status == 400 || outcome.failure_status == 413 || outcome.failure_status == 431);
      CHECK(!parser.failure().message.empty());
      return outcome;
    }
    outcome.waits = state == HttpParser::State::kNeedMore;
    if (outcome.waits) break;
    CHECK(parser.complete());
    outcome.requests.push_back(parser.take());
    CHECK(outcome.requests.back().body.size() <= kLimits.body_bytes);
  }
  return outcome;
}

}  // namespace

void http_request(std::string_view input) {
  const Outcome whole = read_all(input, std::max<size_t>(input.size(), 1));
  for (const size_t piece : {1u, 7u}) {
    const Outcome pieces = read_all(input, piece);
    // A start line counts towards the limit of the header or not, depending on how it arrives.
    if (whole.failure_status == 431 || pieces.failure_status == 431) continue;
    // What is malformed may be seen only at the end of its header, which may not have come.
    CHECK(whole.failure_status == 0 ? pieces.failure_status == 0 : pieces.waits || pieces.failure_status != 0);
    CHECK(pieces.requests.size() == whole.requests.size());
    for (size_t i = 0; i < whole.requests.size(); ++i) {
      const HttpRequest& a = whole.requests[i];
      const HttpRequest& b = pieces.requests[i];
      CHECK(a.method == b.method && a.path == b.path && a.query == b.query && a.body == b.body);
      CHECK(a.keep_alive == b.keep_alive && a.http11 == b.http11 && a.authorization == b.authorization);
    }
  }
}

}  // namespace millrace::fuzz
