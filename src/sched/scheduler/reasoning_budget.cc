#include "sched/scheduler/reasoning_budget.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"
#include "grammar/vocabulary.h"

namespace millrace::sched {
namespace {

/// The bytes that may follow the first one of a character.
constexpr size_t kMaxContinuation = 3;

/// Returns whether the text ends inside a character.
bool ends_inside_character(std::string_view text) {
  for (size_t length = std::min(kMaxContinuation, text.size()); length > 0; --length) {
    const DecodedUtf8 last = decode_utf8(text.substr(text.size() - length));
    if (last.truncated && last.length == length) return true;
  }
  return false;
}

}  // namespace

ReasoningBudget::ReasoningBudget(std::shared_ptr<const ReasoningLimit> limit)
    : limit_(std::move(limit)), phase_(limit_->begins_inside ? Phase::kInside : Phase::kBefore) {
  CHECK(!limit_->end_tokens.empty(), "no token spells the end of the reasoning");
}

void ReasoningBudget::append(TokenId token) {
  if (phase_ == Phase::kAfter) return;
  if (phase_ == Phase::kInside) {
    ++spent_;
    const bool is_next = forced_count_ < limit_->end_tokens.size() && token == limit_->end_tokens[forced_count_];
    forced_count_ = spent_ > limit_->max_tokens && is_next ? forced_count_ + 1 : 0;
  }
  text_ += limit_->vocabulary->text_of(token);
  if (phase_ == Phase::kBefore) {
    look_for_start();
  } else {
    look_for_end();
  }
}

void ReasoningBudget::look_for_start() {
  text_.erase(0, std::min(text_.find_first_not_of(" \t\r\n"), text_.size()));
  const std::string_view start = limit_->start;
  if (text_.starts_with(start)) {
    phase_ = Phase::kInside;
    text_.erase(0, start.size());
    look_for_end();
  } else if (!start.starts_with(text_)) {
    phase_ = Phase::kAfter;
  }
}

void ReasoningBudget::look_for_end() {
  const std::string& early = limit_->early_end;
  const auto has = [this](const std::string& tag) { return !tag.empty() && text_.find(tag) != std::string::npos; };
  if (has(limit_->end) || has(early) || forced_count_ == limit_->end_tokens.size()) {
    phase_ = Phase::kAfter;
    return;
  }
  const size_t kept = std::max({limit_->end.size(), early.size(), kMaxContinuation});
  if (text_.size() > kept) text_.erase(0, text_.size() - kept);
}

std::optional<TokenId> ReasoningBudget::forced() const {
  if (phase_ != Phase::kInside || spent_ < limit_->max_tokens) return std::nullopt;
  const bool may_wait = forced_count_ == 0 && spent_ - limit_->max_tokens < kMaxContinuation;
  if (may_wait && ends_inside_character(text_)) return std::nullopt;
  return limit_->end_tokens[forced_count_];
}

std::shared_ptr<const TokenMask> ReasoningBudget::forced_mask(const TokenMask* allowed) const {
  const std::optional<TokenId> token = forced();
  if (!token || (allowed != nullptr && !allowed->contains(*token))) return nullptr;
  TokenMask mask(limit_->vocabulary->size());
  mask.add(*token);
  return std::make_shared<const TokenMask>(std::move(mask));
}

size_t ReasoningBudget::free_tokens() const {
  const size_t limit = limit_->max_tokens;
  switch (phase_) {
    case Phase::kBefore: return limit + 1;
    case Phase::kInside: return limit - std::min<size_t>(limit, spent_);
    case Phase::kAfter: break;
  }
  return std::numeric_limits<size_t>::max();
}

}  // namespace millrace::sched
