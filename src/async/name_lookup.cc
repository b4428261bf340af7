#include "async/name_lookup.h"

#include <netdb.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <optional>
#include <system_error>
#include <thread>

#include "base/thread_name.h"

namespace millrace::async {
namespace {

/// Runs getaddrinfo(3), which blocks without a limit unless `flags` has AI_NUMERICHOST.
Result<SocketAddresses> run_query(const std::string& host, uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_flags = flags | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failure != 0) {
    return make_error(ErrorCode::kUnavailable, "the name '{}' cannot be looked up: {}", host,
                      failure == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(failure));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);
  SocketAddresses addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    address.size = each->ai_addrlen;
    std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
  }
  return addresses;
}

}  // namespace

boost::asio::ip::tcp::endpoint SocketAddress::endpoint() const {
  boost::asio::ip::tcp::endpoint endpoint;
  endpoint.resize(size);
  std::memcpy(endpoint.data(), &storage, size);
  return endpoint;
}

struct NameLookup::Query {
  std::mutex mutex;
  std::condition_variable_any answered;
  std::optional<Result<SocketAddresses>> answer;  // guarded by mutex
};

std::shared_ptr<NameLookup::Query> NameLookup::join_query() {
  const std::lock_guard lock(mutex_);
  if (!query_) {
    auto query = std::make_shared<Query>();
    std::thread([query, host = host_, port = port_, flags = flags_] {
      name_thread("name lookup");
      auto answer = run_query(host, port, flags);
      const std::lock_guard answering(query->mutex);
      query->answer = std::move(answer);
      query->answered.notify_all();
    }).detach();
    query_ = std::move(query);
  }
  return query_;
}

Result<SocketAddresses> NameLookup::wait_for(std::chrono::milliseconds timeout, const std::stop_token& stop) {
  if (auto numeric = run_query(host_, port_, AI_NUMERICHOST)) return numeric;
  std::shared_ptr<Query> query;
  try {
    query = join_query();
  } catch (const std::system_error& failure) {
    return make_error(ErrorCode::kUnavailable, "the name '{}' cannot be looked up: no thread for it: {}", host_,
                      failure.what());
  }
  std::unique_lock waiting(query->mutex);
  (void)query->answered.wait_for(waiting, stop, timeout, [&query] { return query->answer.has_value(); });
  if (!query->answer) {
    const auto code = stop.stop_requested() ? ErrorCode::kAborted : ErrorCode::kTimeout;
    return make_error(code, "the name '{}' has not been looked up yet", host_);
  }
  const std::lock_guard lock(mutex_);
  if (query_ == query) query_.reset();
  return *query->answer;
}

}  // namespace millrace::async
