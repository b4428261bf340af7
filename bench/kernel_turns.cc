// Inner kernels of several builds of src/cpu/kernels.cc take turns of some milliseconds each on the same data, so that
// a machine whose speed wanders meets them alike. bench/kernel_turns.py makes the builds out of git revisions.

#include <dlfcn.h>
#include <elf.h>
#include <fmt/core.h>
#include <link.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cpu/kernels.h"
#include "cpu/memory.h"
#include "cpu_bench.h"
#include "tensor/dtype.h"
#include "thread_time.h"

using namespace millrace;
using namespace millrace::cpu;

namespace {

constexpr int64_t kFeatures = 896;  // summed by each product
constexpr int32_t kKeys = 2048;     // that a row of queries attends to

struct Options {
  std::vector<std::string> builds;
  std::string isa = "avx2";
  int runs = 15;
  uint32_t seed = 0;
  size_t memory_mib = 256;
  std::vector<std::string> kinds = {"bf16", "w8", "w8a8", "attention"};
  std::vector<int> rows = {1, 2, 3, 4, 8, 16, 32, 64, 128, 512};
};

struct Build {
  std::string name;
  const Kernels* kernels = nullptr;
  size_t table_bytes = 0;  ///< smaller than here for an older build
};

Build open_build(const std::string& path, const std::string& isa) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const std::string table = "kernels_" + isa;
  const std::string symbol = fmt::format("_ZN8millrace3cpu{}{}E", table.size(), table);
  const auto* kernels = static_cast<const Kernels*>(dlsym(library, symbol.c_str()));
  if (kernels == nullptr) throw std::runtime_error(fmt::format("{} has no {}", path, table));
  const size_t slash = path.find_last_of('/') + 1;
  Dl_info info;
  const ElfW(Sym)* entry = nullptr;
  if (dladdr1(kernels, &info, reinterpret_cast<void**>(const_cast<ElfW(Sym)**>(&entry)), RTLD_DL_SYMENT) == 0 ||
      entry == nullptr) {
    throw std::runtime_error(fmt::format("{}: {} has no size", path, table));
  }
  return {path.substr(slash, path.find_last_of('.') - slash), kernels, entry->st_size};
}

/// The alternating measurements of all builds.
class Turns {
 public:
  Turns(std::span<const Build> builds, int runs, uint32_t seed) : builds_(builds), runs_(runs), dice_(seed) {}

  /// Prints GFLOP/s of each build, median and best, and the median ratio to the first build with its range.
  void run(const std::string& name, double operations, const std::function<void(const Kernels&)>& body) {
    std::vector<std::vector<double>> seconds(builds_.size());
    std::vector<size_t> order(builds_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    for (int turn = 0; turn <= runs_; ++turn) {
      std::ranges::shuffle(order, dice_);  // a build may gain from the one before it
      for (const size_t i : order) {
        const double begin = bench::thread_seconds();
        body(*builds_[i].kernels);
        if (turn > 0) seconds[i].push_back(bench::thread_seconds() - begin);
      }
    }
    fmt::print("{:<28}", name);
    for (size_t i = 0; i < builds_.size(); ++i) {
      std::vector<double> ratios;
      for (size_t turn = 0; turn < seconds[i].size(); ++turn) ratios.push_back(seconds[0][turn] / seconds[i][turn]);
      std::ranges::sort(ratios);
      std::vector<double> sorted = seconds[i];
      std::ranges::sort(sorted);
      fmt::print(" | {} {:.0f}, best {:.0f}", builds_[i].name, operations / sorted[sorted.size() / 2] / 1e9,
                 operations / sorted.front() / 1e9);
      if (i > 0) {
        fmt::print(", {:.2f} [{:.2f}, {:.2f}]", ratios[ratios.size() / 2], ratios.front(), ratios.back());
      }
    }
    fmt::print("\n");
    std::fflush(stdout);
  }

 private:
  std::span<const Build> builds_;
  int runs_;
  std::minstd_rand dice_;
};

/// Walks over the memory in steps of `bytes` and wraps around at its end. Weights, keys and values are read from all of
/// it, so that only a cache as large would hold them.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> memory) : memory_(memory) {}
  const std::byte* next(size_t bytes) {
    constexpr size_t kPrefetched = 65536;  // kernels ask for what follows
    const size_t needed = 2 * bytes + kPrefetched;
    if (needed > memory_.size()) {
      throw std::runtime_error(fmt::format("--memory: found {} bytes, a task needs {}", memory_.size(), needed));
    }
    if (at_ + needed > memory_.size()) at_ = 0;
    return memory_.data() + std::exchange(at_, at_ + bytes);
  }

