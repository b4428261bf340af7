#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "cuda/cuda_backend.h"

/// Measures the cost of waiting in a pipeline that computes prompts. Stages on equal parts of one GPU compete with as
/// many replicas, each with a part and all layers. Weights are random and equal in every layer.
namespace {

using namespace millrace;
using Clock = std::chrono::steady_clock;
using tensor::DType;
using tensor::Matrix;

constexpr int32_t kPageSize = 64;
constexpr int32_t kBuffers = 2;  // of a stage's results: one is read while the next is computed

struct Options {
  int32_t parts = 4;
  int32_t layers = 32;
  int32_t hidden = 4096;
  int32_t heads = 32;
  int32_t kv_heads = 8;
  int32_t head_dim = 128;
  int32_t intermediate = 14336;
  int32_t prompts = 8;
  int32_t prompt_tokens = 8192;
  int32_t chunk = 2048;
  bool mma_only = false;
};

/// Returns small random numbers from which every weight is made.
std::vector<uint16_t> random_numbers(const Options& options) {
  const int64_t q_width = int64_t{options.heads} * options.head_dim;
  const int64_t longest = std::max({q_width + int64_t{2} * options.kv_heads * options.head_dim,
                                    int64_t{options.intermediate}, int64_t{options.hidden}});
  std::vector<uint16_t> numbers(static_cast<size_t>(longest * std::max(q_width, int64_t{options.hidden})));
  std::minstd_rand engine(1);
  for (uint16_t& bits : numbers) {
    const auto word = static_cast<uint32_t>(engine());
    bits = static_cast<uint16_t>((word & 0x807Fu) | ((0x78u + (word >> 8) % 4) << 7));
  }
  return numbers;
}

/// `layers` layers on one part of the GPU, for one prompt at a time.
class Part {
 public:
  Part(const Options& options, int32_t index, int32_t layers, const std::vector<uint16_t>& numbers);
  /// Computes rows [prefix, prefix + chunk) of a prompt into result(turn). They come from `input` or, without one, from
  /// the common start of prompts.
  void run(int32_t prefix, const std::byte* input, size_t turn);
  [[nodiscard]] const std::byte* result(size_t turn) const { return hidden_[turn % kBuffers].data(); }
  [[nodiscard]] std::string description() const { return backend_->description(); }
  [[nodiscard]] std::chrono::duration<double> busy() const { return busy_; }
  void forget_busy() { busy_ = {}; }

  std::counting_semaphore<> filled{0};       // results to be read
  std::counting_semaphore<> free{kBuffers};  // results that have been

 private:
  void run_layer(int32_t layer, const tensor::UploadedBatch& batch, Matrix hidden);
  [[nodiscard]] Matrix matrix(const tensor::Buffer& buffer, DType dtype, int64_t cols) const {
    return {.data = buffer.data(), .dtype = dtype, .rows = options_.chunk, .cols = cols};
  }

