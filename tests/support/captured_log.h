#pragma once

#include <string>

namespace millrace::test {

/// Collects what the process writes to stderr while the object lives. Only one may exist at a time.
class CapturedLog {
 public:
  CapturedLog();
  ~CapturedLog();
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;
  [[nodiscard]] std::string text() const;
  /// Returns how many lines contain `part`.
  [[nodiscard]] size_t count(const std::string& part) const;

 private:
  const int file_;
  const int previous_;
};

}  // namespace millrace::test
