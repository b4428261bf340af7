#include "sched/scheduler/chunker.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"

namespace millrace::sched {
namespace {

constexpr uint32_t kAlignment = 64;
/// Published: chunks but a prompt's last are at least this part of the size. Balanced: at least this part of what they
/// would be without decode steps.
constexpr uint32_t kMinPart = 4;
/// Bounds of the target, as parts of the time that --chunked-prefill-size tokens take.
constexpr double kMinTarget = 0.125;
constexpr double kMaxTarget = 4;
/// The target is at least the time of this many alignments: rows of smaller chunks cost more than the model knows.
constexpr uint32_t kMinAlignedBlocks = 3;
/// Large chunks are rounded down, so that they do not exceed the target. Small ones are rounded to the nearest multiple
/// of a part of the alignment, at least this one. That keeps their cost within a sixteenth of the target.
constexpr uint32_t kFinestAlignment = 16;
constexpr uint32_t kMinSteps = 8;
/// The published profile exceeds the size by this part of it.
constexpr uint32_t kPublishedOvershoot = 4;
/// Samples kept for the published fit.
constexpr size_t kMaxProfileSamples = 256;

/// Returns max(page, 64), or less if that exceeds a quarter of the chunk size.
uint32_t alignment_for(const ChunkingOptions& options) {
  uint32_t alignment = std::max(options.page_size, kAlignment);
  while (alignment > 1 && alignment > options.size / kMinPart) alignment /= 2;
  return alignment;
}

/// Returns (a − 1)·a/P for P stages of which a compute at once; P − 1 if all do. k chunks that take t on each stage are
/// done after (k·P/a + a − 1)·t: one ends every P/a·t, and (a − 1)·t pass while fewer than a are under way.
double fill_cost_ratio(const ChunkingOptions& options) {
  const double at_once = std::clamp(options.parallel_stages, 1.0, static_cast<double>(options.stage_count));
  return (at_once - 1) * at_once / options.stage_count;
}

double determinant(const std::array<std::array<double, 3>, 3>& m) {
  return m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1]) - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0]) +
         m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0]);
}

}  // namespace

uint32_t max_prompt_tokens(Chunking mode, uint32_t size) {
  return mode == Chunking::kPublished ? size + size / kPublishedOvershoot : size;
}

// Cramer's rule on the normal equations, lengths scaled to at most 1.
std::optional<QuadraticFit> QuadraticFit::fit(const std::vector<std::pair<double, double>>& samples) {
  double longest = 0;
  for (const auto& [length, time] : samples) longest = std::max(longest, length);
  if (samples.size() < 3 || longest <= 0) return std::nullopt;
  std::array<std::array<double, 3>, 3> products{};
  std::array<double, 3> targets{};
  for (const auto& [length, time] : samples) {
    const double l = length / longest;
    const std::array<double, 3> powers = {l * l, l, 1};
    for (size_t i = 0; i < 3; ++i) {
      for (size_t j = 0; j < 3; ++j) products[i][j] += powers[i] * powers[j];
      targets[i] += powers[i] * time;
    }
  }
  const double whole = determinant(products);
  if (!(std::abs(whole) > 1e-12)) return std::nullopt;
  std::array<double, 3> solution{};
  for (size_t column = 0; column < 3; ++column) {
    auto replaced = products;
    for (size_t row = 0; row < 3; ++row) replaced[row][column] = targets[row];
    solution[column] = determinant(replaced) / whole;
  }
  const QuadraticFit fit{solution[0] / (longest * longest), solution[1] / longest, solution[2]};
  if (!(fit.a > 0) || !(fit.b >= 0)) return std::nullopt;
  return fit;
}

double QuadraticFit::chunk_for(double prefix, double first) const {
  const double slope = b + 2 * a * prefix;
  const double room = a * first * first + b * first;
  return 2 * room / (slope + std::sqrt(slope * slope + 4 * a * room));
}

Chunker::Chunker(const ChunkingOptions& options)
    : options_(options), alignment_(alignment_for(options)), fill_cost_ratio_(fill_cost_ratio(options)) {
  CHECK(options.size > 0 && options.stage_count > 0);
  CHECK(options.cuts_prompts || options.mode == Chunking::kFixed, "whole prompts in chunks of other sizes");
}

void Chunker::observe(StageId stage, const BatchShape& shape, double run_us) {
  costs_.observe(stage, shape, run_us);
  add_sample(stage, shape, run_us);
}

void Chunker::calibrate(StageId stage, const BatchShape& shape, double run_us) {
  costs_.calibrate(stage, shape, run_us);
  add_sample(stage, shape, run_us);
}

void Chunker::add_sample(StageId stage, const BatchShape& shape, double run_us) {
  const bool one_prompt = shape.decode_count == 0 && shape.prefill_pairs == shape.prefill_tokens * shape.prefill_tokens;
  if (stage == StageId(0) && one_prompt && !published_ && profile_samples_.size() < kMaxProfileSamples) {
    profile_samples_.emplace_back(shape.prefill_tokens, run_us);
  }
}

void Chunker::finish_profile() {
  costs_.set_prior();
  published_ = QuadraticFit::fit(profile_samples_);
}

