#include "gguf/tokenizer_json.h"

#include <simdjson.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>

#include "base/text_file.h"
#include "gguf/special_tokens.h"
#include "support/gguf_text.h"
#include "support/mentions.h"
#include "support/paths.h"
#include "support/skip.h"
#include "text/tokenizer/tokenizer.h"

using namespace millrace;
using simdjson::dom::element;
using test::GgufText;
using test::Mentions;
using text::Tokenizer;

namespace {

Result<std::string> json_of(const std::string& file_text) {
  std::vector<gguf::File> files;
  files.push_back(gguf::parse_file(std::as_bytes(std::span(file_text)), "model.gguf").value());
  const gguf::Model model = gguf::Model::join(std::move(files)).value();
  return gguf::tokenizer_json(model);
}

std::shared_ptr<const Tokenizer> tokenizer_of(const GgufText& file) {
  const auto json = json_of(file.text());
  if (json.has_error()) FAIL(json.error().message);
  auto made = Tokenizer::from_json(*json);
  if (made.has_error()) FAIL(made.error().message);
  return *made;
}

Error tokenizer_error(const GgufText& file) {
  const auto json = json_of(file.text());
  REQUIRE(json.has_error());
  REQUIRE(json.error().code == ErrorCode::kData);
  return json.error();
}

constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kOwn = 4, kUnused = 5, kByte = 6;

/// Takes apart a tokenizer.json of a BPE as a converter does.
GgufText converted(std::string_view tokenizer_json, std::string_view kind, std::string_view pre) {
  simdjson::dom::parser parser;
  const element root = parser.parse(tokenizer_json);
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  const auto put = [&](int64_t id, std::string_view text, int32_t type) {
    const auto index = static_cast<size_t>(id);
    if (tokens.size() <= index) {
      tokens.resize(index + 1);
      types.resize(index + 1, kUnused);
    }
    tokens[index] = text;
    types[index] = type;
  };
  for (const auto [text, id] : root["model"]["vocab"].get_object()) {
    const bool is_byte = kind == "llama" && text.size() == 6 && text.starts_with("<0x");
    put(int64_t(id), text, is_byte ? kByte : kNormal);
  }
  for (const element added : root["added_tokens"].get_array())
    put(int64_t(added["id"]), std::string_view(added["content"]), bool(added["special"]) ? kControl : kOwn);
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty()) tokens[id] = "[PAD" + std::to_string(id) + "]";
    if (kind == "llama" && tokens[id] == "<unk>") types[id] = kUnknown;
  }
  std::vector<std::string> merges;
  std::map<std::string, float> scores;
  for (const element merge : root["model"]["merges"].get_array()) {
    std::string_view whole;
    if (merge.get(whole) != simdjson::SUCCESS) {
      merges.push_back(std::string(std::string_view(merge.at(0))) + ' ' + std::string(std::string_view(merge.at(1))));
    } else {
      merges.emplace_back(whole);
    }
    std::string piece = merges.back();
    piece.erase(piece.find(' ', 1), 1);
    scores.emplace(piece, -static_cast<float>(scores.size()));
  }
  GgufText file;
  file.add("general.architecture", "llama").add("tokenizer.ggml.model", kind).add("tokenizer.ggml.tokens", tokens);
  file.add("tokenizer.ggml.token_type", types).add("tokenizer.ggml.add_bos_token", false);
  if (kind == "gpt2") return file.add("tokenizer.ggml.pre", pre).add("tokenizer.ggml.merges", merges);
  std::vector<float> all;
  for (const std::string& token : tokens) all.push_back(scores.contains(token) ? scores.at(token) : -1e6f);
  return file.add("tokenizer.ggml.scores", all);
}

GgufText small_byte_level() {
  GgufText file;
  file.add("general.architecture", "llama").add("tokenizer.ggml.model", "gpt2").add("tokenizer.ggml.pre", "gpt-2");
  file.add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "ab", "\xC4\xA0",
                                                             "\xC4\xA0"
                                                             "ab",
                                                             "<end>", "<own>", "[PAD7]"});
  file.add("tokenizer.ggml.token_type",
           std::vector<int32_t>{kNormal, kNormal, kNormal, kNormal, kNormal, kControl, kOwn, kUnused});
  return file.add("tokenizer.ggml.merges", std::vector<std::string>{"a b", "\xC4\xA0 ab"});
}

GgufText small_scored(const std::vector<float>& scores) {
  GgufText file;
  file.add("general.architecture", "llama").add("tokenizer.ggml.model", "llama");
  file.add("tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "<s>", "a", "b", "c", "ab", "bc", "\xE2\x96\x81",
                                                             "\xE2\x96\x81"
                                                             "a",
                                                             "<0x64>"});
  file.add("tokenizer.ggml.scores", scores).add("tokenizer.ggml.bos_token_id", 1);
  return file.add("tokenizer.ggml.token_type", std::vector<int32_t>{kUnknown, kControl, kNormal, kNormal, kNormal,
                                                                    kNormal, kNormal, kNormal, kNormal, kByte});
}

