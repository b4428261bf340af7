#include "cpu_bench.h"

#include <fmt/core.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "cpu/memory.h"
#include "cpu/thread_pool.h"
#include "thread_time.h"

namespace millrace::bench {
namespace {

bool use_processor_time = false;
std::minstd_rand turn_dice;

double now() {
  if (use_processor_time) return thread_seconds();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr int kPeakRounds = 200000;
/// Independent sums: more than an instruction's latency in cycles, and few enough for registers. The compiler keeps 16
/// of them in registers and would spill more.
constexpr int kPeakChains = 12;

#if defined(__x86_64__)
__attribute__((target("avx512f"))) float peak_fma512() {
  __m512 acc[kPeakChains] = {};
  __m512 x = _mm512_set1_ps(1.0f);
  for (int round = 0; round < kPeakRounds; ++round) {
#pragma clang loop unroll(full)
    for (auto& chain : acc) chain = _mm512_fmadd_ps(x, x, chain);
    asm volatile("" : "+v"(x));
  }
  for (int i = 1; i < kPeakChains; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
  return _mm512_cvtss_f32(acc[0]);
}

__attribute__((target("avx512f,avx512bf16"))) float peak_bf16() {
  __m512 acc[kPeakChains] = {};
  __m512i x = _mm512_set1_epi32(0x3F803F80);
  for (int round = 0; round < kPeakRounds; ++round) {
#pragma clang loop unroll(full)
    for (auto& chain : acc)
      chain = _mm512_dpbf16_ps(chain, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(x));
    asm volatile("" : "+v"(x));
  }
  for (int i = 1; i < kPeakChains; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
  return _mm512_cvtss_f32(acc[0]);
}

/// Measures tile multiplications like tile_square(), without the loads.
__attribute__((target("amx-tile,amx-bf16"))) float peak_tiles() {
  struct alignas(64) Config {
    uint8_t palette = 1;
    uint8_t other[15] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  const Config config;
  _tile_loadconfig(&config);
  for (int round = 0; round < kPeakRounds; ++round) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 0.0f;
}

__attribute__((target("avx2,fma"))) float peak_fma256() {
  __m256 acc[kPeakChains] = {};
  __m256 x = _mm256_set1_ps(1.0f);
  for (int round = 0; round < kPeakRounds; ++round) {
#pragma clang loop unroll(full)
    for (auto& chain : acc) chain = _mm256_fmadd_ps(x, x, chain);
    asm volatile("" : "+x"(x));
  }
  for (int i = 1; i < kPeakChains; ++i) acc[0] = _mm256_add_ps(acc[0], acc[i]);
  return _mm256_cvtss_f32(acc[0]);
}
#endif

bool has(cpu::Isa isa) {
  const auto isas = cpu::available_isas();
  return std::find(isas.begin(), isas.end(), isa) != isas.end();
}

/// Returns GFLOP/s of `peak` on every thread of the pool at once. One run is `operations` floating-point operations.
double peak_rate(cpu::ThreadPool& pool, int runs, double operations, float (*peak)()) {
  volatile float sink = 0.0f;
  const int chunks = 4 * pool.threads();
  const Timing timing =
      measure(runs, [&] { pool.run(static_cast<uint32_t>(chunks), [&](uint32_t, int) { sink = peak(); }); });
  return operations * chunks / timing.median / 1e9;
}

double read_rate(cpu::ThreadPool& pool, int runs) {
  constexpr int64_t kBytes = int64_t{512} << 20;
  const tensor::Buffer buffer = cpu::allocate_pages(kBytes);
  std::memset(buffer.data(), 1, kBytes);
  std::atomic<uint64_t> sink{0};
  const Timing timing = measure(runs, [&] {
    pool.run_ranges(kBytes / 64, [&](int64_t begin, int64_t end, int) {
      typedef uint64_t Line __attribute__((vector_size(64)));
      Line sum[4] = {};
      const auto* lines = reinterpret_cast<const Line*>(buffer.data());
      for (int64_t i = begin; i + 4 <= end; i += 4) {
        for (int64_t j = 0; j < 4; ++j) sum[j] += lines[i + j];
      }
      sink += (sum[0] + sum[1] + sum[2] + sum[3])[0];
    });
  });
  return static_cast<double>(kBytes) / timing.median / 1e9;
}

[[noreturn]] void usage(const char* program, const char* purpose, Accepted accepted) {
  fmt::print(
      "{}: {}\n"
      "  --threads 1,2         thread counts\n"
      "  --isa avx2,avx512     instruction sets ({}); default: the fastest;\n"
      "                        'all': every one that this machine has\n",
      program, purpose, cpu::isa_names());
  if (accepted.dtype) fmt::print("  --dtype bf16|f32      compute dtype\n");
  if (accepted.weights) {
    fmt::print(
        "  --weights compute,w8  of products: in the compute dtype, in 8 bits, w8a8: with inputs of 8 bits, "
        "w8a8_int8:\n"
        "                        with a scale per channel and per input row, fp8: E4M3 in blocks, w4; of GGUF:\n"
        "                        q2_k, q3_k, q4_k, q5_k, q6_k, q8_0, and q5_k_bytes, q6_k_bytes in 8 bits; several\n"
        "                        take turns, and the ratio of their times is printed\n"
        "  --seed N              of whose turn it is (default: drawn, and printed)\n");
  }
  if (accepted.rows) fmt::print("  --rows 1,8            rows of the products\n");
  fmt::print(
      "  --runs 9              timed runs per figure, of which the median is printed\n"
      "  --clock wall|cpu      cpu: processor time of the calling thread, for 1 thread beside other load\n"
      "  --help\n");
  std::exit(0);
}

[[noreturn]] void refuse(std::string_view name, std::string_view value, std::string_view wanted) {
  fmt::print(stderr, "{}: found '{}', wanted {} (see --help)\n", name, value, wanted);
  std::exit(2);
}

std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> parts;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    parts.push_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return parts;
}

int parse_count(std::string_view name, std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 1) refuse(name, text, "a number above 0");
  return value;
}

std::vector<cpu::Isa> parse_isas(std::string_view list) {
  const std::vector<cpu::Isa> there = cpu::available_isas();
  if (list == "all") return there;
  std::vector<cpu::Isa> isas;
  for (const std::string_view part : split(list)) {
    const auto isa = cpu::parse_isa(part);
    if (isa.has_error()) refuse("--isa", part, cpu::isa_names() + " or all");
    if (!has(*isa)) refuse("--isa", part, "one that this machine has");
    isas.push_back(*isa);
  }
  return isas;
}

constexpr WeightFormat kQuantized[] = {
    WeightFormat::kW8,   WeightFormat::kW8A8,     WeightFormat::kW8A8Int8, WeightFormat::kFp8, WeightFormat::kW4,
    WeightFormat::kQ2K,  WeightFormat::kQ3K,      WeightFormat::kQ4K,      WeightFormat::kQ5K, WeightFormat::kQ6K,
    WeightFormat::kQ8_0, WeightFormat::kQ5KBytes, WeightFormat::kQ6KBytes};

std::vector<WeightFormat> parse_weights(std::string_view list) {
  std::vector<WeightFormat> formats;
  for (const std::string_view part : split(list)) {
    const auto named = [part](WeightFormat format) { return part == name_of(format, tensor::DType::kBF16); };
    const auto* const found = std::ranges::find_if(kQuantized, named);
    if (found == std::end(kQuantized) && part != "compute") {
      refuse("--weights", part,
             "compute, w8, w8a8, w8a8_int8, fp8, w4, q2_k, q3_k, q4_k, q5_k, q6_k, q8_0, q5_k_bytes or q6_k_bytes");
    }
    formats.push_back(part == "compute" ? WeightFormat::kCompute : *found);
  }
  return formats;
}

/// A type of blocks of GGUF files.
struct GgufKind {
  int bits = 8;
  bool has_minimums = false;
  bool has_halves = false;  ///< factors of 16 inputs
  bool in_bytes = false;    ///< codes take 8 bits
};
GgufKind gguf_kind(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ2K: return {.bits = 2, .has_minimums = true, .has_halves = true};
    case WeightFormat::kQ3K: return {.bits = 3, .has_halves = true};
    case WeightFormat::kQ4K: return {.bits = 4, .has_minimums = true};
    case WeightFormat::kQ5K: return {.bits = 5, .has_minimums = true};
    case WeightFormat::kQ5KBytes: return {.bits = 5, .has_minimums = true, .in_bytes = true};
    case WeightFormat::kQ6K: return {.bits = 6, .has_halves = true};
    case WeightFormat::kQ6KBytes: return {.bits = 6, .has_halves = true, .in_bytes = true};
    default: return {};
  }
}

}  // namespace

std::string_view name_of(WeightFormat format, tensor::DType compute) {
  switch (format) {
    case WeightFormat::kW8: return "w8";
    case WeightFormat::kW8A8: return "w8a8";
    case WeightFormat::kW8A8Int8: return "w8a8_int8";
    case WeightFormat::kFp8: return "fp8";
    case WeightFormat::kW4: return "w4";
    case WeightFormat::kQ2K: return "q2_k";
    case WeightFormat::kQ3K: return "q3_k";
    case WeightFormat::kQ4K: return "q4_k";
    case WeightFormat::kQ5K: return "q5_k";
    case WeightFormat::kQ6K: return "q6_k";
    case WeightFormat::kQ8_0: return "q8_0";
    case WeightFormat::kQ5KBytes: return "q5_k_bytes";
    case WeightFormat::kQ6KBytes: return "q6_k_bytes";
    case WeightFormat::kCompute: break;
  }
  return tensor::to_string(compute);
}

bool has_codes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kW4:
    case WeightFormat::kQ2K:
    case WeightFormat::kQ3K:
    case WeightFormat::kQ4K:
    case WeightFormat::kQ5K:
    case WeightFormat::kQ6K:
    case WeightFormat::kQ8_0:
    case WeightFormat::kQ5KBytes:
    case WeightFormat::kQ6KBytes: return true;
    default: return false;
  }
}

