#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "tensor/device_channel.h"
#include "tensor/dtype.h"
#include "tensor/host_tensor.h"
#include "tensor/replay.h"
#include "tensor/sampling.h"
#include "tensor/w8.h"

/// The device, as a model sees it: memory, weights in the device's own layout, and the ops of a decoder layer.
///
/// Ops of one Backend run in the order of the calls, on its stream. They are called only inside `Stream::submit`'s work
/// function. Every op is batch-invariant: the bits of a row of its output depend on that row's input, on the sequence
/// it belongs to and on the shapes of the model, never on the other rows, the chunking, or the thread count.
namespace millrace::tensor {

/// Device memory; freed with its owner. `data` is a device pointer (on the CPU an ordinary one, 64-byte aligned).
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

/// A borrowed dense row-major matrix on the device.
struct Matrix {
  std::byte* data = nullptr;  // [rows, cols]
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  [[nodiscard]] size_t bytes() const { return static_cast<size_t>(rows * cols) * size_of(dtype); }
};

/// A weight [out, in] (or a stack of several along `out`) in the backend's packed layout; y = x · Wᵀ (+ bias).
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  [[nodiscard]] virtual int64_t out_features() const = 0;
  [[nodiscard]] virtual int64_t in_features() const = 0;
};

/// How a row finds its experts: those with the largest router logits, of equal ones the lower number. Their weights are
/// a softmax over the logits of all experts.
struct Routing {
  int32_t experts_per_row = 0;
  bool renormalize = false;  ///< the weights of a row's experts are divided by their sum
};

/// The experts of a sparse layer, all of one shape, and how rows find them.
class Experts {
 public:
  virtual ~Experts() = default;
  [[nodiscard]] virtual int32_t count() const = 0;
  [[nodiscard]] virtual const Routing& routing() const = 0;
};

/// Packs the experts of a layer one after another, each to where it stays. Made by a backend, which outlives it; for
/// one thread.
class ExpertPacker {
 public:
  virtual ~ExpertPacker() = default;
  /// The next one: gate and up [intermediate, hidden], down [hidden, intermediate], all experts alike. The tensors need
  /// not outlive the call.
  virtual void add(const HostTensor& gate, const HostTensor& up, const HostTensor& down) = 0;
  /// The same in 8 bits, where Backend::packs_w8; of a layer's experts all or none.
  virtual void add_w8(const W8Matrix& gate, const W8Matrix& up, const W8Matrix& down, W8Activations inputs);
  /// The layer's experts, when all have been added.
  [[nodiscard]] virtual std::unique_ptr<Experts> finish() = 0;
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

struct KvCacheShape {
  int32_t layer_count = 0;
  int32_t kv_head_count = 0;
  int32_t head_dim = 0;
  int32_t page_size = 0;  ///< tokens per page
  int32_t page_count = 0;
};

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
  /// Bytes of one page over all layers of the stage.
  [[nodiscard]] virtual size_t page_bytes() const = 0;
  /// Copies inside Backend::submit_copy only: of pages to their host addresses, and of one layer of pages from
  /// addresses that read_pages has filled. `pages` is read during the call; nothing else may touch what is copied
  /// meanwhile.
  virtual void read_pages(std::span<const PageTransfer> pages) const = 0;
  virtual void write_layer(int32_t layer, std::span<const PageTransfer> pages) = 0;
};

enum class CopyDirection : uint8_t { kToDevice, kToHost };

/// Lets a forward pass wait for copies layer by layer (a counter on the CPU, an event per layer on a GPU).
class LayerGate {
 public:
  virtual ~LayerGate() = default;
  /// Inside submit_copy's work, for one layer after another: the copies of `layer` have been made or launched.
  virtual void open(int32_t layer) = 0;
  /// There will be no more copies, since they failed.
  virtual void fail() = 0;
  /// Inside submit's work: what comes after sees the copies of `layer`. Throws when they have failed.
  virtual void wait_for(int32_t layer) = 0;
};

