#include "cuda/copying_collective.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/machine.h"
#include "cuda/group_registry.h"
#include "cuda/copy_columns.h"
#include "cuda/error.h"
#include "cuda/kernels.h"
#include "tensor/rank_call.h"
#include "tensor/rank_gate.h"

namespace millrace::cuda {
namespace {

using tensor::Matrix;
using tensor::RankCall;

constexpr size_t kMaxRanks = tensor::kSumShards;
constexpr int kMeetingSpins = 2000;
/// Calls use these sets of memory and events in turn.
constexpr size_t kSets = 2;

/// What a rank leaves for the others. Their work on the device may read it until all ends are gone, so the group owns
/// it.
struct Staging {
  explicit Staging(int its_ordinal) : ordinal(its_ordinal) {}
  const int ordinal;
  std::array<GrowingBuffer, kSets> values;
  std::array<Event, kSets> staged;  ///< follows the copy to `values`
  std::array<Event, kSets> read;    ///< follows this rank's reads of the others' values
};

/// What a rank comes with to a call.
struct Offer {
  RankCall call;
  const std::byte* values = nullptr;
};

/// The ranks of one stage. Their ends share it.
///
/// Sets alternate from call to call. A rank that fills a set for call n + 2 has met all ranks for call n + 1, so all
/// have launched their reads of call n. It orders its copy after these reads by their events.
class CopyGroup {
 public:
  using Offers = std::array<Offer, kMaxRanks>;

  explicit CopyGroup(int32_t size)
      : size_(size),
        gate_(static_cast<uint32_t>(size), Machine().processors() >= static_cast<uint32_t>(size) ? kMeetingSpins : 0) {}

  /// Returns the group with this id, which its ends share.
  [[nodiscard]] static std::shared_ptr<CopyGroup> find(const std::vector<std::byte>& id, int32_t size);

  [[nodiscard]] Staging& add(int32_t rank, std::unique_ptr<Staging> staging);
  /// Returns what another rank has left. It has been added once all ranks have met.
  [[nodiscard]] Staging& staging(int32_t rank) const { return *stagings_[static_cast<size_t>(rank)]; }
  /// Waits until all ranks have come to call `turn`, counted from 1. Returns the offers of all, whose calls are equal.
  /// They are valid until the rank's next call but one. Throws the reason when the group is aborted before.
  [[nodiscard]] const Offers& meet(int32_t rank, uint32_t turn, const Offer& offer);
  void abort(const std::string& reason);
  /// Throws the reason after an abort.
  void check();

 private:
  [[noreturn]] void throw_reason();

  const int32_t size_;
  tensor::RankGate gate_;
  std::array<Offers, kSets> offers_;
  std::array<std::unique_ptr<Staging>, kMaxRanks> stagings_;
  std::mutex mutex_;
  std::optional<std::string> reason_;  // guarded by mutex_, set before gate_ is closed
};

std::shared_ptr<CopyGroup> CopyGroup::find(const std::vector<std::byte>& id, int32_t size) {
  static auto* const groups = new GroupRegistry<CopyGroup>;
  auto group = groups->find(id, size);
  CHECK(group->size_ == size, "a rank of {} in a group of {}", size, group->size_);
  return group;
}

Staging& CopyGroup::add(int32_t rank, std::unique_ptr<Staging> staging) {
  const std::lock_guard lock(mutex_);
  auto& own = stagings_[static_cast<size_t>(rank)];
  CHECK(own == nullptr, "rank {} is opened twice", rank);
  own = std::move(staging);
  return *own;
}

const CopyGroup::Offers& CopyGroup::meet(int32_t rank, uint32_t turn, const Offer& offer) {
  Offers& offers = offers_[turn % kSets];
  offers[static_cast<size_t>(rank)] = offer;
  if (!gate_.arrive_and_wait(turn)) throw_reason();
  for (int32_t other = 1; other < size_; ++other) {
    const RankCall& theirs = offers[static_cast<size_t>(other)].call;
    if (theirs == offers[0].call) continue;
    abort(tensor::describe_difference(0, offers[0].call, other, theirs));
    throw_reason();
  }
  return offers;
}

void CopyGroup::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!reason_) reason_ = reason;
  gate_.close();
}

void CopyGroup::check() {
  if (gate_.closed()) throw_reason();
}

void CopyGroup::throw_reason() {
  const std::lock_guard lock(mutex_);
  throw tensor::CollectiveAborted(*reason_);
}

class CopyingCollective final : public tensor::Collective {
 public:
  CopyingCollective(Device& device, const Submissions& submissions, const tensor::CollectiveOptions& options);
  ~CopyingCollective() override { group_->abort(fmt::format("rank {} has left", position_.rank)); }

  [[nodiscard]] tensor::RankPosition position() const override { return position_; }
  void all_reduce(Matrix sums) override;
  void all_reduce(tensor::IntMatrix sums) override;
  void all_gather(Matrix slice, Matrix out) override;
  void abort(const std::string& reason) override { group_->abort(reason); }

 private:
  /// Leaves a matrix for the other ranks and orders later work of the stream after theirs.
  [[nodiscard]] const CopyGroup::Offers& exchange(RankCall::Kind kind, const Matrix& own);
  /// Notes that the stream has read, up to here, what the others have left for the call.
  void end_call();
  void wait_for(const Event& event) const;
  void copy(std::byte* to, const std::byte* from, size_t bytes) const;
  /// Returns the values of a rank in memory of this rank's GPU, until the next call of this function.
  [[nodiscard]] const std::byte* nearby(const CopyGroup::Offers& offers, int32_t rank, size_t bytes);
  /// Returns the sum of `width` ranks from `first` on, in the order of the tree, until the next call with this depth.
  [[nodiscard]] const float* sum_of(const CopyGroup::Offers& offers, int32_t first, int32_t width, size_t depth,
                                    int64_t count);

