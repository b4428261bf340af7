#include <array>
#include <catch2/catch.hpp>
#include <span>
#include <vector>

#include "weights/companions.h"
#include "weights/vectors.h"

namespace millrace::weights {
namespace {

/// Fails unless a config is refused with a message that has `part`.
void check_refused(const std::string& config, const std::string& part) {
  CAPTURE(config);
  const auto document = JsonDocument::parse(config).value();
  JsonObject object;
  REQUIRE(document.root().get(object));
  const auto format = parse_weight_format(object);
  REQUIRE(format.has_error());
  CHECK(format.error().message.find(part) != std::string::npos);
}

TEST_CASE("A config that cannot be read names the member") {
  for (const auto& [config, part] : std::initializer_list<std::pair<std::string, std::string>>{
           {R"({"quant_method": "bitsandbytes"})", "bitsandbytes"},
           {R"({})", "quant_method"},
           {R"({"quant_method": "fp8", "fmt": "e5m2"})", "fmt"},
           {R"({"quant_method": "fp8", "weight_block_size": [128]})", "weight_block_size"},
           {R"({"quant_method": "fp8", "weight_block_size": [9223372036854775807, 128]})", "9223372036854775807"},
           {R"({"quant_method": "gptq", "bits": 4, "group_size": 9223372036854775800})", "9223372036854775800"},
           {R"({"quant_method": "gptq", "bits": 4, "dynamic": {"+:up": {"group_size": 4294967296}}})", "4294967296"},
           {R"({"quant_method": "mxfp8", "weight_block_size": [128, 128]})", "128"},
           {R"({"quant_method": "gptq", "bits": 5})", "bits"},
           {R"({"quant_method": "gptq", "bits": 4, "dynamic": {"+:up": {"bits": 5}}})", "up"},
           {R"({"quant_method": "gptq", "checkpoint_format": "marlin"})", "marlin"},
           {R"({"quant_method": "blockwise_int8", "activation_scheme": "dynamic"})", "weight_block_size"},
           {R"({"quant_method": "w4afp8", "group_size": 0})", "group_size is 0"},
           {R"({"quant_method": "w4afp8", "weight_block_size": [128, 0]})", "weight_block_size"},
           {R"({"quant_method": "awq", "version": "exllama"})", "exllama"},
           {R"({"quant_method": "awq", "format": "llm-awq"})", "llm-awq"},
           {R"({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}})",
            "sparse-24-bitmask"},
           {R"({"quant_method": "awq", "version": "gemv_fast", "group_size": 16})", "group_size"},
           {R"({"quant_method": "awq", "version": "gemv", "group_size": 16})", "group_size"},
           {R"({"quant_method": "compressed-tensors", "format": "marlin-24"})", "marlin-24"},
           {R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})", "config_groups"},
           {R"({"quant_method": "compressed-tensors", "format": "int-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}})",
            "no weights of type 'int'"},
           {R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
                "transform_config": {"config_groups": {"R1": {"type": "hadamard"}}}})",
            "transform_config"},
           {R"({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"})", "W4A8_AWQ"},
           {R"({"quant_method": "auto-round", "bits": 5})", "bits of all modules is 5"},
           {R"({"quant_method": "auto-round", "packing_format": "mlx"})", "mlx"},
           {R"({"quant_method": "auto-round", "bits": 4, "data_type": "mx_int"})", "mx_int"},
           {R"({"quant_method": "intel/auto-round", "bits": 4, "extra_config": {"lm_head": {"bits": 6}}})", "lm_head"},
           {R"({"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_awq",
                "extra_config": {".*up_proj": {"bits": 8}}})",
            "up_proj"},
           {R"({"quant_method": "auto-round", "bits": 4, "rotation_config": {"hadamard_type": "random"}})",
            "rotation_config"},
           {R"({"quant_method": "auto-round", "bits": 4, "spinquant_config": {"r1": true}})", "spinquant_config"},
           {R"({"quant_method": "auto-round", "bits": 4, "group_size": 32, "data_type": "mx_int",
                "packing_format": "auto_round:llm_compressor"})",
            "data_type of all modules is 'mx_int'"},
           {R"({"quant_method": "auto-round", "bits": 4, "group_size": 32, "data_type": "mx_fp",
                "packing_format": "auto_round:llm_compressor", "extra_config": {".*down_proj.*":
                {"data_type": "mx_int"}}})",
            "data_type of '.*down_proj.*' is 'mx_int'"},
           {R"({"quant_method": "auto-round", "bits": 8, "act_bits": 8})", "act_bits of all modules is 8"},
           {R"({"quant_method": "auto-round", "bits": 4, "extra_config": {"up": {"bits": 8, "act_bits": 8}}})",
            "act_bits of 'up' is 8"},
           {R"({"quant_method": "modelopt", "quantization": {"quant_algo": "INT4_AWQ"}})", "INT4_AWQ"},
       }) {
    check_refused(config, part);
  }
}

