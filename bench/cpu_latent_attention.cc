// Latent attention, the whole op: decode in GB/s of latents and expansion matrices read and as a share of the read
// ceiling, prefill in GFLOP/s.

#include <fmt/core.h>

#include <algorithm>
#include <array>
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
constexpr Work kWorks[] = {{1, 255, 1, 64},   {4, 255, 1, 64},   {13, 255, 1, 64}, {16, 255, 1, 64},
                           {1, 32767, 1, 64}, {16, 2047, 1, 64}, {1, 0, 512, 64},  {1, 8192, 512, 64}};

constexpr tensor::KvDType kKvDTypes[] = {tensor::KvDType::kAuto, tensor::KvDType::kInt8, tensor::KvDType::kFp8E4M3};
/// Backends that make caches, one per dtype. The first one computes over all of them, so that one stream measures in
/// turns.
using Backends = std::array<std::unique_ptr<tensor::Backend>, std::size(kKvDTypes)>;

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

/// Returns the bits of a weight in memory.
double bits_of(WeightFormat format, tensor::DType dtype) {
  if (format == WeightFormat::kFp8) return 8.25;
  if (format == WeightFormat::kQ8_0) return 8.5;
  if (format == WeightFormat::kW4) return 4.19;  // a scale per 128 weights, or a factor per query
  return 8.0 * static_cast<double>(tensor::size_of(dtype));
}

/// The expansions of several layers in one format, which take turns, so that none is read from a cache.
class Expansions {
 public:
  Expansions(tensor::Backend& backend, const tensor::LatentShape& shape, WeightFormat format)
      : format_(format),
        bytes_(static_cast<double>(int64_t{shape.head_count} * (shape.nope_dim + shape.value_dim) * shape.latent_dim) *
               bits_of(format, backend.compute_dtype()) / 8) {
    const auto count = static_cast<int>(std::clamp(128e6 / bytes_, 1.0, 64.0));
    for (int i = 0; i < count; ++i) layers_.push_back(pack(backend, shape));
  }
  [[nodiscard]] WeightFormat format() const { return format_; }
  [[nodiscard]] double bytes() const { return bytes_; }  ///< of a layer
  [[nodiscard]] const tensor::LatentExpansion& next() { return *layers_[next_++ % layers_.size()]; }

 private:
  [[nodiscard]] std::unique_ptr<tensor::LatentExpansion> pack(tensor::Backend& backend,
                                                              const tensor::LatentShape& shape) const {
    const int64_t heads = shape.head_count;
    const int64_t rows = heads * (shape.nope_dim + shape.value_dim);
    if (format_ == WeightFormat::kFp8)
      return backend.pack_fp8_latent_expansion(Fp8Weight(rows, shape.latent_dim).matrix, shape);
    const std::vector<float> kv_b = random_floats(rows * shape.latent_dim, 0.05f);
    const auto matrix = [&kv_b](int64_t first, int64_t cols) {
      return tensor::HostTensor{.name = "kv_b",
                                .dtype = tensor::DType::kF32,
                                .shape = {first, cols},
                                .data = reinterpret_cast<const std::byte*>(kv_b.data())};
    };
    if (format_ == WeightFormat::kCompute) return backend.pack_latent_expansion(matrix(rows, shape.latent_dim), shape);
    if (format_ == WeightFormat::kW4)  // as compressed-tensors stores W4A16
      return backend.pack_latent_code_rows(tensor::quantize_w4(matrix(rows, shape.latent_dim), 128).view(), shape);
    const tensor::CodeStorage queries = make_codes(matrix(heads * shape.latent_dim, shape.nope_dim), format_);
    const tensor::CodeStorage values = make_codes(matrix(heads * shape.value_dim, shape.latent_dim), format_);
    return backend.pack_latent_codes(queries.view(), values.view(), shape);
  }

