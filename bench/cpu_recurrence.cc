// Recurrent mixers: the bytes of states read and written per second, the share of a mixer's time that is not its
// projections, and the bytes of weights and states that it reads, as a share of the read ceiling.

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>

#include "cpu_bench.h"
#include "paged_layout.h"

using namespace millrace;
using namespace millrace::bench;
using tensor::DType;
using tensor::Matrix;

namespace {

constexpr int32_t kPageSize = 64;

/// A buffer with random values and its matrix.
struct Filled {
  Filled(tensor::Backend& backend, DType dtype, int64_t rows, int64_t cols)
      : matrix{.dtype = dtype, .rows = rows, .cols = cols}, buffer(backend.allocate(matrix.bytes())) {
    matrix.data = buffer.data();
    if (dtype != DType::kF32) return;
    std::minstd_rand engine(1);
    for (int64_t i = 0; i < rows * cols; ++i) reinterpret_cast<float*>(buffer.data())[i] = draw_from(engine);
  }
  Matrix matrix;
  tensor::Buffer buffer;
};

/// One mixer: its widths, and its ops on the matrices of a batch.
struct Mixer {
  const char* name;
  int64_t hidden = 0;
  int64_t input = 0;    ///< columns of the projection
  int64_t steps = 0;    ///< columns that control the state
  int64_t mixed = 0;    ///< columns after the convolution
  int64_t results = 0;  ///< columns that the output projection takes
  int64_t state_values = 0;
  std::function<void(tensor::Backend&, const Matrix& input, const Matrix& steps, const Matrix& mixed,
                     const Matrix& results, const Matrix& out, const tensor::UploadedBatch&, tensor::KvCache&,
                     int32_t layer)>
      run;
};

std::shared_ptr<tensor::DeviceVector> ones(tensor::Backend& backend, int64_t count) {
  return backend.make_vector(std::vector<float>(static_cast<size_t>(count), 1.0f));
}

Mixer delta_net(tensor::Backend& backend) {
  const tensor::ConvShape conv{.channels = 8192, .width = 4};
  const tensor::DeltaNetShape shape{.key_head_count = 16,
                                    .value_head_count = 32,
                                    .key_dim = 128,
                                    .value_dim = 128,
                                    .state_begin = conv.state_values()};
  const auto weight = ones(backend, conv.channels * conv.width);
  const auto heads = ones(backend, 32);
  const auto norm = ones(backend, 128);
  return {
      .name = "delta net, 32 heads of 128x128",
      .hidden = 2048,
      .input = conv.channels + shape.value_width(),
      .steps = 64,
      .mixed = conv.channels,
      .results = shape.value_width(),
      .state_values = conv.state_values() + shape.value_width() * shape.key_dim,
      .run = [=](tensor::Backend& on, const Matrix& input, const Matrix& steps, const Matrix& mixed,
                 const Matrix& results, const Matrix& out, const auto& batch, tensor::KvCache& states, int32_t layer) {
        on.causal_conv(input, conv, *weight, nullptr, batch, states, layer, mixed);
        on.delta_net({.mixed = mixed, .gates = steps}, shape, *heads, *heads, batch, states, layer, results);
        on.gated_rms_norm(results, input, conv.channels, {.weight = norm.get(), .epsilon = 1e-6f, .group = 128}, out);
      }};
}

Mixer state_space(tensor::Backend& backend) {
  const tensor::ConvShape conv{.channels = 8448, .width = 4};
  const tensor::StateSpaceShape shape{.head_count = 128,
                                      .head_dim = 64,
                                      .group_count = 1,
                                      .state_dim = 128,
                                      .max_step = std::numeric_limits<float>::infinity(),
                                      .state_begin = conv.state_values()};
  const auto weight = ones(backend, conv.channels * conv.width);
  const auto bias = ones(backend, conv.channels);
  const auto heads = ones(backend, 128);
  const auto norm = ones(backend, 8192);
  return {
      .name = "Mamba-2, 128 heads of 64x128",
      .hidden = 4096,
      .input = conv.channels + shape.inner_width(),
      .steps = 128,
      .mixed = conv.channels,
      .results = shape.inner_width(),
      .state_values = conv.state_values() + shape.inner_width() * shape.state_dim,
      .run = [=](tensor::Backend& on, const Matrix& input, const Matrix& steps, const Matrix& mixed,
                 const Matrix& results, const Matrix& out, const auto& batch, tensor::KvCache& states, int32_t layer) {
        on.causal_conv(input, conv, *weight, bias.get(), batch, states, layer, mixed);
        on.state_space(mixed, steps, shape, *heads, *heads, *heads, batch, states, layer, results);
        on.gated_rms_norm(results, input, conv.channels,
                          {.weight = norm.get(), .epsilon = 1e-6f, .group = 8192, .gate_first = true}, out);
      }};
}

Mixer short_conv(tensor::Backend& backend) {
  const tensor::ConvShape conv{.channels = 2048, .width = 3};
  const auto weight = ones(backend, conv.channels * conv.width);
  return {.name = "short convolution of 2048",
          .hidden = 2048,
          .input = 3 * conv.channels,
          .steps = 1,
          .mixed = 1,
          .results = conv.channels,
          .state_values = conv.state_values(),
          .run = [=](tensor::Backend& on, const Matrix& input, const Matrix&, const Matrix&, const Matrix&,
                     const Matrix& out, const auto& batch, tensor::KvCache& states,
                     int32_t layer) { on.short_conv(input, conv, *weight, nullptr, batch, states, layer, out); }};
}

std::unique_ptr<tensor::PackedWeight> random_weight(tensor::Backend& backend, int64_t rows, int64_t cols) {
  const Filled values(backend, DType::kF32, rows, cols);
  const tensor::HostTensor host{
      .name = "weight", .dtype = DType::kF32, .shape = {rows, cols}, .data = values.matrix.data};
  return backend.pack({&host, 1});
}

void run(tensor::Backend& backend, const BenchOptions& options, const Mixer& mixer, const Work& work,
         double read_gb_s) {
  // Several layers in turn, so that states are read from memory and not from a cache.
  const double state_bytes = 4.0 * static_cast<double>(mixer.state_values) * work.sequences;
  const auto layers = static_cast<int32_t>(std::clamp(256e6 / state_bytes, 1.0, 64.0));
  const Layout layout = make_layout(work);
  const auto states = backend.make_kv_cache({.layer_count = layers,
                                             .page_size = work.page_size,
                                             .page_count = static_cast<int32_t>(layout.pages.size()),
                                             .state_values = mixer.state_values});
  const int64_t rows = layout.row_begin.back();
  const Filled hidden(backend, backend.compute_dtype(), rows, mixer.hidden);
  const Filled input(backend, DType::kF32, rows, mixer.input);
  const Filled steps(backend, DType::kF32, rows, mixer.steps);
  const Filled mixed(backend, DType::kF32, rows, mixer.mixed);
  const Filled results(backend, DType::kF32, rows, mixer.results);
  const Filled out(backend, backend.compute_dtype(), rows, mixer.results);
  const Filled residual(backend, DType::kF32, rows, mixer.hidden);
  const auto first = random_weight(backend, mixer.input, mixer.hidden);
  const auto last = random_weight(backend, mixer.hidden, mixer.results);
  backend.run_and_wait([&] {
    const tensor::UploadedBatch batch = backend.upload(layout.view());
    int32_t layer = 0;
    const auto next_layer = [&] {
      mixer.run(backend, input.matrix, steps.matrix, mixed.matrix, results.matrix, out.matrix, batch, *states, layer);
      layer = (layer + 1) % layers;
    };
    for (int32_t i = 0; i < layers; ++i) next_layer();  // the first use of a state's memory is slow
    const Timing recurrence = measure(options.runs, next_layer);
    const Timing projections = measure(options.runs, [&] {
      backend.matmul(hidden.matrix, *first, nullptr, input.matrix);
      backend.matmul_add(out.matrix, *last, nullptr, residual.matrix);
    });
    const double seconds = recurrence.median + projections.median;
    const double weight_bytes = static_cast<double>(tensor::size_of(options.dtype)) *
                                static_cast<double>(mixer.hidden * (mixer.input + mixer.results));
    fmt::print(
        "{:<31} {:>3} x {:>4} rows: {:>9.1f} us ±{:.0f}%, {:>5.1f} GB/s of states, {:>4.1f} % of the mixer, which "
        "reads "
        "{:>5.1f} GB/s ({:.2f} of the ceiling)\n",
        mixer.name, work.sequences, work.rows, recurrence.median * 1e6, recurrence.spread * 50,
        2 * state_bytes / recurrence.median / 1e9, 100 * recurrence.median / seconds,
        (weight_bytes + state_bytes) / seconds / 1e9, (weight_bytes + state_bytes) / seconds / 1e9 / read_gb_s);
    std::fflush(stdout);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const BenchOptions options =
      parse_options(argc, argv, "recurrent mixers: bytes of states per second, and their share of a mixer's time", {});
  constexpr Work kWorks[] = {
      {1, 63, 1, kPageSize}, {16, 63, 1, kPageSize}, {1, 64, 64, kPageSize}, {1, 64, 512, 8 * kPageSize}};
  for (const int threads : options.threads) {
    const Ceilings ceilings = measure_ceilings(threads, options.runs);
    print_ceilings(threads, ceilings);
    for (const cpu::Isa isa : options.isas) {
      const auto backend = cpu::make_backend({.threads = threads, .compute_dtype = options.dtype, .isa = isa});
      fmt::print("{}\n", backend->description());
      for (const Mixer& mixer : {delta_net(*backend), state_space(*backend), short_conv(*backend)}) {
        for (const Work& work : kWorks) run(*backend, options, mixer, work, ceilings.read_gb_s);
      }
    }
  }
}