TEST_CASE("A config of Quark that cannot be read names the member") {
  for (const auto& [config, part] : std::initializer_list<std::pair<std::string, std::string>>{
           {R"({"quant_method": "quark"})", "global_quant_config"},
           {R"({"quant_method": "quark", "export": {"weight_format": "fake_quantized"}})", "fake_quantized"},
           {R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3",
                "qscheme": "per_channel", "ch_axis": 1}}})",
            "ch_axis of the weight of global_quant_config is 1"},
           {R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int8", "qscheme": "per_group",
                "group_size": 128}}})",
            "int8 per_group"},
           {R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int8", "qscheme": "per_channel",
                "ch_axis": 1}}})",
            "ch_axis of the weight of global_quant_config is 1"},
           {R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "uint8",
                "qscheme": "per_channel"}}})",
            "uint8 per_channel"},
           {R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int4",
                "qscheme": "per_tensor"}}})",
            "int4 per_tensor"},
           {R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3",
                "qscheme": "per_block", "block_size": [128]}}})",
            "block_size of the weight of global_quant_config is [128]"},
           {R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3",
                "qscheme": "per_block", "block_size": [128, 128]}}, "layer_quant_config": {"*mlp*": {"weight":
                {"dtype": "fp8_e4m3", "qscheme": "per_block", "block_size": [32, 32]}}}})",
            "block_size of the weight of layer_quant_config.*mlp* is [32, 32]"},
           {R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int4", "qscheme": "per_group",
                "group_size": 32}}, "layer_quant_config": {"*mlp*": {"weight": {"dtype": "uint4", "qscheme":
                "per_group", "group_size": 32}}}})",
            "int4 and uint4"},
           {R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group",
                "group_size": 16, "scale_format": "e8m0"}}})",
            "16"},
           {R"({"quant_method": "quark", "layer_quant_config": {"*mlp*": {"weight": [{"dtype": "fp8_e4m3"},
                {"dtype": "int4"}]}}})",
            "*mlp*"},
           {R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3",
                "qscheme": "per_tensor"}}, "algo_config": [{"name": "rotation"}]})",
            "rotation"},
       }) {
    check_refused(config, part);
  }
}

TEST_CASE("Algorithms of ModelOpt that are stored as FP8 or FP4 load") {
  for (const char* config :
       {R"({"quant_method": "modelopt"})", R"({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"})",
        R"({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"})",
        R"({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"})",
        R"({"quant_algo": "FP8", "producer": {"name": "modelopt"}})",
        R"({"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4"}})"})
    CHECK(format_of(config).method == QuantMethod::kModelOpt);
}

/// Returns a weight of vectors, read as another config says, with a tensor renamed.
std::vector<float> decoded_as(const Vectors& vectors, const char* config, const std::string& from = "",
                              const std::string& to = "") {
  const auto [rows, cols] = vectors.shape_of("a.weight");
  const TensorLookup lookup = [&](const std::string& name) -> Result<RawTensor> {
    if (name == from) return make_error(ErrorCode::kNotFound, "there is no '{}'", name);
    return vectors.lookup()(name == to ? from : name);
  };
  const auto stored = find_stored_weight(lookup, format_of(config), "a.weight", rows, cols);
  REQUIRE(stored.has_value());
  REQUIRE(stored->has_value());
  std::vector<float> values(static_cast<size_t>(rows * cols));
  decode_rows(**stored, 0, rows, values.data());
  return values;
}

