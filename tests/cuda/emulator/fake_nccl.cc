// A library with NCCL's entry points over streams of the fake runtime: ranks of any process meet at a socket
// that the unique id names. As NCCL's own non-blocking communicators do, it launches from threads of its own some time
// after the call; a transfer holds its stream until the other end has taken part, and one that has lost its peer until
// the communicator is aborted. That frees memory, and so waits for the transfers of others on the device.

#include <fcntl.h>
#include <nccl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda/emulator/fake_stream.h"

namespace {

using namespace std::chrono_literals;

constexpr auto kLaunchTime = 200us;
constexpr int kPollMs = 5;
constexpr size_t kMaxDevices = 16;
constexpr std::byte kTaken{1};

struct Descriptor {
  explicit Descriptor(int number) : fd(number) {}
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  const int fd;
};

/// The arguments of a send or a receive.
struct Call {
  bool sends = false;
  std::byte* memory = nullptr;
  size_t bytes = 0;
  CUstream_st* stream = nullptr;
  int peer = 0;
};

/// The connections with one other rank, one per direction of transfers.
struct Peer {
  std::unique_ptr<Descriptor> out;
  std::unique_ptr<Descriptor> in;
};

/// What a rank says of a connection that it has made.
struct Greeting {
  int rank = 0;
  int sends = 0;  // whether the one who connects sends on it
};

/// The state of a communicator, shared with all work that still runs for it.
struct Shared {
  int rank = 0;
  int rank_count = 0;
  int device = -1;  // of its transfers; -1: there was none
  std::string place;
  std::atomic<int> state{ncclInProgress};
  std::atomic<bool> aborted{false};
  std::vector<Peer> peers;  // by rank; complete before the state is ncclSuccess

  bool wait_for(int fd, short what) const {
    pollfd watched{fd, what, 0};
    while (!aborted) {
      if (poll(&watched, 1, kPollMs) > 0) return true;
    }
    return false;
  }
  /// Transfers all bytes. Returns false when aborted, or when the peer is gone, which is then the state.
  template <class Byte>
  bool move_all(int fd, ssize_t (*move)(int, Byte*, size_t), short what, Byte* data, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
      if (!wait_for(fd, what)) return false;
      const ssize_t count = move(fd, data + done, bytes - done);
      if (count <= 0) {
        if (!aborted) state = ncclRemoteError;
        return false;
      }
      done += static_cast<size_t>(count);
    }
    return true;
  }
  bool write_all(int fd, const std::byte* data, size_t bytes) {
    return move_all<const std::byte>(
        fd, [](int to, const std::byte* from, size_t size) { return send(to, from, size, MSG_NOSIGNAL); }, POLLOUT,
        data, bytes);
  }
  bool read_all(int fd, std::byte* data, size_t bytes) {
    return move_all<std::byte>(
        fd, [](int from, std::byte* to, size_t size) { return recv(from, to, size, 0); }, POLLIN, data, bytes);
  }
  /// Blocks like a kernel that cannot proceed.
  void hang() const {
    while (!aborted) std::this_thread::sleep_for(1ms);
  }
};

/// Transfers on each device that are launched and have not ended. Relaxed: they order no memory for the host.
std::array<std::atomic<int>, kMaxDevices> transfers{};

std::atomic<int>& transfers_on(int device) {
  return transfers.at(static_cast<size_t>(device));
}

void wait_for_transfers(int device) {
  while (transfers_on(device).load(std::memory_order_relaxed) > 0) std::this_thread::sleep_for(1ms);
}

struct Places {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Descriptor>> listening;
  uint64_t count = 0;
};

// Never destroyed: threads may outlive main.
Places& places() {
  static auto* const kept = new Places;
  return *kept;
}

sockaddr_un address_of(const std::string& place) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;  // a name that begins with a zero is in no file system
  std::memcpy(address.sun_path + 1, place.data(), std::min(place.size(), sizeof(address.sun_path) - 2));
  return address;
}

std::string place_of(const std::string& place, int rank) {
  return rank == 0 ? place : place + "-rank-" + std::to_string(rank);
}

