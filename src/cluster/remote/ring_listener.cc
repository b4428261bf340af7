#include "cluster/remote/ring_listener.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "async/deadline.h"
#include "base/log.h"
#include "cluster/head_address.h"

namespace millrace::cluster::remote {
namespace {

using namespace std::chrono_literals;
using asio::ip::tcp;
using boost::system::error_code;

constexpr async::Duration kRingHelloTimeout = 2s;
constexpr async::Duration kAcceptPause = 100ms;
/// Connections at once, rings included: strangers are bounded by their time.
constexpr size_t kMaxRingConnections = 256;
constexpr const char* kFrontStops = "the front is stopping";

}  // namespace

RingListener::RingListener(async::Runtime& runtime, std::vector<RemoteEngine*> engines, ControlTiming timing,
                           sched::StepGroup* steps)
    : runtime_(runtime),
      engines_(std::move(engines)),
      timing_(timing),
      steps_(steps),
      tasks_(runtime),
      stop_signal_(runtime) {}

Result<void> RingListener::listen(const comm::TcpEndpoint& address, const std::stop_token& stop) {
  auto listening = listen_as_head(runtime_.executor(), address, stop);
  if (listening.has_error()) return listening.error();
  acceptor_ = std::move(*listening);
  return {};
}

asio::awaitable<void> RingListener::serve(RingFacts facts) {
  facts_ = std::move(facts);
  tasks_.spawn("accept rings", accept_rings());
  while (!stopping_) co_await stop_signal_.wait();
  error_code ignored;
  acceptor_->close(ignored);
  for (const Connection& connection : connections_) connection->close(kFrontStops);
  co_await tasks_.join();
}

void RingListener::stop() {
  stopping_ = true;
  stop_signal_.notify_all();
}

asio::awaitable<void> RingListener::accept_rings() {
  while (!stopping_) {
    tcp::socket socket(runtime_.executor());
    error_code failure;
    co_await acceptor_->async_accept(socket, asio::redirect_error(asio::use_awaitable, failure));
    if (stopping_) co_return;
    if (failure) {
      log::warn("a connection to the port of rings cannot be accepted: {}", failure.message());
      co_await async::sleep_for(runtime_, kAcceptPause);
      continue;
    }
    if (connections_.size() >= kMaxRingConnections) continue;
    connections_.push_back(std::make_shared<ControlConnection>(runtime_, std::move(socket), timing_));
    tasks_.spawn("serve ring", serve_ring(connections_.back()));
  }
}

/// Returns the engine that a ring becomes, or why it is refused.
Result<RemoteEngine*> RingListener::check(const RingHello& hello) const {
  const std::string differs = difference(hello.facts, facts_);
  if (!differs.empty()) return Error{ErrorCode::kInvalidArgument, differs};
  const auto found = std::ranges::find(engines_, hello.ring, &RemoteEngine::ring);
  if (found == engines_.end()) {
    return make_error(ErrorCode::kInvalidArgument, "its --dp-rank is {}, wanted {} to {}", hello.ring,
                      engines_.front()->ring(), engines_.back()->ring());
  }
  if ((*found)->is_attached()) return make_error(ErrorCode::kConflict, "ring {} has joined already", hello.ring);
  return *found;
}

/// Receives a ring's hello, and accepts or refuses it. Null: refused.
asio::awaitable<RemoteEngine*> RingListener::welcome(Connection connection) {
  const async::Deadline deadline(runtime_, runtime_.now() + kRingHelloTimeout, [&connection] {
    connection->close(fmt::format("no hello arrived within {} s", kRingHelloTimeout / 1s));
  });
  const Message message = co_await connection->receive();
  const Content content = content_of(message);
  const auto* hello = std::get_if<RingHello>(&content);
  if (hello == nullptr) throw_error(ErrorCode::kData, "it did not say hello");
  const auto engine = check(*hello);
  if (engine.has_error()) {
    // The message may quote the hello.
    const std::string why = printable(engine.error().message);
    log::warn("a ring at {} was refused: {}", connection->peer(), why);
    connection->close(why);
    co_return nullptr;
  }
  connection->set_bounds(kRingBounds);
  (*engine)->attach(connection, hello->facts);
  connection->on_quiet([engine = *engine](bool quiet) { engine->set_quiet(quiet); });
  connection->send(RingMessage{encode(RingWelcome{})});
  log::info("ring {} has joined, from {}", hello->ring, connection->peer());
  co_return *engine;
}

/// Returns the member of the steps that stands for a ring; null where no experts are shared.
std::unique_ptr<sched::StepServer> RingListener::make_step_server(const Connection& connection, uint32_t ring) {
  if (steps_ == nullptr) return nullptr;
  const auto send = [connection](const sched::StepMessage& message) {
    connection->send(RingMessage{encode(StepNews{sched::encode(message)})});
  };
  return std::make_unique<sched::StepServer>(runtime_, *steps_, ring, connection->peer_host(), send);
}

asio::awaitable<void> RingListener::handle_messages(Connection connection, RemoteEngine& engine,
                                                    sched::StepServer* steps) {
  for (;;) {
    const Message message = co_await connection->receive();
    Content content = content_of(message);
    const auto* news = std::get_if<StepNews>(&content);
    if (news != nullptr && steps != nullptr) {
      steps->handle(sched::decode_step_message(news->message).value());
    } else {
      engine.handle(std::move(content));
    }
  }
}

asio::awaitable<void> RingListener::serve_ring(Connection connection) {
  connection->start();
  RemoteEngine* engine = nullptr;
  std::unique_ptr<sched::StepServer> steps;
  std::string reason;
  try {
    engine = co_await welcome(connection);
    if (engine != nullptr) {
      steps = make_step_server(connection, engine->ring());
      co_await handle_messages(connection, *engine, steps.get());
    }
  } catch (const std::exception& failure) {
    reason = failure.what();
  }
  connection->on_quiet({});
  if (engine != nullptr) {
    if (!stopping_) log::warn("ring {} is gone: {}", engine->ring(), reason);
    const std::string end = stopping_ ? kFrontStops : "gone: " + reason;
    // The ring may connect again from detach() on, and then joins the steps anew.
    if (steps) co_await steps->close(end);
    engine->detach(end);
  } else if (!reason.empty() && !stopping_) {
    log::warn("a connection from {} to the port of rings ends: {}", connection->peer(), reason);
  }
  connection->close(reason);
  co_await connection->join();
  connections_.remove(connection);
}

}  // namespace millrace::cluster::remote
