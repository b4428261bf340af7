// Products of activations with packed weights, next to the ceilings of the machine and, where it is installed, oneDNN.

#include <fmt/core.h>

#include <optional>

#include "cpu/packed_weight.h"
#include "cpu_bench.h"
#if defined(MILLRACE_HAS_DNNL)
#include "cpu_dnnl.h"
#endif

using namespace millrace;
using namespace millrace::bench;

namespace {

constexpr int kRowCounts[] = {1, 2, 4, 8, 16, 32, 64, 128, 512, 2048};
struct Shape {
  int64_t in, out;
  /// Heads of whose outputs the inputs consist, or kFeatures. Weights of such a shape also occur in shards.
  int64_t heads = -1;
};
constexpr int64_t kFeatures = 0;
constexpr Shape kShapes[] = {
    {896, 9728}, {2048, 8192}, {8192, 2048, kFeatures}, {4864, 896, kFeatures}, {896, 896, 14}};
/// Bytes of weights in use together, so that few rows read them from memory and not from a cache.
constexpr double kWeightBytes = 384e6;

std::vector<std::byte> random_elements(int64_t count, tensor::DType dtype) {
  std::vector<std::byte> bytes(static_cast<size_t>(count) * tensor::size_of(dtype));
  std::minstd_rand engine(1);
  for (int64_t i = 0; i < count; ++i) {
    const float value = draw_from(engine);
    if (dtype == tensor::DType::kF32) {
      reinterpret_cast<float*>(bytes.data())[i] = value;
    } else {
      reinterpret_cast<uint16_t*>(bytes.data())[i] = tensor::BFloat16::from_float(value).bits;
    }
  }
  return bytes;
}

void print_header(const std::string& what, const std::vector<int>& row_counts) {
  fmt::print("{:<24}", what);
  for (const int rows : row_counts) fmt::print("{:>13}", fmt::format("M={}", rows));
  fmt::print("\n");
}

/// Prints a figure; up to 8 rows also in GB/s of weights, since memory is their limit.
void print_figure(int64_t rows, const Shape& shape, double weight_bytes, const Timing& timing) {
  const double operations = 2.0 * static_cast<double>(rows * shape.in * shape.out);
  fmt::print("{:>13}",
             rows <= 8
                 ? fmt::format("{:.0f} ({:.1f})", operations / timing.median / 1e9, weight_bytes / timing.median / 1e9)
                 : fmt::format("{:.0f} ±{:.0f}%", operations / timing.median / 1e9, timing.spread * 50));
  std::fflush(stdout);
}

/// Weights of one shape in one format, larger than the caches.
struct Weights {
  WeightFormat format = WeightFormat::kCompute;
  double bytes = 0.0;  ///< of one
  std::vector<std::unique_ptr<tensor::PackedWeight>> copies;
  size_t next = 0;
  const tensor::PackedWeight& take() { return *copies[next++ % copies.size()]; }
};

/// Returns the bytes of a weight's panels, which kernels read.
double panel_bytes(const tensor::PackedWeight& weight) {
  const auto& packed = static_cast<const cpu::CpuPackedWeight&>(weight);
  return static_cast<double>(packed.layout().bytes) * static_cast<double>(packed.panel_count());
}

Weights make_weights(tensor::Backend& backend, WeightFormat format, const Shape& shape, bool sharded) {
  const tensor::DType dtype = backend.compute_dtype();
  const auto bytes = random_elements(shape.in * shape.out, dtype);
  const tensor::HostTensor host{.name = "weight", .dtype = dtype, .shape = {shape.out, shape.in}, .data = bytes.data()};
  Weights weights;
  weights.format = format;
  const tensor::SumShards shards = shape.heads > 0 ? tensor::head_shards(shape.heads, shape.in / shape.heads, {})
                                                   : tensor::feature_shards(shape.in, {});
  if (format == WeightFormat::kFp8) {
    const Fp8Weight eight(shape.out, shape.in);
    weights.bytes = eight.bytes();
    do {
      weights.copies.push_back(sharded ? backend.pack_sharded_fp8(eight.matrix, shards)
                                       : backend.pack_fp8({&eight.matrix, 1}));
    } while (static_cast<double>(weights.copies.size()) * weights.bytes < kWeightBytes);
    return weights;
  }
  if (has_codes(format)) {
    const tensor::CodeStorage four = make_codes(host, format);
    const tensor::CodeMatrix matrix = four.view();
    do {
      weights.copies.push_back(sharded ? backend.pack_sharded_codes(matrix, shards) : backend.pack_codes({&matrix, 1}));
      weights.bytes = panel_bytes(*weights.copies.back());
    } while (static_cast<double>(weights.copies.size()) * weights.bytes < kWeightBytes);
    return weights;
  }
  const tensor::W8Storage small = format != WeightFormat::kCompute ? quantize(host, format) : tensor::W8Storage{};
  weights.bytes = static_cast<double>(format != WeightFormat::kCompute ? small.view().bytes() : bytes.size());
  do {
    if (sharded) {
      weights.copies.push_back(format != WeightFormat::kCompute
                                   ? backend.pack_sharded_w8(small.view(), activations_of(format), shards)
                                   : backend.pack_sharded(host, shards));
    } else if (format != WeightFormat::kCompute) {
      const tensor::W8Matrix matrix = small.view();
      weights.copies.push_back(backend.pack_w8({&matrix, 1}, activations_of(format)));
    } else {
      weights.copies.push_back(backend.pack({&host, 1}));
    }
  } while (static_cast<double>(weights.copies.size()) * weights.bytes < kWeightBytes);
  return weights;
}

/// One line of the table: the weights' format, and the time for each row count.
struct Row {
  std::string name;
  double weight_bytes = 0.0;
  std::vector<Timing> timings;
};

void print_rows(const Shape& shape, const std::vector<int>& row_counts, const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    fmt::print("{:<24}", row.name);
    for (size_t m = 0; m < row.timings.size(); ++m)
      print_figure(row_counts[m], shape, row.weight_bytes, row.timings[m]);
    fmt::print("\n");
  }
  for (size_t other = 1; other < rows.size(); ++other) {
    fmt::print("{:<24}", other == 1 ? "  times of the first over" : fmt::format("  over row {}", other + 1));
    for (size_t m = 0; m < rows[0].timings.size(); ++m) {
      fmt::print("{:>13.2f}", rows[0].timings[m].median / rows[other].timings[m].median);
    }
    fmt::print("\n");
  }
}

