#pragma once

#include <algorithm>
#include <array>

#include "cuda/coded_weight.h"
#include "cuda/device.h"
#include "cuda/kernels.h"
#include "tensor/backend.h"

namespace millrace::cuda {

/// A vector of f32 in device memory.
class CudaVector final : public tensor::DeviceVector {
 public:
  CudaVector(tensor::Buffer values, int64_t size) : values_(std::move(values)), size_(size) {}
  [[nodiscard]] int64_t size() const override { return size_; }
  [[nodiscard]] const float* data() const { return reinterpret_cast<const float*>(values_.data()); }

 private:
  tensor::Buffer values_;  // f32 [size]
  int64_t size_;
};

/// A packed weight in device memory.
class CudaWeight final : public tensor::PackedWeight {
 public:
  /// Takes a weight. One with shards has them in columns that are `shards` of x.
  CudaWeight(tensor::Buffer packed, DeviceWeight weight, const DeviceShards& shards = {})
      : packed_(std::move(packed)), weight_(weight), shards_(shards) {}
  [[nodiscard]] int64_t out_features() const override {
    return weight_.columns > 0 ? weight_.columns : weight_.out_features;
  }
  [[nodiscard]] int64_t in_features() const override {
    return is_sharded() ? shards_.border[shards_.count] : weight_.in_features;
  }
  void set_whole_features(int64_t count) override {
    weight_.whole_features = static_cast<int32_t>(count);
    if (rest_) rest_->set_whole_features(count);
  }
  [[nodiscard]] const DeviceWeight& get() const { return weight_; }
  /// Returns the weight of the output's next columns, whose format differs; null: there are none.
  [[nodiscard]] const CudaWeight* rest() const { return rest_.get(); }
  void set_rest(std::unique_ptr<CudaWeight> rest) { rest_ = std::move(rest); }
  [[nodiscard]] bool is_sharded() const { return shards_.count > 0; }
  /// Returns the shards as columns of x.
  [[nodiscard]] const DeviceShards& shards() const { return shards_; }
  /// Returns whether rows of x need zeros before some shards.
  [[nodiscard]] bool spreads_shards() const { return is_sharded() && in_features() != weight_.in_features; }

 private:
  tensor::Buffer packed_;
  DeviceWeight weight_;
  DeviceShards shards_;
  std::unique_ptr<CudaWeight> rest_;  // never of a weight with shards, or of gate and up
};

/// Returns the scratch bytes of a GEMM of up to `rows` rows with a weight of one kind.
[[nodiscard]] inline size_t own_scratch_bytes(const CudaWeight& weight, int32_t rows) {
  const DeviceWeight& packed = weight.get();
  if (packed.format.codes == WeightCodes::kE4M3Both) return fp8_workspace_bytes(packed, rows);
  if (packed.is_f32) return 0;
  if (packed.format.codes != WeightCodes::kBf16) return dequantizing_workspace_bytes(packed, rows);
  if (weight.is_sharded()) return sharded_workspace_bytes(packed, rows);
  return matmul_workspace_bytes(packed, rows);
}
/// Returns the scratch bytes of a GEMM of up to `rows` rows.
[[nodiscard]] inline size_t gemm_scratch_bytes(const CudaWeight& weight, int32_t rows) {
  size_t most = 0;
  for (const CudaWeight* part = &weight; part != nullptr; part = part->rest())
    most = std::max(most, own_scratch_bytes(*part, rows));
  return most;
}
/// Returns the scratch bytes of rows of x with zeros between the shards.
[[nodiscard]] inline size_t spread_scratch_bytes(const CudaWeight& weight, int64_t rows) {
  if (!weight.spreads_shards()) return 0;
  return static_cast<size_t>(rows) * static_cast<size_t>(weight.get().in_features) * sizeof(uint16_t);
}

/// The vectors of a sparse layer's experts; each may be null.
struct ExpertVectors {
  std::unique_ptr<CudaVector> choice_bias;
  std::unique_ptr<CudaVector> expert_scales;
  std::unique_ptr<CudaVector> gate_up_biases;
  std::unique_ptr<CudaVector> down_biases;
};

/// The experts of a sparse layer in device memory.
class CudaExperts final : public tensor::Experts {
 public:
  /// Takes the parts to which `device` points.
  CudaExperts(tensor::Buffer gate_up, tensor::Buffer down, ExpertVectors vectors, const tensor::Routing& routing,
              const DeviceExperts& device)
      : gate_up_(std::move(gate_up)),
        down_(std::move(down)),
        vectors_(std::move(vectors)),
        routing_(routing),
        device_(device) {}
  [[nodiscard]] int32_t count() const override { return device_.count; }
  [[nodiscard]] const tensor::Routing& routing() const override { return routing_; }
  [[nodiscard]] const DeviceExperts& get() const { return device_; }

