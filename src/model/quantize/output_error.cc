#include "model/quantize/output_error.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <future>
#include <numeric>

#include "model/adapt_config.h"
#include "model/checkpoint.h"
#include "model/families/read_config.h"
#include "model/stage_borders.h"
#include "model/stage_model.h"
#include "model/tensor_list.h"

namespace millrace::model {
namespace {

namespace fs = std::filesystem;
using Prompts = std::vector<std::vector<TokenId>>;

constexpr int32_t kPageSize = 16;
constexpr int32_t kLogitRows = 32;

/// Fills `out` with log-softmax of logits. NaN spreads to all of it.
void log_softmax(std::span<const float> logits, std::vector<double>& out) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(double{logit} - largest);
  const double shift = largest + std::log(sum);
  out.resize(logits.size());
  std::ranges::transform(logits, out.begin(), [shift](float logit) { return double{logit} - shift; });
}

/// Runs work on the backend's stream and waits for it. Rethrows what it throws.
void run_on(tensor::Backend& backend, const std::function<void()>& work) {
  std::promise<void> finished;
  backend.submit([&work] { work(); },
                 [&finished](std::exception_ptr failure) {
                   if (failure) return finished.set_exception(std::move(failure));
                   finished.set_value();
                 });
  finished.get_future().get();
}

/// A model that is loaded one layer at a time, with the hidden states that its prompts have come to.
class LayerwiseModel {
 public:
  static Result<LayerwiseModel> open(const fs::path& path, const Prompts& prompts, tensor::Backend& backend) {
    auto config = read_config(path);
    if (!config) return config.error();
    auto checkpoint = Checkpoint::open(path);
    if (!checkpoint) return checkpoint.error();
    RETURN_IF_ERROR(adapt_to_checkpoint(**checkpoint, *config));
    if (config->encoder || !config->has_output_head)
      return make_error(ErrorCode::kInvalidArgument, "{}: the model has no output head, wanted one to compare outputs",
                        path.string());
    for (const auto& prompt : prompts) {
      for (const TokenId token : prompt) {
        if (token < 0 || token >= config->vocab_size)
          return make_error(ErrorCode::kInvalidArgument, "{}: has {} tokens, but a prompt has token {}", path.string(),
                            config->vocab_size, token);
      }
    }
    return LayerwiseModel(std::move(*checkpoint), std::move(*config), prompts, backend);
  }

  [[nodiscard]] const ModelConfig& config() const { return config_; }

  /// Returns the parts that are loaded one after the other: single layers, or layers that belong to one stage.
  [[nodiscard]] size_t part_count() const { return parts_.size(); }
  /// Runs all prompts through a part other than the last one.
  Result<void> advance(size_t part) {
    RETURN_IF_ERROR(load(part));
    for (size_t prompt = 0; prompt < prompts_.size(); ++prompt) {
      run_on(backend_, [&] {
        const tensor::Matrix hidden = forward(prompt);
        states_[prompt].resize(hidden.bytes());
        stage_->backend().copy_to_host(hidden.data, states_[prompt]);
      });
    }
    stage_.reset();
    return {};
  }

  /// Loads the last part and the head.
  Result<void> load_last() { return load(parts_.size() - 1); }
  /// Runs a prompt through the last part.
  void finish(size_t prompt) {
    run_on(backend_, [&] { last_ = forward(prompt); });
    states_[prompt] = {};
  }
  /// Returns logits [count, vocab] of rows [first, first + count) of the prompt that finish() has run.
  const std::vector<float>& logits(size_t first, size_t count) {
    std::vector<int32_t> rows(count);
    std::iota(rows.begin(), rows.end(), static_cast<int32_t>(first));
    const auto vocab = static_cast<std::ptrdiff_t>(config_.vocab_size);
    logits_.clear();
    run_on(backend_, [&] {
      stage_->logits(last_, rows, [&](size_t, tensor::Matrix block) {
        block_.resize(static_cast<size_t>(block.rows * block.cols));
        stage_->backend().copy_to_host(block.data, std::as_writable_bytes(std::span(block_)));
        for (auto row = block_.begin(); row != block_.end(); row += block.cols)
          logits_.insert(logits_.end(), row, row + vocab);
      });
    });
    return logits_;
  }

 private:
  LayerwiseModel(std::unique_ptr<Checkpoint> checkpoint, ModelConfig config, const Prompts& prompts,
                 tensor::Backend& backend)
      : checkpoint_(std::move(checkpoint)),
        config_(std::move(config)),
        prompts_(prompts),
        backend_(backend),
        states_(prompts.size()) {
    for (const auto& prompt : prompts) longest_ = std::max(longest_, static_cast<int32_t>(prompt.size()));
    pages_.resize(static_cast<size_t>((longest_ + kPageSize - 1) / kPageSize));
    std::vector<LayerRange> ranges;
    for (int32_t layer = 0; layer < config_.layer_count(); ++layer) {
      if (can_begin_stage(config_, layer)) ranges.push_back({layer, layer});
      ranges.back().end = layer + 1;
    }
    parts_ = stage_spans(ranges);
    for (size_t page = 0; page < pages_.size(); ++page) pages_[page] = PageId(static_cast<uint32_t>(page));
  }

