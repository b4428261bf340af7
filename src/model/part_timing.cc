#include "model/part_timing.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <future>
#include <map>
#include <utility>

#include "model/stage_model.h"

namespace millrace::model {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kPageSize = 64;
/// Layers timed per kind: several, so that the weights of one do not stay in the cache.
constexpr int32_t kLayersPerKind = 3;
constexpr size_t kMinRounds = 3;
constexpr size_t kMaxRounds = 25;
constexpr std::chrono::milliseconds kRoundsBudget{1000};

/// Returns the processor time of all threads of this process.
double processor_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

/// The first layer that costs the same.
using LayerKind = int32_t;

LayerKind kind_of(const ModelConfig& config, int32_t layer) {
  const auto found = std::ranges::find(config.layers, config.layer(layer));
  return static_cast<LayerKind>(found - config.layers.begin());
}

int32_t pages_for(int32_t tokens) {
  return (tokens + kPageSize - 1) / kPageSize;
}

/// A batch of `sequences` sequences with `rows` new tokens each after `prefix` others, each with pages of its own.
class Batch {
 public:
  Batch(int32_t sequences, int32_t rows, int32_t prefix, int32_t vocab_size)
      : tokens_(static_cast<size_t>(sequences * rows)) {
    const int32_t pages_each = pages_for(prefix + rows);
    for (int32_t s = 0; s <= sequences; ++s) {
      row_begin_.push_back(s * rows);
      page_begin_.push_back(s * pages_each);
      if (s < sequences) last_rows_.push_back((s + 1) * rows - 1);
    }
    prefix_.assign(static_cast<size_t>(sequences), prefix);
    for (int32_t page = 0; page < sequences * pages_each; ++page) pages_.emplace_back(static_cast<uint32_t>(page));
    for (size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = static_cast<TokenId>(i) % vocab_size;
  }
  [[nodiscard]] tensor::BatchLayout layout() const {
    return {.row_begin = row_begin_, .prefix = prefix_, .page_begin = page_begin_, .pages = pages_};
  }
  [[nodiscard]] std::span<const TokenId> tokens() const { return tokens_; }
  [[nodiscard]] std::span<const int32_t> last_rows() const { return last_rows_; }
  [[nodiscard]] int32_t page_count() const { return page_begin_.back(); }

 private:
  std::vector<TokenId> tokens_;      // [rows]
  std::vector<int32_t> row_begin_;   // [sequences + 1]
  std::vector<int32_t> prefix_;      // [sequences]
  std::vector<int32_t> page_begin_;  // [sequences + 1]
  std::vector<int32_t> last_rows_;   // [sequences]
  std::vector<PageId> pages_;
};

/// The parts of a model, each loaded by itself, and the seconds that they take.
class PartTimer {
 public:
  /// Seconds of one batch, one entry per round.
  struct Times {
    std::vector<double> embedding;
    std::vector<double> head;
    std::map<LayerKind, std::vector<double>> layers;
  };

  PartTimer(const Checkpoint& checkpoint, const ModelConfig& config, tensor::Backend& backend, StageLimits limits,
            const std::function<void()>& between)
      : checkpoint_(checkpoint), config_(config), backend_(backend), limits_(limits), between_(between) {}

  Result<void> load(int32_t page_count) {
    const LoadOptions loading{.progress = [this](const LoadProgress&) { between_(); }};
    auto ends = StageModel::load(checkpoint_, config_, {{0, 0}, true, true}, backend_, limits_, loading);
    if (ends.has_error()) return ends.error();
    ends_ = std::move(*ends);
    std::map<LayerKind, int32_t> taken;
    for (int32_t layer = 0; layer < config_.layer_count(); ++layer) {
      const LayerKind kind = kind_of(config_, layer);
      if (++taken[kind] > kLayersPerKind) continue;
      const StageSpan span{{layer, layer + 1}, false, false};
      auto loaded = StageModel::load(checkpoint_, config_, span, backend_, limits_, loading);
      if (loaded.has_error()) return loaded.error();
      (*loaded)->allocate_cache(kPageSize, page_count);
      layers_.push_back({kind, std::move(*loaded)});
    }
    hidden_ = ends_->allocate_hidden();
    return {};
  }

