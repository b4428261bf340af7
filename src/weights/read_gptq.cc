#include <fmt/format.h>

#include "weights/readers.h"

namespace millrace::weights {
namespace {

/// Calls body(zero) with each stored zero point of a matrix. Their bits are dense.
template <class Body>
void for_zeros(const NamedTensor& zeros, int bits, Body&& body) {
  uint64_t window = 0;
  int held = 0;
  for (size_t i = 0; i < zeros.bytes.size() / sizeof(uint32_t); ++i) {
    window |= static_cast<uint64_t>(zeros.at<uint32_t>(i)) << held;
    for (held += 32; held >= bits; held -= bits, window >>= bits) body(static_cast<int>(window & ((1u << bits) - 1)));
  }
}

/// Version 1 stores a zero point minus one, so that 0 wraps: writers and readers disagree on what it means.
Result<void> refuse_wrapped_zeros(const NamedTensor& zeros, int bits) {
  const int largest = (1 << bits) - 1;
  bool wraps = false;
  for_zeros(zeros, bits, [&](int zero) { wraps = wraps || zero == largest; });
  if (!wraps) return {};
  return make_error(ErrorCode::kData,
                    "tensor '{}' stores the zero point {}, which readers of this format take for different numbers; "
                    "wanted a checkpoint of format gptq_v2",
                    zeros.name, largest);
}

/// Returns what is added to stored zero points. Some writers name version 1 and store those of version 2. Symmetric
/// codes distinguish them: all zero points are the middle, or one less.
int zero_offset(const NamedTensor& zeros, int bits, const WeightFormat& format) {
  const int stated = format.is_gptq_v2 ? 0 : 1;
  if (!format.is_symmetric) return stated;
  const int middle = 1 << (bits - 1);
  bool are_whole = true;
  bool are_less_one = true;
  for_zeros(zeros, bits, [&](int zero) {
    are_whole = are_whole && zero == middle;
    are_less_one = are_less_one && zero == middle - 1;
  });
  return are_whole ? 0 : are_less_one ? 1 : stated;
}

}  // namespace

Result<void> read_gptq(WeightTensors& tensors, const NamedTensor& codes) {
  StoredWeight& weight = tensors.weight;
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
  weight.zeros = {.order = ZeroArray::Order::kAlongN, .bytes = zeros->bytes, .group_count = *groups};
  if (tensors.has_values()) {
    weight.zeros.offset = zero_offset(*zeros, bits, tensors.format());
    if (weight.zeros.offset == 1) RETURN_IF_ERROR(refuse_wrapped_zeros(*zeros, bits));
  }
  return tensors.set_group_index(".g_idx");
}

}  // namespace millrace::weights
