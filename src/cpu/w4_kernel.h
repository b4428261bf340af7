#pragma once

// GEMM of 4-bit panels with 8-bit rows. Within a unit of 32 the sums are integers, equal for every instruction set and
// path. Units are added in f32 in order. Included only by kernels.cc.

#include "cpu/elementwise_kernels.h"
#include "cpu/w8a8_kernel.h"

namespace millrace::cpu {
namespace {

/// The parts of one unit of a panel.
struct W4Unit {
  const char* scales;   ///< of its group
  const char* offsets;  ///< of its group: zero points or minimums
  const char* factors;  ///< of its own scales and minimums
  const char* codes;
};

/// Walks over the units of a panel.
class W4Cursor {
 public:
  MILLRACE_INLINE W4Cursor(const W4PanelFormat& format, const std::byte* panel)
      : at_(reinterpret_cast<const char*>(panel)),
        units_(format.units),
        header_bytes_(format.header_bytes()),
        factor_bytes_(format.factor_bytes()),
        offsets_at_(kPanelColumns * format.scale_bytes()) {}

  /// Returns the next unit.
  MILLRACE_INLINE W4Unit take() {
    if (left_ == 0) {
      group_ = at_;
      at_ += header_bytes_;
      left_ = units_;
    }
    const W4Unit unit = {group_, group_ + offsets_at_, at_, at_ + factor_bytes_};
    at_ = unit.codes + kW4UnitCodeBytes;
    --left_;
    return unit;
  }
  /// Returns the end of the units so far.
  [[nodiscard]] MILLRACE_INLINE const char* at() const { return at_; }

