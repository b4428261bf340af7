#include "comm/collective/tcp_experts.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <charconv>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "async/task_group.h"
#include "base/check.h"
#include "comm/collective/backend_ranges.h"
#include "comm/collective/expert_transfers.h"
#include "comm/collective/staged_experts.h"
#include "comm/collective/sum_tree.h"
#include "comm/ring_reason.h"
#include "tensor/collective.h"

namespace millrace::comm {
namespace {

using tensor::DType;
using tensor::Matrix;
using Header = ExpertMessageHeader;

/// Far above the rows of a micro-batch: a header with more is malformed.
constexpr int64_t kMaxTransferRows = int64_t{1} << 28;

/// Lets the kernel notice that the path to a silent peer is dead.
void watch_path(int descriptor, std::chrono::milliseconds silence) {
  const int on = 1;
  const int interval_s = 1;
  const int probes = std::max(1, static_cast<int>(silence.count() / 1000) - 1);
  (void)::setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  (void)::setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &interval_s, sizeof interval_s);
  (void)::setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  (void)::setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

/// A reason as a goodbye carries it: the number of the ring that ended first, a space, and its reason.
std::string encode_goodbye(int32_t ring, const std::string& reason) {
  return fmt::format("{} {}", ring, reason);
}

std::pair<int32_t, std::string> decode_goodbye(const std::string& text) {
  int32_t ring = -1;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), ring);
  if (failure != std::errc() || end == text.data() + text.size() || *end != ' ') return {-1, text};
  return {ring, std::string(end + 1, text.data() + text.size())};
}

std::span<std::byte> rows_of(const Matrix& matrix, int64_t first, int64_t count) {
  const size_t row = static_cast<size_t>(matrix.cols) * tensor::size_of(matrix.dtype);
  return {matrix.data + static_cast<size_t>(first) * row, static_cast<size_t>(count) * row};
}

int64_t row_bytes(const Matrix& matrix) {
  return matrix.cols * static_cast<int64_t>(tensor::size_of(matrix.dtype));
}

}  // namespace

/// The connections of the ranks here. A rank has one with each other position of its stage.
struct TcpExperts::Connections {
  /// [stages · ranks][positions], null at the rank's own position, and for ranks of other processes.
  std::vector<std::vector<std::shared_ptr<RankConnection>>> of_rank;
  size_t missing = 0;
  std::optional<Error> failure;
};

/// Why the exchanges have ended.
struct TcpExperts::Fate {
  std::atomic<bool> has_ended = false;
  std::mutex mutex;
  struct Ending {
    int32_t ring;  // -1: no ring is to blame
    std::string reason;
  };
  std::optional<Ending> ending;  // guarded by mutex, set before has_ended
  AbortFn on_abort;
};

class TcpExpertsEnd final : public tensor::ExpertExchange {
 public:
  TcpExpertsEnd(std::shared_ptr<TcpExperts> experts, int32_t stage, int32_t rank, tensor::Backend& backend)
      : experts_(std::move(experts)),
        rank_(rank),
        ranks_(experts_->options_.shape.rank_count),
        position_{.rank = experts_->options_.ring * ranks_ + rank, .size = experts_->end_count()},
        backend_(backend),
        transfers_(peers_of(*experts_, stage, rank), experts_->fate_->has_ended) {
    for (int32_t position = 0; position < position_.size; ++position) {
      if (position != position_.rank) peer_positions_.push_back(position);
    }
  }
  ~TcpExpertsEnd() override { abort(fmt::format("rank {} has left the exchange of experts", rank_)); }

  [[nodiscard]] tensor::RankPosition position() const override { return position_; }
  [[nodiscard]] bool begin_step(uint64_t step, bool has_rows) override;
  [[nodiscard]] int64_t dispatch(Matrix x, Matrix router_logits, Matrix all_x, Matrix all_logits) override;
  void combine(Matrix all_sums, Matrix sums) override;
  void abort(const std::string& reason) override { experts_->abort(own_ring(), reason); }