void Chunker::begin(const BatchShape& decodes, const std::vector<uint32_t>& backlog) {
  shape_ = decodes;
  tokens_left_ = options_.size;
  has_chunk_ = false;
  target_us_ = 0;
  if (backlog.empty()) peak_target_us_ = 0;
  if (!is_balanced() || backlog.empty()) return;
  target_us_ = peak_target_us_ = balanced_target(backlog);
}

// k equal chunks of a backlog of R finish after a time proportional to (filling + k)·(c + R/k), which is shortest for
// R/k = √(R·c/filling). If the largest chunk takes less at a prompt's start, chunks can't all take that time. The
// geometric mean of both then pays c less often than equal chunks would, and chunks differ little. While prompts wait
// the target does not fall: the pipeline was filled by chunks of that time, and shorter ones would only pay c more
// often.
double Chunker::balanced_target(const std::vector<uint32_t>& backlog) const {
  const double largest_us = costs_.slowest_prompt_us(options_.size);
  if (fill_cost_ratio_ == 0) return largest_us;
  const double fixed = costs_.slowest_prompt_us(0);
  const double max_filled = kMaxTarget * kMaxTarget * largest_us - fixed;
  // A longer backlog does not change the target, which is at its bound.
  const double enough = max_filled * max_filled * fill_cost_ratio_ / fixed;
  double total = 0;
  for (const uint32_t length : backlog) {
    total += costs_.slowest_prompt_us(length) - fixed;
    if (total > enough) break;
  }
  double wanted = fixed + std::sqrt(total * fixed / fill_cost_ratio_);
  if (wanted > largest_us) wanted = std::sqrt(wanted * largest_us);
  const uint32_t min_tokens = std::min(kMinAlignedBlocks * alignment_, options_.size);
  const double min_us = std::max(kMinTarget * largest_us, costs_.slowest_prompt_us(min_tokens));
  return std::clamp(std::max(wanted, peak_target_us_), min_us, kMaxTarget * largest_us);
}

uint32_t Chunker::step_near(double tokens) const {
  uint32_t step = alignment_;
  while (step / 2 >= kFinestAlignment && kMinSteps * step > tokens) step /= 2;
  return step;
}

uint32_t Chunker::rounded_down(double tokens, uint32_t step) const {
  const double bounded = std::min(tokens, static_cast<double>(options_.size));
  return static_cast<uint32_t>(bounded) / step * step;
}

uint32_t Chunker::published_size(uint32_t prefix) const {
  const double computed = published_->chunk_for(prefix, options_.size);
  const double smoothed = options_.size + options_.smoothing * (computed - options_.size);
  const double bounded = std::max(smoothed, static_cast<double>(options_.size) / kMinPart);
  return std::max(rounded_down(bounded, alignment_), alignment_);
}

double Chunker::target_us(const Prompt& prompt) const {
  if (prompt.last_target_us == 0) return target_us_;
  return prompt.last_target_us + options_.smoothing * (target_us_ - prompt.last_target_us);
}

// A part of the prompt's first chunk is no lower bound: after a long prefix it would take many times the target.
uint32_t Chunker::balanced_chunk(const Prompt& prompt, uint32_t max_tokens) const {
  const double target = has_chunk_ ? target_us_ : target_us(prompt);
  const double alone = costs_.chunk_for({}, prompt.prefix, target);
  const double added = costs_.chunk_for(shape_, prompt.prefix, target);
  const double wanted = has_chunk_ ? added : std::max(added, alone / kMinPart);
  const bool takes_all = max_tokens == prompt.left;
  if (takes_all && wanted >= max_tokens) return max_tokens;
  const uint32_t step = step_near(alone);
  const double to_nearest = !has_chunk_ && step < alignment_ ? 0.5 * step : 0;
  const uint32_t chunk = std::max(rounded_down(wanted + to_nearest, step), has_chunk_ ? 0 : step);
  if (chunk < max_tokens) return chunk;
  return takes_all ? max_tokens : rounded_down(max_tokens, step);
}

uint32_t Chunker::budget_for(const Prompt& prompt) const {
  const bool resize = options_.mode == Chunking::kPublished && published_ && !has_chunk_;
  return resize ? std::min(tokens_left_, published_size(prompt.prefix)) : tokens_left_;
}

uint32_t Chunker::chunk_tokens(const Prompt& prompt) const {
  CHECK(prompt.left > 0);
  const uint32_t max_tokens = std::min(prompt.left, budget_for(prompt));
  if (!options_.cuts_prompts) return max_tokens == prompt.left ? max_tokens : 0;
  return is_balanced() ? balanced_chunk(prompt, max_tokens) : max_tokens;
}

void Chunker::add_chunk(const Prompt& prompt, uint32_t tokens) {
  tokens_left_ = budget_for(prompt) - tokens;
  shape_.add_prefill(prompt.prefix, tokens);
  has_chunk_ = true;
}

bool Chunker::fits_whole(const Prompt& prompt, uint32_t max_tokens) const {
  if (prompt.left > max_tokens || prompt.left > tokens_left_) return false;
  return !is_balanced() || costs_.chunk_for(shape_, prompt.prefix, target_us_) >= prompt.left;
}

void Chunker::add_short(const Prompt& prompt) {
  tokens_left_ -= prompt.left;
  shape_.add_prefill(prompt.prefix, prompt.left);
}

}  // namespace millrace::sched
