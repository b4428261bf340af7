#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <vector>

#include "weights/element_codes.h"
#include "weights/gguf_blocks.h"
#include "weights/companions.h"
#include "weights/vectors.h"
#include "weights/weight_codes.h"

namespace millrace::weights {
namespace {

TEST_CASE("Tables of codes equal the vectors") {
  const Vectors e4m3("table_e4m3fn");
  check_equal({kE4M3.begin(), kE4M3.end()}, floats_of(e4m3.file["expected"]["values"]["f32"]));
  const Vectors e5m2("table_e5m2");
  check_equal({kE5M2.begin(), kE5M2.end()}, floats_of(e5m2.file["expected"]["values"]["f32"]));
  const Vectors e8m0("table_e8m0");
  check_equal({kE8M0.begin(), kE8M0.end()}, floats_of(e8m0.file["expected"]["values"]["f32"]));
  const Vectors nibbles("table_e2m1_iq4nl");
  check_equal({kE2M1.begin(), kE2M1.end()}, floats_of(nibbles.file["expected"]["e2m1"]["f32"]));
  check_equal({kIq4.begin(), kIq4.end()}, floats_of(nibbles.file["expected"]["iq4_nl"]["f32"]));
}

/// Returns the tensors of a checkpoint, whose values are lost but for those that its format needs. `lost` holds them.
TensorLookup headers_only(const Vectors& vectors, const WeightFormat& format, std::vector<std::byte>& lost) {
  size_t most = 0;
  for (const auto& [name, tensor] : vectors.tensors) most = std::max(most, tensor.bytes.size());
  lost.assign(most, std::byte{99});
  return [lookup = vectors.lookup(), kept = names_read_for_format(format, "a.weight"), &lost](const std::string& name) {
    Result<RawTensor> found = lookup(name);
    if (found && std::ranges::find(kept, name) == kept.end())
      found->bytes = std::span<const std::byte>(lost).first(found->bytes.size());
    return found;
  };
}

TEST_CASE("Weights of every checkpoint format decode bit for bit") {
  for (const char* name : {"fp8_block",
                           "fp8_block_e8m0",
                           "ct_fp8_channel",
                           "ct_fp8_tensor",
                           "modelopt_fp8_tensor",
                           "ct_w4a16_sym_g32",
                           "ct_w4a16_asym_g32",
                           "ct_w4a16_actorder_g8",
                           "ct_w8a16_channel",
                           "ct_w3a16_dense_g32",
                           "gptq_v1_w4_sym_g32",
                           "gptq_v1_w4_asym_g32",
                           "gptq_v1_w4_desc_act_g16",
                           "gptq_v1_w8_sym_g32",
                           "gptq_v2_w4_asym_g32",
                           "awq_gemm_w4_g16",
                           "awq_gemv_w4_g32",
                           "awq_gemv_w4_g64",
                           "awq_gemv_w4_g128",
                           "awq_gemv_fast_w4_g32",
                           "awq_gemv_fast_w4_g64",
                           "awq_gemv_fast_w4_g128",
                           "quark_int4_g32",
                           "quark_int4_zp_g32",
                           "quark_uint4_g32",
                           "quark_uint4_order_g32",
                           "quark_int4_channel",
                           "quark_uint4_channel",
                           "quark_uint4_order_channel",
                           "quark_int8_channel",
                           "quark_int8_tensor",
                           "w4afp8_g128",
                           "w4afp8_file_g128",
                           "mxfp4_ct",
                           "nvfp4_ct",
                           "nvfp4_modelopt",
                           "auto_round_w2_asym_g32",
                           "auto_round_w3_asym_g32",
                           "auto_round_w4_asym_g32",
                           "auto_round_zp_w2_asym_g32",
                           "auto_round_zp_w3_asym_g32",
                           "auto_round_zp_w4_asym_g32",
                           "auto_round_zp_w4_sym_g32"}) {
    CAPTURE(name);
    Vectors vectors(name);
    const element expected = vectors.file["expected"]["a.weight"];
    const auto [rows, cols] = vectors.shape_of("a.weight");
    const auto stored = find_stored_weight(vectors.lookup(), vectors.format(), "a.weight", rows, cols);
    REQUIRE(stored.has_value());
    REQUIRE(stored->has_value());
    // Ranks know each other's experts by their headers.
    std::vector<std::byte> lost;
    const WeightFormat format = vectors.format();
    const auto known = find_stored_format(headers_only(vectors, format, lost), format, "a.weight", rows, cols);
    REQUIRE(known.has_value());
    REQUIRE(known->has_value());
    REQUIRE(**known == stored_format(**stored));
    std::vector<float> values(static_cast<size_t>(rows * cols));
    decode_rows(**stored, 0, rows, values.data());
    const std::vector<float> wanted = floats_of(expected["f32"]);
    check_equal(values, wanted);
    // A part of the rows, as a rank reads it.
    const int64_t first = rows / 2;
    std::vector<float> part(static_cast<size_t>((rows - first) * cols));
    decode_rows(**stored, first, rows - first, part.data());
    check_equal(part, {wanted.begin() + first * cols, wanted.end()});
  }
}

TEST_CASE("Blocks of GGUF decode bit for bit") {
  for (const char* name : {"q2_k", "q3_k", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "iq4_nl",
                           "iq4_xs", "mxfp4", "nvfp4"}) {
    CAPTURE(name);
    const Vectors vectors(std::string("gguf_") + name);
    const std::vector<float> wanted = floats_of(vectors.file["expected"]["weights"]["f32"]);
    std::vector<float> values(wanted.size());
    decode_blocks(static_cast<uint32_t>(vectors.file["ggml_type"].get_int64().value()),
                  vectors.tensors.at("blocks").bytes, values);
    check_equal(values, wanted);
  }
}

/// Checks that the codes of a weight stand for the same numbers. Its integers have no negative zero.
void check_codes(const StoredWeight& weight, const std::vector<float>& wanted) {
  for (const int64_t first : {int64_t{0}, weight.rows / 2}) {
    const tensor::CodeStorage storage = to_codes(weight, {first, weight.rows}, 2);
    REQUIRE((storage.rows == weight.rows - first && storage.cols == weight.cols));
    std::vector<float> values(static_cast<size_t>(storage.rows * storage.cols));
    for (int64_t row = 0; row < storage.rows; ++row)
      tensor::read_floats(storage.view(), row, 0, storage.cols, values.data() + row * storage.cols);
    // The reciprocal of a divisor is rounded, and so is its product with a scale.
    const float error = weight.scales.divisor == 1.0f ? 0.0f : 0x1p-22f;
    for (size_t i = 0; i < values.size(); ++i) {
      const float own = wanted[static_cast<size_t>(first * weight.cols) + i];
      REQUIRE(std::abs(values[i] - own) <= error * std::abs(own));
    }
  }
}

TEST_CASE("Weights of few bits keep their values as codes") {
  struct Case {
    const char* name;
    std::optional<CodeLayout> kind;
  };
  for (const auto& [name, kind] : {Case{"ct_w4a16_sym_g32", CodeLayout{}},
                                   Case{"ct_w4a16_asym_g32", CodeLayout{}},
                                   Case{"gptq_v1_w4_sym_g32", CodeLayout{}},
                                   Case{"gptq_v1_w4_asym_g32", CodeLayout{}},
                                   Case{"gptq_v2_w4_asym_g32", CodeLayout{}},
                                   Case{"ct_w3a16_dense_g32", CodeLayout{}},
                                   Case{"mxfp4_ct", CodeLayout{.values = tensor::CodeValues::kTwiceE2M1}},
                                   Case{"ct_w8a16_channel", CodeLayout{.bits = 8}},
                                   Case{"ct_w4a16_actorder_g8", {}},
                                   Case{"gptq_v1_w4_desc_act_g16", {}},
                                   Case{"awq_gemm_w4_g16", {}},
                                   Case{"fp8_block", {}},
                                   Case{"awq_gemv_w4_g32", CodeLayout{}},
                                   Case{"awq_gemv_w4_g128", CodeLayout{}},
                                   Case{"awq_gemv_fast_w4_g32", CodeLayout{}},
                                   Case{"awq_gemv_fast_w4_g128", CodeLayout{}},
                                   Case{"quark_int4_g32", CodeLayout{}},
                                   Case{"quark_uint4_order_g32", CodeLayout{}},
                                   Case{"quark_int4_channel", CodeLayout{}},
                                   Case{"quark_uint4_order_channel", CodeLayout{}},
                                   Case{"quark_int8_channel", CodeLayout{.bits = 8}},
                                   Case{"quark_int8_tensor", CodeLayout{.bits = 8}},
                                   Case{"nvfp4_ct", CodeLayout{.values = tensor::CodeValues::kTwiceE2M1,
                                                               .half_scales = tensor::CodeHalfScales::kE4M3}},
                                   Case{"nvfp4_modelopt", CodeLayout{.values = tensor::CodeValues::kTwiceE2M1,
                                                                     .half_scales = tensor::CodeHalfScales::kE4M3}}}) {
    CAPTURE(name);
    Vectors vectors(name);
    const element expected = vectors.file["expected"]["a.weight"];
    const auto [rows, cols] = vectors.shape_of("a.weight");
    const auto stored = find_stored_weight(vectors.lookup(), vectors.format(), "a.weight", rows, cols);
    REQUIRE(code_layout(**stored) == kind);
    if (kind) check_codes(**stored, floats_of(expected["f32"]));
  }
}

TEST_CASE("Blocks of GGUF keep their values as codes") {
  struct Case {
    const char* name;
    std::optional<CodeLayout> kind;
  };
  for (const auto& [name, kind] :
       {Case{"q4_0", CodeLayout{}}, Case{"q4_1", CodeLayout{.has_minimums = true}},
        Case{"q4_k", CodeLayout{.has_minimums = true}}, Case{"iq4_nl", CodeLayout{.values = tensor::CodeValues::kIq4}},
        Case{"iq4_xs", CodeLayout{.values = tensor::CodeValues::kIq4}},
        Case{"mxfp4", CodeLayout{.values = tensor::CodeValues::kTwiceE2M1}},
        Case{"q5_0", CodeLayout{.bits = 8, .integer_bits = 5}},
        Case{"q5_1", CodeLayout{.bits = 8, .integer_bits = 5, .has_minimums = true}},
        Case{"q5_k", CodeLayout{.bits = 8, .integer_bits = 5, .has_minimums = true}},
        Case{"q2_k", CodeLayout{.bits = 8,
                                .integer_bits = 2,
                                .has_minimums = true,
                                .half_scales = tensor::CodeHalfScales::kInt8,
                                .has_half_minimums = true}},
        Case{"q3_k", CodeLayout{.bits = 8, .integer_bits = 3, .half_scales = tensor::CodeHalfScales::kInt8}},
        Case{"q6_k", CodeLayout{.bits = 8, .integer_bits = 6, .half_scales = tensor::CodeHalfScales::kInt8}},
        Case{"q8_0", CodeLayout{.bits = 8}},
        Case{"nvfp4",
             CodeLayout{.values = tensor::CodeValues::kTwiceE2M1, .half_scales = tensor::CodeHalfScales::kE4M3}}}) {
    CAPTURE(name);
    const Vectors vectors(std::string("gguf_") + name);
    const std::vector<float> wanted = floats_of(vectors.file["expected"]["weights"]["f32"]);
    const auto type = static_cast<uint32_t>(vectors.file["ggml_type"].get_int64().value());
    const int64_t block = find_ggml_type(type)->block_weights;
    const auto count = static_cast<int64_t>(wanted.size());
    // Rows of one block each, and one row of all.
    for (const int64_t cols : {block, count}) {
      StoredWeight weight{.name = "weight", .rows = count / cols, .cols = cols};
      weight.blocks = {.ggml_type = type, .bytes = vectors.tensors.at("blocks").bytes};
      REQUIRE(code_layout(weight) == kind);
      if (!kind) continue;
      REQUIRE(code_layout(weight)->integer_bits == kind->integer_bits);
      check_codes(weight, wanted);
    }
  }
}

TEST_CASE("Tensors of several widths in one checkpoint decode") {
  const std::string integers = R"("config_groups": {
      "group_0": {"targets": ["re:.*attn.*"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}},
      "group_1": {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 4, "type": "int", "group_size": 32}},
      "group_2": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "group_size": null}}})";
  const std::string packed = R"({"quant_method": "compressed-tensors", "format": "mixed-precision", )" + integers + "}";
  const std::string ordered = R"({"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": {
      "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 32}},
      "group_1": {"targets": ["re:.*q_proj"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}})";
  const std::string dynamic = R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic":
      {"-:.*down.*": {}, "+:.*up.*": {"bits": 8, "group_size": 32}}})";
  for (const auto& [name, config] : std::initializer_list<std::pair<std::string, std::string>>{
           {"ct_w4a16_sym_g32", packed},
           {"ct_w8a16_channel", packed},
           {"ct_fp8_channel", packed},
           {"ct_w4a16_asym_g32", ordered},
           {"ct_fp8_channel", ordered},
           {"gptq_v1_w4_sym_g32", dynamic},
           {"gptq_v1_w8_sym_g32", dynamic},
           {"ct_fp8_channel", R"({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]})"}}) {
    CAPTURE(name);
    const Vectors vectors(name);
    const auto document = JsonDocument::parse(config).value();
    JsonObject object;
    REQUIRE(document.root().get(object));
    const element expected = vectors.file["expected"]["a.weight"];
    const auto [rows, cols] = vectors.shape_of("a.weight");
    const auto stored =
        find_stored_weight(vectors.lookup(), parse_weight_format(object).value(), "a.weight", rows, cols);
    REQUIRE(stored.has_value());
    std::vector<float> values(static_cast<size_t>(rows * cols));
    decode_rows(**stored, 0, rows, values.data());
    check_equal(values, floats_of(expected["f32"]));
  }
}

