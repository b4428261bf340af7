#pragma once

#include <memory>
#include <optional>
#include <string>

#include "server/http/http.h"

namespace millrace::server {

/// Parses one HTTP/1.x request from bytes as they come, within limits. Lives as long as one request is being read;
/// knows no socket, so a fuzzer can drive it. Beast is in its source file only.
class HttpParser {
 public:
  struct Limits {
    uint32_t header_bytes = 16u << 10;
    uint64_t body_bytes = 16u << 20;
  };
  enum class State {
    kNeedMore,  ///< feed again with more bytes
    kHead,      ///< once, as soon as the header section is complete: head() may be read
    kDone,      ///< take() gives the request
    kFailed,    ///< failure() says why; nothing further can be parsed from this connection
  };
  explicit HttpParser(Limits limits);
  ~HttpParser();

  /// Consumes from the front of `buffer`; what is left over belongs to the next request.
  State feed(std::string& buffer);
  [[nodiscard]] const HttpRequest& head() const { return request_; }
  [[nodiscard]] const HttpError& failure() const { return failure_; }
  /// Returns whether nothing of the request is missing: its body has been read, or its header section has none.
  [[nodiscard]] bool complete() const;
  /// Returns the bytes of the body that the header announced; 0 where it did not.
  [[nodiscard]] size_t announced_body_bytes() const;
  /// Returns the bytes of the body that have been read.
  [[nodiscard]] size_t body_bytes() const;
  [[nodiscard]] bool head_complete() const { return head_reported_; }
  [[nodiscard]] HttpRequest take();

 private:
  struct Impl;
  /// Returns why the header section, which is there whole, makes the request malformed; null if it does not.
  [[nodiscard]] const char* fault_of_head() const;
  void read_head();
  State fail(unsigned status, std::string message);

  std::unique_ptr<Impl> impl_;
  HttpRequest request_;
  HttpError failure_;
  Limits limits_;
  bool head_reported_ = false;
};

}  // namespace millrace::server
