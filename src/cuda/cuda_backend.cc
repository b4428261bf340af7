#include "cuda/cuda_backend.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "cuda/attention_ops.h"
#include "cuda/select_gemm.h"
#include "cuda/copy_columns.h"
#include "cuda/copying_collective.h"
#include "cuda/error.h"
#include "cuda/graph_cache.h"
#include "cuda/kv_cache.h"
#include "cuda/launch_thread.h"
#include "cuda/layer_gate.h"
#include "cuda/nccl_channel.h"
#include "cuda/latent_ops.h"
#include "cuda/nccl_collective.h"
#include "cuda/operands.h"
#include "cuda/recurrent_ops.h"
#include "cuda/upload_batch.h"
#include "cuda/reserve.h"
#include "cuda/row_ops.h"
#include "cuda/sampling.h"
#include "cuda/submissions.h"
#include "cuda/weights.h"

namespace millrace::cuda {
namespace {

using namespace tensor;

constexpr size_t kLoadLane = 1;
constexpr size_t kStoreLane = 2;

/// What the ops compute. A feature that other backends get is missing here until it is named.
constexpr std::array kFeatures = {Feature::kIndexers,        Feature::kEncoders,         Feature::kLayerNorm,
                                  Feature::kConversion,      Feature::kScaledSums,       Feature::kScaling,
                                  Feature::kSoftCap,         Feature::kGeluTanh,         Feature::kAttentionSoftCap,
                                  Feature::kReluSquared,     Feature::kScaledGates,      Feature::kAttentionSinks,
                                  Feature::kQueryScaling,    Feature::kNormOfAllHeads,   Feature::kAttentionGates,
                                  Feature::kAttentionChunks, Feature::kValueNorms,       Feature::kWeighedInputs,
                                  Feature::kExpertNorms,     Feature::kRecurrence,       Feature::kLatentAttention,
                                  Feature::kRouting,         Feature::kExpertActivation, Feature::kExpertBiases,
                                  Feature::kF32Weights,      Feature::kGatedSums,        Feature::kStatesBeforeDrafts,
                                  Feature::kHeadNorms};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaOptions& options) : options_(options), device_(options) {
    if (copies_between_ranks() || options.waits_for_rings) launches_ = std::make_unique<LaunchThread>();
  }
  ~CudaBackend() override {
    launches_.reset();
    device_.poller.finish();
  }

  std::string description() const override {
    return fmt::format("cuda {}, {}{}", describe_device(device_.ordinal), to_string(device_.products),
                       device_.gpu_part.text);
  }
  DType compute_dtype() const override { return DType::kBF16; }
  std::string kv_format() const override {
    const std::string codes =
        options_.kv_dtype == KvDType::kAuto ? "" : fmt::format(" kv {}", enum_name(options_.kv_dtype));
    return fmt::format("bf16 cuda {} {}{}{}", architecture(device_.ordinal), to_string(device_.products),
                       device_.fp8_products ? " fp8" : "", codes);
  }
  DType hidden_dtype() const override { return DType::kF32; }
  bool is_host() const override { return false; }
  DeviceMemory memory() const override {
    size_t free = 0;
    size_t total = 0;
    device_.make_current();
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return {fmt::format("cuda {}", device_.ordinal), free};
  }

