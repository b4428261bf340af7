#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace millrace::cpu {

/// The instruction sets that have kernels; on most processors a later one is the faster.
enum class Isa { kPortable, kAvx2, kAvx2Vnni, kAvx512, kAvx512Vnni, kAvx512Bf16, kAmx };
inline constexpr Isa kIsas[] = {Isa::kPortable,   Isa::kAvx2,       Isa::kAvx2Vnni, Isa::kAvx512,
                                Isa::kAvx512Vnni, Isa::kAvx512Bf16, Isa::kAmx};

[[nodiscard]] std::string_view to_string(Isa isa);
/// Accepts what to_string gives. Errors: kInvalidArgument, which names them all.
[[nodiscard]] Result<Isa> parse_isa(std::string_view name);
/// The names of all, separated by commas.
[[nodiscard]] std::string isa_names();
/// What a flag takes that chooses one: "auto" and the names.
[[nodiscard]] std::vector<std::string> isa_choices();

/// Those that both this binary and this processor have, slowest first; never empty.
[[nodiscard]] std::vector<Isa> available_isas();

}  // namespace millrace::cpu
