#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/isa.h"
#include "tensor/gated_activation.h"

/// The table of inner kernels, one per instruction set. The file kernels.cc is compiled once per set. All other files
/// of this folder are compiled for the baseline and call through the table.
///
/// Formats. "Steps" walk the summed dimension. A weight panel or a group of keys holds, per step, a row of columns. In
/// bf16 it is [steps][columns][2], a step being two summed elements; in f32 it is [steps][columns]. For kernels with
/// `tiles` a bf16 panel is cut into tiles, [steps / 16][4][16 steps][16 columns][2].
///
/// LHS operands (activations, queries, probabilities) are bf16 rows where the set has a bf16 dot product (`bf16_lhs`).
/// Otherwise, and always with f32 compute, they are f32 rows. Rows are padded with zeros to whole steps.
///
/// An 8-bit panel holds, per group of 32 summed elements, the scales of the columns, [64] bf16, then the values, int8
/// [steps][64][depth]. Its depth (1 or 2) is that of the LHS operand. For bf16 rows the order of the values differs.
/// With `w8_interleaved` a step has the order of w8_interleaved_byte(), as sign and magnitude. With `tiles` a group has
/// the order of w8_tiled_byte(), as uint8 with an offset of 128. For 8-bit LHS rows the steps are 4 deep and values are
/// uint8 with an offset of 128. Such rows hold, per group, 32 values in the kernel's order and their LhsQuantParams.
///
/// A panel of E4M3 holds, per group of 32, 64 or 128 summed elements (GemmTask::group_elements), the scales of the
/// columns, [64] f32, then the codes, [steps][64][depth]. For bf16 rows a step has the order of w8_interleaved_byte().
/// The last group of a shard may be shorter by units of 32. The scale of a group with a NaN is NaN.
///
/// A panel of codes is cut into groups of units of 32 summed elements (CodePanelFormat). A group holds the scales of
/// the columns, [64], what shifts them, and its units: further factors and the codes. Codes of 4 bits are [4][64][4]
/// bytes. A byte has the code of the element 8 · i + j in its lower half, and that of the element 8 · i + 4 + j in its
/// upper half. Codes of 8 bits are bytes [8][64][4], signed with `signed_codes`. Codes of 2, 3, 5 and 6 bits
/// are runs of 4 or 8 steps, [runs][4][lines][16][4] bytes (code_runs.h). The last group of a shard may have fewer
/// units. LHS rows hold, per unit, 32 int8 and their LhsQuantParams.
///
/// A channel panel has one scale per column and holds uint8 [steps][64][4] with an offset of 128; with `tiles` it is
/// cut into tiles like a bf16 panel. The scales, [64] f32, are stored separately. Its LHS rows are int8 in the kernel's
/// order, in whole steps; each has one LhsQuantParams per shard of the sum, stored separately.
namespace millrace::cpu {

inline constexpr int kPanelColumns = 64;  ///< columns of a weight panel
inline constexpr int kTileHeight = 16;    ///< rows of a tile of tiled_lhs, 64 bytes each
inline constexpr int kGroupKeys = 16;     ///< keys of a contiguous K or V group
inline constexpr int kBandRows = 16;      ///< rows of a band of queries
inline constexpr int kBlockKeys = 64;     ///< keys per pass of attention's softmax
inline constexpr int kBlockGroups = kBlockKeys / kGroupKeys;
inline constexpr int kMaxQueryTileRows = 64;  ///< query rows that share one pass over the keys
inline constexpr int kW8GroupElements = 32;   ///< summed elements per group of an 8-bit panel (tensor/w8.h)
inline constexpr int kW8ScaleBytes = kPanelColumns * 2;
inline constexpr int kW8GroupBytes = kW8ScaleBytes + kW8GroupElements * kPanelColumns;
inline constexpr int kFp8ScaleBytes = kPanelColumns * 4;
inline constexpr int kMaxFp8Group = 128;  ///< summed elements per group of a panel of E4M3
inline constexpr int kInt8Depth = 4;      ///< summed elements per step of a panel for 8-bit LHS rows
inline constexpr int kChannelStepBytes = kPanelColumns * kInt8Depth;  ///< bytes per step of a channel panel
inline constexpr int kChannelRunSteps = 16;  ///< steps to whose multiple LHS rows and channel panels are padded
/// Maximum of summed elements with a channel panel: sums of 255 · 127 fit an int32.
inline constexpr int64_t kMaxChannelElements = 65536;
inline constexpr int kW8ScratchSteps = 256;  ///< steps of an 8-bit panel that are dequantized at a time
inline constexpr size_t kW8ScratchBytes = size_t{kW8ScratchSteps} * kPanelColumns * 4;
/// Maximum scale for kernels with tiles, whose dequantization would overflow with larger ones.
inline constexpr float kMaxTiledW8Scale = 0x1p104f;
inline constexpr int kSumBlock = 1024;  ///< logits per partial sum of exp_sum
inline constexpr int kMaxBlock = 64;    ///< logits per maximum of block_max

inline constexpr int kCodeUnitSteps = kW8GroupElements / kInt8Depth;         ///< steps of a unit of a 4-bit panel
inline constexpr int kByteUnitCodeBytes = kW8GroupElements * kPanelColumns;  ///< of a unit of an 8-bit panel
inline constexpr int kCodeBitBytes = kByteUnitCodeBytes / 8;                 ///< of one bit of all codes of a unit
inline constexpr int kMaxCodeGroupUnits = 8;

/// The type of the scales, and of the minimums, of a 4-bit panel.
enum class CodeScaleType : uint8_t { kF16, kBF16, kF32 };
/// What shifts the weights of a 4-bit panel: a constant for all, an integer or a number per group and column.
enum class CodeOffsetType : uint8_t { kConstant, kZeroPoints, kMinimums };

/// The factors of the halves of units, [2][64].
enum class CodeHalfType : uint8_t { kNone, kE4M3, kInt8 };

/// The groups of a panel of codes. A code stands for an integer from 0 to 255 minus `offset` or a zero point.
struct CodePanelFormat {
  int units = 1;  ///< per group: 1, 2, 4 or 8
  CodeScaleType scale_type = CodeScaleType::kBF16;
  CodeOffsetType offset_type = CodeOffsetType::kConstant;
  bool has_factors = false;  ///< units have int8 factors of the scales, and of the minimums
  CodeHalfType half_type = CodeHalfType::kNone;
  bool has_half_minimums = false;  ///< halves of units have int8 factors of the minimums, too
  uint8_t bits = 4;                ///< of a code: 4, 5, 6 or 8; with int8 factors of halves 2, 3, 6 or 8
  bool has_table = false;          ///< integers differ from their codes, which have 4 bits
  int offset = 8;                  ///< of kConstant, and of codes of other than 4 bits with minimums; otherwise 0
  uint8_t table[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};  ///< the integers of the codes

