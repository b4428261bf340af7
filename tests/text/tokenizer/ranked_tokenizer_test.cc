#include <catch2/catch.hpp>

#include <algorithm>
#include <random>

#include "base/base64.h"
#include "base/text_file.h"
#include "support/effort.h"
#include "support/mentions.h"
#include "support/paths.h"
#include "support/skip.h"
#include "support/temporary_folder.h"
#include "support/test_seed.h"
#include "text/tokenizer/pretoken_scanner.h"
#include "text/tokenizer/tokenizer.h"

/// Tests of tiktoken.model and tekken.json, whose tokens are bytes by rank.
using namespace millrace;
using namespace millrace::text;
using test::Mentions;

namespace {

using TokenizerPtr = std::shared_ptr<const Tokenizer>;
using Ids = std::vector<TokenId>;

constexpr std::string_view kKimiConfig = R"({"tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]",
    "eos_token": {"content": "[EOS]"}, "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", null]},
    "added_tokens_decoder": {"256": {"content": "[BOS]", "special": true}, "257": {"content": "[EOS]", "special": true},
                             "260": {"content": "<think>", "special": false}}})";
constexpr std::string_view kPlainConfig = R"({"tokenizer_class": "TikTokenTokenizer"})";
/// The pattern of Kimi in a spelling that has no scanner, so that the regex cuts.
constexpr std::string_view kKimiRegex = R"((?:\p{Han})+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
                                        R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
                                        R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
                                        R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
                                        R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::string in_base64(std::string_view bytes) {
  std::string out;
  append_base64(out, std::as_bytes(std::span(bytes)));
  return out;
}

std::vector<std::string> single_bytes() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  return tokens;
}

std::string tiktoken_of(const std::vector<std::string>& tokens) {
  std::string text;
  for (size_t rank = 0; rank < tokens.size(); ++rank) text += in_base64(tokens[rank]) + fmt::format(" {}\n", rank);
  return text;
}

