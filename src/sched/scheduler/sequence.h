#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "cache/prefix_cache.h"
#include "grammar/grammar.h"
#include "sched/scheduler/drafter.h"
#include "sched/plan/request.h"

namespace millrace::sched {

/// A request on its way through the scheduler, which owns it; plain data.
struct Sequence {
  SequenceId id;
  GenerateRequest request;      ///< without its prompt, which has become the beginning of `tokens`
  std::vector<TokenId> tokens;  ///< prompt, then what was drawn
  uint32_t prompt_length = 0;
  uint32_t scheduled = 0;     ///< tokens that have been put into plans since it was opened
  uint32_t match_tokens = 0;  ///< while it waits: that `match` covers
  uint32_t in_flight = 0;     ///< plans that carry it and whose output has not come back
  bool running = false;       ///< holds a slot and pages
  SlotId slot;
  cache::PageTable page_table;            ///< its pages, while it runs
  uint32_t sent_pages = 0;                ///< how many of them the stages know
  uint64_t table_digest = 0;              ///< of those, as SequenceTable keeps it
  std::optional<uint32_t> cached_tokens;  ///< prompt tokens found in the cache when it was admitted first
  cache::RadixTree::Match match;          ///< while it waits: as of match_version
  uint64_t match_version = UINT64_MAX;
  bool awaits_prefetch = false;  ///< not admitted before its prefetch has ended
  std::vector<tensor::TokenLogprobs> prompt_logprobs;
  bool prompt_logprobs_sent = false;  ///< delivered, so that a recomputation after retraction does not score again
  double last_target_us = 0;          ///< Chunker::target_us of its prompt's last chunk; 0: none since it was opened
  uint32_t bypasses = 0;              ///< how often it has been overtaken, or sent back for a larger priority
  std::optional<grammar::Matcher> matcher;   ///< of a request with a grammar, behind what was drawn
  std::shared_ptr<const TokenMask> allowed;  ///< what it lets be drawn next; null: not asked yet
  std::unique_ptr<Drafter> drafter;          ///< where drafts are made
  std::vector<Draft> drafts;                 ///< of its decode step in flight
  uint64_t last_planned = 0;                 ///< turn of its last slice: who waits longest decodes first

  [[nodiscard]] uint32_t output_count() const { return static_cast<uint32_t>(tokens.size()) - prompt_length; }
  /// Tokens in the cache, or in plans that will put them there; while it waits, those that it would find there.
  [[nodiscard]] uint32_t computed() const { return running ? scheduled : match_tokens; }
  [[nodiscard]] uint32_t unscheduled() const { return static_cast<uint32_t>(tokens.size()) - scheduled; }
  /// What a cache may supply: the last token is always computed, since a token is drawn from it.
  [[nodiscard]] std::span<const TokenId> reusable_tokens() const { return std::span(tokens).first(tokens.size() - 1); }
  [[nodiscard]] bool wants_prompt_logprobs() const { return request.prompt_top_logprobs >= 0 && !prompt_logprobs_sent; }
  [[nodiscard]] bool prefilling() const { return running && unscheduled() > 0 && !decoding(); }
  /// All but the token drawn last is in the cache: the next step is a decode step.
  [[nodiscard]] bool decoding() const { return running && output_count() > 0 && scheduled + 1 >= tokens.size(); }
};

}  // namespace millrace::sched
