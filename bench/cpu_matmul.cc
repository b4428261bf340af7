// Products of activations with packed weights, next to the ceilings of the machine and, where it is installed, oneDNN.

#include <fmt/core.h>

#include <random>

#include "cpu_bench.h"
#if defined(MILLRACE_HAS_DNNL)
#include "cpu_dnnl.h"
#endif

using namespace millrace;
using namespace millrace::bench;

namespace {

constexpr int64_t kRowCounts[] = {1, 2, 4, 8, 16, 32, 64, 128, 512, 2048};
struct Shape {
  int64_t in, out;
};
constexpr Shape kShapes[] = {{896, 9728}, {2048, 8192}, {8192, 2048}};
/// Weights in use together, so that few rows read them from memory and not from a cache.
constexpr double kWeightBytes = 384e6;

std::vector<std::byte> random_elements(int64_t count, tensor::DType dtype) {
  std::vector<std::byte> bytes(static_cast<size_t>(count) * tensor::size_of(dtype));
  std::minstd_rand engine(1);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  for (int64_t i = 0; i < count; ++i) {
    const float value = uniform(engine);
    if (dtype == tensor::DType::kF32) {
      reinterpret_cast<float*>(bytes.data())[i] = value;
    } else {
      reinterpret_cast<uint16_t*>(bytes.data())[i] = tensor::BFloat16::from_float(value).bits;
    }
  }
  return bytes;
}

void print_header(const char* what) {
  fmt::print("{:<24}", what);
  for (const int64_t rows : kRowCounts) fmt::print("{:>13}", fmt::format("M={}", rows));
  fmt::print("\n");
}

/// Up to 8 rows in GB/s of weights too, since memory bounds them.
void print_figure(int64_t rows, const Shape& shape, double weight_bytes, const Timing& timing) {
  const double operations = 2.0 * static_cast<double>(rows * shape.in * shape.out);
  fmt::print("{:>13}",
             rows <= 8
                 ? fmt::format("{:.0f} ({:.1f})", operations / timing.median / 1e9, weight_bytes / timing.median / 1e9)
                 : fmt::format("{:.0f} ±{:.0f}%", operations / timing.median / 1e9, timing.spread * 50));
  std::fflush(stdout);
}

/// Weights of one shape in one format, more than the caches hold.
struct Weights {
  WeightFormat format = WeightFormat::kCompute;
  double bytes = 0.0;  ///< of one
  std::vector<std::unique_ptr<tensor::PackedWeight>> copies;
  size_t next = 0;
  const tensor::PackedWeight& take() { return *copies[next++ % copies.size()]; }
};

std::string_view name_of(WeightFormat format, tensor::DType compute) {
  switch (format) {
    case WeightFormat::kW8: return "w8";
    case WeightFormat::kW8A8: return "w8a8";
    case WeightFormat::kCompute: break;
  }
  return tensor::to_string(compute);
}

Weights make_weights(tensor::Backend& backend, WeightFormat format, const Shape& shape) {
  const tensor::DType dtype = backend.compute_dtype();
  const auto bytes = random_elements(shape.in * shape.out, dtype);
  const tensor::HostTensor host{"weight", dtype, {shape.out, shape.in}, bytes.data()};
  Weights weights;
  weights.format = format;
  const tensor::W8Storage small = format != WeightFormat::kCompute ? tensor::quantize_w8(host) : tensor::W8Storage{};
  weights.bytes = static_cast<double>(format != WeightFormat::kCompute ? small.view().bytes() : bytes.size());
  do {
    if (format != WeightFormat::kCompute) {
      const auto inputs = format == WeightFormat::kW8A8 ? tensor::W8Inputs::kInt8 : tensor::W8Inputs::kExact;
      const tensor::W8Matrix matrix = small.view();
      weights.copies.push_back(backend.pack_w8({&matrix, 1}, inputs));
    } else {
      weights.copies.push_back(backend.pack({&host, 1}));
    }
  } while (static_cast<double>(weights.copies.size()) * weights.bytes < kWeightBytes);
  return weights;
}

void run_own(const BenchOptions& options, cpu::Isa isa, int threads, const Shape& shape) {
  const auto backend = cpu::make_backend({.threads = threads, .compute_dtype = options.dtype, .isa = isa});
  std::vector<Weights> formats;
  for (const WeightFormat format : options.weights) formats.push_back(make_weights(*backend, format, shape));
  std::vector<std::vector<Timing>> timings;  // [row counts][formats]
  for (const int64_t rows : kRowCounts) {
    const auto x_bytes = random_elements(rows * shape.in, options.dtype);
    const auto x = backend->allocate(x_bytes.size());
    const auto out = backend->allocate(static_cast<size_t>(rows * shape.out) * 4);
    const tensor::Matrix left{x.data(), options.dtype, rows, shape.in};
    const tensor::Matrix right{out.data(), tensor::DType::kF32, rows, shape.out};
    std::vector<std::function<void()>> bodies;
    for (Weights& weights : formats) {
      bodies.emplace_back([&] { backend->matmul(left, weights.take(), nullptr, right); });
    }
    backend->run_and_wait([&] {
      backend->copy_to_device(x_bytes, x.data());
      timings.push_back(measure_in_turns(rows >= 512 ? std::min(options.runs, 5) : options.runs, bodies));
    });
  }
  for (size_t i = 0; i < formats.size(); ++i) {
    const std::string_view held = name_of(formats[i].format, options.dtype);
    fmt::print("{:<24}", fmt::format("{} {}, {}T", cpu::to_string(isa), held, threads));
    for (size_t m = 0; m < timings.size(); ++m) print_figure(kRowCounts[m], shape, formats[i].bytes, timings[m][i]);
    fmt::print("\n");
  }
  if (formats.size() < 2) return;
  fmt::print("{:<24}", "  first / last, times");
  for (const auto& each : timings) fmt::print("{:>13.2f}", each.front().median / each.back().median);
  fmt::print("\n");
}

#if defined(MILLRACE_HAS_DNNL)
void run_dnnl(const BenchOptions& options, const Shape& shape) {
  fmt::print("{:<24}", "oneDNN bf16, 1T");
  for (const int64_t rows : kRowCounts) {
    DnnlProduct product(rows, shape.in, shape.out);
    print_figure(rows, shape, 2.0 * static_cast<double>(shape.in * shape.out),
                 measure(rows >= 512 ? std::min(options.runs, 5) : options.runs, [&] { product.run(); }));
  }
  fmt::print("\n");
}
#endif

}  // namespace

int main(int argc, char** argv) {
  const BenchOptions options =
      parse_options(argc, argv, "GFLOP/s (and GB/s of weights, for few rows) of products with packed weights");
  for (const int threads : options.threads) print_ceilings(threads, measure_ceilings(threads, options.runs));
  for (const Shape& shape : kShapes) {
    print_header(fmt::format("\nK={} N={}", shape.in, shape.out).c_str());
    for (const cpu::Isa isa : options.isas) {
      for (const int threads : options.threads) run_own(options, isa, threads, shape);
    }
#if defined(MILLRACE_HAS_DNNL)
    run_dnnl(options, shape);
#endif
  }
}