 private:
  const char* at_;
  const char* group_ = nullptr;
  int left_ = 0;
  int units_;
  int header_bytes_;
  int factor_bytes_;
  int offsets_at_;
};

#if defined(__AVX2__)
typedef int32_t HalfInts __attribute__((vector_size(32)));
MILLRACE_INLINE __m256i low_half(Ints both) {
  return reinterpret_cast<__m256i>(__builtin_shufflevector(both, both, 0, 1, 2, 3, 4, 5, 6, 7));
}
MILLRACE_INLINE __m256i high_half(Ints both) {
  return reinterpret_cast<__m256i>(__builtin_shufflevector(both, both, 8, 9, 10, 11, 12, 13, 14, 15));
}
MILLRACE_INLINE Ints join_halves(__m256i low, __m256i high) {
  return __builtin_shufflevector(reinterpret_cast<HalfInts>(low), reinterpret_cast<HalfInts>(high), 0, 1, 2, 3, 4, 5, 6,
                                 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
#endif

/// Says whether integers from a table are multiplied as signed bytes, since sums of unsigned ones overflow an int16.
#if defined(__AVX2__) && !MILLRACE_VNNI
constexpr bool kSignedW4Tables = true;
#else
constexpr bool kSignedW4Tables = false;
#endif

/// The integers of the 16 codes, four times.
struct W4Table {
  alignas(64) uint8_t bytes[64];

  MILLRACE_INLINE explicit W4Table(const W4PanelFormat& format) {
    const int subtracted = kSignedW4Tables && format.has_table ? format.offset : 0;
    for (int i = 0; i < 64; ++i) bytes[i] = static_cast<uint8_t>(format.table[i % 16] - subtracted);
  }

  /// Returns the integers of 64 codes.
  [[nodiscard]] MILLRACE_INLINE Ints look_up(Ints codes) const {
#if defined(__AVX512BW__)
    return reinterpret_cast<Ints>(_mm512_shuffle_epi8(load_as<__m512i>(bytes), reinterpret_cast<__m512i>(codes)));
#elif defined(__AVX2__)
    const auto table = load_as<__m256i>(bytes);
    return join_halves(_mm256_shuffle_epi8(table, low_half(codes)), _mm256_shuffle_epi8(table, high_half(codes)));
#else
    typedef uint8_t CodeBytes __attribute__((vector_size(64)));
    auto out = reinterpret_cast<CodeBytes>(codes);
    for (int i = 0; i < 64; ++i) out[i] = bytes[out[i]];
    return reinterpret_cast<Ints>(out);
#endif
  }
};

/// Adds up the products of 16 columns of a unit with four inputs at a time, from `addend` on. kSigned: the columns are
/// signed bytes.
#if MILLRACE_VNNI
template <bool kSigned>
struct W4Dot {
  using Sum = Ints;
  static MILLRACE_INLINE Sum start(int32_t addend) { return splat_int(addend); }
  static MILLRACE_INLINE void add(Sum& sum, Ints columns, const char* lhs) {
    sum = Int8Step(columns).add_dot(sum, lhs);
  }
  static MILLRACE_INLINE Ints total(const Sum& sum, int32_t) { return sum; }
};
#elif defined(__AVX2__)
/// Adds products in pairs as int16: of a unit 16 of 15 · 127 fit.
template <bool kSigned>
struct W4Dot {
  struct Sum {
    __m256i low;
    __m256i high;
  };
  static MILLRACE_INLINE Sum start(int32_t) { return {}; }
  static MILLRACE_INLINE void add(Sum& sum, Ints columns, const char* lhs) {
    const __m256i inputs = _mm256_set1_epi32(load_as<int32_t>(lhs));
    add_half(sum.low, low_half(columns), inputs);
    add_half(sum.high, high_half(columns), inputs);
  }
  static MILLRACE_INLINE Ints total(const Sum& sum, int32_t addend) {
    return join_halves(total_half(sum.low), total_half(sum.high)) + addend;
  }

 private:
  static MILLRACE_INLINE void add_half(__m256i& sum, __m256i columns, __m256i inputs) {
    if constexpr (kSigned) {
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(columns), _mm256_sign_epi8(inputs, columns));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    } else {
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(columns, inputs));
    }
  }
  static MILLRACE_INLINE __m256i total_half(__m256i sum) {
    return kSigned ? sum : _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
  }
};
#else
template <bool kSigned>
struct W4Dot {
  using Sum = Ints;
  static MILLRACE_INLINE Sum start(int32_t addend) { return splat_int(addend); }
  static MILLRACE_INLINE void add(Sum& sum, Ints columns, const char* lhs) {
    const auto bytes = reinterpret_cast<Bits>(columns);
    for (int i = 0; i < kInt8Depth; ++i) {
      sum += reinterpret_cast<Ints>((bytes >> static_cast<uint32_t>(8 * i)) & 0xFFu) *
             splat_int(static_cast<int8_t>(lhs[i]));
    }
  }
  static MILLRACE_INLINE Ints total(const Sum& sum, int32_t) { return sum; }
};
#endif

/// Loads 16 scales or minimums as f32.
MILLRACE_INLINE Vec load_w4_scales(W4ScaleType type, const char* from, int vec) {
  switch (type) {
    case W4ScaleType::kF16: return widen_binary16(load_as<Halves>(from + vec * kLanes * 2));
    case W4ScaleType::kBF16: return widen_bf16(load_as<Halves>(from + vec * kLanes * 2));
    case W4ScaleType::kF32: return load_as<Vec>(from + vec * kLanes * 4);
  }
  return {};
}

/// What turns the integer sums of 16 columns of a unit into values.
struct W4Terms {
  Vec scale;
  Vec offset;  ///< zero points or minimums
};

/// `part` is the half of the unit, if halves have factors.
MILLRACE_INLINE W4Terms load_w4_terms(const W4PanelFormat& format, const W4Unit& unit, int vec, int part) {
  W4Terms terms = {load_w4_scales(format.scale_type, unit.scales, vec), {}};
  if (format.has_half_factors) terms.scale *= widen_e4m3(unit.factors + part * kPanelColumns + vec * kLanes);
  if (format.has_factors) terms.scale *= widen_bytes(unit.factors + vec * kLanes);
  if (format.offset_type == W4OffsetType::kZeroPoints) {
    typedef uint8_t Codes __attribute__((vector_size(16)));
    terms.offset =
        __builtin_convertvector(__builtin_convertvector(load_as<Codes>(unit.offsets + vec * kLanes), Ints), Vec);
  } else if (format.offset_type == W4OffsetType::kMinimums) {
    terms.offset = load_w4_scales(format.scale_type, unit.offsets, vec);
    if (format.has_factors) terms.offset *= widen_bytes(unit.factors + kPanelColumns + vec * kLanes);
  }
  return terms;
}

/// An LHS row's part in a unit.
struct W4Lhs {
  float scale;
  int32_t input_sum;  ///< Σ of the int8 inputs
  int32_t addend;     ///< what replaces the constant offset of the integers

