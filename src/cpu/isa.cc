#include "cpu/isa.h"

namespace millrace::cpu {

std::string_view to_string(Isa isa) {
  return enum_name(isa);
}

Result<Isa> parse_isa(std::string_view name) {
  if (const auto isa = parse_enum<Isa>(name)) return *isa;
  return make_error(ErrorCode::kInvalidArgument, "instruction set '{}' is not one of {}", name, isa_names());
}

std::string isa_names() {
  return joined_enum_names<Isa>();
}

}  // namespace millrace::cpu
