// Paged attention: decode in GB/s of keys and values read, prefill in GFLOP/s.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

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

void run(tensor::Backend& backend, const BenchOptions& options, const Model& model, const Work& work) {
  const tensor::AttentionShape shape{model.heads, model.kv_heads, model.head_dim,
                                     1.0f / std::sqrt(static_cast<float>(model.head_dim)), 0};
  const Layout layout = make_layout(work);
  // Several layers in turn, so that decode reads memory and not a cache.
  const double layer_bytes = 2.0 * work.sequences * (work.prefix + work.rows) * model.kv_heads * model.head_dim *
                             static_cast<double>(tensor::size_of(options.dtype));
  const auto layers = static_cast<int32_t>(std::clamp(256e6 / layer_bytes, 1.0, 64.0));
  const auto cache = backend.make_kv_cache({.layer_count = layers,
                                            .kv_head_count = model.kv_heads,
                                            .head_dim = model.head_dim,
                                            .page_size = work.page_size,
                                            .page_count = static_cast<int32_t>(layout.pages.size())});
  const int64_t rows = layout.row_begin.back();
  const int64_t width = int64_t{model.heads} * model.head_dim;
  const size_t bytes = static_cast<size_t>(rows * width) * tensor::size_of(options.dtype);
  const auto q = backend.allocate(bytes);
  const auto out = backend.allocate(bytes);
  const tensor::Matrix q_matrix{.data = q.data(), .dtype = options.dtype, .rows = rows, .cols = width};
  const tensor::Matrix out_matrix{.data = out.data(), .dtype = options.dtype, .rows = rows, .cols = width};
  backend.run_and_wait([&] {
    fill(backend, shape, layout, *cache, layers);
    int32_t layer = 0;
    const Timing timing = measure(options.runs, [&] {
      backend.attention(q_matrix, shape, backend.upload(layout.view()), *cache, layer, out_matrix);
      layer = (layer + 1) % layers;
    });
    const double keys = work.rows * (static_cast<double>(work.prefix) + (work.rows + 1) / 2.0);
    const double operations = 4.0 * work.sequences * keys * model.heads * model.head_dim;
    fmt::print(
        "{:<14} {:>3} x {:>5} new after {:>6}, page {:>2}{}: {:>9.1f} us ±{:.0f}%, {:>7.1f} GFLOP/s, {:>6.1f} GB/s\n",
        model.name, work.sequences, work.rows, work.prefix, work.page_size, work.shuffled ? " shuffled" : "         ",
        timing.median * 1e6, timing.spread * 50, operations / timing.median / 1e9, layer_bytes / timing.median / 1e9);
    std::fflush(stdout);
  });
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
      const auto backend = cpu::make_backend({.threads = threads, .compute_dtype = options.dtype, .isa = isa});
      fmt::print("{}\n", backend->description());
      for (const Model& model : kModels) {
        for (const Work& work : kWorks) run(*backend, options, model, work);
      }
    }
  }
}