  W4Lhs() = default;
  MILLRACE_INLINE W4Lhs(const LhsQuantParams& params, int offset)
      : scale(params.scale), input_sum(-(params.compensation >> 7)), addend(-offset * input_sum) {}
  /// Takes one half of the inputs of the unit.
  MILLRACE_INLINE W4Lhs(const LhsQuantParams& params, int offset, const char* half)
      : scale(params.scale), input_sum(0) {
    typedef int8_t Inputs __attribute__((vector_size(16)));
    const Ints inputs = __builtin_convertvector(load_as<Inputs>(half), Ints);
    if (offset != 0) input_sum = __builtin_reduce_add(inputs);
    addend = -offset * input_sum;
  }
};

template <W4OffsetType kType>
struct W4OffsetConstant {
  static constexpr W4OffsetType kValue = kType;
};
/// Calls body with the type of offsets as a compile-time constant.
template <class Body>
MILLRACE_INLINE void with_w4_offsets(W4OffsetType type, Body&& body) {
  switch (type) {
    case W4OffsetType::kConstant: return body(W4OffsetConstant<W4OffsetType::kConstant>{});
    case W4OffsetType::kZeroPoints: return body(W4OffsetConstant<W4OffsetType::kZeroPoints>{});
    case W4OffsetType::kMinimums: return body(W4OffsetConstant<W4OffsetType::kMinimums>{});
  }
}

/// Returns acc plus the value of 16 columns' sums, to which `lhs.addend` has been added. The sums and zero points are
/// whole numbers that f32 holds.
template <W4OffsetType kType>
MILLRACE_INLINE Vec add_w4_sums(Ints sum, const W4Terms& terms, const W4Lhs& lhs, Vec acc) {
  if constexpr (kType == W4OffsetType::kConstant) {
    return fma(__builtin_convertvector(sum, Vec), terms.scale * lhs.scale, acc);
  } else if constexpr (kType == W4OffsetType::kZeroPoints) {
    const Vec shifted = __builtin_convertvector(sum, Vec) - terms.offset * static_cast<float>(lhs.input_sum);
    return fma(shifted, terms.scale * lhs.scale, acc);
  } else {
    const Vec scaled = fma(__builtin_convertvector(sum, Vec), terms.scale * lhs.scale, acc);
    return fma(terms.offset, splat(static_cast<float>(lhs.input_sum) * lhs.scale), scaled);
  }
}

/// Returns the constant that a kernel still subtracts from integers.
MILLRACE_INLINE int w4_offset(const W4PanelFormat& format) {
  return kSignedW4Tables && format.has_table ? 0 : format.offset;
}

constexpr int kW4StepBytes = kPanelColumns * kInt8Depth;  // of a step of unpacked codes
constexpr int kUnpackedUnitBytes = kW4UnitSteps * kW4StepBytes;

/// Loads the integers of 16 columns for 8 inputs from the codes of a unit.
template <bool kTable>
MILLRACE_INLINE void load_w4_codes(const char* from, const W4Table& table, Ints& low, Ints& high) {
  const auto packed = load_as<Bits>(from);
  low = reinterpret_cast<Ints>(packed & 0x0F0F0F0Fu);
  high = reinterpret_cast<Ints>((packed >> 4) & 0x0F0F0F0Fu);
  if constexpr (kTable) {
    low = table.look_up(low);
    high = table.look_up(high);
  }
}

/// Unpacks a unit to one byte per code, [8 steps][64][4].
template <bool kTable>
MILLRACE_INLINE void unpack_w4_unit(const char* codes, const W4Table& table, char* out) {
  for (int pair = 0; pair < kW4UnitSteps / 2; ++pair, out += 2 * kW4StepBytes) {
#pragma clang loop unroll(full)
    for (int v = 0; v < kPanelColumns / kLanes; ++v, codes += 64) {
      Ints low;
      Ints high;
      load_w4_codes<kTable>(codes, table, low, high);
      store_as(out + v * 64, low);
      store_as(out + kW4StepBytes + v * 64, high);
    }
  }
}

/// Says whether a tile prefetches the codes that it streams. Zen 4 reads a third faster without that.
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
constexpr bool kPrefetchesW4Codes = false;
#else
constexpr bool kPrefetchesW4Codes = true;
#endif

/// How a tile reads a unit.
enum class W4Source : uint8_t {
  kPacked,    ///< from the panel
  kUnpacked,  ///< from scratch
};

/// How the codes of a panel are read.
enum class W4Codes : uint8_t {
  kPlain,        ///< they are the integers
  kTable,        ///< they stand for integers of a table
  kTableHalves,  ///< the same, and the halves of units have factors of their own
};
constexpr bool has_w4_table(W4Codes codes) {
  return codes != W4Codes::kPlain;
}

/// Adds to c [R, V * 16] the GEMM of LHS rows with one unit, or with its half `part`. `from` is the first of the
/// columns' codes or bytes; it advances.
template <int R, int V, W4Codes kCodes, W4Source kSource>
MILLRACE_INLINE void add_w4_part(const W4PanelFormat& format, const W4Unit& unit, const W4Table& table,
                                 const char*& from, int first, const char* lhs, size_t lhs_stride, float* c, int part) {
  constexpr bool kHalves = kCodes == W4Codes::kTableHalves;
  constexpr bool kTable = has_w4_table(kCodes);
  using Dot = W4Dot<kTable && kSignedW4Tables>;
  const RowStrides strides(lhs_stride);
  const char* inputs = lhs + part * (kW8GroupElements / 2);
  W4Lhs row[R];
  typename Dot::Sum sum[R][V];
#pragma clang loop unroll(full)
  for (int r = 0; r < R; ++r) {
    const auto params = load_as<LhsQuantParams>(lhs + strides.to(r) + kW8GroupElements);
    if constexpr (kHalves) {
      row[r] = W4Lhs(params, w4_offset(format), inputs + strides.to(r));
    } else {
      row[r] = W4Lhs(params, w4_offset(format));
    }
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) sum[r][v] = Dot::start(row[r].addend);
  }
#pragma clang loop unroll(disable)
  for (int pair = 0; pair < kW4UnitSteps / (kHalves ? 4 : 2); ++pair, inputs += 2 * kInt8Depth) {
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) {
      Ints low;
      Ints high;
      if constexpr (kSource == W4Source::kPacked) {
        load_w4_codes<kTable>(from + v * 64, table, low, high);
        if constexpr (kPrefetchesW4Codes)
          __builtin_prefetch(from + v * 64 + kPrefetchDistance, 0, kW8A8StreamPrefetchLevel);
      } else {
        low = load_as<Ints>(from + v * 64);
        high = load_as<Ints>(from + kW4StepBytes + v * 64);
      }
#pragma clang loop unroll(full)
      for (int r = 0; r < R; ++r) Dot::add(sum[r][v], low, inputs + strides.to(r));
#pragma clang loop unroll(full)
      for (int r = 0; r < R; ++r) Dot::add(sum[r][v], high, inputs + strides.to(r) + kInt8Depth);
    }
    from += kSource == W4Source::kPacked ? kW4StepBytes : 2 * kW4StepBytes;
  }
  with_w4_offsets(format.offset_type, [&](auto type) __attribute__((always_inline)) {
#pragma clang loop unroll(full)
    for (int v = 0; v < V; ++v) {
      const W4Terms terms = load_w4_terms(format, unit, first / kLanes + v, part);
#pragma clang loop unroll(full)
      for (int r = 0; r < R; ++r) {
        float* const at = c + r * kPanelColumns + v * kLanes;
        const Ints total = Dot::total(sum[r][v], row[r].addend);
        store(at, add_w4_sums<decltype(type)::kValue>(total, terms, row[r], load(at)));
      }
    }
  });
}