  const Options options_;
  const int32_t layers_;
  std::unique_ptr<tensor::Backend> backend_;
  std::unique_ptr<tensor::DeviceVector> norm_, frequencies_;
  std::unique_ptr<tensor::PackedWeight> qkv_, output_, gate_up_, down_;
  std::unique_ptr<tensor::KvCache> cache_;
  std::vector<PageId> pages_;
  tensor::Buffer first_, normed_, projected_, query_, attended_, activated_;
  std::vector<tensor::Buffer> hidden_;  // [kBuffers]
  std::chrono::duration<double> busy_{};
};

Part::Part(const Options& options, int32_t index, int32_t layers, const std::vector<uint16_t>& numbers)
    : options_(options),
      layers_(layers),
      backend_(cuda::make_backend({.products = options.mma_only ? cuda::GemmChoice::kMma : cuda::GemmChoice::kAuto,
                                   .graphs = false,
                                   .part = index,
                                   .part_count = options.parts})) {
  const int64_t q_width = int64_t{options.heads} * options.head_dim;
  const int64_t qkv_width = q_width + int64_t{2} * options.kv_heads * options.head_dim;
  const auto random = [&](int64_t rows, int64_t cols) {
    return tensor::HostTensor{.name = "random",
                              .dtype = DType::kBF16,
                              .shape = {rows, cols},
                              .data = reinterpret_cast<const std::byte*>(numbers.data())};
  };
  const auto pack = [&](int64_t rows, int64_t cols) {
    const tensor::HostTensor whole = random(rows, cols);
    return backend_->pack(std::span(&whole, 1));
  };
  qkv_ = pack(qkv_width, options.hidden);
  output_ = pack(options.hidden, q_width);
  gate_up_ = backend_->pack_gate_up(random(options.intermediate, options.hidden),
                                    random(options.intermediate, options.hidden));
  down_ = pack(options.hidden, options.intermediate);
  norm_ = backend_->make_vector(std::vector<float>(static_cast<size_t>(options.hidden), 1.0f));
  std::vector<float> frequencies;
  for (int32_t i = 0; i < options.head_dim / 2; ++i) {
    frequencies.push_back(static_cast<float>(std::pow(500000.0, -2.0 * i / options.head_dim)));
  }
  frequencies_ = backend_->make_vector(frequencies);
  const int32_t page_count = (options.prompt_tokens + kPageSize - 1) / kPageSize;
  const tensor::KvCacheShape shape{layers, options.kv_heads, options.head_dim, kPageSize, page_count};
  for (int32_t page = 0; page < page_count; ++page) pages_.emplace_back(static_cast<uint32_t>(page));
  const tensor::PackedWeight* const weights[] = {qkv_.get(), output_.get(), gate_up_.get(), down_.get()};
  const tensor::AttentionShape attention{.head_count = options.heads,
                                         .kv_head_count = options.kv_heads,
                                         .head_dim = options.head_dim,
                                         .scale = 1.0f / std::sqrt(static_cast<float>(options.head_dim))};
  backend_->reserve({.rows = options.chunk,
                     .sequences = 1,
                     .context = options.prompt_tokens,
                     .cache = shape,
                     .weights = weights,
                     .attention = std::span(&attention, 1)});
  cache_ = backend_->make_kv_cache(shape);
  const auto rows = static_cast<size_t>(options.chunk);
  const auto allocate = [&](int64_t cols, size_t bytes) {
    return backend_->allocate(rows * static_cast<size_t>(cols) * bytes);
  };
  first_ = allocate(options.hidden, sizeof(float));
  for (int32_t i = 0; i < kBuffers; ++i) hidden_.push_back(allocate(options.hidden, sizeof(float)));
  normed_ = allocate(options.hidden, 2);
  projected_ = allocate(qkv_width, sizeof(float));
  query_ = allocate(q_width, 2);
  attended_ = allocate(q_width, 2);
  activated_ = allocate(options.intermediate, 2);
  std::vector<float> values(rows * static_cast<size_t>(options.hidden));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1009) * 0.001f - 0.5f;
  backend_->run_and_wait([&] { backend_->copy_in(std::as_bytes(std::span(values)), first_.data()); });
}

void Part::run(int32_t prefix, const std::byte* input, size_t turn) {
  const auto begin = Clock::now();
  const Matrix hidden = matrix(hidden_[turn % kBuffers], DType::kF32, options_.hidden);
  backend_->run_and_wait([&] {
    backend_->copy_in({input == nullptr ? first_.data() : input, hidden.bytes()}, hidden.data);
    const std::vector<int32_t> row_begin{0, options_.chunk};
    const std::vector<int32_t> page_begin{0, static_cast<int32_t>(pages_.size())};
    const tensor::UploadedBatch batch = backend_->upload(
        {.row_begin = row_begin, .prefix = std::span(&prefix, 1), .page_begin = page_begin, .pages = pages_});
    for (int32_t layer = 0; layer < layers_; ++layer) run_layer(layer, batch, hidden);
  });
  busy_ += Clock::now() - begin;
}

void Part::run_layer(int32_t layer, const tensor::UploadedBatch& batch, Matrix hidden) {
  constexpr float kEpsilon = 1e-5f;
  const tensor::AttentionShape shape{.head_count = options_.heads,
                                     .kv_head_count = options_.kv_heads,
                                     .head_dim = options_.head_dim,
                                     .scale = 1.0f / std::sqrt(static_cast<float>(options_.head_dim))};
  const int64_t q_width = int64_t{options_.heads} * options_.head_dim;
  const Matrix normed = matrix(normed_, DType::kBF16, options_.hidden);
  const Matrix projected = matrix(projected_, DType::kF32, qkv_->out_features());
  const Matrix query = matrix(query_, DType::kBF16, q_width);
  const Matrix attended = matrix(attended_, DType::kBF16, q_width);
  const Matrix activated = matrix(activated_, DType::kBF16, options_.intermediate);
  backend_->rms_norm(hidden, *norm_, kEpsilon, normed);
  backend_->matmul(normed, *qkv_, nullptr, projected);
  backend_->rotary_store_kv(projected, shape, {frequencies_.get(), options_.head_dim}, nullptr, nullptr, kEpsilon,
                            batch, *cache_, layer, query);
  backend_->attention(query, shape, batch, *cache_, layer, attended);
  backend_->matmul_add(attended, *output_, nullptr, hidden);
  backend_->rms_norm(hidden, *norm_, kEpsilon, normed);
  backend_->matmul_silu_mul(normed, *gate_up_, activated);
  backend_->matmul_add(activated, *down_, nullptr, hidden);
}