 private:
  std::span<const std::byte> memory_;
  size_t at_ = 0;
};

/// Returns LHS rows in a build's format for GEMMs and attention: bf16 or f32.
std::vector<std::byte> lhs_rows(const Kernels& kernels, const std::vector<float>& values) {
  std::vector<std::byte> rows(values.size() * sizeof(float));
  if (kernels.bf16_lhs) {
    kernels.narrow(values.data(), reinterpret_cast<uint16_t*>(rows.data()), static_cast<int64_t>(values.size()));
  } else {
    std::copy(values.begin(), values.end(), reinterpret_cast<float*>(rows.data()));
  }
  return rows;
}

std::vector<float> random_values(size_t count) {
  std::minstd_rand engine(1);
  std::vector<float> values(count);
  for (float& value : values) value = bench::draw_from(engine);
  return values;
}

enum class Format : uint8_t { kBf16, kW8, kW8A8, kW8A8Channel, kFp8, kW4, kQ4K, kQ6K };
constexpr Format kFormats[] = {Format::kBf16, Format::kW8, Format::kW8A8, Format::kW8A8Channel,
                               Format::kFp8,  Format::kW4, Format::kQ4K,  Format::kQ6K};
constexpr const char* kFormatNames[] = {"bf16", "w8", "w8a8", "w8a8_int8", "fp8", "w4", "q4_k", "q6_k"};
constexpr CodePanelFormat kW4Format;
/// Codes of 4 and 6 bits as GGUF files hold them. Builds that have no codes of 6 bits read q6_k wrongly.
constexpr CodePanelFormat kQ4KFormat = {.units = 8,
                                        .scale_type = CodeScaleType::kF16,
                                        .offset_type = CodeOffsetType::kMinimums,
                                        .has_factors = true,
                                        .offset = 0};
constexpr CodePanelFormat kQ6KFormat = {
    .units = 8, .scale_type = CodeScaleType::kF16, .half_type = CodeHalfType::kInt8, .bits = 6, .offset = 32};

/// Returns the layout of a format's panels of codes; null for others.
const CodePanelFormat* code_format(Format format) {
  switch (format) {
    case Format::kW4: return &kW4Format;
    case Format::kQ4K: return &kQ4KFormat;
    case Format::kQ6K: return &kQ6KFormat;
    default: return nullptr;
  }
}

/// The LHS operand of a GemmTask, in memory pages like the backend's scratch.
struct Lhs {
  tensor::Buffer data;
  size_t stride = 0;
  bool tiled = false;
  std::vector<LhsQuantParams> quant_params = {};  ///< for channel panels
};

/// Returns rows that are contiguous.
Lhs plain_rows(const std::vector<std::byte>& rows, size_t row_bytes) {
  Lhs lhs{.data = allocate_pages(rows.size()), .stride = row_bytes};
  std::ranges::copy(rows, lhs.data.data());
  return lhs;
}

/// Returns rows of `row_bytes` in tiles of 16 rows by 64 bytes, which kernels with tiles read from 17 rows on.
Lhs tile_rows(const std::vector<std::byte>& rows, size_t row_bytes, int count) {
  const size_t tiles = row_bytes / 64;
  Lhs lhs{.stride = tiles * kTileHeight * 64, .tiled = true};
  lhs.data = allocate_pages(static_cast<size_t>((count + kTileHeight - 1) / kTileHeight) * lhs.stride);
  for (int row = 0; row < count; ++row) {
    std::byte* const to = lhs.data.data() + static_cast<size_t>(row / kTileHeight) * lhs.stride +
                          static_cast<size_t>(row % kTileHeight) * 64;
    const std::byte* const from = rows.data() + static_cast<size_t>(row) * row_bytes;
    for (size_t tile = 0; tile < tiles; ++tile) std::copy_n(from + tile * 64, 64, to + tile * kTileHeight * 64);
  }
  return lhs;
}