/// Adds to c [R, V * 16] the GEMM of LHS rows with one unit.
template <int R, int V, W4Codes kCodes, W4Source kSource>
MILLRACE_INLINE void add_w4_unit(const W4PanelFormat& format, const W4Unit& unit, const W4Table& table,
                                 const char* from, int first, const char* lhs, size_t lhs_stride, float* c) {
#pragma clang loop unroll(disable)
  for (int part = 0; part < (kCodes == W4Codes::kTableHalves ? 2 : 1); ++part)
    add_w4_part<R, V, kCodes, kSource>(format, unit, table, from, first, lhs, lhs_stride, c, part);
}

/// Rows of a tile: with more of them the inputs of all rows do not fit the registers.
#if defined(__AVX2__)
constexpr int kW4TileRows = 4;
#else
constexpr int kW4TileRows = 2;
#endif
/// Rows up to which tiles look up codes as they read them. More rows share what is unpacked to scratch. Codes that need
/// no table are never unpacked.
constexpr int kMaxLookUpRows = 4 * kW4TileRows;
/// Units that are unpacked at a time, 2 KB each.
constexpr int kUnpackedUnits = 8;
static_assert(kUnpackedUnits * kUnpackedUnitBytes <= static_cast<int>(kW8ScratchBytes));

MILLRACE_INLINE void clear_w4_sums(const GemmTask& task) {
  for (int64_t i = 0; i < int64_t{task.rows} * kPanelColumns; i += kLanes) store(task.c + i, Vec{});
}