/// A ragged batch: sequence s owns rows [row_begin[s], row_begin[s+1]), which are its tokens at positions
/// prefix[s], prefix[s]+1, …; its KV lives in pages[page_begin[s] …], position p in page p / page_size.
struct BatchLayout {
  std::span<const int32_t> row_begin;   // [sequences + 1]
  std::span<const int32_t> prefix;      // [sequences]
  std::span<const int32_t> page_begin;  // [sequences + 1]
  std::span<const PageId> pages;        // [page_begin.back()]
  /// What a batch inside Replay::run is padded to, so that it launches what others launch: rows behind the last
  /// sequence's, which belong to nobody, and bounds of the sequences and of the rows of one; 0: not at all.
  int32_t padded_rows = 0;
  int32_t padded_sequences = 0;
  int32_t padded_sequence_rows = 0;
  [[nodiscard]] int32_t row_count() const { return padded_rows > 0 ? padded_rows : row_begin.back(); }
  [[nodiscard]] size_t sequence_count() const { return prefix.size(); }
};

/// A batch, or a list of row numbers or tokens, where ops read it. Made by Backend::upload inside submitted work and
/// good until that work's function returns; on the CPU the arrays themselves, which must live as long.
struct UploadedBatch {
  BatchLayout layout;
  const void* handle = nullptr;  ///< the backend's own
};
struct UploadedIndices {
  std::span<const int32_t> values;
  const void* handle = nullptr;  ///< the backend's own
};

struct AttentionShape {
  int32_t head_count = 0;
  int32_t kv_head_count = 0;
  int32_t head_dim = 0;
  float scale = 0.0f;          ///< usually head_dim^-0.5
  int32_t sliding_window = 0;  ///< 0: none; else key j is visible to query i iff i - window < j <= i
};

/// Rotary embedding of the first `rotary_dim` channels of a head, pairs (i, i + rotary_dim/2).
struct RotaryTable {
  const DeviceVector* inverse_frequency = nullptr;  // [rotary_dim / 2]
  int32_t rotary_dim = 0;
  float attention_factor = 1.0f;  ///< multiplies cos and sin
};

/// Completion of submitted work. Exactly one call of the callback, on a thread of the backend's choosing; a non-null
/// exception means that the work failed.
using CompletionHandler = std::function<void(std::exception_ptr)>;

/// Where `allocate` takes memory from; backends that share it give it one name.
struct DeviceMemory {
  std::string name;              ///< "host", "cuda 0"
  uint64_t available_bytes = 0;  ///< now
};

/// The most that the work of one stage can be, for scratch.
struct WorkBounds {
  int32_t rows = 0;       ///< of a batch
  int32_t sequences = 0;  ///< of a batch
  int32_t context = 0;    ///< of a sequence
  KvCacheShape cache;     ///< whatever its page_count
  std::span<const PackedWeight* const> weights;
  std::span<const Experts* const> experts;
  std::span<const AttentionShape> attention;
  int32_t logit_rows = 0;    ///< that are drawn or scored at once; 0: none ever
  int32_t logit_blocks = 0;  ///< of as many, of one batch
  int32_t vocab = 0;
};

/// Raised with every change of what any backend makes of a model, down to a bit, so that a build does not take pages
/// that one with other kernels has stored.
inline constexpr int kArithmeticRevision = 3;

class Backend {
 public:
  virtual ~Backend() = default;

  [[nodiscard]] virtual std::string description() const = 0;  ///< e.g. "cpu avx512_bf16, 2 threads"
  [[nodiscard]] virtual DType compute_dtype() const = 0;      ///< inputs of products, q, k, v, KV pages
  /// What must be equal for two backends to compute the same page bit for bit: layout, dtype, instruction set.
  [[nodiscard]] virtual std::string kv_format() const = 0;
  [[nodiscard]] virtual DType hidden_dtype() const = 0;  ///< residual stream; what travels between stages
  /// Whether device memory is memory of the host, which reads it in place.
  [[nodiscard]] virtual bool is_host() const = 0;

  [[nodiscard]] virtual DeviceMemory memory() const = 0;