tensor::CodeStorage make_codes(const tensor::HostTensor& matrix, WeightFormat format) {
  if (format == WeightFormat::kW4) return tensor::quantize_w4(matrix);
  constexpr uint16_t kScale = 0x1400;  // 2^-10 as f16
  const GgufKind kind = gguf_kind(format);
  tensor::CodeStorage storage{
      .name = matrix.name,
      .rows = matrix.shape[0],
      .cols = matrix.shape[1],
      .bits = kind.bits == 4 ? 4 : 8,
      .integer_bits = kind.in_bytes ? 8 : kind.bits,
      .offsets = kind.has_minimums ? tensor::CodeOffsets::kMinimums : tensor::CodeOffsets::kNone,
      .group = format == WeightFormat::kQ8_0 ? 32 : 256,
      .scale_dtype = tensor::DType::kF16,
      .half_kind = kind.has_halves ? tensor::CodeHalfScales::kInt8 : tensor::CodeHalfScales::kNone};
  const tensor::CodeMatrix layout = storage.view();
  const auto count = [&](int64_t per_row) { return static_cast<size_t>(storage.rows * per_row); };
  std::minstd_rand engine(1);
  const bool has_fewer = storage.bits == 8 && kind.bits < 8;
  const unsigned mask = has_fewer ? (1u << kind.bits) - 1 : 255u;
  const unsigned least = !has_fewer ? 0 : kind.has_minimums ? 128u : 128u - (1u << (kind.bits - 1));
  storage.codes.resize(count(layout.row_bytes()));
  for (uint8_t& code : storage.codes) code = static_cast<uint8_t>((engine() >> 8 & mask) + least);
  storage.scales.resize(count(layout.groups()) * sizeof(kScale));
  for (size_t i = 0; i < storage.scales.size(); i += sizeof(kScale))
    std::memcpy(storage.scales.data() + i, &kScale, sizeof(kScale));
  if (kind.has_halves) storage.half_scales.assign(count(layout.halves()), 3);
  if (!kind.has_minimums) return storage;
  storage.minimums = storage.scales;
  if (kind.has_halves) {
    storage.half_minimums.assign(count(layout.halves()), 5);
  } else {
    storage.unit_scales.assign(count(layout.units()), 3);
    storage.unit_minimums.assign(count(layout.units()), 5);
  }
  return storage;
}

