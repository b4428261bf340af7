#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace millrace::cpu {

/// The instruction sets that have kernels. On most processors a later one is faster.
enum class Isa { kPortable, kAvx2, kAvx2Vnni, kAvx512, kAvx512Vnni, kAvx512Bf16, kAmx };
inline constexpr Isa kIsas[] = {Isa::kPortable,   Isa::kAvx2,       Isa::kAvx2Vnni, Isa::kAvx512,
                                Isa::kAvx512Vnni, Isa::kAvx512Bf16, Isa::kAmx};

[[nodiscard]] std::string_view to_string(Isa isa);
/// Parses a name that to_string returns. Error: kInvalidArgument, which lists all names.
[[nodiscard]] Result<Isa> parse_isa(std::string_view name);
/// Returns all names, separated by commas.
[[nodiscard]] std::string isa_names();
/// Returns the values of a flag that chooses a set: "auto" and all names.
[[nodiscard]] std::vector<std::string> isa_choices();

/// Returns the sets that both this binary and this processor have, slowest first; never empty.
[[nodiscard]] std::vector<Isa> available_isas();

}  // namespace millrace::cpu