TEST_CASE("Packings of AutoRound are those of other libraries") {
  struct Packed {
    const char* vectors;
    const char* config;
  };
  for (const auto& [name, config] : std::initializer_list<Packed>{
           {"gptq_v1_w4_asym_g32", R"({"quant_method": "auto-round", "bits": 4, "group_size": 32})"},
           {"gptq_v1_w4_sym_g32",
            R"({"quant_method": "intel/auto-round", "bits": 4, "group_size": 32,
               "backend": "auto_round:gptq:exllamav2"})"},
           {"gptq_v1_w4_asym_g32", R"({"quant_method": "auto-round", "bits": 4, "group_size": 32,
               "backend": "gptqmodel:marlin"})"},
           {"gptq_v2_w4_asym_g32", R"({"quant_method": "intel/auto-round", "bits": 4, "group_size": 32,
               "backend": "gptqmodel:marlin"})"},
           {"gptq_v1_w8_sym_g32", R"({"quant_method": "auto-round", "bits": 4, "group_size": 128,
               "packing_format": "auto_round:auto_gptq", "extra_config": {"a": {"bits": 8, "group_size": 32},
               "lm_head": {"bits": 16, "data_type": "float"}}})"},
           {"gptq_v2_w4_asym_g32", R"({"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": false,
               "packing_format": "auto_round:gptqmodel"})"},
           {"awq_gemm_w4_g16", R"({"quant_method": "auto-round", "bits": 4, "group_size": 16,
               "packing_format": "auto_round:auto_awq"})"},
           {"mxfp4_ct", R"({"quant_method": "auto-round", "bits": 4, "group_size": 32, "data_type": "mx_fp",
               "packing_format": "auto_round:llm_compressor"})"},
           {"nvfp4_ct", R"({"quant_method": "auto-round", "bits": 4, "group_size": 16, "data_type": "nv_fp4",
               "packing_format": "auto_round:llm_compressor"})"},
           {"ct_fp8_channel", R"({"quant_method": "auto-round", "bits": 8, "group_size": -1, "data_type": "fp8",
               "packing_format": "auto_round:fp8_static"})"},
           {"ct_fp8_channel", R"({"quant_method": "auto-round", "bits": 8, "group_size": -1, "data_type": "fp",
               "fmt": "e4m3", "act_bits": 16})"},
       }) {
    CAPTURE(name);
    const Vectors vectors(name);
    check_equal(decoded_as(vectors, config), floats_of(vectors.file["expected"]["a.weight"]["f32"]));
  }
}

TEST_CASE("Zero points of symmetric GPTQ are the middle of the codes") {
  Vectors vectors("gptq_v1_w4_sym_g32");
  const auto wanted = floats_of(vectors.file["expected"]["a.weight"]["f32"]);
  for (std::byte& two : vectors.tensors["a.qzeros"].bytes) two = std::byte{0x88};
  const std::string gptq = R"({"quant_method": "gptq", "bits": 4, "group_size": 32)";
  check_equal(decoded_as(vectors, (gptq + R"(, "sym": true})").c_str()), wanted);
  const auto off_by_one = decoded_as(vectors, (gptq + R"(, "sym": false})").c_str());
  CHECK(off_by_one != wanted);
  for (std::byte& two : vectors.tensors["a.qzeros"].bytes) two = std::byte{0x77};
  check_equal(decoded_as(vectors, (gptq + R"(, "sym": true, "checkpoint_format": "gptq_v2"})").c_str()), wanted);
  // Others are what the version says.
  const Vectors mixed("gptq_v1_w4_asym_g32");
  check_equal(decoded_as(mixed, (gptq + R"(, "sym": true})").c_str()),
              floats_of(mixed.file["expected"]["a.weight"]["f32"]));
}

TEST_CASE("Groups of compressed-tensors without weights are skipped") {
  const std::string head = R"({"quant_method": "compressed-tensors", "format": ")";
  const std::string cache = R"("kv_cache_scheme": {"num_bits": 8, "type": "float"})";
  CHECK(format_of((head + R"(dense", "config_groups": {}, )" + cache + "}").c_str()).bits == 0);
  CHECK(
      format_of(
          (head + R"(dense", "config_groups": {"group_0": {"targets": [], "weights": null}}, )" + cache + "}").c_str())
          .method == QuantMethod::kCompressedTensors);
  const WeightFormat format =
      format_of((head + R"(pack-quantized", "config_groups": {"attention": {"targets": ["LlamaAttention"],
          "input_activations": {"num_bits": 8, "type": "float"}}, "group_0": {"targets": ["Linear"], "weights":
          {"num_bits": 4, "group_size": 32}}}})")
                    .c_str());
  CHECK((format.bits == 4 && format.group_size == 32 && !format.has_exceptions));
}