  void reserve(const WorkBounds& bounds) override {
    device_.make_current();
    reserve_scratch(device_, submissions_, bounds, options_.kv_dtype);
  }
  Buffer allocate(size_t bytes) override { return allocate_device(device_.ordinal, bytes, device_.set_up); }
  Buffer allocate_host(size_t bytes) override {
    device_.make_current();
    return allocate_pinned(bytes);
  }
  std::unique_ptr<PackedWeight> pack(std::span<const HostTensor> parts) override { return loader_.pack(parts); }
  std::unique_ptr<PackedWeight> pack_gate_up(const HostTensor& gate, const HostTensor& up) override {
    return loader_.pack_gate_up(gate, up);
  }
  std::unique_ptr<PackedWeight> pack_sharded(const HostTensor& part, const SumShards& shards) override {
    return loader_.pack_sharded(part, shards);
  }
  std::unique_ptr<PackedWeight> pack_f32(const HostTensor& weight) override { return loader_.pack_f32(weight); }
  bool packs_w8() const override { return true; }
  std::unique_ptr<PackedWeight> pack_w8(std::span<const W8Matrix> parts, W8Activations inputs) override {
    check_inputs(inputs);
    return loader_.pack_coded({parts.begin(), parts.end()}, false);
  }
  std::unique_ptr<PackedWeight> pack_gate_up_w8(const W8Matrix& gate, const W8Matrix& up,
                                                W8Activations inputs) override {
    check_inputs(inputs);
    return loader_.pack_coded({CodedPart(gate), CodedPart(up)}, true);
  }
  std::unique_ptr<PackedWeight> pack_sharded_w8(const W8Matrix& part, W8Activations inputs,
                                                const SumShards& shards) override {
    check_inputs(inputs);
    return loader_.pack_sharded_coded(CodedPart(part), shards);
  }
  bool packs_fp8() const override { return true; }
  std::unique_ptr<PackedWeight> pack_fp8(std::span<const Fp8Matrix> parts) override {
    return loader_.pack_coded({parts.begin(), parts.end()}, false);
  }
  std::unique_ptr<PackedWeight> pack_gate_up_fp8(const Fp8Matrix& gate, const Fp8Matrix& up) override {
    return loader_.pack_coded({CodedPart(gate), CodedPart(up)}, true);
  }
  std::unique_ptr<PackedWeight> pack_sharded_fp8(const Fp8Matrix& part, const SumShards& shards) override {
    return loader_.pack_sharded_coded(CodedPart(part), shards);
  }
  bool packs_codes() const override { return true; }
  std::unique_ptr<PackedWeight> pack_codes(std::span<const CodeMatrix> parts) override {
    return loader_.pack_codes(parts);
  }
  std::unique_ptr<PackedWeight> pack_gate_up_codes(const CodeMatrix& gate, const CodeMatrix& up) override {
    CHECK(tensor::share_code_layout(gate, up), "{} and {}: codes of several kinds", gate.name, up.name);
    return loader_.pack_coded({CodedPart(gate), CodedPart(up)}, true);
  }
  std::unique_ptr<PackedWeight> pack_sharded_codes(const CodeMatrix& part, const SumShards& shards) override {
    return loader_.pack_sharded_coded(CodedPart(part), shards);
  }
  std::unique_ptr<ExpertPacker> pack_experts(int32_t count, const ExpertOptions& options,
                                             RankPosition position) override {
    return loader_.pack_experts(count, options, position);
  }
  std::unique_ptr<EmbeddingTable> make_embedding(const HostTensor& table) override {
    return loader_.load_embedding(table);
  }
  std::unique_ptr<DeviceVector> make_vector(std::span<const float> values) override {
    return loader_.load_vector(values);
  }
  std::unique_ptr<KvCache> make_kv_cache(const KvCacheShape& shape) override {
    return std::make_unique<CudaKvCache>(device_, shape, options_.kv_dtype);
  }
  size_t kv_page_bytes(const KvCacheShape& shape) const override {
    return CudaKvCache::page_bytes_of(shape, options_.kv_dtype);
  }
  std::unique_ptr<LatentExpansion> pack_latent_expansion(const HostTensor& kv_b, const LatentShape& shape) override {
    return cuda::pack_latent_expansion(loader_, kv_b, shape);
  }

