#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "async/event.h"
#include "base/result.h"
#include "comm/collective/tcp_experts.h"

namespace millrace::comm {

/// The exchange of experts of one ring's ranks in one process, epoch by epoch: the listener at which other ranks find
/// them, and the connections of the epoch under way. Owned by whoever joins the ring's epochs in this process, on one
/// Runtime; functions that say so may be called from any thread.
class EpochExperts {
 public:
  struct Options {
    SharedExperts::Shape shape;
    int32_t ring = 0;
    std::chrono::milliseconds silence{10'000};  ///< TcpExpertsOptions::silence
  };
  /// Receives the first end of an epoch's exchanges, on the thread that ends them.
  using EndFn = std::function<void(uint64_t epoch, int32_t ring, const std::string& reason)>;

  explicit EpochExperts(const Options& options, EndFn on_end = {}) : options_(options), on_end_(std::move(on_end)) {}

  /// Listens on all addresses of this host, unless it does already. Returns the port.
  [[nodiscard]] Result<uint16_t> listen(async::Runtime& runtime);
  /// Connects the ranks `here` with all others of their stages, after listen(). Ranks without a host are on this one.
  /// Errors: kUnavailable with the reason when the epoch has ended or interrupt() was called; kData for endpoints of
  /// other rings than these; those of TcpExperts::connect().
  [[nodiscard]] asio::awaitable<Result<void>> connect(async::Runtime& runtime, ExpertEpoch epoch, RankBlock here,
                                                      async::TimePoint deadline);
  /// Returns a rank's end of the exchange that is connected.
  [[nodiscard]] std::unique_ptr<tensor::ExpertExchange> join(StageId stage, uint32_t rank, tensor::Backend& backend);
  /// Ends the exchange of an epoch because of `ring`, also if it has not begun. From any thread.
  void end(uint64_t epoch, int32_t ring, const std::string& reason);
  /// Makes a connect() under way fail, and later ones. From any thread.
  void interrupt();
  /// Frees the connections and stops listening, once no rank uses them.
  [[nodiscard]] asio::awaitable<void> close();

 private:
  struct Ending {
    uint64_t epoch = 0;
    int32_t ring = -1;
    std::string reason;
  };
  [[nodiscard]] bool fits(const ExpertEpoch& epoch) const;
  void set_own_hosts(ExpertEpoch& epoch, RankBlock here) const;
  [[nodiscard]] std::optional<std::string> end_reason(uint64_t epoch);

  const Options options_;
  const EndFn on_end_;
  std::unique_ptr<TcpListener> listener_;
  std::mutex mutex_;
  std::shared_ptr<TcpExperts> experts_;     // of the epoch that has begun; guarded by mutex_, as all below
  std::optional<async::Event> connecting_;  // ends connect()
  Ending last_end_;
  bool interrupted_ = false;
};

}  // namespace millrace::comm
