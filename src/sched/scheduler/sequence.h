#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "cache/prefix_cache.h"
#include "grammar/matcher.h"
#include "sched/plan/request.h"
#include "sched/scheduler/drafter.h"
#include "sched/scheduler/reasoning_budget.h"

namespace millrace::sched {

/// One request inside the scheduler, from the queue to its end. Plain data, owned by SchedulerState.
struct Sequence {
  SequenceId id;
  GenerateRequest request;      ///< without its prompt, which is the beginning of `tokens`
  std::vector<TokenId> tokens;  ///< the prompt, then the sampled tokens
  uint32_t prompt_length = 0;
  uint32_t scheduled = 0;     ///< while it runs: tokens that are cached or in plans already
  uint32_t replayed = 0;      ///< accepted drafts after these, whose states are not kept: the next step has them again
  uint32_t match_tokens = 0;  ///< while it waits: tokens that `match` covers
  uint32_t in_flight = 0;     ///< plans in flight that have a slice of it
  bool running = false;       ///< it has a slot and pages
  SlotId slot;
  cache::PageTable page_table;  ///< its pages, while it runs
  uint32_t sent_pages = 0;      ///< pages that earlier plans have sent to the stages
  uint64_t table_digest = 0;    ///< digest of the sent pages (sched::table_digest)
  struct SentWindow {
    uint32_t end = 0;     ///< index of the first page that no plan has sent
    uint64_t digest = 0;  ///< digest of the sent pages
  };
  std::vector<SentWindow> sent_windows;   ///< [window groups], once a plan has sent pages
  std::optional<uint32_t> cached_tokens;  ///< prompt tokens found in the cache at its first admission
  cache::RadixTree::Match match;          ///< while it waits: what the cache had at match_version
  uint64_t match_version = UINT64_MAX;
  bool awaits_prefetch = false;  ///< its admission waits for its prefetch
  std::vector<tensor::TokenLogprobs> prompt_logprobs;
  bool prompt_logprobs_sent = false;         ///< delivered: a prefill after a retraction does not score again
  double last_target_us = 0;                 ///< Chunker::target_us of its last chunk; 0: no chunk since its admission
  uint32_t bypasses = 0;                     ///< times that others overtook it, or that it was preempted
  std::optional<grammar::Matcher> matcher;   ///< with a grammar: the state after `tokens`
  std::shared_ptr<const TokenMask> allowed;  ///< tokens that the grammar allows next; null: not known yet
  std::optional<ReasoningBudget> reasoning_budget;  ///< with a reasoning limit: the state after `tokens`
  std::unique_ptr<Drafter> drafter;                 ///< created with the first decode step that may have drafts
  std::vector<Draft> drafts;                        ///< drafts of its decode step in flight
  uint64_t last_planned = 0;                        ///< turn of its last slice: the longest waiting one decodes first

  [[nodiscard]] uint32_t output_count() const { return static_cast<uint32_t>(tokens.size()) - prompt_length; }
  /// Returns the tokens that are cached or in plans already; while it waits, the tokens that it would find cached.
  [[nodiscard]] uint32_t computed() const { return running ? scheduled : match_tokens; }
  [[nodiscard]] uint32_t unscheduled() const { return static_cast<uint32_t>(tokens.size()) - scheduled; }
  /// Returns the tokens that a cache may supply. The last token is always computed, since its row is sampled.
  [[nodiscard]] std::span<const TokenId> reusable_tokens() const { return std::span(tokens).first(tokens.size() - 1); }
  /// Returns whether its result depends on the rows of all its tokens, so that no cache may supply any.
  [[nodiscard]] bool needs_all_rows() const {
    return wants_prompt_logprobs() || request.pooling == Pooling::kMean || request.pooling == Pooling::kFirst;
  }
  /// Returns whether its next token mask is not computed yet, so that nothing of it can be sampled.
  [[nodiscard]] bool awaits_mask() const { return matcher && !matcher->is_settled(); }
  [[nodiscard]] bool wants_prompt_logprobs() const { return request.prompt_top_logprobs >= 0 && !prompt_logprobs_sent; }
  /// Returns whether it runs and a part of its prompt is in no plan yet.
  [[nodiscard]] bool prefilling() const { return running && unscheduled() > 0 && !decoding(); }
  /// Returns whether all tokens but the newest, and those to be replayed, are scheduled: its next slice is a decode
  /// step.
  [[nodiscard]] bool decoding() const {
    return running && output_count() > 0 && scheduled + replayed + 1 >= tokens.size();
  }
};

/// Returns a waiting sequence; the request's prompt becomes the beginning of its tokens.
[[nodiscard]] std::unique_ptr<Sequence> make_sequence(SequenceId id, GenerateRequest request);

/// What a request has to keep to in order to run.
struct RequestLimits {
  uint32_t context_length = 0;
  uint32_t vocab_size = 0;      ///< token ids that every stage knows; 0: no bound
  bool has_output_head = true;  ///< the last stage can sample and score; else it only pools
};
/// Returns the maximum prompt tokens of such a request: one token of the context is for what it samples first.
[[nodiscard]] inline size_t max_prompt_length(const GenerateRequest& request, uint32_t context_length) {
  return context_length - (request.max_tokens > 0 ? 1 : 0);
}
/// Returns kInvalidArgument if the request could never run: its prompt is empty, too long, or has unknown tokens, or it
/// generates without an output head.
[[nodiscard]] Result<void> check_request(const GenerateRequest& request, const RequestLimits& limits);

/// Returns whether one of the grammar's end tokens is a stop token. With ignore_eos none is.
[[nodiscard]] bool samples_end_token(const grammar::Grammar& grammar, const tensor::SamplingParams& sampling);

}  // namespace millrace::sched
