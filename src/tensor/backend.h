#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "base/ids.h"
#include "tensor/attention_shape.h"
#include "tensor/delta_net_inputs.h"
#include "tensor/device_channel.h"
#include "tensor/dtype.h"
#include "tensor/feature.h"
#include "tensor/fp8.h"
#include "tensor/host_tensor.h"
#include "tensor/latent_shape.h"
#include "tensor/matrix.h"
#include "tensor/packed_weight.h"
#include "tensor/recurrence.h"
#include "tensor/replay.h"
#include "tensor/routing.h"
#include "tensor/sampling.h"
#include "tensor/sum_shards.h"
#include "tensor/code_matrix.h"
#include "tensor/w8.h"

/// The device as a model sees it: memory, weights in the device's own layout, and the ops of a decoder layer.
///
/// The ops of one Backend run in the order of the calls, on its stream. They are called only inside the work function
/// of Backend::submit. Every op is batch-invariant: the bits of an output row depend on that row's input, its sequence
/// and the model's shapes. They never depend on the other rows, the chunking, or the thread count.
namespace millrace::tensor {

class Collective;
struct CollectiveOptions;

/// Owns device memory and frees it. `data` is a device pointer; on the CPU it is an ordinary one, 64-byte aligned.
class Buffer {
 public:
  Buffer() = default;
  Buffer(void* data, size_t bytes, std::function<void(void*)> release);
  Buffer(Buffer&&) noexcept;
  Buffer& operator=(Buffer&&) noexcept;
  ~Buffer();
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }
  [[nodiscard]] size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  std::function<void(void*)> release_;
};

/// A row-major table [vocab, hidden] from which rows are read.
class EmbeddingTable {
 public:
  virtual ~EmbeddingTable() = default;
};

/// A vector of f32 on the device (norm weights, biases, rotary frequencies).
class DeviceVector {
 public:
  virtual ~DeviceVector() = default;
  [[nodiscard]] virtual int64_t size() const = 0;
};

/// The dimensions of a paged KV cache over the layers of one stage.
struct KvCacheShape {
  int32_t layer_count = 0;
  int32_t kv_head_count = 0;
  int32_t head_dim = 0;
  int32_t page_size = 0;  ///< tokens per page
  int32_t page_count = 0;
  /// Above 0: a cache of latents. A token's only head has head_dim values, which are its key; the first latent_dim of
  /// them are its value too and are stored once.
  int32_t latent_dim = 0;
  /// Above 0: in a cache of latents, each token also has the key of an indexer, of index_dim values.
  int32_t index_dim = 0;
  /// Above 0: a cache of recurrent states. A page holds one sequence's state (f32) per layer, as it is after the last
  /// token so far of those that the page counts. kv_head_count and head_dim are 0.
  int64_t state_values = 0;
};

/// In a batch of a cache of states: the state after that page's tokens is not kept.
using millrace::kNoPage;

/// A page of a cache and its address on the host: [page_bytes] in memory from Backend::allocate_host.
struct PageTransfer {
  PageId page;
  std::byte* host = nullptr;
};

/// The paged KV cache of a stage's layers, in the backend's own layout. Pages are opaque bytes to everyone else.
class KvCache {
 public:
  virtual ~KvCache() = default;
  [[nodiscard]] virtual const KvCacheShape& shape() const = 0;
  /// Returns the bytes of one page over all layers of the stage.
  [[nodiscard]] virtual size_t page_bytes() const = 0;
  /// Copies pages to their host addresses; called inside Backend::submit_copy only. `pages` is read during the call.
  /// Nothing else may touch the copied memory until the work is complete.
  virtual void read_pages(std::span<const PageTransfer> pages) const = 0;
  /// Copies one layer of pages from host addresses that read_pages has filled. The rules of read_pages hold.
  virtual void write_layer(int32_t layer, std::span<const PageTransfer> pages) = 0;
};

/// The direction of page copies; each has a stream of its own.
enum class CopyDirection : uint8_t { kToDevice, kToHost };

/// Lets a forward pass wait for page copies layer by layer: by a counter on the CPU, by an event per layer on a GPU.
class LayerGate {
 public:
  virtual ~LayerGate() = default;
  /// Announces that the copies of `layer` are done or launched. Called inside submit_copy's work, in the order of
  /// layers.
  virtual void open(int32_t layer) = 0;
  /// Announces that the remaining copies have failed and will not come.
  virtual void fail() = 0;
  /// Orders all later ops after the copies of `layer`. Called inside submit's work. Throws when the copies have failed.
  virtual void wait_for(int32_t layer) = 0;
};

