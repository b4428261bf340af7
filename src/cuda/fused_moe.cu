#include "cuda/activation.cuh"
#include "cuda/dequantizing_gemm.cuh"
#include "cuda/expert_choice.cuh"
#include "cuda/gemm.cuh"

namespace millrace::cuda {
namespace {

/// Maximum scratch; larger batches are processed in parts.
constexpr size_t kMaxScratchBytes = size_t{256} << 20;
constexpr int kSumThreads = 128;
constexpr int kSumFeatures = 4;  ///< per thread

/// Grid: one warp per row. The last block to finish builds the lists. Serves up to 32 · kPerLane experts.
template <int kPerLane, bool kIsPlain>
__global__ void __launch_bounds__(kRouteThreads, 1) route_kernel(RouteParams route) {
  const int32_t rows = valid_rows(route.batch, route.first_row, route.row_stride);
  const auto row = static_cast<int32_t>(blockIdx.x * kRouteWarps + threadIdx.x / kLanes);
  if (row < rows) {
    if constexpr (kIsPlain) {
      route_row<kPerLane>(route, row);
    } else {
      route_row_by_options<kPerLane>(route, row);
    }
  }
  if (!is_last_block(route.lists.arrived)) return;
  group_pairs_by_expert<kPerLane>(route, rows);
  __syncthreads();
  list_tiles(route);
}

/// The pairs of a tile, in shared memory.
struct ListedRows {
  const int32_t* sources;
  const int32_t* targets;
  int32_t count;
  __device__ bool has(int token) const { return token < count; }
  __device__ int32_t source(int token) const { return sources[token]; }
  __device__ int32_t target(int token) const { return targets[token]; }
};

struct ExpertGemmParams {
  RouteLists lists;
  int32_t row_stride = 0;     ///< RouteParams::row_stride
  int32_t pairs_per_row = 1;  ///< pair p reads row p / pairs_per_row of x and writes row p of out
  int32_t feature_tiles = 0;
  int32_t first_expert = 0;       ///< whose weights come first
  const float* biases = nullptr;  ///< of gate and up, or of down, expert by expert; or null
  tensor::GatedActivation activation = {};
  bool squares = false;            ///< sums x become max(x, 0)²
  const float* weights = nullptr;  ///< of the pairs, which multiply the sums; or null
};

/// Makes outputs of the sums of a pair of row and expert: by the activation of an expert's features, whose biases
/// [gate | up] may be null, by the squared ReLU, or of the sum itself.
struct ExpertActivation {
  tensor::GatedActivation function;
  const float* biases = nullptr;
  int32_t features = 0;
  bool squares = false;
  const float* weights = nullptr;
  __device__ float join(float gate, float up, int32_t feature, int32_t pair) const {
    const float g = pass_weight(gate, pair);
    const float u = pass_weight(up, pair);
    if (biases == nullptr || feature >= features) return activate(function, g, u);
    return activate(function, g + biases[feature], u + biases[features + feature]);
  }
  __device__ float pass(float sum, int32_t pair) const {
    const float x = pass_weight(sum, pair);
    return squares ? relu_squared_of(x) : x;
  }

