#pragma once

#include <string>

namespace millrace::test {

/// While it lives, the system's resolver hangs when it is asked for `name`: in programs that have hanging_lookup.cc
/// among their sources, whose getaddrinfo() stands before the C library's. One at a time.
class HangingLookup {
 public:
  explicit HangingLookup(std::string name);
  /// Lets go of whoever hangs, with an error, and returns when they have left.
  ~HangingLookup();
  HangingLookup(const HangingLookup&) = delete;
  HangingLookup& operator=(const HangingLookup&) = delete;

  /// How many have asked for the name.
  [[nodiscard]] size_t count() const;
  /// Whoever hangs, and whoever comes, finds what there is to find for `host`; empty: nothing.
  void resolve_to(const std::string& host);
};

}  // namespace millrace::test