const std::vector<float> kScores = {0, 0, -9, -9, -9, -2, -1, -9, -3, 0};

}  // namespace

TEST_CASE("tokenizers that are taken apart and read again encode alike") {
  struct Case {
    const char* name;
    const char* kind;
    const char* pre;
  };
  const auto each = GENERATE(Case{"llama3", "gpt2", "smaug-bpe"}, Case{"ignore_merges", "gpt2", "llama-bpe"},
                             Case{"qwen", "gpt2", "qwen2"}, Case{"deepseek", "gpt2", "deepseek-v3"},
                             Case{"gpt2", "gpt2", "gpt-2"}, Case{"llama2", "llama", ""});
  CAPTURE(each.name);
  const std::string text = read_text_file(test::source_dir() / "tests/text/tokenizer_cases.json").value();
  simdjson::dom::parser parser;
  size_t count = 0;
  for (const element item : parser.parse(text).get_array()) {
    if (std::string_view(item["name"]) != each.name) continue;
    const auto tokenizer = tokenizer_of(converted(std::string_view(item["tokenizer"]), each.kind, each.pre));
    for (const element row : item["cases"].get_array()) {
      std::vector<TokenId> wanted;
      for (const element id : row["plain"].get_array()) wanted.push_back(static_cast<TokenId>(int64_t(id)));
      const std::string input{std::string_view(row["text"])};
      // Metadata does not say which added tokens take space along, or stand alone.
      if (input.find('<') != std::string::npos) continue;
      CAPTURE(input);
      CHECK(tokenizer->encode(input, false) == wanted);
      ++count;
    }
  }
  CHECK(count > 20);
}

TEST_CASE("whole vocabularies are read as their own tokenizer.json") {
  const auto folder = test::shared_data_dir() / "tokenizers";
  if (!std::filesystem::exists(folder)) SKIP_TEST("no tokenizers in the shared data");
  const std::string name = GENERATE("qwen2", "llama2");
  const std::string own = read_text_file(folder / name / "tokenizer.json").value();
  const auto wanted = Tokenizer::from_json(own).value();
  const auto found = tokenizer_of(converted(own, name == "llama2" ? "llama" : "gpt2", "qwen2"));
  std::string texts = read_text_file(folder / name / "pairs.inp").value();
  constexpr std::string_view kMark = "\n__ggml_vocab_test__\n";
  size_t count = 0;
  for (size_t at = 0; at < texts.size();) {
    const size_t end = std::min(texts.find(kMark, at), texts.size());
    const std::string input = texts.substr(at, end - at);
    CAPTURE(name, input);
    CHECK(found->encode(input, false) == wanted->encode(input, false));
    CHECK(found->decode(found->encode(input, false), false) == wanted->decode(wanted->encode(input, false), false));
    at = end + kMark.size();
    ++count;
  }
  CHECK(count > 30);
}

TEST_CASE("added tokens and padding of a byte-level vocabulary") {
  const auto tokenizer = tokenizer_of(small_byte_level());
  CHECK(tokenizer->encode("ab ab", false) == std::vector<TokenId>{2, 4});
  CHECK(tokenizer->encode("a<end>b<own>", false) == std::vector<TokenId>{0, 5, 1, 6});
  CHECK(tokenizer->is_special(5));
  CHECK_FALSE(tokenizer->is_special(6));
  CHECK(tokenizer->vocab_size() == 7);
  CHECK(tokenizer->id_to_token(7).empty());
  CHECK(tokenizer->decode({{4, 6, 5}}, true) == " ab<own>");
}

TEST_CASE("delimiters of turns are control tokens whatever a file says") {
  GgufText file;
  file.add("general.architecture", "gemma3").add("tokenizer.ggml.model", "gpt2").add("tokenizer.ggml.pre", "gpt-2");
  file.add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "<start_of_turn>", "<end_of_turn>", "<other>"});
  file.add("tokenizer.ggml.token_type", std::vector<int32_t>{kNormal, kNormal, kNormal, kNormal});
  file.add("tokenizer.ggml.merges", std::vector<std::string>{});
  const auto tokenizer = tokenizer_of(file);
  CHECK(tokenizer->encode("<start_of_turn>a<end_of_turn>", false) == std::vector<TokenId>{1, 0, 2});
  CHECK(tokenizer->is_special(2));
  CHECK_FALSE(tokenizer->is_special(3));
}