/// Measures all formats alternately, and oneDNN's matmul if `peer` requests it and it is available.
void run_shape(const BenchOptions& options, cpu::Isa isa, int threads, const Shape& shape, bool peer) {
  const auto backend = cpu::make_backend({.threads = threads, .compute_dtype = options.dtype, .isa = isa});
  std::vector<Weights> formats;
  std::vector<Row> table;
  for (const WeightFormat format : options.weights) {
    for (const bool sharded : {false, true}) {
      if (sharded && shape.heads < 0) continue;
      formats.push_back(make_weights(*backend, format, shape, sharded));
      table.push_back({.name = fmt::format("{} {}{}, {}T", cpu::to_string(isa), name_of(format, options.dtype),
                                           sharded ? " shards" : "", threads),
                       .weight_bytes = formats.back().bytes});
    }
  }
#if defined(MILLRACE_HAS_DNNL)
  auto peer_weight = peer ? random_elements(shape.in * shape.out, DnnlProduct::dtype()) : std::vector<std::byte>{};
  const auto bytes = static_cast<double>(peer_weight.size());
  if (peer) {
    table.push_back({fmt::format("oneDNN {}, 1T", tensor::to_string(DnnlProduct::dtype())), bytes, {}});
  }
#else
  (void)peer;
#endif
  for (const int64_t rows : options.rows) {
    auto x_bytes = random_elements(rows * shape.in, options.dtype);
    const auto x = backend->allocate(x_bytes.size());
    const auto out = backend->allocate(static_cast<size_t>(rows * shape.out) * 4);
    const tensor::Matrix left{.data = x.data(), .dtype = options.dtype, .rows = rows, .cols = shape.in};
    const tensor::Matrix right{.data = out.data(), .dtype = tensor::DType::kF32, .rows = rows, .cols = shape.out};
    std::vector<std::function<void()>> bodies;
    for (Weights& weights : formats) {
      bodies.emplace_back([&] { backend->matmul(left, weights.take(), nullptr, right); });
    }
#if defined(MILLRACE_HAS_DNNL)
    std::optional<DnnlProduct> product;
    std::vector<std::byte> peer_x;
    if (peer) {
      peer_x = random_elements(rows * shape.in, DnnlProduct::dtype());
      product.emplace(rows, shape.in, shape.out, peer_x, peer_weight, static_cast<size_t>(kWeightBytes / bytes) + 1);
      bodies.emplace_back([&] { product->run(); });
    }
#endif
    backend->run_and_wait([&] {
      backend->copy_to_device(x_bytes, x.data());
      const auto timings = measure_in_turns(rows >= 512 ? std::min(options.runs, 5) : options.runs, bodies);
      for (size_t i = 0; i < table.size(); ++i) table[i].timings.push_back(timings[i]);
    });
  }
  print_rows(shape, options.rows, table);
}

}  // namespace

int main(int argc, char** argv) {
  BenchOptions options =
      parse_options(argc, argv, "GFLOP/s (and GB/s of weights, for few rows) of products with packed weights",
                    {.weights = true, .rows = true});
  if (options.rows.empty()) options.rows.assign(std::begin(kRowCounts), std::end(kRowCounts));
  for (const int threads : options.threads) print_ceilings(threads, measure_ceilings(threads, options.runs));
  for (const Shape& shape : kShapes) {
    print_header(fmt::format("\nK={} N={}", shape.in, shape.out), options.rows);
    for (const cpu::Isa isa : options.isas) {
      for (const int threads : options.threads) {
        const bool peer = isa == options.isas.back() && threads == 1 && options.dtype == tensor::DType::kBF16;
        run_shape(options, isa, threads, shape, peer);
      }
    }
  }
}
