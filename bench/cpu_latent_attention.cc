// Latent attention, the whole op: decode in GB/s of latents and expansion matrices read, prefill in GFLOP/s.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "cpu_bench.h"
#include "paged_layout.h"

using namespace millrace;
using namespace millrace::bench;

namespace {

struct LatentModel {
  const char* name;
  int32_t heads, nope, rope, value, latent;
};
constexpr LatentModel kLatentModels[] = {{"16 heads", 16, 128, 64, 128, 512},
                                         {"20 heads", 20, 192, 64, 256, 512},
                                         {"64 heads", 64, 128, 64, 128, 512},
                                         {"128 heads", 128, 128, 64, 128, 512}};

std::vector<float> random_floats(int64_t count, float size) {
  std::minstd_rand engine(1);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = draw_from(engine) * size;
  return values;
}

/// Writes every latent of every layer.
void fill_latents(tensor::Backend& backend, const tensor::LatentShape& shape, const tensor::RotaryTable& rotary,
                  const Layout& layout, tensor::KvCache& cache) {
  const auto norm = backend.make_vector(std::vector<float>(static_cast<size_t>(shape.latent_dim), 1.0f));
  std::vector<float> kv = random_floats(int64_t{layout.prefix[0] + layout.row_begin[1]} * shape.key_dim(), 1.0f);
  const tensor::Matrix rows{.data = reinterpret_cast<std::byte*>(kv.data()),
                            .dtype = tensor::DType::kF32,
                            .rows = layout.prefix[0] + layout.row_begin[1],
                            .cols = shape.key_dim()};
  for (size_t s = 0; s < layout.prefix.size(); ++s) {
    const std::vector<int32_t> row_begin = {0, static_cast<int32_t>(rows.rows)};
    const std::vector<int32_t> prefix = {0};
    const std::vector<int32_t> page_begin = {layout.page_begin[s], layout.page_begin[s + 1]};
    for (int32_t layer = 0; layer < cache.shape().layer_count; ++layer)
      backend.store_latent(
          rows, shape, rotary, *norm, 1e-6f,
          backend.upload({.row_begin = row_begin, .prefix = prefix, .page_begin = page_begin, .pages = layout.pages}),
          cache, layer);
  }
}

void run_latents(tensor::Backend& backend, const BenchOptions& options, const LatentModel& model, const Work& work) {
  const tensor::LatentShape shape{.head_count = model.heads,
                                  .nope_dim = model.nope,
                                  .rope_dim = model.rope,
                                  .value_dim = model.value,
                                  .latent_dim = model.latent,
                                  .scale = 1.0f / std::sqrt(static_cast<float>(model.nope + model.rope))};
  const Layout layout = make_layout(work);
  const auto element = static_cast<double>(tensor::size_of(options.dtype));
  const double layer_bytes = 1.0 * work.sequences * (work.prefix + work.rows) * shape.key_dim() * element;
  const auto layers = static_cast<int32_t>(std::clamp(256e6 / layer_bytes, 1.0, 64.0));
  const auto cache = backend.make_kv_cache({.layer_count = layers,
                                            .kv_head_count = 1,
                                            .head_dim = shape.key_dim(),
                                            .page_size = work.page_size,
                                            .page_count = static_cast<int32_t>(layout.pages.size()),
                                            .latent_dim = shape.latent_dim});
  const int64_t matrix_rows = int64_t{shape.head_count} * (shape.nope_dim + shape.value_dim);
  const std::vector<float> kv_b = random_floats(matrix_rows * shape.latent_dim, 0.05f);
  const auto expansion = backend.pack_latent_expansion({.name = "kv_b",
                                                        .dtype = tensor::DType::kF32,
                                                        .shape = {matrix_rows, int64_t{shape.latent_dim}},
                                                        .data = reinterpret_cast<const std::byte*>(kv_b.data())},
                                                       shape);
  const auto frequencies = backend.make_vector(std::vector<float>(static_cast<size_t>(shape.rope_dim / 2), 0.01f));
  const tensor::RotaryTable rotary{frequencies.get(), shape.rope_dim, 1.0f};
  const int64_t rows = layout.row_begin.back();
  std::vector<float> q = random_floats(rows * shape.query_width(), 1.0f);
  const auto out = backend.allocate(static_cast<size_t>(rows * shape.output_width()) * tensor::size_of(options.dtype));
  const tensor::Matrix q_matrix{.data = reinterpret_cast<std::byte*>(q.data()),
                                .dtype = tensor::DType::kF32,
                                .rows = rows,
                                .cols = shape.query_width()};
  const tensor::Matrix out_matrix{
      .data = out.data(), .dtype = options.dtype, .rows = rows, .cols = shape.output_width()};
  backend.run_and_wait([&] {
    fill_latents(backend, shape, rotary, layout, *cache);
    int32_t layer = 0;
    const Timing timing = measure(options.runs, [&] {
      backend.latent_attention(q_matrix, shape, rotary, *expansion, backend.upload(layout.view()), *cache, layer,
                               out_matrix);
      layer = (layer + 1) % layers;
    });
    const double matrices = static_cast<double>(matrix_rows) * shape.latent_dim;
    const double keys = work.rows * (static_cast<double>(work.prefix) + (work.rows + 1) / 2.0);
    const double operations = 2.0 * work.sequences * keys * model.heads * (shape.key_dim() + shape.latent_dim) +
                              2.0 * static_cast<double>(rows) * matrices;
    fmt::print(
        "{:<9} {:>3} x {:>5} new after {:>6}, page {:>2}: {:>9.1f} us ±{:.0f}%, {:>7.1f} GFLOP/s, {:>6.1f} GB/s\n",
        model.name, work.sequences, work.rows, work.prefix, work.page_size, timing.median * 1e6, timing.spread * 50,
        operations / timing.median / 1e9, (layer_bytes + matrices * element) / timing.median / 1e9);
    std::fflush(stdout);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const BenchOptions options = parse_options(argc, argv, "latent attention: decode in GB/s, prefill in GFLOP/s", {});
  constexpr Work kWorks[] = {{1, 32767, 1, 64}, {16, 2047, 1, 64}, {1, 0, 512, 64}, {1, 8192, 512, 64}};
  for (const int threads : options.threads) {
    print_ceilings(threads, measure_ceilings(threads, options.runs));
    for (const cpu::Isa isa : options.isas) {
      const auto backend = cpu::make_backend({.threads = threads, .compute_dtype = options.dtype, .isa = isa});
      fmt::print("{}\n", backend->description());
      for (const Work& work : kWorks) {
        for (const LatentModel& model : kLatentModels) run_latents(*backend, options, model, work);
      }
    }
  }
}
