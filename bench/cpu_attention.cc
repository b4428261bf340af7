// Paged attention: decode in GB/s of keys and values read, prefill in GFLOP/s. A KV cache of the compute dtype and
// caches of 8 bits take turns.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "cpu_bench.h"
#include "paged_layout.h"

using namespace millrace;
using namespace millrace::bench;

namespace {

struct Model {
  const char* name;
  int32_t heads, kv_heads, head_dim;
};
constexpr Model kModels[] = {{"0.5B 14/2x64", 14, 2, 64}, {"1B 32/8x64", 32, 8, 64}, {"8B 32/8x128", 32, 8, 128}};

/// Writes every token of every layer: unwritten memory would be one shared page of zeros.
void fill(tensor::Backend& backend, const tensor::AttentionShape& shape, const Layout& layout, tensor::KvCache& cache,
          int32_t layers) {
  Layout whole = layout;
  for (size_t s = 0; s < layout.prefix.size(); ++s) {
    const int32_t rows = layout.row_begin[s + 1] - layout.row_begin[s];
    whole.row_begin[s + 1] = whole.row_begin[s] + layout.prefix[s] + rows;
    whole.prefix[s] = 0;
  }
  const int64_t rows = whole.row_begin.back();
  const int64_t width = int64_t{shape.head_count + 2 * shape.kv_head_count} * shape.head_dim;
  const auto qkv = backend.allocate(static_cast<size_t>(rows * width) * 4);
  std::minstd_rand engine(1);
  for (int64_t i = 0; i < rows * width; ++i) reinterpret_cast<float*>(qkv.data())[i] = draw_from(engine);
  const auto q = backend.allocate(static_cast<size_t>(rows * shape.head_count * shape.head_dim) * 4);
  const std::vector<float> frequencies(static_cast<size_t>(shape.head_dim / 2), 0.01f);
  const auto vector = backend.make_vector(frequencies);
  for (int32_t layer = 0; layer < layers; ++layer) {
    backend.rotary_store_kv({.data = qkv.data(), .dtype = tensor::DType::kF32, .rows = rows, .cols = width}, shape,
                            {vector.get(), shape.head_dim, 1.0f}, nullptr, nullptr, 0.0f, backend.upload(whole.view()),
                            cache, layer,
                            {.data = q.data(),
                             .dtype = backend.compute_dtype(),
                             .rows = rows,
                             .cols = int64_t{shape.head_count} * shape.head_dim});
  }
}

constexpr tensor::KvDType kKvDTypes[] = {tensor::KvDType::kAuto, tensor::KvDType::kInt8, tensor::KvDType::kFp8E4M3};
constexpr size_t kKvDTypeCount = std::size(kKvDTypes);
using Backends = std::array<std::unique_ptr<tensor::Backend>, kKvDTypeCount>;

/// The attention of several layers in turn over a cache of one dtype. Owned by run(), used on the calling thread.
class Attention {
 public:
  Attention(tensor::Backend& backend, const Model& model, const Work& work, tensor::DType dtype)
      : backend_(backend),
        shape_{model.heads, model.kv_heads, model.head_dim, 1.0f / std::sqrt(static_cast<float>(model.head_dim)), 0},
        layout_(make_layout(work)) {
    const int64_t tokens = int64_t{work.sequences} * (work.prefix + work.rows);
    const double plain_bytes =
        2.0 * static_cast<double>(tokens * model.kv_heads * model.head_dim) * static_cast<double>(size_of(dtype));
    // Several layers in turn, so that decode reads memory and not a cache.
    layers_ = static_cast<int32_t>(std::clamp(256e6 / plain_bytes, 1.0, 64.0));
    const tensor::KvCacheShape cache{.layer_count = layers_,
                                     .kv_head_count = model.kv_heads,
                                     .head_dim = model.head_dim,
                                     .page_size = work.page_size,
                                     .page_count = static_cast<int32_t>(layout_.pages.size())};
    cache_ = backend.make_kv_cache(cache);
    layer_bytes_ = static_cast<double>(cache_->page_bytes()) / layers_ / work.page_size * static_cast<double>(tokens);
    rows_ = layout_.row_begin.back();
    const int64_t width = int64_t{model.heads} * model.head_dim;
    const size_t bytes = static_cast<size_t>(rows_ * width) * size_of(dtype);
    q_ = backend.allocate(bytes);
    out_ = backend.allocate(bytes);
    q_matrix_ = {.data = q_.data(), .dtype = dtype, .rows = rows_, .cols = width};
    out_matrix_ = {.data = out_.data(), .dtype = dtype, .rows = rows_, .cols = width};
    backend.run_and_wait([this] { fill(backend_, shape_, layout_, *cache_, layers_); });
  }

