#include "model/checkpoint.h"

#include <catch2/catch.hpp>
#include <climits>
#include <cstdio>
#include <fstream>
#include <random>

#include "model/checkpoint_files.h"
#include "support/skip.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::model;
using millrace::test::Mentions;
using test::safetensors_text;

namespace {

/// Returns the message, without its path, that refuses a file of this header and data.
std::string refused(std::string_view file_text) {
  const test::TemporaryFolder folder;
  folder.write("model.safetensors", file_text);
  const auto checkpoint = Checkpoint::open(folder.path());
  if (checkpoint) return "accepted";
  REQUIRE(checkpoint.error().code == ErrorCode::kData);
  const std::string place = folder.path().string() + "/model.safetensors: ";
  const std::string& message = checkpoint.error().message;
  REQUIRE(message.substr(0, place.size()) == place);
  return message.substr(place.size());
}

std::string refused_header(std::string_view header, size_t data_bytes = 16) {
  return refused(safetensors_text(header, std::string(data_bytes, '\1')));
}

std::vector<float> values_of(const tensor::HostTensor& tensor) {
  REQUIRE(tensor.dtype == tensor::DType::kF32);
  std::vector<float> values(static_cast<size_t>(tensor.shape.elements()));
  std::memcpy(values.data(), tensor.data, tensor.bytes());
  return values;
}

/// Returns the resident bytes of the mapping that contains `address`.
size_t resident_around(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long long begin = 0, end = 0, kilobytes = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &begin, &end) == 2) {
      const auto place = reinterpret_cast<uintptr_t>(address);
      inside = begin <= place && place < end;
    } else if (inside && std::sscanf(line.c_str(), "Rss: %llu kB", &kilobytes) == 1) {
      return kilobytes << 10;
    }
  }
  return 0;
}

}  // namespace

TEST_CASE("a released tensor takes no memory until it is read again") {
  const test::TemporaryFolder folder;
  const std::vector<float> many(1 << 20, 1.5f);
  folder.write("model.safetensors", safetensors_text({{"kept", {3}, {1, 2, 3}}, {"large", {1 << 20}, many}}));
  const auto checkpoint = Checkpoint::open(folder.path());
  REQUIRE(checkpoint.has_value());
  const auto large = (*checkpoint)->find("large");
  REQUIRE(large.has_value());
  REQUIRE(values_of(*large) == many);
  const size_t before = resident_around(large->data);
  REQUIRE(before >= large->bytes());
  (*checkpoint)->release("large");
  (*checkpoint)->release("neither");
  REQUIRE(resident_around(large->data) <= before - large->bytes() + (64 << 10));
  REQUIRE(values_of(*large) == many);
  REQUIRE(values_of(*(*checkpoint)->find("kept")) == std::vector<float>{1, 2, 3});
}

TEST_CASE("a single safetensors file gives its tensors") {
  const test::TemporaryFolder folder;
  folder.write("model.safetensors", safetensors_text({{"a", {2, 3}, {1, 2, 3, 4, 5, 6}}, {"b", {2}, {7, 8}}}));
  const auto checkpoint = Checkpoint::open(folder.path());
  REQUIRE(checkpoint.has_value());
  const auto a = (*checkpoint)->find("a");
  REQUIRE(a.has_value());
  REQUIRE(a->name == "a");
  REQUIRE(a->shape == tensor::Shape{2, 3});
  REQUIRE(values_of(*a) == std::vector<float>{1, 2, 3, 4, 5, 6});
  REQUIRE(values_of(*(*checkpoint)->find("b", {2})) == std::vector<float>{7, 8});
  REQUIRE((*checkpoint)->contains("b"));
  REQUIRE_FALSE((*checkpoint)->contains("c"));
  const auto missing = (*checkpoint)->find("c");
  REQUIRE(missing.error().code == ErrorCode::kNotFound);
  REQUIRE(missing.error().message == folder.path().string() + "/model.safetensors: has no tensor 'c'");
  REQUIRE_THAT((*checkpoint)->find("a", {3, 2}).error().message,
               Mentions(folder.path().string(), "'a'", "[2, 3]", "config.json", "[3, 2]"));
}

