#include <catch2/catch.hpp>
#include <set>

#include "gguf/pre_tokenizers.h"
#include "text/tokenizer/regex.h"

using namespace millrace;

TEST_CASE("every pre-tokenizer has patterns that compile") {
  std::set<std::string_view> names;
  for (const std::string_view name : gguf::pre_tokenizer_names()) {
    CAPTURE(name);
    CHECK(names.insert(name).second);
    const gguf::PreTokenizer* found = gguf::find_pre_tokenizer(name);
    REQUIRE(found != nullptr);
    CHECK((found->uses_gpt2_pattern || !found->patterns.empty()));
    for (const std::string_view pattern : found->patterns) CHECK_NOTHROW(text::Regex::compile(pattern));
  }
  CHECK(names.size() > 30);
  CHECK(gguf::find_pre_tokenizer("") == nullptr);
  CHECK(gguf::find_pre_tokenizer("default") == nullptr);
}
