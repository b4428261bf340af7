#include "cuda_backend/plain_weights.h"

#include <cmath>
#include <cstring>

#include "cuda/weight_layout.h"
#include "cuda_backend/plain_numbers.h"

namespace millrace::cuda {
namespace {

template <class T>
T read_at(const std::byte* from) {
  T value{};
  std::memcpy(&value, from, sizeof(value));
  return value;
}

/// Returns the integer of a code.
int integer_of(const WeightFormat& format, const std::byte* step, int32_t row, int32_t input) {
  const int32_t half = input / kUnitInputs;
  const int32_t within = input % kUnitInputs;
  if (format.codes == WeightCodes::kInt8 || format.codes == WeightCodes::kE4M3) {
    const int32_t part = within / kPartBytes;
    return read_at<int8_t>(step + part_offset(format.codes, row, half, part) + within % kPartBytes);
  }
  const auto word = read_at<uint32_t>(step + part_offset(format.codes, row, half, 0) + within / 8 * 4);
  const int32_t nibble = within % 8 / 2 + within % 2 * 4;
  const auto code = static_cast<int32_t>(word >> nibble * 4 & 15);
  if (format.codes == WeightCodes::kInt4) return code;
  return static_cast<int32_t>(format.integers[code / 4] >> code % 4 * 8 & 255) - 128;
}

/// Returns the number of a code of E4M3.
float number_of(int code) {
  const int magnitude = code & 0x7F;
  const int exponent = magnitude >> 3;
  const auto mantissa = static_cast<float>(magnitude & 7);
  float number = exponent == 0 ? mantissa * 0x1p-9f : std::ldexp(8.0f + mantissa, exponent - 10);
  if (magnitude == 0x7F) number = std::nanf("");
  return code < 0 ? -number : number;
}

/// Returns the factor of a weight's 16 inputs.
float factor_of(const WeightFormat& format, const std::byte* scale, int32_t input) {
  const int32_t within = format.scales_per_step > 1 ? input % kUnitInputs : input;
  const int factor = read_at<int8_t>(scale + 4 + within / 16);
  return format.scales == CodeScales::kE4M3Halves ? number_of(factor) : static_cast<float>(factor);
}

float weight_of(const WeightFormat& format, const std::byte* step, int32_t row, int32_t input) {
  const int code = integer_of(format, step, row, input);
  const float n = format.codes == WeightCodes::kE4M3 ? number_of(code) : static_cast<float>(code);
  const std::byte* const scale = step + scale_offset(format, row, input / kUnitInputs);
  switch (format.scales) {
    case CodeScales::kBf16:
      return (n - (format.codes == WeightCodes::kInt4 ? 8.0f : 0.0f)) * to_float(read_at<uint16_t>(scale));
    case CodeScales::kBf16Zero:
      return (n - static_cast<float>(read_at<int16_t>(scale))) * to_float(read_at<uint16_t>(scale + 2));
    case CodeScales::kF16:
      return (n - (format.codes == WeightCodes::kInt4 ? 8.0f : 0.0f)) *
             tensor::Float16{read_at<uint16_t>(scale)}.to_float();
    case CodeScales::kF16Zero:
      return (n - static_cast<float>(read_at<int16_t>(scale))) *
             tensor::Float16{read_at<uint16_t>(scale + 2)}.to_float();
    case CodeScales::kF32: return n * read_at<float>(scale);
    case CodeScales::kF32Zero: return (n - read_at<float>(scale + 4)) * read_at<float>(scale);
    case CodeScales::kE4M3Halves:
    case CodeScales::kInt8Halves: return n * (read_at<float>(scale) * factor_of(format, scale, input));
    case CodeScales::kF16Factors: {
      const int32_t unit = format.scales_per_step > 1 ? 0 : input / kUnitInputs;
      const auto factor = static_cast<float>(read_at<int8_t>(scale + 4 + unit * 2));
      const auto of_minimum = static_cast<float>(read_at<int8_t>(scale + 5 + unit * 2));
      return n * (tensor::Float16{read_at<uint16_t>(scale)}.to_float() * factor) +
             tensor::Float16{read_at<uint16_t>(scale + 2)}.to_float() * of_minimum;
    }
    case CodeScales::kF32Minimum: break;
  }
  return n * read_at<float>(scale) + read_at<float>(scale + 4);
}

/// Returns a weight of kE4M3Both.
float fp8_weight_of(const DeviceWeight& weight, int32_t row, int32_t input) {
  const std::byte* const step = static_cast<const std::byte*>(weight.data) +
                                static_cast<size_t>(row / kPanelRows) * coded_panel_bytes(weight) +
                                static_cast<size_t>(input / kFp8StepInputs) * kFp8StepBytes;
  const int32_t within = input % kFp8StepInputs;
  const int code = read_at<int8_t>(step + chunk_offset(row % kPanelRows, within / kPartBytes) + within % kPartBytes);
  return number_of(code) * read_at<float>(step + kPanelStepBytes + row % kPanelRows * 4);
}

}  // namespace

PlainWeight::PlainWeight(const DeviceWeight& weight)
    : rows_(bf16(weight.data)), inputs_(static_cast<size_t>(weight.in_features)) {
  const WeightFormat& format = weight.format;
  if (format.codes == WeightCodes::kBf16) return;
  const int32_t features = weight.out_features * (weight.gate_up ? 2 : 1);
  for (int32_t feature = 0; feature < features; ++feature) {
    const int32_t pair = feature / 2;
    const int32_t row = weight.gate_up ? pair / 8 * 16 + pair % 8 + feature % 2 * 8 : feature;
    for (int32_t input = 0; input < weight.in_features; ++input) {
      if (format.codes == WeightCodes::kE4M3Both) {
        decoded_.push_back(to_bf16(fp8_weight_of(weight, row, input)));
        continue;
      }
      const auto at = static_cast<size_t>(row / kPanelRows * step_count(weight.in_features) + input / kStepInputs);
      const std::byte* const step =
          static_cast<const std::byte*>(weight.data) + at * static_cast<size_t>(step_bytes(format));
      decoded_.push_back(to_bf16(weight_of(format, step, row % kPanelRows, input % kStepInputs)));
    }
  }
  rows_ = decoded_.data();
}

size_t PlainWeight::bytes(const DeviceWeight& weight) {
  if (weight.format.codes != WeightCodes::kBf16) return coded_weight_bytes(weight);
  return packed_weight_bytes(weight.out_features, weight.in_features, weight.gate_up);
}

}  // namespace millrace::cuda