constexpr const char* kGptqRules =
    R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:.*gate$": {}}})";
constexpr const char* kGroupsAndRows = R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
    "config_groups": {
      "group_0": {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 4, "type": "int", "group_size": 64}},
      "group_1": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}}})";
constexpr const char* kSimilarSizes = R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
    "config_groups": {
      "group_0": {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 4, "type": "int", "group_size": 32}},
      "group_1": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 40}}}})";

/// A weight of 8 rows, with the scale 1 + group / 4 for each group.
struct Ragged {
  const char* config;
  int bits;
  int64_t cols;
  int64_t groups;

  [[nodiscard]] Result<std::optional<StoredWeight>> find() {
    constexpr int64_t kRows = 8;
    const bool is_gptq = config == kGptqRules;
    const int64_t words = (cols * bits + 31) / 32;
    codes.resize(static_cast<size_t>(words * kRows * 4), std::byte{0x55});
    zeros.resize(static_cast<size_t>(groups * 4), std::byte{0x33});
    for (int64_t i = 0; i < groups * kRows; ++i)
      scales.push_back(1.0f + static_cast<float>(is_gptq ? i / kRows : i % groups) / 4);
    const auto bytes = std::as_bytes(std::span(scales));
    const TensorLookup lookup = [&](const std::string& name) -> Result<RawTensor> {
      if (is_gptq && name == "a.qweight") return RawTensor{.dtype = "I32", .shape = {words, kRows}, .bytes = codes};
      if (is_gptq && name == "a.scales") return RawTensor{.dtype = "F32", .shape = {groups, kRows}, .bytes = bytes};
      if (is_gptq && name == "a.qzeros") return RawTensor{.dtype = "I32", .shape = {groups, 1}, .bytes = zeros};
      if (!is_gptq && name == "a.weight_packed")
        return RawTensor{.dtype = "I32", .shape = {kRows, words}, .bytes = codes};
      if (!is_gptq && name == "a.weight_scale")
        return RawTensor{.dtype = "F32", .shape = {kRows, groups}, .bytes = bytes};
      return make_error(ErrorCode::kNotFound, "there is no '{}'", name);
    };
    return find_stored_weight(lookup, format_of(config), "a.weight", kRows, cols);
  }

