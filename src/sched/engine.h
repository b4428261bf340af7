#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "async/runtime.h"
#include "base/ids.h"
#include "base/result.h"
#include "tensor/sampling.h"

/// The engine as its clients see it: requests go in as token ids, tokens come out. Text stays with the client.
namespace millrace::sched {

enum class FinishReason : uint8_t {
  kStop,    ///< a token of stop_token_ids was drawn; it is the last of the tokens delivered
  kLength,  ///< max_tokens were drawn, or the context is full
  kAbort,   ///< the client or an administrator ended it
};

/// One continuation of one prompt. Owned by the caller until submitted.
struct GenerateRequest {
  std::string id;                          ///< for logs and abort; unique among the requests in flight
  std::vector<TokenId> prompt;             ///< at least one token
  tensor::SamplingParams sampling;         ///< stop_token_ids: eos and the user's; empty to ignore eos
  uint32_t max_tokens = 16;                ///< 0 only with prompt_top_logprobs >= 0 (scoring)
  int32_t prompt_top_logprobs = -1;        ///< -1: none; 0: each prompt token's logprob; k: also k alternatives
  int32_t priority = 0;                    ///< larger goes first under the priority policy
  std::string cache_salt;                  ///< prefixes are shared only between requests of equal salt
};

struct Timings {
  int64_t queued_us = 0;   ///< submit to first scheduling
  int64_t prefill_us = 0;  ///< first scheduling to first token
};

/// What has happened to a request since the last event; tokens that arrive while the client is busy are merged.
struct GenerateEvent {
  std::vector<TokenId> tokens;
  std::vector<tensor::TokenLogprobs> logprobs;  ///< one per token when asked for, else empty
  /// Once, with the first event, when asked for: [prompt.size()]; the first has no logprob (token only, NaN).
  std::vector<tensor::TokenLogprobs> prompt_logprobs;
  uint32_t cached_tokens = 0;                   ///< prompt tokens whose KV came from the cache
  std::optional<FinishReason> finish;           ///< set in the last event of a request that ended well
  std::optional<Error> error;                   ///< set in the last event of a request that failed
  Timings timings;
  [[nodiscard]] bool last() const { return finish.has_value() || error.has_value(); }
};

/// The client's end of a request in flight. Used on one Runtime only; destroying it before the last event aborts the
/// request and frees its pages.
class TokenStream {
 public:
  virtual ~TokenStream() = default;
  /// The next event; waits for one. After an event with last() it must not be called again. Cancellable: a cancelled
  /// wait throws operation_aborted and loses nothing.
  virtual asio::awaitable<GenerateEvent> next() = 0;
};

class RingStats;

struct ModelInfo {
  std::string architecture;      ///< of config.json, e.g. "LlamaForCausalLM"
  uint32_t context_length = 0;   ///< prompt + output, tokens
  uint32_t vocab_size = 0;       ///< drawable ids
  uint64_t parameter_count = 0;
  uint32_t stage_count = 0;
  uint64_t kv_token_capacity = 0;
};

struct EngineStatus {
  bool ready = false;
  std::string reason;            ///< why not ready
  uint32_t running = 0;
  uint32_t waiting = 0;
  uint64_t free_pages = 0;
  uint64_t total_pages = 0;
  uint64_t preemptions = 0;      ///< running requests sent back to the queue for want of pages, since the start
};

/// Thread-safe. Outlives every TokenStream.
class Engine {
 public:
  virtual ~Engine() = default;
  [[nodiscard]] virtual const ModelInfo& model_info() const = 0;
  [[nodiscard]] virtual EngineStatus status() const = 0;
  /// Queues a request; its stream is used on the client's `runtime`. Errors: kInvalidArgument (empty prompt, longer than the context
  /// or than the cache can ever hold; the message says how many tokens would fit), kExhausted (queue full),
  /// kUnavailable (not ready, ring broken, draining).
  [[nodiscard]] virtual Result<std::unique_ptr<TokenStream>> submit(GenerateRequest request,
                                                                    async::Runtime& runtime) = 0;
  /// Ends the request with this id as kAbort; false if none is in flight.
  virtual bool abort(const std::string& request_id) = 0;
  /// Where the ring's time goes; null if nobody watches. Lives as long as the engine.
  [[nodiscard]] virtual const RingStats* ring_stats() const { return nullptr; }
};

}  // namespace millrace::sched
