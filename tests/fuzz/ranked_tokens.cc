#include "fuzz/targets.h"
#include "fuzz/tokenizer_check.h"

namespace millrace::fuzz {

void ranked_tokens(std::string_view input) {
  const size_t end = input.find('\0');
  if (end == input.npos) return check_tokenizer(text::Tokenizer::from_tekken(input));
  check_tokenizer(text::Tokenizer::from_tiktoken(input.substr(end + 1), input.substr(0, end)));
}

}  // namespace millrace::fuzz