 private:
  __device__ float pass_weight(float sum, int32_t pair) const { return weights == nullptr ? sum : sum * weights[pair]; }
};

/// Grid: [bound of tiles · feature tiles]. Multiplies each expert's rows. The blocks of an expert are consecutive,
/// ordered by the weights they read, so that weights and rows come from the cache. One block adds all splits of a sum,
/// since experts are many.
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kMinBlocks) expert_gemm_kernel(GemmParams p, ExpertGemmParams which) {
  const auto block = static_cast<int32_t>(blockIdx.x);
  const int32_t listed = block / which.feature_tiles;
  const ExpertTiles tiles = which.lists.tiles[listed];  // read together with the count, not after it
  if (listed >= *which.lists.tile_count) return;
  const int32_t own_block = block - tiles.first * which.feature_tiles;
  const int32_t first_panel = own_block / tiles.count * T::kPanelCount;
  const int32_t first = own_block % tiles.count * T::kTokenCount;
  const int32_t count = min(T::kTokenCount, tiles.pairs - first);
  const int32_t* const pairs = which.lists.pairs + static_cast<size_t>(tiles.expert) * which.row_stride + first;
  auto* const sources = reinterpret_cast<int32_t*>(shared_memory() + T::kSharedBytes);
  int32_t* const targets = sources + T::kTokenCount;
  for (int token = threadIdx.x; token < T::kTokenCount; token += T::kThreads) {
    const int32_t pair = token < count ? pairs[token] : 0;
    sources[token] = pair / which.pairs_per_row;
    targets[token] = pair;
  }
  __syncthreads();
  const ListedRows rows{sources, targets, count};
  const auto own = static_cast<size_t>(tiles.expert - which.first_expert);
  p.weight += own * p.panels * ceil_div(p.inputs, kStepInputs) * step_bytes(p.format);
  auto* const sums = reinterpret_cast<float*>(shared_memory());
  compute_tile<T>(p, rows, first_panel, 0, true, sums);
  const bool is_gated = p.epilogue == Epilogue::kSiluMul;
  const float* const biases = which.biases == nullptr ? nullptr : which.biases + own * p.features * (is_gated ? 2 : 1);
  if (!is_gated) p.bias = biases;
  run_epilogue<T>(p, rows, first_panel * kPanelRows, sums,
                  ExpertActivation{.function = which.activation,
                                   .biases = biases,
                                   .features = p.features,
                                   .squares = which.squares,
                                   .weights = which.weights});
}

/// The sum of a row's experts over the shards. Neighbouring shards a < b of a row meet in the subtree of 2^w shards, w
/// being the bits of a ^ b; before b starts, all narrower subtrees are complete.
class ShardTree {
 public:
  __device__ void add(int32_t shard, float weight, const float (&term)[kSumFeatures]) {
    if (shard != shard_) start(shard);
#pragma unroll
    for (int j = 0; j < kSumFeatures; ++j) sum_[j] += weight * term[j];
  }
  /// Adds the whole sum to `total`.
  __device__ void finish(float (&total)[kSumFeatures]) {
    while (depth_ > 0) complete();
#pragma unroll
    for (int j = 0; j < kSumFeatures; ++j) total[j] += sum_[j];
  }

 private:
  __device__ void start(int32_t shard) {
    if (shard_ >= 0) {
      const auto differs = static_cast<uint32_t>(shard ^ shard_);
      const uint32_t meets = differs >= 4 ? 4 : differs >= 2 ? 2 : 1;
      const uint32_t narrower = levels_ & (meets - 1);
      for (int32_t left = __popc(narrower); left > 0; --left) complete();
      levels_ = (levels_ & ~narrower) | meets;
      for (int j = 0; j < kSumFeatures; ++j) {
        waiting_[depth_][j] = sum_[j];
        sum_[j] = 0.0f;
      }
      ++depth_;
    }
    shard_ = shard;
  }
  __device__ void complete() {
    --depth_;
    for (int j = 0; j < kSumFeatures; ++j) sum_[j] += waiting_[depth_][j];
  }