/// A ragged batch. Sequence s owns rows [row_begin[s], row_begin[s+1]): its tokens at positions prefix[s], prefix[s]+1,
/// …. Its KV lives in pages[page_begin[s] …], position p in page p / page_size.
struct BatchLayout {
  std::span<const int32_t> row_begin;   // [sequences + 1]
  std::span<const int32_t> prefix;      // [sequences]
  std::span<const int32_t> page_begin;  // [sequences + 1]
  std::span<const PageId> pages;        // [page_begin.back()]
  /// Rows at the end of each sequence that are drafts: the states after them are not kept, and a cache of states needs
  /// no pages for them. Each sequence has a row before them. Empty: there are none. See Feature::kStatesBeforeDrafts.
  std::span<const int32_t> drafts = {};  // [sequences]
  /// The sizes to which a batch inside Replay::run is padded, so that equal graphs serve different batches. Padding
  /// rows follow the last sequence's rows and belong to none. 0: no padding.
  int32_t padded_rows = 0;
  int32_t padded_sequences = 0;
  int32_t padded_sequence_rows = 0;
  /// With an indexer: an upper bound of the tokens of a sequence, new rows included, that is above what the indexer
  /// chooses if and only if a sequence is longer than that.
  int32_t padded_context = 0;
  [[nodiscard]] int32_t row_count() const { return padded_rows > 0 ? padded_rows : row_begin.back(); }
  [[nodiscard]] size_t sequence_count() const { return prefix.size(); }
  /// Returns the drafts of a sequence.
  [[nodiscard]] int32_t draft_count(size_t sequence) const { return drafts.empty() ? 0 : drafts[sequence]; }
};

/// A batch in memory that ops can read. Made by Backend::upload inside submitted work and valid until the work function
/// returns. On the CPU it refers to the caller's arrays, which must live as long.
struct UploadedBatch {
  BatchLayout layout;
  const void* handle = nullptr;  ///< private to the backend
};
/// Row numbers or tokens in memory that ops can read. Made and valid like UploadedBatch.
struct UploadedIndices {
  std::span<const int32_t> values;
  const void* handle = nullptr;  ///< private to the backend
};

/// Receives the completion of submitted work: exactly one call, on a thread of the backend's choice. A non-null
/// exception means that the work failed.
using CompletionHandler = std::function<void(std::exception_ptr)>;

/// The memory from which `allocate` takes. Backends that share it report one name.
struct DeviceMemory {
  std::string name;              ///< "host", "cuda 0"
  uint64_t available_bytes = 0;  ///< at the time of the call
};

/// Upper bounds of the work of one stage, by which reserve() sizes scratch memory.
struct WorkBounds {
  int32_t rows = 0;         ///< per batch
  int32_t expert_rows = 0;  ///< per mixture of experts, if more than `rows`: those of all rings that share experts
  int32_t row_lookups = 1;  ///< rows of a table that a row of a batch looks up at once
  int32_t sequences = 0;    ///< per batch
  int32_t context = 0;      ///< tokens per sequence
  KvCacheShape cache;       ///< page_count is ignored
  std::span<const PackedWeight* const> weights;
  std::span<const Experts* const> experts;
  std::span<const AttentionShape> attention;
  std::span<const LatentShape> latent_attention;
  IndexerShape indexer = {};  ///< of all layers that have one; without heads: none has
  int32_t state_rows = 0;     ///< of a recurrent head's largest state, its key_dim or state_dim; 0: none
  int32_t logit_rows = 0;     ///< rows sampled or scored at once; 0: never any
  int32_t logit_blocks = 0;   ///< blocks of logit_rows per batch
  int32_t vocab = 0;
};

/// The revision of the arithmetic. It grows with every change of the bits that any backend computes, so that no build
/// loads pages that other kernels have stored.
inline constexpr int kArithmeticRevision = 13;

/// Interface to one device: memory, streams, and the ops of a decoder layer. Owned by a stage. Ops and uploads run
/// only inside submitted work; allocation and packing may run on any thread.
class Backend {
 public:
  virtual ~Backend() = default;

