#include <cmath>
#include <limits>

#include "conformance/rank_group.h"
#include "support/effort.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;

namespace {

constexpr int32_t kSizes[] = {1, 2, 4, 8};

struct MatrixSize {
  int64_t rows;
  int64_t cols;
};
/// Odd widths, nothing at all, and sizes on both sides of every border between ways of adding.
constexpr MatrixSize kMatrixSizes[] = {{0, 64},  {1, 1},    {1, 33},   {7, 5},     {1, 896},
                                       {7, 129}, {31, 896}, {512, 33}, {512, 259}, {33, 2051}};

/// Returns values whose sum depends on the order of additions: their exponents differ.
Values draw_sums(Random& random, int64_t count) {
  Values values = random.normal(count);
  for (float& value : values) value = std::ldexp(value, static_cast<int>(random.integer(-12, 12)));
  return values;
}

/// Returns different values for every rank.
std::vector<Values> draw_for_all(Random& random, int32_t size, int64_t count) {
  std::vector<Values> sums;
  for (int32_t rank = 0; rank < size; ++rank) sums.push_back(draw_sums(random, count));
  return sums;
}

/// Returns the results of all ranks of one all_reduce.
std::vector<Values> reduce(RankGroup& group, const std::vector<Values>& sums, MatrixSize size) {
  std::vector<DeviceMatrix> matrices;
  for (const auto& backend : group.backends) {
    matrices.push_back(make_matrix(*backend, DType::kF32, size.rows, size.cols));
  }
  run_on_all(group, [&](tensor::Backend& backend, tensor::Collective& end, int32_t rank) {
    const auto at = static_cast<size_t>(rank);
    upload(backend, sums[at], matrices[at]);
    end.all_reduce(matrices[at].matrix);
  });
  std::vector<Values> results;
  for (size_t rank = 0; rank < matrices.size(); ++rank) {
    results.push_back(read_back(*group.backends[rank], matrices[rank].matrix));
  }
  return results;
}

}  // namespace

TEST_CASE("Collectives: an end knows its position") {
  for (const CollectiveCase& each : collective_cases()) {
    for (const int32_t size : kSizes) {
      const RankGroup group = each.make(size);
      for (int32_t rank = 0; rank < size; ++rank) {
        const tensor::RankPosition position = group.ends[static_cast<size_t>(rank)]->position();
        REQUIRE(position.rank == rank);
        REQUIRE(position.size == size);
      }
    }
  }
}

TEST_CASE("Collectives: all_reduce gives all ranks the bits of the tree") {
  Random random(test_seed());
  INFO("MILLRACE_TEST_SEED=" << test_seed());
  for (const CollectiveCase& each : collective_cases()) {
    for (const int32_t size : kSizes) {
      RankGroup group = each.make(size);
      for (const MatrixSize matrix : kMatrixSizes) {
        CAPTURE(each.name, size, matrix.rows, matrix.cols);
        const auto sums = draw_for_all(random, size, matrix.rows * matrix.cols);
        const Values wanted = add_in_tree(sums);
        for (const Values& got : reduce(group, sums, matrix)) check_same_bits(got, wanted);
      }
    }
  }
}

TEST_CASE("Collectives: all_reduce adds integers exactly") {
  Random random(test_seed());
  INFO("MILLRACE_TEST_SEED=" << test_seed());
  for (const CollectiveCase& each : collective_cases()) {
    if (!each.adds_integers) continue;
    for (const int32_t size : kSizes) {
      RankGroup group = each.make(size);
      for (const MatrixSize matrix : kMatrixSizes) {
        CAPTURE(each.name, size, matrix.rows, matrix.cols);
        const auto count = static_cast<size_t>(matrix.rows * matrix.cols);
        std::vector<std::vector<int32_t>> sums(static_cast<size_t>(size), std::vector<int32_t>(count));
        std::vector<int32_t> wanted(count);
        for (std::vector<int32_t>& own : sums) {
          // No f32 holds all of these.
          for (size_t i = 0; i < count; ++i) {
            own[i] = static_cast<int32_t>(random.integer(-(1 << 27), 1 << 27)) + 1;
            wanted[i] += own[i];
          }
        }
        run_on_all(group, [&](tensor::Backend&, tensor::Collective& end, int32_t rank) {
          end.all_reduce({.data = sums[static_cast<size_t>(rank)].data(), .rows = matrix.rows, .cols = matrix.cols});
        });
        for (const std::vector<int32_t>& got : sums) REQUIRE((got == wanted));
      }
    }
  }
}

TEST_CASE("Collectives: the order of additions is that of the tree") {
  // ((1e8 + 1) + (-1e8 + 1)) + … : every other order gives another sum.
  const std::vector<float> by_rank = {1e8f, 1.0f, -1e8f, 1.0f, 3.0f, 1e9f, -1e9f, 5.0f};
  for (const CollectiveCase& each : collective_cases()) {
    for (const int32_t size : kSizes) {
      CAPTURE(each.name, size);
      RankGroup group = each.make(size);
      std::vector<Values> sums;
      for (int32_t rank = 0; rank < size; ++rank) sums.push_back({by_rank[static_cast<size_t>(rank)]});
      const Values wanted = add_in_tree(sums);
      for (const Values& got : reduce(group, sums, {1, 1})) check_same_bits(got, wanted);
    }
  }
}

