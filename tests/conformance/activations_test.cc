#include <array>
#include <cmath>

#include "conformance/harness.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;

namespace {

/// Checks an op of gates and ups, which lie side by side in a row, with rows of several widths.
template <class Op, class Wanted>
void check_gated_op(tensor::Feature feature, uint64_t salt, const Op& op, const Wanted& wanted) {
  INFO("seed " << test_seed());
  Random random(test_seed() + salt);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(feature)) continue;
    for (const int64_t width : {int64_t{1}, int64_t{16}, int64_t{75}}) {
      INFO(backend_case.name << ": width " << width);
      Values gate = random.normal(5 * width, 3.0f);
      for (size_t i = 0; i < 4; ++i) gate[i] = std::array{0.0f, -40.0f, 40.0f, -0.0f}[i];
      const Values up = random.normal(5 * width);
      Values both;
      for (int64_t row = 0; row < 5; ++row) {
        both.insert(both.end(), gate.begin() + row * width, gate.begin() + (row + 1) * width);
        both.insert(both.end(), up.begin() + row * width, up.begin() + (row + 1) * width);
      }
      Values got;
      backend->run_and_wait([&] {
        const DeviceMatrix in = make_matrix(*backend, DType::kF32, 5, 2 * width);
        const DeviceMatrix out = make_matrix(*backend, backend->compute_dtype(), 5, width);
        upload(*backend, both, in);
        op(*backend, in.matrix, out.matrix);
        got = download(*backend, out.matrix);
      });
      check_close(got, wanted(gate, up), unit(backend->compute_dtype()) + 2e-6, 1e-6);
    }
  }
}

}  // namespace

TEST_CASE("gelu_tanh_mul agrees with the reference") {
  check_gated_op(
      tensor::Feature::kGeluTanh, 16,
      [](tensor::Backend& backend, tensor::Matrix in, tensor::Matrix out) { backend.gelu_tanh_mul(in, out); },
      [](const Values& gate, const Values& up) { return reference::gelu_tanh_mul(gate, up); });
}

TEST_CASE("gelu_tanh_gate takes some columns of its factors") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 23);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kGeluTanh)) continue;
    constexpr int64_t kRows = 5;
    constexpr int64_t kWidth = 20;
    constexpr int64_t kLayers = 3;
    const Values gates = random.normal(kRows * kWidth, 3.0f);
    const Values factors = random.normal(kRows * kLayers * kWidth);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      INFO(backend_case.name << ": layer " << layer);
      Values own;
      for (int64_t row = 0; row < kRows; ++row) {
        const auto begin = factors.begin() + (row * kLayers + layer) * kWidth;
        own.insert(own.end(), begin, begin + kWidth);
      }
      Values got;
      backend->run_and_wait([&] {
        const DeviceMatrix gate = make_matrix(*backend, DType::kF32, kRows, kWidth);
        const DeviceMatrix factor = make_matrix(*backend, DType::kF32, kRows, kLayers * kWidth);
        const DeviceMatrix out = make_matrix(*backend, backend->compute_dtype(), kRows, kWidth);
        upload(*backend, gates, gate);
        upload(*backend, factors, factor);
        backend->gelu_tanh_gate(gate.matrix, factor.matrix, layer * kWidth, out.matrix);
        got = download(*backend, out.matrix);
      });
      check_close(got, reference::gelu_tanh_mul(gates, own), unit(backend->compute_dtype()) + 2e-6, 1e-6);
    }
  }
}

TEST_CASE("scaled_silu_mul agrees with the reference") {
  check_gated_op(
      tensor::Feature::kScaledGates, 21,
      [](tensor::Backend& backend, tensor::Matrix in, tensor::Matrix out) { backend.scaled_silu_mul(in, 0.75f, out); },
      [](const Values& gate, const Values& up) { return reference::scaled_silu_mul(gate, up, 0.75); });
}

TEST_CASE("relu_squared agrees with the reference") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 22);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kReluSquared)) continue;
    INFO(backend_case.name);
    Values values = random.normal(5 * 75, 3.0f);
    values[7] = std::nanf("");
    Values got;
    backend->run_and_wait([&] {
      const DeviceMatrix in = make_matrix(*backend, DType::kF32, 5, 75);
      const DeviceMatrix out = make_matrix(*backend, backend->compute_dtype(), 5, 75);
      upload(*backend, values, in);
      backend->relu_squared(in.matrix, out.matrix);
      got = download(*backend, out.matrix);
    });
    REQUIRE(std::isnan(got[7]));
    values[7] = got[7] = 0.0f;
    check_close(got, reference::relu_squared(values), unit(backend->compute_dtype()), 0.0);
  }
}

TEST_CASE("gelu agrees with the reference") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 11);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kEncoders)) continue;
    INFO(backend_case.name);
    Values in = random.normal(5 * 75, 3.0f);
    for (size_t i = 0; i < 4; ++i) in[i] = std::array{0.0f, -40.0f, 40.0f, -0.0f}[i];
    Values got;
    backend->run_and_wait([&] {
      const DeviceMatrix from = make_matrix(*backend, DType::kF32, 5, 75);
      const DeviceMatrix out = make_matrix(*backend, backend->compute_dtype(), 5, 75);
      upload(*backend, in, from);
      backend->gelu(from.matrix, out.matrix);
      got = download(*backend, out.matrix);
    });
    check_close(got, reference::gelu(in), unit(backend->compute_dtype()) + 1e-6, 1e-6);
  }
}

TEST_CASE("gate multiplies by a sigmoid in place") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 35);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kAttentionGates)) continue;
    INFO(backend_case.name);
    const Values values = reference::rounded(random.normal(6 * 77), backend->compute_dtype());
    Values gates = random.normal(6 * 77, 4.0f);
    for (size_t i = 0; i < 3; ++i) gates[i] = std::array{-200.0f, 200.0f, 0.0f}[i];
    Values got;
    backend->run_and_wait([&] {
      const DeviceMatrix in_place = make_matrix(*backend, backend->compute_dtype(), 6, 77);
      const DeviceMatrix gate = make_matrix(*backend, DType::kF32, 6, 77);
      upload(*backend, values, in_place);
      upload(*backend, gates, gate);
      backend->gate(in_place.matrix, gate.matrix);
      got = download(*backend, in_place.matrix);
    });
    check_close(got, reference::gate(values, gates), unit(backend->compute_dtype()) + 1e-6, 1e-6);
  }
}
