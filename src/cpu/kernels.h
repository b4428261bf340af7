#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/isa.h"

/// The table of inner kernels, one per instruction set. The file kernels.cc is compiled once per set; everything else
/// in this folder is compiled for the baseline and calls through the table.
///
/// Formats. "Steps" walk the summed dimension. A weight panel or a group of keys holds, per step, a row of columns:
///   bf16: [steps][columns][2] bf16, a step being two summed elements;   f32: [steps][columns] f32.
/// For kernels with `tiles` a panel of bf16 is cut into tiles, [steps / 16][4][16 steps][16 columns][2].
/// LHS operands (activations, queries, probabilities) are rows of bf16 where the set has a bf16 dot product
/// (`bf16_lhs`), else rows of f32; with f32 compute always f32. Their rows are padded with zeros to whole steps.
/// A panel of 8 bits holds, per group of 32 summed elements, the scales of the columns, [64] bf16, then the values as
/// int8 [steps][64][depth], a step being as deep (1 or 2) as one of the LHS operand. Such panels for rows of bf16 have
/// the values in another order: with `w8_interleaved` a step's in that of w8_interleaved_byte(), as sign and magnitude;
/// with `tiles` a group's in that of w8_tiled_byte(), as uint8, 128 more than the weight. For LHS rows of 8 bits such a
/// panel's steps are 4 deep and its values uint8, 128 more than the weight; the rows hold, per group, 32 values as the
/// set's kernel reads them and their LhsQuantParams.
/// A panel of channels holds such values for all steps, uint8 [steps][64][4], with `tiles` cut into tiles as one of
/// bf16; the scales of the columns, [64] f32, lie elsewhere. LHS rows for it are int8 as the set's kernel reads them,
/// whole steps and nothing else; each has one LhsQuantParams beside them.
namespace millrace::cpu {

inline constexpr int kPanelColumns = 64;  ///< columns of a weight panel
inline constexpr int kTileHeight = 16;    ///< rows of a tile of tiled_lhs; 64 bytes each
inline constexpr int kGroupKeys = 16;     ///< keys of a contiguous K or V group
inline constexpr int kBlockKeys = 64;     ///< keys that attention's softmax handles at a time
inline constexpr int kBlockGroups = kBlockKeys / kGroupKeys;
inline constexpr int kMaxQueryTileRows = 64;  ///< query rows that share one walk over the keys
inline constexpr int kW8GroupElements = 32;   ///< summed elements of a group of a panel of 8 bits (tensor/w8.h)
inline constexpr int kW8ScaleBytes = kPanelColumns * 2;
inline constexpr int kW8GroupBytes = kW8ScaleBytes + kW8GroupElements * kPanelColumns;
inline constexpr int kInt8Depth = 4;  ///< summed elements of a step of a panel for LHS rows of 8 bits
inline constexpr int kChannelStepBytes = kPanelColumns * kInt8Depth;  ///< of a panel of channels
inline constexpr int kChannelRunSteps = 16;  ///< LHS rows and panels of channels are padded to whole runs of steps
/// Summed elements of a panel of channels: sums of 255 times 127 fit an int32.
inline constexpr int64_t kMaxChannelElements = 65536;
inline constexpr int kW8ScratchSteps = 256;  ///< steps of such a panel that are written out at a time
inline constexpr size_t kW8ScratchBytes = size_t{kW8ScratchSteps} * kPanelColumns * 4;
/// Kernels with tiles widen values of 8 bits by sums that larger scales would make infinite.
inline constexpr float kMaxTiledW8Scale = 0x1p104f;
inline constexpr int kSumBlock = 1024;  ///< logits per partial sum of exp_sum
inline constexpr int kMaxBlock = 64;    ///< logits per maximum of block_max

/// One panel times some rows: c[row][column] = Σ_step lhs[row][step] · panel[step][column], summed in step order.
/// With `tiled_lhs` the LHS rows lie in tiles of 16 rows by 16 steps, [rows / 16][steps / 16][16][16 steps], where
/// the last group may have fewer rows but is as large; a task of some of the steps has whole tiles of them.
struct GemmTask {
  const std::byte* lhs = nullptr;  // [rows, steps], `lhs_stride` bytes apart; tiled: so many from 16 rows to the next
  size_t lhs_stride = 0;
  bool tiled_lhs = false;
  const std::byte* panel = nullptr;  // [steps][64]
  const std::byte* next = nullptr;   // what will be read after these steps of the panel, to prefetch; or null
  int64_t steps = 0;
  int rows = 0;
  float* c = nullptr;            // [rows, 64]
  bool accumulate = false;       // c holds the sums of the steps before; with tiled_lhs only
  std::byte* scratch = nullptr;  // [kW8ScratchBytes], 64-byte aligned, for a panel of 8 bits
  // For a panel of channels, whose sums are int32 until all steps have been added.
  const struct LhsQuantParams* quant_params = nullptr;  // [rows]
  const float* column_scales = nullptr;                 // [64]
  bool completes = true;                                // these are the last steps
};

/// Of a group of 32 of an LHS row of 8 bits, or of a whole row.
struct LhsQuantParams {
  float scale = 0.0f;
  int32_t compensation = 0;  // -128 Σ values, since the weights are 128 too large
};

/// Tiled rows of 8 bits: per 16 rows and group, [16][32] int8, then [16] scales and [16] corrections.
inline constexpr int kInt8LhsTileBytes = kTileHeight * (kW8GroupElements + static_cast<int>(sizeof(LhsQuantParams)));

/// Floats for the maxima of so many rows: whole cache lines, of which 16 can be read from each maximum on.
[[nodiscard]] constexpr int attention_maxima(int rows) {
  return (rows + 15) / 16 * 16 + 16;
}

/// The running softmax of some query rows over the keys seen so far. Lanes of `sum` are added up at the end.
struct AttentionState {
  float* max = nullptr;  // [rows] of attention_maxima(rows)
  float* sum = nullptr;  // [rows, 16]
  float* acc = nullptr;  // [rows, padded_dim]
};

/// Query rows of one kv head that share a walk over the keys.
struct QueryTile {
  const std::byte* q = nullptr;       // [rows, padded_dim] LHS operand
  const int32_t* position = nullptr;  // [rows]
  int rows = 0;
  int padded_dim = 0;  // head_dim rounded up to whole vectors or tiles
  int32_t window = 0;  // 0: none
  float scale = 0.0f;
  float* scores = nullptr;  // scratch [rows, 64]; probabilities take their place
  AttentionState state;
};

/// The keys [first_key, first_key + 64), in groups of 16. K groups are [padded_dim as steps][16], V groups
/// [16 keys as steps][padded_dim]. All are readable, V groups hold finite values even where no key is.
struct KvBlock {
  int32_t first_key = 0;
  bool is_first = true;  ///< the first of a walk with these rows
  bool is_last = true;   ///< the last; in between no other kernel runs on this thread
  const std::byte* k[kBlockGroups] = {};
  const std::byte* v[kBlockGroups] = {};
  const std::byte* next_k[kBlockGroups] = {};  // to prefetch
  const std::byte* next_v[kBlockGroups] = {};
};

/// What a pass over logits finds.
struct LogitExtremes {
  float max = 0.0f;
  bool has_nan = false;
};

struct Kernels {
  Isa isa = Isa::kPortable;
  bool bf16_lhs = false;
  bool tiles = false;            ///< products in bf16 take tiled_lhs
  int step_multiple = 1;         ///< bf16 panels and LHS rows are padded to a multiple of so many steps
  int head_multiple = 16;        ///< heads in bf16 are padded to a multiple of so many channels
  int int8_lhs_group_bytes = 0;  ///< of a group of an LHS row of 8 bits