  float sum_[kSumFeatures] = {};
  float waiting_[3][kSumFeatures];
  int depth_ = 0;
  uint32_t levels_ = 0;  // bit w - 1: a subtree waits for the other half of 2^w shards
  int32_t shard_ = -1;
};

/// Reads up to four features, at once where they are `whole`.
__device__ inline void read_features(const float* from, int32_t count, bool whole, float (&values)[kSumFeatures]) {
  if (whole) {
    const float4 read = *reinterpret_cast<const float4*>(from);
    values[0] = read.x;
    values[1] = read.y;
    values[2] = read.z;
    values[3] = read.w;
    return;
  }
  for (int j = 0; j < kSumFeatures; ++j) values[j] = j < count ? from[j] : 0.0f;
}

/// Writes to `shards` [per_row] the shard of each of a row's experts, in ascending order, or -1 for one of another
/// device.
__device__ inline void find_shards(const RouteLists& lists, const DeviceExperts& experts, int32_t row_stride,
                                   int32_t row, int8_t* shards) {
  for (int32_t word = threadIdx.x; word * kLanes < experts.count; word += kSumThreads) {
    const ExpertMask chosen = lists.choices[static_cast<size_t>(word) * row_stride + row];
    uint32_t slot = chosen.before;
    for (uint32_t bits = chosen.bits; bits != 0; bits &= bits - 1, ++slot) {
      const int32_t expert = word * kLanes + __ffs(bits) - 1;
      int32_t shard = -1;
      if (expert >= experts.first() && expert < experts.end()) {
        shard = 0;
        while (shard + 1 < experts.shards.count && experts.shards.border[shard + 1] <= expert) ++shard;
      }
      shards[slot] = static_cast<int8_t>(shard);
    }
  }
  __syncthreads();
}

/// Grid: [rows, blocks of features]. Adds the outputs of a row's experts to its residual: in a shard in ascending order
/// of experts, the shards in a binary tree.
__global__ void __launch_bounds__(kSumThreads)
    sum_experts_kernel(const float* outputs, RouteLists lists, DeviceExperts experts, DeviceBatch batch,
                       int32_t first_row, float* hidden) {
  const auto row = static_cast<int32_t>(blockIdx.x);
  const auto row_stride = static_cast<int32_t>(gridDim.x);
  if (row >= valid_rows(batch, first_row, row_stride)) return;
  auto* const shards = reinterpret_cast<int8_t*>(shared_memory());
  find_shards(lists, experts, row_stride, row, shards);
  const int32_t width = experts.hidden;
  const int32_t feature = static_cast<int32_t>(blockIdx.y * kSumThreads + threadIdx.x) * kSumFeatures;
  if (feature >= width) return;
  const float* const weights = lists.weights + static_cast<size_t>(row) * experts.per_row;
  outputs += static_cast<size_t>(row) * experts.per_row * width + feature;
  hidden += static_cast<size_t>(row) * width + feature;
  const bool whole = width % kSumFeatures == 0;
  const int32_t count = min(kSumFeatures, width - feature);
  ShardTree tree;
#pragma unroll 4
  for (int32_t i = 0; i < experts.per_row; ++i) {
    if (shards[i] < 0) continue;
    const float* const from = outputs + static_cast<size_t>(i) * width;
    float term[kSumFeatures];
    read_features(from, count, whole, term);
    tree.add(shards[i], experts.weighs_inputs ? 1.0f : weights[i], term);
  }
  float total[kSumFeatures];
  read_features(hidden, count, whole, total);
  tree.finish(total);
  if (whole) {
    *reinterpret_cast<float4*>(hidden) = float4{total[0], total[1], total[2], total[3]};
    return;
  }
  for (int j = 0; j < count; ++j) hidden[j] = total[j];
}

/// Returns the maximum of tiles for `pairs` pairs, whatever their distribution over the experts.
size_t max_tiles(const DeviceExperts& experts, size_t pairs, int32_t tokens) {
  const auto count = static_cast<size_t>(experts.count);
  const size_t busy = count < pairs ? count : pairs;
  return busy + (pairs - busy) / static_cast<size_t>(tokens);
}

/// Returns whether the weights are not in bf16, which holds for all of them or none.
bool is_coded(const DeviceExperts& experts) {
  return experts.gate_up_format.codes != WeightCodes::kBf16;
}

/// Returns a tile width of twice the mean, so that most experts' rows fill one tile and its weight is read once.
int32_t expert_tile_tokens(const DeviceExperts& experts, int32_t rows) {
  const int32_t twice = 2 * ceil_div(rows * experts.per_row, experts.count);
  const int32_t wanted = twice < rows ? twice : rows;
  return is_coded(experts) ? dequantizing_tile_tokens(experts.by, wanted) : tile_tokens(wanted);
}

/// The offsets of the parts of the scratch for `rows` rows. The counter is first, at an offset that no other part ever
/// uses.
struct Layout {
  Layout(const DeviceExperts& experts, int32_t rows) {
    const auto of_rows = static_cast<size_t>(rows);
    const size_t pairs_of_rows = of_rows * static_cast<size_t>(experts.per_row);
    arrived = take(sizeof(uint32_t));
    tile_count = take(sizeof(int32_t));
    choices = take(of_rows * static_cast<size_t>(ceil_div(experts.count, kLanes)) * sizeof(ExpertMask));
    weights = take(pairs_of_rows * sizeof(float));
    pairs = take(of_rows * static_cast<size_t>(experts.count) * sizeof(int32_t));
    tiles = take(max_tiles(experts, pairs_of_rows, tile_tokens(1)) * sizeof(ExpertTiles));
    activated = take(pairs_of_rows * static_cast<size_t>(experts.intermediate) * sizeof(uint16_t));
    outputs = take(pairs_of_rows * static_cast<size_t>(experts.hidden) * sizeof(float));
  }
  size_t bytes = 0;
  size_t arrived, tile_count, choices, weights, pairs, tiles, activated, outputs;

