#include "cuda/nccl_channel.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/check.h"
#include "cuda/error.h"
#include "cuda/nccl_library.h"

namespace millrace::cuda {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Handler = tensor::DeviceChannel::Handler;

constexpr int kSender = 0;
constexpr int kReceiver = 1;
/// Looks without a pause after something has moved; beyond them the thread sleeps between looks.
constexpr int kBriskLooks = 200;
constexpr auto kNap = 10us;
/// With nothing under way the thread asks so often whether the communicator still stands.
constexpr auto kIdleLook = 100ms;
/// Whoever ends a generation says why over the link between the hosts: a failure of NCCL waits for that.
constexpr auto kGrace = 100ms;

/// abort() was called.
class Aborted : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class NcclChannel final : public tensor::DeviceChannel {
 public:
  NcclChannel(Device& device, const NcclLibrary& nccl, tensor::ChannelOptions options)
      : device_(device), nccl_(nccl), options_(std::move(options)), thread_([this] { run(); }) {}
  ~NcclChannel() override {
    abort("the channel is closed");
    thread_.join();
  }
  void send(std::span<const std::byte> from, Handler done) override {
    CHECK(options_.sending, "{}: a send at the receiving end", options_.name);
    want({const_cast<std::byte*>(from.data()), from.size(), nullptr, {}, std::move(done)});
  }
  void receive(std::span<std::byte> into, Handler launched, Handler done) override {
    CHECK(!options_.sending, "{}: a receive at the sending end", options_.name);
    want({into.data(), into.size(), nullptr, std::move(launched), std::move(done)});
  }
  void abort(std::string reason) override {
    const std::lock_guard lock(mutex_);
    if (!abort_reason_) abort_reason_ = std::move(reason);
    changed_.notify_all();
  }

 private:
  struct Transfer {
    std::byte* memory = nullptr;
    size_t bytes = 0;
    std::shared_ptr<const Event> event;  // behind it on the stream; null: not launched
    Handler launched;
    Handler done;
  };
  void want(Transfer transfer);
  void run();
  void open();
  void exchange_id();
  void serve();
  void launch(Transfer transfer);
  void settle(std::optional<Clock::time_point> deadline);
  [[nodiscard]] std::optional<Transfer> next_wanted();
  [[nodiscard]] bool complete_oldest();
  [[nodiscard]] ncclResult_t state();
  [[noreturn]] void fail(const char* what, ncclResult_t result);
  void throw_if_aborted();
  void end(const std::exception_ptr& failure);
  void pause(int& looks) const {
    if (++looks > kBriskLooks) std::this_thread::sleep_for(kNap);
  }

