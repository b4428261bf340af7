#include "comm/collective/tcp_collective.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "comm/collective/rank_exchange.h"
#include "comm/collective/sum_tree.h"
#include "tensor/rank_call.h"

namespace millrace::comm {
namespace {

using tensor::BFloat16;
using tensor::DType;
using tensor::Matrix;
using tensor::RankCall;

/// The bytes of a matrix from which on four and eight ranks exchange halves instead of wholes.
constexpr size_t kHalvingBytes = size_t{64} << 10;
/// The values from which on the backend's other threads help to add.
constexpr int64_t kParallelSums = int64_t{32} << 10;
/// The values that are added at once while others are under way.
constexpr int64_t kAddedAtOnce = int64_t{64} << 10;

/// The values [begin, end) of a matrix.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  [[nodiscard]] int64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// Memory that grows to the largest use.
class Growing {
 public:
  [[nodiscard]] std::span<std::byte> bytes(size_t count) {
    if (bytes_.size() < count) bytes_.resize(count);
    return std::span(bytes_).first(count);
  }

 private:
  std::vector<std::byte> bytes_;
};

class TcpCollective final : public tensor::Collective {
 public:
  TcpCollective(const TcpCollectiveOptions& options, std::vector<std::unique_ptr<RankConnection>> peers,
                tensor::Backend& backend)
      : position_(options.position),
        reduce_dtype_(options.reduce_dtype),
        backend_(backend),
        peers_(std::move(peers)),
        exchange_(peers_, options.silence) {}
  ~TcpCollective() override { abort(fmt::format("rank {} has left", position_.rank)); }

  [[nodiscard]] tensor::RankPosition position() const override { return position_; }
  void all_reduce(Matrix sums) override;
  void all_reduce(tensor::IntMatrix sums) override;
  void all_gather(Matrix slice, Matrix out) override;
  void abort(const std::string& reason) override;

 private:
  /// Runs one call; a lost peer ends the group.
  template <class Body>
  void run(const RankCall& call, const Body& body);
  [[noreturn]] void throw_reason();
  /// Exchanges with the peer at `distance`, the next step of the call.
  void exchange(int32_t distance, std::span<const std::byte> from, std::span<std::byte> into,
                const RankExchange::Progress& progress);
  template <class Value>
  void reduce(const RankCall& call, Value* values);
  template <class Value>
  void reduce_wholes(Value* values, int64_t count);
  template <class Value>
  void reduce_halves(Value* values, int64_t count);
  template <class Value>
  void trade_sums(int32_t distance, Value* values, Range give, Range keep);
  void trade_rounded_sums(int32_t distance, float* values, Range give, Range keep);
  template <class Value>
  void trade_results(int32_t distance, Value* values, Range own, Range theirs);
  void trade_rounded_results(int32_t distance, float* values, Range own, Range theirs);
  /// Returns whether floats travel as bf16.
  [[nodiscard]] bool rounds() const { return reduce_dtype_ == DType::kBF16; }
  /// Calls body(begin, end) over `range`, on all threads when it is long.
  template <class Body>
  void for_values(Range range, const Body& body);
  /// Returns whether this rank is the left one of a pair at `distance`.
  [[nodiscard]] bool is_left(int32_t distance) const { return (position_.rank & distance) == 0; }

