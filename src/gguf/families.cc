#include "gguf/families.h"

#include <fmt/ranges.h>

#include <ranges>

namespace millrace::gguf {
namespace {

/// Mistral's models are stored as Llama's, and so are Mixtral's, which have experts.
constexpr Family kFamilies[] = {
    {.name = "llama", .architecture = "LlamaForCausalLM", .pairs_rows = true},
    {.name = "qwen2", .architecture = "Qwen2ForCausalLM"},
    {.name = "qwen3", .architecture = "Qwen3ForCausalLM"},
    {.name = "qwen3moe", .architecture = "Qwen3MoeForCausalLM", .is_moe = true},
};
constexpr Family kMixtral = {
    .name = "llama", .architecture = "MixtralForCausalLM", .pairs_rows = true, .is_moe = true, .is_mixtral = true};

}  // namespace

const Family& family_of(const Model& model) {
  const std::string_view name = model.architecture();
  const auto* const found = std::ranges::find(kFamilies, name, &Family::name);
  if (found == std::end(kFamilies))
    model.metadata().fail("general.architecture '{}' is not known, wanted one of {}", name,
                          fmt::join(kFamilies | std::views::transform(&Family::name), ", "));
  const auto experts = model.metadata().integer("llama.expert_count", 0, INT32_MAX);
  return name == kMixtral.name && experts.value_or(0) > 0 ? kMixtral : *found;
}

}  // namespace millrace::gguf
