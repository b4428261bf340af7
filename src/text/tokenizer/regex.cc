#include "text/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <new>

#include "base/result.h"

namespace millrace::text {
namespace {

constexpr size_t kJitStackBytes = 512 * 1024;
constexpr uint32_t kMatchLimit = 50'000'000;
constexpr size_t kMaxPatternBytes = 64 * 1024;

[[noreturn]] void fail(std::string_view pattern, std::string_view reason) {
  throw ErrorException(make_error(ErrorCode::kData, "regex \"{}\": {}", pattern, reason));
}

/// What replaces the class escape `letter`, inside a bracket expression or outside; empty to keep it.
std::string_view rewritten_escape(char letter, bool in_class, std::string_view pattern) {
  switch (letter) {
    case 's': return "\\p{White_Space}";
    case 'S': return "\\P{White_Space}";
    case 'w': return in_class ? "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}" : "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}]";
    case 'W':
      if (in_class) fail(pattern, "\\W inside brackets is not supported");
      return "[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}]";
    default: return {};
  }
}

bool is_script(std::string_view name) {
  const std::string probe = "\\p{sc:" + std::string(name) + "}";
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(probe.data()), probe.size(), PCRE2_UTF | PCRE2_UCP,
                                   &error, &offset, nullptr);
  const bool is_known = code != nullptr;
  pcre2_code_free(code);
  return is_known;
}

/// `\p{Han}` for that script's own characters, as Oniguruma takes it; PCRE2 adds those that it shares with others.
/// Empty for any other escape.
std::string rewritten_script(std::string_view escape) {
  const size_t end = escape.find('}');
  if (!(escape.starts_with("\\p{") || escape.starts_with("\\P{")) || end == std::string_view::npos) return {};
  std::string_view name = escape.substr(3, end - 3);
  std::string out(escape.substr(0, 3));
  if (name.starts_with('^')) {
    out += '^';
    name.remove_prefix(1);
  }
  if (!is_script(name)) return {};
  return out.append("sc:").append(name).append("}");
}

/// Oniguruma's spelling to PCRE2's.
std::string translate(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  size_t class_start = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (const std::string script = rewritten_script(pattern.substr(i)); !script.empty()) {
      out += script;
      i = pattern.find('}', i);
      continue;
    }
    if (c == '\\' && i + 1 < pattern.size()) {
      const std::string_view replacement = rewritten_escape(pattern[i + 1], in_class, pattern);
      if (replacement.empty()) {
        out.append(pattern.substr(i, 2));
      } else {
        out += replacement;
      }
      ++i;
      continue;
    }
    if (!in_class && c == '[') {
      in_class = true;
      class_start = i + 1 < pattern.size() && pattern[i + 1] == '^' ? i + 2 : i + 1;
    } else if (in_class && c == ']' && i > class_start) {
      in_class = false;
    } else if (in_class && (c == '[' || pattern.substr(i, 2) == "&&")) {
      fail(pattern, "nested brackets and && are not supported");
    }
    out += c;
  }
  return out;
}

pcre2_code* compile_code(std::string_view source, std::string_view shown, uint32_t options) {
  if (source.size() > kMaxPatternBytes) fail(shown.substr(0, 80), "longer than 64 KiB");
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
  return Regex(
      compile_code(translate(pattern), pattern, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C));
}

Regex Regex::literal(std::string_view text) {
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
  // \K in a lookahead may put the start behind the end.
  if (bounds[0] > bounds[1] || bounds[0] < from) return std::nullopt;
  return Match{bounds[0], bounds[1]};
}

}  // namespace millrace::text