TEST_CASE("beginning and end are added as metadata says") {
  const auto ids = [](const GgufText& file) { return tokenizer_of(file)->encode("a", true); };
  CHECK(ids(small_byte_level().add("tokenizer.ggml.bos_token_id", 5)) == std::vector<TokenId>{0});
  CHECK(ids(small_byte_level().add("tokenizer.ggml.bos_token_id", 5).add("tokenizer.ggml.add_bos_token", true)) ==
        std::vector<TokenId>{5, 0});
  CHECK(ids(small_byte_level().add("tokenizer.ggml.eos_token_id", 5).add("tokenizer.ggml.add_eos_token", true)) ==
        std::vector<TokenId>{0, 5});
  CHECK(ids(small_scored(kScores)) == std::vector<TokenId>{1, 8});
  CHECK(ids(small_scored(kScores).add("tokenizer.ggml.add_bos_token", false)) == std::vector<TokenId>{8});
  CHECK_THAT(tokenizer_error(small_byte_level().add("tokenizer.ggml.add_bos_token", true)).message,
             Mentions("add_bos_token", "no such token"));
  // An id beyond the vocabulary counts as absent, as where a vocabulary was cut.
  CHECK(ids(small_byte_level().add("tokenizer.ggml.bos_token_id", 99)) == std::vector<TokenId>{0});
  CHECK(ids(small_byte_level().add("tokenizer.ggml.bos_token_id", UINT32_MAX)) == std::vector<TokenId>{0});
}

TEST_CASE("scores decide which pieces are joined first") {
  const auto ids = [](const std::vector<float>& scores, std::string_view text, bool adds_space) {
    GgufText file = small_scored(scores);
    file.add("tokenizer.ggml.add_space_prefix", adds_space);
    return tokenizer_of(file)->encode(text, false);
  };
  CHECK(ids(kScores, "abc", false) == std::vector<TokenId>{2, 6});
  std::vector<float> other = kScores;
  other[5] = -0.5f;
  CHECK(ids(other, "abc", false) == std::vector<TokenId>{5, 4});
  CHECK(ids(kScores, "a a", true) == std::vector<TokenId>{8, 8});
  CHECK(ids(kScores, "a a", false) == std::vector<TokenId>{2, 8});
  CHECK(ids(kScores, "ad", false) == std::vector<TokenId>{2, 9});
  const auto tokenizer = tokenizer_of(small_scored(kScores));
  CHECK(tokenizer->decode({{8, 9, 8}}, true) == "ad a");
}

TEST_CASE("a vocabulary of Gemma 4 joins pieces as its merges say") {
  GgufText file;
  file.add("general.architecture", "gemma4").add("tokenizer.ggml.model", "gemma4");
  file.add("tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "<bos>", "a", "b", "c", "ab", "bc",
                                                             "\xE2\x96\x81", "\n", "\n\n", "<0x64>"});
  file.add("tokenizer.ggml.token_type", std::vector<int32_t>{kControl, kControl, kNormal, kNormal, kNormal, kNormal,
                                                             kNormal, kNormal, kNormal, kNormal, kByte});
  file.add("tokenizer.ggml.bos_token_id", 1).add("tokenizer.ggml.unknown_token_id", 0);
  file.add("tokenizer.ggml.add_bos_token", false);
  file.add("tokenizer.ggml.merges", std::vector<std::string>{"\n \n", "b c", "a b"});
  const auto tokenizer = tokenizer_of(file);
  CHECK(tokenizer->encode("abc ab\n\nd", true) == std::vector<TokenId>{1, 2, 6, 7, 5, 9, 10});
  CHECK(tokenizer->decode({{2, 6, 7, 5, 9, 10}}, true) == "abc ab\n\nd");
}

TEST_CASE("outputs end where metadata or the vocabulary says") {
  const auto ends_of = [](const GgufText& file) {
    const std::string text = file.text();
    return gguf::special_tokens(gguf::parse_file(std::as_bytes(std::span(text)), "model.gguf").value().metadata).ends;
  };
  const auto with = [](std::vector<std::string> tokens) {
    const std::vector<int32_t> types(tokens.size(), kOwn);
    GgufText file;
    return file.add("tokenizer.ggml.tokens", tokens).add("tokenizer.ggml.token_type", types);
  };
  CHECK(ends_of(with({"a", "<turn|>", "<|tool_response>"})) == std::vector<int64_t>{1, 2});
  CHECK(ends_of(with({"a", "b", "c"}).add("tokenizer.ggml.eos_token_id", 1)) == std::vector<int64_t>{1});
  GgufText several = with({"a", "b", "c"});
  several.add("tokenizer.ggml.eos_token_id", 1).add("tokenizer.ggml.eos_token_ids", std::vector<int32_t>{1, 2, -1, 9});
  CHECK(ends_of(several) == std::vector<int64_t>{1, 2});
}

