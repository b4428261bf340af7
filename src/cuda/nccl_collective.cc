#include "cuda/nccl_collective.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/check.h"
#include "cuda/group_registry.h"
#include "cuda/copy_columns.h"
#include "cuda/error.h"
#include "cuda/kernels.h"
#include "cuda/nccl_end.h"
#include "cuda/nccl_library.h"
#include "tensor/rank_call.h"

namespace millrace::cuda {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using tensor::Matrix;

/// Polls without a pause while NCCL launches a call. Beyond them the thread sleeps between polls.
constexpr int kLaunchSpinPolls = 2000;
constexpr auto kLaunchPollInterval = 10us;
/// The values of the all-reduce that makes and proves the connections.
constexpr int64_t kProofValues = 16;

class NcclCollective;

/// The ends of one group in this process. An abort of one ends all. Ranks in other processes are ended by their own.
class LocalGroup {
 public:
  /// Returns the group with this id, which its ends share.
  [[nodiscard]] static std::shared_ptr<LocalGroup> find(const std::vector<std::byte>& id);

  void add(NcclCollective& end);
  void remove(NcclCollective& end);
  void abort(const std::string& reason);
  /// Throws the reason after an abort.
  void check();

 private:
  std::mutex mutex_;  // taken before that of an end
  std::vector<NcclCollective*> ends_;
  std::optional<std::string> reason_;
};

class NcclCollective final : public tensor::Collective {
 public:
  NcclCollective(Device& device, const Submissions& submissions, const NcclLibrary& nccl,
                 const tensor::CollectiveOptions& options);
  ~NcclCollective() override;

  [[nodiscard]] tensor::RankPosition position() const override { return position_; }
  void all_reduce(Matrix sums) override;
  void all_reduce(tensor::IntMatrix sums) override;
  void all_gather(Matrix slice, Matrix out) override;
  void abort(const std::string& reason) override { group_->abort(reason); }
  /// Ends the communicator; what waits on the device for other ranks ends too.
  void end();

 private:
  /// Makes calls of NCCL and waits until they are under way on the stream.
  template <class Calls>
  void launch(const char* what, const Calls& calls);
  void accept(const char* what, ncclResult_t result) const;
  [[nodiscard]] bool settled(const char* what);
  void prove_connections();
  void add_ranks(float* sums, int64_t count);
  /// Copies `bytes` of each rank to `blocks`, in the order of ranks.
  void gather(const std::byte* own, size_t bytes, std::byte* blocks);

  Device& device_;
  const Submissions& submissions_;
  const NcclLibrary& nccl_;
  const tensor::RankPosition position_;
  const std::string name_;
  const Clock::time_point open_deadline_;
  bool open_ = false;
  GrowingBuffer scratch_;
  std::shared_ptr<LocalGroup> group_;
  const std::shared_ptr<const Submissions::Check> check_;  // throws once the group is aborted
  std::mutex mutex_;                                       // of comm_: one call at a time
  ncclComm_t comm_ = nullptr;                              // null after end()
};

std::shared_ptr<LocalGroup> LocalGroup::find(const std::vector<std::byte>& id) {
  static auto* const groups = new GroupRegistry<LocalGroup>;
  return groups->find(id);
}

void LocalGroup::add(NcclCollective& end) {
  const std::lock_guard lock(mutex_);
  ends_.push_back(&end);
}

void LocalGroup::remove(NcclCollective& end) {
  const std::lock_guard lock(mutex_);
  std::erase(ends_, &end);
}

void LocalGroup::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (reason_) return;
  reason_ = reason;
  // All communicators end at once, since one may end only when the others have let go of the device.
  std::vector<std::thread> threads;
  for (NcclCollective* end : ends_) threads.emplace_back([end] { end->end(); });
  for (std::thread& each : threads) each.join();
}

void LocalGroup::check() {
  const std::lock_guard lock(mutex_);
  if (reason_) throw tensor::CollectiveAborted(*reason_);
}

