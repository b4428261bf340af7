#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// Reads the text of a custom tool's call out of the arguments that the model writes.
namespace millrace::server::openai {

/// Decodes {"input": "…"} piece by piece. Arguments that have another form are the input themselves.
class CustomInput {
 public:
  /// Takes the next bytes of the arguments; returns what they add to the input.
  [[nodiscard]] std::string push(std::string_view piece);
  /// Returns the rest of the input, once no more bytes follow.
  [[nodiscard]] std::string finish();

 private:
  enum class State : uint8_t { kStart, kText, kEscape, kUnicode, kEnd };

  /// Returns whether the bytes so far may still be the beginning that is expected; sets `size` to its size if they are
  /// all of it.
  [[nodiscard]] bool match_start(size_t& size) const;
  void take(char c, std::string& out);
  void take_unicode(std::string& out);
  void append_lone_surrogate(std::string& out);

  State state_ = State::kStart;
  std::string start_;  ///< the arguments before the input's text
  std::string digits_;
  uint32_t high_surrogate_ = 0;  ///< of a pair whose second half is still to come
};

}  // namespace millrace::server::openai
