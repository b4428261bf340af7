#include "model/layer_state.h"

namespace millrace::model {
namespace {

int64_t values_of(const DeltaNetConfig& net) {
  return (2 * net.key_width() + net.value_width()) * (net.conv_width - 1) + net.value_width() * net.key_dim;
}

int64_t values_of(const MambaConfig& mamba) {
  return (mamba.inner_width() + 2 * mamba.group_width()) * (mamba.conv_width - 1) +
         mamba.inner_width() * mamba.state_dim;
}

int64_t values_of(const ShortConvConfig& conv) {
  return int64_t{conv.width} * (conv.conv_width - 1);
}

}  // namespace

int64_t state_values(const LayerConfig& layer, int32_t ranks) {
  if (!layer.recurrent) return 0;
  return std::visit([](const auto& mixer) { return values_of(mixer); }, *layer.recurrent) / ranks;
}

}  // namespace millrace::model
