#include "text/tokenizer/tokenizer.h"

#include <catch2/catch.hpp>
#include <unicode/normalizer2.h>
#include <unicode/unistr.h>

#include <random>
#include <thread>

#include "base/utf8.h"
#include "text/json_support.h"
#include "support/mentions.h"
#include "support/paths.h"
#include "support/skip.h"
#include "support/temporary_folder.h"
#include "text/tokenizer/incremental_detokenizer.h"
#include "text/unicode.h"

using namespace millrace;
using namespace millrace::text;
using simdjson::dom::element;

namespace {

using TokenizerPtr = std::shared_ptr<const Tokenizer>;

TokenizerPtr load_shared(const std::string& name) {
  auto made = Tokenizer::load(test::shared_data_dir() / "tokenizers" / name);
  if (made.has_error()) FAIL(made.error().message);
  return *made;
}

bool has_shared_data() {
  return std::filesystem::exists(test::shared_data_dir() / "tokenizers");
}

std::vector<TokenId> ids_of(element item, std::string_view name) {
  std::vector<TokenId> ids;
  for (const element id : simdjson::dom::array(item[name])) ids.push_back(static_cast<TokenId>(int64_t(id)));
  return ids;
}

/// Calls `use` for every tokenizer of the committed cases.
template <class Use>
void for_each_small_tokenizer(Use use) {
  const std::string json = test::read_file(test::source_dir() / "tests/text/tokenizer_cases.json");
  simdjson::dom::parser parser;
  for (const element item : simdjson::dom::array(parser.parse(json))) {
    const std::string name = test::member_text(item, "name");
    CAPTURE(name);
    const auto made = Tokenizer::from_json(test::member_text(item, "tokenizer"));
    if (made.has_error()) FAIL(made.error().message);
    use(item, *made);
  }
}

std::string random_bytes(std::mt19937& random, size_t max_length) {
  static const std::vector<std::string> kPieces = {"a",
                                                   " ",
                                                   "\n",
                                                   "'s",
                                                   "'S",
                                                   "\xC5\xBF",
                                                   "\xE2\x96\x81",
                                                   "<s>",
                                                   "</s>",
                                                   "<|im_start|>",
                                                   "<0x41>",
                                                   "12",
                                                   "\xF0\x9F\xA6\x99",
                                                   "\xE6\x97\xA5",
                                                   "\xCC\x81",
                                                   "\xC3\xA9",
                                                   "  ",
                                                   "\r\n",
                                                   "\xE2\x80\x83",
                                                   "word",
                                                   "!?"};
  std::string out;
  const size_t count = random() % max_length;
  for (size_t i = 0; i < count; ++i) {
    if (random() % 3 == 0) {
      out += static_cast<char>(random() & 0xFF);
    } else {
      out += kPieces[random() % kPieces.size()];
    }
  }
  return out;
}

std::string incremental(const TokenizerPtr& tokenizer, const std::vector<TokenId>& ids, bool skip_special) {
  IncrementalDetokenizer detokenizer(tokenizer, skip_special);
  std::string joined;
  for (const TokenId id : ids) {
    const std::string part = detokenizer.push(id);
    if (!is_valid_utf8(part)) FAIL("a part is not whole characters");
    joined += part;
  }
  return joined + detokenizer.flush();
}

}  // namespace

TEST_CASE("every component encodes and decodes like Hugging Face") {
  size_t count = 0;
  for_each_small_tokenizer([&](element item, const TokenizerPtr& tokenizer) {
    for (const element row : simdjson::dom::array(item["cases"])) {
      const std::string text = test::member_text(row, "text");
      CAPTURE(text);
      const std::vector<TokenId> ids = ids_of(row, "ids");
      CHECK(tokenizer->encode(text, true) == ids);
      CHECK(tokenizer->encode(text, false) == ids_of(row, "plain"));
      CHECK(tokenizer->decode(ids, false) == test::member_text(row, "decoded"));
      CHECK(tokenizer->decode(ids, true) == test::member_text(row, "shown"));
      CHECK(incremental(tokenizer, ids, true) == test::member_text(row, "shown"));
      ++count;
    }
  });
  REQUIRE(count > 3000);
}