/// Prefetches the next block of a panel, some lines with every unit of each tile.
struct W4Prefetch {
  const char* at = nullptr;
  const char* end = nullptr;
  int64_t lines = 0;

  MILLRACE_INLINE W4Prefetch(const char* begin, int64_t bytes, int64_t turns)
      : at(begin), end(begin + bytes), lines((bytes / 64 + turns - 1) / turns) {}
  MILLRACE_INLINE void run_some() {
    for (int64_t i = 0; i < lines && at < end; ++i, at += 64) __builtin_prefetch(at, 0, kPrefetchToL2);
  }
};

/// Multiplies R rows from `row` on over some units from `step` on, unpacking codes as it reads them.
template <int R, W4Codes kCodes>
void stream_w4(const GemmTask& task, const W4Table& table, W4Cursor& cursor, int row, int64_t step, int64_t units,
               W4Prefetch& ahead) {
  constexpr int V = kTileVecs;
  const W4PanelFormat& format = *task.w4;
  const char* lhs = reinterpret_cast<const char*>(task.lhs) + static_cast<size_t>(row) * task.lhs_stride +
                    step / kW4UnitSteps * kW4LhsUnitBytes;
  float* const c = task.c + row * kPanelColumns;
  for (int64_t i = 0; i < units; ++i, lhs += kW4LhsUnitBytes) {
    const char* const begin = cursor.at();
    const W4Unit unit = cursor.take();
    ahead.run_some();
    for (const char* line = begin; line < unit.codes; line += 64)
      __builtin_prefetch(line + kPrefetchDistance, 0, kW8A8StreamPrefetchLevel);
#pragma clang loop unroll(disable)
    for (int first = 0; first < kPanelColumns; first += V * kLanes) {
      add_w4_unit<R, V, kCodes, W4Source::kPacked>(format, unit, table, unit.codes + first * kInt8Depth, first, lhs,
                                                   task.lhs_stride, c + first);
    }
  }
}

/// Multiplies rows tile by tile. Of more than one tile each passes over some units, which stay in the second-level
/// cache, while the later ones prefetch the next units.
template <W4Codes kCodes>
void stream_rows_w4(const GemmTask& task, const W4Table& table) {
  constexpr int64_t kSharedUnits = 128;
  W4Cursor cursor(*task.w4, task.panel);
  const int64_t all = task.steps / kW4UnitSteps;
  const int64_t tiles = (task.rows + kW4TileRows - 1) / kW4TileRows;
  for (int64_t unit = 0; unit < all; unit += kSharedUnits) {
    const int64_t count = all - unit < kSharedUnits ? all - unit : kSharedUnits;
    const char* const begin = cursor.at();
    W4Cursor end = cursor;
    W4Prefetch ahead{nullptr, 0, 1};
    for_row_tiles<kW4TileRows>(task.rows, [&](auto rows, int row) {
      end = cursor;
      stream_w4<decltype(rows)::kCount, kCodes>(task, table, end, row, unit * kW4UnitSteps, count, ahead);
      if (row == 0 && tiles > 1) {
        const char* const next = unit + count == all ? reinterpret_cast<const char*>(task.next) : end.at();
        if (next != nullptr) ahead = W4Prefetch{next, end.at() - begin, (tiles - 1) * count};
      }
    });
    cursor = end;
  }
}

/// A block of units whose codes are unpacked in scratch.
struct W4Block {
  W4Unit units[kUnpackedUnits];
  int count = 0;
  const char* begin = nullptr;
  const char* end = nullptr;