  WeightFormat format_;
  double bytes_;
  std::vector<std::unique_ptr<tensor::LatentExpansion>> layers_;
  size_t next_ = 0;
};

/// Latent attention of one model and load, over a cache of several layers.
class LatentRun {
 public:
  LatentRun(tensor::Backend& backend, tensor::Backend& cache_maker, const tensor::LatentShape& shape, const Work& work)
      : backend_(backend),
        shape_(shape),
        layout_(make_layout(work)),
        layers_(layer_count(backend, shape, work)),
        cache_(cache_maker.make_kv_cache({.layer_count = layers_,
                                          .kv_head_count = 1,
                                          .head_dim = shape.key_dim(),
                                          .page_size = work.page_size,
                                          .page_count = static_cast<int32_t>(layout_.pages.size()),
                                          .latent_dim = shape.latent_dim})),
        frequencies_(backend.make_vector(std::vector<float>(static_cast<size_t>(shape.rope_dim / 2), 0.01f))),
        q_(random_floats(layout_.row_begin.back() * shape.query_width(), 1.0f)),
        out_(backend.allocate(static_cast<size_t>(layout_.row_begin.back() * shape.output_width()) *
                              tensor::size_of(backend.compute_dtype()))) {
    const double tokens = 1.0 * work.sequences * (work.prefix + work.rows);
    layer_bytes_ = static_cast<double>(cache_->page_bytes()) / layers_ / work.page_size * tokens;
    backend.run_and_wait([this] { fill_latents(backend_, shape_, rotary(), layout_, *cache_); });
  }

  /// Returns the bytes of a layer's latents.
  [[nodiscard]] double layer_bytes() const { return layer_bytes_; }

  /// Computes the next layer, in the backend's stream.
  void attend(const tensor::LatentExpansion& expansion) {
    const int64_t rows = layout_.row_begin.back();
    const tensor::Matrix q{.data = reinterpret_cast<std::byte*>(q_.data()),
                           .dtype = tensor::DType::kF32,
                           .rows = rows,
                           .cols = shape_.query_width()};
    const tensor::Matrix out{
        .data = out_.data(), .dtype = backend_.compute_dtype(), .rows = rows, .cols = shape_.output_width()};
    backend_.latent_attention(q, shape_, rotary(), expansion, backend_.upload(layout_.view()), *cache_, layer_, out);
    layer_ = (layer_ + 1) % layers_;
  }

 private:
  /// Returns the layers that together exceed the caches of the processor.
  [[nodiscard]] static int32_t layer_count(const tensor::Backend& backend, const tensor::LatentShape& shape,
                                           const Work& work) {
    const double plain_bytes = 1.0 * work.sequences * (work.prefix + work.rows) * shape.key_dim() *
                               static_cast<double>(tensor::size_of(backend.compute_dtype()));
    return static_cast<int32_t>(std::clamp(256e6 / plain_bytes, 1.0, 64.0));
  }
  [[nodiscard]] tensor::RotaryTable rotary() const { return {frequencies_.get(), shape_.rope_dim, 1.0f}; }

  tensor::Backend& backend_;
  const tensor::LatentShape shape_;
  const Layout layout_;
  double layer_bytes_ = 0.0;
  int32_t layers_;
  int32_t layer_ = 0;
  std::unique_ptr<tensor::KvCache> cache_;
  std::unique_ptr<tensor::DeviceVector> frequencies_;
  std::vector<float> q_;
  tensor::Buffer out_;
};

/// What is measured: a format of expansions over a cache of a dtype.
struct Cell {
  size_t format = 0;  ///< index among the formats
  size_t stored = 0;  ///< index among kKvDTypes
};

/// Returns all formats over the compute dtype, then the first format over codes.
std::vector<Cell> cells_of(size_t formats) {
  std::vector<Cell> cells;
  for (size_t i = 0; i < formats; ++i) cells.push_back({.format = i});
  for (size_t i = 1; i < std::size(kKvDTypes); ++i) cells.push_back({.stored = i});
  return cells;
}