TEST_CASE("any ids decode like Hugging Face at once and in parts") {
  size_t count = 0;
  for_each_small_tokenizer([&](element item, const TokenizerPtr& tokenizer) {
    for (const element row : simdjson::dom::array(item["decodes"])) {
      const std::vector<TokenId> ids = ids_of(row, "ids");
      CAPTURE(ids);
      CHECK(tokenizer->decode(ids, false) == test::member_text(row, "decoded"));
      CHECK(tokenizer->decode(ids, true) == test::member_text(row, "shown"));
      CHECK(incremental(tokenizer, ids, false) == test::member_text(row, "decoded"));
      CHECK(incremental(tokenizer, ids, true) == test::member_text(row, "shown"));
      ++count;
    }
  });
  REQUIRE(count > 300);
}

TEST_CASE("pairs of texts encode like Hugging Face") {
  size_t count = 0;
  for_each_small_tokenizer([&](element item, const TokenizerPtr& tokenizer) {
    for (const element row : simdjson::dom::array(item["pairs"])) {
      const auto pair = tokenizer->encode_pair(test::member_text(row, "first"), test::member_text(row, "second"),
                                               bool(row["special"]));
      CHECK(pair.ids == ids_of(row, "ids"));
      const std::vector<TokenId> types = ids_of(row, "type_ids");
      CHECK(std::vector<TokenId>(pair.type_ids.begin(), pair.type_ids.end()) == types);
      ++count;
    }
  });
  REQUIRE(count > 50);
}

TEST_CASE("the reference pairs of Qwen2 and Llama-2 are exact") {
  if (!has_shared_data()) SKIP_TEST("the shared data folder is absent");
  for (const std::string name : {"qwen2", "llama2"}) {
    const TokenizerPtr tokenizer = load_shared(name);
    const auto dir = test::shared_data_dir() / "tokenizers" / name;
    const std::string inputs = test::read_file(dir / "pairs.inp");
    std::istringstream outputs(test::read_file(dir / "pairs.out"));
    constexpr std::string_view kSeparator = "\n__ggml_vocab_test__\n";
    size_t count = 0;
    std::string line;
    for (size_t begin = 0; begin <= inputs.size() && std::getline(outputs, line); ++count) {
      const size_t end = std::min(inputs.find(kSeparator, begin), inputs.size());
      const std::string text = inputs.substr(begin, end - begin);
      std::istringstream numbers(line);
      const std::vector<TokenId> expected{std::istream_iterator<TokenId>(numbers), {}};
      CAPTURE(name, text);
      CHECK(tokenizer->encode(text, false) == expected);
      begin = end + kSeparator.size();
    }
    CHECK(count > 40);
  }
}

TEST_CASE("the corpus survives a round trip") {
  const auto corpus = test::shared_data_dir() / "corpus";
  if (!has_shared_data() || !std::filesystem::exists(corpus)) SKIP_TEST("the shared data folder is absent");
  for (const std::string name : {"qwen2", "llama2"}) {
    const TokenizerPtr tokenizer = load_shared(name);
    for (const auto& book : std::filesystem::directory_iterator(corpus)) {
      const std::string text = test::read_file(book.path());
      const std::vector<TokenId> ids = tokenizer->encode(text, false);
      CHECK(ids.size() < text.size() / 2);
      // CHECK(a == b) would print megabytes at a failure.
      const bool same = tokenizer->decode(ids, false) == text;
      CHECK(same);
      const bool same_in_parts = incremental(tokenizer, ids, false) == text;
      CHECK(same_in_parts);
    }
  }
}