  void submit(std::function<void()> work, CompletionHandler done) override {
    if (launches_ == nullptr) return submissions_.submit(work, std::move(done));
    launches_->post([this, work = std::move(work), done = std::move(done)]() mutable {
      submissions_.submit(work, std::move(done));
    });
  }
  void submit_copy(CopyDirection direction, std::function<void()> work, CompletionHandler done) override;
  std::unique_ptr<Replay> make_replay() override {
    if (!options_.graphs || copies_between_ranks()) return std::make_unique<EagerReplay>();
    return std::make_unique<GraphCache>(device_, submissions_, options_.warn);
  }
  std::shared_ptr<LayerGate> make_layer_gate() override { return std::make_shared<CudaLayerGate>(device_); }

  ChannelSupport channel_support() override {
    if (!options_.channels) return {unique_name(device_.ordinal), "", "--nccl off"};
    return nccl_support(device_.ordinal);
  }
  std::vector<std::byte> make_channel_id() override {
    if (copies_between_ranks()) return make_group_id();  // such ranks have no other channels
    device_.make_current();
    return make_nccl_id();
  }
  std::unique_ptr<DeviceChannel> open_channel(ChannelOptions options) override {
    return open_nccl_channel(device_, std::move(options));
  }

  std::unique_ptr<Collective> open_collective(const CollectiveOptions& options) override {
    if (copies_between_ranks()) return open_copying_collective(device_, submissions_, options);
    return open_nccl_collective(device_, submissions_, options);
  }

  UploadedBatch upload(const BatchLayout& batch) override { return upload_batch(submissions_, batch); }
  UploadedIndices upload(std::span<const int32_t> values) override {
    return {values, submissions_.upload(values.size_bytes(), [&](std::byte* to) {
              if (!values.empty()) std::memcpy(to, values.data(), values.size_bytes());
            })};
  }
  void copy_in(std::span<const std::byte> from, void* to) override {
    device_.pending_receives.order_after(from.data(), device_.compute);
    copy(to, from.data(), from.size());
  }
  void copy_out(const void* from, std::span<std::byte> to) override { copy(to.data(), from, to.size()); }

