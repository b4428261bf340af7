#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/cpu_backend.h"
#include "tensor/fp8.h"
#include "tensor/code_matrix.h"
#include "tensor/w8.h"

/// The shared parts of the CPU benchmarks: timing, options, and the machine's ceilings.
namespace millrace::bench {

/// Seconds of repeated runs: median, best, and the spread between the quartiles relative to the median.
struct Timing {
  double median = 0.0;
  double best = 0.0;
  double spread = 0.0;
};
/// Runs `body` at least `runs` times and for at least 0.2 s, after one uncounted run.
[[nodiscard]] Timing measure(int runs, const std::function<void()>& body);

/// Measures several bodies that alternate in an order drawn anew each round. Other load on the machine, and what one
/// body leaves in the caches, then affect all alike.
[[nodiscard]] std::vector<Timing> measure_in_turns(int runs, const std::vector<std::function<void()>>& bodies);

/// Draws uniformly from -1 to 1. std::uniform_real_distribution is too slow for hundreds of millions of numbers.
[[nodiscard]] inline float draw_from(std::minstd_rand& engine) {
  constexpr float kHalf = 0.5f * static_cast<float>(std::minstd_rand::max());
  return static_cast<float>(engine()) / kHalf - 1.0f;
}

/// The format of a GEMM's weights.
enum class WeightFormat : uint8_t {
  kCompute,
  kW8,
  kW8A8,
  kW8A8Int8,
  kFp8,
  kW4,
  kQ2K,
  kQ3K,
  kQ4K,
  kQ5K,
  kQ6K,
  kQ8_0,
  kQ5KBytes,
  kQ6KBytes
};
[[nodiscard]] std::string_view name_of(WeightFormat format, tensor::DType compute);
/// Quantizes a matrix to a format of 8 bits.
[[nodiscard]] tensor::W8Storage quantize(const tensor::HostTensor& matrix, WeightFormat format);
[[nodiscard]] tensor::W8Activations activations_of(WeightFormat format);

/// Random weights in E4M3 with a scale per 128 x 128. It owns the codes of its matrix.
struct Fp8Weight {
  std::vector<std::byte> codes;
  tensor::Fp8Matrix matrix;

  Fp8Weight(int64_t rows, int64_t cols);
  [[nodiscard]] double bytes() const;
};

/// Returns whether a format has codes of tensor/code_matrix.h.
[[nodiscard]] bool has_codes(WeightFormat format);
/// Makes a matrix in such a format: rounded from values for kW4, random for the types of GGUF.
[[nodiscard]] tensor::CodeStorage make_codes(const tensor::HostTensor& matrix, WeightFormat format);

struct BenchOptions {
  std::vector<int> threads = {1, 2};
  std::vector<cpu::Isa> isas;  ///< default: the fastest
  tensor::DType dtype = tensor::DType::kBF16;
  int runs = 9;
  std::vector<WeightFormat> weights = {WeightFormat::kCompute};
  std::vector<int> rows;  ///< of GEMMs; empty: the program's own
};
/// The options that a program accepts.
struct Accepted {
  bool dtype = true;
  bool weights = false;
  bool rows = false;
};
/// Reads --threads, --isa, --runs, --clock and --help. It reads --dtype, --weights, --rows and --seed where they are
/// accepted. Exits on --help and on unknown options.
[[nodiscard]] BenchOptions parse_options(int argc, char** argv, const char* purpose, Accepted accepted);

struct Ceilings {
  double fma_gflops = 0.0;    ///< f32 multiply-adds of the widest vectors
  double bf16_gflops = 0.0;   ///< bf16 dot products; 0 where there is no instruction
  double tile_gflops = 0.0;   ///< tile multiplications on registers; 0 without tiles
  double read_gb_s = 0.0;     ///< memory beyond the caches
  double fork_join_us = 0.0;  ///< an empty parallel region
};
/// Measures the ceilings on `threads` threads at once.
[[nodiscard]] Ceilings measure_ceilings(int threads, int runs);
void print_ceilings(int threads, const Ceilings& ceilings);

}  // namespace millrace::bench
