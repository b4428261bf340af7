#include "text/tokenizer/pcre_properties.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/utf8.h"

namespace millrace::text {
namespace {

/// A file may name any number of properties; beyond this many the sets are asked anew.
constexpr size_t kMaxKept = 512;

std::optional<CodePointSet> ask_pcre(std::string_view item) {
  const std::string pattern = std::string(item) + "+";
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP, &error,
                    &error_offset, nullptr),
      &pcre2_code_free);
  if (code == nullptr) return std::nullopt;
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(pcre2_match_data_create(1, nullptr),
                                                                                 &pcre2_match_data_free);
  std::vector<CodePointRange> ranges;
  for (const auto& [first, end] : {std::pair<char32_t, char32_t>{0, 0xD800}, {0xE000, CodePointSet::kLast + 1}}) {
    std::string text;
    for (char32_t c = first; c < end; ++c) append_utf8(text, c);
    for (PCRE2_SIZE from = 0; pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                          PCRE2_NO_UTF_CHECK, data.get(), nullptr) > 0;) {
      const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
      const std::string_view run = std::string_view(text).substr(bounds[0], bounds[1] - bounds[0]);
      const char32_t run_first = decode_utf8(run).code_point;
      const auto is_lead = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
      const auto length = static_cast<char32_t>(std::count_if(run.begin(), run.end(), is_lead));
      ranges.push_back({run_first, run_first + length - 1});
      from = bounds[1];
    }
  }
  return CodePointSet::of(std::move(ranges));
}

}  // namespace

const CodePointSet* pcre_property_set(std::string_view item) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<const std::optional<CodePointSet>>, std::less<>> kept;
  const std::lock_guard lock(mutex);
  auto found = kept.find(item);
  if (found == kept.end()) {
    if (kept.size() >= kMaxKept) return nullptr;
    found = kept.emplace(item, std::make_unique<const std::optional<CodePointSet>>(ask_pcre(item))).first;
  }
  return *found->second ? &**found->second : nullptr;
}

}  // namespace millrace::text