TEST_CASE("Group indices of GPTQ are read unless desc_act is false") {
  const std::string gptq = R"({"quant_method": "gptq", "bits": 4)";
  const auto read_with = [](const std::string& config) {
    return names_read_for_format(format_of((config + "}").c_str()), "a.weight");
  };
  const std::vector<std::string> all = group_index_names("a.weight");
  CHECK(read_with(gptq) == all);
  CHECK(read_with(gptq + R"(, "desc_act": true)") == all);
  CHECK(read_with(gptq + R"(, "desc_act": true, "dynamic": {"+:up": {"desc_act": false}})") == all);
  CHECK(read_with(gptq + R"(, "desc_act": false, "dynamic": {"+:up": {"desc_act": true}})") == all);
  CHECK(read_with(gptq + R"(, "desc_act": false, "dynamic": {"+:up": {"bits": 8}, "-:down": {}})").empty());
  CHECK(read_with(gptq + R"(, "desc_act": false)").empty());
  CHECK(read_with(R"({"quant_method": "auto-round", "bits": 4)").empty());
}

TEST_CASE("Groups of AWQ gemv are those of its kernels") {
  for (const int size : {0, -1, 96}) {
    const std::string config =
        R"({"quant_method": "awq", "version": "gemv", "group_size": )" + std::to_string(size) + "}";
    const auto document = JsonDocument::parse(config).value();
    JsonObject object;
    REQUIRE(document.root().get(object));
    CHECK(parse_weight_format(object).error().message.find("group_size is " + std::to_string(size)) !=
          std::string::npos);
  }
  for (const int size : {32, 64, 128, 256}) {
    const std::string config = R"({"quant_method": "awq", "version": "gemv", "group_size": )" + std::to_string(size);
    CHECK(format_of((config + "}").c_str()).group_size == size);
  }
}

TEST_CASE("Versions of AWQ are read under the names of GPTQModel") {
  const std::string awq = R"({"quant_method": "awq", "bits": 4, "group_size": 128, )";
  const auto version = [&awq](const char* rest) { return format_of((awq + rest + "}").c_str()).awq_version; };
  CHECK(version(R"("format": "gemv")") == AwqVersion::kGemv);
  CHECK(version(R"("checkpoint_format": "gemv_fast", "format": "gemv_fast")") == AwqVersion::kGemvFast);
  CHECK(version(R"("version": "GEMM", "format": "gemv")") == AwqVersion::kGemm);
  CHECK(version(R"("zero_point": true)") == AwqVersion::kGemm);
  const auto document = JsonDocument::parse(R"({"method": "awq", "bits": 4, "format": "gemv"})").value();
  JsonObject object;
  REQUIRE(document.root().get(object));
  CHECK(parse_weight_format(object, "gptq").value().method == QuantMethod::kAwq);
}

TEST_CASE("Bytes of compressed-tensors have scales of several kinds") {
  constexpr int64_t kRows = 4;
  constexpr int64_t kCols = 8;
  Vectors vectors("quark_int8_channel");
  const WeightFormat format = format_of(R"({"quant_method": "compressed-tensors", "format": "int-quantized",
      "config_groups": {"W4A8": {"targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "group",
      "group_size": 4}}}})");
  CHECK(format.bits == 8);
  std::vector<std::byte> codes;
  for (int i = 0; i < kRows * kCols; ++i) codes.push_back(static_cast<std::byte>(i - 16));
  vectors.tensors = {{"a.weight", {"I8", {kRows, kCols}, codes}}};
  const auto values_with = [&](const std::vector<int64_t>& shape, int count) {
    std::vector<std::byte> scales(static_cast<size_t>(count) * sizeof(float));
    for (int i = 0; i < count; ++i) {
      const auto scale = static_cast<float>(1 << i);
      std::memcpy(scales.data() + static_cast<size_t>(i) * sizeof scale, &scale, sizeof scale);
    }
    vectors.tensors["a.weight_scale"] = {"F32", shape, scales};
    const auto stored = find_stored_weight(vectors.lookup(), format, "a.weight", kRows, kCols);
    REQUIRE(stored.has_value());
    std::vector<float> values(size_t{kRows} * kCols);
    decode_rows(**stored, 0, kRows, values.data());
    return values;
  };
  const auto whole = values_with({1}, 1);
  const auto rows = values_with({kRows, 1}, kRows);
  const auto groups = values_with({kRows, 2}, kRows * 2);
  for (int i = 0; i < kRows * kCols; ++i) {
    const auto at = static_cast<size_t>(i);
    CHECK(whole[at] == static_cast<float>(i - 16));
    CHECK(rows[at] == static_cast<float>((i - 16) * (1 << i / kCols)));
    CHECK(groups[at] == static_cast<float>((i - 16) * (1 << i / 4)));
  }
  const auto message = [&] {
    return find_stored_weight(vectors.lookup(), format, "a.weight", kRows, kCols).error().message;
  };
  vectors.tensors["a.weight_scale"].shape = {2, kRows};
  CHECK(message().find("'a.weight_scale' is F32 [2, 4], wanted") != std::string::npos);
  vectors.tensors["a.weight_scale"].shape = {kRows, 2};
  vectors.tensors["a.weight_zero_point"] = {"I8", {kRows, 2}, std::vector<std::byte>(size_t{kRows} * 2, std::byte{3})};
  CHECK(message().find("'a.weight_zero_point' is I8 [4, 2], wanted zeros") != std::string::npos);
}