TEST_CASE("any bytes encode and decode alike in parts and at once") {
  std::mt19937 random(7);
  for_each_small_tokenizer([&](element, const TokenizerPtr& tokenizer) {
    for (int i = 0; i < 300; ++i) {
      const std::string text = random_bytes(random, 30);
      CAPTURE(text);
      const std::vector<TokenId> ids = tokenizer->encode(text, i % 2 == 0, i % 3 == 0);
      CHECK(ids == tokenizer->encode(replace_invalid_utf8(text), i % 2 == 0, i % 3 == 0));
      CHECK(incremental(tokenizer, ids, true) == tokenizer->decode(ids, true));
    }
  });
}

TEST_CASE("any ids decode alike in parts and at once") {
  std::mt19937 random(11);
  for_each_small_tokenizer([&](element, const TokenizerPtr& tokenizer) {
    const auto range = static_cast<TokenId>(tokenizer->vocab_size() + 300);
    for (int i = 0; i < 300; ++i) {
      std::vector<TokenId> ids(random() % 20);
      for (TokenId& id : ids) id = static_cast<TokenId>(random() % static_cast<uint32_t>(range)) - 5;
      CAPTURE(ids);
      const std::string decoded = tokenizer->decode(ids, false);
      CHECK(is_valid_utf8(decoded));
      CHECK(incremental(tokenizer, ids, false) == decoded);
    }
  });
}

TEST_CASE("padded rows and negative ids and special tokens") {
  if (!has_shared_data()) SKIP_TEST("the shared data folder is absent");
  const TokenizerPtr qwen = load_shared("qwen2");
  CHECK(qwen->vocab_size() == 151665);
  CHECK(qwen->decode(std::vector<TokenId>{9707, 151935, -1, INT32_MAX, 1879}, false) == "Hello world");
  CHECK(qwen->token_bytes(151935).empty());
  CHECK(qwen->id_to_token(1879) == "\xC4\xA0world");
  CHECK(qwen->token_bytes(1879) == " world");
  CHECK(qwen->token_to_id("<|im_end|>") == 151645);
  CHECK(qwen->eos_id() == 151645);
  CHECK(!qwen->bos_id());
  CHECK(qwen->is_special(151645));
  CHECK(!qwen->is_special(1879));
  CHECK(qwen->encode("<|im_end|>", false) == std::vector<TokenId>{151645});
  CHECK(qwen->encode("<|im_end|>", false, false).size() > 1);
  CHECK(load_shared("llama2")->encode("Hello", true) == std::vector<TokenId>{1, 15043});
}

TEST_CASE("output that follows a prompt keeps its leading space") {
  if (!has_shared_data()) SKIP_TEST("the shared data folder is absent");
  const TokenizerPtr llama = load_shared("llama2");
  IncrementalDetokenizer fresh(llama, true);
  CHECK(fresh.push(15043) == "Hello");
  IncrementalDetokenizer following(llama, true);
  following.continue_from_prompt(std::vector<TokenId>{1, 3148});
  CHECK(following.push(15043) == " Hello");
  IncrementalDetokenizer split(llama, true);
  const TokenId byte_base = 3;
  split.continue_from_prompt(std::vector<TokenId>{1, byte_base + 0xE6, byte_base + 0x97});
  CHECK(split.push(byte_base + 0xA5).empty());
  CHECK(split.settle_before(15043) == "\xE6\x97\xA5");
  CHECK(split.push(15043) == " Hello");
  CHECK(split.push(byte_base + 0xE6).empty());
  CHECK(split.flush() == std::string(kReplacementUtf8));
}

