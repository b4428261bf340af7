#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "async/runtime.h"
#include "base/result.h"
#include "cache/cache_counts.h"
#include "sched/scheduler/drafter.h"
#include "sched/plan/request.h"

/// The engine's interface for its clients: requests go in as token ids, and tokens come out. Text stays with the
/// client.
namespace millrace::sched {

/// The client's end of a request in flight, owned by the client. Used on one Runtime only. Destroying it before the
/// last event aborts the request and frees its pages.
class TokenStream {
 public:
  virtual ~TokenStream() = default;
  /// Waits for the next event. It must not be called again after an event with last(). A cancelled wait throws
  /// operation_aborted and loses nothing.
  virtual asio::awaitable<GenerateEvent> next() = 0;
};

class RingStats;

struct ModelInfo {
  std::string architecture;     ///< of config.json, e.g. "LlamaForCausalLM"
  uint32_t context_length = 0;  ///< prompt + output, tokens
  uint32_t vocab_size = 0;      ///< ids that may be sampled; without an output head: ids of prompts
  uint32_t hidden_size = 0;     ///< length of pooled vectors
  bool generates = true;        ///< false: the model has no output head, and requests are pooled
  uint64_t parameter_count = 0;
  uint32_t stage_count = 0;
  uint32_t rank_count = 1;  ///< tensor-parallel ranks of each stage
  uint64_t kv_token_capacity = 0;
};

struct EngineStatus {
  bool ready = false;
  bool paused = false;
  std::string reason;  ///< why not ready
  uint32_t running = 0;
  uint32_t waiting = 0;
  uint64_t free_pages = 0;  ///< free, or cached and not in use
  uint64_t total_pages = 0;
  uint32_t page_size = 0;     ///< tokens
  uint64_t cached_pages = 0;  ///< on the device, in use or not
  uint64_t host_pages = 0;    ///< of the host tier
  uint64_t cached_host_pages = 0;
  cache::PrefixCacheCounts cache;
  uint64_t preemptions = 0;  ///< running requests sent back to the queue for lack of pages, since the start
  DraftCounts drafts;
};

/// The interface of the head, or of its stand-in during the start. Thread-safe. Outlives every TokenStream.
class Engine {
 public:
  virtual ~Engine() = default;
  /// Returns what is known of the model now. Context and capacity follow the KV cache, which a new ring may change.
  [[nodiscard]] virtual ModelInfo model_info() const = 0;
  [[nodiscard]] virtual EngineStatus status() const = 0;
  /// Queues a request; its stream is used on the client's `runtime`. Errors: kInvalidArgument (empty prompt, or one
  /// that the context or the cache can never hold), kExhausted (too many arrive at once), kUnavailable (not ready, ring
  /// broken, draining). The message of kInvalidArgument says how many tokens would fit. When the queue is full, the
  /// only event of the stream is kExhausted.
  [[nodiscard]] virtual Result<std::unique_ptr<TokenStream>> submit(GenerateRequest request,
                                                                    async::Runtime& runtime) = 0;
  /// Ends the request with this id as kAbort. Returns false if none is in flight.
  virtual bool abort(const std::string& request_id) = 0;
  /// Forgets all cached prefixes. While requests wait or run, it waits for at most `timeout`, and then returns
  /// kConflict. The awaiting coroutine runs on `runtime`.
  [[nodiscard]] virtual asio::awaitable<Result<void>> flush_cache(async::Runtime& runtime, async::Duration timeout) = 0;
  /// Stops scheduling until resume(); running requests stand still, go back to the queue, or end as kAbort. Returns
  /// false before the start is over and after the end.
  virtual bool pause(PauseMode mode) = 0;
  virtual bool resume() = 0;
  /// Returns the ring's statistics, which live as long as the engine; null when there are none.
  [[nodiscard]] virtual const RingStats* ring_stats() const { return nullptr; }
};

}  // namespace millrace::sched