  const tensor::RankPosition position_;
  const DType reduce_dtype_;
  tensor::Backend& backend_;
  const std::vector<std::unique_ptr<RankConnection>> peers_;  // at the distances 1, 2, 4
  RankExchange exchange_;
  RankMessageHeader header_;  // of the exchange under way
  Growing received_;
  Growing rounded_;
  std::atomic<bool> aborted_ = false;
  std::mutex mutex_;
  std::optional<std::string> reason_;  // guarded by mutex_
};

void TcpCollective::throw_reason() {
  const std::lock_guard lock(mutex_);
  throw tensor::CollectiveAborted(*reason_);
}

void TcpCollective::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (reason_) return;
  reason_ = reason;
  aborted_.store(true);
  // The end of its lanes also wakes the worker.
  for (const auto& peer : peers_) peer->end(reason);
}

template <class Body>
void TcpCollective::run(const RankCall& call, const Body& body) {
  if (aborted_.load()) throw_reason();
  header_.turn += 1;
  header_.step = 0;
  header_.rank = static_cast<uint32_t>(position_.rank);
  header_.call = call;
  try {
    exchange_.check_goodbyes();
    body();
  } catch (const PeerLost& lost) {
    abort(lost.what());
    throw_reason();
  }
}

void TcpCollective::exchange(int32_t distance, std::span<const std::byte> from, std::span<std::byte> into,
                             const RankExchange::Progress& progress) {
  const size_t peer = distance == 1 ? 0 : distance == 2 ? 1 : 2;
  exchange_.run(*peers_[peer], header_, from, into, progress);
  header_.step += 1;
}

template <class Body>
void TcpCollective::for_values(Range range, const Body& body) {
  if (range.size() < kParallelSums) return body(range.begin, range.end);
  const auto shifted = [&](int64_t begin, int64_t end) { body(range.begin + begin, range.begin + end); };
  backend_.for_ranges(range.size(), std::cref(shifted));
}

void TcpCollective::all_reduce(Matrix sums) {
  check_all_reduce(sums);
  RankCall call = call_of(RankCall::Kind::kAllReduce, sums);
  call.dtype = reduce_dtype_;
  reduce(call, reinterpret_cast<float*>(sums.data));
}

void TcpCollective::all_reduce(tensor::IntMatrix sums) {
  reduce(call_of(sums), sums.data);
}

template <class Value>
void TcpCollective::reduce(const RankCall& call, Value* values) {
  run(call, [&] {
    const int64_t count = call.rows * call.cols;
    if (position_.size >= 4 && static_cast<size_t>(count) * sizeof(Value) >= kHalvingBytes) {
      reduce_halves(values, count);
    } else {
      reduce_wholes(values, count);
    }
  });
}

/// Recursive doubling: at every distance both ranks of a pair add the whole matrix.
template <class Value>
void TcpCollective::reduce_wholes(Value* values, int64_t count) {
  const Range all{0, count};
  for (int32_t distance = 1; distance < position_.size; distance *= 2) trade_sums(distance, values, all, all);
}

/// Recursive halving: at every distance each rank of a pair adds one half of what is left, in the same tree. Then the
/// halves return the same way. Every rank sends less than twice the matrix.
template <class Value>
void TcpCollective::reduce_halves(Value* values, int64_t count) {
  constexpr int64_t kLine = 16;
  std::array<std::pair<Range, Range>, 3> steps;  // kept and given, by distance
  size_t depth = 0;
  Range own{0, count};
  for (int32_t distance = 1; distance < position_.size; distance *= 2) {
    const int64_t half = (own.size() / 2 + kLine - 1) / kLine * kLine;
    const int64_t middle = std::min(own.begin + half, own.end);
    const Range left{own.begin, middle};
    const Range right{middle, own.end};
    steps[depth] = is_left(distance) ? std::pair(left, right) : std::pair(right, left);
    trade_sums(distance, values, steps[depth].second, steps[depth].first);
    own = steps[depth++].first;
  }
  for (int32_t distance = position_.size / 2; distance >= 1; distance /= 2) {
    --depth;
    trade_results(distance, values, steps[depth].first, steps[depth].second);
  }
}

/// Gives the peer this rank's sums of one range, and adds the peer's to those of another. The ranges are equal or
/// disjoint.
template <class Value>
void TcpCollective::trade_sums(int32_t distance, Value* values, Range give, Range keep) {
  if constexpr (std::is_same_v<Value, float>) {
    if (rounds()) return trade_rounded_sums(distance, values, give, keep);
  }
  const auto into = received_.bytes(static_cast<size_t>(keep.size()) * sizeof(Value));
  const auto* theirs = reinterpret_cast<const Value*>(into.data());
  const auto add = [&](int64_t begin, int64_t end) {
    const Value* own = values + keep.begin;
    const Value* left = is_left(distance) ? own : theirs;
    const Value* right = is_left(distance) ? theirs : own;
    add_pair(left + begin, right + begin, values + keep.begin + begin, end - begin);
  };
  int64_t added = 0;
  const auto progress = [&](size_t sent, size_t received) {
    // What is given too is sent before it is changed.
    const size_t ready = give == keep ? std::min(sent, received) : received;
    const auto count = static_cast<int64_t>(ready / sizeof(Value));
    if (count < keep.size() && count - added < kAddedAtOnce) return;
    for_values({added, count}, add);
    added = count;
  };
  exchange(distance, std::as_bytes(std::span(values + give.begin, static_cast<size_t>(give.size()))), into,
           std::cref(progress));
}

/// Acts as trade_sums() on sums that are rounded to bf16 on both sides, so that the pair still agrees.
void TcpCollective::trade_rounded_sums(int32_t distance, float* values, Range give, Range keep) {
  const auto from = rounded_.bytes(static_cast<size_t>(give.size()) * sizeof(BFloat16));
  auto* const encoded = reinterpret_cast<BFloat16*>(from.data());
  for_values(give, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) encoded[i - give.begin] = BFloat16::from_float(values[i]);
  });
  const auto into = received_.bytes(static_cast<size_t>(keep.size()) * sizeof(BFloat16));
  exchange(distance, from, into, [](size_t, size_t) {});
  const auto* theirs = reinterpret_cast<const BFloat16*>(into.data());
  for_values(keep, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      values[i] = BFloat16::from_float(values[i]).to_float() + theirs[i - keep.begin].to_float();
    }
  });
}

