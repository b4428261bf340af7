#include "server/prompt_offsets.h"

#include <catch2/catch.hpp>

#include "server/test_server.h"

using namespace millrace;
using namespace millrace::server;
using Offsets = std::vector<uint32_t>;

namespace {

constexpr TokenId kBos = 256;
constexpr TokenId kEos = 257;

Offsets offsets_of(const TokenizedPrompt& prompt, bool skip_special_tokens = true) {
  ChoiceOptions options;
  options.tokenizer = test::byte_tokenizer();
  options.skip_special_tokens = skip_special_tokens;
  return prompt_offsets(options, prompt);
}

}  // namespace

TEST_CASE("special tokens that a prompt spells count in offsets") {
  CHECK(offsets_of({{'a', kEos, 'b'}, "a<eos>b", 0}) == Offsets{0, 1, 6});
  CHECK(offsets_of({{'a', kEos, 'b'}, "a<eos>b", std::nullopt}, false) == Offsets{0, 1, 6});
  CHECK(offsets_of({{'a', kEos, 'b'}, "a <eos>b", 0}) == Offsets{0, 1, 7});
}

TEST_CASE("special tokens that a prompt does not spell are empty") {
  CHECK(offsets_of({{kBos, 'a', kEos}, "a", 1}) == Offsets{0, 0, 1});
  CHECK(offsets_of({{kBos, kBos, 'a'}, "<bos>a", 1}) == Offsets{0, 0, 5});
  CHECK(offsets_of({{kBos, '<', 'b', 'o', 's', '>'}, "<bos>", std::nullopt}) == Offsets{0, 0, 1, 2, 3, 4});
}

TEST_CASE("offsets count code points and stay inside the text") {
  CHECK(offsets_of({{0xc3, 0xa9, kEos, 'z'}, "\xc3\xa9<eos>z", 0}) == Offsets{0, 0, 1, 6});
  CHECK(offsets_of({{'x', 'y', 'z'}, "X", 0}) == Offsets{0, 1, 1});
}

TEST_CASE("offsets pass over characters that byte tokens spell") {
  ChoiceOptions options;
  options.tokenizer = text::Tokenizer::from_json(
                          R"({"model": {"vocab": {"<0xF0>": 0, "<0x9F>": 1, "<0xA6>": 2, "<0x99>": 3, "b": 4},
                              "merges": []}, "decoder": {"type": "ByteFallback"}})")
                          .value();
  CHECK(prompt_offsets(options, {{4, 0, 1, 2, 3, 4, 4},
                                 "b\xF0\x9F\xA6\x99"
                                 "bb",
                                 std::nullopt}) == Offsets{0, 1, 1, 1, 1, 2, 3});
}

TEST_CASE("the special tokens before a text are counted") {
  const auto plain = test::byte_tokenizer();
  const auto adding = test::byte_tokenizer({}, true);
  CHECK(count_added_start(*plain, plain->encode("<bos>a", true)) == 0);
  CHECK(count_added_start(*adding, adding->encode("a", true)) == 1);
  CHECK(count_added_start(*adding, adding->encode("<bos>a", true)) == 1);
}