  Result<void> load(size_t part) {
    auto loaded = StageModel::load(*checkpoint_, config_, parts_[part], backend_,
                                   {.max_batch_tokens = longest_, .max_logit_rows = kLogitRows});
    if (!loaded) return loaded.error();
    stage_ = std::move(*loaded);
    stage_->allocate_cache(kPageSize, static_cast<int32_t>(pages_.size()));
    hidden_ = stage_->allocate_hidden();
    return {};
  }

  /// Runs a prompt through the loaded layer. Call it inside submitted work.
  tensor::Matrix forward(size_t prompt) {
    const auto rows = static_cast<int32_t>(prompts_[prompt].size());
    const std::vector<int32_t> row_begin = {0, rows};
    const std::vector<int32_t> prefix = {0};
    const std::vector<int32_t> page_begin = {0, (rows + kPageSize - 1) / kPageSize};
    const tensor::BatchLayout batch{.row_begin = row_begin,
                                    .prefix = prefix,
                                    .page_begin = page_begin,
                                    .pages = std::span(pages_).first(static_cast<size_t>(page_begin.back()))};
    const bool is_first = stage_->span().first;
    return stage_->forward({.tokens = prompts_[prompt],
                            .batch = batch,
                            .hidden = stage_->hidden_view(hidden_, rows),
                            .received = is_first ? std::span<const std::byte>() : std::span(states_[prompt])});
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  ModelConfig config_;
  std::vector<StageSpan> parts_;
  const Prompts& prompts_;
  tensor::Backend& backend_;
  int32_t longest_ = 1;
  std::vector<PageId> pages_;                   // of the longest prompt, which all prompts use in turn
  std::vector<std::vector<std::byte>> states_;  // [prompts]: hidden states before the next layer
  std::unique_ptr<StageModel> stage_;
  tensor::Buffer hidden_;
  tensor::Matrix last_;
  std::vector<float> block_;
  std::vector<float> logits_;
};

}  // namespace

void OutputErrorSum::add(std::span<const float> original, std::span<const float> quantized, size_t prompt,
                         size_t position) {
  log_softmax(original, original_);
  log_softmax(quantized, quantized_);
  double kl = 0.0;
  for (size_t token = 0; token < original_.size(); ++token)
    kl += std::exp(original_[token]) * (original_[token] - quantized_[token]);
  // Rounding may make the divergence of equal distributions negative. NaN must stick.
  if (kl < 0.0) kl = 0.0;
  kl_sum_ += kl;
  if (error_.positions == 0 || (!std::isnan(error_.max_kl) && !(kl <= error_.max_kl))) {
    error_.max_kl = kl;
    error_.max_prompt = prompt;
    error_.max_position = position;
  }
  ++error_.positions;
  const auto best = [](std::span<const float> logits) { return std::ranges::max_element(logits) - logits.begin(); };
  if (best(original) == best(quantized)) ++error_.agreeing;
}

OutputError OutputErrorSum::total() const {
  OutputError total = error_;
  if (total.positions > 0) total.mean_kl = kl_sum_ / static_cast<double>(total.positions);
  return total;
}

Result<OutputError> measure_output_error(const fs::path& original, const fs::path& quantized, const Prompts& prompts,
                                         tensor::Backend& backend) {
  auto left = LayerwiseModel::open(original, prompts, backend);
  if (!left) return left.error();
  auto right = LayerwiseModel::open(quantized, prompts, backend);
  if (!right) return right.error();
  const ModelConfig& config = left->config();
  if (config.vocab_size != right->config().vocab_size || config.layer_count() != right->config().layer_count())
    return make_error(ErrorCode::kInvalidArgument, "{}: has {} tokens and {} layers, {}: {} and {}, wanted equal ones",
                      original.string(), config.vocab_size, config.layer_count(), quantized.string(),
                      right->config().vocab_size, right->config().layer_count());
  if (left->part_count() != right->part_count())
    return make_error(ErrorCode::kInvalidArgument, "{} and {} divide their layers differently, wanted one model",
                      original.string(), quantized.string());
  for (size_t part = 0; part + 1 < left->part_count(); ++part) {
    RETURN_IF_ERROR(left->advance(part));
    RETURN_IF_ERROR(right->advance(part));
  }
  RETURN_IF_ERROR(left->load_last());
  RETURN_IF_ERROR(right->load_last());
  const auto vocab = static_cast<size_t>(config.vocab_size);
  OutputErrorSum sum;
  for (size_t prompt = 0; prompt < prompts.size(); ++prompt) {
    left->finish(prompt);
    right->finish(prompt);
    const size_t length = prompts[prompt].size();
    for (size_t first = 0; first < length; first += kLogitRows) {
      const size_t count = std::min<size_t>(kLogitRows, length - first);
      const std::span wanted = left->logits(first, count);
      const std::span found = right->logits(first, count);
      for (size_t row = 0; row < count; ++row)
        sum.add(wanted.subspan(row * vocab, vocab), found.subspan(row * vocab, vocab), prompt, first + row);
    }
  }
  return sum.total();
}

}  // namespace millrace::model
