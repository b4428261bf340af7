#include "model/test_pipeline.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <numeric>
#include <random>

#include "base/check.h"
#include "comm/collective/device_collectives.h"
#include "comm/collective/shared_collective.h"
#include "model/stage_borders.h"

namespace millrace::test {

using tensor::Matrix;

namespace {

constexpr size_t kExchangedBytes = size_t{1} << 20;

/// Returns the pages of a sequence in a window group: others than in the first group. Those before what the first row
/// sees are void, which the first page that it sees stands for.
std::vector<PageId> window_pages(const std::vector<PageId>& own, size_t first, int32_t page_count) {
  std::vector<PageId> pages;
  for (size_t i = 0; i < own.size(); ++i) {
    pages.emplace_back(static_cast<uint32_t>(page_count) - 1 - own[std::max(i, first)].value());
  }
  return pages;
}

/// The storage behind a BatchLayout.
struct Batch {
  std::vector<TokenId> tokens;
  std::vector<int32_t> row_begin{0};
  std::vector<int32_t> prefix;
  std::vector<int32_t> page_begin{0};
  std::vector<PageId> pages;

  /// `window`: that of a window group; 0: the first group.
  Batch(const std::vector<Piece>& pieces, const std::vector<std::vector<PageId>>& pages_of,
        const TestPipeline::Options& options, int32_t window = 0) {
    const int32_t page_size = options.page_size;
    for (const Piece& piece : pieces) {
      tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
      row_begin.push_back(static_cast<int32_t>(tokens.size()));
      prefix.push_back(piece.prefix);
      const auto end = static_cast<size_t>(piece.prefix) + piece.tokens.size();
      const size_t count = (end + static_cast<size_t>(page_size) - 1) / static_cast<size_t>(page_size);
      std::vector<PageId> own = pages_of.at(piece.sequence);
      CHECK(count <= own.size(), "{} pages for {} tokens", own.size(), end);
      if (window > 0) {
        own = window_pages(own, static_cast<size_t>(std::max(0, piece.prefix + 1 - window) / page_size),
                           options.page_count);
      }
      pages.insert(pages.end(), own.begin(), own.begin() + static_cast<std::ptrdiff_t>(count));
      page_begin.push_back(static_cast<int32_t>(pages.size()));
    }
  }
  [[nodiscard]] tensor::BatchLayout layout() const {
    return {.row_begin = row_begin, .prefix = prefix, .page_begin = page_begin, .pages = pages};
  }
};

}  // namespace

TestPipeline::TestPipeline(const model::Checkpoint& checkpoint, const model::ModelConfig& config,
                           const std::vector<tensor::Backend*>& ranks, Options options)
    : options_(options) {
  const auto size = static_cast<int32_t>(ranks.size());
  const int32_t stage_count = std::min(options.stage_count, model::largest_stage_count(config));
  const auto ranges =
      model::move_borders(config, model::divide_layers(config.layer_count(), stage_count).value()).value();
  for (const model::StageSpan span : model::stage_spans(ranges)) {
    Stage& stage = stages_.emplace_back();
    if (size > 1) {
      stage.ends = ranks.front()->is_host() ? comm::make_shared_collectives(ranks)
                                            : comm::open_device_collectives("the ranks", ranks, kExchangedBytes);
    }
    for (int32_t rank = 0; rank < size; ++rank) {
      const auto index = static_cast<size_t>(rank);
      model::LoadOptions load{.position = {rank, size}};
      if (options.ring_count > 1) {
        load.experts = tensor::RankPosition{.rank = options.ring * size + rank, .size = options.ring_count * size};
      }
      auto model = model::StageModel::load(checkpoint, config, span, *ranks[index], options.limits, load).value();
      if (size > 1) model->set_collective(stage.ends[index].get());
      model->allocate_cache(options.page_size, options.page_count);
      tensor::Buffer hidden = model->allocate_hidden();
      stage.ranks.push_back({std::move(model), std::move(hidden)});
    }
  }
}

void TestPipeline::share(const std::shared_ptr<comm::SharedExperts>& experts) {
  step_ = 0;
  for (size_t s = 0; s < stages_.size(); ++s) {
    Stage& stage = stages_[s];
    stage.exchanges.resize(stage.ranks.size());
    for (size_t rank = 0; rank < stage.ranks.size(); ++rank) {
      model::StageModel& model = *stage.ranks[rank].model;
      auto end = comm::SharedExperts::join(experts, static_cast<int32_t>(s), options_.ring, static_cast<int32_t>(rank),
                                           model.backend());
      model.set_expert_exchange(end.get());
      stage.exchanges[rank] = std::move(end);
    }
  }
}

void TestPipeline::step_without_rows() {
  ++step_;
  for (Stage& stage : stages_) {
    run_on_ranks(stage, [&](size_t rank) { stage.ranks[rank].model->step_without_rows(step_); });
  }
}

void TestPipeline::run_on_ranks(Stage& stage, const std::function<void(size_t)>& work) {
  std::vector<std::promise<void>> finished(stage.ranks.size());
  for (size_t rank = 0; rank < stage.ranks.size(); ++rank) {
    stage.ranks[rank].model->backend().submit([&work, rank] { work(rank); },
                                              [&, rank](std::exception_ptr failure) {
                                                if (!failure) return finished[rank].set_value();
                                                // The others would wait for this rank.
                                                if (!stage.ends.empty()) stage.ends[rank]->abort("a rank has failed");
                                                if (!stage.exchanges.empty())
                                                  stage.exchanges[rank]->abort("a rank has failed");
                                                finished[rank].set_exception(std::move(failure));
                                              });
  }
  std::vector<std::future<void>> results;
  for (std::promise<void>& each : finished) results.push_back(each.get_future());
  for (const std::future<void>& result : results) result.wait();
  for (std::future<void>& result : results) result.get();
}

void TestPipeline::start(const std::vector<int32_t>& tokens, uint32_t seed) {
  std::vector<uint32_t> order(static_cast<size_t>(options_.page_count));
  std::iota(order.begin(), order.end(), 0u);
  std::mt19937 generator(seed);
  std::shuffle(order.begin(), order.end(), generator);
  pages_.assign(tokens.size(), {});
  size_t next = 0;
  for (size_t s = 0; s < tokens.size(); ++s)
    for (int32_t begin = 0; begin < tokens[s]; begin += options_.page_size) {
      CHECK(next < order.size(), "{} pages are too few", order.size());
      pages_[s].push_back(PageId(order[next++]));
    }
}

void TestPipeline::run(const std::vector<Piece>& pieces, const LogitsFn& block) {
  const Batch batch(pieces, pages_, options_);
  const tensor::BatchLayout layout = batch.layout();
  std::vector<Batch> window_batches;
  for (const WindowSpec& spec : stage(0).cache_groups().windows()) {
    window_batches.emplace_back(pieces, pages_, options_, static_cast<int32_t>(spec.window));
  }
  std::vector<tensor::BatchLayout> windows;
  for (const Batch& window : window_batches) windows.push_back(window.layout());
  std::vector<int32_t> rows(batch.tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<std::byte> wire;
  ++step_;
  for (size_t s = 0; s < stages_.size(); ++s) {
    std::vector<std::byte> sent;
    run_on_ranks(stages_[s], [&](size_t rank) {
      model::StageModel& model = *stages_[s].ranks[rank].model;
      const Matrix hidden = model.hidden_view(stages_[s].ranks[rank].hidden, layout.row_count());
      model.forward({.tokens = batch.tokens,
                     .batch = layout,
                     .hidden = hidden,
                     .received = wire,
                     .step = step_,
                     .windows = windows});
      if (model.span().last) {
        model.logits(hidden, rows, rank == 0 ? block : [](size_t, Matrix) {});
      } else if (rank == 0) {
        sent.resize(hidden.bytes());
        model.backend().copy_to_host(hidden.data, sent);
      }
    });
    wire = std::move(sent);
  }
}

std::vector<float> TestPipeline::run(const std::vector<Piece>& pieces) {
  std::vector<float> all;
  const auto vocab = static_cast<size_t>(stage(0).config().vocab_size);
  run(pieces, [&](size_t, Matrix logits) {
    std::vector<float> block(static_cast<size_t>(logits.rows * logits.cols));
    backend().copy_to_host(logits.data, std::as_writable_bytes(std::span(block)));
    for (auto row = block.begin(); row != block.end(); row += logits.cols)
      all.insert(all.end(), row, row + static_cast<std::ptrdiff_t>(vocab));
  });
  return all;
}

std::vector<float> prompt_logits(const std::filesystem::path& folder, const model::ModelConfig& config,
                                 const std::vector<std::unique_ptr<tensor::Backend>>& ranks, int32_t stage_count,
                                 int32_t token_count) {
  const auto checkpoint = model::Checkpoint::open(folder).value();
  std::vector<tensor::Backend*> backends;
  for (const auto& rank : ranks) backends.push_back(rank.get());
  TestPipeline pipeline(*checkpoint, config, backends, {.stage_count = stage_count});
  pipeline.start({token_count}, 1);
  Piece piece;
  for (TokenId token = 0; token < token_count; ++token) piece.tokens.push_back(token * 3 % config.vocab_size);
  return pipeline.run({piece});
}

}  // namespace millrace::test