  void (*gemm_bf16)(const GemmTask&);
  void (*attention_block_bf16)(const QueryTile&, const KvBlock&);
  void (*gemm_f32)(const GemmTask&);
  /// With panels of 8 bits and LHS rows of bf16 (null without bf16_lhs) or f32.
  void (*gemm_w8_bf16)(const GemmTask&);
  void (*gemm_w8_f32)(const GemmTask&);
  /// With panels and LHS rows of 8 bits.
  void (*gemm_w8a8)(const GemmTask&);
  /// An LHS row of 8 bits from `count` values; a group that is not finite becomes NaN.
  void (*quantize_lhs)(const float* in, int64_t count, std::byte* out);
  void (*attention_block_f32)(const QueryTile&, const KvBlock&);
  /// Groups of 16 from tokens anywhere: out[word][16] of keys, a word being one f32 channel or two bf16 ones, and
  /// out[8][padded_dim][2] of bf16 values.
  void (*gather_keys)(const std::byte* const* keys, int words, std::byte* out);
  void (*gather_values_bf16)(const std::byte* const* values, int padded_dim, std::byte* out);
  /// into ← into merged with `from`, the softmax over the keys that follow.
  void (*attention_merge)(int rows, int padded_dim, const AttentionState& into, const AttentionState& from);