NcclCollective::NcclCollective(Device& device, const Submissions& submissions, const NcclLibrary& nccl,
                               const tensor::CollectiveOptions& options)
    : device_(device),
      submissions_(submissions),
      nccl_(nccl),
      position_(options.position),
      name_(options.name),
      open_deadline_(Clock::now() + options.open_timeout),
      group_(LocalGroup::find(options.id)),
      check_(std::make_shared<Submissions::Check>([group = group_] { group->check(); })) {
  device_.make_current();
  ncclUniqueId id;
  CHECK(options.id.size() == sizeof(id), "a group's id of {} bytes", options.id.size());
  std::memcpy(&id, options.id.data(), sizeof(id));
  bool grown = false;
  (void)scratch_.reserve(device_.ordinal, std::max<size_t>(options.max_bytes, kProofValues * sizeof(float)),
                         device_.set_up, grown);
  comm_ = begin_communicator(nccl_, id, position_.rank, position_.size);
  group_->add(*this);
  try {
    launch("ncclCommInitRankConfig", [] {});
    prove_connections();
  } catch (...) {
    group_->remove(*this);
    end();
    throw;
  }
  open_ = true;
}

NcclCollective::~NcclCollective() {
  group_->abort(fmt::format("rank {} has left", position_.rank));
  group_->remove(*this);
}

void NcclCollective::end() {
  const std::lock_guard lock(mutex_);
  if (comm_ != nullptr) (void)nccl_.comm_abort(std::exchange(comm_, nullptr));
}

void NcclCollective::accept(const char* what, ncclResult_t result) const {
  if (result == ncclSuccess || result == ncclInProgress) return;
  throw NcclFailure(fmt::format("{}: NCCL: {}: {}", name_, what, describe_nccl(nccl_, result, comm_)));
}

bool NcclCollective::settled(const char* what) {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return true;  // the caller checks why
  ncclResult_t state = ncclSuccess;
  accept("ncclCommGetAsyncError", nccl_.comm_get_async_error(comm_, &state));
  accept(what, state);
  return state == ncclSuccess;
}

template <class Calls>
void NcclCollective::launch(const char* what, const Calls& calls) {
  group_->check();
  if (open_) submissions_.check_at_end(check_);  // an abort ends the work with undefined results
  try {
    {
      const std::lock_guard lock(mutex_);
      if (comm_ != nullptr) calls();
    }
    for (int looks = 0; !settled(what);) {
      if (++looks > kLaunchSpinPolls) std::this_thread::sleep_for(kLaunchPollInterval);
      if (open_ || Clock::now() < open_deadline_) continue;
      throw NcclFailure(fmt::format("{}: NCCL: not all of {} ranks have connected in time", name_, position_.size));
    }
  } catch (const NcclFailure& failure) {
    group_->abort(failure.what());  // a communicator that has failed serves no more
  }
  group_->check();
}

/// Adds ones over all ranks and gathers the sums. Both make connections, which later calls need not wait for.
void NcclCollective::prove_connections() {
  if (position_.size == 1) return;
  const Stream& stream = device_.compute;
  const std::vector<float> ones(kProofValues, 1.0f);
  const size_t bytes = ones.size() * sizeof(float);
  const auto ranks = static_cast<size_t>(position_.size);
  const tensor::Buffer memory = allocate_device(device_.ordinal, bytes * (1 + ranks), device_.set_up);
  std::vector<float> found(ones.size() * ranks);
  try {
    check(cudaMemcpyAsync(memory.data(), ones.data(), bytes, cudaMemcpyDefault, stream.get()), "cudaMemcpyAsync");
    add_ranks(reinterpret_cast<float*>(memory.data()), kProofValues);
    gather(memory.data(), bytes, memory.data() + bytes);
    Event event;
    event.record(stream);
    for (cudaError_t outcome = cudaErrorNotReady; outcome == cudaErrorNotReady;) {
      launch("the first exchanges", [] {});  // looks at the state and the deadline
      if (Clock::now() > open_deadline_) {
        throw std::runtime_error(fmt::format("{}: NCCL: the first exchanges have not ended in time", name_));
      }
      outcome = cudaEventQuery(event.get());
      if (outcome != cudaErrorNotReady) check(outcome, "the first exchanges");
      if (outcome == cudaErrorNotReady) std::this_thread::sleep_for(kLaunchPollInterval);
    }
    check(cudaMemcpyAsync(found.data(), memory.data() + bytes, bytes * ranks, cudaMemcpyDefault, stream.get()),
          "cudaMemcpyAsync");
    stream.synchronize();
  } catch (...) {
    end();  // before this the device may still write to `memory`
    throw;
  }
  const auto is_wrong = [this](float value) { return value != static_cast<float>(position_.size); };
  const auto wrong = std::ranges::find_if(found, is_wrong);
  if (wrong == found.end()) return;
  throw std::runtime_error(
      fmt::format("{}: NCCL: the first sum of ones is {}, wanted {}", name_, *wrong, position_.size));
}

