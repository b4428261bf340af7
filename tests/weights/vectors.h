#pragma once

#include <simdjson.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <vector>

#include "base/text_file.h"
#include "support/paths.h"
#include "weights/find_weight.h"

/// Test vectors of stored weights.
namespace millrace::weights {

using simdjson::dom::element;

inline std::filesystem::path vector_folder() {
  return test::source_dir() / "tests/weights/vectors";
}

inline std::vector<std::byte> from_hex(std::string_view text) {
  std::vector<std::byte> bytes;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(digit(text[i]) << 4 | digit(text[i + 1])));
  return bytes;
}

inline std::vector<float> floats_of(element list) {
  std::vector<float> values;
  for (const element each : list.get_array()) {
    if (each.is_string()) {
      const std::string_view text = each.get_string();
      values.push_back(text == "nan" ? NAN : text == "inf" ? INFINITY : -INFINITY);
    } else {
      values.push_back(static_cast<float>(each.get_double()));
    }
  }
  return values;
}

/// Bits, so that -0 differs from 0; all NaN are one.
inline uint32_t bits_of(float value) {
  if (std::isnan(value)) return 0x7FC00000u;
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline void check_equal(const std::vector<float>& found, const std::vector<float>& wanted) {
  REQUIRE(found.size() == wanted.size());
  for (size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i, found[i], wanted[i]);
    REQUIRE(bits_of(found[i]) == bits_of(wanted[i]));
  }
}

/// A file of vectors and the tensors in it.
struct Vectors {
  explicit Vectors(const std::string& name) {
    file = parser.load((vector_folder() / (name + ".json")).string()).value();
    for (const auto field : file["tensors"].get_object()) {
      const element tensor = field.value;
      auto& entry = tensors[std::string(field.key)];
      entry.dtype = std::string(std::string_view(tensor["dtype"].get_string()));
      for (const element dim : tensor["shape"].get_array()) entry.shape.push_back(dim.get_int64());
      entry.bytes = from_hex(tensor["hex"].get_string());
    }
  }

  /// The sizes of a weight.
  struct Shape {
    int64_t rows = 0;
    int64_t cols = 0;
  };
  [[nodiscard]] Shape shape_of(const char* weight) const {
    const element shape = file["expected"][weight]["shape"];
    return {shape.at(0).get_int64(), shape.at(1).get_int64()};
  }
  struct Entry {
    std::string dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };
  [[nodiscard]] TensorLookup lookup() const {
    return [this](const std::string& name) -> Result<RawTensor> {
      const auto found = tensors.find(name);
      if (found == tensors.end()) return make_error(ErrorCode::kNotFound, "there is no '{}'", name);
      return RawTensor{.dtype = found->second.dtype, .shape = found->second.shape, .bytes = found->second.bytes};
    };
  }
  /// Parses quantization_config with this project's parser.
  [[nodiscard]] WeightFormat format() {
    config_text = simdjson::to_string(file["quantization_config"]);
    config = JsonDocument::parse(config_text).value();
    JsonObject object;
    REQUIRE(config.root().get(object));
    return parse_weight_format(object).value();
  }

  simdjson::dom::parser parser;
  element file;
  std::map<std::string, Entry> tensors;
  std::string config_text;
  JsonDocument config;
};

inline WeightFormat format_of(const char* config) {
  const auto document = JsonDocument::parse(config).value();
  JsonObject object;
  REQUIRE(document.root().get(object));
  return parse_weight_format(object).value();
}

}  // namespace millrace::weights
