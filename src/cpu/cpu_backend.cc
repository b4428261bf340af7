#include "cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/machine.h"
#include "cpu/layer_gate.h"
#include "cpu/fused_moe.h"
#include "cpu/ops.h"
#include "cpu/stream.h"
#include "cpu/code_panel_layout.h"

namespace millrace::cpu {
namespace {

using namespace tensor;

const CpuPackedWeight& as_cpu_weight(const PackedWeight& weight) {
  return static_cast<const CpuPackedWeight&>(weight);
}
const CpuKvCache& as_cpu_cache(const KvCache& cache) {
  return static_cast<const CpuKvCache&>(cache);
}
const CpuExperts& as_cpu_experts(const Experts& experts) {
  return static_cast<const CpuExperts&>(experts);
}
const CpuVector* as_cpu_or_null(const DeviceVector* vector) {
  return static_cast<const CpuVector*>(vector);
}

const Kernels& choose_kernels(const CpuOptions& options) {
  const std::vector<Isa> isas = available_isas();
  const Isa isa = options.isa.value_or(isas.back());
  CHECK(std::find(isas.begin(), isas.end(), isa) != isas.end(), "this processor has no {}", to_string(isa));
  return *kernels_for(isa);
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const CpuOptions& options)
      : device_(choose_kernels(options), options.compute_dtype,
                options.threads > 0 ? options.threads : static_cast<int>(Machine().processors()), options.pin),
        kv_dtype_(options.kv_dtype),
        stream_("compute", options.pin.empty() ? -1 : options.pin.front()) {
    CHECK(options.compute_dtype != DType::kF16, "the CPU computes in bf16 or f32, not in f16");
  }

  std::string description() const override {
    const int threads = device_.pool.threads();
    return fmt::format("cpu {}, {} thread{}", cpu::to_string(device_.kernels.isa), threads, threads == 1 ? "" : "s");
  }
  DType compute_dtype() const override { return device_.compute_dtype; }
  std::string kv_format() const override {
    const std::string codes = kv_dtype_ == KvDType::kAuto ? "" : fmt::format(" kv {}", enum_name(kv_dtype_));
    return fmt::format("{} cpu {}{}", tensor::to_string(device_.compute_dtype), cpu::to_string(device_.kernels.isa),
                       codes);
  }
  DType hidden_dtype() const override { return DType::kF32; }
  bool is_host() const override { return true; }
  DeviceMemory memory() const override { return {"host", Machine().available_memory()}; }