TEST_CASE("metadata and gaps and other dtypes do no harm until read") {
  const test::TemporaryFolder folder;
  folder.write("model.safetensors",
               safetensors_text(R"({"__metadata__":{"format":"pt"},)"
                                R"("q":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]},)"
                                R"("n":{"dtype":"F4_NEW","shape":[3],"data_offsets":[4,6]},)"
                                R"("r":{"dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[6,7]},)"
                                R"("w":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]},)"
                                R"("f":{"dtype":"F16","shape":[1,1,1,1,1],"data_offsets":[14,16]},)"
                                R"("e":{"dtype":"F32","shape":[0,4],"data_offsets":[8,8]}})",
                                std::string(16, '\1')));
  const auto checkpoint = Checkpoint::open(folder.path());
  REQUIRE(checkpoint.has_value());
  REQUIRE((*checkpoint)->find("w")->dtype == tensor::DType::kBF16);
  REQUIRE((*checkpoint)->find("e")->bytes() == 0);
  const std::string place = folder.path().string() + "/model.safetensors: ";
  REQUIRE_THAT((*checkpoint)->find("q").error().message, Mentions(place, "'q'", "F8_E4M3", "F32", "BF16", "F16"));
  REQUIRE_THAT((*checkpoint)->find("n").error().message, Mentions(place, "'n'", "F4_NEW", "F32", "BF16", "F16"));
  REQUIRE((*checkpoint)->find("f").error().message == place + "tensor 'f' has rank 5, wanted at most 4");
}

TEST_CASE("a malformed header is refused with what was found and wanted") {
  REQUIRE_THAT(refused(""), Mentions("0", "8"));
  REQUIRE_THAT(refused("1234567"), Mentions("7", "8"));
  REQUIRE_THAT(refused(std::string(9, '\xff')), Mentions("18446744073709551615", "1", "truncated"));
  REQUIRE_THAT(refused(std::string("\x10\0\0\0\0\0\0\0{}", 10)), Mentions("16", "2", "truncated"));
  REQUIRE(refused_header("").find("header: is empty") == 0);
  REQUIRE(refused_header("[]") == "header: is [], wanted a JSON object");
  REQUIRE(refused_header("{\"a\":}").find("header: is not valid JSON: ") == 0);
  REQUIRE(refused_header("{\"a\":\"\xff\"}").find("header: is not valid JSON: ") == 0);
  REQUIRE(refused_header("{\"a\":" + std::string(5000, '[') + std::string(5000, ']') + "}")
              .find("header: is not valid JSON: ") == 0);
}

TEST_CASE("a malformed tensor entry is refused by tensor name") {
  REQUIRE(refused_header(R"({"a":3})") == "tensor 'a' is 3, wanted an object");
  REQUIRE(refused_header(R"({"a":{"shape":[1],"data_offsets":[0,4]}})") == "tensor 'a': dtype is missing");
  REQUIRE(refused_header(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})") == "tensor 'a': shape is missing");
  REQUIRE(refused_header(R"({"a":{"dtype":"F32","shape":7,"data_offsets":[0,4]}})") ==
          "tensor 'a': shape 7 is not a list of sizes");
  REQUIRE_THAT(refused_header(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})"), Mentions("'a'", "[-1]"));
  REQUIRE(refused_header(R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})") ==
          "tensor 'a': rank is above 16");
  for (const char* offsets : {"[0]", "[0,4,8]", "[-4,0]", "[0.0,4.0]", "4", "[0,18446744073709551616]"}) {
    CAPTURE(offsets);
    const std::string header = fmt::format(R"({{"a":{{"dtype":"F32","shape":[1],"data_offsets":{}}}}})", offsets);
    const std::string message = refused_header(header);
    const bool named = message == "tensor 'a': data_offsets is missing or not a pair of byte offsets" ||
                       message.find("header: is not valid JSON: ") == 0;
    REQUIRE(named);
  }
}

TEST_CASE("offsets must fit the file and the shape and each other") {
  REQUIRE_THAT(refused_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}})"),
               Mentions("'a'", "data_offsets [8, 4]"));
  REQUIRE_THAT(refused_header(R"({"a":{"dtype":"F32","shape":[8],"data_offsets":[0,32]}})"),
               Mentions("'a'", "data_offsets [0, 32]", "16"));
  REQUIRE(refused_header(R"({"a":{"dtype":"F32","shape":[1],)"
                         R"("data_offsets":[18446744073709551612,18446744073709551615]}})")
              .find("tensor 'a': data_offsets [18446744073709551612, 18446744073709551615] reach beyond") == 0);
  REQUIRE_THAT(refused_header(R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,12]}})"),
               Mentions("'a'", "data_offsets", "12", "[2, 2]", "F32", "16"));
  REQUIRE_THAT(
      refused_header(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,4]}})"),
      Mentions("'a'", "data_offsets", "4", "[4611686018427387904, 4611686018427387904]", "F32", "2^64"));
  REQUIRE(refused_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                         R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})") == "tensors 'a' and 'b' overlap");
  REQUIRE(refused_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                         R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})") == "tensor 'a' is listed twice");
}