  [[nodiscard]] constexpr int vectors() const { return offset_type == CodeOffsetType::kMinimums ? 2 : 1; }
  [[nodiscard]] constexpr int scale_bytes() const { return scale_type == CodeScaleType::kF32 ? 4 : 2; }
  /// Returns the bytes of a group before its units, and those of a unit before its codes.
  [[nodiscard]] constexpr int header_bytes() const {
    return kPanelColumns * (vectors() * scale_bytes() + (offset_type == CodeOffsetType::kZeroPoints ? 1 : 0));
  }
  [[nodiscard]] constexpr int factor_bytes() const {
    if (has_half_factors()) return kPanelColumns * (has_half_minimums ? 4 : 2);
    return kPanelColumns * (has_factors ? vectors() : 0);
  }
  [[nodiscard]] constexpr bool has_half_factors() const { return half_type != CodeHalfType::kNone; }
  [[nodiscard]] constexpr int code_bytes() const { return bits * kCodeBitBytes; }
  [[nodiscard]] constexpr int unit_bytes() const { return factor_bytes() + code_bytes(); }
  [[nodiscard]] constexpr int group_bytes() const { return header_bytes() + units * unit_bytes(); }
};

/// One panel times some rows: c[row][column] = Σ_step lhs[row][step] · panel[step][column], summed in step order. With
/// `tiled_lhs` the LHS rows are tiles of 16 rows by 16 steps, [rows / 16][steps / 16][16][16 steps]. The last tile may
/// have fewer rows but takes the same space. A task over some of the steps has whole tiles of them.
struct GemmTask {
  const std::byte* lhs = nullptr;  // [rows, steps], `lhs_stride` bytes per row; tiled: per 16 rows
  size_t lhs_stride = 0;
  bool tiled_lhs = false;
  const std::byte* panel = nullptr;  // [steps][64]
  const std::byte* next = nullptr;   // what is read after these steps, to prefetch; or null
  int64_t steps = 0;
  int rows = 0;
  float* c = nullptr;            // [rows, 64]
  bool accumulate = false;       // c holds the sums of the earlier steps; with tiled_lhs only
  std::byte* scratch = nullptr;  // [kW8ScratchBytes], 64-byte aligned, for an 8-bit or 4-bit panel
  // Channel panels only; their sums are int32 until all steps have been added.
  const struct LhsQuantParams* quant_params = nullptr;  // [rows]
  const float* column_scales = nullptr;                 // [64]; null: sums stay integers
  bool completes = true;                                // these are the last steps
  const CodePanelFormat* codes = nullptr;               // of a 4-bit panel
  int group_elements = 0;                               // that share scales in a panel of E4M3
};

/// How an 8-bit LHS row, or one group of 32 of it, was quantized.
struct LhsQuantParams {
  float scale = 0.0f;
  int32_t compensation = 0;  // -128 Σ values, which cancels the weights' offset of 128
};

/// Returns the scale of an 8-bit LHS row for channel panels from its largest magnitude. A row whose values are all
/// below 2^-100 becomes zero, and one that is not finite NaN.
[[nodiscard, gnu::always_inline]] inline float channel_row_scale(float largest) {
  if (!(largest <= 0x1.fffffep127f)) return __builtin_nanf("");
  return largest >= 0x1p-100f ? largest / 127.0f : 0.0f;
}

/// Bytes of a tile of 8-bit LHS rows: per 16 rows and group, [16][32] int8, then [16] scales and [16] compensations.
inline constexpr int kInt8LhsTileBytes = kTileHeight * (kW8GroupElements + static_cast<int>(sizeof(LhsQuantParams)));

/// Bytes of a unit of an LHS row for a 4-bit panel.
inline constexpr int kCodeLhsUnitBytes = kW8GroupElements + static_cast<int>(sizeof(LhsQuantParams));

/// Returns the floats to allocate for the maxima of `rows` rows: whole cache lines, so that 16 can be read from each
/// maximum on.
[[nodiscard]] constexpr int attention_maxima(int rows) {
  return (rows + 15) / 16 * 16 + 16;
}

/// The running softmax of some query rows over the keys so far. The lanes of `sum` are added up at the end.
struct AttentionState {
  float* max = nullptr;  // [rows] of attention_maxima(rows)
  float* sum = nullptr;  // [rows, 16]
  float* acc = nullptr;  // [rows, value_dim]
};

/// Query rows of one kv head that share a pass over the keys.
struct QueryTile {
  const std::byte* q = nullptr;       // [rows, padded_dim] LHS operand, or bands of attention_block_latents
  const int32_t* position = nullptr;  // [rows]
  int rows = 0;
  int padded_dim = 0;  // of a key: its channels rounded up to whole vectors or tiles
  int32_t window = 0;  // 0: none
  float scale = 0.0f;
  float* scores = nullptr;  // scratch [rows, 64]; probabilities overwrite it
  AttentionState state;
  int value_dim = 0;         // of a value, rounded up alike
  float tanh_factor = 0.0f;  // unless 0, scores s become tanh(tanh_factor · s) before they are scaled
};

/// The keys [first_key, first_key + 64), in groups of 16. K groups are [padded_dim as steps][16], V groups [16 keys as
/// steps][value_dim]. All groups are readable. V groups hold finite values even where no key exists.
/// attention_block_latents takes other groups.
struct KvBlock {
  int32_t first_key = 0;
  bool is_first = true;  ///< the first block of a pass with these rows
  bool is_last = true;   ///< the last block; until then no other kernel runs on this thread
  const std::byte* k[kBlockGroups] = {};
  const std::byte* v[kBlockGroups] = {};
  const std::byte* next_k[kBlockGroups] = {};  // to prefetch
  const std::byte* next_v[kBlockGroups] = {};
};

/// A group of 16 tokens of one KV head as codes of 8 bits: the codes of K and V in the order of the groups above, then
/// their bf16 scales, [scales][16] of K and as many of V.
struct KvGroupCodes {
  const std::byte* codes = nullptr;
  bool has_int8 = false;  ///< else E4M3, whose only subnormal number is zero
  int padded_dim = 0;
  int scale_channels = 0;  ///< channels of a scale, a multiple of 16
  int count = 0;           ///< tokens that exist; values after them become zeros
};

/// Returns the codes of a latent: its channels rounded up to whole vectors.
[[nodiscard, gnu::always_inline]] constexpr int coded_channels(int latent_dim) {
  return (latent_dim + 15) / 16 * 16;
}

/// Tokens of latents as codes of 8 bits. A token is [coded_channels(latent_dim)] codes, those after the latent zeros,
/// then the rotated key in bf16 or f32, [rope_dim], and the bf16 scales.
struct LatentCodes {
  const std::byte* const* tokens = nullptr;  // [count], at any addresses
  int count = 0;
  bool has_int8 = false;  ///< else E4M3, whose only subnormal number is zero
  bool bf16 = false;      ///< the dtype of keys and of what they become; else f32
  int latent_dim = 0;
  int rope_dim = 0;
  int scale_channels = 0;  ///< channels of a scale, a multiple of 16
  int padded_dim = 0;      ///< channels of what a token becomes
};

/// The most columns of a state that a kernel takes through several tokens.
inline constexpr int64_t kStateColumns = 32;

/// Tokens of a head of a gated delta net, one after the other: S ← decay·S; S ← S + k ⊗ strength·(v − Sᵀk); out = Sᵀq.
/// Each row of S has a decay of its own, or all have one.
struct DeltaSteps {
  const float* from = nullptr;      // [key_dim, value_dim], S before the first token
  float* to = nullptr;              // [key_dim, value_dim], S after the last one; may be `from`
  const float* q = nullptr;         // [count, key_dim]
  const float* k = nullptr;         // [count, key_dim]
  const float* v = nullptr;         // [count, value_dim], `v_stride` apart
  const float* decay = nullptr;     // [count], or [count, key_dim] with row_decays
  const float* strength = nullptr;  // [count]
  bool row_decays = false;
  int64_t v_stride = 0;
  int64_t count = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  float* out = nullptr;  // [count, value_dim], `out_stride` apart
  int64_t out_stride = 0;
  float* block = nullptr;  // scratch [key_dim, kStateColumns], unused by a single token
};

/// Tokens of a head of a state space, one after the other: h ← decay·h + b ⊗ step·x; out = hᵀc + skip·x.
struct StateSpaceSteps {
  const float* from = nullptr;   // [state_dim, head_dim], h before the first token
  float* to = nullptr;           // [state_dim, head_dim], h after the last one; may be `from`
  const float* x = nullptr;      // [count, head_dim]; x, b and c are `in_stride` apart
  const float* b = nullptr;      // [count, state_dim]
  const float* c = nullptr;      // [count, state_dim]
  const float* decay = nullptr;  // [count]
  const float* step = nullptr;   // [count]
  float skip = 0.0f;
  int64_t in_stride = 0;
  int64_t count = 0;
  int64_t state_dim = 0;
  int64_t head_dim = 0;
  float* out = nullptr;  // [count, head_dim], `out_stride` apart
  int64_t out_stride = 0;
  float* block = nullptr;  // scratch [state_dim, kStateColumns], unused by a single token
};

/// The result of one pass over logits.
struct LogitExtremes {
  float max = 0.0f;
  bool has_nan = false;
};

/// The kernels of one instruction set, and the properties of their data formats.
struct Kernels {
  Isa isa = Isa::kPortable;
  bool bf16_lhs = false;
  bool tiles = false;            ///< bf16 GEMMs take tiled_lhs
  int step_multiple = 1;         ///< bf16 panels and LHS rows are padded to a multiple of this number of steps
  int head_multiple = 16;        ///< bf16 heads are padded to a multiple of this number of channels
  int int8_lhs_group_bytes = 0;  ///< bytes per group of an 8-bit LHS row

