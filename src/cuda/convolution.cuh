#pragma once

// Causal convolutions with their states: row after row for few rows of a sequence, else segments of rows at once. Each
// output is the same instructions in the same order in either.

#include "cuda/states.cuh"

namespace millrace::cuda {
namespace {

constexpr int kConvThreads = 128;    ///< channels of a block
constexpr int32_t kWalkedRows = 32;  ///< rows of a sequence that one thread walks over; also those of a segment
constexpr uint32_t kMaxPageSlices = 16;

template <class Output>
struct ConvParams {
  const float* in = nullptr;  // [rows, in_columns]
  int32_t in_columns = 0;
  DeviceConvolution conv;
  DeviceBatch batch;
  int32_t rows = 0;
  DeviceKvCache states;
  int32_t layer = 0;
  Output* out = nullptr;  // [rows, channels]
};

/// A channel's weights and its latest inputs, of which the newest is the last.
struct ConvChannel {
  int32_t width;
  float bias;
  float weight[kMaxConvWidth];
  float recent[kMaxConvWidth];

  __device__ ConvChannel(const DeviceConvolution& conv, int32_t channel)
      : width(conv.width), bias(conv.bias == nullptr ? 0.0f : conv.bias[channel]), weight{}, recent{} {
#pragma unroll
    for (int i = 0; i < kMaxConvWidth; ++i) {
      const int32_t tap = i - (kMaxConvWidth - width);
      if (tap >= 0) weight[i] = conv.weight[static_cast<size_t>(tap) * conv.channels + channel];
    }
  }
  /// Makes room for the next input.
  __device__ void push(float input) {
#pragma unroll
    for (int i = 0; i + 1 < kMaxConvWidth; ++i) recent[i] = recent[i + 1];
    recent[kMaxConvWidth - 1] = input;
  }
  [[nodiscard]] __device__ float sum() const {
    float total = bias;
#pragma unroll
    for (int i = 0; i < kMaxConvWidth; ++i) {
      if (i >= kMaxConvWidth - width) total = fmaf(weight[i], recent[i], total);
    }
    return total;
  }
  /// Takes the inputs before a sequence's first row from its state; null: zeros.
  __device__ void load(const float* state, int32_t channels, int32_t channel) {
    for (int32_t tap = 0; tap + 1 < width; ++tap)
      push(state == nullptr ? 0.0f : state[static_cast<size_t>(tap) * channels + channel]);
  }
  __device__ void store(float* state, int32_t channels, int32_t channel) const {
#pragma unroll
    for (int i = 1; i < kMaxConvWidth; ++i) {
      const int32_t tap = i - (kMaxConvWidth - width) - 1;
      if (tap >= 0) state[static_cast<size_t>(tap) * channels + channel] = recent[i];
    }
  }
};

/// Grid: [blocks of channels, sequences]: each thread walks over the rows of a sequence.
template <class Op>
__global__ void __launch_bounds__(kConvThreads) walk_conv_kernel(ConvParams<typename Op::Output> p) {
  const auto sequence = static_cast<int32_t>(blockIdx.y);
  const auto channel = static_cast<int32_t>(blockIdx.x * kConvThreads + threadIdx.x);
  if (sequence >= *p.batch.sequence_count || channel >= p.conv.channels) return;
  const StateRows rows(p.batch, sequence);
  if (rows.begin == rows.end) return;
  ConvChannel own(p.conv, channel);
  own.load(rows.before(p.states, p.layer), p.conv.channels, channel);
  for (int32_t row = rows.begin; row < rows.end; ++row) {
    own.push(Op::input(p, row, channel));
    Op::store(p, row, channel, own.sum());
    if (float* const state = rows.after(p.states, p.layer, row)) own.store(state, p.conv.channels, channel);
  }
}

/// Grid: [blocks of channels, segments of kWalkedRows rows]. The states are not touched.
template <class Op>
__global__ void __launch_bounds__(kConvThreads) segment_conv_kernel(ConvParams<typename Op::Output> p) {
  const auto channel = static_cast<int32_t>(blockIdx.x * kConvThreads + threadIdx.x);
  if (channel >= p.conv.channels) return;
  const int32_t first = static_cast<int32_t>(blockIdx.y) * kWalkedRows;
  const int32_t end = first + valid_rows(p.batch, first, kWalkedRows);
  ConvChannel own(p.conv, channel);
  int32_t sequence_end = -1;
  for (int32_t row = first; row < end; ++row) {
    if (row >= sequence_end) {
      const StateRows rows(p.batch, sequence_of(p.batch, row));
      sequence_end = rows.end;
      const int32_t inputs = min(p.conv.width - 1, row - rows.begin);
      if (inputs + 1 < p.conv.width) own.load(rows.before(p.states, p.layer), p.conv.channels, channel);
      for (int32_t earlier = row - inputs; earlier < row; ++earlier) own.push(Op::input(p, earlier, channel));
    }
    own.push(Op::input(p, row, channel));
    Op::store(p, row, channel, own.sum());
  }
}

/// Grid: [blocks of channels, sequences, slices of pages]: stores the states that the batch keeps. The first slice
/// alone reads the state before the batch, since one of the pages may hold it.
template <class Op>
__global__ void __launch_bounds__(kConvThreads) conv_states_kernel(ConvParams<typename Op::Output> p) {
  const auto sequence = static_cast<int32_t>(blockIdx.y);
  const auto channel = static_cast<int32_t>(blockIdx.x * kConvThreads + threadIdx.x);
  if (sequence >= *p.batch.sequence_count || channel >= p.conv.channels) return;
  const StateRows rows(p.batch, sequence);
  if (rows.begin == rows.end) return;
  const auto slice = static_cast<int32_t>(blockIdx.z);
  const int32_t page_size = p.states.page_size;
  const int32_t early_end = min(rows.kept_end, rows.begin + p.conv.width - 1);  // rows whose states need earlier inputs
  ConvChannel own(p.conv, channel);
  if (slice == 0) {
    own.load(rows.before(p.states, p.layer), p.conv.channels, channel);
    for (int32_t row = rows.begin; row < early_end; ++row) {
      own.push(Op::input(p, row, channel));
      if (float* const state = rows.after(p.states, p.layer, row)) own.store(state, p.conv.channels, channel);
    }
  }
  const int32_t last_page = (rows.prefix + rows.kept_end - rows.begin - 1) / page_size;
  for (int32_t page = rows.prefix / page_size + slice; page <= last_page; page += static_cast<int32_t>(gridDim.z)) {
    const int32_t row = min(rows.kept_end, rows.begin + (page + 1) * page_size - rows.prefix) - 1;
    float* const state = row < early_end ? nullptr : rows.after(p.states, p.layer, row);
    if (state == nullptr) continue;
    for (int32_t earlier = row - p.conv.width + 2; earlier <= row; ++earlier) own.push(Op::input(p, earlier, channel));
    own.store(state, p.conv.channels, channel);
  }
}

template <class Op>
void run_convolution(cudaStream_t stream, const char* name, const ConvParams<typename Op::Output>& p,
                     const BatchBounds& bounds) {
  if (p.conv.width < 2 || p.conv.width > kMaxConvWidth) {
    throw std::invalid_argument(std::string(name) + ": found a convolution over " + std::to_string(p.conv.width) +
                                " tokens, wanted 2 to " + std::to_string(kMaxConvWidth));
  }
  const auto blocks = static_cast<uint32_t>(ceil_div(p.conv.channels, kConvThreads));
  const auto sequences = static_cast<uint32_t>(bounds.sequences);
  if (bounds.sequence_rows <= kWalkedRows) {
    launch<walk_conv_kernel<Op>>({name, dim3(blocks, sequences), dim3(kConvThreads)}, stream, p);
    return;
  }
  launch<segment_conv_kernel<Op>>({name, dim3(blocks, ceil_div(p.rows, kWalkedRows)), dim3(kConvThreads)}, stream, p);
  const auto pages = static_cast<uint32_t>(bounds.sequence_rows / p.states.page_size + 1);
  launch<conv_states_kernel<Op>>(
      {name, dim3(blocks, sequences, pages < kMaxPageSlices ? pages : kMaxPageSlices), dim3(kConvThreads)}, stream, p);
}

}  // namespace
}  // namespace millrace::cuda