 private:
  size_t take(size_t count) {
    constexpr size_t kAlignment = 256;
    const size_t begin = bytes;
    bytes = (begin + count + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  }
};

/// Returns the rows, at most `rows`, that fit in `bytes` of scratch.
int32_t rows_in(const DeviceExperts& experts, int32_t rows, size_t bytes) {
  if (Layout(experts, rows).bytes <= bytes) return rows;
  int32_t fit = 0;
  for (int32_t too_many = rows; too_many - fit > 1;) {
    const int32_t middle = fit + (too_many - fit) / 2;
    (Layout(experts, middle).bytes <= bytes ? fit : too_many) = middle;
  }
  return fit;
}

void check_experts(const DeviceExperts& experts) {
  if (experts.count < 1 || experts.count > kMaxExperts || experts.per_row < 1 || experts.per_row > experts.count) {
    throw std::invalid_argument("fused_moe: " + std::to_string(experts.per_row) + " of " +
                                std::to_string(experts.count) + " experts per row, wanted at least one of at most " +
                                std::to_string(kMaxExperts));
  }
  const DeviceRouting& routing = experts.routing;
  if (routing.group_count < 1 || experts.count % routing.group_count != 0 || routing.groups_per_row < 1 ||
      routing.groups_per_row > routing.group_count ||
      experts.count / routing.group_count * routing.groups_per_row < experts.per_row) {
    throw std::invalid_argument("fused_moe: " + std::to_string(experts.per_row) + " experts per row from " +
                                std::to_string(routing.groups_per_row) + " of " + std::to_string(routing.group_count) +
                                " groups of " + std::to_string(experts.count) +
                                " experts together, wanted groups of equal size with enough experts for a row");
  }
}

/// The inputs and buffers of one part.
struct MoePart {
  cudaStream_t stream = nullptr;
  const uint16_t* x = nullptr;    // [rows, hidden]
  const float* logits = nullptr;  // [rows, experts]
  const DeviceExperts& experts;
  const DeviceBatch& batch;
  int32_t first_row = 0;
  int32_t rows = 0;
  float* hidden = nullptr;  // [rows, hidden]
  RouteLists lists = {};
  uint16_t* activated = nullptr;  // [pairs, intermediate]
  float* outputs = nullptr;       // [pairs, hidden]