  [[nodiscard]] virtual std::string description() const = 0;  ///< e.g. "cpu avx512_bf16, 2 threads"
  [[nodiscard]] virtual DType compute_dtype() const = 0;      ///< dtype of GEMM inputs, q, k, v and KV pages
  /// Names everything that must be equal for two backends to compute the same page bit for bit: layout, dtype,
  /// instruction set.
  [[nodiscard]] virtual std::string kv_format() const = 0;
  [[nodiscard]] virtual DType hidden_dtype() const = 0;  ///< dtype of the residual stream, which travels between stages
  /// Returns whether device memory is host memory, which the host reads in place.
  [[nodiscard]] virtual bool is_host() const = 0;

  [[nodiscard]] virtual DeviceMemory memory() const = 0;

  /// Allocates the scratch for any work within `bounds`, so that none is allocated later. Throws std::runtime_error
  /// when memory is short.
  virtual void reserve(const WorkBounds& /*bounds*/) {}
  /// Returns zeroed device memory.
  [[nodiscard]] virtual Buffer allocate(size_t bytes) = 0;
  /// Returns zeroed host memory of the kind that the device copies from and to fastest.
  [[nodiscard]] virtual Buffer allocate_host(size_t bytes) = 0;
  /// Stacks `parts` ([out_i, in], same `in`) along `out` and packs them.
  [[nodiscard]] virtual std::unique_ptr<PackedWeight> pack(std::span<const HostTensor> parts) = 0;
  /// Packs gate and up, [ff, in] each, so that `matmul_silu_mul` can fuse them.
  [[nodiscard]] virtual std::unique_ptr<PackedWeight> pack_gate_up(const HostTensor& gate, const HostTensor& up) = 0;
  /// Packs a weight for `matmul` that stays in f32 whatever the compute dtype is; requires Feature::kF32Weights. Its
  /// GEMMs widen x to f32.
  [[nodiscard]] virtual std::unique_ptr<PackedWeight> pack_f32(const HostTensor& weight);
  /// Returns whether pack_w8 and pack_gate_up_w8 exist, which keep weights at 8 bits. With unquantized inputs their
  /// results equal, bit for bit, GEMMs with the dequantized weights rounded to the compute dtype.
  [[nodiscard]] virtual bool packs_w8() const { return false; }
  [[nodiscard]] virtual std::unique_ptr<PackedWeight> pack_w8(std::span<const W8Matrix> parts, W8Activations inputs);
  [[nodiscard]] virtual std::unique_ptr<PackedWeight> pack_gate_up_w8(const W8Matrix& gate, const W8Matrix& up,
                                                                      W8Activations inputs);
  /// Returns whether pack_codes and its kin exist, which keep weights in codes of 2 to 8 bits. pack_codes takes
  /// matrices of several kinds, unless some alone have E4M3 factors. Where quantizes_inputs() says so, GEMMs quantize
  /// inputs to int8, 32 neighbours with one f32 scale.
  [[nodiscard]] virtual bool packs_codes() const { return false; }
  /// Returns whether codes may have minimums with factors of each 16 columns.
  [[nodiscard]] virtual bool packs_half_minimums() const { return false; }
  /// Returns whether gate and up, and the experts of a layer, may differ in their kinds of codes too.
  [[nodiscard]] virtual bool mixes_codes() const { return false; }
  [[nodiscard]] virtual std::unique_ptr<PackedWeight> pack_codes(std::span<const CodeMatrix> parts);
  [[nodiscard]] virtual std::unique_ptr<PackedWeight> pack_gate_up_codes(const CodeMatrix& gate, const CodeMatrix& up);
  /// Returns whether pack_fp8 and its kin exist, which keep weights in E4M3. On a GPU results equal, bit for bit, GEMMs
  /// with the decoded weights rounded to the compute dtype, unless it was made to round inputs to E4M3 too. A CPU may
  /// scale sums instead of weights, so that none is rounded.
  [[nodiscard]] virtual bool packs_fp8() const { return false; }
  [[nodiscard]] virtual std::unique_ptr<PackedWeight> pack_fp8(std::span<const Fp8Matrix> parts);
  [[nodiscard]] virtual std::unique_ptr<PackedWeight> pack_gate_up_fp8(const Fp8Matrix& gate, const Fp8Matrix& up);
  /// Packs a weight whose sums can be divided over ranks. `part` is [out, shards.owned().size()], the columns of the
  /// rank. GEMMs with it add the sums of the rank's shards in the order of the tree.
  [[nodiscard]] virtual std::unique_ptr<PackedWeight> pack_sharded(const HostTensor& part, const SumShards& shards) = 0;
  /// Packs such a weight in codes. Its columns begin at a multiple of kCodeUnit.
  [[nodiscard]] virtual std::unique_ptr<PackedWeight> pack_sharded_codes(const CodeMatrix& part,
                                                                         const SumShards& shards);
  /// Packs such a weight in E4M3.
  [[nodiscard]] virtual std::unique_ptr<PackedWeight> pack_sharded_fp8(const Fp8Matrix& part, const SumShards& shards);
  /// Packs such a weight of 8 bits. With one scale per group the columns begin with a group.
  [[nodiscard]] virtual std::unique_ptr<PackedWeight> pack_sharded_w8(const W8Matrix& part, W8Activations inputs,
                                                                      const SumShards& shards);
  /// Returns a packer for a rank's experts of `count`, which is at least routing.experts_per_row. Options that are not
  /// the default ones require their features. Throws std::runtime_error when the ops support fewer experts.
  [[nodiscard]] virtual std::unique_ptr<ExpertPacker> pack_experts(int32_t count, const ExpertOptions& options,
                                                                   RankPosition position) = 0;
  /// Makes an embedding table. It may keep reading `table.data`, which must outlive it.
  [[nodiscard]] virtual std::unique_ptr<EmbeddingTable> make_embedding(const HostTensor& table) = 0;
  /// Returns whether make_decoding_embedding exists: a table [rows, cols] whose threads call `read` for tokens' rows.
  [[nodiscard]] virtual bool decodes_embeddings() const { return false; }
  [[nodiscard]] virtual std::unique_ptr<EmbeddingTable> make_decoding_embedding(int64_t rows, int64_t cols,
                                                                                ReadRowsFn read);
  /// Packs kv_b_proj's rows of a rank's heads, [heads·(nope_dim + value_dim), latent_dim]. Per head the rows for the
  /// key precede those for the value. It requires Feature::kLatentAttention.
  [[nodiscard]] virtual std::unique_ptr<LatentExpansion> pack_latent_expansion(const HostTensor& kv_b,
                                                                               const LatentShape& shape);
  /// Returns whether pack_fp8_latent_expansion exists.
  [[nodiscard]] virtual bool packs_fp8_latents() const { return false; }
  /// Packs such rows in E4M3. Those for the key are decoded where the transpose cannot keep them, which follows from
  /// blocks and heads alone.
  [[nodiscard]] virtual std::unique_ptr<LatentExpansion> pack_fp8_latent_expansion(const Fp8Matrix& kv_b,
                                                                                   const LatentShape& shape);
  /// Returns whether pack_latent_codes and pack_latent_code_rows exist. Their products quantize inputs as those of
  /// pack_codes do.
  [[nodiscard]] virtual bool packs_latent_codes() const { return false; }
  /// Packs the parts of such rows in codes: `queries` [heads·latent_dim, nope_dim], the transpose of each head's rows
  /// for the key, and `values` [heads·value_dim, latent_dim].
  [[nodiscard]] virtual std::unique_ptr<LatentExpansion> pack_latent_codes(const CodeMatrix& queries,
                                                                           const CodeMatrix& values,
                                                                           const LatentShape& shape);
  /// Packs such rows in codes. The rows for the value keep theirs. Those for the key are decoded where the transpose
  /// cannot keep them, which follows from the format alone.
  [[nodiscard]] virtual std::unique_ptr<LatentExpansion> pack_latent_code_rows(const CodeMatrix& kv_b,
                                                                               const LatentShape& shape);
  [[nodiscard]] virtual std::unique_ptr<DeviceVector> make_vector(std::span<const float> values) = 0;
  [[nodiscard]] virtual std::unique_ptr<KvCache> make_kv_cache(const KvCacheShape& shape) = 0;
  /// Returns KvCache::page_bytes of such a cache, padding included. page_count is ignored.
  [[nodiscard]] virtual size_t kv_page_bytes(const KvCacheShape& shape) const = 0;

