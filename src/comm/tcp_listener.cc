#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <deque>
#include <list>

#include "base/log.h"
#include "comm/tcp_handshake.h"

namespace millrace::comm {
namespace {

using namespace std::chrono_literals;

/// Pause after a failed accept, most likely for lack of file descriptors.
constexpr async::Duration kAcceptRetryDelay = 100ms;
/// Half-open attempts at one link: the sender's newest, and a few that it has abandoned.
constexpr size_t kMaxAttempts = 8;

std::string peer_name(const tcp::socket& socket) {
  boost::system::error_code failure;
  const auto endpoint = socket.remote_endpoint(failure);
  return failure ? "a peer that is gone" : TcpEndpoint{endpoint.address().to_string(), endpoint.port()}.to_string();
}

/// Sends an answer without waiting: it is small, and the socket's buffer is empty.
bool try_answer(tcp::socket& socket, const std::vector<std::byte>& bytes) {
  boost::system::error_code failure;
  socket.non_blocking(true, failure);
  return !failure && socket.send(asio::buffer(bytes), 0, failure) == bytes.size();
}

/// Keeps a value in a list during its own lifetime.
template <class T>
class ListEntry {
 public:
  ListEntry(std::list<T*>& list, T& what) : list_(list), position_(list.insert(list.end(), &what)) {}
  ListEntry(const ListEntry&) = delete;
  ListEntry& operator=(const ListEntry&) = delete;
  ~ListEntry() { list_.erase(position_); }

 private:
  std::list<T*>& list_;
  typename std::list<T*>::iterator position_;
};

}  // namespace

class TcpListener::State {
 public:
  State(async::Runtime& runtime, TcpListenerOptions options)
      : runtime_(runtime), options_(options), acceptor_(runtime.executor()), tasks_(runtime), changed_(runtime) {}

  void listen(const TcpEndpoint& endpoint);
  [[nodiscard]] asio::awaitable<Result<LanePair>> wait_for(LinkHello hello, TcpLinkOptions options,
                                                           async::TimePoint deadline);
  void close();
  [[nodiscard]] asio::awaitable<void> shutdown();
  [[nodiscard]] TcpEndpoint endpoint() const {
    return {acceptor_.local_endpoint().address().to_string(), acceptor_.local_endpoint().port()};
  }

 private:
  /// One waiting accept_link, owned by its coroutine.
  struct Expectation {
    Expectation(async::Runtime& runtime, const LinkHello& its_hello) : hello(its_hello), changed(runtime) {}
    using Lanes = std::array<std::optional<tcp::socket>, kLaneCount>;
    struct Attempt {
      uint64_t id = 0;
      Lanes lanes;
    };
    void add(const LaneHello& lane, tcp::socket socket);
    /// Returns the lanes of an attempt of which both have come.
    [[nodiscard]] std::optional<Lanes> take_complete();

    const LinkHello hello;
    std::deque<Attempt> attempts;  // in order of arrival; lanes of different attempts never mix
    std::string last_refusal;
    async::WaitList changed;
  };

  [[nodiscard]] asio::awaitable<void> accept();
  [[nodiscard]] asio::awaitable<void> greet(tcp::socket socket);
  [[nodiscard]] asio::awaitable<Result<LaneHello>> read_hello(tcp::socket& socket, async::TimePoint deadline);
  [[nodiscard]] Expectation* find(const LinkHello& hello);
  [[nodiscard]] HelloDifference why_not(const LinkHello& hello);
  void refuse(tcp::socket& socket, const std::string& peer, const HelloDifference& difference);

