#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/isa.h"

namespace millrace::cpu {

using tensor::Isa;
inline constexpr Isa kIsas[] = {Isa::kPortable,   Isa::kAvx2,       Isa::kAvx2Vnni, Isa::kAvx512,
                                Isa::kAvx512Vnni, Isa::kAvx512Bf16, Isa::kAmx};

[[nodiscard]] std::string_view to_string(Isa isa);
/// Parses what to_string gives. Errors: kInvalidArgument, which names them all.
[[nodiscard]] Result<Isa> parse_isa(std::string_view name);
/// Returns the names of all instruction sets, separated by commas.
[[nodiscard]] std::string isa_names();

/// Returns whether this processor has the instructions of a set, and the system lets the process use them.
[[nodiscard]] bool processor_has(Isa isa);
/// Returns the instruction sets that both this binary and this processor have, slowest first; never empty.
[[nodiscard]] std::vector<Isa> available_isas();

}  // namespace millrace::cpu