 private:
  using Peers = std::vector<std::shared_ptr<RankConnection>>;
  static Peers peers_of(const TcpExperts& experts, int32_t stage, int32_t rank);
  [[nodiscard]] int32_t own_ring() const { return experts_->options_.ring; }
  [[nodiscard]] int32_t ring_of(int32_t position) const { return position / ranks_; }
  [[nodiscard]] int32_t rings() const { return position_.size / ranks_; }
  [[nodiscard]] int64_t rows_in(int32_t ring) const {
    return first_row_[static_cast<size_t>(ring) + 1] - first_row_[static_cast<size_t>(ring)];
  }
  void add_transfer(size_t peer, const Header& header) { calls_.push_back({.peer = peer, .own = header}); }
  void run(const std::function<void()>& on_headers);
  void check_headers();
  void place_rows(Matrix all_x, Matrix all_logits);
  [[noreturn]] void throw_reason() const;
  [[noreturn]] void end_all(const std::string& reason);

  const std::shared_ptr<TcpExperts> experts_;
  const int32_t rank_;
  const int32_t ranks_;
  const tensor::RankPosition position_;
  tensor::Backend& backend_;
  std::vector<int32_t> peer_positions_;  // [peers]
  ExpertTransfers transfers_;
  std::vector<ExpertTransfer> calls_;  // of the call under way
  uint64_t turn_ = 0;                  // calls
  uint64_t step_ = 0;
  std::array<int64_t, tensor::kSumShards + 1> first_row_{};  // [rings + 1] among all rows, since the last dispatch
  std::vector<float> received_;                              // [peers][rows of this ring][columns] in combine()
};

TcpExpertsEnd::Peers TcpExpertsEnd::peers_of(const TcpExperts& experts, int32_t stage, int32_t rank) {
  Peers peers = experts.connections_->of_rank[static_cast<size_t>(stage * experts.options_.shape.rank_count + rank)];
  std::erase(peers, nullptr);
  return peers;
}

void TcpExpertsEnd::throw_reason() const {
  const std::lock_guard lock(experts_->fate_->mutex);
  const TcpExperts::Fate::Ending& ending = *experts_->fate_->ending;
  throw tensor::CollectiveAborted(ring_reason(own_ring(), ending.ring, ending.reason));
}

/// Ends the exchange although no ring is to blame.
void TcpExpertsEnd::end_all(const std::string& reason) {
  experts_->abort(-1, reason);
  throw_reason();
}

/// Runs the transfers of one call. `on_headers` gives them their targets, once the headers are found to be right.
void TcpExpertsEnd::run(const std::function<void()>& on_headers) {
  bool has_finished = false;
  try {
    has_finished = transfers_.run(calls_, [&] {
      check_headers();
      on_headers();
    });
  } catch (const PeerGoodbye& goodbye) {
    const auto [ring, reason] = decode_goodbye(goodbye.what());
    experts_->abort(ring, reason);
  } catch (const PeerLost& lost) {
    experts_->abort(ring_of(peer_positions_[transfers_.failed_peer()]), lost.what());
  }
  if (!has_finished) throw_reason();
}

/// The calls of all ranks must be equal, and be part of the same step.
void TcpExpertsEnd::check_headers() {
  for (const ExpertTransfer& call : calls_) {
    const int32_t other = ring_of(peer_positions_[call.peer]);
    const bool swap = other < own_ring();
    if (call.theirs.turn != call.own.turn || call.theirs.step != call.own.step || call.theirs.kind != call.own.kind) {
      end_all(fmt::format("the rings do not step together: ring {} is at step {}, ring {} at step {}",
                          swap ? other : own_ring(), swap ? call.theirs.step : call.own.step, swap ? own_ring() : other,
                          swap ? call.own.step : call.theirs.step));
    }
    if (call.theirs.row_bytes != call.own.row_bytes || call.theirs.rows < 0 || call.theirs.rows > kMaxTransferRows) {
      end_all(fmt::format("ring {} sends {} rows of {} bytes, wanted rows of {} bytes", other, call.theirs.rows,
                          call.theirs.row_bytes, call.own.row_bytes));
    }
  }
}

