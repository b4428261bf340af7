#include <fmt/format.h>

#include "weights/readers.h"

namespace millrace::weights {
namespace {

/// Version 1 stores a zero point minus one, so that 0 wraps: writers and readers disagree on what it means.
Result<void> refuse_wrapped_zeros(const NamedTensor& zeros, int bits) {
  const uint32_t largest = (1u << bits) - 1;
  for (size_t i = 0; i < zeros.bytes.size() / sizeof(uint32_t); ++i) {
    const auto word = zeros.at<uint32_t>(i);
    for (int shift = 0; shift < 32; shift += bits) {
      if ((word >> shift & largest) == largest)
        return make_error(ErrorCode::kData,
                          "tensor '{}' stores the zero point {}, which readers of this format take for different "
                          "numbers; wanted a checkpoint of format gptq_v2",
                          zeros.name, largest);
    }
  }
  return {};
}

}  // namespace

Result<void> read_gptq(WeightTensors& tensors, const NamedTensor& codes) {
  StoredWeight& weight = tensors.weight;
  const bool is_v2 = tensors.format().is_gptq_v2;
  const auto width = tensors.bits_of(codes, 0);
  if (!width) return width.error();
  const int bits = *width;
  if (tensors.format().method != QuantMethod::kGptq)
    return make_error(ErrorCode::kData, "tensor '{}' is of GPTQ or AWQ, which quantization_config does not say",
                      codes.name);
  const int64_t words = weight.cols * bits / 32;
  if (codes.dtype != "I32" || weight.cols * bits % 32 != 0 || weight.rows * bits % 32 != 0 || bits == 0 ||
      !codes.has_shape({words, weight.rows}))
    return codes.wrong(fmt::format("I32 [{}, {}] of {} bits", words, weight.rows, bits));
  weight.codes = {.kind = CodeKind::kUnsigned, .order = CodeOrder::kWordsDownK, .bits = bits, .bytes = codes.bytes};
  const auto groups = tensors.set_transposed_scales(codes, ".scales");
  if (!groups) return groups.error();
  const auto zeros = tensors.required_words(".qzeros", codes, *groups, weight.rows * bits / 32);
  if (!zeros) return zeros.error();
  weight.zeros = {
      .order = ZeroArray::Order::kAlongN, .offset = is_v2 ? 0 : 1, .bytes = zeros->bytes, .group_count = *groups};
  if (tensors.has_values() && !is_v2 && 32 % bits == 0) RETURN_IF_ERROR(refuse_wrapped_zeros(*zeros, bits));
  return tensors.set_group_index(".g_idx");
}

}  // namespace millrace::weights
