#pragma once

#include <filesystem>

#include "base/result.h"
#include "model/checkpoint.h"
#include "model/config.h"

/// What a checkpoint says beyond its config.json, which does not tell all ways to store a model apart.
namespace millrace::model {

/// Adapts a config to what the checkpoint holds: see settle_weight_format, untie_separate_head, find_expert_storage
/// and split_fused_tensors. Call it before anything is derived from `config`, and on every node alike. Errors: those of
/// settle_weight_format and Checkpoint::find_stored.
[[nodiscard]] Result<void> adapt_to_checkpoint(const Checkpoint& checkpoint, ModelConfig& config);

/// Drops a weight format of a file next to config.json where the checkpoint holds no codes: many such files are left
/// over. Error: kData for one that cannot be read where it holds some.
[[nodiscard]] Result<void> settle_weight_format(const Checkpoint& checkpoint, ModelConfig& config);

/// Settles the weight format for a folder that need not hold weights. Without them the file counts, which the log
/// reports. Errors: those of settle_weight_format and Checkpoint::open; kData for a file that cannot be read.
[[nodiscard]] Result<void> settle_weight_format(const std::filesystem::path& folder, ModelConfig& config);

/// Sets how experts are stored: each in tensors of its own, or all of a layer in one. What the checkpoint has decides.
void find_expert_storage(const Checkpoint& checkpoint, ModelConfig& config);

/// Clears the fused names of tensors that the checkpoint stores one by one.
void split_fused_tensors(const Checkpoint& checkpoint, ModelConfig& config);

/// Unties a head that config.json ties to the embedding when the checkpoint holds a different one. Adapters that
/// trained the head and were merged leave config.json unchanged, and so do quantizers of the head. The log reports it.
/// It compares both weights, with their scales, where both are stored under their own names. Errors: those of
/// Checkpoint::find_stored.
[[nodiscard]] Result<void> untie_separate_head(const Checkpoint& checkpoint, ModelConfig& config);

}  // namespace millrace::model