  bool computes(Feature feature) const override { return std::ranges::find(kFeatures, feature) != kFeatures.end(); }
  void add_embedding(const EmbeddingTable& table, const UploadedIndices& indices, Matrix hidden) override {
    check_inside();
    cuda::add_embedding(device_, static_cast<const CudaEmbedding&>(table), as_cuda(indices),
                        static_cast<int64_t>(indices.values.size()), hidden);
  }
  void layer_norm(Matrix hidden, const DeviceVector& weight, const DeviceVector* bias, float epsilon, bool in_place,
                  Matrix out) override {
    check_inside();
    cuda::layer_norm(device_, hidden, *as_cuda(&weight), as_cuda(bias), epsilon, in_place, out);
  }
  void convert(Matrix hidden, Matrix out) override {
    check_inside();
    cuda::convert(device_, hidden, out);
  }
  void scale(Matrix matrix, float factor) override {
    check_inside();
    cuda::scale(device_, matrix, factor);
  }
  void soft_cap(Matrix matrix, float cap) override {
    check_inside();
    cuda::soft_cap(device_, matrix, cap);
  }
  void gelu(Matrix in, Matrix out) override {
    check_inside();
    cuda::gelu(device_, in, out);
  }
  void gelu_tanh_mul(Matrix in, Matrix out) override {
    check_inside();
    cuda::gelu_tanh_mul(device_, in, out);
  }
  void gelu_tanh_gate(Matrix gates, Matrix factors, int64_t first, Matrix out) override {
    check_inside();
    cuda::gelu_tanh_gate(device_, gates, factors, first, out);
  }
  void scaled_silu_mul(Matrix in, float factor, Matrix out) override {
    check_inside();
    cuda::scaled_silu_mul(device_, in, factor, out);
  }
  void relu_squared(Matrix in, Matrix out) override {
    check_inside();
    cuda::relu_squared(device_, in, out);
  }
  void rms_norm_in_place(Matrix values, const DeviceVector& weight, float epsilon) override {
    check_inside();
    cuda::rms_norm_in_place(device_, values, *as_cuda(&weight), epsilon);
  }
  void gate(Matrix values, Matrix gates) override {
    check_inside();
    cuda::gate(device_, values, gates);
  }
  void add_gated_sums(Matrix sums, Matrix gates, Matrix hidden) override {
    check_inside();
    cuda::add_gated_sums(device_, sums, gates, hidden);
  }
  void add_scaled_sums(Matrix sums, const DeviceVector* bias, const DeviceVector* norm, float epsilon, float factor,
                       Matrix hidden) override {
    check_inside();
    cuda::add_scaled_sums(device_, sums, as_cuda(bias), as_cuda(norm), epsilon, factor, hidden);
  }
  void embed(const EmbeddingTable& table, const UploadedIndices& tokens, Matrix hidden) override;
  void rms_norm(Matrix hidden, const DeviceVector& weight, float epsilon, Matrix out) override;
  void matmul(Matrix x, const PackedWeight& weight, const DeviceVector* bias, Matrix out) override;
  void matmul_add(Matrix x, const PackedWeight& weight, const DeviceVector* bias, Matrix hidden) override;
  void matmul_silu_mul(Matrix x, const PackedWeight& weight, Matrix out) override;
  void fused_moe(Matrix x, Matrix router_logits, const Experts& experts, const UploadedBatch& batch,
                 Matrix hidden) override;
  void fused_moe_sums(Matrix x, Matrix router_logits, const Experts& experts, const UploadedBatch& batch,
                      Matrix sums) override;
  void add_sums(Matrix sums, const DeviceVector* bias, Matrix hidden) override;
  void rotary_store_kv(Matrix qkv, const AttentionShape& shape, const RotaryTable& rotary, const DeviceVector* q_norm,
                       const DeviceVector* k_norm, float norm_epsilon, const UploadedBatch& batch, KvCache& cache,
                       int32_t layer, Matrix q) override {
    check_inside();
    store_heads(device_, qkv, shape, rotary, q_norm, k_norm, norm_epsilon, batch, cache, layer, q);
  }
  void attention(Matrix q, const AttentionShape& shape, const UploadedBatch& batch, const KvCache& cache, int32_t layer,
                 Matrix out) override {
    check_inside();
    attend(device_, q, shape, batch, cache, layer, out);
  }
  void store_latent(Matrix kv, const LatentShape& shape, const RotaryTable& rotary, const DeviceVector& norm,
                    float norm_epsilon, const UploadedBatch& batch, KvCache& cache, int32_t layer) override {
    check_inside();
    store_latents(device_, kv, shape, rotary, norm, norm_epsilon, batch, cache, layer);
  }
  void latent_attention(Matrix q, const LatentShape& shape, const RotaryTable& rotary, const LatentExpansion& expansion,
                        const UploadedBatch& batch, const KvCache& cache, int32_t layer, Matrix out) override {
    check_inside();
    attend_to_latents(device_, q, shape, rotary, expansion, batch, cache, layer, out);
  }
  void store_index_key(Matrix key, const IndexerShape& shape, const RotaryTable& rotary, const DeviceVector& norm,
                       const DeviceVector& norm_bias, float norm_epsilon, const UploadedBatch& batch, KvCache& cache,
                       int32_t layer) override {
    check_inside();
    store_index_keys(device_, key, shape, rotary, norm, norm_bias, norm_epsilon, batch, cache, layer);
  }
  void choose_tokens(Matrix q, Matrix weights, const IndexerShape& shape, const RotaryTable& rotary,
                     const UploadedBatch& batch, const KvCache& cache, int32_t layer, IntMatrix chosen) override {
    check_inside();
    choose_by_index(device_, q, weights, shape, rotary, batch, cache, layer, chosen);
  }
  void sparse_latent_attention(Matrix q, const LatentShape& shape, const RotaryTable& rotary,
                               const LatentExpansion& expansion, IntMatrix chosen, const UploadedBatch& batch,
                               const KvCache& cache, int32_t layer, Matrix out) override {
    check_inside();
    attend_to_chosen(device_, q, shape, rotary, expansion, chosen, batch, cache, layer, out);
  }
  void causal_conv(Matrix in, const ConvShape& shape, const DeviceVector& weight, const DeviceVector* bias,
                   const UploadedBatch& batch, KvCache& states, int32_t layer, Matrix out) override {
    check_inside();
    run_causal_conv(device_, in, shape, weight, bias, {batch, states, layer}, out);
  }
  void short_conv(Matrix in, const ConvShape& shape, const DeviceVector& weight, const DeviceVector* bias,
                  const UploadedBatch& batch, KvCache& states, int32_t layer, Matrix out) override {
    check_inside();
    run_short_conv(device_, in, shape, weight, bias, {batch, states, layer}, out);
  }
  void delta_net(const DeltaNetInputs& in, const DeltaNetShape& shape, const DeviceVector& decay,
                 const DeviceVector& step_bias, const UploadedBatch& batch, KvCache& states, int32_t layer,
                 Matrix out) override {
    check_inside();
    run_delta_net(device_, in, shape, decay, step_bias, {batch, states, layer}, out);
  }
  void state_space(Matrix mixed, Matrix steps, const StateSpaceShape& shape, const DeviceVector& decay,
                   const DeviceVector& step_bias, const DeviceVector& skip, const UploadedBatch& batch, KvCache& states,
                   int32_t layer, Matrix out) override {
    check_inside();
    run_state_space(device_, mixed, steps, shape, decay, step_bias, skip, {batch, states, layer}, out);
  }
  void gated_rms_norm(Matrix in, Matrix gates, int64_t first_gate, const GatedNorm& norm, Matrix out) override {
    check_inside();
    run_gated_rms_norm(device_, in, gates, first_gate, norm, out);
  }
  void gather_rows(Matrix in, const UploadedIndices& rows, Matrix out) override;
  void copy_columns(Matrix in, int64_t in_begin, Matrix out, int64_t out_begin, int64_t cols) override;
  void sample(Matrix logits, int32_t vocab, std::span<const SampleSpec> specs,
              std::span<SampleResult> results) override {
    draw_rows(device_, submissions_, logits, vocab, specs, results);
  }
  void score(Matrix logits, int32_t vocab, std::span<const TokenId> targets, std::span<const int32_t> top_counts,
             std::span<ScoreResult> results) override {
    score_rows(device_, submissions_, logits, vocab, targets, top_counts, results);
  }

