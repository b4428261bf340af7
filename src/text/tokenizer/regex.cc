#include "text/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <new>

#include "base/result.h"
#include "text/tokenizer/regex_translation.h"

namespace millrace::text {
namespace {

constexpr size_t kJitStackBytes = 512 * 1024;
constexpr uint32_t kMatchLimit = 50'000'000;
constexpr size_t kMaxPatternBytes = 64 * 1024;

[[noreturn]] void fail(std::string_view pattern, std::string_view reason) {
  throw ErrorException(make_error(ErrorCode::kData, "regex \"{}\": {}", pattern, reason));
}

pcre2_code* compile_code(std::string_view source, std::string_view shown, uint32_t options) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(), options, &error, &offset, nullptr);
  if (code == nullptr) {
    PCRE2_UCHAR message[160];
    pcre2_get_error_message(error, message, sizeof message);
    fail(shown, reinterpret_cast<const char*>(message));
  }
  // Where the JIT is not available the interpreter gives the same answers.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return code;
}

}  // namespace

void RegexScratch::Free::operator()(pcre2_match_data* data) const {
  pcre2_match_data_free(data);
}
void RegexScratch::Free::operator()(pcre2_match_context* context) const {
  pcre2_match_context_free(context);
}
void RegexScratch::Free::operator()(pcre2_jit_stack* stack) const {
  pcre2_jit_stack_free(stack);
}

RegexScratch::RegexScratch()
    : stack_(pcre2_jit_stack_create(16 * 1024, kJitStackBytes, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      data_(pcre2_match_data_create(1, nullptr)) {
  if (context_ == nullptr || data_ == nullptr) throw std::bad_alloc();
  pcre2_set_match_limit(context_.get(), kMatchLimit);
  if (stack_ != nullptr) pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
}

void Regex::free_code(pcre2_code* code) {
  pcre2_code_free(code);
}

Regex Regex::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) fail(pattern.substr(0, 80), "longer than 64 KiB");
  return Regex(compile_code(translate_regex(pattern), pattern,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C));
}

Regex Regex::literal(std::string_view text) {
  if (text.size() > kMaxPatternBytes) fail(text.substr(0, 80), "longer than 64 KiB");
  return Regex(compile_code(text, text, PCRE2_UTF | PCRE2_LITERAL));
}

std::optional<Regex::Match> Regex::find(std::string_view subject, size_t from, RegexScratch& scratch) const {
  const auto match = [&](uint32_t options) {
    return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(), from,
                       PCRE2_NO_UTF_CHECK | options, scratch.data_.get(), scratch.context_.get());
  };
  int rc = match(0);
  // The interpreter keeps its backtracking on the heap, which holds more.
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = match(PCRE2_NO_JIT);
  if (rc < 0) return std::nullopt;
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(scratch.data_.get());
  // \K in a lookahead may put the start after the end.
  if (bounds[0] > bounds[1] || bounds[0] < from) return std::nullopt;
  return Match{bounds[0], bounds[1]};
}

}  // namespace millrace::text
