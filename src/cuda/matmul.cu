#include "cuda/wide_gemm.cuh"

namespace millrace::cuda {
namespace {

int32_t multiprocessor_count() {
#if defined(MILLRACE_EMULATED_CUDA)
  return 4;
#else
  int device = 0;
  int count = 0;
  check_launch("product", "cudaGetDevice", cudaGetDevice(&device));
  check_launch("product", "cudaDeviceGetAttribute",
               cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
#endif
}

/// Rows up to which the splits of a sum may go to different blocks. It bounds the workspace.
constexpr int32_t kMaxSplitRows = 256;
/// Counters of blocks that have arrived, of which a product uses one or two per tile.
constexpr int32_t kCounters = 512;
constexpr size_t kCounterBytes = kCounters * sizeof(uint32_t);

struct Operands {
  const void* x = nullptr;
  const DeviceWeight& weight;
  const float* bias = nullptr;
  int32_t rows = 0;
  void* out = nullptr;
  Epilogue epilogue = Epilogue::kStoreF32;
  void* workspace = nullptr;
};

int32_t splits_of_weight(const DeviceWeight& weight) {
  return split_count(panel_count(weight.out_features, weight.gate_up), step_count(weight.in_features));
}

GemmParams params_of(const Operands& given) {
  const DeviceWeight& weight = given.weight;
  return {.x = static_cast<const uint16_t*>(given.x),
          .weight = static_cast<const std::byte*>(weight.data),
          .bias = given.bias,
          .out = given.out,
          .partials = reinterpret_cast<float*>(static_cast<std::byte*>(given.workspace) + kCounterBytes),
          .arrived = static_cast<uint32_t*>(given.workspace),
          .rows = given.rows,
          .inputs = weight.in_features,
          .features = weight.out_features,
          .panels = panel_count(weight.out_features, weight.gate_up),
          .splits = splits_of_weight(weight),
          .epilogue = given.epilogue};
}

template <class T>
void launch_gemm(cudaStream_t stream, const Operands& given) {
  const GemmParams product = params_of(given);
  const int32_t token_tiles = ceil_div(given.rows, T::kTokenCount);
  const int32_t feature_tiles = ceil_div(product.panels, T::kPanelCount);
  const bool divides = product.splits > 1 && given.rows <= kMaxSplitRows && token_tiles * feature_tiles <= kCounters;
  // The word after the tile of sums tells a block's threads whether they are the last block.
  constexpr size_t kShared = T::kSharedBytes > T::kSumBytes + 16 ? T::kSharedBytes : T::kSumBytes + 16;
  static_assert(kShared <= T::kMaxSharedBytes);
  launch<gemm_kernel<T>>({.name = "product",
                          .grid = dim3(token_tiles, feature_tiles, divides ? product.splits : 1),
                          .block = dim3(T::kThreads),
                          .shared_bytes = kShared},
                         stream, product);
}

/// A way to divide a product into tiles.
struct WidePlan {
  int32_t tokens = 0;
  WideGrid grid;
  int64_t time = INT64_MAX;
};

/// Returns the plan that takes the least time by a simple model. Results do not depend on it.
WidePlan plan_wide(const GemmParams& product, int32_t multiprocessors) {
  constexpr int32_t kFixedTokens = 32;  // the time of a step that does not depend on its tokens
  const int32_t steps = step_count(product.inputs);
  const int32_t pairs = ceil_div(product.panels, kWidePanels * kClusterBlocks);
  WidePlan best;
  for (const int32_t tokens : {64, 128, 192, 256}) {
    const int32_t tiles = ceil_div(product.rows, tokens);
    for (const bool divides : {false, true}) {
      if (tokens == 256 && product.splits > 1) continue;
      // Scratch has room for tiles of up to 128 tokens.
      if (divides && (product.splits == 1 || product.rows > kMaxSplitRows || tokens > 128)) continue;
      if (divides && tiles * pairs * kClusterBlocks * kWidePanels > kCounters) continue;
      const int32_t block_steps = divides ? ceil_div(steps, product.splits) : steps;
      const int64_t blocks = int64_t{tiles} * pairs * kClusterBlocks * (divides ? product.splits : 1);
      const int64_t time = steps_in_waves(blocks, block_steps, multiprocessors) * (tokens + kFixedTokens);
      if (time < best.time) {
        best = {
            .tokens = tokens, .grid = {.token_tiles = tiles, .feature_pairs = pairs, .divides = divides}, .time = time};
      }
    }
  }
  return best;
}

template <class T>
void launch_wide(cudaStream_t stream, const GemmParams& product, const WideGrid& grid, int32_t multiprocessors) {
  const int64_t turns = int64_t{grid.token_tiles} * grid.feature_pairs * (grid.divides ? product.splits : 1);
  const int64_t clusters = multiprocessors * T::kMinBlocks / kClusterBlocks;
  const auto blocks = static_cast<uint32_t>((turns < clusters ? turns : clusters) * kClusterBlocks);
  launch<wide_gemm_kernel<T>>(
      {.name = "product",
       .grid = dim3(blocks),
       .block = dim3(T::kThreads),
       .shared_bytes = T::kSharedBytes,
       .cluster_blocks = kClusterBlocks},
      stream, product,
      make_row_tiles(product.x, product.rows, product.inputs, kStepInputs, T::kTokenCount / kClusterBlocks), grid);
}

void run_wide(cudaStream_t stream, const Operands& given) {
  const GemmParams product = params_of(given);
  const int32_t multiprocessors = multiprocessor_count();
  const WidePlan plan = plan_wide(product, multiprocessors);
  switch (plan.tokens) {
    case 64: return launch_wide<WideTokens64>(stream, product, plan.grid, multiprocessors);
    case 128: return launch_wide<WideTokens128>(stream, product, plan.grid, multiprocessors);
    case 192: return launch_wide<WideTokens192>(stream, product, plan.grid, multiprocessors);
    default: return launch_wide<WideTokens256>(stream, product, plan.grid, multiprocessors);
  }
}

void run_gemm(cudaStream_t stream, const Operands& given) {
  constexpr int32_t kFewRows = 32;
  constexpr int32_t kRowAlignment = 8;  // inputs, for the copy engine
  const DeviceWeight& weight = given.weight;
  if (weight.by == MatrixInstruction::kWgmma && given.rows > kFewRows && weight.in_features % kRowAlignment == 0) {
    return run_wide(stream, given);
  }
  with_tiling(weight.by, tile_tokens(given.rows), [&](auto tiling) { launch_gemm<decltype(tiling)>(stream, given); });
}

void check_gate_up(const char* op, const DeviceWeight& weight, bool wanted) {
  if (weight.gate_up == wanted) return;
  throw std::invalid_argument(std::string(op) + ": found a weight packed " + (wanted ? "as rows" : "as gate and up") +
                              ", wanted the other kind");
}

}  // namespace

bool has_wgmma() {
#if defined(MILLRACE_EMULATED_CUDA)
  return true;
#elif defined(MILLRACE_SM_90A)
  int device = 0;
  int major = 0;
  int minor = 0;
  check_launch("product", "cudaGetDevice", cudaGetDevice(&device));
  check_launch("product", "cudaDeviceGetAttribute",
               cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  check_launch("product", "cudaDeviceGetAttribute",
               cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return major == 9 && minor == 0;
#else
  return false;
#endif
}

size_t matmul_workspace_bytes(int32_t out_features, int32_t in_features, bool gate_up, int32_t rows) {
  constexpr int32_t kPanelsOfCluster = kWidePanels * kClusterBlocks;
  const int32_t panels = panel_count(out_features, gate_up);
  const int32_t splits = split_count(panels, step_count(in_features));
  if (splits == 1 || rows <= 0) return kCounterBytes;
  const int32_t most = rows < kMaxSplitRows ? rows : kMaxSplitRows;
  const int32_t tokens = most > 32 ? 128 : tile_tokens(most);
  return kCounterBytes + static_cast<size_t>(splits) * static_cast<size_t>(round_up(most, tokens)) *
                             static_cast<size_t>(round_up(panels, kPanelsOfCluster)) * kPanelRows * sizeof(float);
}

void matmul(cudaStream_t stream, const void* x, const DeviceWeight& weight, const float* bias, int32_t rows, void* out,
            OutputType type, void* workspace) {
  check_gate_up("matmul", weight, false);
  const Epilogue epilogue = type == OutputType::kF32 ? Epilogue::kStoreF32 : Epilogue::kStoreBf16;
  run_gemm(
      stream,
      {.x = x, .weight = weight, .bias = bias, .rows = rows, .out = out, .epilogue = epilogue, .workspace = workspace});
}

void matmul_add(cudaStream_t stream, const void* x, const DeviceWeight& weight, const float* bias, int32_t rows,
                float* hidden, void* workspace) {
  check_gate_up("matmul_add", weight, false);
  run_gemm(stream, {.x = x,
                    .weight = weight,
                    .bias = bias,
                    .rows = rows,
                    .out = hidden,
                    .epilogue = Epilogue::kAddF32,
                    .workspace = workspace});
}

void matmul_silu_mul(cudaStream_t stream, const void* x, const DeviceWeight& weight, int32_t rows, void* out,
                     void* workspace) {
  check_gate_up("matmul_silu_mul", weight, true);
  run_gemm(stream, {.x = x,
                    .weight = weight,
                    .bias = nullptr,
                    .rows = rows,
                    .out = out,
                    .epilogue = Epilogue::kSiluMul,
                    .workspace = workspace});
}

}  // namespace millrace::cuda