tensor::W8Storage quantize(const tensor::HostTensor& matrix, WeightFormat format) {
  const bool by_row = format == WeightFormat::kW8A8Int8;
  return tensor::quantize_w8(matrix, by_row ? tensor::W8Scaling::kPerChannel : tensor::W8Scaling::kPerGroup);
}

tensor::W8Activations activations_of(WeightFormat format) {
  return format == WeightFormat::kW8 ? tensor::W8Activations::kUnquantized : tensor::W8Activations::kInt8;
}

Fp8Weight::Fp8Weight(int64_t rows, int64_t cols) : codes(static_cast<size_t>(rows * cols)) {
  constexpr int64_t kBlock = 128;
  constexpr std::byte kFinite{0xF7};  // clears a bit that all codes of NaN have
  std::minstd_rand engine(1);
  for (std::byte& code : codes) code = static_cast<std::byte>(engine() >> 8) & kFinite;
  const int64_t blocks = (cols + kBlock - 1) / kBlock;
  matrix = {.name = "weight",
            .rows = rows,
            .cols = cols,
            .codes = codes.data(),
            .row_bytes = cols,
            .scales = std::vector<float>(static_cast<size_t>((rows + kBlock - 1) / kBlock * blocks), 0x1p-9f),
            .column_blocks = blocks,
            .block_rows = kBlock,
            .block_cols = kBlock};
}

double Fp8Weight::bytes() const {
  return static_cast<double>(codes.size() + matrix.scales.size() * sizeof(float));
}

Timing measure(int runs, const std::function<void()>& body) {
  return measure_in_turns(runs, {body}).front();
}