  void (*gemm_bf16)(const GemmTask&);
  void (*attention_block_bf16)(const QueryTile&, const KvBlock&);
  void (*gemm_f32)(const GemmTask&);
  /// GEMMs with 8-bit panels and LHS rows of bf16 (null without bf16_lhs) or f32.
  void (*gemm_w8_bf16)(const GemmTask&);
  void (*gemm_w8_f32)(const GemmTask&);
  /// GEMM with 8-bit panels and 8-bit LHS rows.
  void (*gemm_w8a8)(const GemmTask&);
  /// Quantizes `count` values to an 8-bit LHS row. A non-finite group becomes NaN.
  void (*quantize_lhs)(const float* in, int64_t count, std::byte* out);
  void (*attention_block_f32)(const QueryTile&, const KvBlock&);
  /// Gathers groups of 16 tokens from any addresses: out[word][16] of keys, a word being one f32 channel or two bf16
  /// ones, with the words `stride` bytes apart; and out[8][value_dim][2] of bf16 values.
  void (*gather_keys)(const std::byte* const* keys, int words, std::byte* out, size_t stride);
  void (*gather_values_bf16)(const std::byte* const* values, int value_dim, std::byte* out);
  /// Merges two softmax states: `into` becomes `into` followed by `from`, whose keys come later.
  void (*attention_merge)(int rows, int value_dim, const AttentionState& into, const AttentionState& from);