  std::vector<std::byte> codes = {};
  std::vector<std::byte> zeros = {};
  std::vector<float> scales = {};
};

TEST_CASE("The last group of a checkpoint of several sizes may be short") {
  struct Case {
    Ragged weight;
    int64_t group_cols;
  };
  for (auto& [weight, group_cols] : {Case{{kGptqRules, 4, 10944, 86}, 128}, Case{{kGroupsAndRows, 4, 1736, 28}, 64},
                                     Case{{kGroupsAndRows, 8, 1736, 1}, 0}}) {
    CAPTURE(weight.config, weight.cols, weight.groups);
    Ragged ragged = weight;
    const auto stored = ragged.find();
    REQUIRE(stored.has_value());
    REQUIRE((**stored).group_cols == group_cols);
    std::vector<float> row(static_cast<size_t>(weight.cols));
    decode_rows(**stored, 0, 1, row.data());
    // Codes are 5 less a zero point of 3 + 1, or 5 of 4 bits and 0x55 of 8 less the middle.
    const float integer = weight.config == kGptqRules ? 1.0f : weight.bits == 4 ? -3.0f : -43.0f;
    for (int64_t k = 0; k < weight.cols; ++k) {
      const int64_t group = group_cols == 0 ? 0 : k / group_cols;
      REQUIRE(row[static_cast<size_t>(k)] == integer * (1.0f + static_cast<float>(group) / 4));
    }
  }
}

