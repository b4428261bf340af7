#include "text/tool_calls/delimiter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <utility>

#include "text/tool_calls/partial_match.h"

namespace millrace::text {
namespace {

/// Limits the backtracking of one search.
constexpr uint32_t kMaxDelimiterSteps = 1'000'000;

template <class T>
T pattern_info(const pcre2_code* code, uint32_t what) {
  T value{};
  pcre2_pattern_info(code, what, &value);
  return value;
}

/// Calls `use` with the name and the number of each named group.
template <class Use>
void for_each_group(const pcre2_code* code, const Use& use) {
  const auto count = pattern_info<uint32_t>(code, PCRE2_INFO_NAMECOUNT);
  const auto size = pattern_info<uint32_t>(code, PCRE2_INFO_NAMEENTRYSIZE);
  auto entry = pattern_info<PCRE2_SPTR>(code, PCRE2_INFO_NAMETABLE);
  for (uint32_t i = 0; i < count; ++i, entry += size) {
    use(std::string(reinterpret_cast<const char*>(entry + 2)), static_cast<size_t>((entry[0] << 8) | entry[1]));
  }
}

}  // namespace

Delimiter Delimiter::literals(std::vector<std::string> texts) {
  Delimiter made;
  std::ranges::sort(texts, std::ranges::greater(), &std::string::size);
  made.texts_ = std::move(texts);
  return made;
}

Result<Delimiter> Delimiter::pattern(std::string_view pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_DOTALL | PCRE2_NEVER_BACKSLASH_C;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), kOptions, &error, &offset, nullptr);
  if (code == nullptr) {
    PCRE2_UCHAR message[160];
    pcre2_get_error_message(error, message, sizeof message);
    return make_error(ErrorCode::kData, "regex \"{}\": {}", pattern, reinterpret_cast<const char*>(message));
  }
  Delimiter made;
  made.code_.reset(code, [](pcre2_code* owned) { pcre2_code_free(owned); });
  return made;
}

Delimiter::Found Delimiter::find(std::string_view text, bool is_end, size_t from) const {
  return code_ == nullptr ? find_literal(text, is_end, from) : find_pattern(text, is_end, from);
}

Delimiter::Found Delimiter::find_literal(std::string_view text, bool is_end, size_t from) const {
  Found found;
  for (const std::string& literal : texts_) {
    const size_t at = text.find(literal, from);
    if (at != std::string_view::npos && (!found.match || at < found.match->begin)) {
      found.match = Match{.begin = at, .end = at + literal.size(), .groups = {}};
    }
    const size_t partial = partial_match_length(text.substr(from), literal);
    if (partial > 0 && !is_end) found.undecided = std::min(found.undecided, text.size() - partial);
  }
  // A longer literal may begin where the match does, or before it.
  if (found.match && found.undecided > found.match->begin) found.undecided = std::string_view::npos;
  if (found.match && found.undecided != std::string_view::npos) found.match.reset();
  return found;
}

Delimiter::Found Delimiter::find_pattern(std::string_view text, bool is_end, size_t from) const {
  Found found;
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(code_.get(), nullptr), &pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  pcre2_set_match_limit(context.get(), kMaxDelimiterSteps);
  const uint32_t options = PCRE2_NO_UTF_CHECK | (is_end ? 0 : PCRE2_PARTIAL_HARD);
  const int rc = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, options,
                             data.get(), context.get());
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
  if (rc == PCRE2_ERROR_PARTIAL) found.undecided = bounds[0];
  if (rc < 0) return found;
  Match match{.begin = bounds[0], .end = bounds[1], .groups = {}};
  if (match.end <= match.begin) return found;
  for_each_group(code_.get(), [&](std::string name, size_t number) {
    const PCRE2_SIZE begin = bounds[2 * number];
    if (begin == PCRE2_UNSET) return;
    match.groups[std::move(name)] = std::string(text.substr(begin, bounds[2 * number + 1] - begin));
  });
  found.match = std::move(match);
  return found;
}

std::vector<std::string> Delimiter::group_names() const {
  std::vector<std::string> names;
  if (code_ != nullptr) {
    for_each_group(code_.get(), [&names](std::string name, size_t) { names.push_back(std::move(name)); });
  }
  return names;
}

}  // namespace millrace::text