/// Recursive doubling: at every distance both ranks of a pair exchange their sums and add them.
void NcclCollective::add_ranks(float* sums, int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  std::byte* const into = device_.scratch(scratch_, bytes);
  const cudaStream_t stream = device_.compute.get();
  for (int32_t distance = 1; distance < position_.size; distance *= 2) {
    const int peer = position_.rank ^ distance;
    launch("a pair's exchange", [&] {
      accept("ncclGroupStart", nccl_.group_start());
      const ncclResult_t sent = nccl_.send(sums, bytes, ncclChar, peer, comm_, stream);
      const ncclResult_t received = nccl_.recv(into, bytes, ncclChar, peer, comm_, stream);
      const ncclResult_t ended = nccl_.group_end();  // in any case: the group is the thread's
      accept("ncclSend", sent);
      accept("ncclRecv", received);
      accept("ncclGroupEnd", ended);
    });
    add_values(stream, reinterpret_cast<const float*>(into), count, sums);
  }
}

void NcclCollective::all_reduce(Matrix sums) {
  CHECK(submissions_.inside(), "a collective was called outside submitted work");
  tensor::check_all_reduce(sums);
  group_->check();
  const int64_t count = sums.rows * sums.cols;
  if (count > 0) add_ranks(reinterpret_cast<float*>(sums.data), count);
}

void NcclCollective::all_reduce(tensor::IntMatrix) {
  CHECK(false, "a GPU has no weights with row scales, whose sums are integers");
}

void NcclCollective::gather(const std::byte* own, size_t bytes, std::byte* blocks) {
  launch("ncclAllGather", [&] {
    accept("ncclAllGather", nccl_.all_gather(own, blocks, bytes, ncclChar, comm_, device_.compute.get()));
  });
}

void NcclCollective::all_gather(Matrix slice, Matrix out) {
  CHECK(submissions_.inside(), "a collective was called outside submitted work");
  tensor::check_all_gather(slice, out, position_.size);
  group_->check();
  if (slice.bytes() == 0) return;
  // One row is its slices side by side.
  std::byte* const blocks = slice.rows == 1 ? out.data : device_.scratch(scratch_, out.bytes());
  gather(slice.data, slice.bytes(), blocks);
  if (slice.rows == 1) return;
  for (int32_t rank = 0; rank < position_.size; ++rank) {
    Matrix block = slice;
    block.data = blocks + static_cast<size_t>(rank) * slice.bytes();
    copy_columns(device_.compute.get(), block, 0, out, rank * slice.cols, slice.cols);
  }
}

}  // namespace

std::unique_ptr<tensor::Collective> open_nccl_collective(Device& device, const Submissions& submissions,
                                                         const tensor::CollectiveOptions& options) {
  const auto library = nccl_library();
  if (library.has_error()) throw std::runtime_error(library.error().message);
  return std::make_unique<NcclCollective>(device, submissions, **library, options);
}

}  // namespace millrace::cuda
