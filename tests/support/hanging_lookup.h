#pragma once

#include <string>

namespace millrace::test {

/// Makes lookups of `name` hang while the object lives. It works in programs that have hanging_lookup.cc among their
/// sources, since its getaddrinfo() replaces that of the C library. Only one may exist at a time.
class HangingLookup {
 public:
  explicit HangingLookup(std::string name);
  /// Ends hanging lookups with an error and returns when all of them have ended.
  ~HangingLookup();
  HangingLookup(const HangingLookup&) = delete;
  HangingLookup& operator=(const HangingLookup&) = delete;

  /// Returns how many lookups of the name have begun.
  [[nodiscard]] size_t count() const;
  /// Answers hanging and later lookups with the addresses of `host`. An empty `host` has none.
  void resolve_to(const std::string& host);
};

}  // namespace millrace::test
