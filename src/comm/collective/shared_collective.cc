#include "comm/collective/shared_collective.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>

#include "base/check.h"
#include "base/machine.h"
#include "comm/collective/sum_tree.h"
#include "tensor/rank_call.h"
#include "tensor/rank_gate.h"

namespace millrace::comm {
namespace {

using tensor::Matrix;
using tensor::RankCall;
using tensor::RankGate;

constexpr int kMaxRanks = tensor::kSumShards;
constexpr int kGateSpins = 2000;
/// The bytes of a rank's sums up to which each rank adds all of them: one wait instead of two.
constexpr size_t kSmallBytes = size_t{32} << 10;
/// The values of a rank's slice from which on the backend's other threads help.
constexpr int64_t kParallelValues = int64_t{32} << 10;

}  // namespace

/// The memory in which the ranks meet. Offers and small sums alternate between two sets. A rank that fills one for call
/// n + 2 has seen all ranks arrive for call n + 1. So no rank reads the set of call n any more.
class SharedGroup {
 public:
  /// What a rank comes with.
  struct Offer {
    RankCall call;
    std::byte* data = nullptr;
  };

  explicit SharedGroup(int32_t size)
      : size_(size),
        spins_(Machine().processors() >= static_cast<uint32_t>(size) ? kGateSpins : 0),
        entry_(static_cast<uint32_t>(size), spins_),
        exit_(static_cast<uint32_t>(size), spins_) {
    CHECK(size == 1 || size == 2 || size == 4 || size == 8, "a group of {} ranks, wanted 1, 2, 4 or 8", size);
  }

  [[nodiscard]] int32_t size() const { return size_; }
  void take_place(int32_t rank) {
    const std::lock_guard lock(mutex_);
    CHECK(rank >= 0 && rank < size_, "rank {} of {}", rank, size_);
    CHECK(!std::exchange(taken_[static_cast<size_t>(rank)], true), "rank {} is taken twice", rank);
  }

  /// Waits until all ranks have come with a matrix to call `turn`. Afterwards offers(turn) are those of all ranks,
  /// whose calls are equal. Throws when the group is aborted before.
  void meet(int32_t rank, uint32_t turn, const Offer& offer) {
    set_of(turn).offers[static_cast<size_t>(rank)] = offer;
    if (!entry_.arrive_and_wait(turn)) throw_reason();
    for (int32_t other = 1; other < size_; ++other) {
      const RankCall& theirs = offers(turn)[static_cast<size_t>(other)].call;
      if (theirs == offers(turn)[0].call) continue;
      abort(describe_difference(0, offers(turn)[0].call, other, theirs));
      throw_reason();
    }
  }
  /// Waits until no rank uses another's matrices any more. All ranks have met, and none waits for anything before this.
  /// It therefore ends soon, also after abort().
  void part(uint32_t turn) { CHECK(exit_.arrive_and_wait(turn), "the gate at the exit is never closed"); }

  [[nodiscard]] const std::array<Offer, kMaxRanks>& offers(uint32_t turn) { return set_of(turn).offers; }
  [[nodiscard]] std::byte* small_sums(int32_t rank, uint32_t turn) {
    return set_of(turn).sums[static_cast<size_t>(rank)].data();
  }

  void abort(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (!reason_) reason_ = reason;
    entry_.close();
  }

 private:
  struct alignas(64) Set {
    std::array<Offer, kMaxRanks> offers;
    alignas(64) std::array<std::array<std::byte, kSmallBytes>, kMaxRanks> sums;
  };
  [[nodiscard]] Set& set_of(uint32_t turn) { return sets_[turn % 2]; }
  [[noreturn]] void throw_reason() {
    const std::lock_guard lock(mutex_);
    throw tensor::CollectiveAborted(*reason_);
  }

  const int32_t size_;
  const int spins_;
  RankGate entry_;
  RankGate exit_;
  std::array<Set, 2> sets_;
  std::mutex mutex_;
  std::optional<std::string> reason_;       // guarded by mutex_, set before entry_ is closed
  std::array<bool, kMaxRanks> taken_ = {};  // guarded by mutex_
};

namespace {

class SharedCollective final : public tensor::Collective {
 public:
  SharedCollective(std::shared_ptr<SharedGroup> group, int32_t rank, tensor::Backend& backend)
      : group_(std::move(group)), rank_(rank), backend_(backend) {
    CHECK(backend.is_host(), "{} computes in memory of its own, wanted host memory", backend.description());
    group_->take_place(rank);
  }
  ~SharedCollective() override { group_->abort(fmt::format("rank {} has left", rank_)); }

  [[nodiscard]] tensor::RankPosition position() const override { return {rank_, group_->size()}; }
  void all_reduce(Matrix sums) override;
  void all_reduce(tensor::IntMatrix sums) override;
  void all_gather(Matrix slice, Matrix out) override;
  void abort(const std::string& reason) override { group_->abort(reason); }