TEST_CASE("Shapes that fit several formats or none are refused") {
  const auto error = [](Ragged weight, const char* part) {
    const auto stored = weight.find();
    REQUIRE(stored.has_error());
    CHECK(stored.error().code == ErrorCode::kData);
    CHECK(stored.error().message.find(part) != std::string::npos);
  };
  error({kGroupsAndRows, 4, 1736, 27}, "[64, 0]");
  error({kGptqRules, 4, 10944, 85}, "[128]");
  error({kSimilarSizes, 4, 96, 3}, "[32, 40]");
  error({kGroupsAndRows, 4, 4, 1}, "4 and 8");
}

TEST_CASE("MXFP8 decodes with a scale for 32 columns of a row") {
  constexpr int64_t kRows = 4;
  constexpr int64_t kCols = 64;
  std::vector<std::byte> codes(kRows * kCols);
  std::vector<std::byte> scales(kRows * kCols / 32);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i % 120);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::byte>(120 + i);
  const TensorLookup lookup = [&](const std::string& name) -> Result<RawTensor> {
    if (name == "a.weight") return RawTensor{.dtype = "F8_E4M3", .shape = {kRows, kCols}, .bytes = codes};
    if (name == "a.weight_scale") return RawTensor{.dtype = "U8", .shape = {kRows, kCols / 32}, .bytes = scales};
    return make_error(ErrorCode::kNotFound, "there is no '{}'", name);
  };
  for (const char* config :
       {R"({"quant_method": "mxfp8"})", R"({"quant_method": "mxfp8", "weight_block_size": [1, 32]})",
        R"({"quant_method": "compressed-tensors", "format": "mxfp8-quantized", "config_groups": {"group_0": {"weights":
            {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}}}})",
        R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"})"}) {
    const auto document = JsonDocument::parse(config).value();
    JsonObject object;
    REQUIRE(document.root().get(object));
    const auto stored = find_stored_weight(lookup, parse_weight_format(object).value(), "a.weight", kRows, kCols);
    REQUIRE(stored.has_value());
    std::vector<float> values(codes.size());
    decode_rows(**stored, 0, kRows, values.data());
    for (size_t i = 0; i < values.size(); ++i) {
      const float scale = kE8M0[static_cast<size_t>(scales[i / 32])];
      REQUIRE(values[i] == kE4M3[static_cast<size_t>(codes[i])] * scale);
    }
  }
}