void run_latents(const Backends& backends, const BenchOptions& options, const LatentModel& model,
                 double read_ceiling_gb_s) {
  const tensor::LatentShape shape{.head_count = model.heads,
                                  .nope_dim = model.nope,
                                  .rope_dim = model.rope,
                                  .value_dim = model.value,
                                  .latent_dim = model.latent,
                                  .scale = 1.0f / std::sqrt(static_cast<float>(model.nope + model.rope))};
  std::vector<Expansions> formats;
  for (const WeightFormat format : options.weights) formats.emplace_back(*backends[0], shape, format);
  const std::vector<Cell> cells = cells_of(formats.size());
  for (const Work& work : kWorks) {
    std::vector<std::unique_ptr<LatentRun>> runs;
    for (const auto& maker : backends) runs.push_back(std::make_unique<LatentRun>(*backends[0], *maker, shape, work));
    std::vector<std::function<void()>> bodies;
    for (const Cell& cell : cells)
      bodies.emplace_back([&runs, &formats, cell] { runs[cell.stored]->attend(formats[cell.format].next()); });
    std::vector<Timing> timings;
    backends[0]->run_and_wait([&] { timings = measure_in_turns(options.runs, bodies); });
    const double keys = work.rows * (static_cast<double>(work.prefix) + (work.rows + 1) / 2.0);
    const double matrices = 1.0 * model.heads * (model.nope + model.value) * model.latent;
    const double operations = 2.0 * work.sequences * keys * model.heads * (shape.key_dim() + shape.latent_dim) +
                              2.0 * work.sequences * work.rows * matrices;
    for (size_t i = 0; i < cells.size(); ++i) {
      const Timing& timing = timings[i];
      fmt::print(
          "{:<9} {:<5} {:<8}{:>3} x {:>5} new after {:>6}, page {:>2}: {:>9.1f} us ±{:.0f}%, {:>7.1f} GFLOP/s, "
          "{:>6.1f} GB/s, latents alone at {:.2f} of the read ceiling{}\n",
          model.name, name_of(formats[cells[i].format].format(), options.dtype), enum_name(kKvDTypes[cells[i].stored]),
          work.sequences, work.rows, work.prefix, work.page_size, timing.median * 1e6, timing.spread * 50,
          operations / timing.median / 1e9,
          (runs[cells[i].stored]->layer_bytes() + formats[cells[i].format].bytes()) / timing.median / 1e9,
          runs[cells[i].stored]->layer_bytes() / timing.median / 1e9 / read_ceiling_gb_s,
          i == 0 ? "" : fmt::format(", {:.2f} times as fast", timings[0].median / timing.median));
    }
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const BenchOptions options =
      parse_options(argc, argv, "latent attention: decode in GB/s, prefill in GFLOP/s", {.weights = true});
  for (const WeightFormat format : options.weights) {
    if (format == WeightFormat::kCompute || format == WeightFormat::kFp8 || format == WeightFormat::kQ8_0 ||
        format == WeightFormat::kW4)
      continue;
    fmt::print(stderr, "--weights: found '{}', wanted compute, fp8, q8_0 or w4\n", name_of(format, options.dtype));
    return 2;
  }
  for (const int threads : options.threads) {
    const Ceilings ceilings = measure_ceilings(threads, options.runs);
    print_ceilings(threads, ceilings);
    for (const cpu::Isa isa : options.isas) {
      Backends backends;
      for (size_t i = 0; i < backends.size(); ++i) {
        backends[i] = cpu::make_backend(
            {.threads = threads, .compute_dtype = options.dtype, .kv_dtype = kKvDTypes[i], .isa = isa});
      }
      fmt::print("{}\n", backends[0]->description());
      for (const LatentModel& model : kLatentModels) run_latents(backends, options, model, ceilings.read_gb_s);
    }
  }
}