  Device& device_;
  const Submissions& submissions_;
  const tensor::RankPosition position_;
  const std::shared_ptr<CopyGroup> group_;
  Staging& staging_;
  const size_t max_bytes_;               // of the largest result of a call
  GrowingBuffer foreign_;                // the values of a rank on another GPU
  std::array<GrowingBuffer, 2> blocks_;  // sums of up to four ranks, by depth in the tree
  uint64_t turn_ = 0;                    // calls so far, the one under way included; it never wraps around
};

CopyingCollective::CopyingCollective(Device& device, const Submissions& submissions,
                                     const tensor::CollectiveOptions& options)
    : device_(device),
      submissions_(submissions),
      position_(options.position),
      group_(CopyGroup::find(options.id, options.position.size)),
      staging_((device.make_current(), group_->add(position_.rank, std::make_unique<Staging>(device.ordinal)))),
      max_bytes_(options.max_bytes) {
  for (GrowingBuffer& values : staging_.values) (void)device_.scratch(values, options.max_bytes);
  for (size_t depth = 0; 4u << depth <= static_cast<size_t>(position_.size); ++depth) {
    (void)device_.scratch(blocks_[depth], options.max_bytes);
  }
}

void CopyingCollective::wait_for(const Event& event) const {
  check(cudaStreamWaitEvent(device_.compute.get(), event.get(), 0), "cudaStreamWaitEvent");
}

void CopyingCollective::copy(std::byte* to, const std::byte* from, size_t bytes) const {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, device_.compute.get()), "cudaMemcpyAsync");
}

const CopyGroup::Offers& CopyingCollective::exchange(RankCall::Kind kind, const Matrix& own) {
  CHECK(submissions_.inside(), "a collective was called outside submitted work");
  group_->check();
  const size_t set = ++turn_ % kSets;
  const auto with_others = [this](const auto& action) {
    for (int32_t rank = 0; rank < position_.size; ++rank) {
      if (rank != position_.rank) action(group_->staging(rank));
    }
  };
  if (turn_ > kSets) with_others([&](const Staging& other) { wait_for(other.read[set]); });
  std::byte* const values = device_.scratch(staging_.values[set], own.bytes());
  copy(values, own.data, own.bytes());
  staging_.staged[set].record(device_.compute);
  const CopyGroup::Offers& offers = group_->meet(position_.rank, static_cast<uint32_t>(turn_),
                                                 {.call = tensor::call_of(kind, own), .values = values});
  with_others([&](const Staging& other) { wait_for(other.staged[set]); });
  return offers;
}

void CopyingCollective::end_call() {
  staging_.read[turn_ % kSets].record(device_.compute);
}

const std::byte* CopyingCollective::nearby(const CopyGroup::Offers& offers, int32_t rank, size_t bytes) {
  const std::byte* const values = offers[static_cast<size_t>(rank)].values;
  if (group_->staging(rank).ordinal == device_.ordinal) return values;
  std::byte* const copied = device_.scratch(foreign_, std::max(bytes, max_bytes_));  // it grows once
  copy(copied, values, bytes);
  return copied;
}

const float* CopyingCollective::sum_of(const CopyGroup::Offers& offers, int32_t first, int32_t width, size_t depth,
                                       int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  if (width == 1) return reinterpret_cast<const float*>(nearby(offers, first, bytes));
  std::byte* const block = device_.scratch(blocks_[depth], bytes);
  copy(block, offers[static_cast<size_t>(first)].values, bytes);
  auto* const sum = reinterpret_cast<float*>(block);
  for (int32_t distance = 1; distance < width; distance *= 2) {
    add_values(device_.compute.get(), sum_of(offers, first + distance, distance, depth + 1, count), count, sum);
  }
  return sum;
}

void CopyingCollective::all_reduce(Matrix sums) {
  tensor::check_all_reduce(sums);
  const CopyGroup::Offers& offers = exchange(RankCall::Kind::kAllReduce, sums);
  const int64_t count = sums.rows * sums.cols;
  // Each step adds the ranks of the other half of the pair, whose sum each rank computes by itself.
  for (int32_t distance = 1; count > 0 && distance < position_.size; distance *= 2) {
    const int32_t first = (position_.rank ^ distance) / distance * distance;
    add_values(device_.compute.get(), sum_of(offers, first, distance, 0, count), count,
               reinterpret_cast<float*>(sums.data));
  }
  end_call();
}

void CopyingCollective::all_reduce(tensor::IntMatrix) {
  CHECK(false, "a GPU has no weights with row scales, whose sums are integers");
}

void CopyingCollective::all_gather(Matrix slice, Matrix out) {
  tensor::check_all_gather(slice, out, position_.size);
  const CopyGroup::Offers& offers = exchange(RankCall::Kind::kAllGather, slice);
  for (int32_t rank = 0; slice.bytes() > 0 && rank < position_.size; ++rank) {
    Matrix block = slice;
    block.data = const_cast<std::byte*>(nearby(offers, rank, slice.bytes()));
    copy_columns(device_.compute.get(), block, 0, out, rank * slice.cols, slice.cols);
  }
  end_call();
}

}  // namespace

std::vector<std::byte> make_group_id() {
  static std::atomic<uint64_t> last{0};
  const uint64_t number = ++last;
  std::vector<std::byte> id(sizeof(number));
  std::memcpy(id.data(), &number, sizeof(number));
  return id;
}

std::unique_ptr<tensor::Collective> open_copying_collective(Device& device, const Submissions& submissions,
                                                            const tensor::CollectiveOptions& options) {
  return std::make_unique<CopyingCollective>(device, submissions, options);
}

}  // namespace millrace::cuda
