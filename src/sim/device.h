#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/json_value.h"
#include "base/result.h"

namespace millrace::sim {

/// The described device of a rank. docs/simulation.md describes its fields in a cluster file.
struct Device {
  std::string name;  ///< of the description, or else of its file
  double memory_bytes = 0;
  double reserved_bytes = 2e9;  ///< of the runtime, activations and scratch
  double bytes_per_second = 0;  ///< at which it reads memory
  double flops = 0;             ///< operations per second of GEMMs; an addition and a multiplication are two
  int32_t kept_bits = 8;        ///< weights that are stored in this many bits or fewer keep them; others have 16
  int32_t rank_count = 1;       ///< devices of a stage, unless a flag says otherwise

  /// Reads the field `device` of a description. Errors name the field.
  [[nodiscard]] static Result<Device> parse(JsonValue value);
  /// Reads a cluster file for its `device`, its `name` and the size of its `ranks`. Errors name the file and the field.
  [[nodiscard]] static Result<Device> load(const std::filesystem::path& path);
};

}  // namespace millrace::sim
