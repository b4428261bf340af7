#include "sched/scheduler/drafter.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/hash.h"

namespace millrace::sched {
namespace {

/// Length of the n-grams: tokens that must recur for their successor to be expected again.
constexpr size_t kGram = 3;
constexpr size_t kMaxIndexedPerCall = 65536;
constexpr size_t kMinSlots = 256;
/// Tokens of a prediction that are searched when the output leaves it, from its current token and from its beginning.
constexpr size_t kMaxSearched = 8192;
/// Initial acceptance by source.
constexpr std::array<double, kDraftSources> kInitialAcceptance = {0.5, 0.8, 0.9};
/// Weight of one draft in the estimate, and of the initial acceptance in each step that skips a draft.
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
      acceptance_(kInitialAcceptance) {}

// One token may replace a predicted one; two in a row mean that the output has left the prediction.
std::span<const TokenId> Drafter::predicted() const {
  return misses_ > 1 ? std::span<const TokenId>() : std::span(prediction_).subspan(predicted_at_);
}

std::vector<Draft> Drafter::propose(std::span<const TokenId> tokens, size_t max_count) {
  follow(tokens);
  std::vector<Draft> drafts;
  if (indexed_tokens_ < tokens.size()) return drafts;
  const std::span<const TokenId> expected = predicted();
  for (const TokenId token : expected.first(std::min(max_count, expected.size()))) {
    drafts.push_back({token, DraftSource::kPrediction, nullptr});
  }
  if (!drafts.empty() || !history_at_) return drafts;
  // History that reaches the end of the sequence goes on with the drafts themselves.
  for (size_t at = *history_at_; drafts.size() < max_count; ++at) {
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

// The newest token is the predicted one, or it replaces it, or the output goes on as the prediction does elsewhere:
// after the same n-gram in the part that the output has not reached, else in the whole prediction.
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

// Rebuilds the table with room for all of `tokens`; it has those that were read.
void Drafter::grow(std::span<const TokenId> tokens) {
  ends_.assign(std::bit_ceil(std::max(kMinSlots, 4 * tokens.size())), 0);
  for (size_t end = kGram; end <= indexed_tokens_; ++end) {
    end_of_gram(tokens.first(end)) = static_cast<uint32_t>(end);
  }
}

// Returns the slot of the last n-gram of `tokens`.
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
  acceptance_[at] += kAcceptanceDecay * (kInitialAcceptance[at] - acceptance_[at]);
}

}  // namespace millrace::sched