TEST_CASE("Damaged parts of a weight are named") {
  Vectors vectors("gptq_v1_w4_asym_g32");
  const auto [rows, cols] = vectors.shape_of("a.weight");
  const WeightFormat format = vectors.format();
  const auto error = [&](const char* part) {
    const auto stored = find_stored_weight(vectors.lookup(), format, "a.weight", rows, cols);
    REQUIRE(stored.has_error());
    CHECK(stored.error().code == ErrorCode::kData);
    CHECK(stored.error().message.find(part) != std::string::npos);
  };
  const auto whole = vectors.tensors;
  vectors.tensors.erase("a.qzeros");
  error("a.qzeros");
  vectors.tensors = whole;
  vectors.tensors["a.scales"].shape[0] += 1;
  error("a.scales");
  vectors.tensors = whole;
  vectors.tensors["a.scales"].bytes[1] = std::byte{0x7C};  // infinity
  error("scale 0");
  vectors.tensors = whole;
  vectors.tensors["a.qzeros"].bytes[0] = std::byte{0xFF};
  error("zero point 15");
  Vectors narrow("auto_round_zp_w3_asym_g32");
  const element shape = narrow.file["expected"]["a.weight"]["shape"];
  narrow.tensors["a.qzeros"].bytes[0] = std::byte{7};
  const auto wrapped = find_stored_weight(narrow.lookup(), narrow.format(), "a.weight", shape.at(0).get_int64(),
                                          shape.at(1).get_int64());
  REQUIRE(wrapped.has_error());
  CHECK(wrapped.error().message.find("zero point 7") != std::string::npos);
  vectors.tensors = whole;
  vectors.tensors["a.g_idx"].bytes[0] = std::byte{99};
  error("group 99");
  vectors.tensors = whole;
  vectors.tensors["a.qweight"].dtype = "F32";
  error("a.qweight");
  Vectors bytes("quark_int8_channel");
  bytes.tensors["a.weight_zero_point"].bytes.back() = std::byte{1};
  const auto stored = find_stored_weight(bytes.lookup(), bytes.format(), "a.weight", 16, 64);
  REQUIRE(stored.has_error());
  CHECK(stored.error().message.find("a.weight_zero_point") != std::string::npos);
}

