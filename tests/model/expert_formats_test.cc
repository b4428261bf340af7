#include "model/expert_formats.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>

#include "cpu/cpu_backend.h"
#include "model/mixed_experts.h"
#include "model/stored_twins.h"
#include "model/test_pipeline.h"
#include "model/weight_packer.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::model;
using test::MixedExperts;
using test::StoredAs;
using weights::StoredFormat;

namespace {

constexpr PackingRules kCpuRules{
    .keeps_fp8 = true, .keeps_codes = true, .keeps_half_minimums = true, .mixes_codes = true};
constexpr PackingRules kGpuRules{.keeps_fp8 = true, .keeps_codes = true};

StoredFormat fp8(int64_t scale_columns = 0) {
  return {.kind = StoredFormat::Kind::kFp8, .scale_columns = scale_columns};
}
StoredFormat int4(int64_t group = 32) {
  return {.kind = StoredFormat::Kind::kCodes, .scale_columns = group};
}
StoredFormat int8() {
  return {.kind = StoredFormat::Kind::kCodes, .layout = {.bits = 8}, .scale_columns = 32};
}
StoredFormat nvfp4() {
  return {.kind = StoredFormat::Kind::kCodes,
          .layout = {.values = tensor::CodeValues::kTwiceE2M1, .half_scales = tensor::CodeHalfScales::kE4M3},
          .scale_columns = 16};
}

/// Returns the decision for two experts.
ExpertFormats decide(const PackingRules& rules, const std::vector<StoredFormat>& one,
                     const std::vector<StoredFormat>& other) {
  std::vector<StoredFormat> all = one;
  all.insert(all.end(), other.begin(), other.end());
  return {all, one.size(), rules};
}

PackedBits bits(const PackingRules& rules, const std::vector<StoredFormat>& one,
                const std::vector<StoredFormat>& other) {
  return decide(rules, one, other).bits();
}

PackingRules with(PackingRules rules, Quantization quantization) {
  rules.quantization = quantization;
  return rules;
}

/// A way in which experts are stored, and the quantization of the command line.
struct MixedFormats {
  const char* name;
  MixedExperts::StorageOf storage_of;
  std::vector<Quantization> quantizations = {Quantization::kNone};
};

/// Returns a mixture in which the last expert alone differs, so that one rank of several has it.
MixedExperts::StorageOf but_last(StoredAs most, StoredAs last) {
  return [=](int32_t expert, ExpertPart) { return expert + 1 == MixedExperts::kExperts ? last : most; };
}

std::vector<MixedFormats> mixtures() {
  using enum StoredAs;
  const std::vector<Quantization> or_w4{Quantization::kNone, Quantization::kW4};
  return {
      {"integers but one", but_last(kInt4, kF32), or_w4},
      {"FP8 but one", but_last(kFp8, kF32), or_w4},
      {"FP8 in two sizes of blocks", but_last(kFp8, kFp8Blocks)},
      {"FP8 and integers", but_last(kFp8, kInt4), or_w4},
      {"NVFP4 and integers", but_last(kNvfp4, kInt4), or_w4},
      {"NVFP4 but one", but_last(kNvfp4, kF32), or_w4},
      {"scattered groups in one", but_last(kInt4, kInt4Scattered), or_w4},
      {"zero points in one", but_last(kInt4, kInt4Zeros)},
      {"4 and 8 bits", but_last(kInt4, kInt8), or_w4},
      {"8 bits in downs", [](int32_t, ExpertPart part) { return part == ExpertPart::kDown ? kInt8 : kInt4; }},
      {"one up of another kind",
       [](int32_t expert, ExpertPart part) { return expert == 6 && part == ExpertPart::kUp ? kNvfp4 : kInt4; }, or_w4},
      {"one stored in w8a8_int8", but_last(kF32, kW8)},
  };
}

std::vector<float> logits_of(const std::filesystem::path& folder, const ModelConfig& config, size_t ranks,
                             int32_t stages) {
  std::vector<std::unique_ptr<tensor::Backend>> backends;
  for (size_t i = 0; i < ranks; ++i)
    backends.push_back(cpu::make_backend({.threads = 1, .compute_dtype = tensor::DType::kBF16}));
  return test::prompt_logits(folder, config, backends, stages, 16);
}

/// A hub's copy of a checkpoint that has no bytes but headers and what is fetched.
class PartialSource final : public RangeSource {
 public:
  PartialSource(const std::filesystem::path& from, const std::filesystem::path& to) : to_(to) {
    std::ifstream file(from, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    uint64_t header = 0;
    std::memcpy(&header, bytes_.data(), sizeof(header));
    header += sizeof(header);
    std::ofstream(to, std::ios::binary) << bytes_.substr(0, header) << std::string(bytes_.size() - header, '\0');
  }
  bool contains(std::string_view file) const override { return file == to_.filename().string(); }
  Result<void> prepare_file(const std::string&) override { return {}; }
  Result<void> fetch(std::span<const FileRange> ranges) override {
    std::fstream file(to_, std::ios::binary | std::ios::in | std::ios::out);
    for (const FileRange& range : ranges) {
      file.seekp(static_cast<std::streamoff>(range.begin));
      file.write(bytes_.data() + range.begin, static_cast<std::streamsize>(range.end - range.begin));
      fetched.insert({range.begin, range.end});
    }
    return {};
  }

  std::set<std::pair<uint64_t, uint64_t>> fetched;

 private:
  std::filesystem::path to_;
  std::string bytes_;
};

}  // namespace

TEST_CASE("Experts keep FP8 if all are stored so") {
  const std::vector<StoredFormat> all(3, fp8());
  CHECK(bits(kCpuRules, all, all) == PackedBits::kFp8);
  CHECK(bits(kCpuRules, all, {fp8(), fp8(), fp8(128)}) == PackedBits::kFp8);
  CHECK(bits(kGpuRules, all, all) == PackedBits::kFp8);
  CHECK(bits(kGpuRules, {fp8(), fp8(), fp8(128)}, {fp8(), fp8(), fp8(128)}) == PackedBits::kFp8);
  CHECK(bits(kGpuRules, all, {fp8(), fp8(), fp8(128)}) == PackedBits::kCompute);
  for (const PackingRules& rules : {kCpuRules, kGpuRules}) {
    CHECK(bits(rules, all, {fp8(), fp8(), StoredFormat{}}) == PackedBits::kCompute);
    CHECK(bits(rules, all, {fp8(), fp8(), int4()}) == PackedBits::kCompute);
  }
}

TEST_CASE("Experts keep codes of one kind on a GPU and of any on a CPU") {
  const std::vector<StoredFormat> all(3, int4());
  const std::vector<StoredFormat> wide_downs{int4(), int4(), int8()};
  CHECK(bits(kGpuRules, all, all) == PackedBits::k4);
  CHECK(bits(kGpuRules, wide_downs, wide_downs) == PackedBits::k4);
  for (const auto& other :
       {wide_downs, {int8(), int8(), int4()}, {int4(64), int4(), int4()}, {nvfp4(), nvfp4(), int4()}}) {
    CHECK(bits(kGpuRules, all, other) == PackedBits::kCompute);
    CHECK(bits(kCpuRules, all, other) == PackedBits::k4);
  }
  // Gate and up share panels.
  const std::vector<StoredFormat> unlike{int4(), int8(), int4()};
  CHECK(bits(kGpuRules, unlike, unlike) == PackedBits::kCompute);
  CHECK(bits(kCpuRules, unlike, unlike) == PackedBits::k4);
  CHECK(bits(kCpuRules, all, {nvfp4(), int4(), int4()}) == PackedBits::kCompute);
  CHECK(bits(kCpuRules, {int4(), int4()}, {int4(), StoredFormat{}}) == PackedBits::kCompute);
}

TEST_CASE("Experts that w4 quantizes keep codes that fit") {
  const std::vector<StoredFormat> all(3, int4());
  const PackingRules gpu = with(kGpuRules, Quantization::kW4);
  CHECK(bits(gpu, all, std::vector<StoredFormat>(3)) == PackedBits::k4);
  CHECK(decide(gpu, all, all).keeps_inputs());
  CHECK(decide(gpu, all, all).keeps_downs());
  const ExpertFormats wide_down = decide(gpu, all, {int4(), int4(), int8()});
  CHECK(wide_down.keeps_inputs());
  CHECK(!wide_down.keeps_downs());
  const ExpertFormats plain_up = decide(gpu, all, {int4(), StoredFormat{}, int4()});
  CHECK(!plain_up.keeps_inputs());
  CHECK(plain_up.keeps_downs());
  CHECK(decide(with(kCpuRules, Quantization::kW4), all, std::vector<StoredFormat>(3)).keeps_inputs());
}

TEST_CASE("Experts of 8 bits are all quantized if one is stored so") {
  PackingRules rules = with(kCpuRules, Quantization::kW8A8Int8);
  const std::vector<StoredFormat> plain(3);
  const StoredFormat w8{.kind = StoredFormat::Kind::kW8};
  CHECK(bits(rules, plain, plain) == PackedBits::k8);
  rules.quantizes_all = false;
  CHECK(bits(rules, plain, plain) == PackedBits::kCompute);
  CHECK(bits(rules, plain, {StoredFormat{}, w8, StoredFormat{}}) == PackedBits::k8);
}

TEST_CASE("Experts in several formats have equal bits on any division") {
  for (const MixedFormats& mixture : mixtures()) {
    const MixedExperts model(mixture.storage_of);
    for (const Quantization quantization : mixture.quantizations) {
      CAPTURE(mixture.name, to_string(quantization));
      const ModelConfig config = model.stored_config(quantization);
      const std::vector<float> whole = logits_of(model.stored.path(), config, 1, 1);
      REQUIRE(std::ranges::all_of(whole, [](float logit) { return std::isfinite(logit); }));
      for (const auto& [ranks, stages] : {std::pair<size_t, int32_t>{1, 2}, {2, 1}, {4, 1}, {2, 2}, {4, 2}}) {
        CAPTURE(ranks, stages);
        CHECK(logits_of(model.stored.path(), config, ranks, stages) == whole);
      }
    }
  }
}

TEST_CASE("A rank knows the formats of all experts and fetches its own") {
  const auto backend = cpu::make_backend({.threads = 1, .compute_dtype = tensor::DType::kBF16});
  for (const StoredAs last : {StoredAs::kInt4, StoredAs::kInt4Scattered}) {
    const MixedExperts model(but_last(StoredAs::kInt4, last));
    const ModelConfig config = model.stored_config();
    const auto whole = SafetensorsFile::open(model.stored.path() / kSafetensorsName).value();
    for (int32_t rank = 0; rank < 4; ++rank) {
      CAPTURE(static_cast<int>(last), rank);
      const test::TemporaryFolder own;
      const auto source = std::make_shared<PartialSource>(whole->path(), own.path() / kSafetensorsName);
      const auto checkpoint = Checkpoint::open(own.path(), source).value();
      const LoadOptions options{.position = {.rank = rank, .size = 4}};
      WeightPacker packer(*checkpoint, *backend, config, options);
      REQUIRE(packer.resolve(stage_tensors(config, {.layers = {0, MixedExperts::kLayers}})).has_value());
      const std::vector<std::string> names = model.names(1, rank * 2, rank * 2 + 2);
      const bool keeps = last == StoredAs::kInt4;
      CHECK(packer.expert_packing(1, names).formats.bits() == (keeps ? PackedBits::k4 : PackedBits::kCompute));
      for (int32_t expert = 0; expert < MixedExperts::kExperts; ++expert) {
        for (std::string name : model.names(1, expert, expert + 1)) {
          name.replace(name.rfind('.'), std::string::npos, ".weight_packed");
          CAPTURE(name);
          CHECK(source->fetched.contains(whole->byte_range(name)) == (expert / 2 == rank));
        }
      }
    }
  }
}

TEST_CASE("A rank fetches no group indices of others without desc_act") {
  const auto backend = cpu::make_backend({.threads = 1, .compute_dtype = tensor::DType::kBF16});
  const std::vector<test::StoredFormat> all = test::stored_formats(32);
  for (const char* name : {"GPTQ in order", "GPTQ"}) {
    const test::StoredFormat& format = *std::ranges::find_if(
        all, [name](const test::StoredFormat& each) { return std::string_view(each.name) == name; });
    ModelConfig config = test::small_model(test::ModelKind::kSparse, 2, 64);
    const test::Twins twins(config, format, 5);
    config.weight_format = format.format;
    const auto whole = SafetensorsFile::open(twins.stored.path() / kSafetensorsName).value();
    for (const bool says_order : {false, true}) {
      CAPTURE(name, says_order);
      config.weight_format.has_groups_in_order = says_order;
      const test::TemporaryFolder own;
      const auto source = std::make_shared<PartialSource>(whole->path(), own.path() / kSafetensorsName);
      const auto checkpoint = Checkpoint::open(own.path(), source).value();
      const LoadOptions options{.position = {.rank = 1, .size = 4}};
      WeightPacker packer(*checkpoint, *backend, config, options);
      const auto resolved = packer.resolve(stage_tensors(config, {.layers = {0, 2}}));
      const bool is_scattered = format.name == std::string_view("GPTQ");
      if (is_scattered && says_order) {
        CHECK_THAT(resolved.error().message, test::Mentions("group indices", "experts", "desc_act false"));
        continue;
      }
      REQUIRE(resolved.has_value());
      std::vector<std::string> names;
      for (int32_t expert = 0; expert < 8; ++expert) {
        for (const ExpertPart part : expert_parts(config.layer(1).feed_forward)) {
          std::string index = expert_tensor_name(config, 1, expert, part);
          if (expert / 2 == 1) names.push_back(index);
          index.replace(index.rfind('.'), std::string::npos, ".g_idx");
          CAPTURE(index);
          CHECK(source->fetched.contains(whole->byte_range(index)) == (expert / 2 == 1 || !says_order));
        }
      }
      CHECK(packer.expert_packing(1, names).formats.bits() == (is_scattered ? PackedBits::kCompute : PackedBits::k4));
    }
  }
}