TEST_CASE("every truncation of a file is refused") {
  const std::string whole = safetensors_text({{"a", {2, 2}, {1, 2, 3, 4}}, {"b", {1}, {5}}});
  for (size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    REQUIRE(refused(whole.substr(0, length)) != "accepted");
  }
}

TEST_CASE("no mutation of a header gives bytes outside the file") {
  const std::string whole = safetensors_text({{"a", {2, 2}, {1, 2, 3, 4}}, {"bb", {1}, {5}}, {"c", {3}, {6, 7, 8}}});
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "model.safetensors";
  folder.write("model.safetensors", whole);
  std::mt19937 random(4);
  size_t accepted = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string text = whole;
    for (int edit = 0; edit < 2; ++edit) {
      const size_t at = random() % (whole.size() - 32);
      text[at] = at < 8 ? static_cast<char>(random()) : "0123456789abF,:\"[]{}"[random() % 20];
    }
    // Changing bytes in place is much faster than writing anew.
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
        .write(text.data(), static_cast<std::streamsize>(text.size()));
    const auto file = SafetensorsFile::open(path);
    if (!file) continue;
    ++accepted;
    unsigned sum = 0;
    for (const char* name : {"a", "bb", "c"}) {
      const auto tensor = (*file)->find(name);
      if (!tensor) continue;
      for (size_t i = 0; i < tensor->bytes(); ++i) sum += static_cast<unsigned>(tensor->data[i]);
    }
    REQUIRE(sum < UINT_MAX);
  }
  REQUIRE(accepted > 0);
}

TEST_CASE("a tensor that is never read costs nothing") {
  const test::TemporaryFolder folder;
  constexpr uint64_t kHugeBytes = uint64_t{1} << 38;
  const std::string header = fmt::format(R"({{"huge":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{}]}},)"
                                         R"("small":{{"dtype":"F32","shape":[1],"data_offsets":[{},{}]}}}})",
                                         kHugeBytes / 4, kHugeBytes, kHugeBytes, kHugeBytes + 4);
  folder.write("model.safetensors", safetensors_text(header, ""));
  std::error_code error;
  std::filesystem::resize_file(folder.path() / "model.safetensors", 8 + header.size() + kHugeBytes + 4, error);
  if (error) SKIP_TEST("no sparse files here");
  const auto checkpoint = Checkpoint::open(folder.path());
  REQUIRE(checkpoint.has_value());
  REQUIRE(values_of(*(*checkpoint)->find("small")) == std::vector<float>{0.0f});
}

TEST_CASE("a sharded checkpoint opens only the shards it needs") {
  const test::TemporaryFolder folder;
  folder.write("model-1.safetensors", safetensors_text({{"a", {2}, {1, 2}}}));
  folder.write("model-3.safetensors", safetensors_text({{"c", {1}, {3}}}).substr(0, 40));
  folder.write("model.safetensors.index.json",
               R"({"metadata":{"total_size":12},"weight_map":{"a":"model-1.safetensors","lost":"model-1.safetensors",)"
               R"("b":"model-2.safetensors","c":"model-3.safetensors"}})");
  const auto checkpoint = Checkpoint::open(folder.path());
  REQUIRE(checkpoint.has_value());
  REQUIRE(values_of(*(*checkpoint)->find("a")) == std::vector<float>{1, 2});
  REQUIRE((*checkpoint)->contains("b"));
  const std::string path = folder.path().string();
  const std::string index = path + "/model.safetensors.index.json: ";
  REQUIRE((*checkpoint)->find("b").error().code == ErrorCode::kData);
  REQUIRE((*checkpoint)->find("b").error().message ==
          index + "puts tensor 'b' into model-2.safetensors, but " + path +
              "/model-2.safetensors: cannot be opened: No such file or directory");
  REQUIRE((*checkpoint)
              ->find("c")
              .error()
              .message.find(index + "puts tensor 'c' into model-3.safetensors, but " + path +
                            "/model-3.safetensors: header length ") == 0);
  REQUIRE_THAT((*checkpoint)->find("lost").error().message, Mentions(index, "'lost'", "model-1.safetensors"));
  REQUIRE((*checkpoint)->find("d").error().message == index + "lists no tensor 'd'");
}