TEST_CASE("Integers of w4afp8 with other shapes are refused") {
  const auto refusal = [](Vectors& vectors) {
    const auto [rows, cols] = vectors.shape_of("a.weight");
    const auto stored = find_stored_weight(vectors.lookup(), vectors.format(), "a.weight", rows, cols);
    REQUIRE(stored.has_error());
    return stored.error().message;
  };
  Vectors bytes("w4afp8_g128");
  bytes.tensors["a.weight"].shape = {5, 256};
  bytes.tensors["a.weight"].bytes.resize(size_t{5} * 256);
  CHECK(refusal(bytes).find("'a.weight' is I8 [5, 256], wanted [5, 128]") != std::string::npos);
  Vectors groups("w4afp8_g128");
  groups.tensors["a.weight_scale_inv"].shape = {5, 1};
  groups.tensors["a.weight_scale_inv"].bytes.resize(size_t{5} * 4);
  CHECK(refusal(groups).find("'a.weight_scale_inv' is F32 [5, 1], wanted [5, 2]") != std::string::npos);
  Vectors missing("w4afp8_g128");
  missing.tensors.erase("a.weight_scale_inv");
  CHECK(refusal(missing).find("without scales") != std::string::npos);
}

TEST_CASE("Weights of 8 bits beside integers of Quark are noted") {
  const std::string integers = R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int4",
      "qscheme": "per_group", "group_size": 32}})";
  CHECK_FALSE(format_of((integers + "}").c_str()).has_wider);
  const WeightFormat both = format_of((integers + R"(, "layer_quant_config": {"*q_proj": {"weight": {"dtype":
      "fp8_e4m3", "qscheme": "per_tensor"}}}})")
                                          .c_str());
  CHECK((both.has_wider && both.method == QuantMethod::kQuark && both.bits == 4));
  CHECK(format_of((integers + R"(, "layer_quant_config": {"*q_proj": {"weight": {"dtype": "int8", "qscheme":
      "per_channel"}}}})")
                      .c_str())
            .has_wider);
}

TEST_CASE("FP8 and FP4 of Quark decode") {
  const char* const fp8 = R"({"quant_method": "quark", "export": {"pack_method": "reorder", "weight_format":
      "real_quantized", "kv_cache_group": ["*k_proj"]}, "global_quant_config": {"weight": {"dtype": "fp8_e4m3",
      "qscheme": "per_tensor"}, "input_tensors": {"dtype": "fp8_e4m3"}}, "layer_quant_config": {"*k_proj": {"weight":
      {"dtype": "fp8_e4m3", "qscheme": "per_channel"}, "output_tensors": {"dtype": "fp8_e4m3"}}}, "algo_config": null,
      "exclude": ["lm_head"]})";
  CHECK(format_of(fp8).method == QuantMethod::kFp8);
  for (const char* name : {"ct_fp8_channel", "ct_fp8_tensor", "modelopt_fp8_tensor"}) {
    const Vectors vectors(name);
    check_equal(decoded_as(vectors, fp8), floats_of(vectors.file["expected"]["a.weight"]["f32"]));
  }
  const char* const block = R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3",
      "qscheme": "per_block", "block_size": [ROWS, COLS]}}})";
  for (const char* name : {"fp8_block", "fp8_block_e8m0"}) {
    Vectors vectors(name);
    std::string config = block;
    config.replace(config.find("ROWS"), 4, std::to_string(vectors.format().block_rows));
    config.replace(config.find("COLS"), 4, std::to_string(vectors.format().block_cols));
    check_equal(decoded_as(vectors, config.c_str(), "a.weight_scale_inv", "a.weight_scale"),
                floats_of(vectors.file["expected"]["a.weight"]["f32"]));
  }
  const char* const fp4 = R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "qscheme":
      "per_group", "group_size": 32, "scale_format": "e8m0"}}, "algo_config": [{"name": "autosmoothquant"}]})";
  const Vectors vectors("mxfp4_ct");
  check_equal(decoded_as(vectors, fp4, "a.weight_packed", "a.weight"),
              floats_of(vectors.file["expected"]["a.weight"]["f32"]));
  const char* const both = R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3",
      "qscheme": "per_channel"}}, "layer_quant_config": {"*experts*": {"weight": {"dtype": "fp4", "qscheme":
      "per_group", "group_size": 32, "scale_format": "e8m0"}}}})";
  CHECK(format_of(both).method == QuantMethod::kModelOpt);
  const char* const nvfp4 = R"({"quant_method": "quark", "global_quant_config": {"weight": [{"dtype": "fp4", "qscheme":
      "per_group", "group_size": 16, "scale_format": "float32"}, {"dtype": "fp8_e4m3", "qscheme": "per_tensor",
      "is_scale_quant": true}]}})";
  const Vectors of_modelopt("nvfp4_modelopt");
  check_equal(decoded_as(of_modelopt, nvfp4), floats_of(of_modelopt.file["expected"]["a.weight"]["f32"]));
}

