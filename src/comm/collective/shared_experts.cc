#include "comm/collective/shared_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/machine.h"
#include "comm/collective/backend_ranges.h"
#include "comm/collective/staged_experts.h"
#include "comm/collective/sum_tree.h"
#include "comm/ring_reason.h"
#include "tensor/collective.h"

namespace millrace::comm {
namespace {

using tensor::DType;
using tensor::Matrix;

constexpr size_t kMaxEnds = tensor::kSumShards;
constexpr int kExpertGateSpins = 2000;

/// What an end comes with to a call.
struct ExpertOffer {
  enum class Kind : uint8_t { kBegin, kDispatch, kCombine };
  Kind kind = Kind::kBegin;
  uint64_t step = 0;
  int64_t rows = 0;                    // of the end's ring; in kBegin 1 if there are any
  const std::byte* rows_at = nullptr;  // kDispatch: x; kCombine: the sums of all rows
  const std::byte* logits = nullptr;   // kDispatch
};

}  // namespace

/// Why the exchanges have ended.
struct SharedExperts::Fate {
  std::mutex mutex;
  struct Ending {
    int32_t ring;  // -1: no ring is to blame
    std::string reason;
  };
  std::optional<Ending> ending;  // guarded by mutex, set before a gate is closed
  AbortFn on_abort;
};

/// The memory in which the ranks of one stage meet. Offers alternate between two sets. An end that fills one for call
/// n + 2 has seen all ends arrive for call n + 1, so that none reads the set of call n any more.
class SharedExperts::Stage {
 public:
  using Offers = std::array<ExpertOffer, kMaxEnds>;

  explicit Stage(size_t ends)
      : ends_(ends), gate_(static_cast<uint32_t>(ends), Machine().processors() >= ends ? kExpertGateSpins : 0) {}

  /// Waits until all ends have come to call `turn`. Returns their offers, or null after close().
  [[nodiscard]] const Offers* meet(size_t end, uint32_t turn, const ExpertOffer& offer) {
    Offers& offers = sets_[turn % 2];
    offers[end] = offer;
    return gate_.arrive_and_wait(turn) ? &offers : nullptr;
  }
  void close() { gate_.close(); }
  void take(size_t end) { CHECK(!taken_[end].exchange(true), "position {} is taken twice", end); }
  [[nodiscard]] size_t ends() const { return ends_; }

  // An end is inside from before a call until it reads no other's memory any more.
  void enter() { inside_.fetch_add(1, std::memory_order_acq_rel); }
  void leave() {
    if (inside_.fetch_sub(1, std::memory_order_acq_rel) == 1) inside_.notify_all();
  }
  void wait_until_empty() {
    for (int32_t inside = inside_; inside > 0; inside = inside_) inside_.wait(inside);
  }

 private:
  const size_t ends_;
  tensor::RankGate gate_;
  std::array<Offers, 2> sets_;
  std::array<std::atomic<bool>, kMaxEnds> taken_{};
  std::atomic<int32_t> inside_{0};
};

class SharedExpertsEnd final : public tensor::ExpertExchange {
 public:
  SharedExpertsEnd(std::shared_ptr<SharedExperts> experts, int32_t stage, int32_t ring, int32_t rank,
                   tensor::Backend& backend)
      : experts_(std::move(experts)),
        stage_(*experts_->stages_[static_cast<size_t>(stage)]),
        ring_(ring),
        rank_(rank),
        ranks_(static_cast<size_t>(experts_->shape_.rank_count)),
        backend_(backend) {
    stage_.take(end());
  }
  ~SharedExpertsEnd() override {
    abort(fmt::format("rank {} has left the exchange of experts", rank_));
    stage_.wait_until_empty();
  }

  [[nodiscard]] tensor::RankPosition position() const override {
    return {.rank = static_cast<int32_t>(end()), .size = static_cast<int32_t>(stage_.ends())};
  }
  [[nodiscard]] bool begin_step(uint64_t step, bool has_rows) override;
  [[nodiscard]] int64_t dispatch(Matrix x, Matrix router_logits, Matrix all_x, Matrix all_logits) override;
  void combine(Matrix all_sums, Matrix sums) override;
  void abort(const std::string& reason) override { experts_->abort(ring_, reason); }