std::string in_json(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

struct Tekken {
  std::vector<std::string> tokens = single_bytes();
  std::string pattern = R"([\s\S]+)";
  std::string version = "v3";
  size_t special_count = 24;
  size_t vocab_size = 0;  ///< 0: all tokens
  std::string members;    ///< further ones, each with a comma before it

  [[nodiscard]] std::string json() const {
    std::string vocab;
    for (size_t rank = 0; rank < tokens.size(); ++rank) {
      vocab += fmt::format(R"({}{{"rank": {}, "token_bytes": "{}", "token_str": null}})", rank == 0 ? "" : ", ", rank,
                           in_base64(tokens[rank]));
    }
    return fmt::format(R"({{"config": {{"pattern": {}, "num_vocab_tokens": {}, "default_vocab_size": {}, )"
                       R"("default_num_special_tokens": {}, "version": "{}"}}, "vocab": [{}]{}}})",
                       in_json(pattern), tokens.size(), vocab_size == 0 ? tokens.size() + special_count : vocab_size,
                       special_count, version, vocab, members);
  }
  [[nodiscard]] TokenizerPtr read() const {
    auto made = Tokenizer::from_tekken(json());
    if (made.has_error()) FAIL(made.error().message);
    return *made;
  }
};

TokenizerPtr read_tiktoken(const std::vector<std::string>& tokens, std::string_view config = kKimiConfig) {
  auto made = Tokenizer::from_tiktoken(tiktoken_of(tokens), config);
  if (made.has_error()) FAIL(made.error().message);
  return *made;
}

/// Merges as tiktoken does: while two neighbours together are a token, those of the lowest rank, the leftmost first.
Ids merged_by_rank(std::string_view word, const std::vector<std::string>& tokens) {
  const auto rank_of = [&](std::string_view bytes) { return std::ranges::find(tokens, bytes) - tokens.begin(); };
  const auto none = static_cast<std::ptrdiff_t>(tokens.size());
  if (rank_of(word) != none) return {static_cast<TokenId>(rank_of(word))};
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  while (true) {
    auto best = none;
    size_t place = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto rank = rank_of(parts[i] + parts[i + 1]);
      if (rank < best) std::tie(best, place) = std::pair(rank, i);
    }
    if (best == none) break;
    parts[place] += parts[place + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) ids.push_back(static_cast<TokenId>(rank_of(part)));
  return ids;
}

Error tiktoken_error(std::string_view text, std::string_view config = kKimiConfig) {
  const auto made = Tokenizer::from_tiktoken(text, config);
  REQUIRE(made.has_error());
  CHECK(made.error().code == ErrorCode::kData);
  return made.error();
}

Error tekken_error(const std::string& json) {
  const auto made = Tokenizer::from_tekken(json);
  REQUIRE(made.has_error());
  CHECK(made.error().code == ErrorCode::kData);
  return made.error();
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("tokens by rank merge as tiktoken merges them") {
  std::mt19937_64 random(test::test_seed());
  const auto draw = [&](size_t below) { return random() % below; };
  const auto word = [&](size_t length) {
    std::string text;
    while (text.size() < length) text += static_cast<char>('a' + draw(3));
    return text;
  };
  for (uint64_t round = 0; round < test::repetitions(60); ++round) {
    // In any order, so that merges of higher ranks may have to come first, and tokens may be out of reach.
    Tekken file;
    for (size_t i = 0; i < 40; ++i) {
      const std::string token = word(2 + draw(i < 20 ? 2 : 7));
      if (std::ranges::find(file.tokens, token) == file.tokens.end()) file.tokens.push_back(token);
    }
    if (draw(2) == 0) std::ranges::shuffle(file.tokens, random);
    const TokenizerPtr tokenizer = file.read();
    for (int i = 0; i < 40; ++i) {
      const std::string text = word(1 + draw(i < 30 ? 14 : 80));
      Ids wanted = merged_by_rank(text, file.tokens);
      for (TokenId& id : wanted) id += static_cast<TokenId>(file.special_count);
      CAPTURE(text);
      REQUIRE(tokenizer->encode(text, false) == wanted);
      REQUIRE(tokenizer->decode(wanted, false) == text);
    }
  }
}

TEST_CASE("a vocabulary by rank gives the ids of its tokenizer.json") {
  const auto folder = test::shared_data_dir() / "tokenizers/qwen2";
  if (!std::filesystem::exists(folder)) SKIP_TEST("no tokenizers in the shared data");
  const std::string json = read_text_file(folder / "tokenizer.json").value();
  const TokenizerPtr qwen = Tokenizer::from_json(json).value();
  Tekken file{.tokens = {}, .pattern = std::string(kQwen2Pattern)};
  for (TokenId id = 0; !qwen->is_special(id); ++id) file.tokens.push_back(qwen->token_bytes(id));
  REQUIRE(file.tokens.size() == 151643);
  const TokenizerPtr tekken = file.read();
  const TokenizerPtr tiktoken = read_tiktoken(file.tokens, kPlainConfig);
  const auto as_kimi = Tokenizer::from_json(replaced(json, in_json(kQwen2Pattern), in_json(kKimiRegex)));
  if (as_kimi.has_error()) FAIL(as_kimi.error().message);

  std::vector<std::string> texts = {"}\n/// 漢字's 〇1 漢a'S ｶﾅ한글's", "12345 ١٢٣٤", "\r\n \t x", "DON'T Don't don’t"};
  std::string pairs = read_text_file(folder / "pairs.inp").value();
  constexpr std::string_view kMark = "\n__ggml_vocab_test__\n";
  for (size_t at = 0; at < pairs.size();) {
    const size_t end = std::min(pairs.find(kMark, at), pairs.size());
    texts.push_back(pairs.substr(at, end - at));
    at = end + kMark.size();
  }
  for (const auto& book : std::filesystem::directory_iterator(test::shared_data_dir() / "corpus")) {
    texts.push_back(read_text_file(book.path()).value().substr(0, 100'000));
  }
  CHECK(texts.size() > 40);
  for (const std::string& text : texts) {
    CAPTURE(text.substr(0, 100));
    Ids wanted = qwen->encode(text, false, false);
    const Ids of_kimi = (*as_kimi)->encode(text, false, false);
    CHECK(tiktoken->encode(text, false, false) == of_kimi);
    for (TokenId& id : wanted) id += static_cast<TokenId>(file.special_count);
    CHECK(tekken->encode(text, false, false) == wanted);
    CHECK(tekken->decode(wanted, false) == qwen->decode(qwen->encode(text, false, false), false));
  }
}

TEST_CASE("Han characters are words of their own in a tiktoken.model") {
  // Each two neighbours of this text are a token, so that the ids show where it was cut. The words are those of the
  // library tiktoken with the pattern of tokenization_kimi.py.
  const std::vector<std::string> words = {"漢字", "'s", " ", "漢", "a's", "1〇2", "34", "}\n", "///", "ｶﾅABc"};
  std::vector<std::string> tokens = single_bytes();
  std::string text;
  for (const std::string& word : words) text += word;
  for (size_t length = 2; length <= 9; ++length) {
    for (size_t at = 0; at + length <= text.size(); ++at) {
      const std::string token = text.substr(at, length);
      if (std::ranges::find(tokens, token) == tokens.end()) tokens.push_back(token);
    }
  }
  const TokenizerPtr tokenizer = read_tiktoken(tokens, kPlainConfig);
  std::vector<std::string> found;
  for (const TokenId id : tokenizer->encode(text, false)) found.push_back(tokenizer->token_bytes(id));
  CHECK(found == words);
}

TEST_CASE("a tiktoken.model has reserved tokens after its ranks") {
  const TokenizerPtr tokenizer = read_tiktoken(single_bytes());
  CHECK(tokenizer->vocab_size() == 512);
  CHECK(tokenizer->bos_id() == 256);
  CHECK(tokenizer->eos_id() == 257);
  CHECK(tokenizer->id_to_token(258) == "<|reserved_token_258|>");
  CHECK(tokenizer->encode("a[EOS]<think>b<|reserved_token_511|>", true) == Ids{'a', 257, 260, 'b', 511});
  CHECK(tokenizer->encode("[EOS]", true, false) == Ids{'[', 'E', 'O', 'S', ']'});
  CHECK(tokenizer->decode(Ids{'a', 257, 260, 511, 'b'}, true) == "a<think>b");
  CHECK(tokenizer->decode(Ids{'a', 257, 511}, false) == "a[EOS]<|reserved_token_511|>");
  CHECK(tokenizer->token_bytes(0xE9) == "\xE9");
  CHECK(tokenizer->decode(Ids{0xE9, 0xAF, 0xA8, 0xE9}, false) == "鯨\uFFFD");
  // A name beyond ASCII is itself, not a spelling of bytes; it goes before a token that is spelt alike.
  std::vector<std::string> tokens = single_bytes();
  tokens.emplace_back("¡é");
  const TokenizerPtr other = read_tiktoken(
      tokens, R"({"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {"257": {"content": "¡é"}}})");
  CHECK(other->encode("¡é", false) == Ids{257});
  CHECK(other->decode(Ids{257, 256}, false) == "¡é¡é");
  CHECK_FALSE(other->is_special(257));
}

TEST_CASE("a tekken.json begins with its special tokens") {
  Tekken file;
  const TokenizerPtr unnamed = file.read();
  CHECK(unnamed->vocab_size() == 24 + 256);
  CHECK(unnamed->encode("a[/INST]b", true) == Ids{1, 24 + 'a', 4, 24 + 'b'});
  CHECK(unnamed->encode("a", false) == Ids{24 + 'a'});
  CHECK(unnamed->encode_pair("a", "b", true).ids == Ids{1, 24 + 'a', 24 + 'b'});
  CHECK(unnamed->id_to_token(9) == "[TOOL_CALLS]");
  CHECK(unnamed->id_to_token(23) == "<SPECIAL_23>");
  CHECK(unnamed->eos_id() == 2);
  CHECK(unnamed->decode(Ids{1, 24 + 'a', 2}, true) == "a");

  file.version = "v13";
  file.special_count = 5;
  file.vocab_size = 5 + 257;
  file.tokens.emplace_back("ab");
  file.tokens.emplace_back("bc");
  file.members = R"(, "special_tokens": [{"rank": 0, "token_str": "<unk>", "is_control": true},
      {"rank": 1, "token_str": "<s>", "is_control": true}, {"rank": 2, "token_str": "</s>", "is_control": true},
      {"rank": 3, "token_str": "[THINK]", "is_control": false}])";
  const TokenizerPtr named = file.read();
  CHECK(named->encode("abc[THINK]", true) == Ids{1, 5 + 256, 5 + 'c', 3});
  CHECK(named->encode("bc", false) == Ids{5 + 'b', 5 + 'c'});  // the vocabulary ends before it
  CHECK(named->decode(Ids{1, 3, 4}, true) == "[THINK]");
  const auto with_config = Tokenizer::from_tekken(file.json(), R"({"bos_token": "[THINK]", "eos_token": "none"})");
  CHECK((*with_config)->encode("", true) == Ids{3});
  CHECK((*with_config)->eos_id() == 2);
  CHECK(unnamed->tekken_format()->version == 3);
  CHECK(unnamed->tekken_format()->efforts.empty());
  CHECK(named->tekken_format()->version == 13);
  const std::string tokens = file.members;
  const auto with_settings = [&](std::string_view effort) {
    file.members = tokens + R"(, "model_settings_builder": {"reasoning_effort": )" + std::string(effort) + "}";
    return Tokenizer::from_tekken(file.json(), "");
  };
  const auto settings = with_settings(R"({"type": "enum", "values": ["none", "high"], "default": "none"})");
  CHECK((*settings)->tekken_format()->efforts == std::vector<std::string>{"none", "high"});
  CHECK((*settings)->tekken_format()->default_effort == "none");
  CHECK((*with_settings("null"))->tekken_format()->efforts.empty());
  CHECK_THAT(with_settings(R"({"values": ["none"], "default": "high"})").error().message,
             Mentions("tekken.json", "model_settings_builder", "high"));
  CHECK_THAT(with_settings(R"({"values": [5], "default": "high"})").error().message,
             Mentions("model_settings_builder", "5"));
}

TEST_CASE("damaged files of tokens by rank are refused by line or rank") {
  const std::string good = tiktoken_of(single_bytes());
  CHECK_THAT(tiktoken_error("").message, Mentions("tiktoken.model", "empty"));
  CHECK_THAT(tiktoken_error("version https://git-lfs.github.com/spec/v1\n").message,
             Mentions("tiktoken.model: line 1", "git-lfs", "base64"));
  CHECK_THAT(tiktoken_error("\n" + good + "YWI= x\n").message, Mentions("line 258", "YWI= x"));
  CHECK_THAT(tiktoken_error(good + "YWI=\n").message, Mentions("line 257", "\"YWI=\""));
  CHECK_THAT(tiktoken_error(good + "YWI=  256\n").message, Mentions("line 257"));
  CHECK_THAT(tiktoken_error(good + "Y-I= 256\n").message, Mentions("line 257", "Y-I= 256"));
  CHECK_THAT(tiktoken_error(good + "YWI= 300\n").message, Mentions("line 257", "300", "257"));
  CHECK_THAT(tiktoken_error(good + "YWI= 7\n").message, Mentions("lines 8 and 257", "rank 7"));
  CHECK_THAT(tiktoken_error(good + "YQ== 256\n", kPlainConfig).message, Mentions("ranks 97 and 256", "same bytes"));
  CHECK_THAT(tiktoken_error(good + " 256\n", kPlainConfig).message, Mentions("rank 256", "0 bytes"));
  CHECK_THAT(tiktoken_error(good + in_base64(std::string(5000, 'x')) + " 256\n", kPlainConfig).message,
             Mentions("rank 256", "5000 bytes", "1024"));
  CHECK_THAT(tiktoken_error(good.substr(0, good.rfind('\n', good.size() - 2) + 1)).message,
             Mentions("no token is the single byte 0xff"));
  CHECK(Tokenizer::from_tiktoken(replaced(good, " 0\n", " 0\r\n"), kKimiConfig).has_value());

  CHECK_THAT(tiktoken_error(good, "").message, Mentions("tokenizer_config.json", "tokenizer_class"));
  CHECK_THAT(tiktoken_error(good, R"({"tokenizer_class": "ChatGLM4Tokenizer"})").message,
             Mentions("tokenizer_config.json", "ChatGLM4Tokenizer", "TikTokenTokenizer"));
  CHECK_THAT(tiktoken_error(good, R"({"tokenizer_class": "TikTokenTokenizer",
      "auto_map": {"AutoTokenizer": ["tokenization_other.TikTokenTokenizer", null]}})")
                 .message,
             Mentions("tokenization_other.TikTokenTokenizer"));
  CHECK_THAT(tiktoken_error(good, replaced(std::string(kKimiConfig), "260", "97")).message,
             Mentions("tokenizer_config.json", "<think>", "97"));
  CHECK_THAT(tiktoken_error(good, replaced(std::string(kKimiConfig), "260", "")).message,
             Mentions("tokenizer_config.json", "added_tokens_decoder", "empty"));
}

