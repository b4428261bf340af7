#include "cpu/token_choice.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "base/check.h"

namespace millrace::cpu {
namespace {

constexpr float kLargestScore = std::numeric_limits<float>::infinity();
constexpr int kBucketBits = 12;
constexpr int kShift = 32 - kBucketBits;

/// Returns a number that grows with `score`, which is not NaN.
uint32_t rank_of(float score) {
  const auto bits = std::bit_cast<uint32_t>(score);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

/// Returns the smallest score of a bucket.
float least_of(uint32_t bucket) {
  const uint32_t rank = bucket << kShift;
  const float least = std::bit_cast<float>((rank >> 31) != 0 ? rank & 0x7FFFFFFFu : ~rank);
  return std::isnan(least) ? -kLargestScore : least;
}

}  // namespace

void TokenChoice::choose(const Kernels& kernels, std::span<float> scores, std::span<int32_t> chosen) {
  CHECK(scores.size() > chosen.size() && !chosen.empty(), "{} of {} scores", chosen.size(), scores.size());
  counts_.assign(size_t{1} << kBucketBits, 0);
  for (float& score : scores) {
    score = std::isnan(score) ? kLargestScore : score + 0.0f;  // zeros of both signs are equal, and one bucket's
    ++counts_[rank_of(score) >> kShift];
  }
  // The last score that is chosen lies in the first bucket, from above, with which there are enough.
  uint32_t bucket = (1u << kBucketBits) - 1;
  size_t above = 0;
  while (above + counts_[bucket] < chosen.size()) above += counts_[bucket--];
  candidates_.resize(above + counts_[bucket] + 16);
  const auto count = kernels.collect(scores.data(), least_of(bucket), static_cast<int64_t>(scores.size()),
                                     candidates_.data(), static_cast<int64_t>(candidates_.size()));
  candidates_.resize(static_cast<size_t>(count));
  bucket_.clear();
  for (const int32_t id : candidates_) {
    const float score = scores[static_cast<size_t>(id)];
    if (rank_of(score) >> kShift == bucket) bucket_.push_back(score);
  }
  const auto last = bucket_.begin() + static_cast<std::ptrdiff_t>(chosen.size() - above - 1);
  std::ranges::nth_element(bucket_, last, std::greater<>());
  const float least = *last;
  size_t equal = chosen.size() - above -
                 static_cast<size_t>(std::count_if(bucket_.begin(), last, [least](float x) { return x > least; }));
  size_t found = 0;
  for (const int32_t id : candidates_) {
    const float score = scores[static_cast<size_t>(id)];
    if (score < least || (score == least && equal == 0)) continue;
    if (score == least) --equal;
    chosen[found++] = id;
  }
  CHECK(found == chosen.size(), "{} of {} tokens are chosen", found, chosen.size());
}

}  // namespace millrace::cpu
