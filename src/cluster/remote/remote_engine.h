#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "cluster/control_connection.h"
#include "cluster/remote/ring_messages.h"
#include "cluster/remote/ring_mirror.h"
#include "sched/head/control.h"
#include "sched/head/engine.h"

namespace millrace::cluster::remote {

/// Bounds of a connection to a ring: a prompt, or the log-probabilities of one, may take megabytes.
inline constexpr ControlBounds kRingBounds{.message_bytes = size_t{256} << 20, .queued = size_t{1} << 18};

/// A ring in another process, as the front's router uses it. It is not ready, with a reason, while the ring is not
/// connected. Owned by the app. Thread-safe, apart from the functions that a RingListener calls on `runtime`. It
/// outlives that Runtime's thread and every TokenStream.
class RemoteEngine final : public sched::Engine {
 public:
  /// Makes the engine of ring number `ring`. `like` is a ring of this process, whose model this one has; it outlives
  /// the engine. `where`: the address at which the ring joins, for messages.
  RemoteEngine(async::Runtime& runtime, uint32_t ring, const sched::Engine& like, const std::string& where);

  [[nodiscard]] sched::ModelInfo model_info() const override;
  [[nodiscard]] sched::EngineStatus status() const override;
  /// Acts as Engine::submit(). What the ring refuses later is the only event of the stream.
  [[nodiscard]] Result<std::unique_ptr<sched::TokenStream>> submit(sched::GenerateRequest request,
                                                                   async::Runtime& client) override;
  bool abort(const std::string& request_id) override;
  [[nodiscard]] asio::awaitable<Result<void>> flush_cache(async::Runtime& runtime, async::Duration timeout) override;
  bool pause(sched::PauseMode mode) override { return set_pause(mode); }
  bool resume() override { return set_pause(std::nullopt); }
  bool return_waiting(const std::string& reason) override { return send_if_connected(ReturnWaiting{reason}); }
  bool rebuild(const std::string& reason) override { return send_if_connected(RebuildRing{reason}); }
  [[nodiscard]] std::shared_ptr<const sched::RingView> ring_stats() const override;

  /// Returns the metrics of the ring's links, stores and graphs, as the ring last wrote them.
  [[nodiscard]] std::string node_metrics() const;
  /// Returns the arithmetic of the connected ring; empty without one.
  [[nodiscard]] std::string arithmetic() const;
  [[nodiscard]] uint32_t ring() const { return ring_; }

  // Functions for the Runtime's thread.
  /// Returns whether a ring is connected.
  [[nodiscard]] bool is_attached() const { return connection_ != nullptr; }
  /// Uses this connection of a ring that has been accepted.
  void attach(std::shared_ptr<ControlConnection> connection, const RingFacts& facts);
  void handle(Content content);
  /// Refuses requests while the ring is silent.
  void set_quiet(bool quiet);
  /// Ends the use of the connection: the ring has broken. Requests that it has begun fail for `reason`. The others
  /// return to the router, except those that name the ring.
  void detach(const std::string& reason);

 private:
  class Stream;
  struct Client {
    std::string request_id;
    sched::EventMailbox events;
    bool has_begun = false;
    bool is_pinned = false;  // its request names the ring
  };

  [[nodiscard]] std::string fault() const;
  [[nodiscard]] bool send_if_connected(Content content);
  [[nodiscard]] bool set_pause(std::optional<sched::PauseMode> mode);
  void post_pause();
  void post(Content content);
  void deliver(RequestEvent event);
  void mirror(RingFigures figures);
  void forget(uint64_t number);

  async::Runtime& runtime_;
  const uint32_t ring_;
  const sched::Engine& like_;
  std::shared_ptr<ControlConnection> connection_;  // on the Runtime; null: none
  uint64_t connection_count_ = 0;                  // changes on the Runtime, under mutex_
  mutable std::mutex mutex_;
  bool is_connected_ = false;  // guarded by mutex_, as all below
  bool is_quiet_ = false;
  std::optional<sched::PauseMode> pause_;  // of the ring, also of one that joins later
  std::string absence_;                    // why it is not connected
  std::string arithmetic_;
  RingState state_;
  RingMetrics metrics_;
  std::shared_ptr<RingMirror> mirror_;  // null until its first figures have arrived
  uint64_t next_number_ = 1;
  std::unordered_map<uint64_t, Client> clients_;
  std::unordered_map<std::string, uint64_t> by_id_;
  std::unordered_map<uint64_t, sched::FlushReply> flushes_;
};

}  // namespace millrace::cluster::remote