TEST_CASE("Unpacked zero points of 0 change nothing") {
  Vectors vectors("ct_w4a16_sym_g32");
  const element expected = vectors.file["expected"]["a.weight"];
  const auto [rows, cols] = vectors.shape_of("a.weight");
  const int64_t groups = vectors.tensors.at("a.weight_scale").shape[1];
  auto& zeros = vectors.tensors["a.weight_zero_point"];
  zeros = {.dtype = "I8", .shape = {rows, groups}, .bytes = std::vector<std::byte>(static_cast<size_t>(rows * groups))};
  const WeightFormat format = vectors.format();
  const auto stored = find_stored_weight(vectors.lookup(), format, "a.weight", rows, cols);
  REQUIRE(stored.has_value());
  std::vector<float> values(static_cast<size_t>(rows * cols));
  decode_rows(**stored, 0, rows, values.data());
  check_equal(values, floats_of(expected["f32"]));
  CHECK(find_stored_format(vectors.lookup(), format, "a.weight", rows, cols).value() == stored_format(**stored));
  zeros.bytes.back() = std::byte{1};
  const auto refused = find_stored_weight(vectors.lookup(), format, "a.weight", rows, cols);
  REQUIRE(refused.has_error());
  CHECK(refused.error().message.find("a.weight_zero_point' is I8") != std::string::npos);
}