bool TcpExpertsEnd::begin_step(uint64_t step, bool has_rows) {
  step_ = step;
  ++turn_;
  calls_.clear();
  for (size_t peer = 0; peer < peer_positions_.size(); ++peer) {
    add_transfer(peer, {.turn = turn_, .step = step_, .kind = Header::Kind::kBegin, .rows = has_rows ? 1 : 0});
  }
  bool any = has_rows;
  run([&] { any |= std::ranges::any_of(calls_, [](const ExpertTransfer& call) { return call.theirs.rows > 0; }); });
  return any;
}

/// A ring's rows come from its rank with the number of this one.
int64_t TcpExpertsEnd::dispatch(Matrix x, Matrix router_logits, Matrix all_x, Matrix all_logits) {
  CHECK(x.rows == router_logits.rows && x.cols == all_x.cols && router_logits.cols == all_logits.cols &&
            x.dtype == all_x.dtype && router_logits.dtype == all_logits.dtype,
        "rows [{}, {}] with logits [{}, {}] go to [{}, {}] with [{}, {}]", x.rows, x.cols, router_logits.rows,
        router_logits.cols, all_x.rows, all_x.cols, all_logits.rows, all_logits.cols);
  ++turn_;
  calls_.clear();
  for (size_t peer = 0; peer < peer_positions_.size(); ++peer) {
    if (peer_positions_[peer] % ranks_ != rank_) continue;
    add_transfer(peer, {.turn = turn_,
                        .step = step_,
                        .kind = Header::Kind::kDispatch,
                        .rows = x.rows,
                        .row_bytes = row_bytes(x) + row_bytes(router_logits)});
    calls_.back().out = {rows_of(x, 0, x.rows), rows_of(router_logits, 0, x.rows)};
  }
  std::array<int64_t, tensor::kSumShards> rows{};
  rows[static_cast<size_t>(own_ring())] = x.rows;
  run([&] {
    for (const ExpertTransfer& call : calls_) {
      rows[static_cast<size_t>(ring_of(peer_positions_[call.peer]))] = call.theirs.rows;
    }
    for (size_t ring = 0; ring < static_cast<size_t>(rings()); ++ring) {
      first_row_[ring + 1] = first_row_[ring] + rows[ring];
    }
    place_rows(all_x, all_logits);
  });
  const int64_t first = first_row_[static_cast<size_t>(own_ring())];
  if (x.rows > 0) {
    std::memcpy(rows_of(all_x, first, x.rows).data(), x.data, rows_of(x, 0, x.rows).size());
    std::memcpy(rows_of(all_logits, first, x.rows).data(), router_logits.data,
                rows_of(router_logits, 0, x.rows).size());
  }
  return first_row_[static_cast<size_t>(rings())];
}

/// Gives the rows of the other rings their positions among all rows.
void TcpExpertsEnd::place_rows(Matrix all_x, Matrix all_logits) {
  const int64_t total = first_row_[static_cast<size_t>(rings())];
  if (total > all_x.rows || total > all_logits.rows) {
    end_all(fmt::format("the rings have {} rows together, room for {}", total, all_x.rows));
  }
  for (ExpertTransfer& call : calls_) {
    const int32_t ring = ring_of(peer_positions_[call.peer]);
    const int64_t first = first_row_[static_cast<size_t>(ring)];
    call.in = {rows_of(all_x, first, rows_in(ring)), rows_of(all_logits, first, rows_in(ring))};
  }
}

