#pragma once

// A head's state, a matrix that each row changes: in registers from a sequence's first row of a batch to its last. The
// columns do not depend on each other, so that blocks have 32 of them. Included by the ops of recurrent mixers only.

#include "cuda/states.cuh"

namespace millrace::cuda {
namespace {

constexpr int kStateWarps = 4;
constexpr int kStateThreads = kStateWarps * kLanes;
constexpr int kParts = 4;  ///< lanes that share a column
constexpr int kWarpColumns = kLanes / kParts;
constexpr int kColumns = kStateWarps * kWarpColumns;  ///< of a block
constexpr int kStagedRows = 16;                       ///< rows of a sequence that a block loads at once

/// How a row changes the state S, with vectors k and q over its rows and v over its columns.
enum class StateRule : int32_t {
  kDelta,         ///< S ← decay·S; S ← S + k ⊗ strength·(v − Sᵀk); out = Sᵀq, with k and q of unit length
  kChannelDelta,  ///< kDelta, where each row of S has a decay of its own
  kSpace,         ///< S ← decay·S + k ⊗ strength·v; out = Sᵀq + skip·v
};

struct StateParams {
  const float* mixed = nullptr;          // [rows, columns of all vectors]
  const float* gates = nullptr;          // [rows, strengths | steps]; with one of both [rows, heads]
  const float* channel_steps = nullptr;  // [rows, heads, key_dim] of kChannelDelta
  float* out = nullptr;                  // [rows, heads, value_dim]
  int32_t mixed_columns = 0;
  int32_t heads = 0;
  int32_t heads_per_group = 0;  ///< heads that share k and q
  int32_t key_dim = 0;          ///< rows of the state
  int32_t value_dim = 0;        ///< columns of the state
  int32_t q_begin = 0;          ///< columns of `mixed` before q, k and v
  int32_t k_begin = 0;
  int32_t v_begin = 0;
  float min_step = 0.0f;  ///< of a state space
  float max_step = 0.0f;
  float q_length = 1.0f;  ///< of a delta net
  DeviceStateWeights weights;
  int64_t state_begin = 0;  ///< values of a sequence's state before this one
  DeviceBatch batch;
  DeviceKvCache states;
  int32_t layer = 0;
};

/// The rows that a block has loaded.
template <StateRule kRule, int kQuads>
struct StagedRows {
  static constexpr int kKeys = kQuads * kParts * 4;
  float k[kStagedRows][kKeys];
  float q[kStagedRows][kKeys];
  float v[kStagedRows][kColumns];
  static constexpr int kDecays = kRule == StateRule::kChannelDelta ? kKeys : 1;
  float decay[kStagedRows][kDecays];
  float strength[kStagedRows];
  float* kept[kStagedRows];  ///< where the state after the row is kept; null: nowhere
};

/// Brings a vector [key_dim] to a length, or copies it for `length` 0, with zeros after it. One warp does it.
__device__ inline void stage_vector(const float* from, int32_t key_dim, float length, int keys, int lane, float* to) {
  float factor = 1.0f;
  if (length != 0.0f) {
    float squares = 0.0f;
    for (int32_t i = lane; i < key_dim; i += kLanes) squares = fmaf(from[i], from[i], squares);
    factor = length / sqrtf(warp_sum(squares) + 1e-6f);
  }
  for (int32_t i = lane; i < keys; i += kLanes) to[i] = i < key_dim ? from[i] * factor : 0.0f;
}

/// Computes the decays of the rows of a head's state for a row of the batch, with 1 after them. One warp does it.
__device__ inline void stage_channel_decays(const StateParams& p, int32_t row, int32_t head, int keys, int lane,
                                            float* to) {
  const float* const steps = p.channel_steps + (static_cast<size_t>(row) * p.heads + head) * p.key_dim;
  const float* const bias = p.weights.step_bias + static_cast<size_t>(head) * p.key_dim;
  const float rate = p.weights.decay[head];
  for (int32_t i = lane; i < keys; i += kLanes) {
    const float step = i < p.key_dim ? steps[i] + bias[i] : 0.0f;
    to[i] = i < p.key_dim ? expf(-rate * softplus_of(step)) : 1.0f;
  }
}

template <StateRule kRule, int kQuads>
__device__ void stage_rows(const StateParams& p, const StateRows& rows, int32_t first, int32_t count, int32_t head,
                           int32_t first_column, StagedRows<kRule, kQuads>& staged) {
  constexpr bool kDelta = kRule != StateRule::kSpace;
  constexpr bool kOwnDecays = kRule == StateRule::kChannelDelta;
  constexpr int kKeys = StagedRows<kRule, kQuads>::kKeys;
  const int lane = threadIdx.x % kLanes;
  const int32_t group_at = head / p.heads_per_group * p.key_dim;
  for (int32_t row = threadIdx.x / kLanes; row < count; row += kStateWarps) {
    const float* const in = p.mixed + static_cast<size_t>(first + row) * p.mixed_columns;
    stage_vector(in + p.k_begin + group_at, p.key_dim, kDelta ? 1.0f : 0.0f, kKeys, lane, staged.k[row]);
    stage_vector(in + p.q_begin + group_at, p.key_dim, kDelta ? p.q_length : 0.0f, kKeys, lane, staged.q[row]);
    if constexpr (kOwnDecays) stage_channel_decays(p, first + row, head, kKeys, lane, staged.decay[row]);
    const int32_t column = first_column + lane;
    staged.v[row][lane] = column < p.value_dim ? in[p.v_begin + head * p.value_dim + column] : 0.0f;
  }
  if (static_cast<int32_t>(threadIdx.x) < count) {
    const int32_t row = threadIdx.x;
    constexpr bool kBoth = kRule == StateRule::kDelta;
    const float* const gates = p.gates + static_cast<size_t>(first + row) * (kBoth ? 2 * p.heads : p.heads);
    float step = 0.0f;
    if constexpr (!kOwnDecays) {
      step = softplus_of(gates[kDelta ? p.heads + head : head] + p.weights.step_bias[head]);
      if (!kDelta) step = step < p.min_step ? p.min_step : step > p.max_step ? p.max_step : step;
      staged.decay[row][0] = expf(-step * p.weights.decay[head]);
    }
    staged.strength[row] = kDelta ? times_sigmoid(1.0f, gates[head]) : step;
    staged.kept[row] = rows.after(p.states, p.layer, first + row);
  }
}
static_assert(kColumns == kLanes && kStagedRows <= kStateThreads);

/// A lane's part of a column of the state: rows in fours, of which a column's lanes have turns.
template <int kQuads>
struct StateColumn {
  float values[kQuads][4] = {};