  Device& device_;
  const NcclLibrary& nccl_;
  tensor::ChannelOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Transfer> wanted_;  // guarded by mutex_, as the next two
  std::optional<std::string> abort_reason_;
  std::exception_ptr ended_;  // set: nothing is taken any more
  // The thread's own.
  std::optional<Stream> stream_;
  ncclComm_t comm_ = nullptr;
  std::deque<Transfer> under_way_;  // oldest first; the newest may not have been launched
  std::thread thread_;
};

void NcclChannel::want(Transfer transfer) {
  std::unique_lock lock(mutex_);
  if (!ended_) {
    wanted_.push_back(std::move(transfer));
    changed_.notify_all();
    return;
  }
  const std::exception_ptr failure = ended_;
  lock.unlock();
  if (transfer.launched) transfer.launched(failure);
  transfer.done(failure);
}

void NcclChannel::run() {
  std::exception_ptr failure;
  bool opened = false;
  try {
    device_.make_current();
    stream_.emplace();
    open();
    opened = true;
    options_.opened(nullptr);
    serve();
  } catch (const Aborted&) {
    failure = std::current_exception();
    options_.lost = nullptr;
  } catch (const std::exception& error) {
    failure = std::make_exception_ptr(std::runtime_error(options_.name + ": " + error.what()));
  }
  end(failure);
  if (!opened) {
    options_.opened(failure);
  } else if (options_.lost) {
    options_.lost(failure);
  }
}

void NcclChannel::open() {
  CHECK(options_.id.size() == sizeof(ncclUniqueId), "a channel's id of {} bytes", options_.id.size());
  const auto deadline = Clock::now() + options_.open_timeout;
  ncclUniqueId id;
  std::memcpy(&id, options_.id.data(), sizeof(id));
  comm_ = begin_communicator(nccl_, id, options_.sending ? kSender : kReceiver, 2);
  settle(deadline);
  exchange_id();
}

/// The first transfer makes the connections, and shows that bytes come through.
void NcclChannel::exchange_id() {
  const auto deadline = Clock::now() + options_.open_timeout;
  const tensor::Buffer memory = allocate_device(device_.ordinal, options_.id.size(), *stream_);
  const auto copy = [&](void* to, const void* from) {
    check(cudaMemcpyAsync(to, from, options_.id.size(), cudaMemcpyDefault, stream_->get()), "cudaMemcpyAsync");
    stream_->synchronize();
  };
  if (options_.sending) copy(memory.data(), options_.id.data());
  const ncclResult_t result =
      options_.sending ? nccl_.send(memory.data(), memory.bytes(), ncclChar, kReceiver, comm_, stream_->get())
                       : nccl_.recv(memory.data(), memory.bytes(), ncclChar, kSender, comm_, stream_->get());
  if (result != ncclSuccess && result != ncclInProgress) fail("the first transfer", result);
  try {
    settle(deadline);
    Event event;
    event.record(*stream_);
    int looks = 0;
    for (cudaError_t outcome = cudaErrorNotReady; outcome == cudaErrorNotReady; pause(looks)) {
      settle(deadline);
      outcome = cudaEventQuery(event.get());
      if (outcome != cudaErrorNotReady) check(outcome, "the first transfer");
    }
  } catch (...) {
    // The device may write to `memory` until the communicator is gone.
    (void)nccl_.comm_abort(std::exchange(comm_, nullptr));
    (void)cudaStreamSynchronize(stream_->get());
    throw;
  }
  if (options_.sending) return;
  std::vector<std::byte> found(options_.id.size());
  copy(found.data(), memory.data());
  if (found != options_.id) throw std::runtime_error("NCCL: the first transfer brought other bytes than were sent");
}

/// Returns when what was called last is under way on the device.
void NcclChannel::settle(std::optional<Clock::time_point> deadline) {
  for (int looks = 0;; pause(looks)) {
    throw_if_aborted();
    const ncclResult_t found = state();
    if (found == ncclSuccess) return;
    if (found != ncclInProgress) fail("the communicator", found);
    if (deadline && Clock::now() > *deadline) {
      throw std::runtime_error(
          fmt::format("NCCL: the other end is not there after {} ms", options_.open_timeout.count()));
    }
    (void)complete_oldest();
  }
}

void NcclChannel::serve() {
  for (int looks = 0;; pause(looks)) {
    auto next = next_wanted();
    const bool launches = next.has_value();
    if (launches) launch(std::move(*next));
    if (complete_oldest() || launches) looks = 0;
    const ncclResult_t found = state();
    if (found != ncclSuccess) fail("the communicator", found);
  }
}

/// Waits a while for a transfer where there is nothing else to look after.
std::optional<NcclChannel::Transfer> NcclChannel::next_wanted() {
  throw_if_aborted();
  std::unique_lock lock(mutex_);
  if (under_way_.empty()) {
    changed_.wait_for(lock, kIdleLook, [this] { return !wanted_.empty() || abort_reason_.has_value(); });
  }
  if (wanted_.empty()) return std::nullopt;
  Transfer next = std::move(wanted_.front());
  wanted_.pop_front();
  return next;
}

void NcclChannel::launch(Transfer transfer) {
  under_way_.push_back(std::move(transfer));
  Transfer& newest = under_way_.back();
  const ncclResult_t result = options_.sending
                                  ? nccl_.send(newest.memory, newest.bytes, ncclChar, kReceiver, comm_, stream_->get())
                                  : nccl_.recv(newest.memory, newest.bytes, ncclChar, kSender, comm_, stream_->get());
  if (result != ncclSuccess && result != ncclInProgress) fail(options_.sending ? "ncclSend" : "ncclRecv", result);
  // Not before: until then nothing of it is on the stream.
  settle({});
  Event event = device_.events.take();
  event.record(*stream_);
  newest.event = std::shared_ptr<Event>(new Event(std::move(event)), [&pool = device_.events](Event* spent) {
    pool.give_back(std::move(*spent));
    delete spent;
  });
  if (options_.sending) return;
  device_.incoming.expect({newest.memory, newest.bytes}, newest.event);
  newest.launched(nullptr);
  newest.launched = nullptr;
}

bool NcclChannel::complete_oldest() {
  if (under_way_.empty() || under_way_.front().event == nullptr) return false;
  const cudaError_t outcome = cudaEventQuery(under_way_.front().event->get());
  if (outcome == cudaErrorNotReady) return false;
  check(outcome, "a transfer between devices");
  const Transfer oldest = std::move(under_way_.front());
  under_way_.pop_front();
  if (!options_.sending) device_.incoming.forget(oldest.memory);
  oldest.done(nullptr);
  return true;
}

ncclResult_t NcclChannel::state() {
  ncclResult_t found = ncclSuccess;
  const ncclResult_t result = nccl_.comm_get_async_error(comm_, &found);
  return result == ncclSuccess ? found : result;
}

void NcclChannel::fail(const char* what, ncclResult_t result) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kGrace, [this] { return abort_reason_.has_value(); });
  }
  throw_if_aborted();
  throw std::runtime_error(fmt::format("NCCL: {}: {}", what, describe_nccl(nccl_, result, comm_)));
}

