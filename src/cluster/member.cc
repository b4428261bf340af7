#include "cluster/member.h"

#include <algorithm>

#include "base/log.h"
#include "cluster/epoch_links.h"

namespace millrace::cluster {
namespace {

using namespace std::chrono_literals;
using asio::ip::tcp;
using boost::system::error_code;

constexpr async::Duration kRetry = 250ms;
/// Longest delay between tries at a head that refuses this node.
constexpr async::Duration kMaxRetry = 5s;
/// Interval at which the log repeats what the search for the head waits for.
constexpr async::Duration kWaitReminder = 5s;
/// Interval at which the log repeats that connections end as before.
constexpr async::Duration kEndReminder = 60s;
constexpr async::Duration kReportInterval = 1s;
/// Interval between looks at whether the ring still needs a node that drains.
constexpr async::Duration kDrainInterval = 50ms;

}  // namespace

Member::Member(async::Runtime& runtime, MemberOptions options, StageHost& host)
    : runtime_(runtime),
      options_(std::move(options)),
      host_(host),
      connector_(runtime, options_.coordinator, [this](const std::string& what) { log_wait(what); }),
      wait_reminder_(runtime, kWaitReminder),
      tasks_(runtime),
      stop_signal_(runtime),
      linking_(runtime),
      end_reminder_(runtime, kEndReminder) {}

void Member::stop() {
  stopping_ = true;
  connector_.stop();
  if (connection_) connection_->close("the node is stopping");
  end_epoch("the node is stopping");
  stop_signal_.notify_all();
}

asio::awaitable<void> Member::drain(async::Duration limit) {
  const async::TimePoint deadline = runtime_.now() + limit;
  if (is_needed()) {
    log::info("the ring has requests: serving until the head ends it, for up to {:.1f} s; another signal ends at once",
              std::chrono::duration<double>(limit).count());
  }
  while (!stopping_ && is_needed() && runtime_.now() < deadline) {
    (void)co_await stop_signal_.wait_until(std::min(deadline, runtime_.now() + kDrainInterval));
  }
  if (!stopping_ && is_needed()) log::warn("leaving the ring although it has requests: the drain timeout has passed");
  stop();
}

asio::awaitable<void> Member::run() {
  async::Duration delay = kRetry;
  while (!stopping_) {
    auto socket = co_await find_coordinator();
    if (socket.has_error()) break;
    const std::string end = co_await serve(std::move(*socket));
    if (stopping_) break;
    log_end(end);
    delay = turned_away_ || met_stranger_ ? std::min(2 * delay, kMaxRetry) : kRetry;
    (void)co_await stop_signal_.wait_until(runtime_.now() + delay);
  }
}

void Member::log_end(const std::string& end) {
  // Another program may end each connection in another way.
  const std::string kind = met_stranger_ ? "another program" : end;
  if (!end_reminder_.wants(kind)) return;
  if (met_stranger_) {
    log::warn("{} does not answer like a head, and {}; retrying until a head answers", options_.coordinator.to_string(),
              end);
  } else {
    log::warn("the head at {} {}", options_.coordinator.to_string(), end);
  }
}

asio::awaitable<Result<tcp::socket>> Member::find_coordinator() {
  wait_reminder_.clear();
  for (;;) {
    auto connected = co_await connector_.connect();
    if (connected.has_value() || stopping_) co_return connected;
    log_wait(connected.error().message);
    (void)co_await stop_signal_.wait_until(runtime_.now() + kRetry);
  }
}

void Member::log_wait(const std::string& what) {
  if (!wait_reminder_.wants(what)) return;
  log::info("waiting for the head at {}: {}; retrying until it answers", options_.coordinator.to_string(), what);
}

/// Serves one connection, and returns how it ended: "is gone: …".
asio::awaitable<std::string> Member::serve(tcp::socket socket) {
  has_joined_ = false;
  turned_away_ = false;
  met_stranger_ = false;
  // The node before connects to the address that the head sees, so by the same protocol.
  error_code ignored;
  const bool by_v6 = socket.local_endpoint(ignored).protocol() == tcp::v6();
  auto listener = comm::TcpListener::open(runtime_, {by_v6 ? "::" : "0.0.0.0", 0});
  if (listener.has_error()) co_return "is left: " + listener.error().message;
  listener_ = std::move(*listener);
  connection_ = std::make_shared<ControlConnection>(runtime_, std::move(socket), options_.timing);
  connection_->start();
  connection_->send(Hello{.node_rank = options_.node_rank,
                          .node_count = options_.node_count,
                          .config = model::fingerprint(options_.config),
                          .ring_port = listener_->endpoint().port});
  async::TaskGroup reports(runtime_);
  reports.spawn("report links", report_links(connection_));
  std::string reason;
  try {
    for (;;) {
      Message message = co_await connection_->receive();
      handle(std::move(message));
    }
  } catch (const std::exception& failure) {
    reason = failure.what();
  }
  const char* end = connection_->received_goodbye() ? "ends the connection" : turned_away_ ? "is left" : "is gone";
  met_stranger_ = !connection_->received_message();
  turned_away_ = !has_joined_ && (turned_away_ || connection_->received_goodbye());
  if (!turned_away_ && !met_stranger_) end_reminder_.clear();
  end_epoch("the head is gone: " + reason);
  reports.cancel();
  co_await reports.join();
  co_await tasks_.join();
  co_await connection_->join();
  connection_.reset();
  if (experts_) co_await experts_->close();
  experts_.reset();
  co_await listener_->shutdown();
  co_return fmt::format("{}: {}", end, reason);
}

void Member::handle(Message message) {
  if (auto* assignment = std::get_if<Assignment>(&message)) {
    tasks_.spawn("load", load(std::move(*assignment)));
  } else if (std::holds_alternative<Measure>(message)) {
    tasks_.spawn("measure", measure());
  } else if (auto* request = std::get_if<JoinRing>(&message)) {
    end_reason_.clear();
    tasks_.spawn("join an epoch", join(std::move(*request)));
  } else if (const auto* stop = std::get_if<Stop>(&message)) {
    end_epoch(stop->reason);
  }
}

asio::awaitable<void> Member::report_links(std::shared_ptr<ControlConnection> connection) {
  for (;;) {
    co_await async::sleep_for(runtime_, kReportInterval);
    if (stages_ == nullptr) continue;
    connection->send(LinkReport{stages_->link_stats()});
    StoreReport stores{stages_->store_stats()};
    if (!stores.stores.empty()) connection->send(std::move(stores));
  }
}

asio::awaitable<void> Member::load(Assignment assignment) {
  stages_ = nullptr;
  assignment_ = assignment;
  auto loaded = co_await loader_.run<Loaded>([this, assignment] { return host_.load(assignment); });
  report(std::move(loaded));
}

asio::awaitable<void> Member::measure() {
  if (!assignment_) throw ErrorException(Error{ErrorCode::kData, "asked to measure before anything was assigned"});
  stages_ = nullptr;
  auto loaded = co_await loader_.run<Loaded>([this] { return host_.measure(); });
  report(std::move(loaded));
}

void Member::report(Result<Loaded> loaded) {
  if (loaded.has_error()) return leave_cluster(loaded.error().message);
  const auto port = listen_for_experts();
  if (port.has_error()) return leave_cluster(port.error().message);
  loaded->expert_port = *port;
  connection_->send(*loaded);
}

/// Returns where other rings reach the ranks of this node; 0 if they do not.
Result<uint16_t> Member::listen_for_experts() {
  const sched::StageConfig& stage = assignment_->stage;
  if (!stage.shares_experts()) return uint16_t{0};
  if (!experts_) {
    experts_ = std::make_unique<comm::EpochExperts>(comm::EpochExperts::Options{
        .shape = {.ring_count = static_cast<int32_t>(stage.expert_rings),
                  .rank_count = static_cast<int32_t>(stage.rank_count),
                  .stage_count = static_cast<int32_t>(assignment_->stage_count)},
        .ring = static_cast<int32_t>(stage.expert_ring),
        .silence = std::chrono::duration_cast<std::chrono::milliseconds>(options_.timing.silence_limit)});
  }
  return experts_->listen(runtime_);
}

/// Leaves because this node cannot run its assignment.
void Member::leave_cluster(const std::string& reason) {
  log::error("{}", reason);
  turned_away_ = true;
  connection_->close(reason);
}

void Member::end_epoch(const std::string& reason) {
  if (end_reason_.empty()) end_reason_ = reason;
  linking_.notify_all();
  if (stages_ != nullptr) stages_->stop(reason);
}

asio::awaitable<void> Member::join(JoinRing request) {
  std::string reason;
  lost_channel_ = StageId(0);
  try {
    reason = co_await run_epoch(request);
  } catch (const std::exception& failure) {
    reason = failure.what();
  }
  log::info("epoch {} has ended: {}", request.epoch.value(), reason);
  if (connection_) connection_->send(Stopped{request.epoch, reason, lost_channel_});
}

asio::awaitable<std::string> Member::run_epoch(JoinRing request) {
  if (!assignment_) throw ErrorException(Error{ErrorCode::kData, "found a join before an assignment"});
  stages_ = nullptr;
  const auto stages = co_await loader_.run<sched::LocalStages*>([this, assignment = *assignment_, &request] {
    return host_.stages(assignment, request.pages, request.fingerprint);
  });
  if (stages.has_error()) {
    leave_cluster(stages.error().message);
    throw ErrorException(stages.error());
  }
  stages_ = *stages;
  sched::OuterLinks links = co_await open_links(request);
  if (!end_reason_.empty()) co_return end_reason_;
  stages_->start(std::move(links));
  log::info("joined epoch {}", request.epoch.value());
  connection_->send(RingJoined{request.epoch});
  has_joined_ = true;
  in_epoch_ = true;
  co_await stages_->join();
  in_epoch_ = false;
  co_return stages_->end_reason();
}

/// Opens the links of an epoch. Throws the first failure; what it returns is not complete when the epoch shall end.
asio::awaitable<sched::OuterLinks> Member::open_links(JoinRing request) {
  // The head has the address at which this node found the coordinator; other nodes have those that the coordinator
  // sees.
  for (JoinedNode& node : request.nodes) {
    if (node.host.empty()) node.host = connection_->peer_host();
  }
  for (comm::RankEndpoints& ring : request.experts.endpoints) comm::set_host(ring, connection_->peer_host());
  if ((request.experts.number != 0) != (experts_ != nullptr)) {
    throw_error(ErrorCode::kData, experts_
                                      ? "found a join without a common epoch, wanted one for shared experts"
                                      : "found a join of a common epoch, wanted an assignment that shares experts");
  }
  const auto own = std::ranges::find(request.nodes, assignment_->part(), &JoinedNode::part);
  if (own == request.nodes.end()) throw ErrorException(Error{ErrorCode::kData, "found a join without this node"});
  EpochLinks links(runtime_, *listener_, *stages_,
                   {.epoch = request.epoch,
                    .node = static_cast<size_t>(own - request.nodes.begin()),
                    .nodes = request.nodes,
                    .assignment = *assignment_,
                    .config = options_.config,
                    .silence = options_.timing.silence_limit,
                    .deadline = runtime_.now() + options_.build_timeout,
                    .channel_in = request.channel_in,
                    .channel_out = request.channel_out,
                    .transfer_timeout = options_.transfer_timeout,
                    .experts = request.experts,
                    .exchange = experts_.get()},
                   [this] { linking_.notify_all(); });
  async::TaskGroup opening(runtime_);
  links.open(opening);
  while (!links.complete() && !links.failure() && end_reason_.empty()) co_await linking_.wait();
  co_await links.end(opening);
  lost_channel_ = links.lost_channel();
  if (end_reason_.empty() && links.failure()) throw ErrorException(*links.failure());
  co_return links.take();
}

}  // namespace millrace::cluster