  void copy_to_host(const void* from, std::span<std::byte> host) override {
    copy_out(from, host);
    device_.compute.synchronize();
  }
  void copy_to_device(std::span<const std::byte> host, void* to) override {
    copy_in(host, to);
    device_.compute.synchronize();
  }

 private:
  static void check_inputs(W8Activations inputs) {
    CHECK(inputs == W8Activations::kUnquantized, "a GPU does not quantize the inputs of GEMMs");
  }
  [[nodiscard]] bool copies_between_ranks() const { return options_.rank_exchange == RankExchange::kCopies; }
  void check_inside() const { CHECK(submissions_.inside(), "an op was called outside submitted work"); }
  void copy(void* to, const void* from, size_t bytes) const {
    check_inside();
    if (bytes == 0) return;
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, device_.compute.get()), "cudaMemcpyAsync");
  }
  /// Returns the scratch of a GEMM of `rows` rows.
  [[nodiscard]] std::byte* gemm_scratch(const CudaWeight& weight, int32_t rows) {
    return device_.scratch(device_.gemm_scratch, gemm_scratch_bytes(weight, rows));
  }
  /// Returns rows of x as the weight's shards want them: in scratch where they need zeros between them.
  [[nodiscard]] const void* spread(const Matrix& x, const CudaWeight& weight) {
    if (!weight.spreads_shards()) return x.data;
    std::byte* const to = device_.scratch(device_.spread_scratch, spread_scratch_bytes(weight, x.rows));
    spread_shards(device_.compute.get(), x.data, weight.shards(), weight.get().shards, static_cast<int32_t>(x.rows),
                  to);
    return to;
  }

  const CudaOptions options_;
  Device device_;
  Submissions submissions_{device_};
  WeightLoader loader_{device_};
  std::mutex copy_mutex_;
  std::unique_ptr<LaunchThread> launches_;  // null: the submitting thread launches
};

