#include "sched/stage/pooler.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

using namespace millrace;
using namespace millrace::sched;

namespace {

/// Rows of two columns in f32.
tensor::Matrix rows_of(std::vector<float>& values) {
  return {.data = reinterpret_cast<std::byte*>(values.data()),
          .dtype = tensor::DType::kF32,
          .rows = static_cast<int64_t>(values.size() / 2),
          .cols = 2};
}

SliceOutput pool(Pooler& pooler, const PlanSlice& slice, std::vector<float> values) {
  SliceOutput output;
  pooler.pool(slice, rows_of(values), output);
  return output;
}

PlanSlice slice_at(uint32_t prefix, uint32_t count, SlicePooling pooling, uint32_t slot = 0) {
  return {.slot = SlotId(slot), .prefix = prefix, .token_count = count, .pooling = pooling};
}

}  // namespace

TEST_CASE("one row is returned as it is") {
  Pooler pooler;
  REQUIRE(Pooler::row_count(slice_at(0, 3, SlicePooling::kNone)) == 0);
  const PlanSlice last = slice_at(4, 3, SlicePooling::kLastRow);
  REQUIRE(Pooler::row_count(last) == 1);
  REQUIRE(Pooler::first_row(last) == 2);
  REQUIRE(pool(pooler, last, {1.5f, -2}).pooled == std::vector<float>{1.5f, -2});
  REQUIRE(Pooler::first_row(slice_at(0, 3, SlicePooling::kFirstRow)) == 0);
}

TEST_CASE("a mean has the same bits whole and in chunks") {
  const std::vector<float> values{0.1f, 1e8f, 0.2f, 1, 0.3f, -1e8f, 0.7f, 3};
  Pooler pooler;
  const auto whole = pool(pooler, slice_at(0, 4, SlicePooling::kMean), values);
  REQUIRE(whole.pooled[1] == 1.0f);
  for (uint32_t cut = 1; cut < 4; ++cut) {
    const auto middle = values.begin() + 2 * cut;
    const auto first = pool(pooler, slice_at(0, cut, SlicePooling::kSum), {values.begin(), middle});
    REQUIRE(first.pooled.empty());
    // Another sequence in between has a sum of its own.
    (void)pool(pooler, slice_at(0, 1, SlicePooling::kSum, 7), {5, 5});
    const auto rest = pool(pooler, slice_at(cut, 4 - cut, SlicePooling::kMean), {middle, values.end()});
    REQUIRE(rest.pooled == whole.pooled);
  }
}

TEST_CASE("a sum begins anew with a sequence in the same slot") {
  Pooler pooler;
  (void)pool(pooler, slice_at(0, 1, SlicePooling::kSum), {100, 100});
  REQUIRE(pool(pooler, slice_at(0, 1, SlicePooling::kMean), {1, 2}).pooled == std::vector<float>{1, 2});
}

TEST_CASE("a vector that holds no numbers is a fault") {
  Pooler pooler;
  const PlanSlice last = slice_at(0, 1, SlicePooling::kLastRow);
  const auto nan = pool(pooler, last, {1, std::nanf("")});
  REQUIRE(nan.fault == tensor::LogitFault::kNan);
  REQUIRE(nan.pooled.empty());
  REQUIRE(pool(pooler, last, {std::numeric_limits<float>::infinity(), 1}).fault == tensor::LogitFault::kInfinity);
}