TEST_CASE("damaged tekken.json files are refused by name") {
  const Tekken good;
  const auto error_of = [&](std::string_view from, std::string_view to) {
    return tekken_error(replaced(good.json(), from, to)).message;
  };
  CHECK_THAT(tekken_error("{").message, Mentions("tekken.json: line 1"));
  CHECK_THAT(tekken_error("{}").message, Mentions("tekken.json", "config"));
  CHECK_THAT(error_of("\"v3\"", "\"3\""), Mentions("tekken.json", "version", "\"3\""));
  CHECK_THAT(error_of("\"v3\"", "\"v11\""), Mentions("special_tokens", "v11"));
  CHECK_THAT(error_of("\"pattern\": ", "\"patern\": "), Mentions("pattern"));
  CHECK_THAT(error_of(in_json(good.pattern), "\"(\""), Mentions("tekken.json", "regex"));
  CHECK_THAT(error_of("\"default_vocab_size\": 280", "\"default_vocab_size\": 24"), Mentions("24"));
  CHECK_THAT(error_of("\"default_vocab_size\": 280", "\"default_vocab_size\": 281"), Mentions("256", "257"));
  CHECK_THAT(error_of("\"default_vocab_size\": 280", "\"default_vocab_size\": -1"), Mentions("default_vocab_size"));
  CHECK_THAT(error_of("\"default_num_special_tokens\": 24", "\"default_num_special_tokens\": 19"),
             Mentions("20 entries", "19"));
  // Each of these tokens would get a name.
  const std::string many = replaced(good.json(), "\"default_vocab_size\": 280", "\"default_vocab_size\": 8000256");
  CHECK_THAT(
      tekken_error(replaced(many, "\"default_num_special_tokens\": 24", "\"default_num_special_tokens\": 8000000"))
          .message,
      Mentions("default_num_special_tokens", "8000000", "65536"));
  CHECK_THAT(error_of("\"rank\": 7,", "\"rank\": 8,"), Mentions("vocab", "entry 7", "rank 7"));
  CHECK_THAT(error_of("\"token_bytes\": \"Bw==\"", "\"token_bytes\": \"B!\""), Mentions("rank 7", "B!"));
  CHECK_THAT(error_of("\"token_bytes\": \"Bw==\"", "\"token_bytes\": null"), Mentions("rank 7", "null"));
  CHECK_THAT(error_of("\"token_bytes\": \"Bw==\"", "\"token_bytes\": \"YQ==\""), Mentions("ranks 7 and 97"));
  Tekken named = good;
  named.members = R"(, "special_tokens": [{"rank": 0, "token_str": "<s>"}, {"rank": 2, "token_str": "</s>"}])";
  CHECK_THAT(tekken_error(named.json()).message, Mentions("special_tokens", "entry 1", "2"));
  named.members = R"(, "special_tokens": [{"rank": 0}])";
  CHECK_THAT(tekken_error(named.json()).message, Mentions("special_tokens", "entry 0", "token_str"));
}

TEST_CASE("a folder is read by the vocabulary that it has") {
  const test::TemporaryFolder folder;
  folder.write("tiktoken.model", tiktoken_of(single_bytes()));
  CHECK_THAT(Tokenizer::load(folder.path()).error().message,
             Mentions(folder.path().string() + "/tokenizer_config.json", "tiktoken.model"));
  folder.write("tokenizer_config.json", std::string(kKimiConfig));
  CHECK(Tokenizer::load(folder.path()).value()->vocab_size() == 512);
  folder.write("tekken.json", Tekken().json());
  CHECK(Tokenizer::load(folder.path()).value()->vocab_size() == 280);
  folder.write("tokenizer.json", R"({"model": {"vocab": {"a": 0}, "merges": []}})");
  CHECK(Tokenizer::load(folder.path()).value()->vocab_size() >= 1);
  CHECK(Tokenizer::load(folder.path()).value()->id_to_token(0) == "a");
}
