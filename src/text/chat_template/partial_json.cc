#include "text/chat_template/partial_json.h"

#include "text/tool_calls/partial_match.h"

namespace millrace::text {
namespace {

/// Follows a JSON object byte by byte, as far as brackets and strings go.
class Scan {
 public:
  /// Takes the byte at `at`. Returns false where the object ends, or is none.
  bool feed(char c, size_t at) {
    if (in_string_) {
      in_string_ = c != '"' || escaped_;
      escaped_ = c == '\\' && !escaped_;
      if (!in_string_ && expects_value_) end_value(at + 1);
      return true;
    }
    switch (c) {
      case '"': in_string_ = true; break;
      case '{':
      case '[':
        closers_ += c == '{' ? '}' : ']';
        expects_value_ = c == '[';
        break;
      case '}':
      case ']':
        closers_.pop_back();
        expects_value_ = false;
        end_value(at + 1);
        break;
      case ',':
        end_value(at);
        expects_value_ = closers_.ends_with(']');
        break;
      case ':': expects_value_ = true; break;
      default: break;
    }
    return !closers_.empty();
  }

  /// `text`, of which all bytes were taken, with its end.
  [[nodiscard]] std::string closed(std::string_view text) const {
    if (in_string_ && expects_value_) {
      if (escaped_) text.remove_suffix(1);
      return std::string(text) + '"' + closing(closers_.size());
    }
    return std::string(text.substr(0, value_end_)) + closing(depth_there_);
  }

 private:
  void end_value(size_t at) {
    value_end_ = at;
    depth_there_ = closers_.size();
  }
  [[nodiscard]] std::string closing(size_t depth) const {
    return {closers_.rend() - static_cast<std::ptrdiff_t>(depth), closers_.rend()};
  }

  std::string closers_;
  size_t value_end_ = 1;    // where the last whole member ends: after the first brace as long as there is none
  size_t depth_there_ = 1;  // brackets open there, which are open still
  bool in_string_ = false;
  bool escaped_ = false;
  bool expects_value_ = false;  // a string that begins here is a value, and no key
};

}  // namespace

std::optional<std::string> complete_partial_json(std::string_view text) {
  text = without_space(text);
  if (!text.starts_with('{')) return std::nullopt;
  Scan scan;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!scan.feed(text[i], i)) return std::nullopt;
  }
  return scan.closed(text);
}

}  // namespace millrace::text