TEST_CASE("an index goes before a single file unless files are gone") {
  const test::TemporaryFolder folder;
  folder.write("model.safetensors", safetensors_text({{"a", {1}, {1}}}));
  folder.write("model.safetensors.index.json", R"({"weight_map":{"a":"x.safetensors"}})");
  const auto value = [&folder] { return values_of(Checkpoint::open(folder.path()).value()->find("a").value()); };
  CHECK(value() == std::vector<float>{1});
  // A tensor that the index does not put into this file is not read from it.
  folder.write("x.safetensors", safetensors_text({{"a", {1}, {2}}, {"b", {1}, {3}}}));
  CHECK(value() == std::vector<float>{2});
  CHECK_FALSE(Checkpoint::open(folder.path()).value()->contains("b"));
  folder.write("model.safetensors.index.json", R"({"weight_map":{"a":"model.safetensors"}})");
  CHECK(value() == std::vector<float>{1});
  for (const char* useless : {"nonsense", R"({"weight_map":{}})"}) {
    folder.write("model.safetensors.index.json", useless);
    CHECK(value() == std::vector<float>{1});
  }
  // One that was not written to its end is not read beside a whole index.
  folder.write("model.safetensors", "short");
  folder.write("model.safetensors.index.json", R"({"weight_map":{"a":"x.safetensors"}})");
  CHECK(value() == std::vector<float>{2});
  std::filesystem::remove(folder.path() / "x.safetensors");
  CHECK_THAT(Checkpoint::open(folder.path()).error().message, Mentions("model.safetensors"));
}

TEST_CASE("a malformed index is refused") {
  const auto message = [](std::string_view text) {
    const test::TemporaryFolder folder;
    folder.write("model.safetensors.index.json", text);
    const auto checkpoint = Checkpoint::open(folder.path());
    REQUIRE_FALSE(checkpoint.has_value());
    return checkpoint.error().message.substr(folder.path().string().size() + 1);
  };
  const std::string place = "model.safetensors.index.json: ";
  REQUIRE_THAT(message("{}"), Mentions(place, "weight_map", "missing"));
  REQUIRE(message(R"({"weight_map":[]})") == place + "weight_map is [], wanted an object");
  REQUIRE(message("nonsense").find(place + "is not valid JSON: ") == 0);
  for (const char* file : {"\"../x.safetensors\"", "\"/etc/passwd\"", "\"\"", "\"..\"", "7"}) {
    const std::string text = fmt::format(R"({{"weight_map":{{"a":{}}}}})", file);
    REQUIRE(message(text) ==
            place + fmt::format("tensor 'a' is in {}, wanted the name of a file in the same folder", file));
  }
  REQUIRE(message(R"({"weight_map":{"a":"x","a":"y"}})") == place + "tensor 'a' is listed twice");
}

TEST_CASE("a folder without weights says what it wants") {
  const test::TemporaryFolder folder;
  const auto checkpoint = Checkpoint::open(folder.path());
  REQUIRE(checkpoint.error().code == ErrorCode::kNotFound);
  REQUIRE_THAT(checkpoint.error().message,
               Mentions(folder.path().string(), "model.safetensors", "model.safetensors.index.json"));
  std::filesystem::create_directory(folder.path() / "model.safetensors");
  REQUIRE(Checkpoint::open(folder.path()).error().message ==
          folder.path().string() + "/model.safetensors: is not a regular file");
}

TEST_CASE("names without the prefix of their model are found with it") {
  const test::TemporaryFolder folder;
  folder.write("model.safetensors",
               safetensors_text(std::vector<test::TensorToWrite>{{"embed_tokens.weight", {1}, {1}},
                                                                 {"layers.0.mlp.up_proj.weight", {1}, {2}},
                                                                 {"norm.weight", {1}, {3}},
                                                                 {"score.weight", {1}, {4}}}));
  const auto checkpoint = Checkpoint::open(folder.path()).value();
  REQUIRE(checkpoint->contains("model.norm.weight"));
  REQUIRE_FALSE(checkpoint->contains("model.score.weight"));
  REQUIRE(values_of(checkpoint->find("model.layers.0.mlp.up_proj.weight").value()) == std::vector<float>{2});
  REQUIRE(values_of(checkpoint->find("score.weight").value()) == std::vector<float>{4});
  REQUIRE(checkpoint->find_stored("model.norm.weight")->bytes.size() == sizeof(float));
  std::vector<std::string> names = checkpoint->names();
  std::ranges::sort(names);
  REQUIRE(names == std::vector<std::string>{"model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight",
                                            "model.norm.weight", "score.weight"});
}
