#include "fuzz/targets.h"
#include "fuzz/tokenizer_check.h"

namespace millrace::fuzz {

void tokenizer_json(std::string_view input) {
  check_tokenizer(text::Tokenizer::from_json(input));
}

}  // namespace millrace::fuzz