  /// Reserves scratch for experts only, since their row counts vary freely. The other ops keep the scratch of the first
  /// largest batch.
  void reserve(const WorkBounds& bounds) override {
    for (const Experts* experts : bounds.experts)
      reserve_fused_moe(device_, as_cpu_experts(*experts), std::max(bounds.rows, bounds.expert_rows));
  }
  Buffer allocate(size_t bytes) override { return allocate_pages(bytes); }
  Buffer allocate_host(size_t bytes) override { return allocate_pages(bytes); }
  std::unique_ptr<PackedWeight> pack(std::span<const HostTensor> parts) override { return pack_weight(device_, parts); }
  std::unique_ptr<PackedWeight> pack_gate_up(const HostTensor& gate, const HostTensor& up) override {
    return pack_gate_up_weight(device_, gate, up);
  }
  std::unique_ptr<PackedWeight> pack_f32(const HostTensor& weight) override { return pack_f32_weight(device_, weight); }
  bool packs_w8() const override { return true; }
  std::unique_ptr<PackedWeight> pack_w8(std::span<const W8Matrix> parts, W8Activations inputs) override {
    return pack_w8_weight(device_, parts, inputs);
  }
  std::unique_ptr<PackedWeight> pack_gate_up_w8(const W8Matrix& gate, const W8Matrix& up,
                                                W8Activations inputs) override {
    return pack_gate_up_w8_weight(device_, gate, up, inputs);
  }
  bool packs_fp8() const override { return true; }
  std::unique_ptr<PackedWeight> pack_fp8(std::span<const Fp8Matrix> parts) override {
    return pack_fp8_weight(device_, parts);
  }
  std::unique_ptr<PackedWeight> pack_gate_up_fp8(const Fp8Matrix& gate, const Fp8Matrix& up) override {
    return pack_gate_up_fp8_weight(device_, gate, up);
  }
  std::unique_ptr<PackedWeight> pack_sharded_fp8(const Fp8Matrix& part, const SumShards& shards) override {
    return pack_sharded_fp8_weight(device_, part, shards);
  }
  bool packs_codes() const override { return true; }
  bool packs_half_minimums() const override { return true; }
  bool mixes_codes() const override { return true; }
  std::unique_ptr<PackedWeight> pack_codes(std::span<const CodeMatrix> parts) override {
    return pack_code_weight(device_, parts);
  }
  std::unique_ptr<PackedWeight> pack_gate_up_codes(const CodeMatrix& gate, const CodeMatrix& up) override {
    return pack_gate_up_code_weight(device_, gate, up);
  }
  std::unique_ptr<PackedWeight> pack_sharded_codes(const CodeMatrix& part, const SumShards& shards) override {
    return pack_sharded_code_weight(device_, part, shards);
  }
  std::unique_ptr<PackedWeight> pack_sharded(const HostTensor& part, const SumShards& shards) override {
    return pack_sharded_weight(device_, part, shards);
  }
  std::unique_ptr<PackedWeight> pack_sharded_w8(const W8Matrix& part, W8Activations inputs,
                                                const SumShards& shards) override {
    return pack_sharded_w8_weight(device_, part, inputs, shards);
  }
  std::unique_ptr<ExpertPacker> pack_experts(int32_t count, const ExpertOptions& options,
                                             RankPosition position) override {
    return std::make_unique<CpuExpertPacker>(device_, count, options, position);
  }
  std::unique_ptr<EmbeddingTable> make_embedding(const HostTensor& table) override {
    CHECK(table.shape.rank() == 2, "{}: {} is not a table", table.name, table.shape.to_string());
    return std::make_unique<CpuEmbeddingTable>(table);
  }
  bool decodes_embeddings() const override { return true; }
  std::unique_ptr<EmbeddingTable> make_decoding_embedding(int64_t rows, int64_t cols, ReadRowsFn read) override {
    return std::make_unique<CpuEmbeddingTable>(rows, cols, std::move(read));
  }
  std::unique_ptr<DeviceVector> make_vector(std::span<const float> values) override {
    return std::make_unique<CpuVector>(values);
  }
  std::unique_ptr<KvCache> make_kv_cache(const KvCacheShape& shape) override {
    return std::make_unique<CpuKvCache>(shape, kv_operand_dtype(shape), head_multiple(), kv_dtype_);
  }
  size_t kv_page_bytes(const KvCacheShape& shape) const override {
    return CpuKvCache::page_bytes_of(shape, kv_operand_dtype(shape), head_multiple(), kv_dtype_);
  }

  void submit(std::function<void()> work, CompletionHandler done) override {
    stream_.submit(std::move(work), std::move(done));
  }
  void submit_copy(CopyDirection direction, std::function<void()> work, CompletionHandler done) override {
    (direction == CopyDirection::kToDevice ? load_stream_ : store_stream_).submit(std::move(work), std::move(done));
  }
  std::unique_ptr<Replay> make_replay() override { return std::make_unique<EagerReplay>(); }
  std::shared_ptr<LayerGate> make_layer_gate() override { return std::make_shared<CpuLayerGate>(); }

  UploadedBatch upload(const BatchLayout& batch) override { return {batch}; }
  UploadedIndices upload(std::span<const int32_t> values) override { return {values}; }