/// Returns 8-bit rows in tiles: per 16 rows and group the values, then scales and compensations.
Lhs tile_int8_rows(const std::vector<std::byte>& rows, size_t row_bytes, int count) {
  const size_t group_bytes = kW8GroupElements + sizeof(LhsQuantParams);
  const size_t groups = row_bytes / group_bytes;
  Lhs lhs{.stride = groups * kInt8LhsTileBytes, .tiled = true};
  lhs.data = allocate_pages(static_cast<size_t>((count + kTileHeight - 1) / kTileHeight) * lhs.stride);
  for (int row = 0; row < count; ++row) {
    const auto place = static_cast<size_t>(row % kTileHeight);
    for (size_t group = 0; group < groups; ++group) {
      const std::byte* const from = rows.data() + static_cast<size_t>(row) * row_bytes + group * group_bytes;
      std::byte* const tile =
          lhs.data.data() + static_cast<size_t>(row / kTileHeight) * lhs.stride + group * kInt8LhsTileBytes;
      std::copy_n(from, kW8GroupElements, tile + place * kW8GroupElements);
      for (size_t factor = 0; factor < 2; ++factor) {  // the scale, the compensation
        std::copy_n(from + kW8GroupElements + factor * 4, 4,
                    tile + kTileHeight * kW8GroupElements + (factor * kTileHeight + place) * 4);
      }
    }
  }
  return lhs;
}

/// Returns `rows` LHS rows for GEMMs of that format.
Lhs gemm_lhs(const Kernels& kernels, Format format, int rows) {
  const bool tiled = kernels.tiles && rows > kTileHeight;
  const std::vector<float> values = random_values(static_cast<size_t>(rows) * kFeatures);
  if (format == Format::kW8A8Channel) {
    const auto run_bytes = static_cast<size_t>(kChannelRunSteps * kernels.channel_step_bytes);
    const size_t row_bytes = kFeatures / (kChannelRunSteps * kInt8Depth) * run_bytes;
    std::vector<std::byte> data(static_cast<size_t>(rows) * row_bytes);
    std::vector<LhsQuantParams> quant_params;
    for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
      const auto* from = reinterpret_cast<const std::byte*>(values.data() + row * kFeatures);
      quant_params.push_back(
          kernels.quantize_lhs_row(from, false, kFeatures, data.data() + row * row_bytes, run_bytes));
    }
    Lhs lhs = tiled ? tile_rows(data, row_bytes, rows) : plain_rows(data, row_bytes);
    lhs.quant_params = std::move(quant_params);
    return lhs;
  }
  const bool has_codes = code_format(format) != nullptr;
  if (format != Format::kW8A8 && !has_codes) {
    const size_t row_bytes = static_cast<size_t>(kFeatures) * (kernels.bf16_lhs ? 2 : 4);
    const std::vector<std::byte> data = lhs_rows(kernels, values);
    return tiled ? tile_rows(data, row_bytes, rows) : plain_rows(data, row_bytes);
  }
  const auto row_bytes = static_cast<size_t>(kFeatures / kW8GroupElements *
                                             (has_codes ? kCodeLhsUnitBytes : kernels.int8_lhs_group_bytes));
  std::vector<std::byte> data(static_cast<size_t>(rows) * row_bytes);
  for (int row = 0; row < rows; ++row) {
    (has_codes ? kernels.quantize_lhs_codes : kernels.quantize_lhs)(values.data() + row * kFeatures, kFeatures,
                                                                    data.data() + static_cast<size_t>(row) * row_bytes);
  }
  return tiled ? tile_int8_rows(data, row_bytes, rows) : plain_rows(data, row_bytes);
}

/// Returns the summed elements per step of a panel.
int64_t depth_of(const Kernels& kernels, Format format) {
  if (format == Format::kW8A8 || format == Format::kW8A8Channel || code_format(format) != nullptr) return kInt8Depth;
  return format == Format::kBf16 || kernels.bf16_lhs ? 2 : 1;
}

size_t panel_bytes(Format format) {
  if (const CodePanelFormat* const codes = code_format(format)) {
    return size_t{kFeatures / (kW8GroupElements * static_cast<size_t>(codes->units))} *
           static_cast<size_t>(codes->group_bytes());
  }
  switch (format) {
    case Format::kBf16: return size_t{kFeatures} * kPanelColumns * 2;
    case Format::kW8A8Channel: return size_t{kFeatures} * kPanelColumns;
    case Format::kFp8: return size_t{kFeatures / kMaxFp8Group} * kFp8ScaleBytes + size_t{kFeatures} * kPanelColumns;
    default: return size_t{kFeatures / kW8GroupElements} * kW8GroupBytes;
  }
}