std::unique_ptr<Descriptor> listen_at(const std::string& place) {
  auto listening = std::make_unique<Descriptor>(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = address_of(place);
  const bool listens = bind(listening->fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
                       listen(listening->fd, SOMAXCONN) == 0;
  return listens ? std::move(listening) : nullptr;
}

/// Returns the socket at which `shared` accepts the ranks above it.
std::unique_ptr<Descriptor> own_listener(const Shared& shared) {
  if (shared.rank > 0) return listen_at(place_of(shared.place, shared.rank));
  const std::lock_guard lock(places().mutex);
  auto listening = std::move(places().listening[shared.place]);
  places().listening.erase(shared.place);
  return listening;
}

/// Connects with a rank below and greets it. Rank 0 listens since the id was made; others may come later.
std::unique_ptr<Descriptor> connect_below(Shared& shared, int rank, const Greeting& greeting) {
  const sockaddr_un address = address_of(place_of(shared.place, rank));
  while (!shared.aborted) {
    auto made = std::make_unique<Descriptor>(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(made->fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
      return shared.write_all(made->fd, reinterpret_cast<const std::byte*>(&greeting), sizeof(greeting))
                 ? std::move(made)
                 : nullptr;
    }
    if (rank == 0) break;
    std::this_thread::sleep_for(1ms);
  }
  return nullptr;
}

/// Connects all ranks with each other, or sets the state to the failure.
void meet(Shared& shared) {
  shared.peers.resize(static_cast<size_t>(shared.rank_count));
  const std::unique_ptr<Descriptor> listening = own_listener(shared);
  if (listening == nullptr) {
    shared.state = ncclInvalidArgument;
    return;
  }
  for (int rank = 0; rank < shared.rank; ++rank) {
    Peer& peer = shared.peers[static_cast<size_t>(rank)];
    peer.out = connect_below(shared, rank, {shared.rank, 1});
    peer.in = connect_below(shared, rank, {shared.rank, 0});
    if (peer.out == nullptr || peer.in == nullptr) {
      shared.state = ncclSystemError;
      return;
    }
  }
  for (int above = 2 * (shared.rank_count - 1 - shared.rank); above > 0; --above) {
    if (!shared.wait_for(listening->fd, POLLIN)) return;
    auto made = std::make_unique<Descriptor>(accept4(listening->fd, nullptr, nullptr, SOCK_CLOEXEC));
    Greeting greeting;
    if (!shared.read_all(made->fd, reinterpret_cast<std::byte*>(&greeting), sizeof(greeting))) return;
    Peer& peer = shared.peers.at(static_cast<size_t>(greeting.rank));
    (greeting.sends != 0 ? peer.in : peer.out) = std::move(made);
  }
  shared.state = ncclSuccess;
}

/// Returns whether this is the transfer to which MILLRACE_FAKE_NCCL_SILENT_TRANSFER counts down in this process.
bool is_silent() {
  static const char* const given = std::getenv("MILLRACE_FAKE_NCCL_SILENT_TRANSFER");
  static std::atomic<int> left{given == nullptr ? 0 : std::atoi(given)};
  return left > 0 && left.fetch_sub(1) == 1;
}

void run_transfer(Shared& shared, const Call& call) {
  if (is_silent()) return shared.hang();
  const Peer& peer = shared.peers[static_cast<size_t>(call.peer)];
  const int fd = (call.sends ? peer.out : peer.in)->fd;
  uint64_t size = call.bytes;
  std::byte taken{};
  if (call.sends) {
    if (shared.write_all(fd, reinterpret_cast<const std::byte*>(&size), sizeof(size)) &&
        shared.write_all(fd, call.memory, call.bytes) && shared.read_all(fd, &taken, 1)) {
      return;
    }
  } else if (shared.read_all(fd, reinterpret_cast<std::byte*>(&size), sizeof(size))) {
    if (size != call.bytes) shared.state = ncclInvalidUsage;
    if (size == call.bytes && shared.read_all(fd, call.memory, call.bytes) && shared.write_all(fd, &kTaken, 1)) return;
  }
  shared.hang();
}

/// Runs the transfers of a group, which do not wait for each other.
void run_group(Shared& shared, const std::vector<Call>& calls) {
  std::vector<std::thread> others;
  for (size_t i = 1; i < calls.size(); ++i)
    others.emplace_back([&shared, &calls, i] { run_transfer(shared, calls[i]); });
  run_transfer(shared, calls.front());
  for (std::thread& each : others) each.join();
}

/// Launches a group. A captured one counts as under way only while it runs, each time that it is replayed.
void enqueue(const std::shared_ptr<Shared>& shared, std::vector<Call> calls) {
  CUstream_st* const stream = calls.front().stream;
  std::atomic<int>& count = transfers_on(stream->device);
  const bool captured = stream->capturing();
  if (!captured) count.fetch_add(1, std::memory_order_relaxed);
  stream->enqueue([shared, calls = std::move(calls), &count, captured] {
    if (captured) count.fetch_add(1, std::memory_order_relaxed);
    run_group(*shared, calls);
    count.fetch_sub(1, std::memory_order_relaxed);
  });
}

/// Nesting of groups. Outside of a group every call is launched by itself.
thread_local int group_depth = 0;
thread_local std::vector<std::pair<ncclComm_t, Call>> group_calls;

}  // namespace

struct ncclComm {
  std::shared_ptr<Shared> shared = std::make_shared<Shared>();
  std::thread helper;  // that meets or launches
};

namespace {

/// Launches the calls of a single rank, which receives what it sends, pair by pair.
void launch_self(const std::vector<Call>& calls) {
  for (size_t i = 0; i + 1 < calls.size(); i += 2) {
    const Call& from = calls[i].sends ? calls[i] : calls[i + 1];
    const Call& to = calls[i].sends ? calls[i + 1] : calls[i];
    to.stream->enqueue([from, to] { std::memcpy(to.memory, from.memory, to.bytes); });
  }
}

ncclResult_t launch(ncclComm_t comm, std::vector<Call> calls) {
  const auto shared = comm->shared;
  if (shared->state != ncclSuccess) return ncclInvalidArgument;  // the call before is not under way yet
  shared->state = ncclInProgress;
  if (comm->helper.joinable()) comm->helper.join();
  shared->device = calls.front().stream->device;
  comm->helper = std::thread([shared, calls = std::move(calls)] {
    std::this_thread::sleep_for(kLaunchTime);
    if (shared->rank_count == 1) {
      launch_self(calls);
    } else {
      enqueue(shared, calls);
    }
    int expected = ncclInProgress;
    shared->state.compare_exchange_strong(expected, ncclSuccess);
  });
  return ncclInProgress;
}

ncclResult_t add(ncclComm_t comm, ncclDataType_t type, int peer, const Call& call) {
  const Shared& shared = *comm->shared;
  const bool known = peer >= 0 && peer < shared.rank_count && (peer != shared.rank || group_depth > 0);
  if (type != ncclChar || !known || call.memory == nullptr) return ncclInvalidArgument;
  if (shared.state == ncclInProgress) return ncclInvalidArgument;
  if (group_depth == 0) return launch(comm, {call});
  group_calls.emplace_back(comm, call);
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  const char* given = std::getenv("MILLRACE_FAKE_NCCL_VERSION");
  *version = given == nullptr ? NCCL_VERSION_CODE : std::atoi(given);
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(places().mutex);
  const std::string place = "millrace-" + std::to_string(getpid()) + "-" + std::to_string(++places().count);
  auto listening = listen_at(place);
  if (listening == nullptr) return ncclSystemError;
  places().listening[place] = std::move(listening);
  *id = {};
  std::memcpy(id->internal, place.c_str(), place.size() + 1);
  return ncclSuccess;
}

// MILLRACE_FAKE_NCCL_UNREACHABLE is a network that lets nobody through, which shows while the call is made: it then
// returns the communicator and its failure.
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int rank_count, ncclUniqueId id, int rank, ncclConfig_t* config) {
  *comm = nullptr;
  const ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
  if (config->size != initial.size || config->magic != initial.magic) return ncclInvalidArgument;
  if (config->blocking != 0) return ncclInvalidArgument;  // the code under test never blocks
  if (rank < 0 || rank >= rank_count) return ncclInvalidArgument;
  *comm = new ncclComm;
  const auto shared = (*comm)->shared;
  shared->rank = rank;
  shared->rank_count = rank_count;
  shared->place = id.internal;
  if (std::getenv("MILLRACE_FAKE_NCCL_UNREACHABLE") != nullptr) {
    shared->state = ncclSystemError;
    return ncclSystemError;
  }
  (*comm)->helper = std::thread([shared] {
    if (shared->rank_count == 1) {
      shared->state = ncclSuccess;
    } else {
      meet(*shared);
    }
  });
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = static_cast<ncclResult_t>(comm->shared->state.load());
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->shared->aborted = true;
  if (comm->helper.joinable()) comm->helper.join();
  for (const Peer& peer : comm->shared->peers) {
    for (const auto* each : {&peer.out, &peer.in}) {
      if (*each != nullptr) (void)shutdown((*each)->fd, SHUT_RDWR);
    }
  }
  if (comm->shared->device >= 0) wait_for_transfers(comm->shared->device);
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add(comm, type, peer, {true, static_cast<std::byte*>(const_cast<void*>(from)), count, stream, peer});
}

ncclResult_t ncclRecv(void* into, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add(comm, type, peer, {false, static_cast<std::byte*>(into), count, stream, peer});
}

ncclResult_t ncclAllGather(const void* from, void* into, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  const Shared& shared = *comm->shared;
  if (type != ncclChar || group_depth > 0 || shared.state != ncclSuccess) return ncclInvalidArgument;
  auto* const own = static_cast<std::byte*>(const_cast<void*>(from));
  auto* const blocks = static_cast<std::byte*>(into);
  std::byte* const own_block = blocks + static_cast<size_t>(shared.rank) * count;
  stream->enqueue([own, own_block, count] { std::memcpy(own_block, own, count); });
  std::vector<Call> calls;
  for (int rank = 0; rank < shared.rank_count; ++rank) {
    if (rank == shared.rank) continue;
    calls.push_back({true, own, count, stream, rank});
    calls.push_back({false, blocks + static_cast<size_t>(rank) * count, count, stream, rank});
  }
  return calls.empty() ? ncclSuccess : launch(comm, std::move(calls));
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0 || group_calls.empty()) return ncclSuccess;
  std::vector<Call> calls;
  for (const auto& [comm, call] : group_calls) calls.push_back(call);
  const ncclComm_t comm = group_calls.front().first;
  group_calls.clear();
  return launch(comm, std::move(calls));
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclSystemError: return "unhandled system error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    default: return "another error";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  return "";
}

}  // extern "C"