  /// Times both batches in alternating rounds, so that other load on the machine distorts both alike.
  std::pair<Times, Times> time(const Batch& prompt, const Batch& step) {
    Times unsteady;  // the first rounds touch fresh memory
    run_round(prompt, unsteady);
    run_round(step, unsteady);
    std::pair<Times, Times> times;
    const Clock::time_point end = Clock::now() + kRoundsBudget;
    for (size_t round = 0; round < kMinRounds || (round < kMaxRounds && Clock::now() < end); ++round) {
      run_round(prompt, times.first);
      run_round(step, times.second);
    }
    return times;
  }

 private:
  struct TimedLayer {
    LayerKind kind;
    std::unique_ptr<StageModel> model;
  };

  void run_round(const Batch& batch, Times& times) {
    const tensor::BatchLayout layout = batch.layout();
    const tensor::Matrix hidden = ends_->hidden_view(hidden_, layout.row_count());
    times.embedding.push_back(seconds_of([&] { ends_->forward({batch.tokens(), layout, hidden}); }));
    for (const TimedLayer& layer : layers_)
      times.layers[layer.kind].push_back(seconds_of([&] { layer.model->forward({batch.tokens(), layout, hidden}); }));
    if (!config_.has_output_head) {
      times.head.push_back(seconds_of([&] { ends_->normed_rows(hidden, batch.last_rows(), [](size_t, auto) {}); }));
      return;
    }
    const tensor::SamplingParams params;
    const std::vector<tensor::SampleSpec> specs(batch.last_rows().size(), tensor::SampleSpec{.params = &params});
    std::vector<tensor::SampleResult> results(specs.size());
    times.head.push_back(seconds_of([&] {
      ends_->logits(hidden, batch.last_rows(), [&](size_t first, tensor::Matrix logits) {
        const auto count = static_cast<size_t>(logits.rows);
        backend_.sample(logits, config_.vocab_size, std::span(specs).subspan(first, count),
                        std::span(results).subspan(first, count));
      });
    }));
  }

  double seconds_of(const std::function<void()>& work) {
    between_();
    std::promise<void> done;
    const Clock::time_point begin = Clock::now();
    const double processor_begin_s = processor_seconds();
    backend_.submit(work, [&done](std::exception_ptr failure) {
      if (failure)
        done.set_exception(std::move(failure));
      else
        done.set_value();
    });
    done.get_future().get();
    const double passed_s = std::chrono::duration<double>(Clock::now() - begin).count();
    if (!backend_.is_host()) return passed_s;
    // While work is under way at least one thread computes, unless other load has taken its processor.
    return std::min(passed_s, processor_seconds() - processor_begin_s);
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  tensor::Backend& backend_;
  const StageLimits limits_;
  const std::function<void()>& between_;
  std::unique_ptr<StageModel> ends_;  // embedding and head, no layers
  std::vector<TimedLayer> layers_;
  tensor::Buffer hidden_;  // [limits.max_batch_tokens, hidden]
};

double median(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
  std::ranges::nth_element(times, middle);
  return *middle;
}

/// Returns the median time of each part. A single round may be too short: the processor time of a busy machine's
/// threads is not always accounted when it is read.
PartCosts typical(const PartTimer::Times& times, const ModelConfig& config) {
  PartCosts costs{.layers = {}, .embedding = median(times.embedding), .head = median(times.head)};
  for (int32_t layer = 0; layer < config.layer_count(); ++layer) {
    costs.layers.push_back(median(times.layers.at(kind_of(config, layer))));
  }
  return costs;
}

}  // namespace

Result<WorkCosts> time_parts(const Checkpoint& checkpoint, const ModelConfig& config, tensor::Backend& backend,
                             const ReferenceLoad& load, const std::function<void()>& between) {
  const Batch prompt(1, load.prompt_tokens, 0, config.vocab_size);
  const Batch step(load.decode_rows, 1, load.prompt_tokens, config.vocab_size);
  const StageLimits limits{std::max(load.prompt_tokens, load.decode_rows), load.decode_rows};
  PartTimer timer(checkpoint, config, backend, limits, between);
  RETURN_IF_ERROR(timer.load(std::max(prompt.page_count(), step.page_count())));
  const auto [of_prompt, of_step] = timer.time(prompt, step);
  return WorkCosts{.prefill = typical(of_prompt, config), .decode = typical(of_step, config)};
}

}  // namespace millrace::model