  /// Runs `work` in stream order and calls `done` when everything that it launched is complete. The CPU runs it on the
  /// backend's worker. A GPU runs it at once, since ops only launch, or on a thread that launches, where ranks or rings
  /// wait for each other there. What `work` refers to lives until `done`.
  virtual void submit(std::function<void()> work, CompletionHandler done) = 0;
  /// Runs `work`, which copies pages, in an order of its own per direction and concurrently with submitted work.
  virtual void submit_copy(CopyDirection direction, std::function<void()> work, CompletionHandler done) = 0;
  [[nodiscard]] virtual std::unique_ptr<Replay> make_replay() = 0;
  /// Returns a gate with all layers closed.
  [[nodiscard]] virtual std::shared_ptr<LayerGate> make_layer_gate() = 0;

  /// Returns whether device memory can be an end of a DeviceChannel. make_channel_id and open_channel require that it
  /// can.
  [[nodiscard]] virtual ChannelSupport channel_support() { return {}; }
  /// Returns the id of a new channel. The sending end calls it.
  [[nodiscard]] virtual std::vector<std::byte> make_channel_id();
  /// Opens one end of a channel, which is destroyed before the backend. Throws std::runtime_error when it cannot be
  /// opened.
  [[nodiscard]] virtual std::unique_ptr<DeviceChannel> open_channel(ChannelOptions options);