TEST_CASE("what the prompt begins and no output completes is no output") {
  const auto tokenizer = Tokenizer::from_json(
      R"({"model": {"vocab": {"<0xF0>": 0, "<0x9F>": 1, "<0xA6>": 2, "<0x99>": 3, "a": 4}, "merges": []},
          "decoder": {"type": "ByteFallback"}})");
  REQUIRE(tokenizer.has_value());
  const std::vector<TokenId> character = {0, 1, 2, 3};
  for (size_t split = 0; split <= character.size(); ++split) {
    const std::span<const TokenId> prompt = std::span(character).first(split);
    const auto output = [&](const std::vector<TokenId>& ids) {
      IncrementalDetokenizer detokenizer(*tokenizer, true);
      detokenizer.continue_from_prompt(prompt);
      std::string text = detokenizer.push(ids);
      return text += detokenizer.flush();
    };
    CAPTURE(split);
    CHECK(output({}) == "");
    CHECK(output({4}) == "a");
    const std::vector<TokenId> rest(character.begin() + static_cast<std::ptrdiff_t>(split), character.end());
    CHECK(output(rest) == (split < 4 ? "\xF0\x9F\xA6\x99" : ""));
    if (split < 3) CHECK(output({rest.front(), 4}) == std::string(kReplacementUtf8) + "a");
    if (split < 3) CHECK(output({rest.front()}) == std::string(kReplacementUtf8));
  }
}

TEST_CASE("a megabyte of one character takes its time in n log n") {
  const auto encode_all = [](const TokenizerPtr& tokenizer) {
    for (const char* unit : {"a", " ", "\n", "\xE2\x96\x81", "\xF0\x9F\xA6\x99", "!", "1", "\xFF", " a", "<"}) {
      std::string text;
      while (text.size() < 1000000) text += unit;
      CHECK(tokenizer->encode(text, false).size() > 10);
    }
  };
  for_each_small_tokenizer([&](element item, const TokenizerPtr& tokenizer) {
    const std::string name = test::member_text(item, "name");
    if (name == "llama3" || name == "llama2" || name == "deepseek" || name == "gemma") encode_all(tokenizer);
  });
}

TEST_CASE("long runs of marks normalize like ICU in n log n") {
  UErrorCode status = U_ZERO_ERROR;
  const std::array normalizers = {std::pair{NormalForm::kNfc, icu::Normalizer2::getNFCInstance(status)},
                                  std::pair{NormalForm::kNfd, icu::Normalizer2::getNFDInstance(status)},
                                  std::pair{NormalForm::kNfkc, icu::Normalizer2::getNFKCInstance(status)},
                                  std::pair{NormalForm::kNfkd, icu::Normalizer2::getNFKDInstance(status)}};
  REQUIRE(U_SUCCESS(status));
  // Starters that compose or not, marks of several classes, characters that decompose into marks (U+0344, U+0F73),
  // starters that compose with what precedes (U+09BE, Hangul), exclusions (U+0958), compatibility characters.
  constexpr std::u32string_view kStarters = U"aA\u00E9\u212B\u1EA5\u1100\uAC00\u09C7\u0958\uFB01\uFF76\u3131";
  constexpr std::u32string_view kMarks =
      U"\u0300\u0301\u0315\u0316\u0323\u0327\u0338\u0344\u0345\u0F71\u0F72"
      U"\u0F73\u093C\u09BE\u1161\u11A8\u3099\uFF9E\U0001D165\U0001D16D";
  std::mt19937 random(13);
  for (int i = 0; i < 4000; ++i) {
    std::string text;
    const uint32_t starters = 1 + random() % 40;  // one in so many
    for (size_t left = random() % 200; left > 0; --left) {
      const bool is_starter = random() % starters == 0;
      append_utf8(text, is_starter ? kStarters[random() % kStarters.size()] : kMarks[random() % kMarks.size()]);
    }
    for (const auto& [form, normalizer] : normalizers) {
      std::string expected;
      normalizer->normalize(icu::UnicodeString::fromUTF8(text), status).toUTF8String(expected);
      CAPTURE(text);
      REQUIRE(normalize(text, form) == expected);
    }
  }
  const auto repeated = [](std::string_view unit) {
    std::string out;
    while (out.size() < 2000000) out += unit;
    return out;
  };
  const std::string above = repeated("\xCC\x95");  // U+0315, of class 232
  const std::string below = repeated("\xCC\x96");  // U+0316, of class 220
  for (const auto& [form, normalizer] : normalizers) {
    const bool is_sorted = normalize("a" + above + below, form) == "a" + below + above;
    CHECK(is_sorted);
    CHECK(normalize(repeated("\xE0\xBD\xB3\xCC\x80"), form).size() > 2000000);  // U+0F73, U+0300
  }
}