  __device__ static int32_t row_of(int quad, int part, int i) { return (quad * kParts + part) * 4 + i; }
  /// Returns Σ vector[row] · value over the column, to all of its lanes.
  __device__ float dot(const float* vector, int part) const {
    float sums[4] = {};
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      const auto four = *reinterpret_cast<const float4*>(vector + row_of(quad, part, 0));
      sums[0] = fmaf(four.x, values[quad][0], sums[0]);
      sums[1] = fmaf(four.y, values[quad][1], sums[1]);
      sums[2] = fmaf(four.z, values[quad][2], sums[2]);
      sums[3] = fmaf(four.w, values[quad][3], sums[3]);
    }
    float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    sum += __shfl_xor_sync(kAllLanes, sum, kWarpColumns);
    return sum + __shfl_xor_sync(kAllLanes, sum, 2 * kWarpColumns);
  }
  /// value ← decays[row] · value.
  __device__ void decay(const float* decays, int part) {
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      const auto four = *reinterpret_cast<const float4*>(decays + row_of(quad, part, 0));
      values[quad][0] *= four.x;
      values[quad][1] *= four.y;
      values[quad][2] *= four.z;
      values[quad][3] *= four.w;
    }
  }
  /// value ← decay · value + vector[row] · change.
  __device__ void update(const float* vector, float decay, float change, int part) {
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      const auto four = *reinterpret_cast<const float4*>(vector + row_of(quad, part, 0));
      values[quad][0] = fmaf(four.x, change, values[quad][0] * decay);
      values[quad][1] = fmaf(four.y, change, values[quad][1] * decay);
      values[quad][2] = fmaf(four.z, change, values[quad][2] * decay);
      values[quad][3] = fmaf(four.w, change, values[quad][3] * decay);
    }
  }
  /// Calls use(value, index in the state) for the values that exist.
  template <class Use>
  __device__ void for_values(const StateParams& p, int part, int32_t column, const Use& use) {
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t row = row_of(quad, part, i);
        if (row < p.key_dim && column < p.value_dim)
          use(values[quad][i], static_cast<size_t>(row) * p.value_dim + column);
      }
    }
  }
};