  void embed(const EmbeddingTable& table, const UploadedIndices& tokens, Matrix hidden) override {
    check_stream();
    cpu::embed(device_, static_cast<const CpuEmbeddingTable&>(table), tokens.values, hidden);
  }
  bool computes(Feature /*feature*/) const override { return true; }
  void add_embedding(const EmbeddingTable& table, const UploadedIndices& indices, Matrix hidden) override {
    check_stream();
    cpu::add_embedding(device_, static_cast<const CpuEmbeddingTable&>(table), indices.values, hidden);
  }
  void layer_norm(Matrix hidden, const DeviceVector& weight, const DeviceVector* bias, float epsilon, bool in_place,
                  Matrix out) override {
    check_stream();
    cpu::layer_norm(device_, hidden, as_cpu(weight), as_cpu_or_null(bias), epsilon, in_place, out);
  }
  void rms_norm_in_place(Matrix values, const DeviceVector& weight, float epsilon) override {
    check_stream();
    cpu::rms_norm_in_place(device_, values, as_cpu(weight), epsilon);
  }
  void convert(Matrix hidden, Matrix out) override {
    check_stream();
    cpu::convert(device_, hidden, out);
  }
  void scale(Matrix matrix, float factor) override {
    check_stream();
    cpu::scale(device_, matrix, factor);
  }
  void soft_cap(Matrix matrix, float cap) override {
    check_stream();
    cpu::soft_cap(device_, matrix, cap);
  }
  void gelu_tanh_mul(Matrix in, Matrix out) override {
    check_stream();
    cpu::gelu_tanh_mul(device_, in, out);
  }
  void gelu_tanh_gate(Matrix gates, Matrix factors, int64_t first, Matrix out) override {
    check_stream();
    cpu::gelu_tanh_gate(device_, gates, factors, first, out);
  }
  void scaled_silu_mul(Matrix in, float factor, Matrix out) override {
    check_stream();
    cpu::scaled_silu_mul(device_, in, factor, out);
  }
  void relu_squared(Matrix in, Matrix out) override {
    check_stream();
    cpu::relu_squared(device_, in, out);
  }
  void add_scaled_sums(Matrix sums, const DeviceVector* bias, const DeviceVector* norm, float epsilon, float factor,
                       Matrix hidden) override {
    check_stream();
    cpu::add_scaled_sums(device_, sums, as_cpu_or_null(bias), as_cpu_or_null(norm), epsilon, factor, hidden);
  }
  void gelu(Matrix in, Matrix out) override {
    check_stream();
    cpu::gelu(device_, in, out);
  }
  void rms_norm(Matrix hidden, const DeviceVector& weight, float epsilon, Matrix out) override {
    check_stream();
    cpu::rms_norm(device_, hidden, as_cpu(weight), epsilon, out);
  }
  void matmul(Matrix x, const PackedWeight& weight, const DeviceVector* bias, Matrix out) override {
    check_stream();
    cpu::matmul(device_, x, as_cpu_weight(weight), as_cpu_or_null(bias), out);
  }
  void matmul_add(Matrix x, const PackedWeight& weight, const DeviceVector* bias, Matrix hidden) override {
    check_stream();
    cpu::matmul_add(device_, x, as_cpu_weight(weight), as_cpu_or_null(bias), hidden);
  }
  void matmul_silu_mul(Matrix x, const PackedWeight& weight, Matrix out) override {
    check_stream();
    cpu::matmul_silu_mul(device_, x, as_cpu_weight(weight), out);
  }
  void fused_moe(Matrix x, Matrix router_logits, const Experts& experts, const UploadedBatch& batch,
                 Matrix hidden) override {
    check_stream();
    for (Matrix* matrix : {&x, &router_logits, &hidden}) cut_to_sequences(batch, *matrix);
    cpu::fused_moe(device_, x, router_logits, as_cpu_experts(experts), hidden);
  }
  void fused_moe_sums(Matrix x, Matrix router_logits, const Experts& experts, const UploadedBatch& batch,
                      Matrix sums) override {
    std::memset(sums.data, 0, sums.bytes());
    fused_moe(x, router_logits, experts, batch, sums);
  }
  void row_magnitudes(Matrix x, Matrix out) override {
    check_stream();
    cpu::row_magnitudes(device_, x, out);
  }
  void matmul_integers(Matrix x, const PackedWeight& weight, Matrix magnitudes, tensor::IntMatrix sums) override {
    check_stream();
    cpu::matmul_integers(device_, x, as_cpu_weight(weight), magnitudes, sums);
  }
  void scale_integers(tensor::IntMatrix sums, const PackedWeight& weight, Matrix magnitudes, Matrix out) override {
    check_stream();
    cpu::scale_integers(device_, sums, as_cpu_weight(weight), magnitudes, out);
  }
  void add_sums(Matrix sums, const DeviceVector* bias, Matrix hidden) override {
    check_stream();
    cpu::add_sums(device_, sums, as_cpu_or_null(bias), hidden);
  }
  void add_gated_sums(Matrix sums, Matrix gates, Matrix hidden) override {
    check_stream();
    cpu::add_gated_sums(device_, sums, gates, hidden);
  }
  void rotary_store_kv(Matrix qkv, const AttentionShape& shape, const RotaryTable& rotary, const DeviceVector* q_norm,
                       const DeviceVector* k_norm, float norm_epsilon, const UploadedBatch& batch, KvCache& cache,
                       int32_t layer, Matrix q) override {
    check_stream();
    cpu::rotary_store_kv(device_, qkv, shape, rotary, as_cpu_or_null(q_norm), as_cpu_or_null(k_norm), norm_epsilon,
                         batch.layout, static_cast<CpuKvCache&>(cache), layer, q);
  }
  void attention(Matrix q, const AttentionShape& shape, const UploadedBatch& batch, const KvCache& cache, int32_t layer,
                 Matrix out) override {
    check_stream();
    cpu::attention(device_, q, shape, batch.layout, as_cpu_cache(cache), layer, out);
  }
  std::unique_ptr<LatentExpansion> pack_latent_expansion(const HostTensor& kv_b, const LatentShape& shape) override {
    return std::make_unique<CpuLatentExpansion>(device_, kv_b, shape);
  }
  bool packs_fp8_latents() const override { return true; }
  bool packs_latent_codes() const override { return true; }
  std::unique_ptr<LatentExpansion> pack_latent_codes(const CodeMatrix& queries, const CodeMatrix& values,
                                                     const LatentShape& shape) override {
    return std::make_unique<CpuLatentExpansion>(device_, queries, values, shape);
  }
  std::unique_ptr<LatentExpansion> pack_latent_code_rows(const CodeMatrix& kv_b, const LatentShape& shape) override {
    return std::make_unique<CpuLatentExpansion>(device_, kv_b, shape);
  }
  std::unique_ptr<LatentExpansion> pack_fp8_latent_expansion(const Fp8Matrix& kv_b, const LatentShape& shape) override {
    return std::make_unique<CpuLatentExpansion>(device_, kv_b, shape);
  }
  void store_latent(Matrix kv, const LatentShape& shape, const RotaryTable& rotary, const DeviceVector& norm,
                    float norm_epsilon, const UploadedBatch& batch, KvCache& cache, int32_t layer) override {
    check_stream();
    cpu::store_latent(device_, kv, shape, rotary, as_cpu(norm), norm_epsilon, batch.layout,
                      static_cast<CpuKvCache&>(cache), layer);
  }
  void latent_attention(Matrix q, const LatentShape& shape, const RotaryTable& rotary, const LatentExpansion& expansion,
                        const UploadedBatch& batch, const KvCache& cache, int32_t layer, Matrix out) override {
    check_stream();
    cpu::latent_attention(device_, q, shape, rotary, static_cast<const CpuLatentExpansion&>(expansion), {},
                          batch.layout, as_cpu_cache(cache), layer, out);
  }
  void store_index_key(Matrix key, const IndexerShape& shape, const RotaryTable& rotary, const DeviceVector& norm,
                       const DeviceVector& norm_bias, float norm_epsilon, const UploadedBatch& batch, KvCache& cache,
                       int32_t layer) override {
    check_stream();
    cpu::store_index_key(device_, key, shape, rotary, as_cpu(norm), as_cpu(norm_bias), norm_epsilon, batch.layout,
                         static_cast<CpuKvCache&>(cache), layer);
  }
  void choose_tokens(Matrix q, Matrix weights, const IndexerShape& shape, const RotaryTable& rotary,
                     const UploadedBatch& batch, const KvCache& cache, int32_t layer, IntMatrix chosen) override {
    check_stream();
    cpu::choose_tokens(device_, q, weights, shape, rotary, batch.layout, as_cpu_cache(cache), layer, chosen);
  }
  void sparse_latent_attention(Matrix q, const LatentShape& shape, const RotaryTable& rotary,
                               const LatentExpansion& expansion, IntMatrix chosen, const UploadedBatch& batch,
                               const KvCache& cache, int32_t layer, Matrix out) override {
    check_stream();
    cpu::latent_attention(device_, q, shape, rotary, static_cast<const CpuLatentExpansion&>(expansion), chosen,
                          batch.layout, as_cpu_cache(cache), layer, out);
  }
  void gate(Matrix values, Matrix gates) override {
    check_stream();
    cpu::gate(device_, values, gates);
  }
  void causal_conv(Matrix in, const tensor::ConvShape& shape, const DeviceVector& weight, const DeviceVector* bias,
                   const UploadedBatch& batch, KvCache& states, int32_t layer, Matrix out) override {
    check_stream();
    cpu::causal_conv(device_, in, shape, as_cpu(weight), as_cpu_or_null(bias), batch.layout,
                     static_cast<CpuKvCache&>(states), layer, out);
  }
  void short_conv(Matrix in, const tensor::ConvShape& shape, const DeviceVector& weight, const DeviceVector* bias,
                  const UploadedBatch& batch, KvCache& states, int32_t layer, Matrix out) override {
    check_stream();
    cpu::short_conv(device_, in, shape, as_cpu(weight), as_cpu_or_null(bias), batch.layout,
                    static_cast<CpuKvCache&>(states), layer, out);
  }
  void delta_net(const tensor::DeltaNetInputs& in, const tensor::DeltaNetShape& shape, const DeviceVector& decay,
                 const DeviceVector& step_bias, const UploadedBatch& batch, KvCache& states, int32_t layer,
                 Matrix out) override {
    check_stream();
    cpu::delta_net(device_, in, shape, as_cpu(decay), as_cpu(step_bias), batch.layout, static_cast<CpuKvCache&>(states),
                   layer, out);
  }
  void state_space(Matrix mixed, Matrix steps, const tensor::StateSpaceShape& shape, const DeviceVector& decay,
                   const DeviceVector& step_bias, const DeviceVector& skip, const UploadedBatch& batch, KvCache& states,
                   int32_t layer, Matrix out) override {
    check_stream();
    cpu::state_space(device_, mixed, steps, shape, as_cpu(decay), as_cpu(step_bias), as_cpu(skip), batch.layout,
                     static_cast<CpuKvCache&>(states), layer, out);
  }
  void gated_rms_norm(Matrix in, Matrix gates, int64_t first_gate, const tensor::GatedNorm& norm, Matrix out) override {
    check_stream();
    cpu::gated_rms_norm(device_, in, gates, first_gate, norm, out);
  }
  void gather_rows(Matrix in, const UploadedIndices& rows, Matrix out) override {
    check_stream();
    cpu::gather_rows(device_, in, rows.values, out);
  }
  void copy_columns(Matrix in, int64_t in_begin, Matrix out, int64_t out_begin, int64_t cols) override {
    check_stream();
    cpu::copy_columns(device_, in, in_begin, out, out_begin, cols);
  }
  void sample(Matrix logits, int32_t vocab, std::span<const SampleSpec> specs,
              std::span<SampleResult> results) override {
    check_stream();
    cpu::sample(device_, logits, vocab, specs, results);
  }
  void score(Matrix logits, int32_t vocab, std::span<const TokenId> targets, std::span<const int32_t> top_counts,
             std::span<ScoreResult> results) override {
    check_stream();
    cpu::score(device_, logits, vocab, targets, top_counts, results);
  }

