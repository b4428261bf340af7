#include "model/rope_config.h"

namespace millrace::model {
namespace {

constexpr double kLargestTheta = 1e12;
constexpr double kLargestFactor = 1e6;
constexpr int32_t kLargestPosition = 1 << 28;

std::optional<RopeKind> kind_of(std::string_view name) {
  if (name == "default") return RopeKind::kDefault;
  if (name == "linear") return RopeKind::kLinear;
  if (name == "llama3") return RopeKind::kLlama3;
  if (name == "yarn") return RopeKind::kYarn;
  return std::nullopt;
}

void read_llama3(FieldReader& scaling, RopeConfig& rope) {
  rope.low_freq_factor = scaling.number("low_freq_factor", 1e-6, kLargestFactor);
  rope.high_freq_factor = scaling.number("high_freq_factor", 1e-6, kLargestFactor);
  rope.original_max_position = scaling.integer("original_max_position_embeddings", 1, kLargestPosition);
  if (rope.high_freq_factor <= rope.low_freq_factor)
    scaling.fail_with("high_freq_factor {} is not above low_freq_factor {}", rope.high_freq_factor,
                      rope.low_freq_factor);
}

void read_yarn(FieldReader& scaling, int32_t max_position, RopeConfig& rope) {
  rope.original_max_position =
      scaling.integer_or("original_max_position_embeddings", max_position, 1, kLargestPosition);
  rope.beta_fast = scaling.number_or("beta_fast", 32.0, 1e-6, kLargestFactor);
  rope.beta_slow = scaling.number_or("beta_slow", 1.0, 1e-6, kLargestFactor);
  rope.attention_factor = scaling.optional_number("attention_factor", 1e-6, kLargestFactor);
  rope.mscale = scaling.optional_number("mscale", 0.0, kLargestFactor);
  rope.mscale_all_dim = scaling.optional_number("mscale_all_dim", 0.0, kLargestFactor);
  rope.truncate = scaling.flag_or("truncate", true);
  if (rope.beta_fast < rope.beta_slow)
    scaling.fail_with("beta_fast {} is below beta_slow {}", rope.beta_fast, rope.beta_slow);
}

/// Of rope_scaling or rope_parameters.
void read_scaling(FieldReader& scaling, int32_t max_position, RopeConfig& rope) {
  const std::string name = scaling.has("rope_type") ? scaling.text("rope_type") : scaling.text_or("type", "default");
  const std::optional<RopeKind> kind = kind_of(name);
  if (!kind) {
    scaling.fail_with("rope_type '{}' is not one of default, linear, llama3, yarn", name);
    return;
  }
  rope.kind = *kind;
  if (rope.kind == RopeKind::kDefault) return;
  rope.factor = scaling.number("factor", 1e-3, kLargestFactor);
  if (rope.kind == RopeKind::kLlama3) read_llama3(scaling, rope);
  if (rope.kind == RopeKind::kYarn) read_yarn(scaling, max_position, rope);
}

}  // namespace

RopeConfig parse_rope(FieldReader& fields, int32_t max_position) {
  RopeConfig rope;
  // Just above 1: yarn divides by the logarithm of the base.
  rope.theta = fields.number_or("rope_theta", 10000.0, 1.001, kLargestTheta);
  if (fields.number_or("partial_rotary_factor", 1.0, 0.0, 1.0) != 1.0)
    fields.fail("partial_rotary_factor below 1 is not supported by these families");
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const auto object = fields.object(key);
    if (!object) continue;
    for (const auto member : *object)
      if (member.value.is_object()) fields.fail_with("{} differs by layer type ('{}'), which is not supported", key,
                                                     member.key);
    FieldReader scaling(fields.place() + ": " + key, *object);
    rope.theta = scaling.number_or("rope_theta", rope.theta, 1.001, kLargestTheta);
    if (scaling.number_or("partial_rotary_factor", 1.0, 0.0, 1.0) != 1.0)
      scaling.fail("partial_rotary_factor below 1 is not supported by these families");
    read_scaling(scaling, max_position, rope);
    fields.adopt(scaling);
    break;
  }
  return rope;
}

}  // namespace millrace::model