  template <bool kTable>
  MILLRACE_INLINE void unpack(W4Cursor& cursor, int64_t steps, const W4Table& table, std::byte* scratch) {
    const int64_t rest = steps / kW4UnitSteps;
    count = rest < kUnpackedUnits ? static_cast<int>(rest) : kUnpackedUnits;
    begin = cursor.at();
    for (int i = 0; i < count; ++i) {
      units[i] = cursor.take();
      unpack_w4_unit<kTable>(units[i].codes, table, reinterpret_cast<char*>(scratch) + i * kUnpackedUnitBytes);
    }
    end = cursor.at();
  }
  /// Returns the prefetching of as much of what follows, in `turns` turns.
  [[nodiscard]] MILLRACE_INLINE W4Prefetch prefetch(const GemmTask& task, bool is_last, int64_t turns) const {
    const bool is_known = !is_last || task.next != nullptr;
    const char* const next = is_last ? reinterpret_cast<const char*>(task.next) : end;
    return {is_known ? next : end, is_known ? end - begin : 0, turns};
  }
};

/// Multiplies many rows with codes of a table. Each block of units is unpacked once.
template <W4Codes kCodes>
void blocked_w4(const GemmTask& task, const W4Table& table) {
  constexpr int V = kTileVecs;
  const W4PanelFormat& format = *task.w4;
  W4Cursor cursor(format, task.panel);
  const int64_t tiles = (task.rows + kW4TileRows - 1) / kW4TileRows;
  for (int64_t step = 0; step < task.steps; step += int64_t{kUnpackedUnits} * kW4UnitSteps) {
    W4Block block;
    block.unpack<true>(cursor, task.steps - step, table, task.scratch);
    const bool is_last = task.steps - step <= int64_t{kUnpackedUnits} * kW4UnitSteps;
    W4Prefetch ahead = block.prefetch(task, is_last, tiles * block.count);
    const auto* const bytes = reinterpret_cast<const char*>(task.scratch);
    const auto* const inputs = reinterpret_cast<const char*>(task.lhs) + step / kW4UnitSteps * kW4LhsUnitBytes;
    for_row_tiles<kW4TileRows>(task.rows, [&](auto rows, int row) {
      constexpr int R = decltype(rows)::kCount;
      const char* const lhs = inputs + static_cast<size_t>(row) * task.lhs_stride;
      for (int i = 0; i < block.count; ++i) {
        ahead.run_some();
#pragma clang loop unroll(disable)
        for (int first = 0; first < kPanelColumns; first += V * kLanes) {
          add_w4_unit<R, V, kCodes, W4Source::kUnpacked>(
              format, block.units[i], table, bytes + i * kUnpackedUnitBytes + first * kInt8Depth, first,
              lhs + i * kW4LhsUnitBytes, task.lhs_stride, task.c + row * kPanelColumns + first);
        }
      }
    });
  }
}

template <W4Codes kCodes>
MILLRACE_INLINE void gemm_w4_of(const GemmTask& task) {
  const W4Table table(*task.w4);
  clear_w4_sums(task);
  if constexpr (has_w4_table(kCodes)) {
    if (task.rows > kMaxLookUpRows) return blocked_w4<kCodes>(task, table);
  }
  stream_rows_w4<kCodes>(task, table);
}

/// Returns how the codes of a panel are read. Factors of halves come with tables only.
MILLRACE_INLINE W4Codes w4_codes(const W4PanelFormat& format) {
  if (format.has_half_factors) return W4Codes::kTableHalves;
  return format.has_table ? W4Codes::kTable : W4Codes::kPlain;
}

void gemm_w4(const GemmTask& task) {
  switch (w4_codes(*task.w4)) {
    case W4Codes::kPlain: return gemm_w4_of<W4Codes::kPlain>(task);
    case W4Codes::kTable: return gemm_w4_of<W4Codes::kTable>(task);
    case W4Codes::kTableHalves: return gemm_w4_of<W4Codes::kTableHalves>(task);
  }
}

void quantize_lhs_w4(const float* in, int64_t count, std::byte* out) {
  quantize_lhs_groups(in, count, out, store_lhs_bytes);
}

}  // namespace
}  // namespace millrace::cpu
