#include "sim/device.h"

#include <optional>

#include "base/text_file.h"
#include "sim/description_fields.h"
#include "sim/rank_costs.h"

namespace millrace::sim {
namespace {

constexpr uint32_t kMaxKeptBits = 16;

Result<Device> read_description(const std::string& json) {
  const auto document = JsonDocument::parse(json);
  if (document.has_error()) return make_error(ErrorCode::kData, "not valid JSON: {}", document.error().message);
  JsonObject fields;
  if (!document->root().get(fields)) return Error{ErrorCode::kData, "not a JSON object"};
  std::optional<Device> device;
  std::string name;
  int32_t rank_count = 1;
  for (const auto field : fields) {
    if (field.key == "device") {
      auto found = Device::parse(field.value);
      if (found.has_error()) return found.error();
      device = *found;
    } else if (field.key == "name") {
      std::string_view text;
      if (!field.value.get(text)) return Error{ErrorCode::kData, "name: wanted a string"};
      name = text;
    } else if (field.key == "ranks") {
      const auto ranks = RankCosts::parse(field.value);
      if (ranks.has_error()) return ranks.error();
      rank_count = ranks->size;
    }
  }
  if (!device) return Error{ErrorCode::kData, "device: wanted for --model-path, with memory_gb and memory_gb_per_s"};
  device->name = name;
  device->rank_count = rank_count;
  return *device;
}

}  // namespace

Result<Device> Device::parse(JsonValue value) {
  JsonObject fields;
  if (!value.get(fields)) return Error{ErrorCode::kData, "device: wanted an object"};
  Device device;
  for (const auto field : fields) {
    const std::string name = fmt::format("device.{}", std::string_view(field.key));
    if (field.key == "keeps_bits") {
      RETURN_IF_ERROR(read_integer(name, field.value, kMaxKeptBits, device.kept_bits));
      continue;
    }
    const auto found = read_number(name, field.value);
    if (found.has_error()) return found.error();
    if (field.key == "memory_gb") {
      device.memory_bytes = *found * 1e9;
    } else if (field.key == "reserved_gb") {
      device.reserved_bytes = *found * 1e9;
    } else if (field.key == "memory_gb_per_s") {
      device.bytes_per_second = *found * 1e9;
    } else if (field.key == "tflops") {
      device.flops = *found * 1e12;
    } else {
      return make_error(ErrorCode::kData, "{}: unknown", name);
    }
  }
  if (device.memory_bytes <= device.reserved_bytes || device.bytes_per_second <= 0) {
    return make_error(ErrorCode::kData, "device: wanted memory_gb above reserved_gb, {:g}, and memory_gb_per_s above 0",
                      device.reserved_bytes / 1e9);
  }
  return device;
}

Result<Device> Device::load(const std::filesystem::path& path) {
  const auto text = read_text_file(path);
  if (text.has_error()) return text.error();
  auto device = read_description(*text);
  if (device.has_error()) return make_error(device.error().code, "{}: {}", path.string(), device.error().message);
  if (device->name.empty()) device->name = path.filename().string();
  return device;
}

}  // namespace millrace::sim