  void assign_scratch(std::byte* scratch) {
    const Layout at(experts, rows);
    lists = {.arrived = reinterpret_cast<uint32_t*>(scratch + at.arrived),
             .tile_count = reinterpret_cast<int32_t*>(scratch + at.tile_count),
             .choices = reinterpret_cast<ExpertMask*>(scratch + at.choices),
             .weights = reinterpret_cast<float*>(scratch + at.weights),
             .pairs = reinterpret_cast<int32_t*>(scratch + at.pairs),
             .tiles = reinterpret_cast<ExpertTiles*>(scratch + at.tiles)};
    activated = reinterpret_cast<uint16_t*>(scratch + at.activated);
    outputs = reinterpret_cast<float*>(scratch + at.outputs);
  }
};

void launch_route(const MoePart& part, int32_t tokens) {
  int32_t per_warp = 1;
  while (per_warp * kRouteWarps < part.experts.count) per_warp *= 2;
  const RouteParams route{.logits = part.logits,
                          .experts = part.experts,
                          .batch = part.batch,
                          .first_row = part.first_row,
                          .row_stride = part.rows,
                          .tile_tokens = tokens,
                          .experts_per_warp = per_warp,
                          .lists = part.lists};
  const LaunchShape shape{"route", dim3(ceil_div(part.rows, kRouteWarps)), dim3(kRouteThreads), sizeof(RouteShared)};
  constexpr int kFew = 4;  // kept in registers; more would slow down each row
  const auto launch_for = [&](auto plain) {
    constexpr bool kIsPlain = decltype(plain)::value;
    if (part.experts.count <= kFew * kLanes) {
      launch<route_kernel<kFew, kIsPlain>>(shape, part.stream, route);
    } else {
      launch<route_kernel<kMaxExperts / kLanes, kIsPlain>>(shape, part.stream, route);
    }
  };
  if (part.experts.routing.is_plain) return launch_for(std::true_type{});
  launch_for(std::false_type{});
}

/// Multiplies with `gate_up` to the activated features of x, or multiplies those by down to the outputs.
template <class T>
void launch_gemm(const MoePart& part, bool gate_up) {
  const DeviceExperts& experts = part.experts;
  const int32_t features = gate_up ? experts.intermediate : experts.hidden;
  const int32_t inputs = gate_up ? experts.hidden : experts.intermediate;
  const bool is_gated = gate_up && experts.gated;
  const int32_t panels = panel_count(features, is_gated);
  const GemmParams product{.x = gate_up ? part.x : part.activated,
                           .weight = static_cast<const std::byte*>(gate_up ? experts.gate_up : experts.down),
                           .out = gate_up ? static_cast<void*>(part.activated) : part.outputs,
                           .inputs = inputs,
                           .features = features,
                           .panels = panels,
                           .splits = split_count(panels, step_count(inputs)),
                           .epilogue = is_gated  ? Epilogue::kSiluMul
                                       : gate_up ? Epilogue::kStoreBf16
                                                 : Epilogue::kStoreF32,
                           .format = gate_up ? experts.gate_up_format : experts.down_format};
  constexpr size_t kShared = T::kSharedBytes + 2 * T::kTokenCount * sizeof(int32_t);
  static_assert(kShared <= T::kMaxSharedBytes);
  const size_t pairs = static_cast<size_t>(part.rows) * static_cast<size_t>(experts.per_row);
  const int32_t feature_tiles = ceil_div(panels, T::kPanelCount);
  const auto blocks = static_cast<uint32_t>(max_tiles(experts, pairs, T::kTokenCount)) * feature_tiles;
  launch<expert_gemm_kernel<T>>(
      {.name = "expert_gemm", .grid = dim3(blocks), .block = dim3(T::kThreads), .shared_bytes = kShared}, part.stream,
      product,
      ExpertGemmParams{.lists = part.lists,
                       .row_stride = part.rows,
                       .pairs_per_row = gate_up ? experts.per_row : 1,
                       .feature_tiles = feature_tiles,
                       .first_expert = experts.first(),
                       .biases = gate_up ? experts.gate_up_biases : experts.down_biases,
                       .activation = experts.activation,
                       .squares = gate_up && !experts.gated,
                       .weights = gate_up && experts.weighs_inputs ? part.lists.weights : nullptr});
}

void run_part(const MoePart& part) {
  const DeviceExperts& experts = part.experts;
  const int32_t tokens = expert_tile_tokens(experts, part.rows);
  launch_route(part, tokens);
  const auto multiply = [&](auto tiling) {
    launch_gemm<decltype(tiling)>(part, true);
    launch_gemm<decltype(tiling)>(part, false);
  };
  if (is_coded(experts)) {
    with_dequantizing_tiling(experts.by, tokens, multiply);
  } else {
    with_tiling(experts.by, tokens, multiply);
  }
  launch<sum_experts_kernel>({"sum_experts", dim3(part.rows, ceil_div(experts.hidden, kSumThreads * kSumFeatures)),
                              dim3(kSumThreads), static_cast<size_t>(experts.per_row)},
                             part.stream, part.outputs, part.lists, experts, part.batch, part.first_row, part.hidden);
}

}  // namespace

size_t fused_moe_workspace_bytes(const DeviceExperts& experts, int32_t rows) {
  check_experts(experts);
  const size_t least = Layout(experts, 1).bytes;
  const size_t most = least < kMaxScratchBytes ? kMaxScratchBytes : least;
  const size_t whole = Layout(experts, rows).bytes;
  return whole < most ? whole : most;
}

void fused_moe(cudaStream_t stream, const void* x, const float* router_logits, const DeviceExperts& experts,
               const DeviceBatch& batch, int32_t rows, float* hidden, void* workspace, size_t workspace_bytes) {
  check_experts(experts);
  const size_t useful = fused_moe_workspace_bytes(experts, rows);
  const int32_t most = rows_in(experts, rows, workspace_bytes < useful ? workspace_bytes : useful);
  if (rows > 0 && most == 0) {
    throw std::invalid_argument("fused_moe: scratch of " + std::to_string(workspace_bytes) + " bytes, wanted " +
                                std::to_string(Layout(experts, 1).bytes) + " for one row");
  }
  for (int32_t first = 0; first < rows; first += most) {
    const int32_t count = most < rows - first ? most : rows - first;
    const auto row = static_cast<size_t>(first);
    const auto width = static_cast<size_t>(experts.hidden);
    MoePart part{.stream = stream,
                 .x = static_cast<const uint16_t*>(x) + row * width,
                 .logits = router_logits + row * static_cast<size_t>(experts.count),
                 .experts = experts,
                 .batch = batch,
                 .first_row = first,
                 .rows = count,
                 .hidden = hidden + row * width};
    part.assign_scratch(static_cast<std::byte*>(workspace));
    run_part(part);
  }
}

}  // namespace millrace::cuda
