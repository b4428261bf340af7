// Mixtures of experts, next to what bounds them: reading the chosen experts' weights, or multiplying with them.

#include <fmt/core.h>

#include <numeric>
#include <set>

#include "cpu_bench.h"

using namespace millrace;
using namespace millrace::bench;
using tensor::DType;

namespace {

constexpr int64_t kRowCounts[] = {1, 4, 16, 64, 512};
/// Alternating sets of rows, each with experts of its own, so that no cache holds the experts of one set.
constexpr int64_t kTurns = 16;

struct Shape {
  const char* name;
  int64_t hidden, inner;
  int32_t experts, per_row;
};
constexpr Shape kShapes[] = {{"Qwen3-30B-A3B's", 2048, 768, 128, 8},
                             {"Mixtral-8x7B's, a quarter as wide", 4096, 3584, 8, 2}};

std::vector<float> random_values(int64_t count, uint32_t seed) {
  std::minstd_rand engine(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = draw_from(engine);
  return values;
}

/// A layer's experts: equal values, each in its own memory.
struct Layer {
  WeightFormat format = WeightFormat::kCompute;
  double expert_bytes = 0.0;
  std::unique_ptr<tensor::Experts> experts;
};

Layer make_layer(tensor::Backend& backend, const Shape& shape, WeightFormat format) {
  const std::vector<float> values = random_values(shape.inner * shape.hidden, 1);
  const auto* data = reinterpret_cast<const std::byte*>(values.data());
  const tensor::HostTensor wide{
      .name = "gate", .dtype = DType::kF32, .shape = {shape.inner, shape.hidden}, .data = data};
  const tensor::HostTensor tall{
      .name = "down", .dtype = DType::kF32, .shape = {shape.hidden, shape.inner}, .data = data};
  if (has_codes(format)) {
    const tensor::CodeStorage wide_codes = make_codes(wide, format);
    const tensor::CodeStorage tall_codes = make_codes(tall, format);
    const auto packer = backend.pack_experts(shape.experts, {.routing = {.experts_per_row = shape.per_row}}, {});
    for (int32_t expert = 0; expert < shape.experts; ++expert)
      packer->add_codes(wide_codes.view(), wide_codes.view(), tall_codes.view());
    return {format, 3 * static_cast<double>(wide_codes.view().bytes()), packer->finish()};
  }
  if (format == WeightFormat::kFp8) {
    const Fp8Weight wide_fp8(shape.inner, shape.hidden);
    const Fp8Weight tall_fp8(shape.hidden, shape.inner);
    const auto packer = backend.pack_experts(shape.experts, {.routing = {.experts_per_row = shape.per_row}}, {});
    for (int32_t expert = 0; expert < shape.experts; ++expert)
      packer->add_fp8(wide_fp8.matrix, wide_fp8.matrix, tall_fp8.matrix);
    return {format, 3 * wide_fp8.bytes(), packer->finish()};
  }
  const bool plain = format == WeightFormat::kCompute;
  const tensor::W8Storage wide_w8 = plain ? tensor::W8Storage{} : quantize(wide, format);
  const tensor::W8Storage tall_w8 = plain ? tensor::W8Storage{} : quantize(tall, format);
  const auto packer = backend.pack_experts(shape.experts, {.routing = {.experts_per_row = shape.per_row}}, {});
  for (int32_t expert = 0; expert < shape.experts; ++expert) {
    if (plain) {
      packer->add(wide, wide, tall);
    } else {
      packer->add_w8(wide_w8.view(), wide_w8.view(), tall_w8.view(), activations_of(format));
    }
  }
  const double bytes = plain ? static_cast<double>(shape.inner * shape.hidden) *
                                   static_cast<double>(tensor::size_of(backend.compute_dtype()))
                             : static_cast<double>(wide_w8.view().bytes());
  return {format, 3 * bytes, packer->finish()};
}

/// Returns the number of distinct experts that the rows of one turn choose.
int64_t distinct_experts(const float* logits, int64_t rows, const Shape& shape) {
  std::set<int64_t> chosen;
  std::vector<int64_t> order(static_cast<size_t>(shape.experts));
  for (int64_t row = 0; row < rows; ++row, logits += shape.experts) {
    std::iota(order.begin(), order.end(), int64_t{0});
    std::ranges::partial_sort(order, order.begin() + shape.per_row, std::greater(),
                              [&](int64_t expert) { return logits[expert]; });
    chosen.insert(order.begin(), order.begin() + shape.per_row);
  }
  return static_cast<int64_t>(chosen.size());
}

/// Returns the ceiling of GEMMs in the compute dtype.
double peak_gflops(const Ceilings& ceilings, cpu::Isa isa, DType dtype) {
  if (dtype == DType::kF32) return ceilings.fma_gflops;
  if (isa == cpu::Isa::kAmx) return ceilings.tile_gflops;
  return isa == cpu::Isa::kAvx512Bf16 ? ceilings.bf16_gflops : ceilings.fma_gflops;
}

void run_rows(tensor::Backend& backend, const Shape& shape, std::vector<Layer>& layers, int64_t rows, int runs,
              double read_gb_s, double peak) {
  const std::vector<float> values = random_values(rows * shape.hidden, 2);
  const std::vector<float> logits = random_values(kTurns * rows * shape.experts, 3);
  double experts = 0.0;
  for (int64_t turn = 0; turn < kTurns; ++turn)
    experts += static_cast<double>(distinct_experts(logits.data() + turn * rows * shape.experts, rows, shape)) / kTurns;
  const DType compute = backend.compute_dtype();
  const auto x = backend.allocate(static_cast<size_t>(rows * shape.hidden) * tensor::size_of(compute));
  const auto hidden = backend.allocate(static_cast<size_t>(rows * shape.hidden) * sizeof(float));
  const tensor::Matrix left{.data = x.data(), .dtype = compute, .rows = rows, .cols = shape.hidden};
  const tensor::Matrix sums{.data = hidden.data(), .dtype = DType::kF32, .rows = rows, .cols = shape.hidden};
  const auto routed = backend.allocate(logits.size() * sizeof(float));
  const std::vector<int32_t> row_begin{0, static_cast<int32_t>(rows)};
  const std::vector<int32_t> zeros(2);
  const tensor::BatchLayout batch{.row_begin = row_begin, .prefix = std::span(zeros).first(1), .page_begin = zeros};
  int64_t next = 0;
  std::vector<std::function<void()>> bodies;
  for (Layer& layer : layers) {
    bodies.emplace_back([&] {
      std::byte* const own = routed.data() + (next++ % kTurns) * rows * shape.experts * int64_t{sizeof(float)};
      backend.fused_moe(left, {.data = own, .dtype = DType::kF32, .rows = rows, .cols = shape.experts}, *layer.experts,
                        backend.upload(batch), sums);
    });
  }
  std::vector<Timing> timings;
  backend.run_and_wait([&] {
    for (size_t i = 0; i < values.size(); ++i) {
      if (compute == DType::kF32) reinterpret_cast<float*>(x.data())[i] = values[i];
      if (compute == DType::kBF16) {
        reinterpret_cast<uint16_t*>(x.data())[i] = tensor::BFloat16::from_float(values[i]).bits;
      }
    }
    backend.copy_to_device(std::as_bytes(std::span(logits)), routed.data());
    timings = measure_in_turns(runs, bodies);
  });
  const double operations = 6.0 * static_cast<double>(rows * shape.per_row * shape.hidden * shape.inner);
  for (size_t i = 0; i < layers.size(); ++i) {
    const double bytes = experts * layers[i].expert_bytes;
    const double bound = std::max(bytes / (read_gb_s * 1e9), operations / (peak * 1e9));
    const double seconds = timings[i].median;
    fmt::print("{:>6} rows, {:>4.0f} experts  {:<5}{:>10.2f} ms ±{:>3.0f}%{:>8.1f} GB/s{:>8.0f} GFLOP/s", rows, experts,
               name_of(layers[i].format, compute), seconds * 1e3, timings[i].spread * 50, bytes / seconds / 1e9,
               operations / seconds / 1e9);
    // Products of whole numbers have another ceiling.
    if (layers[i].format != WeightFormat::kW8A8) fmt::print("{:>7.2f} of the bound", bound / seconds);
    fmt::print("\n");
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const BenchOptions options =
      parse_options(argc, argv, "time of a sparse layer's experts, with rows that choose at random", {.weights = true});
  for (const int threads : options.threads) {
    const Ceilings ceilings = measure_ceilings(threads, options.runs);
    print_ceilings(threads, ceilings);
    for (const Shape& shape : kShapes) {
      for (const cpu::Isa isa : options.isas) {
        const auto backend = cpu::make_backend({.threads = threads, .compute_dtype = options.dtype, .isa = isa});
        std::vector<Layer> layers;
        for (const WeightFormat format : options.weights) layers.push_back(make_layer(*backend, shape, format));
        fmt::print("\n{}: {} experts of {} x {}, {} per row; {}, {}T\n", shape.name, shape.experts, shape.inner,
                   shape.hidden, shape.per_row, cpu::to_string(isa), threads);
        const double peak = peak_gflops(ceilings, isa, options.dtype);
        for (const int64_t rows : kRowCounts)
          run_rows(*backend, shape, layers, rows, rows >= 512 ? std::min(options.runs, 5) : options.runs,
                   ceilings.read_gb_s, peak);
      }
    }
  }
}