TEST_CASE("Scaled zero points of AWQ that are no products are refused") {
  Vectors vectors("awq_gemv_fast_w4_g64");
  const auto [rows, cols] = vectors.shape_of("a.weight");
  const WeightFormat format = vectors.format();
  const auto message = [&](int product) {
    const auto half = static_cast<uint16_t>(product);
    Vectors damaged("awq_gemv_fast_w4_g64");
    std::memcpy(damaged.tensors["a.qzeros"].bytes.data() + 2, &half, sizeof(half));  // of row 1 and group 0
    const auto stored = find_stored_weight(damaged.lookup(), format, "a.weight", rows, cols);
    return stored.has_error() ? stored.error().message : std::string("none");
  };
  uint16_t scale = 0;
  std::memcpy(&scale, vectors.tensors["a.scales"].bytes.data() + 2, sizeof(scale));
  constexpr int kSign = 0x8000;
  constexpr int kDouble = 1 << 10;
  CHECK(message(0) == "none");
  Vectors older("awq_gemv_fast_w4_g64");
  older.tensors["a.scaled_zeros"] = older.tensors.extract("a.qzeros").mapped();
  CHECK(find_stored_weight(older.lookup(), format, "a.weight", rows, cols).has_value());
  CHECK(message(scale | kSign) == "none");                  // the zero point 1
  CHECK(message((scale + 3 * kDouble) | kSign) == "none");  // 8
  for (const int wrong : {int{scale}, (scale + 4 * kDouble) | kSign, (scale - kDouble) | kSign, 0x7C00, 0x7E00}) {
    CAPTURE(wrong);
    CHECK(message(wrong).find("a.qzeros': ") != std::string::npos);
  }
}

TEST_CASE("The stated shape of packed weights is checked in both types") {
  Vectors vectors("ct_w4a16_sym_g32");
  const auto [rows, cols] = vectors.shape_of("a.weight");
  const WeightFormat format = vectors.format();
  const auto message = [&](const char* dtype, auto first, auto second) {
    const std::array sides{first, second};
    const auto bytes = std::as_bytes(std::span(sides));
    vectors.tensors["a.weight_shape"] = {.dtype = dtype, .shape = {2}, .bytes = {bytes.begin(), bytes.end()}};
    const auto stored = find_stored_weight(vectors.lookup(), format, "a.weight", rows, cols);
    return stored.has_error() ? stored.error().message : std::string("none");
  };
  CHECK(message("I64", rows, cols) == "none");
  CHECK(message("I32", static_cast<int32_t>(rows), static_cast<int32_t>(cols)) == "none");
  CHECK(message("I64", rows, cols + 1).find("by its weight_shape") != std::string::npos);
  CHECK(message("I32", static_cast<int32_t>(cols), static_cast<int32_t>(rows)).find("by its weight_shape") !=
        std::string::npos);
  CHECK(message("F32", 1.0f, 2.0f).find("I64 or I32") != std::string::npos);
}

}  // namespace
}  // namespace millrace::weights
