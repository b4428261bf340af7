#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "async/runtime.h"
#include "base/result.h"

/// The engine's interface for its clients: requests go in as token ids, and tokens come out. Text stays with the
/// client.
namespace millrace::sched {

class RingSet;
class RingView;
enum class PauseMode : uint8_t;
struct EngineStatus;
struct GenerateEvent;
struct GenerateRequest;
struct ModelInfo;

/// The client's end of a request in flight, owned by the client. Used on one Runtime only. Destroying it before the
/// last event aborts the request and frees its pages.
class TokenStream {
 public:
  virtual ~TokenStream() = default;
  /// Waits for the next event. It must not be called again after an event with last(). A cancelled wait throws
  /// operation_aborted and loses nothing.
  virtual asio::awaitable<GenerateEvent> next() = 0;
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
  /// Ends the waiting requests that have never run and name no ring, each with an event that is_returned and this
  /// reason. Returns false where that is impossible.
  virtual bool return_waiting(const std::string& reason) = 0;
  /// Breaks the ring for `reason`; it is built again at once. Running requests end with an error. Returns false as
  /// pause() does.
  virtual bool rebuild(const std::string& reason) = 0;
  /// Returns the rings that this engine routes between; null: it is one ring.
  [[nodiscard]] virtual RingSet* rings() { return nullptr; }
  /// Returns the ring's statistics, for use while the engine lives; null while there are none.
  [[nodiscard]] virtual std::shared_ptr<const RingView> ring_stats() const { return nullptr; }
};

}  // namespace millrace::sched
