#pragma once

#include <string>

namespace millrace::test {

/// What the process writes to stderr while the object lives; one at a time.
class CapturedLog {
 public:
  CapturedLog();
  ~CapturedLog();
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;
  [[nodiscard]] std::string text() const;
  /// How many lines hold `part`.
  [[nodiscard]] size_t count(const std::string& part) const;

 private:
  const int file_;
  const int previous_;
};

}  // namespace millrace::test
