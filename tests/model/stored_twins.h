#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "model/checkpoint_files.h"
#include "model/config.h"
#include "support/temporary_folder.h"
#include "weights/weight_format.h"

/// Models in the formats of quantized checkpoints, with random codes and scales.
namespace millrace::test {

/// Draws the parts of weights: codes of any value, and scales that keep the model's numbers small.
class Draw {
 public:
  explicit Draw(uint32_t seed) : engine_(seed) {}

  std::vector<std::byte> bytes(int64_t count, const std::function<bool(uint8_t)>& allowed = {}) {
    std::vector<std::byte> drawn;
    while (static_cast<int64_t>(drawn.size()) < count) {
      const auto each = static_cast<uint8_t>(engine_());
      if (!allowed || allowed(each)) drawn.push_back(static_cast<std::byte>(each));
    }
    return drawn;
  }
  std::vector<float> scales(int64_t count, float largest) {
    std::uniform_real_distribution<float> any(largest / 2, largest);
    std::vector<float> drawn;
    for (int64_t i = 0; i < count; ++i) drawn.push_back(any(engine_));
    return drawn;
  }
  std::vector<std::byte> bf16_scales(int64_t count, float largest) { return bf16_bytes_of(scales(count, largest)); }
  std::mt19937& engine() { return engine_; }

 private:
  std::mt19937 engine_;
};

/// Writes the tensors that store P.weight [rows, cols].
using WriteWeight =
    std::function<std::vector<RawTensorToWrite>(Draw&, const std::string& prefix, int64_t rows, int64_t cols)>;

/// The kind of a small model.
enum class ModelKind : uint8_t { kDense, kSparse, kLatent };

/// Returns a model of two layers, one of which is sparse if any is. All sizes but the vocabulary are those of hidden 64
/// and heads of 16 times `scale`.
[[nodiscard]] model::ModelConfig small_model(ModelKind kind, int32_t scale, int32_t vocab_size);

struct StoredFormat {
  const char* name;
  weights::WeightFormat format;
  WriteWeight write;
};

/// Returns FP8 with a scale per block.
[[nodiscard]] StoredFormat fp8_blocks(const char* name, int32_t block_rows, int32_t block_cols);
/// Returns a format that leaves tensors in bf16 whose names have a part.
[[nodiscard]] StoredFormat ignoring(StoredFormat format, const std::string& part);
/// Returns the formats. Those with groups have `group` columns in each where theirs is not fixed.
[[nodiscard]] std::vector<StoredFormat> stored_formats(int64_t group);

/// Writes the checkpoint of `tensors` into `plain`, where those that are `coded` in the folder `stored` have the values
/// of their codes in f32.
void write_values(const TemporaryFolder& stored, const weights::WeightFormat& format,
                  const std::vector<std::string>& coded, std::vector<RawTensorToWrite> tensors,
                  const TemporaryFolder& plain);

/// A random model in one format, and the same values as plain f32.
struct Twins {
  /// All projections and routers are stored in the format, and tables where `has_coded_embedding` says so.
  Twins(const model::ModelConfig& config, const StoredFormat& format, uint32_t seed, bool has_coded_embedding = false);

  TemporaryFolder stored;
  TemporaryFolder plain;
  std::vector<std::string> quantized;  ///< names of tensors
};

}  // namespace millrace::test
