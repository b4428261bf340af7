#include "comm/collective/joined_device_collective.h"

#include <fmt/format.h>

#include <boost/asio/post.hpp>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "async/event.h"
#include "async/real_runtime.h"
#include "base/check.h"
#include "comm/collective/rank_connection.h"
#include "tensor/backend.h"

namespace millrace::comm {
namespace {

using namespace std::chrono_literals;
using GroupId = std::vector<std::byte>;

/// Bytes of a group's id.
constexpr size_t kGroupIdBytes = 128;
constexpr async::Duration kIdPollInterval = 1ms;

LinkHello hello_of(const DeviceCollectiveOptions& options, int32_t rank) {
  LinkHello hello = options.facts;
  hello.from = collective_id(options.stage, static_cast<uint32_t>(rank));
  hello.to = collective_id(options.stage, 0);
  return hello;
}

/// Runs `work`, which blocks, on a thread of its own, to its end even if the caller is cancelled.
asio::awaitable<Result<void>> run_blocking(async::Runtime& runtime, std::function<void()> work) {
  Result<void> result;
  const async::Event done(runtime);
  async::IoThread thread("join ranks");
  asio::post(thread.context(), [&] {
    try {
      work();
    } catch (const std::exception& failure) {
      result = Error{ErrorCode::kUnavailable, failure.what()};
    }
    done.set();
  });
  co_await done.wait_uncancelled();
  co_return result;
}

/// Gives the id to the other ranks, one after the other.
asio::awaitable<Result<void>> give_id(TcpListener& listener, const DeviceCollectiveOptions& options, const GroupId& id,
                                      async::TimePoint deadline) {
  for (int32_t rank = 1; rank < options.position.size; ++rank) {
    const LinkHello hello = hello_of(options, rank);
    auto lanes = co_await listener.accept_lanes(hello, options.sockets, deadline);
    if (lanes.has_error()) co_return lanes.error();
    RankConnection other(std::move(*lanes), endpoint_name(hello.from), hello.epoch);
    // A new connection takes so few bytes at once.
    const size_t sent = other.try_send(id, {});
    if (sent != id.size()) {
      co_return make_error(ErrorCode::kUnavailable, "{} took {} bytes of a group's id, wanted {}", other.name(), sent,
                           id.size());
    }
  }
  co_return Result<void>();
}

/// Gets the id from rank 0.
asio::awaitable<Result<GroupId>> get_id(async::Runtime& runtime, const DeviceCollectiveOptions& options,
                                        async::TimePoint deadline) {
  const LinkHello hello = hello_of(options, options.position.rank);
  auto lanes = co_await connect_lanes(runtime, options.leader, hello, options.sockets, deadline);
  if (lanes.has_error()) co_return lanes.error();
  RankConnection leader(std::move(*lanes), endpoint_name(hello.to), hello.epoch);
  GroupId id(kGroupIdBytes);
  size_t received = 0;
  for (;;) {
    received += leader.try_receive(std::span(id).subspan(received));
    if (received == id.size()) co_return id;
    if (runtime.now() >= deadline) {
      co_return make_error(ErrorCode::kTimeout, "{} has sent {} of {} bytes of a group's id", leader.name(), received,
                           id.size());
    }
    co_await async::sleep_for(runtime, kIdPollInterval);
  }
}

/// Returns the id, which rank 0 makes. It loads the device's library, which may take a while.
asio::awaitable<Result<GroupId>> share_id(async::Runtime& runtime, TcpListener& listener,
                                          const DeviceCollectiveOptions& options, tensor::Backend& backend,
                                          async::TimePoint deadline) {
  if (options.position.rank != 0) {
    auto got = co_await get_id(runtime, options, deadline);
    co_return got;
  }
  GroupId id;
  const auto made = co_await run_blocking(runtime, [&] { id = backend.make_channel_id(); });
  if (made.has_error()) co_return made.error();
  CHECK(id.size() == kGroupIdBytes, "a group's id of {} bytes", id.size());
  const auto given = co_await give_id(listener, options, id, deadline);
  if (given.has_error()) co_return given.error();
  co_return id;
}

}  // namespace

asio::awaitable<Result<std::unique_ptr<tensor::Collective>>> join_device_collective(async::Runtime& runtime,
                                                                                    TcpListener& listener,
                                                                                    DeviceCollectiveOptions options,
                                                                                    tensor::Backend& backend,
                                                                                    async::TimePoint deadline) {
  auto id = Result<GroupId>(GroupId());
  try {
    id = co_await share_id(runtime, listener, options, backend, deadline);
  } catch (const PeerLost& lost) {
    id = Error{ErrorCode::kUnavailable, lost.what()};
  }
  if (id.has_error()) co_return id.error();
  std::unique_ptr<tensor::Collective> end;
  const auto opened = co_await run_blocking(runtime, [&] {
    end = backend.open_collective({.position = options.position,
                                   .id = std::move(*id),
                                   .name = fmt::format("the ranks of stage {}", options.stage.value()),
                                   .max_bytes = options.max_bytes,
                                   .open_timeout = options.open_timeout});
  });
  if (opened.has_error()) co_return opened.error();
  co_return std::move(end);
}

}  // namespace millrace::comm