  /// Opens this rank's end of a group of ranks on such devices, whose id is make_channel_id() of rank 0. The end is
  /// destroyed before the backend. Blocks until all ranks are connected, so that each opens on a thread of its own.
  /// Throws std::runtime_error when they are not.
  [[nodiscard]] virtual std::unique_ptr<Collective> open_collective(const CollectiveOptions& options);

  /// Calls body(begin, end) for ranges that cover [0, items), on the threads that compute. Called only inside submitted
  /// work, on host memory.
  virtual void for_ranges(int64_t items, const std::function<void(int64_t, int64_t)>& body);

  /// Submits `work` and waits for it on the calling thread, which must not be the backend's. Rethrows what the work
  /// threw.
  void run_and_wait(std::function<void()> work);

  // Uploads and copies, called only inside submitted work, like the ops.
  /// Makes a batch, or numbers, readable for the ops of this work. One call serves all of them.
  [[nodiscard]] virtual UploadedBatch upload(const BatchLayout& batch) = 0;
  [[nodiscard]] virtual UploadedIndices upload(std::span<const int32_t> values) = 0;
  /// Copies to the device in stream order. `from` must not change before the work is complete. It is host memory
  /// (fastest from allocate_host), memory of another backend of this kind in this process, or the target of a channel's
  /// receive. A copy from a receive's target waits for the receive.
  virtual void copy_in(std::span<const std::byte> from, void* to) = 0;
  /// Copies to the host in stream order. `to` must not be read before the work is complete.
  virtual void copy_out(const void* from, std::span<std::byte> to) = 0;

