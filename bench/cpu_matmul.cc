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
constexpr int64_t kWeightBytes = int64_t{384} << 20;

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
void print_figure(int64_t rows, const Shape& shape, size_t element, const Timing& timing) {
  const double operations = 2.0 * static_cast<double>(rows * shape.in * shape.out);
  const double bytes = static_cast<double>(shape.in * shape.out) * static_cast<double>(element);
  fmt::print("{:>13}",
             rows <= 8 ? fmt::format("{:.0f} ({:.1f})", operations / timing.median / 1e9, bytes / timing.median / 1e9)
                       : fmt::format("{:.0f} ±{:.0f}%", operations / timing.median / 1e9, timing.spread * 50));
  std::fflush(stdout);
}

void run_own(const BenchOptions& options, cpu::Isa isa, int threads, const Shape& shape) {
  const auto backend = cpu::make_backend({.threads = threads, .compute_dtype = options.dtype, .isa = isa});
  const size_t element = tensor::size_of(options.dtype);
  const auto bytes = random_elements(shape.in * shape.out, options.dtype);
  const tensor::HostTensor host{"weight", options.dtype, {shape.out, shape.in}, bytes.data()};
  std::vector<std::unique_ptr<tensor::PackedWeight>> weights;
  const int64_t copies = kWeightBytes / static_cast<int64_t>(bytes.size()) + 1;
  for (int64_t i = 0; i < copies; ++i) weights.push_back(backend->pack({&host, 1}));
  fmt::print("{:<24}", fmt::format("{} {}, {}T", cpu::to_string(isa), tensor::to_string(options.dtype), threads));
  for (const int64_t rows : kRowCounts) {
    const auto x_bytes = random_elements(rows * shape.in, options.dtype);
    const auto x = backend->allocate(x_bytes.size());
    const auto out = backend->allocate(static_cast<size_t>(rows * shape.out) * 4);
    const tensor::Matrix left{x.data(), options.dtype, rows, shape.in};
    const tensor::Matrix right{out.data(), tensor::DType::kF32, rows, shape.out};
    backend->run_and_wait([&] {
      backend->copy_to_device(x_bytes, x.data());
      size_t next = 0;
      const Timing timing = measure(rows >= 512 ? std::min(options.runs, 5) : options.runs, [&] {
        backend->matmul(left, *weights[next++ % weights.size()], nullptr, right);
      });
      print_figure(rows, shape, element, timing);
    });
  }
  fmt::print("\n");
}

#if defined(MILLRACE_HAS_DNNL)
void run_dnnl(const BenchOptions& options, const Shape& shape) {
  fmt::print("{:<24}", "oneDNN bf16, 1T");
  for (const int64_t rows : kRowCounts) {
    DnnlProduct product(rows, shape.in, shape.out);
    print_figure(rows, shape, 2,
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
