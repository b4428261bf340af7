#include "model/test_pipeline.h"

#include <cstring>
#include <numeric>
#include <random>

#include "base/check.h"

namespace millrace::test {

using tensor::Matrix;

namespace {

/// The storage behind a BatchLayout.
struct Batch {
  std::vector<TokenId> tokens;
  std::vector<int32_t> row_begin{0};
  std::vector<int32_t> prefix;
  std::vector<int32_t> page_begin{0};
  std::vector<PageId> pages;

  Batch(const std::vector<Piece>& pieces, const std::vector<std::vector<PageId>>& pages_of, int32_t page_size) {
    for (const Piece& piece : pieces) {
      tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
      row_begin.push_back(static_cast<int32_t>(tokens.size()));
      prefix.push_back(piece.prefix);
      const auto end = static_cast<size_t>(piece.prefix) + piece.tokens.size();
      const size_t count = (end + static_cast<size_t>(page_size) - 1) / static_cast<size_t>(page_size);
      const std::vector<PageId>& own = pages_of.at(piece.sequence);
      CHECK(count <= own.size(), "{} pages for {} tokens", own.size(), end);
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
                           tensor::Backend& backend, Options options)
    : backend_(backend), options_(options) {
  const auto ranges = model::divide_layers(config.layer_count, options.stage_count).value();
  for (const model::StageSpan span : model::stage_spans(ranges)) {
    stages_.push_back(model::StageModel::load(checkpoint, config, span, backend, options.limits).value());
    stages_.back()->allocate_cache(options.page_size, options.page_count);
    hidden_.push_back(stages_.back()->allocate_hidden());
  }
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
  const Batch batch(pieces, pages_, options_.page_size);
  const tensor::BatchLayout layout = batch.layout();
  std::vector<int32_t> rows(batch.tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<std::byte> wire;
  for (size_t s = 0; s < stages_.size(); ++s) {
    model::StageModel& stage = *stages_[s];
    const Matrix hidden = stage.hidden_view(hidden_[s], layout.row_count());
    backend_.run_and_wait([&] {
      stage.forward({.tokens = s == 0 ? std::span(batch.tokens) : std::span<const TokenId>(),
                     .batch = layout,
                     .hidden = hidden,
                     .received = wire});
      if (stage.span().last) {
        stage.logits(hidden, rows, block);
      } else {
        wire.resize(hidden.bytes());
        backend_.copy_to_host(hidden.data, wire);
      }
    });
  }
}

std::vector<float> TestPipeline::run(const std::vector<Piece>& pieces) {
  std::vector<float> all;
  run(pieces, [&](size_t, Matrix logits) {
    const size_t done = all.size();
    all.resize(done + static_cast<size_t>(logits.rows * logits.cols));
    backend_.copy_to_host(logits.data, std::as_writable_bytes(std::span(all).subspan(done)));
  });
  return all;
}

}  // namespace millrace::test