  // Ops. T rows, H hidden, all matrices dense. "compute" and "hidden" name the two dtypes above.
  /// Returns whether the ops and options of a feature exist.
  [[nodiscard]] virtual bool computes(Feature /*feature*/) const { return false; }
  /// hidden [T, H] = table[tokens[t]]. A token outside the table gives zeros.
  virtual void embed(const EmbeddingTable& table, const UploadedIndices& tokens, Matrix hidden) = 0;
  /// hidden [T, H] += table[indices[t]]. An index outside the table adds nothing.
  virtual void add_embedding(const EmbeddingTable& table, const UploadedIndices& indices, Matrix hidden);
  /// out (compute) [T, H] = rms_norm(hidden) · weight.
  virtual void rms_norm(Matrix hidden, const DeviceVector& weight, float epsilon, Matrix out) = 0;
  /// values (f32) [T, H] = rms_norm(values) · weight.
  virtual void rms_norm_in_place(Matrix values, const DeviceVector& weight, float epsilon);
  /// out (compute) [T, H] = (hidden - mean) / sqrt(variance + epsilon) · weight + bias; `bias` may be null. With
  /// `in_place` hidden [T, H] also becomes that.
  virtual void layer_norm(Matrix hidden, const DeviceVector& weight, const DeviceVector* bias, float epsilon,
                          bool in_place, Matrix out);
  /// out (compute) [T, H] = hidden.
  virtual void convert(Matrix hidden, Matrix out);
  /// matrix (f32) = matrix · factor.
  virtual void scale(Matrix matrix, float factor);
  /// matrix (f32) = cap · tanh(matrix / cap).
  virtual void soft_cap(Matrix matrix, float cap);
  /// Stores each row of kv (f32) [T, latent_dim + rope_dim] in the pages of `layer`: the latent after an RMS norm, then
  /// the key after the rotation of its rope_dim channels.
  virtual void store_latent(Matrix kv, const LatentShape& shape, const RotaryTable& rotary, const DeviceVector& norm,
                            float norm_epsilon, const UploadedBatch& batch, KvCache& cache, int32_t layer);
  /// out (compute) [T, heads·value_dim] = attention of each row up to its own position. It rotates the last rope_dim
  /// channels of each head of q (f32) [T, heads·(nope_dim + rope_dim)], all of which the table's factor of queries
  /// multiplies. Queries go to the space of latents and results come back from there, so that each latent is read as it
  /// is stored.
  virtual void latent_attention(Matrix q, const LatentShape& shape, const RotaryTable& rotary,
                                const LatentExpansion& expansion, const UploadedBatch& batch, const KvCache& cache,
                                int32_t layer, Matrix out);
  // Ops of an indexer, which require Feature::kIndexers.
  /// Stores the indexer's key of each row in the pages of `layer`: LayerNorm of key (f32) [T, head_dim], then the
  /// rotation of its first rope_dim channels. The contents of `key` are lost.
  virtual void store_index_key(Matrix key, const IndexerShape& shape, const RotaryTable& rotary,
                               const DeviceVector& norm, const DeviceVector& norm_bias, float norm_epsilon,
                               const UploadedBatch& batch, KvCache& cache, int32_t layer);
  /// Writes to `chosen` [T, chosen_count], in ascending order, the positions that each row sees: those with the largest
  /// scores up to its own, of equal scores the lower position. The score of a key k is Σ_h w_h · max(q_h · k, 0), added
  /// in an order that follows from the shape alone. q (f32) [T, heads·head_dim] is before the rotation of each head's
  /// first rope_dim channels; `weights` (f32) [T, heads] are the w_h but for a factor above 0. NaN is the largest
  /// score. Rows at positions below chosen_count see all and are not written.
  virtual void choose_tokens(Matrix q, Matrix weights, const IndexerShape& shape, const RotaryTable& rotary,
                             const UploadedBatch& batch, const KvCache& cache, int32_t layer, IntMatrix chosen);
  /// Computes latent_attention where rows at positions from chosen.cols on see only the positions in their row of
  /// `chosen`. The chosen latents are summed as if they were the first of the sequence.
  virtual void sparse_latent_attention(Matrix q, const LatentShape& shape, const RotaryTable& rotary,
                                       const LatentExpansion& expansion, IntMatrix chosen, const UploadedBatch& batch,
                                       const KvCache& cache, int32_t layer, Matrix out);
  /// out (f32 or compute) [T, N] = x (compute) [T, K] · Wᵀ + bias; `bias` may be null.
  virtual void matmul(Matrix x, const PackedWeight& weight, const DeviceVector* bias, Matrix out) = 0;
  /// hidden [T, N] += x (compute) [T, K] · Wᵀ + bias; `bias` may be null.
  virtual void matmul_add(Matrix x, const PackedWeight& weight, const DeviceVector* bias, Matrix hidden) = 0;
  /// out (compute) [T, F] = silu(x·Wgᵀ) · (x·Wuᵀ), with a weight from pack_gate_up.
  virtual void matmul_silu_mul(Matrix x, const PackedWeight& weight, Matrix out) = 0;
  /// out (compute) [T, F] = x/2 · (1 + erf(x/√2)) of every element x of in (f32) [T, F].
  virtual void gelu(Matrix in, Matrix out);
  /// out (compute) [T, F] = g(in[:, f]) · in[:, F + f] of in (f32) [T, 2F], g(x) = x/2 · (1 + tanh(√(2/π) · (x +
  /// 0.044715 x³))).
  virtual void gelu_tanh_mul(Matrix in, Matrix out);
  /// out (compute) [T, F] = g(gates[:, f]) · factors[:, first + f] of gates (f32) [T, F] and factors (f32) [T, N].
  virtual void gelu_tanh_gate(Matrix gates, Matrix factors, int64_t first, Matrix out);
  /// out (compute) [T, F] = silu(factor · in[:, f]) · in[:, F + f] of in (f32) [T, 2F].
  virtual void scaled_silu_mul(Matrix in, float factor, Matrix out);
  /// out (compute) [T, F] = max(x, 0)² of every element x of in (f32) [T, F].
  virtual void relu_squared(Matrix in, Matrix out);
  /// hidden [T, H] += Σ p_e · (f(x·Wg_eᵀ + bg_e, x·Wu_eᵀ + bu_e)·Wd_eᵀ + bd_e) over the experts e of each row.
  /// `router_logits` (f32) [T, experts] choose the experts and their weights p_e as tensor::Routing says; f is the
  /// experts' gated activation; x is (compute) [T, H]. Within a shard a row's experts are added in ascending order; the
  /// shards' sums are added in the order of the tree. A NaN logit makes its row NaN and no other. Rows after the last
  /// sequence's rows of `batch` stay unchanged, and no expert is read for them.
  virtual void fused_moe(Matrix x, Matrix router_logits, const Experts& experts, const UploadedBatch& batch,
                         Matrix hidden) = 0;
  /// sums (f32) [T, H] = the part of the sum of fused_moe that the rank's experts contribute: zero for rows without any
  /// of them. Rows after the last sequence's become zero.
  virtual void fused_moe_sums(Matrix x, Matrix router_logits, const Experts& experts, const UploadedBatch& batch,
                              Matrix sums) = 0;
  /// out (f32) [T, 1] = the largest magnitude of each row of x (compute) [T, K]; NaN or infinity if there is one.
  virtual void row_magnitudes(Matrix x, Matrix out);
  /// sums [T, N] = x (compute) [T, K] · Wᵀ in integers, without their scales, with a weight that has row scales. The
  /// largest magnitude of a row on each rank is in `magnitudes` (f32) [T, ranks]. Integers are exact, so that ranks may
  /// add them in any order.
  virtual void matmul_integers(Matrix x, const PackedWeight& weight, Matrix magnitudes, IntMatrix sums);
  /// out (f32) [T, N] = the values that the sums of all ranks stand for, with the weight and the magnitudes of
  /// matmul_integers. `out` may be the memory of `sums`.
  virtual void scale_integers(IntMatrix sums, const PackedWeight& weight, Matrix magnitudes, Matrix out);
  /// hidden [T, N] += sums (f32) [T, N] + bias; `bias` may be null. It ends matmul_add and fused_moe where the sums of
  /// several ranks were added in between. The contents of `sums` are lost.
  virtual void add_sums(Matrix sums, const DeviceVector* bias, Matrix hidden) = 0;
  /// hidden [T, N] += sigmoid(gates[t]) · sums (f32) [T, N], with gates (f32) [T, 1]. It adds the whole sum of a shared
  /// expert.
  virtual void add_gated_sums(Matrix sums, Matrix gates, Matrix hidden);
  /// hidden [T, N] += factor · rms_norm(sums + bias) · norm, with sums (f32) [T, N]; `bias` may be null. Without `norm`
  /// hidden += factor · (sums + bias). The contents of `sums` are lost.
  virtual void add_scaled_sums(Matrix sums, const DeviceVector* bias, const DeviceVector* norm, float epsilon,
                               float factor, Matrix hidden);
  /// Splits qkv (f32) [T, (heads + 2·kv_heads)·head_dim] into q, k and v and rotates q and k. An RMS norm of q and k
  /// precedes the rotation when both weights are given: per head with weights [head_dim], over all heads with weights
  /// [heads·head_dim] and [kv_heads·head_dim]. The shape may have another HeadNorm. With kRotatedRms the table scales
  /// no cos and sin. The shape may have a norm of v with the same epsilon, and values that are keys, or qkv has queries
  /// only and nothing is stored. The contents of `qkv` are lost. q goes to `q` (compute) [T, heads·head_dim]; k and v
  /// go to the pages of `layer`, an index into this cache's layers.
  virtual void rotary_store_kv(Matrix qkv, const AttentionShape& shape, const RotaryTable& rotary,
                               const DeviceVector* q_norm, const DeviceVector* k_norm, float norm_epsilon,
                               const UploadedBatch& batch, KvCache& cache, int32_t layer, Matrix q) = 0;
  /// out (compute) [T, heads·head_dim] = attention of each row over its sequence's pages: up to its own position
  /// included, or over all keys where the shape is not causal.
  virtual void attention(Matrix q, const AttentionShape& shape, const UploadedBatch& batch, const KvCache& cache,
                         int32_t layer, Matrix out) = 0;
  /// values (compute) [T, N] = values · sigmoid(gates (f32) [T, N]).
  virtual void gate(Matrix values, Matrix gates);