auto gemm_of(const Kernels& kernels, Format format) {
  switch (format) {
    case Format::kBf16: return kernels.gemm_bf16;
    case Format::kW8A8: return kernels.gemm_w8a8;
    case Format::kW8A8Channel: return kernels.gemm_w8a8_channel;
    case Format::kFp8: return kernels.bf16_lhs ? kernels.gemm_fp8_bf16 : kernels.gemm_fp8_f32;
    case Format::kW4:
    case Format::kQ4K: return kernels.gemm_nibbles;
    case Format::kQ6K: return kernels.gemm_bytes;
    default: return kernels.bf16_lhs ? kernels.gemm_w8_bf16 : kernels.gemm_w8_f32;
  }
}

/// Returns the size that a build's table has if it has the kernels of a format.
size_t needed_table_bytes(Format format) {
  switch (format) {
    case Format::kW8A8Channel: return offsetof(Kernels, add_partial_sums);
    case Format::kW4:
    case Format::kQ4K:
    case Format::kQ6K: return offsetof(Kernels, convolve);
    case Format::kFp8: return offsetof(Kernels, gemm_fp8_f32) + sizeof(Kernels::gemm_fp8_f32);
    default: return 0;
  }
}

/// Measures some panels times `rows` rows.
void run_gemms(Turns& turns, const Kernels& first, Format format, int rows, Reader& memory) {
  const Lhs lhs = gemm_lhs(first, format, rows);
  const size_t panel = panel_bytes(format);
  const auto scratch = allocate_pages(kW8ScratchBytes);
  const auto sums = allocate_pages(static_cast<size_t>(rows) * kPanelColumns * sizeof(float));
  const std::vector<float> column_scales(kPanelColumns, 1.0f);
  GemmTask task{.lhs = lhs.data.data(),
                .lhs_stride = lhs.stride,
                .tiled_lhs = lhs.tiled,
                .steps = kFeatures / depth_of(first, format),
                .rows = rows,
                .c = reinterpret_cast<float*>(sums.data()),
                .scratch = scratch.data(),
                .quant_params = lhs.quant_params.data(),
                .column_scales = column_scales.data(),
                .codes = code_format(format),
                .group_elements = kMaxFp8Group};
  const int panels = rows <= 32 ? 600 : 19200 / rows;
  turns.run(fmt::format("{} product, {} rows", kFormatNames[static_cast<int>(format)], rows),
            2.0 * rows * kFeatures * kPanelColumns * panels, [&](const Kernels& kernels) {
              const auto product = gemm_of(kernels, format);
              for (int i = 0; i < panels; ++i) {
                task.panel = memory.next(panel);
                task.next = task.panel + panel;
                product(task);
              }
            });
}

/// Returns the block of keys at `key`, whose pages of 64 tokens are contiguous from `base` on: K, then V.
KvBlock block_at(const std::byte* base, int32_t key, size_t group_bytes) {
  KvBlock block{.first_key = key, .is_first = key == 0, .is_last = key + kBlockKeys >= kKeys};
  const std::byte* page = base + static_cast<size_t>(key / kBlockKeys) * 2 * kBlockGroups * group_bytes;
  for (int group = 0; group < kBlockGroups; ++group) {
    block.k[group] = page + static_cast<size_t>(group) * group_bytes;
    block.v[group] = block.k[group] + kBlockGroups * group_bytes;
  }
  return block;
}

