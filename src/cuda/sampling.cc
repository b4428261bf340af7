#include "cuda/sampling.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "cuda/sample_row.h"

namespace millrace::cuda {
namespace {

using tensor::SampleSpec;

constexpr size_t mask_words_of(int32_t vocab) {
  return (static_cast<size_t>(vocab) + 31) / 32;
}

constexpr size_t align_up(size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

/// The offsets of SampleInputs' parts in one block of memory.
struct InputLayout {
  size_t bias_count = 0;
  size_t banned_count = 0;
  size_t history_count = 0;
  size_t masked_rows = 0;
  size_t mask_words = 0;  // per row
  size_t bias_tokens = 0, bias_values = 0, banned = 0, history = 0, masks = 0,
         bytes = 0;  // offsets; the rows are first

  InputLayout(std::span<const SampleSpec> specs, int32_t vocab) : mask_words(mask_words_of(vocab)) {
    for (const SampleSpec& spec : specs) {
      bias_count += spec.params->logit_bias.size();
      banned_count += banned_of(spec).size();
      history_count += spec.prompt.size() + spec.output.size();
      masked_rows += spec.allowed.empty() ? 0 : 1;
    }
    bias_tokens = align_up(specs.size() * sizeof(SampleRow));
    bias_values = bias_tokens + align_up(bias_count * sizeof(int32_t));
    banned = bias_values + align_up(bias_count * sizeof(float));
    history = banned + align_up(banned_count * sizeof(int32_t));
    masks = history + align_up(history_count * sizeof(int32_t));
    bytes = masks + align_up(masked_rows * mask_words * sizeof(uint32_t));
  }
  [[nodiscard]] static std::span<const TokenId> banned_of(const SampleSpec& spec) {
    if (spec.output_count >= spec.params->min_tokens) return {};
    return spec.params->stop_token_ids;
  }
};

void write_inputs(std::span<const SampleSpec> specs, const InputLayout& layout, std::byte* to) {
  auto* rows = reinterpret_cast<SampleRow*>(to);
  auto* bias_tokens = reinterpret_cast<int32_t*>(to + layout.bias_tokens);
  auto* bias_values = reinterpret_cast<float*>(to + layout.bias_values);
  auto* banned = reinterpret_cast<int32_t*>(to + layout.banned);
  auto* history = reinterpret_cast<int32_t*>(to + layout.history);
  auto* masks = reinterpret_cast<uint32_t*>(to + layout.masks);
  size_t mask_end = 0;
  int32_t bias_end = 0;
  int32_t banned_end = 0;
  int32_t history_end = 0;
  for (size_t r = 0; r < specs.size(); ++r) {
    const SampleSpec& spec = specs[r];
    const tensor::SamplingParams& params = *spec.params;
    SampleRow row = sample_row(params, spec.position);
    row.bias_begin = bias_end;
    for (const auto& [token, value] : params.logit_bias) {
      bias_tokens[bias_end] = token;
      bias_values[bias_end++] = value;
    }
    row.bias_end = bias_end;
    row.banned_begin = banned_end;
    for (const TokenId token : InputLayout::banned_of(spec)) banned[banned_end++] = token;
    row.banned_end = banned_end;
    row.prompt_begin = history_end;
    for (const TokenId token : spec.prompt) history[history_end++] = token;
    row.prompt_end = history_end;
    for (const TokenId token : spec.output) history[history_end++] = token;
    row.output_end = history_end;
    if (!spec.allowed.empty()) {
      row.mask_begin = static_cast<int32_t>(mask_end);
      for (size_t i = 0; i < layout.mask_words; ++i) {
        masks[mask_end++] = i < spec.allowed.size() ? spec.allowed[i] : 0;
      }
    }
    rows[r] = row;
  }
}

/// SampleOutputs in one block of device memory.
struct OutputLayout {
  size_t rows = 0;
  size_t capacity = 0;
  [[nodiscard]] size_t tokens() const { return align_up(rows * sizeof(SampleOutput)); }
  [[nodiscard]] size_t logprobs() const { return tokens() + align_up(rows * capacity * sizeof(int32_t)); }
  [[nodiscard]] size_t bytes() const { return logprobs() + align_up(rows * capacity * sizeof(float)); }
  [[nodiscard]] SampleOutputs at(std::byte* data) const {
    return {.rows = reinterpret_cast<SampleOutput*>(data),
            .top_tokens = reinterpret_cast<int32_t*>(data + tokens()),
            .top_logprobs = reinterpret_cast<float*>(data + logprobs()),
            .top_capacity = static_cast<int32_t>(capacity)};
  }
};

OutputLayout output_layout(size_t rows, int32_t max_top) {
  return {rows, static_cast<size_t>(std::clamp(max_top, 0, kMaxTopLogprobs))};
}

/// Row `row` of the results on the host.
struct ReturnedRow {
  SampleOutput output;
  tensor::TokenLogprobs logprobs;

  ReturnedRow(const std::byte* data, const OutputLayout& layout, size_t row) {
    std::memcpy(&output, data + row * sizeof output, sizeof output);
    logprobs = {.token = output.token, .logprob = output.logprob, .rank = output.rank};
    const auto* tokens = reinterpret_cast<const int32_t*>(data + layout.tokens()) + row * layout.capacity;
    const auto* values = reinterpret_cast<const float*>(data + layout.logprobs()) + row * layout.capacity;
    for (int32_t i = 0; i < output.top_count; ++i) logprobs.top.emplace_back(tokens[i], values[i]);
  }
  [[nodiscard]] tensor::LogitFault fault() const { return static_cast<tensor::LogitFault>(output.fault); }
};

void check_logits(const tensor::Matrix& logits, int32_t vocab, size_t rows) {
  CHECK(logits.dtype == tensor::DType::kF32 && logits.rows == static_cast<int64_t>(rows),
        "logits are {} [{}, {}], wanted f32 of {} rows", tensor::to_string(logits.dtype), logits.rows, logits.cols,
        rows);
  CHECK(vocab > 0 && vocab <= logits.cols, "{} ids of {} logits", vocab, logits.cols);
}

}  // namespace

size_t sample_input_bytes(size_t rows, size_t entries, int32_t vocab) {
  constexpr size_t kPaddings = 6 * 16;
  return rows * (sizeof(SampleRow) + mask_words_of(vocab) * sizeof(uint32_t)) + 2 * entries * sizeof(int32_t) +
         kPaddings;
}

size_t score_input_bytes(size_t rows) {
  return 2 * align_up(rows * sizeof(int32_t));
}

size_t sample_output_bytes(size_t rows, int32_t top) {
  return output_layout(rows, top).bytes();
}

void draw_rows(Device& device, Submissions& submissions, const tensor::Matrix& logits, int32_t vocab,
               std::span<const SampleSpec> specs, std::span<tensor::SampleResult> results) {
  check_logits(logits, vocab, specs.size());
  CHECK(results.size() == specs.size(), "{} results for {} rows", results.size(), specs.size());
  if (specs.empty()) return;
  const InputLayout in(specs, vocab);
  const std::byte* uploaded = submissions.upload(in.bytes, [&](std::byte* to) { write_inputs(specs, in, to); });
  std::vector<int32_t> top_counts;
  for (const SampleSpec& spec : specs) top_counts.push_back(spec.params->top_logprobs);
  const auto rows = static_cast<int32_t>(specs.size());
  const OutputLayout out = output_layout(specs.size(), *std::ranges::max_element(top_counts));
  std::byte* scratch = device.scratch(device.sample_scratch, sample_workspace_bytes(rows, vocab));
  std::byte* told = device.scratch(device.sample_results, out.bytes());
  sample(device.compute.get(), reinterpret_cast<const float*>(logits.data), logits.cols, vocab, rows,
         {.rows = reinterpret_cast<const SampleRow*>(uploaded),
          .bias_tokens = reinterpret_cast<const int32_t*>(uploaded + in.bias_tokens),
          .bias_values = reinterpret_cast<const float*>(uploaded + in.bias_values),
          .banned_tokens = reinterpret_cast<const int32_t*>(uploaded + in.banned),
          .history_tokens = reinterpret_cast<const int32_t*>(uploaded + in.history),
          .mask_words = reinterpret_cast<const uint32_t*>(uploaded + in.masks)},
         out.at(told), scratch);
  submissions.download(told, out.bytes(), [out, results, top_counts = std::move(top_counts)](const std::byte* data) {
    for (size_t row = 0; row < results.size(); ++row) {
      ReturnedRow returned(data, out, row);
      results[row] = {.fault = returned.fault(), .token = returned.output.token};
      if (top_counts[row] >= 0) results[row].logprobs = std::move(returned.logprobs);
    }
  });
}

void score_rows(Device& device, Submissions& submissions, const tensor::Matrix& logits, int32_t vocab,
                std::span<const TokenId> targets, std::span<const int32_t> top_counts,
                std::span<tensor::ScoreResult> results) {
  check_logits(logits, vocab, targets.size());
  CHECK(top_counts.size() == targets.size() && results.size() == targets.size(), "{} counts, {} results for {} targets",
        top_counts.size(), results.size(), targets.size());
  if (targets.empty()) return;
  const size_t half = align_up(targets.size_bytes());
  const std::byte* uploaded = submissions.upload(2 * half, [&](std::byte* to) {
    std::memcpy(to, targets.data(), targets.size_bytes());
    std::memcpy(to + half, top_counts.data(), top_counts.size_bytes());
  });
  const auto rows = static_cast<int32_t>(targets.size());
  const OutputLayout out = output_layout(targets.size(), *std::ranges::max_element(top_counts));
  std::byte* scratch = device.scratch(device.sample_scratch, sample_workspace_bytes(rows, vocab));
  std::byte* told = device.scratch(device.sample_results, out.bytes());
  score(device.compute.get(), reinterpret_cast<const float*>(logits.data), logits.cols, vocab, rows,
        reinterpret_cast<const int32_t*>(uploaded), reinterpret_cast<const int32_t*>(uploaded + half), out.at(told),
        scratch);
  submissions.download(told, out.bytes(), [out, results](const std::byte* data) {
    for (size_t row = 0; row < results.size(); ++row) {
      ReturnedRow returned(data, out, row);
      results[row] = {.fault = returned.fault(), .logprobs = std::move(returned.logprobs)};
    }
  });
}

}  // namespace millrace::cuda
