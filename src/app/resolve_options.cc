#include "app/resolve_options.h"

#include "app/rank_processors.h"
#include "base/machine.h"
#include "model/rank_layout.h"

namespace millrace::app {
namespace {

/// Chooses the device and keeps the choice in the options.
Result<DeviceKind> resolve_device(EngineOptions& options) {
  auto device = choose_device(options.node.device, options.stage.dtype);
  if (device.has_value()) options.node.device = *device == DeviceKind::kCuda ? DeviceChoice::kCuda : DeviceChoice::kCpu;
  return device;
}

/// Checks that the ranks of all rings can divide the layers and the experts.
Result<void> check_division(const EngineOptions& options, const model::ModelConfig& config) {
  const auto divides = model::check_ranks(config, options.tp_size);
  if (divides.has_error()) {
    return make_error(divides.error().code, "--tp-size {}: {}", options.tp_size, divides.error().message);
  }
  if (!options.stage.shares_experts()) return {};
  const auto rings = static_cast<int32_t>(options.stage.expert_rings);
  const auto shared = model::check_shared_experts(config, rings, options.tp_size);
  if (shared.has_error()) return make_error(shared.error().code, "--enable-ep: {}", shared.error().message);
  return {};
}

}  // namespace

Result<EngineOptions> resolve_options(const EngineOptions& options, const model::ModelConfig& config) {
  if (options.context_length > config.context_length()) {
    return make_error(ErrorCode::kInvalidArgument, "--context-length {}: the model was made for {} tokens",
                      options.context_length, config.context_length());
  }
  EngineOptions resolved = options;
  if (options.tp_size == 0) {
    const auto device = resolve_device(resolved);
    if (device.has_error()) return device.error();
    const bool on_gpu = *device == DeviceKind::kCuda;
    resolved.tp_size = on_gpu ? 1 : ranks_for(config, Machine().numa_nodes().size());
  }
  RETURN_IF_ERROR(check_division(resolved, config));
  if (config.encoder) RETURN_IF_ERROR(adapt_to_encoder(config, resolved));
  return resolved;
}

Result<void> check_exchange(const EngineOptions& options, DeviceKind device, int32_t ranks_here, int32_t node_count) {
  if (options.tp_size == 1) return {};
  if (device == DeviceKind::kCuda) {
    const auto exchange = choose_rank_exchange(ranks_here, ranks_here < options.tp_size, options.node);
    if (exchange.has_error()) return exchange.error();
  }
  const bool crosses_hosts = options.pp_size > 1 || device != DeviceKind::kCuda;
  if (options.node.nccl == NcclMode::kOn && crosses_hosts && node_count > 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--nccl on: the activations of --tp-size {} go from node to node through the hosts; wanted "
                      "--nccl auto or --tp-size 1",
                      options.tp_size);
  }
  return {};
}

}  // namespace millrace::app