/// Measures `rows` rows of queries over keys and values in bf16.
void run_attention(Turns& turns, const Kernels& first, int head_dim, int rows, Reader& memory) {
  const auto dim = static_cast<size_t>(head_dim);
  const auto count = static_cast<size_t>(rows);
  const size_t group_bytes = kGroupKeys * dim * 2;
  const std::vector<std::byte> q = lhs_rows(first, random_values(count * dim));
  const std::vector<int32_t> positions(count, kKeys);
  const auto maxima = static_cast<size_t>(attention_maxima(rows));
  const auto scratch = allocate_pages((count * (kBlockKeys + 16 + dim) + maxima) * sizeof(float));
  auto* const floats = reinterpret_cast<float*>(scratch.data());
  const size_t state = count * kBlockKeys;
  const QueryTile task{.q = q.data(),
                       .position = positions.data(),
                       .rows = rows,
                       .padded_dim = head_dim,
                       .scale = 0.125f,
                       .scores = floats,
                       .state = {floats + state, floats + state + maxima, floats + state + maxima + count * 16},
                       .value_dim = head_dim};
  const int walks = rows <= 16 ? 40 : 8;
  turns.run(fmt::format("attention, {} rows of {}", rows, head_dim), 4.0 * rows * head_dim * kKeys * walks,
            [&](const Kernels& kernels) {
              for (int walk = 0; walk < walks; ++walk) {
                std::fill(task.state.max, task.state.max + maxima, -1e30f);
                std::fill(task.state.sum, task.state.sum + count * (16 + dim), 0.0f);
                const std::byte* base = memory.next(kKeys / kGroupKeys * 2 * group_bytes);
                for (int32_t key = 0; key < kKeys; key += kBlockKeys) {
                  KvBlock block = block_at(base, key, group_bytes);
                  const KvBlock next = block_at(base, std::min(key + kBlockKeys, kKeys - kBlockKeys), group_bytes);
                  std::copy(std::begin(next.k), std::end(next.k), block.next_k);
                  std::copy(std::begin(next.v), std::end(next.v), block.next_v);
                  kernels.attention_block_bf16(task, block);
                }
              }
            });
}

/// Returns bf16 numbers from -1 to 1, which also serve as scales and values of 8-bit groups.
tensor::Buffer random_memory(size_t mebibytes) {
  auto memory = allocate_pages(mebibytes << 20);
  std::minstd_rand engine(1);
  auto* words = reinterpret_cast<uint16_t*>(memory.data());
  for (size_t i = 0; i < (mebibytes << 20) / 2; ++i) {
    words[i] = tensor::BFloat16::from_float(bench::draw_from(engine)).bits;
  }
  return memory;
}

void compare(const Options& options) {
  const auto isa = parse_isa(options.isa);
  const std::vector<Isa> there = available_isas();  // asks the kernel for tiles, too
  if (isa.has_error() || std::ranges::find(there, *isa) == there.end()) {
    throw std::runtime_error(fmt::format("--isa: found '{}', wanted a set that this machine has", options.isa));
  }
  std::vector<Build> builds;
  for (const std::string& path : options.builds) builds.push_back(open_build(path, options.isa));
  const tensor::Buffer data = random_memory(options.memory_mib);
  Reader memory({data.data(), options.memory_mib << 20});
  Turns turns(builds, options.runs, options.seed);
  const Kernels& first = *builds.front().kernels;
  fmt::print("GFLOP/s of one thread, median and best of {} turns; how many times as fast as the first\n", options.runs);
  const auto asked_for = [&](const char* kind) {
    return std::ranges::find(options.kinds, kind) != options.kinds.end();
  };
  for (const Format format : kFormats) {
    if (!asked_for(kFormatNames[static_cast<int>(format)])) continue;
    for (const Build& build : builds) {
      if (build.table_bytes < needed_table_bytes(format)) {
        throw std::runtime_error(
            fmt::format("{} is from before there was {}", build.name, kFormatNames[static_cast<int>(format)]));
      }
    }
    for (const int rows : options.rows) run_gemms(turns, first, format, rows, memory);
  }
  if (!asked_for("attention")) return;
  for (const int head_dim : {64, 128}) {
    for (const int rows : {4, 7, 14, 48}) run_attention(turns, first, head_dim, rows, memory);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Products and attention of builds of the CPU kernels, in turns; bench/kernel_turns.py makes the builds");
  Options options;
  app.add_option("BUILD", options.builds, "shared objects of src/cpu/kernels.cc")->required();
  app.add_option("--isa", options.isa, "instruction set they are built for: " + isa_names())->capture_default_str();
  app.add_option("--runs", options.runs, "turns of each")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--seed", options.seed, "of whose turn it is")->capture_default_str();
  app.add_option("--memory", options.memory_mib, "MiB that weights, keys and values are read from")
      ->check(CLI::Range(size_t{1}, size_t{1} << 20))
      ->capture_default_str();
  app.add_option("--kinds", options.kinds, "what to compare")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"bf16", "w8", "w8a8", "w8a8_int8", "fp8", "w4", "q4_k", "q6_k", "attention"}))
      ->capture_default_str();
  app.add_option("--rows", options.rows, "rows of the products")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 2048))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    compare(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "kernel_turns: {}\n", error.what());
    return 1;
  }
}