void CudaBackend::submit_copy(CopyDirection direction, std::function<void()> work, CompletionHandler done) {
  const bool to_device = direction == CopyDirection::kToDevice;
  const std::lock_guard lock(copy_mutex_);
  std::exception_ptr failure;
  try {
    device_.make_current();
    work();
  } catch (...) {
    failure = std::current_exception();  // what it has launched so far still runs
  }
  device_.poller.watch(to_device ? kLoadLane : kStoreLane, to_device ? device_.load : device_.store,
                       [failure, done = std::move(done)](std::exception_ptr on_device) mutable {
                         done(failure ? std::move(failure) : std::move(on_device));
                       });
}

void CudaBackend::embed(const EmbeddingTable& table, const UploadedIndices& tokens, Matrix hidden) {
  check_inside();
  const auto& embedding = static_cast<const CudaEmbedding&>(table);
  check_matrix("hidden", hidden, DType::kF32, static_cast<int64_t>(tokens.values.size()), embedding.width());
  cuda::embed(device_.compute.get(), embedding.data(), static_cast<int32_t>(embedding.vocab()),
              static_cast<int32_t>(embedding.width()), as_cuda(tokens), static_cast<int32_t>(hidden.rows),
              floats(hidden));
}

void CudaBackend::rms_norm(Matrix hidden, const DeviceVector& weight, float epsilon, Matrix out) {
  check_inside();
  check_matrix("hidden", hidden, DType::kF32, hidden.rows, weight.size());
  check_matrix("out", out, DType::kBF16, hidden.rows, hidden.cols);
  cuda::rms_norm(device_.compute.get(), floats(hidden), values_of(&weight), epsilon, static_cast<int32_t>(hidden.rows),
                 static_cast<int32_t>(hidden.cols), out.data);
}

void CudaBackend::matmul(Matrix x, const PackedWeight& weight, const DeviceVector* bias, Matrix out) {
  check_inside();
  if (as_cuda(weight).get().is_f32) return matmul_f32(device_, x, as_cuda(weight), as_cuda(bias), out);
  check_matrix("x", x, DType::kBF16, x.rows, weight.in_features());
  check_matrix("out", out, out.dtype, x.rows, weight.out_features());
  const CudaWeight& packed = as_cuda(weight);
  const auto rows = static_cast<int32_t>(x.rows);
  const auto run = packed.is_sharded() ? cuda::sharded_matmul : cuda::matmul;
  const OutputType type = out.dtype == DType::kF32 ? OutputType::kF32 : OutputType::kBF16;
  for (const CudaWeight* part = &packed; part != nullptr; part = part->rest())
    run(device_.compute.get(), spread(x, *part), part->get(), values_of(bias), rows, out.data, type,
        gemm_scratch(*part, rows));
}

void CudaBackend::matmul_add(Matrix x, const PackedWeight& weight, const DeviceVector* bias, Matrix hidden) {
  check_inside();
  check_matrix("x", x, DType::kBF16, x.rows, weight.in_features());
  check_matrix("hidden", hidden, DType::kF32, x.rows, weight.out_features());
  const CudaWeight& packed = as_cuda(weight);
  CHECK(!packed.get().is_f32, "a weight in f32 is for matmul");
  const auto run = packed.is_sharded() ? cuda::sharded_matmul_add : cuda::matmul_add;
  for (const CudaWeight* part = &packed; part != nullptr; part = part->rest())
    run(device_.compute.get(), spread(x, *part), part->get(), values_of(bias), static_cast<int32_t>(x.rows),
        floats(hidden), gemm_scratch(*part, static_cast<int32_t>(x.rows)));
}

