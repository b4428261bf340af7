#include "model/adapt_config.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "model/tensor_list.h"
#include "weights/companions.h"

namespace millrace::model {
namespace {

bool are_same(const StoredTensor& left, const StoredTensor& right) {
  return left.dtype == right.dtype && std::ranges::equal(left.shape, right.shape) &&
         left.bytes.size() == right.bytes.size() &&
         std::memcmp(left.bytes.data(), right.bytes.data(), left.bytes.size()) == 0;
}

/// Returns whether two weights are stored alike, with their scales.
Result<bool> are_same(const Checkpoint& checkpoint, const std::string& left, const std::string& right) {
  std::vector<std::string> lefts = weights::value_names(left);
  std::vector<std::string> rights = weights::value_names(right);
  lefts.push_back(left);
  rights.push_back(right);
  for (size_t i = 0; i < lefts.size(); ++i) {
    const bool is_there = checkpoint.contains(lefts[i]);
    if (checkpoint.contains(rights[i]) != is_there) return false;
    if (!is_there) continue;
    const auto one = checkpoint.find_stored(lefts[i]);
    if (!one) return one.error();
    const auto other = checkpoint.find_stored(rights[i]);
    if (!other) return other.error();
    if (!are_same(*one, *other)) return false;
  }
  return true;
}

/// Returns whether gate and up of all experts are stored as [experts, 2·intermediate, hidden]. Where both sizes are
/// equal nothing tells, and the family's way counts.
bool has_rows_of_features(const Checkpoint& checkpoint, const ModelConfig& config, int32_t layer) {
  const auto shape = checkpoint.find_shape(config.names.plain(layer, config.names.fused_experts_gate_up));
  if (!shape || shape->size() != 3) return false;  // whoever loads it says why
  const MoeConfig& moe = *config.layer(layer).feed_forward.moe;
  const int64_t rows = 2 * int64_t{moe.intermediate_size};
  const int64_t columns = moe.input_size(config.hidden_size);
  return rows != columns && (*shape)[1] == rows && (*shape)[2] == columns;
}

}  // namespace

Result<void> adapt_to_checkpoint(const Checkpoint& checkpoint, ModelConfig& config) {
  RETURN_IF_ERROR(settle_weight_format(checkpoint, config));
  find_expert_storage(checkpoint, config);
  split_fused_tensors(checkpoint, config);
  return untie_separate_head(checkpoint, config);
}

Result<void> settle_weight_format(const Checkpoint& checkpoint, ModelConfig& config) {
  if (!config.format_file) return {};
  const WeightFormatFile file = *std::exchange(config.format_file, std::nullopt);
  if (std::ranges::any_of(checkpoint.names(), weights::names_codes)) {
    if (!file.fault.empty()) return make_error(ErrorCode::kData, "{}", file.fault);
    return {};
  }
  log::warn("{}: is ignored, since the checkpoint holds no codes", file.path);
  config.weight_format = {};
  return {};
}

Result<void> settle_weight_format(const std::filesystem::path& folder, ModelConfig& config) {
  if (!config.format_file) return {};
  const auto checkpoint = Checkpoint::open(folder);
  if (checkpoint) return settle_weight_format(**checkpoint, config);
  if (checkpoint.error().code != ErrorCode::kNotFound) return checkpoint.error();
  const WeightFormatFile file = *std::exchange(config.format_file, std::nullopt);
  if (!file.fault.empty()) return make_error(ErrorCode::kData, "{}", file.fault);
  log::warn("{}: is taken to describe the weights, of which the folder has none", file.path);
  return {};
}

void find_expert_storage(const Checkpoint& checkpoint, ModelConfig& config) {
  TensorNames& names = config.names;
  for (int32_t layer = 0; layer < config.layer_count(); ++layer) {
    if (!config.is_sparse(layer)) continue;
    // Biases have the order of rows of the stored experts.
    if (config.layer(layer).feed_forward.moe->biases) return;
    if (!checkpoint.contains(names.plain(layer, names.fused_experts_gate_up))) {
      if (checkpoint.has_weight(expert_tensor_name(config, layer, 0, ExpertPart::kUp)))
        names.expert_storage = ExpertStorage::kSeparate;
    } else if (names.expert_storage == ExpertStorage::kSeparate) {
      names.expert_storage = ExpertStorage::kRows;
    } else if (names.expert_storage == ExpertStorage::kColumnHalves &&
               has_rows_of_features(checkpoint, config, layer)) {
      names.expert_storage = ExpertStorage::kRows;  // transformers 5 saves some families so
    }
    return;
  }
}

void split_fused_tensors(const Checkpoint& checkpoint, ModelConfig& config) {
  TensorNames& names = config.names;
  const auto split = [&](std::string_view& fused, std::string_view separate) {
    if (fused.empty()) return;
    for (int32_t layer = 0; layer < config.layer_count(); ++layer) {
      if (checkpoint.has_weight(names.weight(layer, fused))) return;
      if (!checkpoint.has_weight(names.weight(layer, separate))) continue;
      fused = {};
      return;
    }
  };
  split(names.fused_gate_up, names.up);
  split(names.fused_shared_gate_up, names.shared_up);
  split(names.fused_delta_qkvz, names.delta_qkv);
  split(names.fused_delta_ba, names.delta_b);
}

Result<void> untie_separate_head(const Checkpoint& checkpoint, ModelConfig& config) {
  const std::string name(config.names.head);
  if (!config.has_output_head || !config.tied_embeddings || !checkpoint.has_weight(name)) return {};
  if (!checkpoint.contains(name)) {
    config.tied_embeddings = false;
    log::warn("{}: {} is stored in codes and is the output head, though config.json says tie_word_embeddings true",
              checkpoint.folder().string(), name);
    return {};
  }
  const auto is_same = are_same(checkpoint, name, std::string(config.names.embedding));
  if (!is_same) return is_same.error();
  config.tied_embeddings = *is_same;
  checkpoint.release(config.names.head);
  checkpoint.release(config.names.embedding);
  if (!config.tied_embeddings)
    log::warn("{}: {} differs from {} and is the output head, though config.json says tie_word_embeddings true",
              checkpoint.folder().string(), config.names.head, config.names.embedding);
  return {};
}

}  // namespace millrace::model
