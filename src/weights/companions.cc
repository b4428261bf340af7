#include "weights/companions.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace millrace::weights {
namespace {

enum class Role : uint8_t { kCodes, kScales, kGroupIndex, kInputScale, kOther };

/// A suffix in place of ".weight", or in addition to it.
struct Companion {
  std::string_view suffix;
  Role role;
};
constexpr std::array<Companion, 18> kCompanions = {{
    // compressed-tensors, ModelOpt, Quark and FP8
    {".weight_packed", Role::kCodes},
    {".weight_scale", Role::kScales},
    {".weight_scale_inv", Role::kScales},
    {".weight_scale_2", Role::kScales},
    {".weight_global_scale", Role::kScales},
    {".weight_zero_point", Role::kOther},
    {".weight_g_idx", Role::kGroupIndex},
    {".weight_shape", Role::kOther},
    {".input_scale", Role::kInputScale},
    {".input_scale_2", Role::kInputScale},
    {".input_global_scale", Role::kInputScale},
    {".input_zero_point", Role::kInputScale},
    {".activation_scale", Role::kInputScale},
    // GPTQ and AWQ
    {".qweight", Role::kCodes},
    {".qzeros", Role::kOther},
    {".scaled_zeros", Role::kOther},
    {".scales", Role::kScales},
    {".g_idx", Role::kGroupIndex},
}};

template <class Chosen>
std::vector<std::string> names_of(std::string_view weight_name, Chosen chosen) {
  if (weight_name.ends_with(".bias")) return {};
  const bool is_alone = weight_name.ends_with(kWeightSuffix);
  const std::string prefix(is_alone ? weight_name.substr(0, weight_name.size() - kWeightSuffix.size()) : weight_name);
  std::vector<std::string> names;
  for (const Companion& companion : kCompanions) {
    const std::string name = prefix + std::string(companion.suffix);
    if (chosen(companion.role)) names.push_back(is_alone ? name : name_in_one_tensor(name));
  }
  return names;
}

/// Returns the companion that a tensor is by its name; null: none.
const Companion* companion_of(std::string_view name) {
  const auto found = std::ranges::find_if(
      kCompanions, [name](const Companion& companion) { return name.ends_with(companion.suffix); });
  return found == kCompanions.end() ? nullptr : &*found;
}

}  // namespace

std::vector<std::string> companion_names(std::string_view weight_name) {
  return names_of(weight_name, [](Role) { return true; });
}

std::vector<std::string> code_names(std::string_view weight_name) {
  return names_of(weight_name, [](Role role) { return role == Role::kCodes; });
}

std::vector<std::string> value_names(std::string_view weight_name) {
  return names_of(weight_name, [](Role role) { return role != Role::kInputScale; });
}

std::vector<std::string> group_index_names(std::string_view weight_name) {
  return names_of(weight_name, [](Role role) { return role == Role::kGroupIndex; });
}

std::optional<std::string> weight_of_companion(std::string_view name) {
  const Companion* const companion = companion_of(name);
  if (companion == nullptr) return std::nullopt;
  return std::string(name.substr(0, name.size() - companion->suffix.size())).append(kWeightSuffix);
}

bool names_input_scale(std::string_view name) {
  const Companion* const companion = companion_of(name);
  return companion != nullptr && companion->role == Role::kInputScale;
}

std::string name_in_one_tensor(std::string_view name) {
  const size_t dot = name.rfind('.');
  const std::string_view prefix = name.substr(0, dot);
  const std::string_view suffix = name.substr(dot);
  if (suffix == kWeightSuffix) return std::string(prefix);
  constexpr std::string_view kBegin = ".weight_";
  const std::string_view rest = suffix.substr(suffix.starts_with(kBegin) ? kBegin.size() : 1);
  return std::string(prefix) + "_" + std::string(rest);
}

bool names_codes(std::string_view name) {
  const Companion* const companion = companion_of(name);
  return companion != nullptr && (companion->role == Role::kCodes || companion->role == Role::kScales);
}

}  // namespace millrace::weights