/// Runs `work` on one thread per part. Prints and returns the tokens per second over all prompts.
template <class Work>
double measure(const char* name, const Options& options, std::vector<std::unique_ptr<Part>>& parts, const Work& work) {
  const auto go = [&](int32_t prompts) {
    const auto begin = Clock::now();
    std::vector<std::jthread> threads;
    for (size_t p = 0; p < parts.size(); ++p) threads.emplace_back([&work, p, prompts] { work(p, prompts); });
    threads.clear();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  (void)go(options.parts);  // kernels are loaded, clocks go up
  for (const auto& part : parts) part->forget_busy();
  const double seconds = go(options.prompts);
  const double rate = static_cast<double>(options.prompts) * options.prompt_tokens / seconds;
  fmt::print("{:<10} {:9.0f} tokens/s, busy", name, rate);
  for (const auto& part : parts) fmt::print(" {:.3f}", part->busy().count() / seconds);
  fmt::print("\n");
  return rate;
}

std::vector<std::unique_ptr<Part>> make_parts(const Options& options, int32_t layers,
                                              const std::vector<uint16_t>& numbers) {
  std::vector<std::unique_ptr<Part>> parts;
  for (int32_t i = 0; i < options.parts; ++i) {
    parts.push_back(std::make_unique<Part>(options, i, layers, numbers));
    fmt::print("{}, {} layers\n", parts.back()->description(), layers);
  }
  return parts;
}

double measure_pipeline(const Options& options, const std::vector<uint16_t>& numbers) {
  auto parts = make_parts(options, options.layers / options.parts, numbers);
  return measure("pipeline", options, parts, [&](size_t p, int32_t prompts) {
    Part& own = *parts[p];
    Part* const before = p == 0 ? nullptr : parts[p - 1].get();
    size_t turn = 0;
    for (int32_t prompt = 0; prompt < prompts; ++prompt) {
      for (int32_t prefix = 0; prefix < options.prompt_tokens; prefix += options.chunk, ++turn) {
        if (before != nullptr) before->filled.acquire();
        own.free.acquire();
        own.run(prefix, before == nullptr ? nullptr : before->result(turn), turn);
        if (before != nullptr) before->free.release();
        (p + 1 == parts.size() ? own.free : own.filled).release();
      }
    }
  });
}

double measure_replicas(const Options& options, const std::vector<uint16_t>& numbers) {
  auto parts = make_parts(options, options.layers, numbers);
  return measure("replicas", options, parts, [&](size_t p, int32_t prompts) {
    size_t turn = 0;
    for (int32_t prompt = 0; prompt < prompts / options.parts; ++prompt) {
      for (int32_t prefix = 0; prefix < options.prompt_tokens; prefix += options.chunk) {
        parts[p]->run(prefix, nullptr, turn++);
      }
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("What waiting costs a pipeline of stages on parts of one GPU, against replicas on such parts");
  app.add_option("--parts", options.parts)->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--layers", options.layers)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--hidden", options.hidden)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--heads", options.heads)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--kv-heads", options.kv_heads)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--head-dim", options.head_dim)->check(CLI::Range(2, 256))->capture_default_str();
  app.add_option("--intermediate", options.intermediate)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--prompts", options.prompts)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--prompt-tokens", options.prompt_tokens)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--chunk", options.chunk)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_flag("--mma-only", options.mma_only, "No products by wgmma");
  CLI11_PARSE(app, argc, argv);
  if (options.layers % options.parts != 0 || options.prompts % options.parts != 0 ||
      options.prompt_tokens % options.chunk != 0) {
    fmt::print(stderr, "{} layers and {} prompts over {} parts, {} tokens in chunks of {}: wanted multiples\n",
               options.layers, options.prompts, options.parts, options.prompt_tokens, options.chunk);
    return 1;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // whoever ends it early keeps what has been measured
  try {
    const std::vector<uint16_t> numbers = random_numbers(options);
    const double pipeline = measure_pipeline(options, numbers);
    const double replicas = measure_replicas(options, numbers);
    fmt::print("pipeline / replicas {:.3f}\n", pipeline / replicas);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
