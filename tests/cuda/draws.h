#pragma once

#include "cuda/device_array.h"
#include "cuda/sample_row.h"
#include "support/random_draw.h"

/// Sampling and scoring by the CUDA ops, from host values to host values.
namespace millrace::test {

struct Drawn {
  cuda::SampleOutput row;
  std::vector<std::pair<TokenId, float>> top;
};

[[nodiscard]] inline std::vector<Drawn> results_of(const DeviceArray<cuda::SampleOutput>& rows,
                                                   const DeviceArray<int32_t>& tokens,
                                                   const DeviceArray<float>& logprobs, int32_t capacity) {
  std::vector<Drawn> results;
  for (const cuda::SampleOutput& row : rows.values()) {
    Drawn& result = results.emplace_back();
    result.row = row;
    const size_t first = (results.size() - 1) * static_cast<size_t>(capacity);
    for (size_t i = first; i < first + static_cast<size_t>(row.top_count); ++i) {
      result.top.emplace_back(tokens.get()[i], logprobs.get()[i]);
    }
  }
  return results;
}

[[nodiscard]] inline Values joined(const std::vector<Values>& rows) {
  Values logits;
  for (const Values& row : rows) logits.insert(logits.end(), row.begin(), row.end());
  return logits;
}

/// A batch of draws in the device's format.
struct DrawLists {
  explicit DrawLists(const std::vector<Draw>& draws) {
    for (const Draw& draw : draws) {
      const tensor::SamplingParams& params = draw.params;
      cuda::SampleRow row = cuda::sample_row(params, draw.position);
      row.bias_begin = static_cast<int32_t>(bias_tokens.size());
      for (const auto& [token, bias] : params.logit_bias) {
        bias_tokens.push_back(token);
        bias_values.push_back(bias);
      }
      row.bias_end = static_cast<int32_t>(bias_tokens.size());
      row.banned_begin = static_cast<int32_t>(banned.size());
      if (draw.output_count < params.min_tokens) {
        banned.insert(banned.end(), params.stop_token_ids.begin(), params.stop_token_ids.end());
      }
      row.banned_end = static_cast<int32_t>(banned.size());
      row.prompt_begin = row.prompt_end = row.output_end = static_cast<int32_t>(history.size());
      if (params.needs_history()) {
        history.insert(history.end(), draw.prompt.begin(), draw.prompt.end());
        row.prompt_end = static_cast<int32_t>(history.size());
        history.insert(history.end(), draw.output.begin(), draw.output.end());
        row.output_end = static_cast<int32_t>(history.size());
      }
      if (!draw.allowed.empty()) {
        row.mask_begin = static_cast<int32_t>(masks.size());
        masks.insert(masks.end(), draw.allowed.begin(), draw.allowed.end());
      }
      rows.push_back(row);
    }
  }
  std::vector<cuda::SampleRow> rows;
  std::vector<int32_t> bias_tokens;
  std::vector<float> bias_values;
  std::vector<int32_t> banned;
  std::vector<int32_t> history;
  std::vector<uint32_t> masks;
};

/// Samples once per row; logits are [rows, stride], of which `vocab` can be sampled.
[[nodiscard]] inline std::vector<Drawn> draw_rows(const std::vector<Values>& rows, int32_t vocab,
                                                  const std::vector<Draw>& draws, int32_t capacity = 0) {
  const DrawLists lists(draws);
  const DeviceArray<float> logits(joined(rows));
  const DeviceArray<cuda::SampleRow> specs(lists.rows);
  const DeviceArray<int32_t> bias_tokens(lists.bias_tokens);
  const DeviceArray<float> bias_values(lists.bias_values);
  const DeviceArray<int32_t> banned(lists.banned);
  const DeviceArray<int32_t> history(lists.history);
  const DeviceArray<uint32_t> masks(lists.masks);
  const DeviceArray<cuda::SampleOutput> outputs(rows.size(), 0xFF);
  const DeviceArray<int32_t> top_tokens(rows.size() * static_cast<size_t>(capacity));
  const DeviceArray<float> top_logprobs(rows.size() * static_cast<size_t>(capacity));
  const auto count = static_cast<int32_t>(rows.size());
  const DeviceArray<uint8_t> workspace(cuda::sample_workspace_bytes(count, vocab));
  cuda::sample(nullptr, logits.get(), static_cast<int64_t>(rows[0].size()), vocab, count,
               {.rows = specs.get(),
                .bias_tokens = bias_tokens.get(),
                .bias_values = bias_values.get(),
                .banned_tokens = banned.get(),
                .history_tokens = history.get(),
                .mask_words = masks.get()},
               {.rows = outputs.get(),
                .top_tokens = top_tokens.get(),
                .top_logprobs = top_logprobs.get(),
                .top_capacity = capacity},
               workspace.get());
  const Values given = joined(rows);
  REQUIRE(std::memcmp(logits.get(), given.data(), given.size() * sizeof(float)) == 0);
  return results_of(outputs, top_tokens, top_logprobs, capacity);
}

[[nodiscard]] inline std::vector<Drawn> score_rows(const std::vector<Values>& rows, int32_t vocab,
                                                   const std::vector<int32_t>& targets,
                                                   const std::vector<int32_t>& top_counts, int32_t capacity) {
  const DeviceArray<float> logits(joined(rows));
  const DeviceArray<int32_t> device_targets(targets);
  const DeviceArray<int32_t> device_counts(top_counts);
  const DeviceArray<cuda::SampleOutput> outputs(rows.size(), 0xFF);
  const DeviceArray<int32_t> top_tokens(rows.size() * static_cast<size_t>(capacity));
  const DeviceArray<float> top_logprobs(rows.size() * static_cast<size_t>(capacity));
  const auto count = static_cast<int32_t>(rows.size());
  const DeviceArray<uint8_t> workspace(cuda::sample_workspace_bytes(count, vocab));
  cuda::score(nullptr, logits.get(), static_cast<int64_t>(rows[0].size()), vocab, count, device_targets.get(),
              device_counts.get(),
              {.rows = outputs.get(),
               .top_tokens = top_tokens.get(),
               .top_logprobs = top_logprobs.get(),
               .top_capacity = capacity},
              workspace.get());
  return results_of(outputs, top_tokens, top_logprobs, capacity);
}

/// Checks that a draw's uniform number falls into its token's part of the cumulative distribution, within rounding.
inline void check_draw(TokenId token, double uniform, const std::vector<std::pair<TokenId, double>>& distribution) {
  constexpr double kSlack = 2e-5;
  double before = 0.0;
  for (const auto& [id, p] : distribution) {
    if (id == token) {
      INFO("token " << token << " from " << before << " to " << before + p << ", drawn by " << uniform);
      REQUIRE(uniform >= before - kSlack);
      REQUIRE(uniform <= before + p + kSlack);
      return;
    }
    before += p;
  }
  INFO("token " << token << " drawn by " << uniform);
  REQUIRE(distribution.empty());
}

}  // namespace millrace::test