  void attend() {
    backend_.run_and_wait([this] {
      backend_.attention(q_matrix_, shape_, backend_.upload(layout_.view()), *cache_, layer_, out_matrix_);
    });
    layer_ = (layer_ + 1) % layers_;
  }
  /// Returns the bytes of keys and values in a layer.
  [[nodiscard]] double layer_bytes() const { return layer_bytes_; }

 private:
  tensor::Backend& backend_;
  tensor::AttentionShape shape_;
  Layout layout_;
  int32_t layers_ = 0;
  int32_t layer_ = 0;
  int64_t rows_ = 0;
  double layer_bytes_ = 0.0;
  std::unique_ptr<tensor::KvCache> cache_;
  tensor::Buffer q_;
  tensor::Buffer out_;
  tensor::Matrix q_matrix_;
  tensor::Matrix out_matrix_;
};

void run(const Backends& backends, const BenchOptions& options, const Model& model, const Work& work) {
  std::vector<std::unique_ptr<Attention>> attentions;
  std::vector<std::function<void()>> bodies;
  for (const auto& backend : backends) {
    attentions.push_back(std::make_unique<Attention>(*backend, model, work, options.dtype));
    bodies.emplace_back([&attention = *attentions.back()] { attention.attend(); });
  }
  const std::vector<Timing> timings = measure_in_turns(options.runs, bodies);
  const double keys = work.rows * (static_cast<double>(work.prefix) + (work.rows + 1) / 2.0);
  const double operations = 4.0 * work.sequences * keys * model.heads * model.head_dim;
  for (size_t i = 0; i < kKvDTypeCount; ++i) {
    const Timing& timing = timings[i];
    fmt::print(
        "{:<14} {:>3} x {:>5} new after {:>6}, page {:>2}{}, {:<8}: {:>9.1f} us ±{:.0f}%, {:>7.1f} GFLOP/s, {:>6.1f} "
        "GB/s, best {:.1f} us: {:.2f} x auto\n",
        model.name, work.sequences, work.rows, work.prefix, work.page_size, work.shuffled ? " shuffled" : "         ",
        enum_name(kKvDTypes[i]), timing.median * 1e6, timing.spread * 50, operations / timing.median / 1e9,
        attentions[i]->layer_bytes() / timing.median / 1e9, timing.best * 1e6, timings[0].best / timing.best);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const BenchOptions options = parse_options(argc, argv, "paged attention: decode in GB/s, prefill in GFLOP/s", {});
  constexpr Work kWorks[] = {
      {1, 8191, 1, 16},  {1, 8191, 1, 64},  {1, 8191, 1, 64, false},  {1, 32767, 1, 64}, {1, 32767, 1, 64, false},
      {16, 2047, 1, 16}, {16, 2047, 1, 64}, {16, 2047, 1, 64, false}, {16, 2047, 1, 1},  {1, 0, 512, 64},
      {1, 0, 2048, 16},  {1, 0, 2048, 64},  {1, 8192, 512, 64}};
  for (const int threads : options.threads) {
    print_ceilings(threads, measure_ceilings(threads, options.runs));
    for (const cpu::Isa isa : options.isas) {
      Backends backends;
      for (size_t i = 0; i < kKvDTypeCount; ++i) {
        backends[i] = cpu::make_backend(
            {.threads = threads, .compute_dtype = options.dtype, .kv_dtype = kKvDTypes[i], .isa = isa});
      }
      fmt::print("{}\n", backends[0]->description());
      for (const Model& model : kModels) {
        for (const Work& work : kWorks) run(backends, options, model, work);
      }
    }
  }
}
