#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace millrace::text {
namespace {

/// Returns the failure function of Knuth, Morris and Pratt (1977).
std::vector<size_t> borders_of(std::string_view text) {
  std::vector<size_t> border(text.size() + 1, 0);
  size_t length = 0;
  for (size_t i = 1; i < text.size(); ++i) {
    while (length > 0 && text[i] != text[length]) length = border[length];
    if (text[i] == text[length]) ++length;
    border[i + 1] = length;
  }
  return border;
}

}  // namespace

StopMatcher::StopMatcher(const std::vector<std::string>& stops, bool include_stop) : include_stop_(include_stop) {
  for (size_t i = 0; i < stops.size(); ++i) {
    if (!stops[i].empty()) stops_.push_back({stops[i], i, borders_of(stops[i])});
  }
}

void StopMatcher::advance(Stop& stop, char c) const {
  while (stop.progress > 0 && stop.text[stop.progress] != c) stop.progress = stop.border[stop.progress];
  if (stop.text[stop.progress] == c) ++stop.progress;
}

std::string StopMatcher::push(std::string_view text, bool may_stop) {
  if (matched_) return {};
  if (stops_.empty()) return std::string(text);
  for (const char c : text) {
    held_back_ += c;
    const Stop* winner = nullptr;
    for (Stop& stop : stops_) {
      advance(stop, c);
      if (stop.progress < stop.text.size()) continue;
      if (!may_stop) {
        stop.progress = stop.border.back();
      } else if (winner == nullptr || stop.text.size() > winner->text.size()) {
        winner = &stop;
      }
    }
    if (winner == nullptr) continue;
    matched_ = winner->index;
    if (!include_stop_) held_back_.resize(held_back_.size() - winner->text.size());
    return std::move(held_back_);
  }
  size_t kept = 0;
  for (const Stop& stop : stops_) kept = std::max(kept, stop.progress);
  std::string safe = held_back_.substr(0, held_back_.size() - kept);
  held_back_.erase(0, held_back_.size() - kept);
  return safe;
}

std::string StopMatcher::flush() {
  if (matched_) return {};
  for (Stop& stop : stops_) stop.progress = 0;
  return std::exchange(held_back_, {});
}

}  // namespace millrace::text