 private:
  /// Counts a call in, and out when it is over.
  class Call {
   public:
    Call(SharedExpertsEnd& end, const ExpertOffer& offer) : stage_(end.stage_) {
      stage_.enter();
      try {
        offers_ = &end.meet(offer);
      } catch (...) {
        stage_.leave();
        throw;
      }
    }
    ~Call() { stage_.leave(); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    [[nodiscard]] const SharedExperts::Stage::Offers& offers() const { return *offers_; }

   private:
    SharedExperts::Stage& stage_;
    const SharedExperts::Stage::Offers* offers_ = nullptr;
  };

  [[nodiscard]] size_t end() const { return static_cast<size_t>(ring_) * ranks_ + static_cast<size_t>(rank_); }
  [[nodiscard]] size_t rings() const { return stage_.ends() / ranks_; }
  [[nodiscard]] const SharedExperts::Stage::Offers& meet(ExpertOffer offer);
  [[noreturn]] void throw_reason() const;
  void copy_rows(const SharedExperts::Stage::Offers& offers, Matrix all_x, Matrix all_logits) const;

  const std::shared_ptr<SharedExperts> experts_;
  SharedExperts::Stage& stage_;
  const int32_t ring_;
  const int32_t rank_;
  const size_t ranks_;
  tensor::Backend& backend_;
  uint32_t turn_ = 0;  // calls
  uint64_t step_ = 0;
  std::array<int64_t, kMaxEnds + 1> first_row_{};  // [rings + 1] of each ring among all rows, since the last dispatch
};

void SharedExpertsEnd::throw_reason() const {
  const std::lock_guard lock(experts_->fate_->mutex);
  const SharedExperts::Fate::Ending& ending = *experts_->fate_->ending;
  throw tensor::CollectiveAborted(ring_reason(ring_, ending.ring, ending.reason));
}

/// Waits until all ends have come. Their calls must be equal, and be part of the same step.
const SharedExperts::Stage::Offers& SharedExpertsEnd::meet(ExpertOffer offer) {
  offer.step = step_;
  const SharedExperts::Stage::Offers* const offers = stage_.meet(end(), ++turn_, offer);
  if (offers == nullptr) throw_reason();
  const ExpertOffer& first = offers->front();
  for (size_t other = 1; other < stage_.ends(); ++other) {
    const ExpertOffer& theirs = (*offers)[other];
    if (theirs.kind == first.kind && theirs.step == first.step) continue;
    experts_->abort(-1, fmt::format("the rings do not step together: ring 0 is at step {}, ring {} at step {}",
                                    first.step, other / ranks_, theirs.step));
    throw_reason();
  }
  return *offers;
}

bool SharedExpertsEnd::begin_step(uint64_t step, bool has_rows) {
  step_ = step;
  const Call call(*this, {.kind = ExpertOffer::Kind::kBegin, .rows = has_rows ? 1 : 0});
  return std::any_of(call.offers().begin(), call.offers().begin() + static_cast<ptrdiff_t>(stage_.ends()),
                     [](const ExpertOffer& offer) { return offer.rows > 0; });
}

int64_t SharedExpertsEnd::dispatch(Matrix x, Matrix router_logits, Matrix all_x, Matrix all_logits) {
  CHECK(x.rows == router_logits.rows && x.cols == all_x.cols && router_logits.cols == all_logits.cols &&
            x.dtype == all_x.dtype && router_logits.dtype == all_logits.dtype,
        "rows [{}, {}] with logits [{}, {}] go to [{}, {}] with [{}, {}]", x.rows, x.cols, router_logits.rows,
        router_logits.cols, all_x.rows, all_x.cols, all_logits.rows, all_logits.cols);
  const Call call(
      *this, {.kind = ExpertOffer::Kind::kDispatch, .rows = x.rows, .rows_at = x.data, .logits = router_logits.data});
  for (size_t ring = 0; ring < rings(); ++ring)
    first_row_[ring + 1] = first_row_[ring] + call.offers()[ring * ranks_].rows;
  const int64_t rows = first_row_[rings()];
  CHECK(rows <= all_x.rows && rows <= all_logits.rows, "{} rows of all rings, room for {}", rows, all_x.rows);
  copy_rows(call.offers(), all_x, all_logits);
  return rows;
}

/// Copies the rows of each ring from its rank with the number of this one.
void SharedExpertsEnd::copy_rows(const SharedExperts::Stage::Offers& offers, Matrix all_x, Matrix all_logits) const {
  const size_t x_bytes = static_cast<size_t>(all_x.cols) * tensor::size_of(all_x.dtype);
  const size_t logit_bytes = static_cast<size_t>(all_logits.cols) * tensor::size_of(all_logits.dtype);
  for (size_t ring = 0; ring < rings(); ++ring) {
    const ExpertOffer& offer = offers[ring * ranks_ + static_cast<size_t>(rank_)];
    if (offer.rows == 0) continue;
    const auto first = static_cast<size_t>(first_row_[ring]);
    for_backend_ranges(backend_, offer.rows, offer.rows * all_x.cols, [&](int64_t begin, int64_t end) {
      const auto at = static_cast<size_t>(begin);
      const auto count = static_cast<size_t>(end - begin);
      std::memcpy(all_x.data + (first + at) * x_bytes, offer.rows_at + at * x_bytes, count * x_bytes);
      std::memcpy(all_logits.data + (first + at) * logit_bytes, offer.logits + at * logit_bytes, count * logit_bytes);
    });
  }
}

void SharedExpertsEnd::combine(Matrix all_sums, Matrix sums) {
  const auto ring = static_cast<size_t>(ring_);
  const int64_t rows = first_row_[ring + 1] - first_row_[ring];
  CHECK(all_sums.dtype == DType::kF32 && sums.dtype == DType::kF32 && all_sums.rows == first_row_[rings()] &&
            sums.rows == rows && sums.cols == all_sums.cols,
        "sums [{}, {}] of [{}, {}], wanted {} of {} rows", sums.rows, sums.cols, all_sums.rows, all_sums.cols, rows,
        first_row_[rings()]);
  const Call call(*this, {.kind = ExpertOffer::Kind::kCombine, .rows = rows, .rows_at = all_sums.data});
  std::array<const float*, kMaxEnds> from{};
  for (size_t other = 0; other < stage_.ends(); ++other) {
    from[other] = reinterpret_cast<const float*>(call.offers()[other].rows_at) + first_row_[ring] * sums.cols;
  }
  float* const into = reinterpret_cast<float*>(sums.data);
  for_backend_ranges(backend_, rows, rows * sums.cols * static_cast<int64_t>(stage_.ends()),
                     [&](int64_t begin, int64_t end) {
                       add_tree(std::span(from).first(stage_.ends()), {&into, 1}, begin * sums.cols, end * sums.cols);
                     });
}

SharedExperts::SharedExperts(const Shape& shape, AbortFn on_abort) : shape_(shape), fate_(std::make_unique<Fate>()) {
  const auto ends = static_cast<size_t>(shape.ring_count * shape.rank_count);
  CHECK(std::has_single_bit(ends) && ends <= kMaxEnds, "{} rings of {} ranks share experts, wanted 2, 4 or 8 together",
        shape.ring_count, shape.rank_count);
  fate_->on_abort = std::move(on_abort);
  for (int32_t stage = 0; stage < shape.stage_count; ++stage) stages_.push_back(std::make_unique<Stage>(ends));
}

SharedExperts::~SharedExperts() = default;

std::unique_ptr<tensor::ExpertExchange> SharedExperts::join(const std::shared_ptr<SharedExperts>& experts,
                                                            int32_t stage, int32_t ring, int32_t rank,
                                                            tensor::Backend& backend) {
  CHECK(stage >= 0 && stage < experts->shape_.stage_count, "stage {} of {}", stage, experts->shape_.stage_count);
  CHECK(ring >= 0 && ring < experts->shape_.ring_count, "ring {} of {}", ring, experts->shape_.ring_count);
  CHECK(rank >= 0 && rank < experts->shape_.rank_count, "rank {} of {}", rank, experts->shape_.rank_count);
  return stage_experts(std::make_unique<SharedExpertsEnd>(experts, stage, ring, rank, backend), backend);
}

void SharedExperts::abort(int32_t ring, const std::string& reason) {
  {
    const std::lock_guard lock(fate_->mutex);
    if (fate_->ending) return;
    fate_->ending = {.ring = ring, .reason = reason};
  }
  if (fate_->on_abort) fate_->on_abort(ring, reason);
  for (const auto& stage : stages_) stage->close();
}

}  // namespace millrace::comm