 private:
  tensor::Buffer gate_up_;  // [own experts] packed weights
  tensor::Buffer down_;     // [own experts] packed weights
  ExpertVectors vectors_;
  tensor::Routing routing_;
  DeviceExperts device_;
};

/// An embedding table in device memory.
class CudaEmbedding final : public tensor::EmbeddingTable {
 public:
  CudaEmbedding(tensor::Buffer table, int64_t vocab, int64_t width)
      : table_(std::move(table)), vocab_(vocab), width_(width) {}
  [[nodiscard]] const std::byte* data() const { return table_.data(); }
  [[nodiscard]] int64_t vocab() const { return vocab_; }
  [[nodiscard]] int64_t width() const { return width_; }

 private:
  tensor::Buffer table_;  // bf16 [vocab, width]
  int64_t vocab_;
  int64_t width_;
};

/// Loads tensors of a checkpoint onto the device in its kernels' layout. Blocks of rows are read from the file into
/// pinned memory while earlier blocks are copied and packed. Owned by a backend; thread-safe.
class WeightLoader {
 public:
  explicit WeightLoader(Device& device) : device_(device) {}
  [[nodiscard]] std::unique_ptr<CudaVector> load_vector(std::span<const float> values);
  /// Implements Backend::pack.
  [[nodiscard]] std::unique_ptr<CudaWeight> pack(std::span<const tensor::HostTensor> parts);
  /// Implements Backend::pack_f32.
  [[nodiscard]] std::unique_ptr<CudaWeight> pack_f32(const tensor::HostTensor& weight);
  /// Implements Backend::pack_gate_up.
  [[nodiscard]] std::unique_ptr<CudaWeight> pack_gate_up(const tensor::HostTensor& gate, const tensor::HostTensor& up);
  /// Implements Backend::pack_sharded.
  [[nodiscard]] std::unique_ptr<CudaWeight> pack_sharded(const tensor::HostTensor& part,
                                                         const tensor::SumShards& shards);
  /// Packs matrices of one shape as weights of their own, one after another.
  [[nodiscard]] tensor::Buffer pack_each(std::span<const tensor::HostTensor> matrices);
  /// Packs weights of 4 or 8 bits of one kind one above the other or, with `gate_up`, as a pair.
  [[nodiscard]] std::unique_ptr<CudaWeight> pack_coded(std::vector<CodedPart> parts, bool gate_up);
  /// Implements Backend::pack_codes. Neighbours of one kind become one weight.
  [[nodiscard]] std::unique_ptr<CudaWeight> pack_codes(std::span<const tensor::CodeMatrix> parts);
  /// Packs such a weight whose sums have shards. Where a shard cuts 32 inputs with one scale, the weight becomes bf16.
  [[nodiscard]] std::unique_ptr<CudaWeight> pack_sharded_coded(const CodedPart& part, const tensor::SumShards& shards);
  /// Implements Backend::make_embedding.
  [[nodiscard]] std::unique_ptr<CudaEmbedding> load_embedding(const tensor::HostTensor& table);
  /// Implements Backend::pack_experts.
  [[nodiscard]] std::unique_ptr<tensor::ExpertPacker> pack_experts(int32_t count, const tensor::ExpertOptions& options,
                                                                   tensor::RankPosition position);

 private:
  class ExpertPacker;
  struct Block {
    tensor::Buffer pinned;     // [block bytes]
    tensor::Buffer on_device;  // [block bytes]
    Event free;                // set when both may be written to
  };
  [[nodiscard]] Block& current_block() { return blocks_[block_]; }
  /// Packs a weight of 4 or 8 bits. With shards, `source` has them as columns of x. Called without mutex_.
  [[nodiscard]] std::unique_ptr<CudaWeight> load_coded(CodedWeight coded, const DeviceShards& source = {});
  // All of these run with mutex_ held. Packed data is ready when the stream Device::set_up has reached it.
  /// Returns numbers in device memory, complete.
  [[nodiscard]] tensor::Buffer load_floats(std::span<const float> values);
  /// Allocates `count` packed weights, contiguous.
  [[nodiscard]] tensor::Buffer allocate_packed(const DeviceWeight& weight, int64_t count);
  /// Returns the block after the current one, once both of its memories may be written to.
  [[nodiscard]] Block& next_block();
  /// Receives one block of rows after another: use(rows on the device, first row, count).
  using UseRows = std::function<void(const std::byte* rows, int64_t first, int64_t count)>;
  void stream_rows(const tensor::HostTensor& matrix, const UseRows& use);
  void pack_part(const tensor::HostTensor& part, int64_t first_feature, PackAs as, std::byte* packed);
  /// Packs a weight that is not in bf16 into zeroed memory.
  void pack_panels(const CodedWeight& weight, std::byte* packed);
  void pack_both(const tensor::HostTensor& gate, const tensor::HostTensor& up, std::byte* packed);

  Device& device_;
  std::mutex mutex_;
  std::array<Block, 3> blocks_;  // allocated when first used; guarded by mutex_, as the rest
  size_t block_ = 0;             // the current one
};

}  // namespace millrace::cuda
