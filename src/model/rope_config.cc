#include "model/rope_config.h"

namespace millrace::model {
namespace {

constexpr double kMinTheta = 1.001;  // yarn divides by the logarithm of the base
constexpr double kMaxTheta = 1e12;
constexpr double kMaxFactor = 1e6;
constexpr int32_t kMaxRopePosition = 1 << 28;

std::optional<RopeKind> kind_of(std::string_view name) {
  if (name == "default") return RopeKind::kDefault;
  if (name == "linear") return RopeKind::kLinear;
  if (name == "llama3") return RopeKind::kLlama3;
  if (name == "yarn") return RopeKind::kYarn;
  if (name == "divided") return RopeKind::kDivided;
  return std::nullopt;
}

/// The members of config.json outside the scaling object.
struct Positions {
  int32_t max = 0;
  std::optional<int32_t> original;  ///< some configs have it here, alone or as well
};

/// Reads a number of the scaling object. `outside` is the same member outside of it, which some configs have. When both
/// are absent the result is `fallback`, or a fault without one.
int32_t read_original(FieldReader& scaling, std::optional<int32_t> outside, std::optional<int32_t> fallback = {}) {
  constexpr std::string_view kKey = "original_max_position_embeddings";
  const auto given = scaling.optional_integer(kKey, 1, kMaxRopePosition);
  if (given && outside && *given != *outside)
    scaling.fail_with("{} is {}, but {} outside of it in config.json, wanted equal values", kKey, *given, *outside);
  if (given) return *given;
  if (outside) return *outside;
  return fallback ? *fallback : scaling.integer(kKey, 1, kMaxRopePosition);
}

void read_llama3(FieldReader& scaling, const Positions& positions, RopeConfig& rope) {
  rope.low_freq_factor = scaling.number("low_freq_factor", 1e-6, kMaxFactor);
  rope.high_freq_factor = scaling.number("high_freq_factor", 1e-6, kMaxFactor);
  rope.original_max_position = read_original(scaling, positions.original, std::nullopt);
  if (rope.high_freq_factor <= rope.low_freq_factor)
    scaling.fail_with("high_freq_factor {} is not above low_freq_factor {}", rope.high_freq_factor,
                      rope.low_freq_factor);
}

void read_yarn(FieldReader& scaling, const Positions& positions, RopeConfig& rope) {
  rope.original_max_position = read_original(scaling, positions.original, positions.max);
  rope.beta_fast = scaling.number_or("beta_fast", 32.0, 1e-6, kMaxFactor);
  rope.beta_slow = scaling.number_or("beta_slow", 1.0, 1e-6, kMaxFactor);
  rope.attention_factor = scaling.optional_number("attention_factor", 1e-6, kMaxFactor);
  rope.mscale = scaling.optional_number("mscale", 0.0, kMaxFactor);
  rope.mscale_all_dim = scaling.optional_number("mscale_all_dim", 0.0, kMaxFactor);
  rope.truncate = scaling.flag_or("truncate", true);
  if (rope.beta_fast < rope.beta_slow)
    scaling.fail_with("beta_fast {} is below beta_slow {}", rope.beta_fast, rope.beta_slow);
}

/// Reads what the metadata of GGUF files has in place of llama3's parameters.
void read_divisors(FieldReader& scaling, RopeConfig& rope) {
  JsonArray divisors;
  const auto given = scaling.find("divisors");
  if (!given || !given->get(divisors)) return scaling.fail("divisors is missing, wanted a list of numbers");
  for (const JsonValue each : divisors) {
    double divisor = 0;
    if (!each.get(divisor) || divisor < 1e-3 || divisor > kMaxFactor)
      return scaling.fail_with("divisors has {}, wanted a number from 0.001 to {}", json_excerpt(each), kMaxFactor);
    rope.divisors.push_back(divisor);
  }
}

/// Refuses members that have no meaning without a type, since they were meant to scale.
void refuse_untyped(FieldReader& scaling) {
  for (const char* key : {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "attention_factor",
                          "beta_fast", "beta_slow", "short_factor", "long_factor"})
    if (scaling.has(key)) scaling.fail_with("rope_type is missing, though {} is given", key);
  if (scaling.number_or("factor", 1.0, 0.0, kMaxFactor) != 1.0)
    scaling.fail("rope_type is missing, though factor is given");
}

/// Reads rope_scaling or rope_parameters.
void read_scaling(FieldReader& scaling, const Positions& positions, RopeConfig& rope) {
  if (!scaling.has("rope_type") && !scaling.has("type")) {
    refuse_untyped(scaling);
    return;
  }
  const std::string name = scaling.text(scaling.has("rope_type") ? "rope_type" : "type");
  const std::optional<RopeKind> kind = kind_of(name);
  if (!kind) {
    scaling.fail_with("rope_type '{}' is not one of default, linear, llama3, yarn", name);
    return;
  }
  rope.kind = *kind;
  if (rope.kind == RopeKind::kDefault) return;
  if (rope.kind == RopeKind::kDivided) {
    return read_divisors(scaling, rope);
  }
  rope.factor = scaling.number("factor", 1e-3, kMaxFactor);
  if (rope.kind == RopeKind::kLlama3) read_llama3(scaling, positions, rope);
  if (rope.kind == RopeKind::kYarn) read_yarn(scaling, positions, rope);
}

/// Reads the object of that name, if there is one. Its base defaults to `theta`.
std::optional<RopeConfig> read_rope_object(FieldReader& fields, const char* key, const Positions& positions,
                                           double theta) {
  const auto object = fields.object(key);
  if (!object || object->size() == 0) return std::nullopt;
  for (const auto member : *object)
    if (member.value.is_object())
      fields.fail_with("{} differs by layer type ('{}'), which is not supported", key, member.key);
  FieldReader scaling(fields.source() + ": " + key, *object);
  RopeConfig rope;
  rope.theta = scaling.number_or("rope_theta", theta, kMinTheta, kMaxTheta);
  if (scaling.number_or("partial_rotary_factor", 1.0, 0.0, 1.0) != 1.0)
    scaling.fail("partial_rotary_factor below 1 is not supported by these families");
  read_scaling(scaling, positions, rope);
  fields.take_error_of(scaling);
  return rope;
}

}  // namespace

RopeConfig parse_rope(FieldReader& fields, int32_t max_position, double theta) {
  RopeConfig rope;
  rope.theta = fields.number_or("rope_theta", theta, kMinTheta, kMaxTheta);
  if (fields.number_or("partial_rotary_factor", 1.0, 0.0, 1.0) != 1.0)
    fields.fail("partial_rotary_factor below 1 is not supported by these families");
  const Positions positions{max_position,
                            fields.optional_integer("original_max_position_embeddings", 1, kMaxRopePosition)};
  const auto parameters = read_rope_object(fields, "rope_parameters", positions, rope.theta);
  if (parameters) rope = *parameters;
  const auto scaling = read_rope_object(fields, "rope_scaling", positions, rope.theta);
  if (parameters && scaling && *parameters != *scaling)
    fields.fail("rope_parameters and rope_scaling differ, wanted one of them, or both alike");
  return scaling.value_or(rope);
}

}  // namespace millrace::model
