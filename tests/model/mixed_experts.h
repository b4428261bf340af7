#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "model/checkpoint_files.h"
#include "model/config.h"
#include "model/tensor_list.h"

namespace millrace::test {

/// How a matrix of an expert is stored. Integers are those of compressed-tensors, in groups of 32 with bf16 scales.
enum class StoredAs : uint8_t {
  kF32,
  kFp8,        ///< a scale per row
  kFp8Blocks,  ///< scales of 128 x 32
  kInt4,       ///< with a group index in order
  kInt4Scattered,
  kInt4Zeros,
  kInt4F16,     ///< scales in f16
  kInt4F32,     ///< scales in f32 that no narrower type holds
  kInt4Narrow,  ///< scales in f32 that bf16 holds
  kInt8,
  kNvfp4,
  kW8,  ///< a scale per row, for w8a8_int8 alone
};

/// A small mixture whose experts are stored in several ways, and one with the same values in f32.
class MixedExperts {
 public:
  using StorageOf = std::function<StoredAs(int32_t expert, model::ExpertPart part)>;
  explicit MixedExperts(const StorageOf& storage_of);

  /// Returns the configs of the two folders. `quantization` is that of the command line.
  [[nodiscard]] model::ModelConfig stored_config(model::Quantization quantization = {}) const;
  [[nodiscard]] model::ModelConfig plain_config(model::Quantization quantization = {}) const;
  /// Returns the names of the experts [begin, end) of a layer, [experts, parts].
  [[nodiscard]] std::vector<std::string> names(int32_t layer, int32_t begin, int32_t end) const;

  static constexpr int32_t kExperts = 8;
  static constexpr int32_t kLayers = 2;
  TemporaryFolder stored;
  TemporaryFolder plain;  ///< not of kW8

 private:
  [[nodiscard]] std::vector<std::byte> random_bytes(int64_t count, uint8_t first, uint8_t last);
  [[nodiscard]] std::vector<float> random_scales(int64_t count);
  void add(StoredAs storage, const TensorToWrite& tensor);
  void add_fp8(StoredAs storage, const std::string& prefix, int64_t rows, int64_t cols);
  void add_integers(StoredAs storage, const std::string& prefix, int64_t rows, int64_t cols);
  void add_integer_scales(StoredAs storage, const std::string& name, int64_t rows, int64_t groups);
  void add_nvfp4(const std::string& prefix, int64_t rows, int64_t cols);

  std::minstd_rand engine_{5};
  bool has_w8_ = false;
  std::vector<RawTensorToWrite> file_;
};

}  // namespace millrace::test
