// Experts that are stored in one tensor for all, in codes with scales of their own.

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "cpu/cpu_backend.h"
#include "model/random_model.h"
#include "model/stored_twins.h"
#include "model/test_pipeline.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::model;
using test::bytes_of;
using test::RawTensorToWrite;

namespace {

constexpr int64_t kExperts = 8;
constexpr int64_t kHidden = 64;
constexpr int64_t kWidth = 32;

/// How the codes of gate and up, [rows, hidden] each, are put together.
enum class Fused : uint8_t { kNot, kRows, kColumns };

/// A model with FP8 experts, of which each has a scale for gate and up, and one for down.
class Fp8Experts {
 public:
  Fp8Experts() : config_(test::small_model(test::ModelKind::kSparse, 1, 64)) {
    config_.weight_format = {.method = weights::QuantMethod::kFp8};
    test::Draw draw(3);
    const auto finite = [](uint8_t code) { return (code & 0x78) < 0x48; };
    for (int64_t expert = 0; expert < kExperts; ++expert) {
      for (auto* codes : {&gates_, &ups_, &downs_}) codes->push_back(draw.bytes(kWidth * kHidden, finite));
    }
    gate_scales_ = draw.scales(kExperts, 0.05f);
    down_scales_ = draw.scales(kExperts, 0.05f);
  }

  [[nodiscard]] ModelConfig config(Fused fused) const {
    ModelConfig config = config_;
    if (fused == Fused::kRows) config.names.expert_storage = ExpertStorage::kRows;
    if (fused == Fused::kColumns) config.names.expert_storage = ExpertStorage::kColumnHalves;
    return config;
  }

  /// Writes the model. `planes` are those of the scales.
  void write(Fused fused, const test::TemporaryFolder& folder, int64_t planes = kExperts) const {
    std::vector<RawTensorToWrite> file;
    for (const test::TensorToWrite& tensor : test::RandomModel(config_, 7).tensors()) {
      if (tensor.name.find(".experts.") == std::string::npos)
        file.push_back({tensor.name, "F32", tensor.shape, bytes_of(tensor.values)});
    }
    if (fused == Fused::kNot)
      add_separate(file);
    else
      add_fused(fused, planes, file);
    folder.write("model.safetensors", test::raw_safetensors_text(file));
  }

 private:
  using Codes = std::vector<std::byte>;
  static constexpr const char* kPlace = "model.layers.1.mlp.experts.";

  void add_separate(std::vector<RawTensorToWrite>& file) const {
    for (size_t expert = 0; expert < kExperts; ++expert) {
      const auto add = [&](const char* part, const Codes& codes, int64_t rows, int64_t cols, float scale) {
        const std::string name = fmt::format("{}{}.{}", kPlace, expert, part);
        file.push_back({name + ".weight", "F8_E4M3", {rows, cols}, codes});
        file.push_back({name + ".weight_scale_inv", "F32", {}, bytes_of(std::vector<float>{scale})});
      };
      add("gate_proj", gates_[expert], kWidth, kHidden, gate_scales_[expert]);
      add("up_proj", ups_[expert], kWidth, kHidden, gate_scales_[expert]);
      add("down_proj", downs_[expert], kHidden, kWidth, down_scales_[expert]);
    }
  }

  /// Appends a matrix [rows, cols] or its transpose.
  static void append(const Codes& matrix, int64_t rows, int64_t cols, bool transposed, Codes& to) {
    if (!transposed) {
      to.insert(to.end(), matrix.begin(), matrix.end());
      return;
    }
    for (int64_t col = 0; col < cols; ++col) {
      for (int64_t row = 0; row < rows; ++row) to.push_back(matrix[static_cast<size_t>(row * cols + col)]);
    }
  }

  void add_fused(Fused fused, int64_t planes, std::vector<RawTensorToWrite>& file) const {
    const bool transposed = fused == Fused::kColumns;
    Codes gate_up;
    Codes down;
    for (size_t expert = 0; expert < kExperts; ++expert) {
      Codes both = gates_[expert];
      both.insert(both.end(), ups_[expert].begin(), ups_[expert].end());
      append(both, 2 * kWidth, kHidden, transposed, gate_up);
      append(downs_[expert], kHidden, kWidth, transposed, down);
    }
    const auto add = [&](const char* part, Codes codes, int64_t rows, int64_t cols, std::vector<float> scales) {
      const std::string name = fmt::format("{}{}", kPlace, part);
      scales.resize(static_cast<size_t>(planes), 1.0f);
      if (transposed) std::swap(rows, cols);
      file.push_back({name, "F8_E4M3", {kExperts, rows, cols}, std::move(codes)});
      file.push_back({name + "_scale_inv", "F32", {planes, 1, 1}, bytes_of(scales)});
      file.push_back({name + "_activation_scale", "F32", {planes, 1, 1}, bytes_of(scales)});
    };
    add("gate_up_proj", std::move(gate_up), 2 * kWidth, kHidden, gate_scales_);
    add("down_proj", std::move(down), kHidden, kWidth, down_scales_);
  }

  ModelConfig config_;
  std::vector<Codes> gates_;  // of each expert
  std::vector<Codes> ups_;
  std::vector<Codes> downs_;
  std::vector<float> gate_scales_;
  std::vector<float> down_scales_;
};

std::vector<float> logits_of(const Fp8Experts& experts, Fused fused, tensor::DType dtype, size_t ranks = 1) {
  const test::TemporaryFolder folder;
  experts.write(fused, folder);
  std::vector<std::unique_ptr<tensor::Backend>> backends;
  for (size_t i = 0; i < ranks; ++i) backends.push_back(cpu::make_backend({.threads = 1, .compute_dtype = dtype}));
  return test::prompt_logits(folder.path(), experts.config(fused), backends, 2, 16);
}

}  // namespace

TEST_CASE("FP8 experts in one tensor equal those of their own") {
  const Fp8Experts experts;
  for (const tensor::DType dtype : {tensor::DType::kF32, tensor::DType::kBF16}) {
    const std::vector<float> own = logits_of(experts, Fused::kNot, dtype);
    REQUIRE(logits_of(experts, Fused::kRows, dtype) == own);
    REQUIRE(logits_of(experts, Fused::kRows, dtype, 2) == own);
  }
  // Columns are decoded, which rounds nothing in f32.
  const std::vector<float> own = logits_of(experts, Fused::kNot, tensor::DType::kF32);
  const std::vector<float> columns = logits_of(experts, Fused::kColumns, tensor::DType::kF32);
  REQUIRE(columns.size() == own.size());
  for (size_t i = 0; i < own.size(); ++i) REQUIRE(columns[i] == Approx(own[i]).margin(1e-4));
}

TEST_CASE("FP8 experts in one tensor need a scale for each") {
  const Fp8Experts experts;
  const test::TemporaryFolder folder;
  experts.write(Fused::kRows, folder, kExperts - 1);
  const auto checkpoint = Checkpoint::open(folder.path()).value();
  const auto found = checkpoint->find_weight("model.layers.1.mlp.experts.gate_up_proj", {kExperts, 2 * kWidth, kHidden},
                                             experts.config(Fused::kRows).weight_format, 7);
  REQUIRE(found.has_error());
  REQUIRE(found.error().code == ErrorCode::kData);
  REQUIRE_THAT(found.error().message, test::Mentions("gate_up_proj_scale_inv", "7, 1, 1", "8"));
}