  /// Takes what scratch any work within `bounds` needs, so that none is taken later. Throws where memory is short.
  virtual void reserve(const WorkBounds& /*bounds*/) {}
  /// Zeroed device memory.
  [[nodiscard]] virtual Buffer allocate(size_t bytes) = 0;
  /// Zeroed host memory that the device copies from and to fastest.
  [[nodiscard]] virtual Buffer allocate_host(size_t bytes) = 0;
  /// Stacks `parts` ([out_i, in], same `in`) along `out` and packs them.
  [[nodiscard]] virtual std::unique_ptr<PackedWeight> pack(std::span<const HostTensor> parts) = 0;
  /// Packs gate and up ([ff, in] each) so that `matmul_silu_mul` can fuse them.
  [[nodiscard]] virtual std::unique_ptr<PackedWeight> pack_gate_up(const HostTensor& gate, const HostTensor& up) = 0;
  /// Whether there are the two below, which take weights of 8 bits as they are. With exact inputs their products have
  /// the bits of the products with the weights that these stand for, rounded to what the products' inputs are.
  [[nodiscard]] virtual bool packs_w8() const { return false; }
  [[nodiscard]] virtual std::unique_ptr<PackedWeight> pack_w8(std::span<const W8Matrix> parts, W8Activations inputs);
  [[nodiscard]] virtual std::unique_ptr<PackedWeight> pack_gate_up_w8(const W8Matrix& gate, const W8Matrix& up,
                                                                      W8Activations inputs);
  /// For `count` experts, at least routing.experts_per_row. Throws std::runtime_error where they are more than the ops
  /// take.
  [[nodiscard]] virtual std::unique_ptr<ExpertPacker> pack_experts(int32_t count, Routing routing) = 0;
  /// The table may keep reading `table.data`, which must outlive it.
  [[nodiscard]] virtual std::unique_ptr<EmbeddingTable> make_embedding(const HostTensor& table) = 0;
  [[nodiscard]] virtual std::unique_ptr<DeviceVector> make_vector(std::span<const float> values) = 0;
  [[nodiscard]] virtual std::unique_ptr<KvCache> make_kv_cache(const KvCacheShape& shape) = 0;
  /// What KvCache::page_bytes of such a cache says, with all that its layout pads; whatever the page_count.
  [[nodiscard]] virtual size_t kv_page_bytes(const KvCacheShape& shape) const = 0;

  /// Runs `work` in stream order (on the CPU: on the backend's worker; on a GPU: at once, since ops only launch) and
  /// calls `done` when everything that it launched is complete.
  virtual void submit(std::function<void()> work, CompletionHandler done) = 0;
  /// The same for copies of pages, in an order of its own per direction, beside submitted work.
  virtual void submit_copy(CopyDirection direction, std::function<void()> work, CompletionHandler done) = 0;
  [[nodiscard]] virtual std::unique_ptr<Replay> make_replay() = 0;
  /// A gate with all layers closed.
  [[nodiscard]] virtual std::shared_ptr<LayerGate> make_layer_gate() = 0;

  /// Whether its memory can be an end of a DeviceChannel. The two below are called only where nothing is missing.
  [[nodiscard]] virtual ChannelSupport channel_support() { return {}; }
  /// Of one channel, by the end that will send.
  [[nodiscard]] virtual std::vector<std::byte> make_channel_id();
  /// Throws std::runtime_error when it cannot be begun. Destroyed before the backend.
  [[nodiscard]] virtual std::unique_ptr<DeviceChannel> open_channel(ChannelOptions options);

  /// Submits `work` and waits on the calling thread, which is none of the backend's; rethrows what it threw.
  void run_and_wait(std::function<void()> work);

  // Called only inside submitted work, as the ops are.
  /// Makes the batch, or the numbers, known to the ops of this work: once for all of them.
  [[nodiscard]] virtual UploadedBatch upload(const BatchLayout& batch) = 0;
  [[nodiscard]] virtual UploadedIndices upload(std::span<const int32_t> values) = 0;
  /// In stream order, complete when the work is: until then nobody changes or reads what is copied. `from` is memory of
  /// the host, from allocate_host if it shall be fast, or of another backend of the same kind in this process, or what
  /// a channel of this backend receives into: the copy then comes after the receive.
  virtual void copy_in(std::span<const std::byte> from, void* to) = 0;
  virtual void copy_out(const void* from, std::span<std::byte> to) = 0;

