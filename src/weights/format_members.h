#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json_value.h"
#include "weights/weight_format.h"

/// Members of quantization_config, for the parsers of its formats.
namespace millrace::weights {

/// Returns an error that begins with "quantization_config: ".
template <class... Args>
Error bad_config(fmt::format_string<Args...> format, Args&&... args) {
  return Error{ErrorCode::kData, "quantization_config: " + fmt::format(format, std::forward<Args>(args)...)};
}

/// Reads an integer member; `usual` where it is absent or null.
[[nodiscard]] Result<int64_t> integer_member(JsonObject object, std::string_view name, int64_t usual);
/// Reads a text member; `usual` where it is absent or no text.
[[nodiscard]] std::string text_member(JsonObject object, std::string_view name, std::string_view usual);
/// Adds what some tensors have: integers of `bits` in groups of `group_size` columns, or of all where it is below 1.
void add_choice(WeightFormat& format, int64_t bits, int64_t group_size);

/// Reads the members of AutoRound, which packs codes as other libraries do.
[[nodiscard]] Result<WeightFormat> parse_auto_round(JsonObject config);
/// Reads the members of AMD's Quark.
[[nodiscard]] Result<WeightFormat> parse_quark(JsonObject config);

}  // namespace millrace::weights
