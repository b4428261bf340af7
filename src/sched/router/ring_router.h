#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "async/runtime.h"
#include "async/wait_list.h"
#include "sched/head/ring_set.h"
#include "sched/router/request_registry.h"
#include "sched/router/routing_policy.h"

namespace millrace::sched {

struct RouterOptions {
  LoadBalanceMethod method = LoadBalanceMethod::kCacheAware;
  uint32_t max_running = 1;         ///< requests that one ring runs at once
  uint32_t page_size = 64;          ///< tokens
  bool share_prefixes = true;       ///< rings keep prefixes for later requests
  async::Duration queue_timeout{};  ///< HeadOptions::queue_timeout; also for requests between two rings
};

/// The engine of several rings: it routes each request to one of them, and the queue of a ring that cannot run it to
/// the others. Owned by the app; thread-safe unless stated otherwise. The engines outlive it, and it outlives every
/// TokenStream. docs/rings.md is the contract.
class RingRouter final : public Engine, public RingSet {
 public:
  /// `runtime` runs run(). There are at least two engines; each is one ring.
  RingRouter(async::Runtime& runtime, std::vector<Engine*> rings, const RouterOptions& options);

  /// Watches the rings until stop(), on the router's Runtime. Without it queues do not move.
  [[nodiscard]] asio::awaitable<void> run();
  /// Ends run(), and requests that are between two rings. Requests on rings end with their heads.
  void stop();

  [[nodiscard]] ModelInfo model_info() const override;
  [[nodiscard]] EngineStatus status() const override;
  /// Acts as Engine::submit(). Further errors: kInvalidArgument for a ring that does not exist, kUnavailable for one
  /// that the request names and that takes no requests.
  [[nodiscard]] Result<std::unique_ptr<TokenStream>> submit(GenerateRequest request, async::Runtime& client) override;
  bool abort(const std::string& request_id) override;
  [[nodiscard]] asio::awaitable<Result<void>> flush_cache(async::Runtime& runtime, async::Duration timeout) override;
  bool pause(PauseMode mode) override;
  bool resume() override;
  bool return_waiting(const std::string&) override { return false; }
  bool rebuild(const std::string& reason) override;
  [[nodiscard]] RingSet* rings() override { return this; }

  [[nodiscard]] size_t size() const override { return rings_.size(); }
  [[nodiscard]] Engine& ring(size_t ring) override { return *rings_[ring].engine; }
  [[nodiscard]] RingReport report(size_t ring) const override;
  size_t abort_all(size_t ring) override;
  [[nodiscard]] asio::awaitable<Result<void>> flush(size_t ring, async::Runtime& runtime,
                                                    async::Duration timeout) override;
  [[nodiscard]] Result<void> drain(size_t ring) override;
  void undrain(size_t ring) override;
  bool restart(size_t ring) override;

 private:
  class Stream;
  enum class Restart : uint8_t { kNone, kAsked, kDown };  // kDown: it has broken, and is built again
  struct RingState {
    Engine* engine = nullptr;
    bool is_draining = false;
    Restart restart = Restart::kNone;
    bool was_ready = false;  // at the last look
    std::array<uint64_t, kRouteReasonNames.size()> routed{};
    uint64_t moved = 0;
  };
  using Statuses = std::vector<EngineStatus>;  // [rings]
  struct Placement {
    std::unique_ptr<TokenStream> stream;
    size_t ring = 0;
  };
  /// What becomes of a returned request: another stream, an end, or neither for now.
  using Move = std::variant<std::monostate, std::unique_ptr<TokenStream>, GenerateEvent>;

  [[nodiscard]] Statuses statuses() const;
  [[nodiscard]] std::string fault_of(size_t ring, const EngineStatus& status) const;
  [[nodiscard]] std::vector<RoutingPolicy::RingLoad> loads_of(const Statuses& statuses);
  [[nodiscard]] Result<Placement> place(const GenerateRequest& request, const std::vector<PageName>& pages,
                                        async::Runtime& client);
  [[nodiscard]] Result<Placement> place_pinned(const GenerateRequest& request, const std::vector<PageName>& pages,
                                               async::Runtime& client);
  void note_placed(size_t ring, RouteReason reason, const std::vector<PageName>& pages);
  [[nodiscard]] Move move(RoutedRequest& routed, const GenerateRequest& request, const std::vector<PageName>& pages,
                          async::Runtime& client);
  void note_computed(size_t ring, const std::vector<PageName>& pages);
  void remove(const RoutedRequest& routed);
  void look_at_rings();
  void follow_restart(size_t ring, bool is_ready);

  async::Runtime& runtime_;
  const RouterOptions options_;
  async::WaitList stop_signal_;
  mutable std::mutex mutex_;
  std::vector<RingState> rings_;  // guarded by mutex_ apart from the engines, as all below
  RoutingPolicy policy_;
  RequestRegistry requests_;
  bool stopping_ = false;
};

}  // namespace millrace::sched