  /// Converts to bf16: out = bf16(in), rounded to nearest even.
  void (*narrow)(const float* in, uint16_t* out, int64_t count);
  /// Converts to f32 from bf16 or IEEE binary16; `in` may be unaligned.
  void (*widen)(const std::byte* in, float* out, int64_t count);
  void (*widen_f16)(const std::byte* in, float* out, int64_t count);
  /// out = in · weight / sqrt(mean(in²) + epsilon).
  void (*rms_norm)(const float* in, const float* weight, float epsilon, float* out, int64_t count);
  /// out += in.
  void (*add)(const float* in, float* out, int64_t count);
  /// out = f(gate, up), where f is the gated activation. `out` may be either of them.
  void (*activate)(const tensor::GatedActivation& activation, const float* gate, const float* up, float* out,
                   int64_t count);
  /// Rotates the pairs (i, i + half) of `head` by the angles with the given cos and sin.
  void (*rotate)(float* head, const float* cos, const float* sin, int32_t half);

  LogitExtremes (*extremes)(const float* logits, int64_t count);
  /// Returns the first index whose logit equals `value`, or count.
  int64_t (*find)(const float* logits, float value, int64_t count);
  /// Returns the number of logits above `value`.
  int64_t (*count_above)(const float* logits, float value, int64_t count);
  /// out[block] = the maximum of logits [64·block, 64·block + 64).
  void (*block_max)(const float* logits, int64_t count, float* out);
  /// Returns Σ exp((logits - max) · factor), summed in a fixed order. `terms`, unless null, receives the terms, with
  /// zeros below `floor`. `sums`, unless null, receives the sum of every 1024 terms.
  double (*exp_sum)(const float* logits, float max, float factor, float floor, int64_t count, float* terms,
                    double* sums);
  /// Writes the ids of logits >= threshold in ascending order, at most `capacity`. Returns how many there are.
  int64_t (*collect)(const float* logits, float threshold, int64_t count, int32_t* ids, int64_t capacity);
  /// Adds an expert's result to its shard's sum, then other sums: out = ((scale · in + own) + addends[0]) + …, of
  /// `count` addends. `own` is null for zeros; `out` may be any of them. New members follow here, so that
  /// bench/kernel_turns reads the tables of older builds.
  void (*add_expert)(const float* in, float scale, const float* own, const float* const* addends, int count,
                     int64_t length, float* out);
  bool w8_interleaved = false;  ///< format of 8-bit panels for bf16 LHS rows
  /// Computes f(gate, up) from the sums [rows, 64] of 32 gates and their ups, where f is the gated activation. Each row
  /// has `count` (1 to 32) results in bf16 or f32; rows are `stride` bytes apart.
  void (*activate_rows)(const tensor::GatedActivation& activation, const float* sums, int64_t rows, int64_t count,
                        bool bf16, std::byte* out, size_t stride);
  /// Divides a row of attention by its sum: out = acc / Σ sum[16], `count` channels as bf16 or f32.
  void (*attention_output)(const float* acc, const float* sum, int64_t count, bool as_bf16, std::byte* out);
  /// GEMM with channel panels: c = Σ products (an integer) · (scale of the row · scale of the column).
  void (*gemm_w8a8_channel)(const GemmTask&);
  int channel_step_bytes = 0;  ///< bytes per step of an LHS row for gemm_w8a8_channel
  /// Quantizes such an LHS row from `count` values, bf16 or f32, possibly unaligned. It writes whole runs of steps,
  /// `stride` bytes apart. A non-finite row becomes NaN.
  LhsQuantParams (*quantize_lhs_row)(const std::byte* in, bool bf16, int64_t count, std::byte* out, size_t stride);
  /// Adds partial sums one after the other: out = ((sums[0] + sums[1]) + sums[2]) + …, of 2 to 4 vectors of `length`, a
  /// multiple of 64. `out` may be one of them.
  void (*add_partial_sums)(const float* const* sums, int count, int64_t length, float* out);
  /// Returns the largest magnitude of `count` values, bf16 or f32, possibly unaligned; NaN or infinity if there is one.
  float (*largest_magnitude)(const std::byte* in, bool bf16, int64_t count);
  /// Quantizes a part of an LHS row as quantize_lhs_row does, with the scale of a row of that largest magnitude.
  LhsQuantParams (*quantize_lhs_part)(const std::byte* in, bool bf16, int64_t count, float largest, std::byte* out,
                                      size_t stride);
  /// values = cap · tanh(values / cap).
  void (*soft_cap)(float* values, float cap, int64_t count);
  /// GEMM with 4-bit panels and 8-bit LHS rows.
  void (*gemm_nibbles)(const GemmTask&);
  /// Quantizes `count` values to an LHS row for gemm_nibbles, as quantize_lhs does.
  void (*quantize_lhs_codes)(const float* in, int64_t count, std::byte* out);
  /// One token of a convolution: out = Σ_i weight[i · stride + c] · inputs[i][c] + bias[c], or silu of it; `bias` may
  /// be null.
  void (*convolve)(const float* const* inputs, const float* weight, int64_t stride, int width, const float* bias,
                   bool silu, int64_t count, float* out);
  void (*delta_steps)(const DeltaSteps&);
  /// out = e^g with g = −rate · softplus(steps + bias).
  void (*channel_decays)(const float* steps, const float* bias, float rate, float* out, int64_t count);
  void (*state_space_steps)(const StateSpaceSteps&);
  /// out = a · b. `out` may be either of them.
  void (*multiply)(const float* a, const float* b, float* out, int64_t count);
  /// out = values · sigmoid(gates). `out` may be either of them.
  void (*gate)(const float* values, const float* gates, float* out, int64_t count);
  /// Widens codes of 8 bits to a K group and a V group of f32, or of bf16 (null without bf16_lhs).
  void (*widen_kv_f32)(const KvGroupCodes& group, std::byte* k, std::byte* v);
  void (*widen_kv_bf16)(const KvGroupCodes& group, std::byte* k, std::byte* v);
  /// GEMMs with panels of E4M3 and LHS rows of bf16 (null without bf16_lhs) or f32.
  void (*gemm_fp8_bf16)(const GemmTask&);
  void (*gemm_fp8_f32)(const GemmTask&);
  /// out[key] = Σ_h weights[h] · max(scores[h][key], 0) of 64 keys, in ascending order of h. `scores` is [heads][64]. A
  /// NaN stays.
  void (*weigh_scores)(const float* scores, const float* weights, int heads, float* out);
  /// GEMM with panels of codes of 2, 3, 5, 6 or 8 bits and LHS rows as for gemm_nibbles.
  void (*gemm_bytes)(const GemmTask&);
  bool signed_codes = false;  ///< codes of 8 bits in panels are less by 128
  /// One block of latents in bf16 where they lie: block.k and block.v are groups of 16 tokens, [16][padded_dim] each,
  /// and rows.q are bands of 16 rows, [padded_dim / 2][16][2]. Null where attention takes K and V groups.
  void (*attention_block_latents)(const QueryTile&, const KvBlock&);
  /// Widens tokens from codes: out[token] = [latent | key | zeros], [count, padded_dim].
  void (*widen_latents)(const LatentCodes& latents, std::byte* out);
};

/// Returns the byte in an interleaved step of the `element`th (0 or 1) value of a column. A vector of bytes unpacks to
/// two vectors of words, from its even and its odd groups of eight.
[[nodiscard]] constexpr int w8_interleaved_byte(int column, int element) {
  const int vec = column / 16;  // of words
  const int word = column % 16 * 2 + element;
  return vec / 2 * 64 + word / 8 * 16 + vec % 2 * 8 + word % 8;
}

/// Returns the byte in a group, for kernels with tiles, of the `element`th (0 to 31) value of a column: [2][16
/// steps][16][4], of 32 columns each. A step has 64 values, two per column. The first 16 are the second bytes of 16
/// words; the others follow in the third, fourth and first bytes.
[[nodiscard]] constexpr int w8_tiled_byte(int column, int element) {
  const int value = column % 32 * 2 + element % 2;
  return column / 32 * 1024 + element / 2 * 64 + value % 16 * 4 + (value / 16 + 1) % 4;
}

/// Returns the offset, in steps of 4 bytes, of a column's step in a tiled panel.
[[nodiscard]] constexpr size_t panel_tile_offset(int64_t step, int64_t column) {
  const int64_t tile = step / 16 * (kPanelColumns / 16) + column / 16;
  return static_cast<size_t>((tile * 16 + step % 16) * 16 + column % 16);
}

/// Returns the table of a set; null when this binary lacks it. It does not check the processor.
[[nodiscard]] const Kernels* kernels_for(Isa isa);

}  // namespace millrace::cpu
