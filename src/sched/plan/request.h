#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "tensor/sampling.h"

namespace millrace::grammar {
class Grammar;
class Vocabulary;
}  // namespace millrace::grammar

/// A client's request to the engine and the events that it gets back; plain data.
namespace millrace::sched {

enum class FinishReason : uint8_t {
  kStop,    ///< a stop token was sampled, which is the last one delivered; the grammar is at its end; a vector is there
  kLength,  ///< max_tokens were generated, or the context is full
  kAbort,   ///< the client or an administrator ended it
};

/// The rows of the last layer from which the vector of a prompt is made, after the final norm.
enum class Pooling : uint8_t {
  kNone,   ///< no vector: the request generates or scores
  kFirst,  ///< the first token's row
  kLast,   ///< the last token's row
  kMean,   ///< the mean of all rows
};

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
  int32_t priority = 0;              ///< larger goes first under the priority policy
  std::string cache_salt;            ///< prefixes are shared only between requests of equal salt
  std::shared_ptr<const grammar::Grammar> grammar;        ///< what the output must match; null: anything
  std::shared_ptr<const ReasoningLimit> reasoning_limit;  ///< null: reasoning ends where the model ends it
  std::vector<TokenId> prediction;                        ///< the output that the client expects; empty: none
  std::optional<uint32_t> ring;                     ///< the ring that must run it, of several; none: any
  int64_t waited_us = 0;                            ///< time that it has spent in the queues of other rings
};

/// What a pause does with running requests.
enum class PauseMode : uint8_t {
  kInPlace,  ///< keeps their slots and pages
  kRetract,  ///< sends them back to the queue and frees their pages
  kAbort,    ///< ends them and all waiting requests
};

struct Timings {
  int64_t queued_us = 0;   ///< submit to first scheduling
  int64_t prefill_us = 0;  ///< first scheduling to first token
};

/// What has happened to a request since its last event. Events that come while the client is busy are merged.
struct GenerateEvent {
  std::vector<TokenId> tokens;
  std::vector<tensor::TokenLogprobs> logprobs;  ///< [tokens] if requested, else empty
  /// [prompt] in the first event if requested, else empty. The first token has no logprob: its value is NaN.
  std::vector<tensor::TokenLogprobs> prompt_logprobs;
  std::vector<float> pooled;           // [hidden] in the last event of a request with pooling, else empty
  uint32_t cached_tokens = 0;          ///< prompt tokens whose KV came from the cache
  uint32_t accepted_predictions = 0;   ///< drafts from the prediction that were accepted
  uint32_t rejected_predictions = 0;   ///< drafts from the prediction that were rejected
  std::optional<FinishReason> finish;  ///< set in the last event of a request that ended well
  std::optional<Error> error;          ///< set in the last event of a request that failed
  bool is_returned = false;            ///< with `error`: it has never run, and may run on another ring
  Timings timings;
  [[nodiscard]] bool last() const { return finish.has_value() || error.has_value(); }
};

}  // namespace millrace::sched
