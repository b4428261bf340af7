#include <simdjson.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "gguf/file.h"
#include "gguf/model.h"
#include "support/gguf_text.h"
#include "support/hex.h"
#include "support/mentions.h"
#include "support/paths.h"

using namespace millrace;
using test::GgufText;
using test::Mentions;

namespace {

Result<gguf::File> parse(const std::string& text) {
  return gguf::parse_file(std::as_bytes(std::span(text)), "model.gguf");
}

Error file_error(const std::string& text) {
  const auto file = parse(text);
  REQUIRE(file.has_error());
  REQUIRE(file.error().code == ErrorCode::kData);
  return file.error();
}

GgufText small_file() {
  GgufText file;
  file.add("general.architecture", "llama").add("a.flag", true).add("a.list", std::vector<int32_t>{3, -4});
  file.add("a.texts", std::vector<std::string>{"x", "", "yz"}).add("a.number", 0.5f);
  return file.tensor("w", {2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6}).tensor("v", {1}, std::vector<float>{7});
}

std::string in_bytes(uint64_t number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

}  // namespace

TEST_CASE("a GGUF file gives its metadata and tensors") {
  const std::string text = small_file().text();
  const auto file = parse(text).value();
  const gguf::Metadata& metadata = file.metadata;
  CHECK(metadata.size() == 5);
  CHECK(metadata.text("general.architecture") == "llama");
  CHECK(metadata.flag("a.flag") == true);
  CHECK(metadata.integers("a.list") == std::vector<int64_t>{3, -4});
  CHECK(metadata.numbers("a.list") == std::vector<double>{3, -4});
  CHECK(metadata.texts("a.texts") == std::vector<std::string_view>{"x", "", "yz"});
  CHECK(metadata.number("a.number") == 0.5);
  CHECK(metadata.text("absent") == std::nullopt);
  REQUIRE(file.tensors.size() == 2);
  const gguf::Tensor& matrix = file.tensors[0];
  CHECK(matrix.name == "w");
  CHECK(matrix.type.name == "F32");
  CHECK(matrix.shape == std::vector<int64_t>{2, 3});
  REQUIRE(matrix.bytes.size() == 24);
  float last = 0;
  std::memcpy(&last, matrix.bytes.data() + 20, sizeof last);
  CHECK(last == 6.0f);
}

TEST_CASE("version 2 is read and others are refused by number") {
  CHECK(parse(GgufText(2).add("k", 1u).text()).has_value());
  CHECK_THAT(file_error(GgufText(1).text()).message, Mentions("model.gguf", "version 1", "2 or 3"));
  CHECK_THAT(file_error(GgufText(0x03000000).text()).message, Mentions("big-endian"));
  CHECK_THAT(file_error("lmgg").message, Mentions("before GGUF"));
  CHECK_THAT(file_error("<!DO").message, Mentions("3c21444f", "47475546"));
  CHECK_THAT(file_error("").message, Mentions("model.gguf"));
}

TEST_CASE("a key of another type or out of range is named") {
  const std::string text = small_file().text();
  const auto file = parse(text).value();
  CHECK_THROWS_WITH(file.metadata.text("a.list"), Mentions("model.gguf", "a.list", "array of i32", "string"));
  CHECK_THROWS_WITH(file.metadata.integer("a.number", 0, 9), Mentions("a.number", "f32", "integer"));
  CHECK_THROWS_WITH(file.metadata.required_integer("absent", 0, 9), Mentions("absent", "missing"));
  const std::string large = GgufText().add("k", 12).text();
  CHECK_THROWS_WITH(parse(large)->metadata.integer("k", 0, 9), Mentions("k", "12", "0 to 9"));
}

TEST_CASE("every cut of a file is an error that names it") {
  const std::string text = small_file().text();
  // The last tensor is shorter than its padding.
  const size_t needed = text.size() - 28;
  REQUIRE(parse(text.substr(0, needed)).has_value());
  for (size_t length = 0; length < needed; ++length) {
    CAPTURE(length);
    CHECK_THAT(file_error(text.substr(0, length)).message, Mentions("model.gguf"));
  }
}

TEST_CASE("counts and lengths beyond the file are refused") {
  std::string text = small_file().text();
  const auto with_number = [&](size_t at, uint64_t number) {
    std::string changed = text;
    changed.replace(at, 8, in_bytes(number));
    return changed;
  };
  CHECK_THAT(file_error(with_number(8, uint64_t{1} << 62)).message, Mentions("4611686018427387904", "tensors"));
  CHECK_THAT(file_error(with_number(16, UINT64_MAX)).message, Mentions("18446744073709551615", "metadata keys"));
  CHECK_THAT(file_error(with_number(24, UINT64_MAX)).message, Mentions("a metadata key"));
  const auto array = [](uint32_t type, uint64_t count) {
    return std::string(reinterpret_cast<const char*>(&type), sizeof type) + in_bytes(count);
  };
  for (const uint32_t type : {4u, 8u, 9u, 10u}) {
    CAPTURE(type);
    CHECK_THAT(file_error(GgufText().add_raw("big", 9, array(type, uint64_t{1} << 61)).text()).message,
               Mentions("big", "2305843009213693952"));
  }
}

TEST_CASE("arrays of arrays are passed over up to a depth") {
  const auto nested = [](int depth) {
    std::string bytes;
    for (int i = 0; i < depth; ++i) bytes += std::string("\x09\0\0\0\x01\0\0\0\0\0\0\0", 12);
    return GgufText().add_raw("k", 9, bytes + std::string("\x00\0\0\0\x02\0\0\0\0\0\0\0ab", 14)).add("after", 5).text();
  };
  const std::string text = nested(2);
  const auto file = parse(text).value();
  CHECK(file.metadata.integer("after", 0, 9) == 5);
  CHECK_THROWS_WITH(file.metadata.integers("k"), Mentions("k", "array of array"));
  CHECK_THAT(file_error(nested(9)).message, Mentions("k", "nested"));
}

TEST_CASE("repeated and unknown items of a header are refused") {
  CHECK_THAT(file_error(GgufText().add("k", 1).add("k", 2).text()).message, Mentions("k", "twice"));
  CHECK_THAT(file_error(GgufText().add("", 1).text()).message, Mentions("key 0", "empty"));
  CHECK_THAT(file_error(GgufText().add_raw("k", 13, "").text()).message, Mentions("k", "type 13"));
  const std::vector<float> one = {1};
  CHECK_THAT(file_error(GgufText().tensor("w", {1}, one).tensor("w", {1}, one).text()).message,
             Mentions("'w'", "twice"));
  CHECK_THAT(file_error(GgufText().tensor("w", {256}, 16, std::string(66, 'x')).text()).message,
             Mentions("'w'", "type 16", "IQ2_XXS"));
  CHECK_THAT(file_error(GgufText().tensor("w", {1}, 99, "x").text()).message, Mentions("'w'", "type 99", "not known"));
}

TEST_CASE("shapes and positions of tensors are checked") {
  const std::string block(18, 'x');
  CHECK_THAT(file_error(GgufText().tensor("w", {2, 48}, 2, block).text()).message,
             Mentions("'w'", "[2, 48]", "multiple of 32", "Q4_0"));
  CHECK_THAT(file_error(GgufText().tensor("w", {1, 1, 1, 1, 32}, 2, block).text()).message, Mentions("5 dimensions"));
  CHECK_THAT(file_error(GgufText().tensor("w", {0, 32}, 2, block).text()).message, Mentions("'w'", "dimension of 0"));
  CHECK_THAT(file_error(GgufText().tensor("w", {-1, 32}, 2, block).text()).message, Mentions("dimension of -1"));
  const int64_t huge = int64_t{1} << 40;
  CHECK_THAT(file_error(GgufText().tensor("w", {huge, huge}, 0, block).text()).message, Mentions("too many values"));
  CHECK_THAT(file_error(GgufText().describe("w", {32}, 2, 64).text()).message, Mentions("'w'", "18 bytes from 64"));
  CHECK_THAT(file_error(GgufText().tensor("v", {32}, 2, block).describe("w", {32}, 2, 7).text()).message,
             Mentions("'w'", "begins at 7", "32"));
  CHECK_THAT(file_error(GgufText().tensor("v", {32}, 2, block).describe("w", {32}, 2, 0).text()).message,
             Mentions("'v'", "'w'", "overlap"));
}

TEST_CASE("the data begins where general.alignment says") {
  const std::vector<float> values = {1, 2};
  const std::string text = GgufText().align(64).tensor("a", {2}, values).tensor("b", {2}, values).text();
  const auto file = parse(text).value();
  CHECK(file.tensors[0].bytes.size() == 8);
  CHECK((file.tensors[1].bytes.data() - reinterpret_cast<const std::byte*>(text.data())) % 64 == 0);
  CHECK_THAT(file_error(GgufText().add("general.alignment", 24).text()).message,
             Mentions("general.alignment", "24", "power of two"));
  CHECK_THAT(file_error(GgufText().add("general.alignment", 0).text()).message, Mentions("general.alignment", "0"));
}

TEST_CASE("files of another writer are read") {
  const auto name = GENERATE("gguf_file.json", "gguf_file_align64.json");
  const auto path = test::source_dir() / "tests/gguf/vectors" / name;
  simdjson::dom::parser parser;
  const simdjson::dom::element vector = parser.load(path.string());
  const std::string text = test::from_hex(std::string_view(vector["hex"]));
  const auto file = parse(text).value();
  size_t index = 0;
  for (const simdjson::dom::element wanted : vector["tensors"].get_array()) {
    REQUIRE(index < file.tensors.size());
    const gguf::Tensor& tensor = file.tensors[index++];
    CHECK(tensor.name == std::string_view(wanted["name"]));
    CHECK(tensor.type.id == uint64_t(wanted["ggml_type"]));
    CHECK(tensor.bytes.size() == uint64_t(wanted["bytes"]));
    CHECK(static_cast<uint64_t>(tensor.bytes.data() - reinterpret_cast<const std::byte*>(text.data())) ==
          uint64_t(wanted["file_offset"]));
    std::vector<int64_t> shape;
    for (const simdjson::dom::element side : wanted["ne"].get_array()) shape.insert(shape.begin(), int64_t(side));
    CHECK(tensor.shape == shape);
  }
  CHECK(index == file.tensors.size());
  simdjson::dom::object metadata;
  if (vector["metadata"].get(metadata) != simdjson::SUCCESS) return;
  for (const auto [key, value] : metadata) {
    CAPTURE(key);
    CHECK(file.metadata.has(key));
    if (value.is_string()) CHECK(file.metadata.text(key) == std::string_view(value));
    if (value.is_int64() && file.metadata.find(key)->integer())
      CHECK(file.metadata.integer(key, INT64_MIN, INT64_MAX) == int64_t(value));
  }
}
