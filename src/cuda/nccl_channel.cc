#include "cuda/nccl_channel.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/check.h"
#include "cuda/error.h"
#include "cuda/nccl_end.h"

namespace millrace::cuda {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Handler = tensor::DeviceChannel::Handler;

/// Polls without a pause after progress. Beyond them the thread sleeps between polls.
constexpr int kChannelSpinPolls = 200;
constexpr auto kChannelPollInterval = 10us;
/// Interval of checks of an idle communicator.
constexpr auto kIdlePollInterval = 100ms;
/// Delay before a failure is reported. A failure of NCCL waits for the peer's explanation, which comes over the link
/// between the hosts. The end of a lost channel waits until the others are aborted.
constexpr auto kGrace = 100ms;

/// An exception that calls throw after abort().
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
  void send(std::span<const std::byte> from, std::string what, Handler done) override {
    CHECK(options_.sending, "{}: a send at the receiving end", options_.name);
    want({.memory = {const_cast<std::byte*>(from.data()), from.size()},
          .what = std::move(what),
          .event = nullptr,
          .launched = {},
          .done = std::move(done)});
  }
  void receive(std::span<std::byte> into, std::string what, Handler launched, Handler done) override {
    CHECK(!options_.sending, "{}: a receive at the sending end", options_.name);
    want({.memory = into,
          .what = std::move(what),
          .event = nullptr,
          .launched = std::move(launched),
          .done = std::move(done)});
  }
  void abort(std::string reason) override {
    const std::lock_guard lock(mutex_);
    if (!abort_reason_) abort_reason_ = std::move(reason);
    changed_.notify_all();
  }

 private:
  struct Transfer {
    std::span<std::byte> memory;
    std::string what;
    std::shared_ptr<const Event> event;  // follows it on the stream; null: not launched
    Handler launched;
    Handler done;
  };
  void want(Transfer transfer);
  void run();
  [[nodiscard]] std::exception_ptr run_to_the_end(bool& opened);
  void open();
  void exchange_id(Clock::time_point deadline);
  [[noreturn]] void serve();
  void launch(Transfer transfer);
  void settle(const std::optional<Clock::time_point>& open_deadline);
  [[nodiscard]] std::optional<Transfer> next_wanted();
  [[nodiscard]] bool complete_oldest();
  void check_oldest() const;
  void throw_if_aborted();
  void wait_for_abort();
  void end(const std::exception_ptr& failure);
  void pause(int& looks) const {
    if (++looks > kChannelSpinPolls) std::this_thread::sleep_for(kChannelPollInterval);
  }

  Device& device_;
  const NcclLibrary& nccl_;
  tensor::ChannelOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Transfer> wanted_;  // guarded by mutex_, as the next two
  std::optional<std::string> abort_reason_;
  std::exception_ptr ended_;  // set: no more transfers are accepted
  // Used by the thread only.
  std::optional<NcclEnd> end_;
  std::deque<Transfer> under_way_;  // oldest first; the newest may not be launched yet
  Clock::time_point oldest_since_;  // when the first of them became the oldest
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
  bool opened = false;
  const std::exception_ptr failure = run_to_the_end(opened);
  if (opened && options_.lost) {
    // Freeing memory waits for all work on the device, including other channels' receives, whose data may never come.
    // Those are aborted first.
    options_.lost(failure);
    wait_for_abort();
  }
  end(failure);
  if (!opened) options_.opened(failure);
}

/// Runs the channel and returns why it has ended. After abort() it drops `lost`, which is then not called.
std::exception_ptr NcclChannel::run_to_the_end(bool& opened) {
  try {
    try {
      device_.make_current();
      end_.emplace(nccl_, options_.sending);
      open();
      opened = true;
      options_.opened(nullptr);
      serve();
    } catch (const NcclFailure&) {
      wait_for_abort();
      throw_if_aborted();
      throw;
    }
  } catch (const Aborted&) {
    options_.lost = nullptr;
    return std::current_exception();
  } catch (const std::exception& error) {
    return std::make_exception_ptr(std::runtime_error(options_.name + ": " + error.what()));
  }
}

void NcclChannel::open() {
  const auto deadline = Clock::now() + options_.open_timeout;
  end_->begin(options_.id);
  settle(deadline);
  exchange_id(deadline);
}