  /// out = bf16(in), round to nearest even.
  void (*narrow)(const float* in, uint16_t* out, int64_t count);
  /// out = f32(in), from bf16 and from IEEE binary16; `in` may be unaligned.
  void (*widen)(const std::byte* in, float* out, int64_t count);
  void (*widen_f16)(const std::byte* in, float* out, int64_t count);
  /// out = in · weight / sqrt(mean(in²) + epsilon).
  void (*rms_norm)(const float* in, const float* weight, float epsilon, float* out, int64_t count);
  /// out += in.
  void (*add)(const float* in, float* out, int64_t count);
  /// out = silu(gate) · up.
  void (*silu_mul)(const float* gate, const float* up, float* out, int64_t count);
  /// Pairs (i, i + half) of `head` turned by the angles whose cos and sin are given.
  void (*rotate)(float* head, const float* cos, const float* sin, int32_t half);

  LogitExtremes (*extremes)(const float* logits, int64_t count);
  /// The first index whose logit equals `value`, or count.
  int64_t (*find)(const float* logits, float value, int64_t count);
  /// How many logits exceed `value`.
  int64_t (*count_above)(const float* logits, float value, int64_t count);
  /// out[block] = the maximum of logits [64·block, 64·block + 64).
  void (*block_max)(const float* logits, int64_t count, float* out);
  /// Σ exp((logits - max) · factor), in a fixed order; the terms go to `terms` unless it is null, terms below `floor`
  /// are zeros. Also gives the sum of every 1024 terms when `sums` is not null.
  double (*exp_sum)(const float* logits, float max, float factor, float floor, int64_t count, float* terms,
                    double* sums);
  /// The ids of logits >= threshold in ascending order; returns how many, writes at most `capacity`.
  int64_t (*collect)(const float* logits, float threshold, int64_t count, int32_t* ids, int64_t capacity);
  /// out += scale · in. What came later follows, so that bench/kernel_turns reads the tables of older builds.
  void (*add_scaled)(const float* in, float scale, float* out, int64_t count);
  bool w8_interleaved = false;  ///< of panels of 8 bits for LHS rows of bf16
  /// silu(gate) · up of each of some rows of sums [rows, 64], of 32 gates and their ups: `count` (1 to 32) results a
  /// row, in bf16 or f32, the rows `stride` bytes apart.
  void (*silu_mul_rows)(const float* sums, int64_t rows, int64_t count, bool bf16, std::byte* out, size_t stride);
  /// out = acc / Σ sum[16], `count` channels of a row, as bf16 or f32.
  void (*attention_output)(const float* acc, const float* sum, int64_t count, bool as_bf16, std::byte* out);
  /// With panels of channels: c = (the sum of products, a whole number) · (scale of the row · scale of the column).
  void (*gemm_w8a8_channel)(const GemmTask&);
  int channel_step_bytes = 0;  ///< of a step of an LHS row for them
  /// Such an LHS row from `count` values, bf16 or f32, which may be unaligned: whole runs of steps, each `stride` bytes
  /// after the one before. A row that is not finite becomes NaN.
  LhsQuantParams (*quantize_lhs_row)(const std::byte* in, bool bf16, int64_t count, std::byte* out, size_t stride);
};

/// Where a turned step has the `element`th (0 or 1) value of a column. A vector of bytes gives two of words, those of
/// its even and of its odd groups of eight, since that is how their halves are put together.
[[nodiscard]] constexpr int w8_interleaved_byte(int column, int element) {
  const int vec = column / 16;  // of words
  const int word = column % 16 * 2 + element;
  return vec / 2 * 64 + word / 8 * 16 + vec % 2 * 8 + word % 8;
}

/// Where a group for kernels with tiles has the `element`th (0 to 31) value of a column: [2][16 steps][16][4], of 32
/// columns each. Of the 64 values of a step, two a column, the first 16 lie in the second byte of each of 16 words, the
/// next in the third, the fourth and the first.
[[nodiscard]] constexpr int w8_tiled_byte(int column, int element) {
  const int value = column % 32 * 2 + element % 2;
  return column / 32 * 1024 + element / 2 * 64 + value % 16 * 4 + (value / 16 + 1) % 4;
}

/// Where a panel in tiles has a step of a column, counted in such steps, of 4 bytes.
[[nodiscard]] constexpr size_t panel_tile_offset(int64_t step, int64_t column) {
  const int64_t tile = step / 16 * (kPanelColumns / 16) + column / 16;
  return static_cast<size_t>((tile * 16 + step % 16) * 16 + column % 16);
}

/// The table of a set, null when this binary was built without it. Does not ask the processor.
[[nodiscard]] const Kernels* kernels_for(Isa isa);

}  // namespace millrace::cpu
