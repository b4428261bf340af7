#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace millrace::text {

/// The memory one match needs. One per thread of matching; reusable for every Regex, never shared.
class RegexScratch {
 public:
  RegexScratch();

 private:
  friend class Regex;
  struct Free {
    void operator()(pcre2_real_match_data_8* data) const;
    void operator()(pcre2_real_match_context_8* context) const;
    void operator()(pcre2_real_jit_stack_8* stack) const;
  };
  std::unique_ptr<pcre2_real_jit_stack_8, Free> stack_;
  std::unique_ptr<pcre2_real_match_context_8, Free> context_;
  std::unique_ptr<pcre2_real_match_data_8, Free> data_;
};

/// A compiled pattern in Oniguruma's syntax, run by PCRE2's JIT over valid UTF-8. Immutable, shared by threads. Where
/// backtracking exceeds PCRE2's match limit, which only a hostile pattern makes happen, the rest of the subject counts
/// as free of matches.
class Regex {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
  };

  /// Throws ErrorException (kData) if the pattern does not compile.
  static Regex compile(std::string_view pattern);
  /// Matches `text` itself.
  static Regex literal(std::string_view text);

  /// Returns the leftmost match at or after `from`; lookarounds see the whole subject and its end.
  [[nodiscard]] std::optional<Match> find(std::string_view subject, size_t from, RegexScratch& scratch) const;

 private:
  explicit Regex(pcre2_real_code_8* code) : code_(code, &free_code) {}
  static void free_code(pcre2_real_code_8* code);

  std::shared_ptr<pcre2_real_code_8> code_;
};

}  // namespace millrace::text