/// A position's sums for the rows of a ring go to all ranks of that ring.
void TcpExpertsEnd::combine(Matrix all_sums, Matrix sums) {
  const int64_t rows = rows_in(own_ring());
  CHECK(all_sums.dtype == DType::kF32 && sums.dtype == DType::kF32 &&
            all_sums.rows == first_row_[static_cast<size_t>(rings())] && sums.rows == rows &&
            sums.cols == all_sums.cols,
        "sums [{}, {}] of [{}, {}], wanted {} of {} rows", sums.rows, sums.cols, all_sums.rows, all_sums.cols, rows,
        first_row_[static_cast<size_t>(rings())]);
  ++turn_;
  calls_.clear();
  const auto values = static_cast<size_t>(rows * sums.cols);
  if (received_.size() < peer_positions_.size() * values) received_.resize(peer_positions_.size() * values);
  for (size_t peer = 0; peer < peer_positions_.size(); ++peer) {
    const int32_t ring = ring_of(peer_positions_[peer]);
    add_transfer(peer, {.turn = turn_,
                        .step = step_,
                        .kind = Header::Kind::kCombine,
                        .rows = rows_in(ring),
                        .row_bytes = row_bytes(sums)});
    calls_.back().out[0] = rows_of(all_sums, first_row_[static_cast<size_t>(ring)], rows_in(ring));
  }
  run([&] {
    for (ExpertTransfer& call : calls_) {
      if (call.theirs.rows != rows) {
        end_all(fmt::format("ring {} sends sums of {} rows, wanted {}", ring_of(peer_positions_[call.peer]),
                            call.theirs.rows, rows));
      }
      call.in[0] = std::as_writable_bytes(std::span(received_).subspan(call.peer * values, values));
    }
  });
  std::array<const float*, tensor::kSumShards> from{};
  from[static_cast<size_t>(position_.rank)] =
      reinterpret_cast<const float*>(all_sums.data) + first_row_[static_cast<size_t>(own_ring())] * sums.cols;
  for (size_t peer = 0; peer < peer_positions_.size(); ++peer) {
    from[static_cast<size_t>(peer_positions_[peer])] = received_.data() + peer * values;
  }
  float* const into = reinterpret_cast<float*>(sums.data);
  const auto add = [&](int64_t begin, int64_t end) {
    add_tree(std::span(from).first(static_cast<size_t>(position_.size)), {&into, 1}, begin, end);
  };
  const auto count = static_cast<int64_t>(values);
  for_backend_ranges(backend_, count, count * position_.size, add);
}

TcpExperts::TcpExperts(TcpExpertsOptions options, AbortFn on_abort)
    : options_(std::move(options)), fate_(std::make_unique<Fate>()), connections_(std::make_unique<Connections>()) {
  CHECK(std::has_single_bit(static_cast<uint32_t>(end_count())) && end_count() <= tensor::kSumShards,
        "{} rings of {} ranks share experts, wanted 2, 4 or 8 together", options_.shape.ring_count,
        options_.shape.rank_count);
  CHECK(options_.epoch.endpoints.size() == static_cast<size_t>(options_.shape.ring_count),
        "endpoints of {} rings of {}", options_.epoch.endpoints.size(), options_.shape.ring_count);
  fate_->on_abort = std::move(on_abort);
  connections_->of_rank.resize(static_cast<size_t>(options_.shape.stage_count * options_.shape.rank_count));
  for (auto& positions : connections_->of_rank) positions.resize(static_cast<size_t>(end_count()));
}

TcpExperts::~TcpExperts() = default;

