#include "tensor/backend.h"

#include <future>
#include <utility>

#include "base/check.h"
#include "tensor/collective.h"

namespace millrace::tensor {

Buffer::Buffer(void* data, size_t bytes, std::function<void(void*)> release)
    : data_(data), bytes_(bytes), release_(std::move(release)) {}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      release_(std::exchange(other.release_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(release_, other.release_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr && release_) release_(data_);
}

void ExpertPacker::add_w8(const W8Matrix&, const W8Matrix&, const W8Matrix&, W8Activations) {
  CHECK(false, "experts of 8 bits for a backend that packs none");
}

void ExpertPacker::add_codes(const CodeMatrix&, const CodeMatrix&, const CodeMatrix&) {
  CHECK(false, "experts of 4 bits for a backend that packs none");
}

void ExpertPacker::add_fp8(const Fp8Matrix&, const Fp8Matrix&, const Fp8Matrix&) {
  CHECK(false, "experts in FP8 for a backend that packs none");
}

std::unique_ptr<PackedWeight> Backend::pack_fp8(std::span<const Fp8Matrix>) {
  CHECK(false, "{} packs no weights in FP8", description());
}

std::unique_ptr<PackedWeight> Backend::pack_gate_up_fp8(const Fp8Matrix&, const Fp8Matrix&) {
  CHECK(false, "{} packs no weights in FP8", description());
}

std::unique_ptr<PackedWeight> Backend::pack_sharded_fp8(const Fp8Matrix&, const SumShards&) {
  CHECK(false, "{} packs no weights in FP8", description());
}

std::unique_ptr<EmbeddingTable> Backend::make_decoding_embedding(int64_t, int64_t, ReadRowsFn) {
  CHECK(false, "{}: does not decode the rows of embeddings", description());
}

std::unique_ptr<PackedWeight> Backend::pack_codes(std::span<const CodeMatrix>) {
  CHECK(false, "{} packs no weights of 4 bits", description());
}

std::unique_ptr<PackedWeight> Backend::pack_sharded_codes(const CodeMatrix&, const SumShards&) {
  CHECK(false, "{} packs no weights of 4 bits", description());
}

std::unique_ptr<PackedWeight> Backend::pack_gate_up_codes(const CodeMatrix&, const CodeMatrix&) {
  CHECK(false, "{} packs no weights of 4 bits", description());
}

void ExpertPacker::add_biases(const ExpertBiases&) {
  CHECK(false, "experts with biases for a backend that computes none");
}

std::unique_ptr<PackedWeight> Backend::pack_f32(const HostTensor&) {
  CHECK(false, "{} has no {}", description(), enum_name(Feature::kF32Weights));
}

std::unique_ptr<PackedWeight> Backend::pack_w8(std::span<const W8Matrix>, W8Activations) {
  CHECK(false, "{} packs no weights of 8 bits", description());
}

std::unique_ptr<PackedWeight> Backend::pack_sharded_w8(const W8Matrix&, W8Activations, const SumShards&) {
  CHECK(false, "{} packs no weights of 8 bits", description());
}

std::unique_ptr<PackedWeight> Backend::pack_gate_up_w8(const W8Matrix&, const W8Matrix&, W8Activations) {
  CHECK(false, "{} packs no weights of 8 bits", description());
}

void Backend::row_magnitudes(Matrix, Matrix) {
  CHECK(false, "{} has no weights with row scales", description());
}

void Backend::matmul_integers(Matrix, const PackedWeight&, Matrix, IntMatrix) {
  CHECK(false, "{} has no weights with row scales", description());
}

void Backend::scale_integers(IntMatrix, const PackedWeight&, Matrix, Matrix) {
  CHECK(false, "{} has no weights with row scales", description());
}

void Backend::add_embedding(const EmbeddingTable&, const UploadedIndices&, Matrix) {
  CHECK(false, "{} has no {}", description(), enum_name(Feature::kEncoders));
}

void Backend::layer_norm(Matrix, const DeviceVector&, const DeviceVector*, float, bool, Matrix) {
  CHECK(false, "{} computes no LayerNorm", description());
}

void Backend::rms_norm_in_place(Matrix, const DeviceVector&, float) {
  CHECK(false, "{} has no {}", description(), enum_name(Feature::kExpertNorms));
}

void Backend::convert(Matrix, Matrix) {
  CHECK(false, "{} does not convert activations", description());
}

void Backend::scale(Matrix, float) {
  CHECK(false, "{} does not scale activations", description());
}

void Backend::soft_cap(Matrix, float) {
  CHECK(false, "{} computes no soft cap", description());
}

void Backend::gelu_tanh_mul(Matrix, Matrix) {
  CHECK(false, "{} computes no GELU with tanh", description());
}

void Backend::gelu_tanh_gate(Matrix, Matrix, int64_t, Matrix) {
  CHECK(false, "{} computes no GELU with tanh", description());
}

void Backend::scaled_silu_mul(Matrix, float, Matrix) {
  CHECK(false, "{} computes no {}", description(), enum_name(Feature::kScaledGates));
}

void Backend::relu_squared(Matrix, Matrix) {
  CHECK(false, "{} computes no {}", description(), enum_name(Feature::kReluSquared));
}

void Backend::add_scaled_sums(Matrix, const DeviceVector*, const DeviceVector*, float, float, Matrix) {
  CHECK(false, "{} does not scale sums", description());
}

void Backend::gelu(Matrix, Matrix) {
  CHECK(false, "{} has no {}", description(), enum_name(Feature::kEncoders));
}

void Backend::add_gated_sums(Matrix, Matrix, Matrix) {
  CHECK(false, "{} has no {}", description(), enum_name(Feature::kGatedSums));
}

std::unique_ptr<LatentExpansion> Backend::pack_latent_expansion(const HostTensor&, const LatentShape&) {
  CHECK(false, "{} computes no latent attention", description());
}

std::unique_ptr<LatentExpansion> Backend::pack_fp8_latent_expansion(const Fp8Matrix&, const LatentShape&) {
  CHECK(false, "{} keeps no expansion of latents in FP8", description());
}

std::unique_ptr<LatentExpansion> Backend::pack_latent_codes(const CodeMatrix&, const CodeMatrix&, const LatentShape&) {
  CHECK(false, "{} keeps no expansion of latents in codes", description());
}

std::unique_ptr<LatentExpansion> Backend::pack_latent_code_rows(const CodeMatrix&, const LatentShape&) {
  CHECK(false, "{} keeps no expansion of latents in codes", description());
}

void Backend::store_latent(Matrix, const LatentShape&, const RotaryTable&, const DeviceVector&, float,
                           const UploadedBatch&, KvCache&, int32_t) {
  CHECK(false, "{} computes no latent attention", description());
}

void Backend::latent_attention(Matrix, const LatentShape&, const RotaryTable&, const LatentExpansion&,
                               const UploadedBatch&, const KvCache&, int32_t, Matrix) {
  CHECK(false, "{} computes no latent attention", description());
}

void Backend::store_index_key(Matrix, const IndexerShape&, const RotaryTable&, const DeviceVector&, const DeviceVector&,
                              float, const UploadedBatch&, KvCache&, int32_t) {
  CHECK(false, "{} computes no {}", description(), enum_name(Feature::kIndexers));
}

void Backend::choose_tokens(Matrix, Matrix, const IndexerShape&, const RotaryTable&, const UploadedBatch&,
                            const KvCache&, int32_t, IntMatrix) {
  CHECK(false, "{} computes no {}", description(), enum_name(Feature::kIndexers));
}

void Backend::sparse_latent_attention(Matrix, const LatentShape&, const RotaryTable&, const LatentExpansion&, IntMatrix,
                                      const UploadedBatch&, const KvCache&, int32_t, Matrix) {
  CHECK(false, "{} computes no {}", description(), enum_name(Feature::kIndexers));
}

void Backend::gate(Matrix, Matrix) {
  CHECK(false, "{} computes no {}", description(), enum_name(Feature::kAttentionGates));
}

void Backend::causal_conv(Matrix, const ConvShape&, const DeviceVector&, const DeviceVector*, const UploadedBatch&,
                          KvCache&, int32_t, Matrix) {
  CHECK(false, "{} computes no {}", description(), enum_name(Feature::kRecurrence));
}

void Backend::short_conv(Matrix, const ConvShape&, const DeviceVector&, const DeviceVector*, const UploadedBatch&,
                         KvCache&, int32_t, Matrix) {
  CHECK(false, "{} computes no {}", description(), enum_name(Feature::kRecurrence));
}

void Backend::delta_net(const DeltaNetInputs&, const DeltaNetShape&, const DeviceVector&, const DeviceVector&,
                        const UploadedBatch&, KvCache&, int32_t, Matrix) {
  CHECK(false, "{} computes no {}", description(), enum_name(Feature::kRecurrence));
}

void Backend::state_space(Matrix, Matrix, const StateSpaceShape&, const DeviceVector&, const DeviceVector&,
                          const DeviceVector&, const UploadedBatch&, KvCache&, int32_t, Matrix) {
  CHECK(false, "{} computes no {}", description(), enum_name(Feature::kRecurrence));
}

void Backend::gated_rms_norm(Matrix, Matrix, int64_t, const GatedNorm&, Matrix) {
  CHECK(false, "{} computes no {}", description(), enum_name(Feature::kRecurrence));
}

std::vector<std::byte> Backend::make_channel_id() {
  CHECK(false, "{} has no channels to other devices", description());
}

std::unique_ptr<DeviceChannel> Backend::open_channel(ChannelOptions) {
  CHECK(false, "{} has no channels to other devices", description());
}

std::unique_ptr<Collective> Backend::open_collective(const CollectiveOptions&) {
  CHECK(false, "{} has no collectives of its own", description());
}

void Backend::for_ranges(int64_t items, const std::function<void(int64_t, int64_t)>& body) {
  if (items > 0) body(0, items);
}

void Backend::run_and_wait(std::function<void()> work) {
  std::promise<void> finished;
  submit(std::move(work), [&finished](std::exception_ptr failure) {
    if (failure) {
      finished.set_exception(std::move(failure));
    } else {
      finished.set_value();
    }
  });
  finished.get_future().get();
}

}  // namespace millrace::tensor