TEST_CASE("Collectives: NaN and infinity and the sign of zero are added") {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const Values special = {std::nanf(""),
                          kInf,
                          -kInf,
                          -0.0f,
                          0.0f,
                          std::numeric_limits<float>::max(),
                          std::numeric_limits<float>::denorm_min(),
                          1.0f};
  const auto kinds = static_cast<int64_t>(special.size());
  Random random(test_seed());
  INFO("MILLRACE_TEST_SEED=" << test_seed());
  for (const CollectiveCase& each : collective_cases()) {
    for (const int32_t size : kSizes) {
      RankGroup group = each.make(size);
      for (const MatrixSize matrix : {MatrixSize{1, 67}, MatrixSize{64, 257}}) {
        CAPTURE(each.name, size, matrix.rows);
        std::vector<Values> sums(static_cast<size_t>(size), Values(static_cast<size_t>(matrix.rows * matrix.cols)));
        for (Values& values : sums) {
          for (float& value : values) value = special[static_cast<size_t>(random.integer(0, kinds - 1))];
        }
        // The sum of negative zeros alone is negative.
        for (Values& values : sums) values[0] = -0.0f;
        const Values wanted = add_in_tree(sums);
        REQUIRE(std::signbit(wanted[0]));
        for (const Values& got : reduce(group, sums, matrix)) check_same_bits(got, wanted);
      }
    }
  }
}

TEST_CASE("Collectives: all_gather puts the slices side by side") {
  Random random(test_seed());
  INFO("MILLRACE_TEST_SEED=" << test_seed());
  for (const CollectiveCase& each : collective_cases()) {
    for (const int32_t size : kSizes) {
      RankGroup group = each.make(size);
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        for (const MatrixSize slice : kMatrixSizes) {
          CAPTURE(each.name, size, to_string(dtype), slice.rows, slice.cols);
          std::vector<DeviceMatrix> slices;
          std::vector<DeviceMatrix> outs;
          for (const auto& backend : group.backends) {
            slices.push_back(make_matrix(*backend, dtype, slice.rows, slice.cols));
            outs.push_back(make_matrix(*backend, dtype, slice.rows, slice.cols * size));
          }
          const auto values = draw_for_all(random, size, slice.rows * slice.cols);
          run_on_all(group, [&](tensor::Backend& backend, tensor::Collective& end, int32_t rank) {
            const auto at = static_cast<size_t>(rank);
            upload(backend, values[at], slices[at]);
            end.all_gather(slices[at].matrix, outs[at].matrix);
          });
          Values wanted;
          std::vector<Values> stored;  // as the dtype keeps them
          for (size_t at = 0; at < slices.size(); ++at) {
            stored.push_back(read_back(*group.backends[at], slices[at].matrix));
          }
          for (int64_t row = 0; row < slice.rows; ++row) {
            for (const Values& each_slice : stored) {
              const auto begin = each_slice.begin() + row * slice.cols;
              wanted.insert(wanted.end(), begin, begin + slice.cols);
            }
          }
          for (size_t at = 0; at < outs.size(); ++at) {
            check_same_bits(read_back(*group.backends[at], outs[at].matrix), wanted);
          }
        }
      }
    }
  }
}

TEST_CASE("Collectives: thousands of calls in turn keep apart") {
  const uint64_t seed = test_seed();
  INFO("MILLRACE_TEST_SEED=" << seed);
  constexpr int64_t kMaxValues = 20'000;
  for (const CollectiveCase& each : collective_cases()) {
    const auto calls = static_cast<int64_t>(repetitions(each.calls_in_turn));
    for (const int32_t size : {2, 4, 8}) {
      CAPTURE(each.name, size);
      RankGroup group = each.make(size);
      std::vector<DeviceMatrix> sums;
      std::vector<DeviceMatrix> gathered;
      for (const auto& backend : group.backends) {
        sums.push_back(make_matrix(*backend, DType::kF32, 1, kMaxValues));
        gathered.push_back(make_matrix(*backend, DType::kF32, 1, kMaxValues * size));
      }
      const Values ones(kMaxValues, 1.0f);
      // The sum of T equal sums, gathered and scaled back, is what a rank began with if no call saw another's values.
      run_on_all(group, [&](tensor::Backend& backend, tensor::Collective& end, int32_t rank) {
        const auto at = static_cast<size_t>(rank);
        Random random(seed);  // all ranks draw the same calls
        for (int64_t call = 0; call < calls; ++call) {
          const int64_t count = random.integer(0, 9) == 0 ? random.integer(1, kMaxValues) : random.integer(1, 900);
          Values values(static_cast<size_t>(count));
          for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((call + rank) % 1000);
          tensor::Matrix matrix = sums[at].matrix;
          matrix.cols = count;
          backend.copy_in(std::as_bytes(std::span(values)), matrix.data);
          end.all_reduce(matrix);
          tensor::Matrix out = gathered[at].matrix;
          out.cols = count * size;
          end.all_gather(matrix, out);
          Values found(static_cast<size_t>(out.cols));
          backend.copy_to_host(out.data, std::as_writable_bytes(std::span(found)));
          float wanted = 0;
          for (int32_t other = 0; other < size; ++other) wanted += static_cast<float>((call + other) % 1000);
          for (const float value : found) {
            if (value != wanted) throw std::runtime_error(fmt::format("call {}: {} of {}", call, value, wanted));
          }
        }
      });
    }
  }
}
