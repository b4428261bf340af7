#include "cpu/isa.h"

namespace millrace::cpu {

std::string_view to_string(Isa isa) {
  switch (isa) {
    case Isa::kPortable: return "portable";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx2Vnni: return "avx2_vnni";
    case Isa::kAvx512: return "avx512";
    case Isa::kAvx512Vnni: return "avx512_vnni";
    case Isa::kAvx512Bf16: return "avx512_bf16";
    case Isa::kAmx: return "amx";
  }
  return "unknown";
}

Result<Isa> parse_isa(std::string_view name) {
  for (const Isa isa : kIsas) {
    if (name == to_string(isa)) return isa;
  }
  return make_error(ErrorCode::kInvalidArgument, "instruction set '{}' is not one of {}", name, isa_names());
}

std::string isa_names() {
  std::string names;
  for (const Isa isa : kIsas) names.append(names.empty() ? "" : ", ").append(to_string(isa));
  return names;
}

std::vector<std::string> isa_choices() {
  std::vector<std::string> choices = {"auto"};
  for (const Isa isa : kIsas) choices.emplace_back(to_string(isa));
  return choices;
}

}  // namespace millrace::cpu