TEST_CASE("threads share one tokenizer") {
  if (!has_shared_data()) SKIP_TEST("the shared data folder is absent");
  const TokenizerPtr qwen = load_shared("qwen2");
  const std::string text = test::read_file(test::shared_data_dir() / "corpus/sherlock_holmes.txt").substr(0, 100000);
  const std::vector<TokenId> expected = qwen->encode(text, false);
  std::atomic<int> equal = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 5; ++round) equal += qwen->encode(text, false) == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(equal == 20);
}

TEST_CASE("what is not supported is refused by name") {
  const auto error_of = [](std::string_view json) {
    const auto made = Tokenizer::from_json(json);
    return made.has_error() ? made.error().message : "accepted";
  };
  const auto with = [](std::string_view member) {
    return R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}, )" +
           std::string(member) + "}";
  };
  CHECK(error_of(with(R"("added_tokens": [])")) == "accepted");
  CHECK(error_of("[]") == "tokenizer.json: not a JSON object");
  CHECK(error_of("{").find("tokenizer.json: ") == 0);
  CHECK(error_of("{}") == "tokenizer.json: \"model\" is missing");
  for (const std::string component : {"normalizer", "pre_tokenizer", "decoder", "post_processor"}) {
    CHECK(error_of(with("\"" + component + R"(": {"type": "Odd"})")) ==
          "tokenizer.json: " + component + " type \"Odd\" is not supported");
  }
  CHECK(error_of(R"({"model": {"type": "Odd"}})") == "tokenizer.json: model type \"Odd\" is not supported");
  CHECK(error_of(R"({"model": {"vocab": {"a": 0}, "merges": ["#version: 0.2"], "dropout": 0.0}})") == "accepted");
  CHECK(error_of(R"({"model": {"vocab": {"a": 0}, "merges": [], "dropout": 0.1}})").find("dropout") !=
        std::string::npos);
  CHECK(error_of(R"({"model": {"type": "Unigram", "vocab": [["a", -1]], "unk_id": 1}})").find("unk_id") !=
        std::string::npos);
  CHECK(error_of(R"({"model": {"type": "Unigram", "vocab": [["a"]]}})").find("vocab") != std::string::npos);
  for (const std::string map : {"", "AA", "AAAA/////w==", "*"}) {
    const std::string json = R"("normalizer": {"type": "Precompiled", "precompiled_charsmap": ")" + map + "\"}";
    CHECK(error_of(with(json)).find("precompiled_charsmap") != std::string::npos);
  }
  CHECK(
      error_of(R"({"model": {"vocab": {"a": 0}, "merges": ["a b"]}})").find("\"b\", which is not in the vocabulary") !=
      std::string::npos);
  CHECK(error_of(R"({"model": {"vocab": {"a": 99999999999}, "merges": []}})").find("is not a number from 0 to") !=
        std::string::npos);
  CHECK(error_of(R"({"model": {"vocab": {"a": 0}, "merges": ["a"]}})").find("is not two tokens") != std::string::npos);
  CHECK(error_of(with(R"("pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"})"))
            .find("regex \"(\"") != std::string::npos);
  std::string deep = R"({"type": "NFC"})";
  for (int i = 0; i < 20; ++i) deep = R"({"type": "Sequence", "normalizers": [)" + deep + "]}";
  CHECK(error_of(with("\"normalizer\": " + deep)) == "tokenizer.json: normalizer: nested too deeply");
  const std::string grow = R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaaaaaaaaaaaa"})";
  CHECK(error_of(with(R"("normalizer": {"type": "Sequence", "normalizers": [)" + grow + "," + grow + "]}"))
            .find("may grow") != std::string::npos);
  CHECK(Tokenizer::load("/nonexistent").error().code == ErrorCode::kNotFound);
  for (const char* name : {"tokenizer.model", "qwen.tiktoken", "hy.tiktoken", "vocab.txt"}) {
    const test::TemporaryFolder folder;
    folder.write(name, "");
    const Error error = Tokenizer::load(folder.path()).error();
    CHECK(error.code == ErrorCode::kNotFound);
    CHECK_THAT(error.message, test::Mentions(folder.path().string(), name, "no tokenizer.json", "save_pretrained"));
  }
}

TEST_CASE("add_bos_token of the Llama class controls the beginning") {
  const std::string json =
      R"({"model": {"vocab": {"a": 0}, "merges": []}, "added_tokens": [{"id": 1, "content": "<s>", "special": true}]})";
  const auto encode = [&](std::string_view config) {
    return Tokenizer::from_json(json, config).value()->encode("a", true);
  };
  CHECK(encode("{}") == std::vector<TokenId>{0});
  CHECK(encode(R"({"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "add_bos_token": true})") ==
        std::vector<TokenId>{1, 0});
  CHECK(encode(R"({"tokenizer_class": "Qwen2Tokenizer", "bos_token": "<s>", "add_bos_token": true})") ==
        std::vector<TokenId>{0});
  CHECK(encode(R"({"added_tokens_decoder": {"7": {"content": "a", "special": false}}})") == std::vector<TokenId>{0});
}