/// Sends the id as the first transfer, which makes the connections and proves that bytes arrive.
void NcclChannel::exchange_id(Clock::time_point deadline) {
  const tensor::Buffer memory = allocate_device(device_.ordinal, options_.id.size(), end_->stream());
  const auto copy = [&](void* to, const void* from) {
    check(cudaMemcpyAsync(to, from, options_.id.size(), cudaMemcpyDefault, end_->stream().get()), "cudaMemcpyAsync");
    end_->stream().synchronize();
  };
  if (options_.sending) copy(memory.data(), options_.id.data());
  try {
    end_->transfer({memory.data(), memory.bytes()});
    settle(deadline);
    Event event;
    event.record(end_->stream());
    int looks = 0;
    for (cudaError_t outcome = cudaErrorNotReady; outcome == cudaErrorNotReady; pause(looks)) {
      settle(deadline);
      outcome = cudaEventQuery(event.get());
      if (outcome != cudaErrorNotReady) check(outcome, "the first transfer");
    }
  } catch (...) {
    end_->abort();  // before this the device may still write to `memory`
    throw;
  }
  if (options_.sending) return;
  std::vector<std::byte> found(options_.id.size());
  copy(found.data(), memory.data());
  if (found != options_.id) throw std::runtime_error("NCCL: the first transfer received other bytes than were sent");
}

/// Waits until the last call is under way on the device.
void NcclChannel::settle(const std::optional<Clock::time_point>& open_deadline) {
  for (int looks = 0;; pause(looks)) {
    throw_if_aborted();
    if (end_->settled()) return;
    if (open_deadline && Clock::now() > *open_deadline) {
      throw std::runtime_error(
          fmt::format("NCCL: {} did not connect within {} ms", options_.peer, options_.open_timeout.count()));
    }
    (void)complete_oldest();
    check_oldest();
  }
}

void NcclChannel::serve() {
  for (int looks = 0;; pause(looks)) {
    auto next = next_wanted();
    const bool launches = next.has_value();
    if (launches) launch(std::move(*next));
    if (complete_oldest() || launches) looks = 0;
    (void)end_->settled();
    check_oldest();
  }
}

/// Returns the next transfer, and waits for it a while when nothing else is pending.
std::optional<NcclChannel::Transfer> NcclChannel::next_wanted() {
  throw_if_aborted();
  std::unique_lock lock(mutex_);
  if (under_way_.empty()) {
    changed_.wait_for(lock, kIdlePollInterval, [this] { return !wanted_.empty() || abort_reason_.has_value(); });
  }
  if (wanted_.empty()) return std::nullopt;
  Transfer next = std::move(wanted_.front());
  wanted_.pop_front();
  return next;
}

void NcclChannel::launch(Transfer transfer) {
  if (under_way_.empty()) oldest_since_ = Clock::now();
  under_way_.push_back(std::move(transfer));
  Transfer& newest = under_way_.back();
  end_->transfer(newest.memory);
  // This cannot be earlier: nothing of the transfer is on the stream before.
  settle({});
  Event event = device_.events.take();
  event.record(end_->stream());
  newest.event = std::shared_ptr<Event>(new Event(std::move(event)), [&pool = device_.events](Event* spent) {
    pool.give_back(std::move(*spent));
    delete spent;
  });
  if (options_.sending) return;
  device_.pending_receives.add(newest.memory, newest.event);
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
  oldest_since_ = Clock::now();
  if (!options_.sending) device_.pending_receives.remove(oldest.memory.data());
  oldest.done(nullptr);
  return true;
}

/// Checks the oldest transfer for its deadline. Transfers complete in order, so only the oldest can be late.
void NcclChannel::check_oldest() const {
  if (under_way_.empty() || Clock::now() - oldest_since_ < options_.transfer_timeout) return;
  const Transfer& oldest = under_way_.front();
  const std::string awaited = fmt::format("{} ({} bytes)", oldest.what, oldest.memory.size());
  const auto timeout_ms = options_.transfer_timeout.count();
  throw std::runtime_error(
      options_.sending ? fmt::format("NCCL: {} has not taken {} within {} ms", options_.peer, awaited, timeout_ms)
                       : fmt::format("NCCL: {} has not sent {} within {} ms", options_.peer, awaited, timeout_ms));
}

void NcclChannel::wait_for_abort() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kGrace, [this] { return abort_reason_.has_value(); });
}

void NcclChannel::throw_if_aborted() {
  const std::lock_guard lock(mutex_);
  if (abort_reason_) throw Aborted(*abort_reason_);
}

/// Ends the channel. No transfer is reported before the device has released all memory.
void NcclChannel::end(const std::exception_ptr& failure) {
  end_.reset();
  std::deque<Transfer> left = std::move(under_way_);
  {
    const std::lock_guard lock(mutex_);
    ended_ = failure;
    for (Transfer& transfer : wanted_) left.push_back(std::move(transfer));
    wanted_.clear();
  }
  for (const Transfer& transfer : left) {
    if (!options_.sending) device_.pending_receives.remove(transfer.memory.data());
    if (transfer.launched) transfer.launched(failure);
    transfer.done(failure);
  }
}

}  // namespace

std::unique_ptr<tensor::DeviceChannel> open_nccl_channel(Device& device, tensor::ChannelOptions options) {
  return std::make_unique<NcclChannel>(device, *nccl_library().value(), std::move(options));
}

}  // namespace millrace::cuda