/// Connects the rank at an index, over stages and ranks, with another position of its stage.
asio::awaitable<void> TcpExperts::connect_pair(async::Runtime& runtime, TcpListener& listener, size_t stage_rank,
                                               int32_t other, async::Event done, async::TimePoint deadline) {
  const SharedExperts::Shape& shape = options_.shape;
  const auto stage = static_cast<uint32_t>(stage_rank) / static_cast<uint32_t>(shape.rank_count);
  const auto rank = static_cast<int32_t>(stage_rank) % shape.rank_count;
  const int32_t own = options_.ring * shape.rank_count + rank;
  const int32_t ring = other / shape.rank_count;
  const uint64_t epoch = options_.epoch.number;
  LinkHello hello{.ring = epoch, .epoch = RingEpoch(static_cast<uint32_t>(epoch))};
  hello.from = collective_id(StageId(stage), static_cast<uint32_t>(std::max(own, other)));
  hello.to = collective_id(StageId(stage), static_cast<uint32_t>(std::min(own, other)));
  auto lanes = Result<LanePair>(make_error(ErrorCode::kInternal, "not connected"));
  if (own < other) {
    lanes = co_await listener.accept_lanes(hello, options_.sockets, deadline);
  } else {
    const auto peer = static_cast<size_t>(static_cast<int32_t>(stage) * shape.rank_count + other % shape.rank_count);
    const TcpEndpoint& endpoint = options_.epoch.endpoints[static_cast<size_t>(ring)][peer];
    lanes = co_await connect_lanes(runtime, endpoint, hello, options_.sockets, deadline);
  }
  const std::string name = fmt::format("rank {} of stage {}", other % shape.rank_count, stage);
  if (lanes.has_error()) {
    if (!connections_->failure) {
      connections_->failure =
          make_error(lanes.error().code, "the experts of ring {}, {}: {}", ring, name, lanes.error().message);
    }
    co_return done.set();
  }
  auto connection = std::make_shared<RankConnection>(std::move(*lanes), name, hello.epoch);
  for (const int lane : {connection->data(), connection->control()}) watch_path(lane, options_.silence);
  connections_->of_rank[stage_rank][static_cast<size_t>(other)] = std::move(connection);
  if (--connections_->missing == 0) done.set();
}

asio::awaitable<Result<std::shared_ptr<TcpExperts>>> TcpExperts::connect(async::Runtime& runtime, TcpListener& listener,
                                                                         TcpExpertsOptions options, AbortFn on_abort,
                                                                         async::Event done, async::TimePoint deadline) {
  const std::shared_ptr<TcpExperts> experts(new TcpExperts(std::move(options), std::move(on_abort)));
  Connections& connections = *experts->connections_;
  const int32_t ranks = experts->options_.shape.rank_count;
  async::TaskGroup tasks(runtime);
  for (size_t stage_rank = 0; stage_rank < connections.of_rank.size(); ++stage_rank) {
    const auto stage = static_cast<int32_t>(stage_rank) / ranks;
    const auto rank = static_cast<int32_t>(stage_rank) % ranks;
    if (!experts->options_.here.contains(stage, rank)) continue;
    const int32_t own = experts->options_.ring * ranks + rank;
    for (int32_t other = 0; other < experts->end_count(); ++other) {
      if (other == own) continue;
      ++connections.missing;
      tasks.spawn("connect experts", experts->connect_pair(runtime, listener, stage_rank, other, done, deadline));
    }
  }
  co_await done.wait_uncancelled();
  tasks.cancel();
  co_await tasks.join();
  if (connections.failure) co_return *connections.failure;
  if (connections.missing > 0) co_return Error{ErrorCode::kAborted, "the epoch has ended"};
  co_return experts;
}

std::unique_ptr<tensor::ExpertExchange> TcpExperts::join(const std::shared_ptr<TcpExperts>& experts, int32_t stage,
                                                         int32_t rank, tensor::Backend& backend) {
  CHECK(experts->options_.here.contains(stage, rank), "rank {} of stage {} is elsewhere", rank, stage);
  return stage_experts(std::make_unique<TcpExpertsEnd>(experts, stage, rank, backend), backend);
}

void TcpExperts::abort(int32_t ring, const std::string& reason) {
  {
    const std::lock_guard lock(fate_->mutex);
    if (fate_->ending) return;
    fate_->ending = {.ring = ring, .reason = reason};
  }
  fate_->has_ended.store(true, std::memory_order_release);
  if (fate_->on_abort) fate_->on_abort(ring, reason);
  // The end of its lanes also wakes a worker that waits.
  for (const auto& positions : connections_->of_rank) {
    for (const auto& connection : positions) {
      if (connection) connection->end(encode_goodbye(ring, reason));
    }
  }
}

}  // namespace millrace::comm