void CudaBackend::matmul_silu_mul(Matrix x, const PackedWeight& weight, Matrix out) {
  check_inside();
  check_matrix("x", x, DType::kBF16, x.rows, weight.in_features());
  check_matrix("out", out, DType::kBF16, x.rows, weight.out_features());
  std::byte* const scratch = gemm_scratch(as_cuda(weight), static_cast<int32_t>(x.rows));
  cuda::matmul_silu_mul(device_.compute.get(), x.data, as_cuda(weight).get(), static_cast<int32_t>(x.rows), out.data,
                        scratch);
}

void CudaBackend::fused_moe(Matrix x, Matrix router_logits, const Experts& experts, const UploadedBatch& batch,
                            Matrix hidden) {
  check_inside();
  const CudaBatch& uploaded = as_cuda(batch);
  const DeviceExperts& device = static_cast<const CudaExperts&>(experts).get();
  check_matrix("x", x, DType::kBF16, uploaded.bounds.rows, device.hidden);
  check_matrix("router_logits", router_logits, DType::kF32, x.rows, device.count);
  check_matrix("hidden", hidden, DType::kF32, x.rows, device.hidden);
  const size_t bytes = fused_moe_workspace_bytes(device, uploaded.bounds.rows);
  std::byte* scratch = device_.scratch(device_.expert_scratch, bytes);
  cuda::fused_moe(device_.compute.get(), x.data, floats(router_logits), device, uploaded.device, uploaded.bounds.rows,
                  floats(hidden), scratch, bytes);
}

void CudaBackend::fused_moe_sums(Matrix x, Matrix router_logits, const Experts& experts, const UploadedBatch& batch,
                                 Matrix sums) {
  check_inside();
  check(cudaMemsetAsync(sums.data, 0, sums.bytes(), device_.compute.get()), "cudaMemsetAsync");
  fused_moe(x, router_logits, experts, batch, sums);
}

void CudaBackend::add_sums(Matrix sums, const DeviceVector* bias, Matrix hidden) {
  check_inside();
  check_matrix("sums", sums, DType::kF32, hidden.rows, hidden.cols);
  check_matrix("hidden", hidden, DType::kF32, hidden.rows, hidden.cols);
  cuda::add_sums(device_.compute.get(), floats(sums), values_of(bias), static_cast<int32_t>(hidden.rows),
                 static_cast<int32_t>(hidden.cols), floats(hidden));
}

void CudaBackend::gather_rows(Matrix in, const UploadedIndices& rows, Matrix out) {
  check_inside();
  check_matrix("out", out, in.dtype, static_cast<int64_t>(rows.values.size()), in.cols);
  cuda::gather_rows(device_.compute.get(), in.data, static_cast<size_t>(in.cols) * size_of(in.dtype), as_cuda(rows),
                    static_cast<int32_t>(out.rows), out.data);
}

void CudaBackend::copy_columns(Matrix in, int64_t in_begin, Matrix out, int64_t out_begin, int64_t cols) {
  check_inside();
  check_matrix("out", out, in.dtype, in.rows, out.cols);
  CHECK(in_begin >= 0 && in_begin + cols <= in.cols && out_begin >= 0 && out_begin + cols <= out.cols,
        "{} columns from {} of {} to {} of {}", cols, in_begin, in.cols, out_begin, out.cols);
  cuda::copy_columns(device_.compute.get(), in, in_begin, out, out_begin, cols);
}

}  // namespace

std::unique_ptr<Backend> make_backend(const CudaOptions& options) {
  return std::make_unique<CudaBackend>(options);
}

}  // namespace millrace::cuda