/// Gives the peer the results of this rank's range and receives those of the peer's.
template <class Value>
void TcpCollective::trade_results(int32_t distance, Value* values, Range own, Range theirs) {
  if constexpr (std::is_same_v<Value, float>) {
    if (rounds()) return trade_rounded_results(distance, values, own, theirs);
  }
  exchange(distance, std::as_bytes(std::span(values + own.begin, static_cast<size_t>(own.size()))),
           std::as_writable_bytes(std::span(values + theirs.begin, static_cast<size_t>(theirs.size()))),
           [](size_t, size_t) {});
}

/// Acts as trade_results() on results that are rounded to bf16 on both sides.
void TcpCollective::trade_rounded_results(int32_t distance, float* values, Range own, Range theirs) {
  const auto from = rounded_.bytes(static_cast<size_t>(own.size()) * sizeof(BFloat16));
  auto* const encoded = reinterpret_cast<BFloat16*>(from.data());
  for_values(own, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      encoded[i - own.begin] = BFloat16::from_float(values[i]);
      values[i] = encoded[i - own.begin].to_float();
    }
  });
  const auto into = received_.bytes(static_cast<size_t>(theirs.size()) * sizeof(BFloat16));
  exchange(distance, from, into, [](size_t, size_t) {});
  const auto* encoded_theirs = reinterpret_cast<const BFloat16*>(into.data());
  for_values(theirs, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) values[i] = encoded_theirs[i - theirs.begin].to_float();
  });
}

/// Recursive doubling over blocks, one per rank: at every distance a pair exchanges all blocks that each has.
void TcpCollective::all_gather(Matrix slice, Matrix out) {
  check_all_gather(slice, out, position_.size);
  run(call_of(RankCall::Kind::kAllGather, slice), [&] {
    const size_t block = slice.bytes();
    // One row is its blocks side by side.
    const auto blocks = slice.rows == 1 ? std::span(out.data, out.bytes()) : received_.bytes(out.bytes());
    const auto blocks_of = [&](int32_t rank, int32_t count) {
      return blocks.subspan(static_cast<size_t>(rank) * block, static_cast<size_t>(count) * block);
    };
    if (block > 0) std::memcpy(blocks_of(position_.rank, 1).data(), slice.data, block);
    for (int32_t distance = 1; distance < position_.size; distance *= 2) {
      const int32_t own = position_.rank & ~(distance - 1);
      exchange(distance, blocks_of(own, distance), blocks_of(own ^ distance, distance), [](size_t, size_t) {});
    }
    if (slice.rows <= 1) return;
    const size_t row_bytes = block / static_cast<size_t>(slice.rows);
    std::byte* into = out.data;
    for (int64_t row = 0; row < slice.rows; ++row) {
      for (int32_t rank = 0; rank < position_.size; ++rank, into += row_bytes) {
        std::memcpy(into, blocks_of(rank, 1).data() + static_cast<size_t>(row) * row_bytes, row_bytes);
      }
    }
  });
}

}  // namespace

asio::awaitable<Result<std::unique_ptr<tensor::Collective>>> connect_tcp_collective(async::Runtime& runtime,
                                                                                    TcpListener& listener,
                                                                                    TcpCollectiveOptions options,
                                                                                    tensor::Backend& backend,
                                                                                    async::TimePoint deadline) {
  const auto [rank, size] = options.position;
  CHECK(options.endpoints.size() == static_cast<size_t>(size), "{} endpoints of {} ranks", options.endpoints.size(),
        size);
  CHECK(backend.is_host(), "{} computes in memory of its own, wanted host memory", backend.description());
  std::vector<std::unique_ptr<RankConnection>> peers;
  // All ranks go through the distances in this order, so the two of a pair meet.
  for (int32_t distance = 1; distance < size; distance *= 2) {
    const int32_t other = rank ^ distance;
    const bool accepts = rank < other;
    LinkHello hello = options.facts;
    hello.from = collective_id(options.stage, static_cast<uint32_t>(std::max(rank, other)));
    hello.to = collective_id(options.stage, static_cast<uint32_t>(std::min(rank, other)));
    const TcpEndpoint& endpoint = options.endpoints[static_cast<size_t>(other)];
    auto lanes = Result<LanePair>(make_error(ErrorCode::kInternal, "not connected"));
    if (accepts) {
      lanes = co_await listener.accept_lanes(hello, options.sockets, deadline);
    } else {
      lanes = co_await connect_lanes(runtime, endpoint, hello, options.sockets, deadline);
    }
    if (lanes.has_error()) co_return lanes.error();
    peers.push_back(std::make_unique<RankConnection>(std::move(*lanes), endpoint_name(accepts ? hello.from : hello.to),
                                                     hello.epoch));
  }
  co_return std::unique_ptr<tensor::Collective>(std::make_unique<TcpCollective>(options, std::move(peers), backend));
}

}  // namespace millrace::comm
