#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "gguf/config_members.h"

/// Members of config.json that several families share. Each function throws ErrorException (kData) for metadata that is
/// missing or out of range.
namespace millrace::gguf {

/// How expert_gating_func counts scores.
inline constexpr int64_t kSoftmax = 1;
inline constexpr int64_t kSigmoid = 2;

/// Refuses experts whose scores are made otherwise. 0 stands for the family's own way.
void require_gating(ConfigMembers& members, int64_t wanted);

void write_counts(ConfigMembers& members, std::string_view count_member,
                  std::string_view used_member = "num_experts_per_tok");
void write_expert_width(ConfigMembers& members);

/// Returns whether a correction is added to scores when experts are chosen. Some converters store it without an ending.
[[nodiscard]] bool has_choice_bias(const Model& model);

/// Writes the numbers of layers that have no router.
void write_dense_layers(ConfigMembers& members);

/// Writes the members of DeepSeek-V3's router.
void write_grouped_experts(ConfigMembers& members, std::string_view count_member = "n_routed_experts",
                           std::string_view shared_member = "n_shared_experts");

/// Writes the window, which files may lack where there is a usual one, and which layers slide: by a list of flags or by
/// the distance of those that do not.
void write_pattern(ConfigMembers& members, int64_t usual, std::optional<int64_t> usual_window = {});

/// Writes the type of each layer: `type` where it has a tensor, as "ssm_conv1d.weight", and else `other`.
void write_layer_types(ConfigMembers& members, std::string_view tensor, std::string_view type, std::string_view other);

/// Returns the values of a vector in F32; empty: the model has none of that name.
[[nodiscard]] std::vector<float> read_vector(const Model& model, std::string_view name);

void write_list(JsonWriter& json, std::string_view member, const std::vector<float>& values);

}  // namespace millrace::gguf