  // Ops. T rows, H hidden, all matrices dense. "compute" and "hidden" name the two dtypes above.
  /// hidden [T, H] = table[tokens[t]]; a token outside the table gives zeros.
  virtual void embed(const EmbeddingTable& table, const UploadedIndices& tokens, Matrix hidden) = 0;
  /// out (compute) [T, H] = rms_norm(hidden) · weight.
  virtual void rms_norm(Matrix hidden, const DeviceVector& weight, float epsilon, Matrix out) = 0;
  /// out (f32 or compute) [T, N] = x (compute) [T, K] · Wᵀ + bias; `bias` may be null.
  virtual void matmul(Matrix x, const PackedWeight& weight, const DeviceVector* bias, Matrix out) = 0;
  /// hidden [T, N] += x (compute) [T, K] · Wᵀ + bias; `bias` may be null.
  virtual void matmul_add(Matrix x, const PackedWeight& weight, const DeviceVector* bias, Matrix hidden) = 0;
  /// out (compute) [T, F] = silu(x·Wgᵀ) · (x·Wuᵀ), with a weight from pack_gate_up.
  virtual void matmul_silu_mul(Matrix x, const PackedWeight& weight, Matrix out) = 0;
  /// hidden [T, H] += Σ p_e · (silu(x·Wg_eᵀ) · (x·Wu_eᵀ))·Wd_eᵀ over the experts e that each row of `router_logits`
  /// (f32) [T, experts] names, p_e being their weights and x (compute) [T, H]; terms are added in an order that the
  /// row's experts alone determine. A logit that is NaN makes its row NaN, and no other. Rows behind the last
  /// sequence's of `batch` stay as they are, and no expert is read for them.
  virtual void fused_moe(Matrix x, Matrix router_logits, const Experts& experts, const UploadedBatch& batch,
                         Matrix hidden) = 0;
  /// From qkv (f32) [T, (heads + 2·kv_heads)·head_dim]: optional per-head RMS norm of q and k (weights [head_dim], both
  /// or neither), rotary embedding at each row's position; q goes to `q` (compute) [T, heads·head_dim], k and v into
  /// the pages of `layer` (an index into this cache's layers).
  virtual void rotary_store_kv(Matrix qkv, const AttentionShape& shape, const RotaryTable& rotary,
                               const DeviceVector* q_norm, const DeviceVector* k_norm, float norm_epsilon,
                               const UploadedBatch& batch, KvCache& cache, int32_t layer, Matrix q) = 0;
  /// out (compute) [T, heads·head_dim]: causal attention of each row over its sequence's pages, own position included.
  virtual void attention(Matrix q, const AttentionShape& shape, const UploadedBatch& batch, const KvCache& cache,
                         int32_t layer, Matrix out) = 0;
  /// out [R, H] = in[rows[r]].
  virtual void gather_rows(Matrix in, const UploadedIndices& rows, Matrix out) = 0;
  /// One draw per row of logits (f32) [R, vocab]; logits are not changed. `vocab` is the count of drawable ids, at most
  /// logits.cols. A row that nothing can be drawn from says so in its result; the others are drawn as ever. `specs` is
  /// read during the call, `results` are there when the work is complete.
  virtual void sample(Matrix logits, int32_t vocab, std::span<const SampleSpec> specs,
                      std::span<SampleResult> results) = 0;
  /// Logprobs of given tokens under given rows of logits (prompt scoring): results[i] for row i, `targets[i]`,
  /// `top_counts[i]` most probable alternatives. Faults are told per row and results are there as with `sample`.
  virtual void score(Matrix logits, int32_t vocab, std::span<const TokenId> targets,
                     std::span<const int32_t> top_counts, std::span<ScoreResult> results) = 0;

  /// Blocking copies between host and device, in stream order; for tests and measurements.
  virtual void copy_to_host(const void* device, std::span<std::byte> host) = 0;
  virtual void copy_to_device(std::span<const std::byte> host, void* device) = 0;
};

}  // namespace millrace::tensor
