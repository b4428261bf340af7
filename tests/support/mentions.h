#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace millrace::test {

/// Matches a message that mentions all given names and values in their order, whatever the words between them.
class Mentions : public Catch::MatcherBase<std::string> {
 public:
  template <class... Parts>
  explicit Mentions(const Parts&... parts) : parts_{std::string(parts)...} {}

  bool match(const std::string& message) const override {
    size_t at = 0;
    for (const std::string& part : parts_) {
      at = message.find(part, at);
      if (at == std::string::npos) return false;
      at += part.size();
    }
    return true;
  }

  std::string describe() const override {
    std::string text = "mentions in this order:";
    for (const std::string& part : parts_) text += " \"" + part + "\"";
    return text;
  }

 private:
  std::vector<std::string> parts_;
};

}  // namespace millrace::test