void NcclChannel::throw_if_aborted() {
  const std::lock_guard lock(mutex_);
  if (abort_reason_) throw Aborted(*abort_reason_);
}

/// Nothing is reported before the device has let go of all memory.
void NcclChannel::end(const std::exception_ptr& failure) {
  if (comm_ != nullptr) (void)nccl_.comm_abort(comm_);
  if (stream_) (void)cudaStreamSynchronize(stream_->get());
  std::deque<Transfer> left = std::move(under_way_);
  {
    const std::lock_guard lock(mutex_);
    ended_ = failure;
    for (Transfer& transfer : wanted_) left.push_back(std::move(transfer));
    wanted_.clear();
  }
  for (const Transfer& transfer : left) {
    if (!options_.sending) device_.incoming.forget(transfer.memory);
    if (transfer.launched) transfer.launched(failure);
    transfer.done(failure);
  }
}

}  // namespace

tensor::ChannelSupport nccl_support(int device) {
  const auto library = nccl_library();
  if (library.has_error()) return {unique_name(device), "", library.error().message};
  return {unique_name(device), "NCCL " + (*library)->version, ""};
}

std::vector<std::byte> make_nccl_id() {
  const NcclLibrary& nccl = *nccl_library().value();
  ncclUniqueId id;
  const ncclResult_t result = nccl.get_unique_id(&id);
  if (result != ncclSuccess) {
    throw std::runtime_error("NCCL: ncclGetUniqueId: " + describe_nccl(nccl, result, nullptr));
  }
  const auto* begin = reinterpret_cast<const std::byte*>(&id);
  return {begin, begin + sizeof(id)};
}

std::unique_ptr<tensor::DeviceChannel> open_nccl_channel(Device& device, tensor::ChannelOptions options) {
  return std::make_unique<NcclChannel>(device, *nccl_library().value(), std::move(options));
}

}  // namespace millrace::cuda