std::vector<Timing> measure_in_turns(int runs, const std::vector<std::function<void()>>& bodies) {
  const double least_seconds = 0.2 * static_cast<double>(bodies.size());
  for (const auto& body : bodies) body();
  std::vector<std::vector<double>> seconds(bodies.size());
  const double start = now();
  std::vector<size_t> order(bodies.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t turn = 0; static_cast<int>(turn) < runs || (now() - start < least_seconds && turn < 5000); ++turn) {
    std::ranges::shuffle(order, turn_dice);
    for (const size_t i : order) {
      const double before = now();
      bodies[i]();
      seconds[i].push_back(now() - before);
    }
  }
  std::vector<Timing> timings;
  for (std::vector<double>& each : seconds) {
    std::sort(each.begin(), each.end());
    const size_t n = each.size();
    const double median = each[n / 2];
    timings.push_back({median, each.front(), (each[n * 3 / 4] - each[n / 4]) / median});
  }
  return timings;
}

BenchOptions parse_options(int argc, char** argv, const char* purpose, Accepted accepted) {
  BenchOptions options;
  options.isas = {cpu::available_isas().back()};
  options.threads.clear();
  uint32_t seed = std::random_device()() % 1'000'000 + 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--help") usage(argv[0], purpose, accepted);
    if (i + 1 == argc) refuse(name, "", "a value");
    const std::string_view value = argv[++i];
    if (name == "--threads") {
      for (const std::string_view part : split(value)) options.threads.push_back(parse_count(name, part));
    } else if (name == "--isa") {
      options.isas = parse_isas(value);
    } else if (name == "--dtype" && accepted.dtype) {
      const auto dtype = tensor::parse_dtype(value);
      if (dtype.has_error() || (*dtype != tensor::DType::kBF16 && *dtype != tensor::DType::kF32)) {
        refuse(name, value, "bf16 or f32");
      }
      options.dtype = *dtype;
    } else if (name == "--weights" && accepted.weights) {
      options.weights = parse_weights(value);
    } else if (name == "--rows" && accepted.rows) {
      for (const std::string_view part : split(value)) options.rows.push_back(parse_count(name, part));
    } else if (name == "--seed" && accepted.weights) {
      seed = static_cast<uint32_t>(parse_count(name, value));
    } else if (name == "--clock") {
      if (value != "wall" && value != "cpu") refuse(name, value, "wall or cpu");
      use_processor_time = value == "cpu";
    } else if (name == "--runs") {
      options.runs = parse_count(name, value);
    } else {
      fmt::print(stderr, "{}: no flag of this program (see --help)\n", name);
      std::exit(2);
    }
  }
  if (options.threads.empty()) options.threads = use_processor_time ? std::vector{1} : std::vector{1, 2};
  for (const int threads : options.threads) {
    if (use_processor_time && threads != 1) refuse("--threads", std::to_string(threads), "1 with --clock cpu");
  }
  turn_dice.seed(seed);
  if (accepted.weights) fmt::print("--seed {}\n", seed);
  return options;
}

Ceilings measure_ceilings(int threads, int runs) {
  cpu::ThreadPool pool(threads, {});
  Ceilings ceilings;
#if defined(__x86_64__)
  if (has(cpu::Isa::kAvx512)) {
    ceilings.fma_gflops = peak_rate(pool, runs, 32.0 * kPeakChains * kPeakRounds, peak_fma512);
  } else if (has(cpu::Isa::kAvx2)) {
    ceilings.fma_gflops = peak_rate(pool, runs, 16.0 * kPeakChains * kPeakRounds, peak_fma256);
  }
  if (has(cpu::Isa::kAvx512Bf16))
    ceilings.bf16_gflops = peak_rate(pool, runs, 64.0 * kPeakChains * kPeakRounds, peak_bf16);
  if (has(cpu::Isa::kAmx)) ceilings.tile_gflops = peak_rate(pool, runs, 4.0 * 16384 * kPeakRounds, peak_tiles);
#endif
  ceilings.read_gb_s = read_rate(pool, std::min(runs, 5));
  constexpr int kRegions = 1000;
  const Timing regions = measure(runs, [&] {
    for (int i = 0; i < kRegions; ++i) pool.run(static_cast<uint32_t>(threads), [](uint32_t, int) {});
  });
  ceilings.fork_join_us = regions.median / kRegions * 1e6;
  return ceilings;
}

void print_ceilings(int threads, const Ceilings& ceilings) {
  fmt::print("ceilings, {} thread{}: fma {:.0f} GFLOP/s, bf16 dot {:.0f} GFLOP/s, ", threads, threads == 1 ? "" : "s",
             ceilings.fma_gflops, ceilings.bf16_gflops);
  if (ceilings.tile_gflops > 0) fmt::print("bf16 tiles {:.0f} GFLOP/s, ", ceilings.tile_gflops);
  fmt::print("memory read {:.1f} GB/s, fork-join {:.2f} us\n", ceilings.read_gb_s, ceilings.fork_join_us);
}

}  // namespace millrace::bench
