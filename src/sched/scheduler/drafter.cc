#include "sched/scheduler/drafter.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/hash.h"

namespace millrace::sched {
namespace {

/// Tokens that have to be alike for what follows them to be expected again.
constexpr size_t kGram = 3;
constexpr size_t kMaxIndexedPerCall = 65536;
constexpr size_t kMinSlots = 256;
/// Tokens of a prediction, from where the answer has come to and from its beginning, that are looked through for each
/// token that leaves it.
constexpr size_t kMaxSearched = 8192;
/// Before anything is known of a sequence, by source.
constexpr std::array<double, kDraftSources> kPrior = {0.5, 0.8, 0.9};
/// What one draft counts beside those before it, and what a step without one moves the estimate back to the prior.
constexpr double kLearningRate = 0.15;
constexpr double kAcceptanceDecay = 0.01;

std::span<const TokenId> last_gram(std::span<const TokenId> tokens) {
  return tokens.last(kGram);
}

}  // namespace

Drafter::Drafter(uint32_t prompt_length, std::vector<TokenId> prediction, bool uses_history)
    : prompt_length_(prompt_length),
      prediction_(std::move(prediction)),
      uses_history_(uses_history),
      acceptance_(kPrior) {}

/// What is expected to come next. One token may stand for another; behind two it is another text.
std::span<const TokenId> Drafter::predicted() const {
  return misses_ > 1 ? std::span<const TokenId>() : std::span(prediction_).subspan(predicted_at_);
}

std::vector<Draft> Drafter::propose(std::span<const TokenId> tokens, size_t most) {
  follow(tokens);
  std::vector<Draft> drafts;
  if (indexed_tokens_ < tokens.size()) return drafts;
  const std::span<const TokenId> expected = predicted();
  for (const TokenId token : expected.first(std::min(most, expected.size()))) {
    drafts.push_back({token, DraftSource::kPrediction, nullptr});
  }
  if (!drafts.empty() || !history_at_) return drafts;
  // Where that runs into the end of the sequence, the sequence goes on as the drafts do.
  for (size_t at = *history_at_; drafts.size() < most; ++at) {
    const TokenId token = at < tokens.size() ? tokens[at] : drafts[at - tokens.size()].token;
    drafts.push_back({token, DraftSource::kHistory, nullptr});
  }
  return drafts;
}

void Drafter::follow(std::span<const TokenId> tokens) {
  if (uses_history_ && ends_.size() < 2 * tokens.size()) grow(tokens);
  for (const size_t end = std::min(tokens.size(), indexed_tokens_ + kMaxIndexedPerCall); indexed_tokens_ < end;) {
    const TokenId token = tokens[indexed_tokens_];
    if (history_at_) history_at_ = tokens[*history_at_] == token ? std::optional(*history_at_ + 1) : std::nullopt;
    ++indexed_tokens_;
    if (uses_history_) index(tokens.first(indexed_tokens_));
    if (indexed_tokens_ > prompt_length_ && !prediction_.empty()) follow_prediction(tokens.first(indexed_tokens_));
  }
}

// The newest token is what was predicted, or stands instead of it, or the answer goes on as the prediction does
// elsewhere, behind the next place that it has not come to yet if there is one.
void Drafter::follow_prediction(std::span<const TokenId> tokens) {
  const auto expected = predicted();
  if (!expected.empty()) {
    misses_ = expected.front() == tokens.back() ? 0 : misses_ + 1;
    ++predicted_at_;
    if (misses_ == 0) return;
  }
  if (tokens.size() < prompt_length_ + kGram) return;
  const auto gram = last_gram(tokens);
  for (const size_t from : {predicted_at_, size_t{0}}) {
    const auto rest = std::span(prediction_).subspan(from);
    const auto searched = rest.first(std::min(rest.size(), kMaxSearched));
    const auto found = std::ranges::search(searched, gram);
    if (found.empty()) continue;
    predicted_at_ = from + static_cast<size_t>(found.begin() - searched.begin()) + kGram;
    misses_ = 0;
    return;
  }
}

void Drafter::index(std::span<const TokenId> tokens) {
  if (tokens.size() < kGram) return;
  uint32_t& end = end_of_gram(tokens);
  if (!history_at_ && end > 0) history_at_ = end;
  end = static_cast<uint32_t>(tokens.size());
}

/// Has room for all of `tokens`, and what has been seen of them.
void Drafter::grow(std::span<const TokenId> tokens) {
  ends_.assign(std::bit_ceil(std::max(kMinSlots, 4 * tokens.size())), 0);
  for (size_t end = kGram; end <= indexed_tokens_; ++end) {
    end_of_gram(tokens.first(end)) = static_cast<uint32_t>(end);
  }
}

/// The slot of the last n-gram of `tokens`.
uint32_t& Drafter::end_of_gram(std::span<const TokenId> tokens) {
  const auto gram = last_gram(tokens);
  for (size_t at = hash_bytes(std::as_bytes(gram));; ++at) {
    uint32_t& end = ends_[at & (ends_.size() - 1)];
    if (end == 0 || std::ranges::equal(last_gram(tokens.first(end)), gram)) return end;
  }
}

void Drafter::record_outcome(std::span<const Draft> drafts, size_t accepted) {
  for (size_t i = 0; i < std::min(drafts.size(), accepted + 1); ++i) {
    double& known = acceptance_[static_cast<size_t>(drafts[i].source)];
    known += kLearningRate * ((i < accepted ? 1.0 : 0.0) - known);
  }
}

void Drafter::skip(DraftSource source) {
  const auto at = static_cast<size_t>(source);
  acceptance_[at] += kAcceptanceDecay * (kPrior[at] - acceptance_[at]);
}

}  // namespace millrace::sched