  // Ops of recurrent mixers, which require Feature::kRecurrence. `states` is a cache of states. A sequence with a
  // prefix continues from the state in the page of its last token, another one from zeros. Its state after the batch's
  // last row, and that after the last row of each page that the batch has, are stored in their pages; drafts are
  // computed after that. Rows are computed one after the other, so that no bits depend on how a prompt was cut.
  /// out (f32) [T, channels] = silu of the convolution of the first columns of in (f32), with weight [width, channels];
  /// `bias` [channels] may be null.
  virtual void causal_conv(Matrix in, const ConvShape& shape, const DeviceVector& weight, const DeviceVector* bias,
                           const UploadedBatch& batch, KvCache& states, int32_t layer, Matrix out);
  /// out (compute) [T, channels] = C · conv(B · x) of in (f32) [T, B | C | x], with weight [width, channels]; `bias`
  /// [channels] may be null.
  virtual void short_conv(Matrix in, const ConvShape& shape, const DeviceVector& weight, const DeviceVector* bias,
                          const UploadedBatch& batch, KvCache& states, int32_t layer, Matrix out);
  /// out (f32) [T, value heads·value_dim] = o, per value head: S ← e^g·S; S ← S + k ⊗ σ(b)·(v − Sᵀk); o = Sᵀq, with g =
  /// −decay · softplus(a + step_bias) and a decay per head. q and k get unit length, q is then divided by √key_dim.
  virtual void delta_net(const DeltaNetInputs& in, const DeltaNetShape& shape, const DeviceVector& decay,
                         const DeviceVector& step_bias, const UploadedBatch& batch, KvCache& states, int32_t layer,
                         Matrix out);
  /// out (f32) [T, heads·head_dim] = y of mixed (f32) [T, x | B | C] and steps (f32) [T, heads], per head: h ← e^{−Δ ·
  /// decay}·h + Δ·x ⊗ B; y = h·C + skip · x, with Δ = softplus(step + step_bias) clamped to the shape's bounds.
  virtual void state_space(Matrix mixed, Matrix steps, const StateSpaceShape& shape, const DeviceVector& decay,
                           const DeviceVector& step_bias, const DeviceVector& skip, const UploadedBatch& batch,
                           KvCache& states, int32_t layer, Matrix out);
  /// out (compute) [T, N] = the gated norm of in (f32) [T, N], whose gates are N columns of `gates` (f32) from
  /// `first_gate` on.
  virtual void gated_rms_norm(Matrix in, Matrix gates, int64_t first_gate, const GatedNorm& norm, Matrix out);

