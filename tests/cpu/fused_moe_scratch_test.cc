#include <catch2/catch.hpp>
#include <optional>
#include <random>

#include "cpu/fused_moe.h"
#include "tensor/w8.h"

using namespace millrace;
using tensor::DType;

namespace {

constexpr int64_t kHidden = 70;
constexpr int64_t kInner = 40;
constexpr int32_t kExperts = 9;
constexpr int64_t kRows = 300;

/// The scaling of 8-bit weights and inputs; none: not quantized.
using Scaling = std::optional<tensor::W8Scaling>;

cpu::CpuExperts make_experts(cpu::Device& device, Scaling scaling, int32_t per_row) {
  const std::vector<float> values(static_cast<size_t>(kInner * kHidden), 0.125f);
  const auto* data = reinterpret_cast<const std::byte*>(values.data());
  const tensor::HostTensor wide{.name = "gate", .dtype = DType::kF32, .shape = {kInner, kHidden}, .data = data};
  const tensor::HostTensor tall{.name = "down", .dtype = DType::kF32, .shape = {kHidden, kInner}, .data = data};
  std::vector<cpu::ExpertWeights> weights;
  for (int32_t expert = 0; expert < kExperts; ++expert) {
    if (scaling) {
      const tensor::W8Storage wide_w8 = tensor::quantize_w8(wide, *scaling);
      const tensor::W8Storage tall_w8 = tensor::quantize_w8(tall, *scaling);
      const tensor::W8Matrix matrix = tall_w8.view();
      weights.push_back(
          {.gate_up = cpu::pack_gate_up_w8_weight(device, wide_w8.view(), wide_w8.view(), tensor::W8Activations::kInt8),
           .down = cpu::pack_w8_weight(device, {&matrix, 1}, tensor::W8Activations::kInt8)});
    } else {
      weights.push_back(
          {.gate_up = cpu::pack_gate_up_weight(device, wide, wide), .down = cpu::pack_weight(device, {&tall, 1})});
    }
  }
  return {std::move(weights), {.routing = {.experts_per_row = per_row}}, tensor::expert_shards(kExperts, {})};
}

/// Returns the bytes that a device has allocated so far.
std::vector<size_t> taken(const cpu::Device& device) {
  const cpu::Routes& routes = device.routes;
  std::vector<size_t> sizes{device.expert_values.bytes(), device.expert_rows.bytes(),    routes.topk_ids.capacity(),
                            routes.weights.capacity(),    routes.pair_index.capacity(),  routes.pair_row.capacity(),
                            routes.order.capacity(),      routes.pair_weight.capacity(), routes.group_of.capacity(),
                            routes.groups.capacity(),     routes.scores.capacity(),      device.shared_scratch.bytes()};
  for (const size_t capacity : {routes.pair_sum.capacity(), routes.last_pair.capacity(), routes.last_shard.capacity(),
                                routes.waiting.capacity()})
    sizes.push_back(capacity);
  for (const auto* scratches : {&device.slot_scratch, &device.slot_sums}) {
    for (const cpu::Scratch& scratch : *scratches) sizes.push_back(scratch.bytes());
  }
  return sizes;
}

}  // namespace

TEST_CASE("fused MoE reserves its scratch for any spread of rows") {
  std::minstd_rand random(1);
  std::uniform_real_distribution<float> noise;
  for (const cpu::Isa isa : cpu::available_isas()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const Scaling scaling :
           {Scaling(), Scaling(tensor::W8Scaling::kPerGroup), Scaling(tensor::W8Scaling::kPerChannel)}) {
        for (const int32_t per_row : {1, 3, kExperts}) {
          INFO(cpu::to_string(isa) << " " << tensor::to_string(dtype) << ", 8 bits "
                                   << (scaling ? static_cast<int>(*scaling) : -1) << ", " << per_row);
          cpu::Device device(*cpu::kernels_for(isa), dtype, 2, {});
          const cpu::CpuExperts experts = make_experts(device, scaling, per_row);
          cpu::reserve_fused_moe(device, experts, kRows);
          const std::vector<size_t> reserved = taken(device);
          for (const int64_t rows : {int64_t{1}, int64_t{17}, int64_t{153}, kRows}) {
            // Towards the first experts, so that in the end all rows go to the same ones.
            for (const float slope : {0.0f, 0.05f, 10.0f}) {
              std::vector<float> x(static_cast<size_t>(rows * kHidden));
              std::vector<float> hidden(static_cast<size_t>(rows * kHidden));
              std::vector<float> logits(static_cast<size_t>(rows * kExperts));
              for (size_t i = 0; i < logits.size(); ++i)
                logits[i] = noise(random) - slope * static_cast<float>(i % kExperts);
              const auto matrix = [&](std::vector<float>& values, DType type, int64_t cols) {
                return tensor::Matrix{
                    .data = reinterpret_cast<std::byte*>(values.data()), .dtype = type, .rows = rows, .cols = cols};
              };
              cpu::fused_moe(device, matrix(x, dtype, kHidden), matrix(logits, DType::kF32, kExperts), experts,
                             matrix(hidden, DType::kF32, kHidden));
              REQUIRE(taken(device) == reserved);
            }
          }
        }
      }
    }
  }
}
