#include "load/sse.h"

#include <algorithm>

namespace millrace::load {

bool SseParser::take_line(std::string_view& bytes) {
  if (after_cr_) {
    after_cr_ = false;
    if (bytes.front() == '\n') {
      bytes.remove_prefix(1);
      return false;
    }
  }
  const size_t line_feed = bytes.find('\n');
  const size_t end = std::min(line_feed, bytes.substr(0, line_feed).find('\r'));
  const std::string_view piece = bytes.substr(0, end);
  if (partial_.size() + data_.size() + piece.size() > kMaxEventBytes) {
    too_large_ = true;
    return false;
  }
  if (end == bytes.npos) {
    partial_.append(piece);
    bytes = {};
    return false;
  }
  if (partial_.empty()) {
    line_ = piece;
  } else {
    partial_.append(piece);
    line_ = partial_;
  }
  after_cr_ = bytes[end] == '\r';
  bytes.remove_prefix(end + 1);
  return true;
}

bool SseParser::finish_line() {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  constexpr std::string_view kData = "data";
  if (first_line_ && line_.starts_with(kByteOrderMark)) line_.remove_prefix(kByteOrderMark.size());
  first_line_ = false;
  const bool blank = line_.empty();
  if (line_.starts_with(kData) && (line_.size() == kData.size() || line_[kData.size()] == ':')) {
    std::string_view value = line_.substr(std::min(line_.size(), kData.size() + 1));
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_.append(value);
    has_data_ = true;
  }
  partial_.clear();
  line_ = {};
  return blank && has_data_;
}

}  // namespace millrace::load