/// Grid: [blocks of kColumns columns, heads, sequences].
template <StateRule kRule, int kQuads>
__global__ void __launch_bounds__(kStateThreads) state_kernel(StateParams p) {
  const auto sequence = static_cast<int32_t>(blockIdx.z);
  if (sequence >= *p.batch.sequence_count) return;
  const StateRows rows(p.batch, sequence);
  if (rows.begin == rows.end) return;
  const auto head = static_cast<int32_t>(blockIdx.y);
  const int32_t first_column = static_cast<int32_t>(blockIdx.x) * kColumns;
  const int lane = threadIdx.x % kLanes;
  const int part = lane / kWarpColumns;
  const int own = threadIdx.x / kLanes * kWarpColumns + lane % kWarpColumns;  // column of the block
  const int32_t column = first_column + own;
  const size_t state_at = static_cast<size_t>(p.state_begin) + static_cast<size_t>(head) * p.key_dim * p.value_dim;
  auto& staged = *reinterpret_cast<StagedRows<kRule, kQuads>*>(shared_memory());
  StateColumn<kQuads> state;
  if (const float* const from = rows.before(p.states, p.layer)) {
    state.for_values(p, part, column, [&](float& value, size_t index) { value = from[state_at + index]; });
  }
  for (int32_t first = rows.begin; first < rows.end; first += kStagedRows) {
    const int32_t count = min(kStagedRows, rows.end - first);
    __syncthreads();  // no warp reads the previous rows any more
    stage_rows<kRule>(p, rows, first, count, head, first_column, staged);
    __syncthreads();
    for (int32_t row = 0; row < count; ++row) {
      float decay = staged.decay[row][0];
      if constexpr (kRule == StateRule::kChannelDelta) {
        state.decay(staged.decay[row], part);
        decay = 1.0f;
      }
      const float v = staged.v[row][own];
      float change = v * staged.strength[row];
      if constexpr (kRule != StateRule::kSpace)
        change = (v - state.dot(staged.k[row], part) * decay) * staged.strength[row];
      state.update(staged.k[row], decay, change, part);
      float result = state.dot(staged.q[row], part);
      if constexpr (kRule == StateRule::kSpace) result = fmaf(v, p.weights.skip[head], result);
      if (part == 0 && column < p.value_dim)
        p.out[(static_cast<size_t>(first + row) * p.heads + head) * p.value_dim + column] = result;
      if (float* const to = staged.kept[row])
        state.for_values(p, part, column, [&](float& value, size_t index) { to[state_at + index] = value; });
    }
  }
}

template <StateRule kRule>
void run_state_rule(cudaStream_t stream, const char* name, const StateParams& p, const BatchBounds& bounds) {
  if (p.key_dim > kMaxStateRows) {
    throw std::invalid_argument(std::string(name) + ": found states of " + std::to_string(p.key_dim) +
                                " rows, wanted at most " + std::to_string(kMaxStateRows));
  }
  const auto run = [&]<int kQuads>() {
    launch<state_kernel<kRule, kQuads>>({.name = name,
                                         .grid = dim3(ceil_div(p.value_dim, kColumns), p.heads, bounds.sequences),
                                         .block = dim3(kStateThreads),
                                         .shared_bytes = sizeof(StagedRows<kRule, kQuads>)},
                                        stream, p);
  };
  if (p.key_dim <= StagedRows<kRule, 2>::kKeys) return run.template operator()<2>();
  if (p.key_dim <= StagedRows<kRule, 8>::kKeys) return run.template operator()<8>();
  run.template operator()<16>();
}
static_assert(StagedRows<StateRule::kDelta, 16>::kKeys == kMaxStateRows);

}  // namespace
}  // namespace millrace::cuda
