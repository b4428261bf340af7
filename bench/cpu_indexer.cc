// An indexer and the attention over what it chooses: scores and choice in GFLOP/s and as a share of the ceiling, in
// GB/s of keys read, and sparse latent attention in GFLOP/s.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "cpu_bench.h"
#include "paged_layout.h"

using namespace millrace;
using namespace millrace::bench;

namespace {

struct IndexedModel {
  const char* name;
  int32_t index_heads, heads, nope, value;
};
constexpr IndexedModel kModels[] = {{"DeepSeek-V3.2", 64, 128, 128, 128}, {"GLM-5", 32, 64, 192, 256}};
constexpr tensor::IndexerShape kIndexer{.head_count = 0, .head_dim = 128, .rope_dim = 64, .chosen_count = 2048};
constexpr int32_t kLatentDim = 512;

std::vector<float> random_floats(int64_t count) {
  std::minstd_rand engine(1);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = draw_from(engine);
  return values;
}

tensor::Matrix view_of(std::vector<float>& values, int64_t rows) {
  return {.data = reinterpret_cast<std::byte*>(values.data()),
          .dtype = tensor::DType::kF32,
          .rows = rows,
          .cols = std::ssize(values) / rows};
}

double ceiling_of(const Ceilings& ceilings, tensor::DType dtype, cpu::Isa isa) {
  if (dtype == tensor::DType::kF32) return ceilings.fma_gflops;
  if (isa == cpu::Isa::kAmx) return ceilings.tile_gflops;
  return isa == cpu::Isa::kAvx512Bf16 ? ceilings.bf16_gflops : ceilings.fma_gflops;
}

/// Writes the keys and latents of every sequence.
void fill(tensor::Backend& backend, const tensor::LatentShape& latents, const tensor::IndexerShape& indexer,
          const tensor::RotaryTable& rotary, const Layout& layout, tensor::KvCache& cache) {
  const int32_t rows = layout.prefix[0] + layout.row_begin[1];
  const auto ones = [&](int32_t count) {
    return backend.make_vector(std::vector<float>(static_cast<size_t>(count), 1.0f));
  };
  const auto latent_norm = ones(kLatentDim);
  const auto key_norm = ones(indexer.head_dim);
  for (size_t s = 0; s < layout.prefix.size(); ++s) {
    std::vector<float> kv = random_floats(int64_t{rows} * latents.key_dim());
    std::vector<float> keys = random_floats(int64_t{rows} * indexer.head_dim);
    const std::vector<int32_t> row_begin = {0, rows};
    const std::vector<int32_t> prefix = {0};
    const std::vector<int32_t> page_begin = {layout.page_begin[s], layout.page_begin[s + 1]};
    const auto batch =
        backend.upload({.row_begin = row_begin, .prefix = prefix, .page_begin = page_begin, .pages = layout.pages});
    backend.store_latent(view_of(kv, rows), latents, rotary, *latent_norm, 1e-6f, batch, cache, 0);
    backend.store_index_key(view_of(keys, rows), indexer, rotary, *key_norm, *key_norm, 1e-6f, batch, cache, 0);
  }
}

void run_indexer(tensor::Backend& backend, const BenchOptions& options, const IndexedModel& model, const Work& work,
                 double ceiling) {
  tensor::IndexerShape indexer = kIndexer;
  indexer.head_count = model.index_heads;
  const tensor::LatentShape latents{.head_count = model.heads,
                                    .nope_dim = model.nope,
                                    .rope_dim = indexer.rope_dim,
                                    .value_dim = model.value,
                                    .latent_dim = kLatentDim,
                                    .scale = 1.0f / std::sqrt(static_cast<float>(model.nope + indexer.rope_dim))};
  const Layout layout = make_layout(work);
  const auto cache = backend.make_kv_cache({.layer_count = 1,
                                            .kv_head_count = 1,
                                            .head_dim = latents.key_dim(),
                                            .page_size = work.page_size,
                                            .page_count = static_cast<int32_t>(layout.pages.size()),
                                            .latent_dim = kLatentDim,
                                            .index_dim = indexer.head_dim});
  const int64_t matrix_rows = int64_t{model.heads} * (model.nope + model.value);
  const std::vector<float> kv_b = random_floats(matrix_rows * kLatentDim);
  const auto expansion = backend.pack_latent_expansion({.name = "kv_b",
                                                        .dtype = tensor::DType::kF32,
                                                        .shape = {matrix_rows, int64_t{kLatentDim}},
                                                        .data = reinterpret_cast<const std::byte*>(kv_b.data())},
                                                       latents);
  const auto frequencies = backend.make_vector(std::vector<float>(static_cast<size_t>(indexer.rope_dim / 2), 0.01f));
  const tensor::RotaryTable rotary{frequencies.get(), indexer.rope_dim, 1.0f};
  const int64_t rows = layout.row_begin.back();
  std::vector<float> index_q = random_floats(rows * indexer.query_width());
  std::vector<float> weights = random_floats(rows * indexer.head_count);
  std::vector<float> q = random_floats(rows * latents.query_width());
  std::vector<int32_t> choice(static_cast<size_t>(rows * indexer.chosen_count));
  const tensor::IntMatrix chosen{.data = choice.data(), .rows = rows, .cols = indexer.chosen_count};
  const auto out =
      backend.allocate(static_cast<size_t>(rows * latents.output_width()) * tensor::size_of(options.dtype));
  const tensor::Matrix out_matrix{
      .data = out.data(), .dtype = options.dtype, .rows = rows, .cols = latents.output_width()};
  backend.run_and_wait([&] {
    fill(backend, latents, indexer, rotary, layout, *cache);
    const Timing scores = measure(options.runs, [&] {
      backend.choose_tokens(view_of(index_q, rows), view_of(weights, rows), indexer, rotary,
                            backend.upload(layout.view()), *cache, 0, chosen);
    });
    const Timing attention = measure(options.runs, [&] {
      backend.sparse_latent_attention(view_of(q, rows), latents, rotary, *expansion, chosen,
                                      backend.upload(layout.view()), *cache, 0, out_matrix);
    });
    const double keys = work.rows * (static_cast<double>(work.prefix) + (work.rows + 1) / 2.0);
    const double products = 2.0 * work.sequences * keys * static_cast<double>(indexer.query_width());
    const double bytes = 1.0 * work.sequences * (work.prefix + work.rows) * indexer.head_dim *
                         static_cast<double>(tensor::size_of(options.dtype));
    const double sparse = 2.0 * static_cast<double>(rows) *
                          (1.0 * indexer.chosen_count * model.heads * (latents.key_dim() + kLatentDim) +
                           static_cast<double>(matrix_rows) * kLatentDim);
    fmt::print(
        "{:<13} {:>3} x {:>4} new after {:>6}: choice {:>9.1f} us ±{:.0f}%, {:>7.1f} GFLOP/s ({:.2f} of the ceiling), "
        "{:>5.1f} GB/s; attention {:>9.1f} us ±{:.0f}%, {:>7.1f} GFLOP/s ({:.2f})\n",
        model.name, work.sequences, work.rows, work.prefix, scores.median * 1e6, scores.spread * 50,
        products / scores.median / 1e9, products / scores.median / 1e9 / ceiling, bytes / scores.median / 1e9,
        attention.median * 1e6, attention.spread * 50, sparse / attention.median / 1e9,
        sparse / attention.median / 1e9 / ceiling);
    std::fflush(stdout);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const BenchOptions options =
      parse_options(argc, argv, "an indexer's choice and the attention over it, as shares of the ceiling", {});
  constexpr Work kWorks[] = {{1, 8192, 1, 64}, {1, 65536, 1, 64}, {8, 8192, 1, 64}, {1, 8192, 256, 64}};
  for (const int threads : options.threads) {
    const Ceilings ceilings = measure_ceilings(threads, options.runs);
    print_ceilings(threads, ceilings);
    for (const cpu::Isa isa : options.isas) {
      const auto backend = cpu::make_backend({.threads = threads, .compute_dtype = options.dtype, .isa = isa});
      fmt::print("{}\n", backend->description());
      for (const Work& work : kWorks) {
        for (const IndexedModel& model : kModels)
          run_indexer(*backend, options, model, work, ceiling_of(ceilings, options.dtype, isa));
      }
    }
  }
}
