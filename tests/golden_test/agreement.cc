#include "golden_test/agreement.h"

#include <algorithm>

namespace millrace::test {
namespace {

/// Returns the logprobs of a sequence's tokens from the second on, through Backend::score.
std::vector<tensor::TokenLogprobs> score(TestPipeline& pipeline, const Piece& piece, int32_t vocab) {
  std::vector<tensor::ScoreResult> results(piece.tokens.size());
  pipeline.run({piece}, [&](size_t first, tensor::Matrix logits) {
    const auto rows = static_cast<size_t>(logits.rows);
    std::vector<TokenId> targets;
    for (size_t row = first; row < first + rows; ++row)
      targets.push_back(row + 1 < piece.tokens.size() ? piece.tokens[row + 1] : 0);
    const std::vector<int32_t> top_counts(rows, 0);
    pipeline.backend().score(logits, vocab, targets, top_counts, std::span(results).subspan(first, rows));
  });
  results.pop_back();
  std::vector<tensor::TokenLogprobs> scored;
  for (tensor::ScoreResult& result : results) scored.push_back(std::move(result.logprobs));
  return scored;
}

void compare_prompt(TestPipeline& pipeline, const GoldenPrompt& prompt, double doubtful_margin, Agreement& agreement) {
  const int32_t vocab = pipeline.stage(0).config().vocab_size;
  const auto width = static_cast<size_t>(vocab);
  const std::vector<TokenId> tokens = prompt.sequence();
  pipeline.start({static_cast<int32_t>(tokens.size())}, 1);
  const std::vector<float> logits = pipeline.run({{.tokens = tokens}});
  const auto row = [&](size_t position) { return std::span(logits).subspan(position * width, width); };
  for (size_t i = 0; i < prompt.positions.size(); ++i)
    agreement.logits.add_row(row(static_cast<size_t>(prompt.positions[i])),
                             std::span(prompt.logits).subspan(i * width, width));
  if (!prompt.top_ids.empty()) {
    std::vector<float> found;
    for (const TokenId id : prompt.top_ids) found.push_back(row(prompt.ids.size() - 1)[static_cast<size_t>(id)]);
    agreement.logits.add_row(found, prompt.top_logits);
  }
  for (size_t step = 0; step < prompt.greedy.size(); ++step) {
    if (prompt.margins[step] <= doubtful_margin) continue;
    const auto found = row(prompt.ids.size() - 1 + step);
    const auto best = std::max_element(found.begin(), found.end()) - found.begin();
    ++agreement.greedy_checked;
    if (best != prompt.greedy[step]) ++agreement.greedy_wrong;
  }
  const auto scored = score(pipeline, {.tokens = tokens}, vocab);
  for (size_t i = 1; i < prompt.ids.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(scored[i - 1].logprob) - prompt.logprobs[i]);
    if (std::isnan(difference) || difference > agreement.logprob_max) agreement.logprob_max = difference;
  }
}

}  // namespace

Agreement measure_agreement(TestPipeline& pipeline, const GoldenFamily& family, double doubtful_margin) {
  Agreement agreement;
  for (const GoldenPrompt& prompt : family.prompts) compare_prompt(pipeline, prompt, doubtful_margin, agreement);
  return agreement;
}

}  // namespace millrace::test