 private:
  /// Adds values of 4 bytes over all ranks.
  template <class Value>
  void reduce(const RankCall& call, Value* values);
  template <class Value>
  void add_small(const RankCall& call, Value* values);
  template <class Value>
  void add_slice(uint32_t large_turn);
  /// Calls body(begin, end) over [0, items), on all threads when the items are `parallel`.
  template <class Body>
  void for_items(int64_t items, bool parallel, const Body& body) {
    if (parallel) {
      backend_.for_ranges(items, std::cref(body));
    } else {
      body(int64_t{0}, items);
    }
  }

  const std::shared_ptr<SharedGroup> group_;
  const int32_t rank_;
  tensor::Backend& backend_;
  uint32_t turn_ = 0;   // calls that have met
  uint32_t exits_ = 0;  // calls that have parted
};

void SharedCollective::all_reduce(Matrix sums) {
  check_all_reduce(sums);
  reduce(call_of(RankCall::Kind::kAllReduce, sums), reinterpret_cast<float*>(sums.data));
}

void SharedCollective::all_reduce(tensor::IntMatrix sums) {
  reduce(call_of(sums), sums.data);
}

template <class Value>
void SharedCollective::reduce(const RankCall& call, Value* values) {
  static_assert(sizeof(Value) == sizeof(float));
  ++turn_;
  if (static_cast<size_t>(call.rows * call.cols) * sizeof(Value) <= kSmallBytes) return add_small(call, values);
  group_->meet(rank_, turn_, {.call = call, .data = reinterpret_cast<std::byte*>(values)});
  add_slice<Value>(turn_);
  group_->part(++exits_);
}

/// Adds all ranks' parts on every rank, from copies that the ranks leave in the group.
template <class Value>
void SharedCollective::add_small(const RankCall& call, Value* values) {
  const int64_t count = call.rows * call.cols;
  if (count > 0) std::memcpy(group_->small_sums(rank_, turn_), values, static_cast<size_t>(count) * sizeof(Value));
  group_->meet(rank_, turn_, {.call = call, .data = reinterpret_cast<std::byte*>(values)});
  std::array<const Value*, kMaxRanks> from{};
  for (int32_t rank = 0; rank < group_->size(); ++rank) {
    from[static_cast<size_t>(rank)] = reinterpret_cast<const Value*>(group_->small_sums(rank, turn_));
  }
  add_tree(std::span(from).first(static_cast<size_t>(group_->size())), {&values, 1}, 0, count);
}

/// Adds this rank's part of the values, and writes it to the matrices of all ranks.
template <class Value>
void SharedCollective::add_slice(uint32_t turn) {
  const auto size = static_cast<size_t>(group_->size());
  std::array<Value*, kMaxRanks> matrices{};
  for (size_t rank = 0; rank < size; ++rank) {
    matrices[rank] = reinterpret_cast<Value*>(group_->offers(turn)[rank].data);
  }
  constexpr int64_t kLine = 16;  // values of a cache line, which one rank writes
  const RankCall& call = group_->offers(turn)[0].call;
  const int64_t values = call.rows * call.cols;
  const int64_t lines = (values + kLine - 1) / kLine;
  const int64_t first_line = lines * rank_ / group_->size();
  const int64_t line_count = lines * (rank_ + 1) / group_->size() - first_line;
  const auto add = [&](int64_t begin, int64_t end) {
    add_tree(std::span(matrices).first(size), std::span(matrices).first(size), (first_line + begin) * kLine,
             std::min((first_line + end) * kLine, values));
  };
  for_items(line_count, line_count * kLine >= kParallelValues, add);
}

void SharedCollective::all_gather(Matrix slice, Matrix out) {
  const int64_t size = group_->size();
  check_all_gather(slice, out, group_->size());
  ++turn_;
  group_->meet(rank_, turn_, {.call = call_of(RankCall::Kind::kAllGather, slice), .data = slice.data});
  const size_t row_bytes = static_cast<size_t>(slice.cols) * size_of(slice.dtype);
  const auto copy = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::byte* into = out.data + static_cast<size_t>(row * size) * row_bytes;
      for (int32_t rank = 0; rank < size; ++rank, into += row_bytes) {
        const std::byte* from = group_->offers(turn_)[static_cast<size_t>(rank)].data;
        std::memcpy(into, from + static_cast<size_t>(row) * row_bytes, row_bytes);
      }
    }
  };
  if (row_bytes > 0) for_items(slice.rows, out.bytes() >= kParallelValues * sizeof(float), copy);
  group_->part(++exits_);
}

}  // namespace

std::shared_ptr<SharedGroup> make_shared_group(int32_t size) {
  return std::make_shared<SharedGroup>(size);
}

std::unique_ptr<tensor::Collective> join_shared_group(std::shared_ptr<SharedGroup> group, int32_t rank,
                                                      tensor::Backend& backend) {
  return std::make_unique<SharedCollective>(std::move(group), rank, backend);
}

std::vector<std::unique_ptr<tensor::Collective>> make_shared_collectives(
    const std::vector<tensor::Backend*>& backends) {
  const std::shared_ptr<SharedGroup> group = make_shared_group(static_cast<int32_t>(backends.size()));
  std::vector<std::unique_ptr<tensor::Collective>> ends;
  for (tensor::Backend* backend : backends) {
    ends.push_back(join_shared_group(group, static_cast<int32_t>(ends.size()), *backend));
  }
  return ends;
}

}  // namespace millrace::comm