  async::Runtime& runtime_;
  const TcpListenerOptions options_;
  tcp::acceptor acceptor_;
  async::TaskGroup tasks_;
  std::list<Expectation*> expectations_;
  std::list<tcp::socket*> pending_connections_;  // of the greetings under way
  bool closed_ = false;
  async::WaitList changed_;  // an expectation was added or removed, or the listener was closed
};

void TcpListener::State::Expectation::add(const LaneHello& lane, tcp::socket socket) {
  auto attempt = std::ranges::find(attempts, lane.attempt, &Attempt::id);
  if (attempt == attempts.end()) {
    if (attempts.size() >= kMaxAttempts) attempts.pop_front();
    attempt = attempts.insert(attempts.end(), Attempt{lane.attempt, {}});
  }
  attempt->lanes[static_cast<size_t>(lane.lane)] = std::move(socket);
  changed.notify_all();
}

std::optional<TcpListener::State::Expectation::Lanes> TcpListener::State::Expectation::take_complete() {
  const auto complete =
      std::ranges::find_if(attempts, [](const Attempt& each) { return each.lanes[0] && each.lanes[1]; });
  if (complete == attempts.end()) return std::nullopt;
  std::optional<Lanes> lanes = std::move(complete->lanes);
  attempts.erase(complete);
  return lanes;
}

void TcpListener::State::listen(const TcpEndpoint& endpoint) {
  const tcp::endpoint local(asio::ip::make_address(endpoint.host), endpoint.port);
  acceptor_.open(local.protocol());
  acceptor_.set_option(tcp::acceptor::reuse_address(true));
  acceptor_.bind(local);
  acceptor_.listen();
  tasks_.spawn("accept links", accept());
}

asio::awaitable<void> TcpListener::State::accept() {
  while (!closed_) {
    boost::system::error_code failure;
    tcp::socket socket = co_await acceptor_.async_accept(asio::redirect_error(asio::use_awaitable, failure));
    if (closed_) co_return;
    if (failure) {
      log::warn("a connection cannot be accepted: {}", failure.message());
      co_await async::sleep_for(runtime_, kAcceptRetryDelay);
    } else if (pending_connections_.size() >= options_.max_pending_connections) {
      log::warn("{} is turned away: {} connections have not presented a hello yet", peer_name(socket),
                pending_connections_.size());
    } else {
      tasks_.spawn("greet a peer", greet(std::move(socket)));
    }
  }
}

asio::awaitable<void> TcpListener::State::greet(tcp::socket socket) {
  const ListEntry<tcp::socket> listed(pending_connections_, socket);
  const std::string peer = peer_name(socket);
  const async::TimePoint deadline = runtime_.now() + options_.hello_timeout;
  const auto hello = co_await read_hello(socket, deadline);
  if (closed_) co_return;
  if (hello.has_error()) {
    log::warn("{} is turned away: {}", peer, hello.error().message);
    co_return;
  }
  if (hello->hello.protocol_version != kProtocolVersion) {
    LinkHello ours;
    refuse(socket, peer, *compare_hello(ours, hello->hello));
    co_return;
  }
  Expectation* expectation = find(hello->hello);
  while (expectation == nullptr && why_not(hello->hello).try_again) {
    const bool notified = co_await changed_.wait_until(deadline);
    if (closed_) co_return;
    expectation = find(hello->hello);
    if (!notified) break;
  }
  if (expectation == nullptr) {
    refuse(socket, peer, why_not(hello->hello));
    co_return;
  }
  expectation->add(*hello, std::move(socket));
}

asio::awaitable<Result<LaneHello>> TcpListener::State::read_hello(tcp::socket& socket, async::TimePoint deadline) {
  const async::Deadline closing(runtime_, deadline, [&socket] {
    boost::system::error_code ignored;
    socket.close(ignored);
  });
  try {
    const HandshakeFrame frame = co_await read_handshake(socket);
    if (frame.header.kind != FrameKind::kHello) {
      co_return make_error(ErrorCode::kData, "found a {} frame, wanted a hello", to_string(frame.header.kind));
    }
    if (frame.header.version != kProtocolVersion) {  // the rest may have another form
      LaneHello other;
      other.hello.protocol_version = frame.header.version;
      co_return other;
    }
    co_return decode_hello(frame.header, frame.payload);
  } catch (const boost::system::system_error& error) {
    const std::string what = error.code() == asio::error::eof ? "it closed the connection" : error.code().message();
    co_return Error{ErrorCode::kUnavailable, "no hello arrived: " + (closing.passed() ? "time is up" : what)};
  } catch (const ErrorException& error) {
    co_return error.error();
  }
}

TcpListener::State::Expectation* TcpListener::State::find(const LinkHello& hello) {
  const auto found = std::find_if(expectations_.begin(), expectations_.end(),
                                  [&hello](const Expectation* each) { return each->hello == hello; });
  return found == expectations_.end() ? nullptr : *found;
}

HelloDifference TcpListener::State::why_not(const LinkHello& hello) {
  for (const Expectation* each : expectations_) {
    const bool same_places = each->hello.from == hello.from && each->hello.to == hello.to;
    if (!same_places && expectations_.size() > 1) continue;
    if (auto difference = compare_hello(each->hello, hello)) return *difference;
  }
  return {"no stage expects the link " + link_name(hello), true};
}

void TcpListener::State::refuse(tcp::socket& socket, const std::string& peer, const HelloDifference& difference) {
  log::warn("{} is refused: {}", peer, difference.reason);
  (void)try_answer(socket, encode_refusal(difference));
  for (Expectation* each : expectations_) each->last_refusal = fmt::format("{}: {}", peer, difference.reason);
}

asio::awaitable<Result<LanePair>> TcpListener::State::wait_for(LinkHello hello, TcpLinkOptions options,
                                                               async::TimePoint deadline) {
  Expectation expectation(runtime_, hello);
  const ListEntry<Expectation> listed(expectations_, expectation);
  changed_.notify_all();
  while (!closed_) {
    if (auto lanes = expectation.take_complete()) {
      auto& [control, data] = *lanes;
      tune_socket(*control, Lane::kControl, options);
      tune_socket(*data, Lane::kData, options);
      const std::vector<std::byte> welcome = encode_welcome();
      const bool welcomed = try_answer(*control, welcome) && try_answer(*data, welcome);
      if (welcomed) co_return LanePair(std::move(*control), std::move(*data));
      continue;
    }
    if (runtime_.now() >= deadline) {
      co_return make_error(ErrorCode::kTimeout, "no peer connected for the link {}{}{}", link_name(hello),
                           expectation.last_refusal.empty() ? "" : "; refused: ", expectation.last_refusal);
    }
    (void)co_await expectation.changed.wait_until(deadline);
  }
  changed_.notify_all();
  co_return Error{ErrorCode::kUnavailable, "the listener is closed"};
}

void TcpListener::State::close() {
  closed_ = true;
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  for (tcp::socket* stranger : pending_connections_) stranger->close(ignored);
  for (Expectation* each : expectations_) each->changed.notify_all();
  changed_.notify_all();
}

asio::awaitable<void> TcpListener::State::shutdown() {
  close();
  co_await tasks_.join();
  while (!expectations_.empty()) co_await async::sleep_for(runtime_, 1ms);
}

TcpListener::TcpListener(std::unique_ptr<State> state, TcpEndpoint endpoint)
    : state_(std::move(state)), endpoint_(std::move(endpoint)) {}

TcpListener::~TcpListener() = default;

Result<std::unique_ptr<TcpListener>> TcpListener::open(async::Runtime& runtime, const TcpEndpoint& endpoint,
                                                       TcpListenerOptions options) {
  auto state = std::make_unique<State>(runtime, options);
  try {
    state->listen(endpoint);
  } catch (const boost::system::system_error& error) {
    return make_error(ErrorCode::kUnavailable, "cannot listen on {}: {}", endpoint.to_string(), error.code().message());
  }
  TcpEndpoint local = state->endpoint();
  return std::unique_ptr<TcpListener>(new TcpListener(std::move(state), std::move(local)));
}

asio::awaitable<Result<std::unique_ptr<LinkReceiver>>> TcpListener::accept_link(TcpLinkGroup& group, LinkHello expected,
                                                                                TcpLinkOptions options,
                                                                                async::TimePoint deadline) {
  auto lanes = co_await state_->wait_for(expected, options, deadline);
  if (lanes.has_error()) co_return lanes.error();
  co_return make_tcp_receiver(group, expected, options, std::move(*lanes));
}

asio::awaitable<Result<LanePair>> TcpListener::accept_lanes(LinkHello expected, TcpLinkOptions options,
                                                            async::TimePoint deadline) {
  return state_->wait_for(expected, options, deadline);
}

void TcpListener::close() {
  state_->close();
}

asio::awaitable<void> TcpListener::shutdown() {
  return state_->shutdown();
}

}  // namespace millrace::comm
