#include "weights/readers.h"

namespace millrace::weights {

Result<void> read_quark(WeightTensors& tensors, const NamedTensor& codes) {
  RowWords words{.sign_bit = static_cast<uint8_t>(tensors.format().has_signed_codes ? 8 : 0),
                 .scale_suffix = ".weight_scale",
                 .zero_suffix = ".weight_zero_point"};
  if (tensors.format().is_in_order) {
    words.codes = CodeOrder::kNibblesDownN;
    words.zeros = ZeroArray::Order::kAlongN;
  }
  return read_row_words(tensors, codes, words);
}

}  // namespace millrace::weights