  void for_ranges(int64_t items, const std::function<void(int64_t, int64_t)>& body) override {
    check_stream();
    device_.pool.run_ranges(items, [&body](int64_t begin, int64_t end, int) { body(begin, end); });
  }

  void copy_in(std::span<const std::byte> from, void* to) override {
    check_stream();
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
  }
  void copy_out(const void* from, std::span<std::byte> to) override {
    check_stream();
    if (!to.empty()) std::memcpy(to.data(), from, to.size());
  }
  void copy_to_host(const void* from, std::span<std::byte> host) override { copy_out(from, host); }
  void copy_to_device(std::span<const std::byte> host, void* to) override { copy_in(host, to); }

 private:
  /// Returns the dtype of keys and values that attention reads. Codes become f32 where bf16 would be widened too. Those
  /// of latents keep the compute dtype, which their pages have for the rotated keys.
  DType kv_operand_dtype(const KvCacheShape& shape) const {
    const bool has_kv_codes = kv_dtype_ != KvDType::kAuto && shape.latent_dim == 0;
    return has_kv_codes && !device_.bf16_lhs() ? DType::kF32 : device_.compute_dtype;
  }
  /// Returns the multiple of channels to which a cached head is padded.
  int head_multiple() const { return device_.compute_dtype == DType::kBF16 ? device_.kernels.head_multiple : 16; }
  /// Cuts a matrix to the rows of the batch's sequences.
  static void cut_to_sequences(const UploadedBatch& batch, Matrix& matrix) {
    CHECK(matrix.rows == batch.layout.row_count(), "{} rows for a batch of {}", matrix.rows, batch.layout.row_count());
    matrix.rows = batch.layout.row_begin.back();
  }
  void check_stream() const { CHECK(stream_.on_worker(), "an op was called outside submitted work"); }

  Device device_;
  const KvDType kv_dtype_;
  // This member is the last: its destructor joins the worker before what the work uses is destroyed.
  Stream stream_;
  Stream load_stream_{"loads"};
  Stream store_stream_{"stores"};
};

}  // namespace

std::unique_ptr<Backend> make_backend(const CpuOptions& options) {
  return std::make_unique<CpuBackend>(options);
}

}  // namespace millrace::cpu