TEST_CASE("metadata that contradicts itself is refused by key") {
  const auto base = [] { return GgufText().add("general.architecture", "llama"); };
  const std::vector<std::string> two = {"a", "b"};
  CHECK_THAT(tokenizer_error(base()).message, Mentions("model.gguf", "tokenizer.ggml.tokens", "tokenizer.json"));
  CHECK_THAT(tokenizer_error(base().add("tokenizer.ggml.tokens", two)).message,
             Mentions("tokenizer.ggml.model", "missing"));
  CHECK_THAT(tokenizer_error(base().add("tokenizer.ggml.tokens", two).add("tokenizer.ggml.model", "rwkv")).message,
             Mentions("tokenizer.ggml.model", "rwkv", "gpt2", "llama"));
  CHECK_THAT(tokenizer_error(base().add("tokenizer.ggml.tokens", std::vector<std::string>{"\xFF"})).message,
             Mentions("tokenizer.ggml.tokens", "token 0", "UTF-8"));
  CHECK_THAT(tokenizer_error(
                 base().add("tokenizer.ggml.tokens", two).add("tokenizer.ggml.token_type", std::vector<int32_t>{1}))
                 .message,
             Mentions("token_type", "1 items", "2"));
  const auto bytes = [&] {
    return base()
        .add("tokenizer.ggml.tokens", two)
        .add("tokenizer.ggml.model", "gpt2")
        .add("tokenizer.ggml.merges", two);
  };
  CHECK_THAT(tokenizer_error(bytes()).message, Mentions("tokenizer.ggml.pre", "''", "qwen2"));
  CHECK_THAT(tokenizer_error(bytes().add("tokenizer.ggml.pre", "default")).message,
             Mentions("tokenizer.ggml.pre", "default"));
  CHECK_THAT(tokenizer_error(bytes().add("tokenizer.ggml.pre", "odd")).message,
             Mentions("tokenizer.ggml.pre", "odd", "tekken"));
  CHECK_THAT(tokenizer_error(bytes().add("tokenizer.ggml.pre", "qwen2")).message,
             Mentions("merges", "'a'", "two tokens"));
  CHECK_THAT(tokenizer_error(base()
                                 .add("tokenizer.ggml.tokens", two)
                                 .add("tokenizer.ggml.model", "gpt2")
                                 .add("tokenizer.ggml.pre", "qwen2"))
                 .message,
             Mentions("tokenizer.ggml.merges", "missing"));
  CHECK_THAT(tokenizer_error(base().add("tokenizer.ggml.tokens", two).add("tokenizer.ggml.model", "llama")).message,
             Mentions("tokenizer.ggml.scores", "missing"));
  std::vector<float> scores = kScores;
  scores[3] = NAN;
  CHECK_THAT(tokenizer_error(small_scored(scores)).message, Mentions("scores", "token 3", "nan"));
}

TEST_CASE("a pre-tokenizer that is missing follows from the model") {
  const auto without_pre = [](const char* architecture, std::vector<std::string> tokens) {
    GgufText file;
    file.add("general.architecture", architecture).add("tokenizer.ggml.model", "gpt2");
    return file.add("tokenizer.ggml.tokens", tokens).add("tokenizer.ggml.merges", std::vector<std::string>());
  };
  CHECK_THAT(json_of(without_pre("qwen2", {"1"}).text()).value(), Catch::Contains(R"(\\p{N}|)"));
  CHECK_THAT(json_of(without_pre("llama", {"1", "<|begin_of_text|>"}).text()).value(),
             Catch::Contains(R"(\\p{N}{1,3}|)"));
}

TEST_CASE("special tokens and chat templates are found") {
  const auto config_of = [](const GgufText& file) {
    const std::string text = file.text();
    std::vector<gguf::File> files;
    files.push_back(gguf::parse_file(std::as_bytes(std::span(text)), "model.gguf").value());
    return gguf::tokenizer_config_json(gguf::Model::join(std::move(files)).value()).value();
  };
  CHECK(config_of(GgufText()) == "{}");
  const std::string one = config_of(
      small_scored(kScores).add("tokenizer.ggml.unknown_token_id", 0).add("tokenizer.chat_template", "{{ x }}"));
  CHECK(one == R"({"bos_token":"<s>","unk_token":"<unk>","chat_template":"{{ x }}"})");
  const std::string several =
      config_of(GgufText().add("tokenizer.chat_template", "A").add("tokenizer.chat_template.tool_use", "B"));
  CHECK(several == R"({"chat_template":[{"name":"default","template":"A"},{"name":"tool_use","template":"B"}]})");
}