  /// out [R, H] = in[rows[r]].
  virtual void gather_rows(Matrix in, const UploadedIndices& rows, Matrix out) = 0;
  /// Copies `cols` columns of all rows: out[t, out_begin + i] = in[t, in_begin + i]. The matrices have equal rows and
  /// dtype, and differ.
  virtual void copy_columns(Matrix in, int64_t in_begin, Matrix out, int64_t out_begin, int64_t cols) = 0;
  /// Samples one token per row of logits (f32) [R, vocab]; logits stay unchanged. `vocab` is the count of ids that can
  /// be sampled, at most logits.cols. A row without a distribution reports a fault in its result and does not affect
  /// the others. `specs` is read during the call; `results` are filled when the work is complete.
  virtual void sample(Matrix logits, int32_t vocab, std::span<const SampleSpec> specs,
                      std::span<SampleResult> results) = 0;
  /// Computes the log-probabilities of given tokens for prompt scoring. results[i] describes `targets[i]` and the
  /// `top_counts[i]` most probable tokens of row i. Faults and completion are as for `sample`.
  virtual void score(Matrix logits, int32_t vocab, std::span<const TokenId> targets,
                     std::span<const int32_t> top_counts, std::span<ScoreResult> results) = 0;

  /// Copies to the host in stream order and waits for all work before; for exchanges on the host, and for tests.
  virtual void copy_to_host(const void* device, std::span<std::byte> host) = 0;
  /// Copies to the device in stream order and waits; for tests and measurements.
  virtual void copy_to_device(std::span<const std::byte> host, void* device) = 0;
};

}  // namespace millrace::tensor
