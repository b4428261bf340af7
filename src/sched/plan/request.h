#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "sched/plan/pooling.h"
#include "tensor/sampling.h"

namespace millrace::grammar {
class Grammar;
class Vocabulary;
}  // namespace millrace::grammar

namespace millrace::sched {

/// A bound on the reasoning of an output. Reasoning that reaches it is ended by the tokens that spell its end.
struct ReasoningLimit {
  uint32_t max_tokens = 0;                                ///< between the tags
  bool begins_inside = false;                             ///< the prompt has opened the reasoning
  std::string start;                                      ///< the text that opens it, if the output begins with it
  std::string end;                                        ///< the text that ends it
  std::string early_end;                                  ///< another text that ends it; empty: none
  std::vector<TokenId> end_tokens;                        ///< spell `end`; at least one
  std::shared_ptr<const grammar::Vocabulary> vocabulary;  ///< what tokens spell, tags included
};

/// A request for one output to one prompt, or for one vector. Owned by the caller until submitted.
struct GenerateRequest {
  std::string id;                    ///< for logs and abort; unique among the requests in flight
  std::vector<TokenId> prompt;       ///< at least one token
  tensor::SamplingParams sampling;   ///< stop_token_ids: eos and the client's; empty to ignore eos
  uint32_t max_tokens = 16;          ///< 0 only with prompt_top_logprobs >= 0 (scoring), or with `pooling`
  int32_t prompt_top_logprobs = -1;  ///< -1: none; 0: each prompt token's logprob; k: also k alternatives
  Pooling pooling = Pooling::kNone;  ///< other than kNone: max_tokens is 0 and prompt_top_logprobs -1
  uint32_t second_text = 0;          ///< prompt position of the second text of a pair, for an encoder; 0: none
  int32_t priority = 0;              ///< larger goes first under the priority policy
  std::string cache_salt;            ///< prefixes are shared only between requests of equal salt
  std::shared_ptr<const grammar::Grammar> grammar;        ///< what the output must match; null: anything
  std::shared_ptr<const std::string> grammar_source;      ///< what `grammar` is compiled from in another process
  std::shared_ptr<const ReasoningLimit> reasoning_limit;  ///< null: reasoning ends where the model ends it
  std::vector<TokenId> prediction;                        ///< the output that the client expects; empty: none
  std::optional<uint32_t> ring;                           ///< the ring that must run it, of several; none: any
  int64_t waited_us = 0;                                  ///< time that it has spent in the queues of other rings
  bool reports_start = false;                             ///< its first plan gives an event without content
};

}  // namespace millrace::sched
