#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace::load {

/// Takes a stream of server-sent events apart (WHATWG HTML, section 9.2.6), wherever the bytes are cut. Only `data`
/// fields matter here: `event`, `id`, `retry`, unknown fields and comments are dropped. One per response.
class SseParser {
 public:
  /// An event larger than this ends the stream.
  static constexpr size_t kMaxEventBytes = size_t{16} << 20;

  /// Calls `on_event(std::string&)` with the data of each event that `bytes` completes; the string may be changed and
  /// is valid during the call. False once an event is larger than kMaxEventBytes: nothing is parsed from there on.
  template <class OnEvent>
  bool feed(std::string_view bytes, OnEvent&& on_event) {
    while (!bytes.empty()) {
      const bool complete = take_line(bytes);
      if (too_large_) return false;
      if (!complete || !finish_line()) continue;
      on_event(data_);
      data_.clear();
      has_data_ = false;
    }
    return true;
  }

 private:
  /// Moves bytes up to the end of the line into `line_`; false when the line is not complete yet.
  bool take_line(std::string_view& bytes);
  /// Uses up `line_`; true when it was the empty line after an event.
  bool finish_line();

  std::string partial_;    // a line whose end has not come
  std::string_view line_;  // the complete line: within `partial_` or within the bytes being fed
  std::string data_;
  bool has_data_ = false;
  bool after_cr_ = false;
  bool first_line_ = true;
  bool too_large_ = false;
};

}  // namespace millrace::load