TEST_CASE("a word of any length is one word to the pre-tokenizer") {
  const auto tokenizer = Tokenizer::from_json(
      R"({"model": {"vocab": {"!": 0, "a": 1, "!!": 2}, "merges": ["! !"]}, "pre_tokenizer": {"type": "Whitespace"}})");
  REQUIRE(tokenizer.has_value());
  for (const size_t length : {3u, 1u << 20}) {
    const auto ids = (*tokenizer)->encode(std::string(length, '!') + "a " + std::string(length, '!'), false);
    CHECK(ids.size() == 2 * (length / 2 + length % 2) + 1);
  }
}

TEST_CASE("a complete tokenizer_config.json stands beside any tokenizer") {
  const std::string config =
      "\xEF\xBB\xBF{\"model_max_length\": 1000000000000000019884624838656, \"x\": [NaN, Infinity, -Infinity, 1e400]}";
  for_each_small_tokenizer([&](element item, const TokenizerPtr& plain) {
    const std::string json = test::member_text(item, "tokenizer");
    const auto made = Tokenizer::from_json("\xEF\xBB\xBF" + json, config);
    if (made.has_error()) FAIL(made.error().message);
    CHECK((*made)->encode("Hello, world", true) == plain->encode("Hello, world", true));
    const auto cut = Tokenizer::from_json(std::string_view(json).substr(0, json.size() / 2), config);
    REQUIRE(cut.has_error());
    CHECK(cut.error().message.find("tokenizer.json: line ") == 0);
  });
  const auto folder = test::shared_data_dir() / "complete";
  if (!std::filesystem::exists(folder)) SKIP_TEST("the shared data folder is absent");
  const std::string qwen = test::read_file(test::shared_data_dir() / "tokenizers/qwen2/tokenizer.json");
  const auto made = Tokenizer::from_json(qwen, test::read_file(folder / "qwen2/tokenizer_config.json"));
  if (made.has_error()) FAIL(made.error().message);
  CHECK((*made)->eos_id().has_value());
}