TEST_CASE("Tensors of other types and shapes are refused by name") {
  struct Parts {
    const char* vectors;
    std::vector<std::string> names;
  };
  for (const auto& [file, names] : {Parts{"awq_gemm_w4_g16", {"a.qweight", "a.qzeros", "a.scales"}},
                                    Parts{"awq_gemv_w4_g32", {"a.qweight", "a.qzeros", "a.scales"}},
                                    Parts{"awq_gemv_fast_w4_g32", {"a.qweight", "a.qzeros", "a.scales"}},
                                    Parts{"quark_int4_g32", {"a.weight", "a.weight_zero_point", "a.weight_scale"}},
                                    Parts{"quark_int4_channel", {"a.weight", "a.weight_zero_point"}},
                                    Parts{"quark_int8_channel", {"a.weight", "a.weight_scale"}},
                                    Parts{"ct_w4a16_asym_g32", {"a.weight_packed", "a.weight_zero_point"}},
                                    Parts{"nvfp4_modelopt", {"a.weight", "a.weight_scale", "a.weight_scale_2"}},
                                    Parts{"fp8_block", {"a.weight", "a.weight_scale_inv"}}}) {
    const Vectors whole(file);
    const auto [rows, cols] = whole.shape_of("a.weight");
    for (const std::string& name : names) {
      CAPTURE(file, name);
      const auto message = [&](const std::function<void(Vectors::Entry&)>& change) {
        Vectors damaged(file);
        change(damaged.tensors.at(name));
        const auto stored = find_stored_weight(damaged.lookup(), damaged.format(), "a.weight", rows, cols);
        return stored.has_error() ? stored.error().message : std::string("none");
      };
      CHECK(message([](Vectors::Entry&) {}) == "none");
      CHECK(message([](Vectors::Entry& tensor) { tensor.shape.push_back(2); }).find(name + "' is") !=
            std::string::npos);
      if (whole.tensors.at(name).dtype == "I32" && name != "a.weight")
        CHECK(message([](Vectors::Entry& tensor) { tensor.dtype = "F32"; }).find("wanted I32") != std::string::npos);
    }
  }
}

TEST_CASE("Companions of a weight lead back to it") {
  for (const std::string& name : companion_names("model.layers.0.mlp.up_proj.weight"))
    CHECK(weight_of_companion(name) == "model.layers.0.mlp.up_proj.weight");
  CHECK_FALSE(weight_of_companion("model.norm.weight"));
  for (const char* name : {"a.qweight", "a.weight_packed", "a.weight_scale", "a.weight_scale_inv", "a.scales"})
    CHECK(names_codes(name));
  for (const char* name : {"a.weight", "a.input_scale", "a.activation_scale", "a.g_idx", "a.weight_shape", "a.bias"})
    CHECK_FALSE(names_codes(name));
  CHECK(companion_names("a.bias").empty());
  const std::vector<std::string> of_experts = companion_names("mlp.experts.down_proj");
  for (const char* name : {"mlp.experts.down_proj_scale_inv", "mlp.experts.down_proj_activation_scale"})
    CHECK(std::ranges::find(of_experts, name) != of_experts.end());
  CHECK(name_in_one_tensor("mlp.experts.down_proj.weight") == "mlp.experts.down_proj");
}

}  // namespace
}  // namespace millrace::weights
