#include "model/rope_config.h"

#include <array>
#include <cmath>

namespace millrace::model {
namespace {

constexpr double kMinTheta = 1.001;  // yarn divides by the logarithm of the base
constexpr double kMaxTheta = 1e12;
constexpr double kMaxFactor = 1e6;
constexpr int32_t kMaxRopePosition = 1 << 28;

std::optional<RopeKind> kind_of(std::string_view name, bool has_longrope) {
  if (has_longrope && (name == "longrope" || name == "su" || name == "yarn")) return RopeKind::kLongrope;
  // The three positions that mrope gives a token of an image are one position of a token of text.
  if (name == "default" || name == "mrope") return RopeKind::kDefault;
  if (name == "linear") return RopeKind::kLinear;
  if (name == "llama3") return RopeKind::kLlama3;
  if (name == "yarn") return RopeKind::kYarn;
  if (name == "divided") return RopeKind::kDivided;
  if (name == "proportional") return RopeKind::kProportional;
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
  if (rope.high_freq_factor < rope.low_freq_factor)
    scaling.fail_with("high_freq_factor {} is below low_freq_factor {}", rope.high_freq_factor, rope.low_freq_factor);
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

std::vector<double> read_divisors(FieldReader& scaling, const char* key, int32_t pairs) {
  std::vector<double> divisors = scaling.numbers(key, 1e-6, kMaxFactor);
  if (divisors.size() != static_cast<size_t>(pairs)) {
    scaling.fail_with("{} has {} numbers, wanted {}, one per rotated pair", key, divisors.size(), pairs);
    divisors.assign(static_cast<size_t>(pairs), 1.0);
  }
  return divisors;
}

/// Reads longrope. Its two lists differ by the length of the context; a server keeps one of them, since keys in the
/// cache do not change: for_context() takes the near one where no sequence is longer than the original context.
void read_longrope(FieldReader& scaling, const Positions& positions, int32_t pairs, RopeConfig& rope) {
  rope.original_max_position = read_original(scaling, positions.original, std::nullopt);
  rope.near_divisors = read_divisors(scaling, "short_factor", pairs);
  const std::vector<double> far = read_divisors(scaling, "long_factor", pairs);
  rope.divisors = positions.max > rope.original_max_position ? far : rope.near_divisors;
  const double original = std::max(rope.original_max_position, 2);
  const double stretch = positions.max / original;
  const double factor = stretch <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(stretch) / std::log(original));
  rope.attention_factor = scaling.number_or("attention_factor", factor, 1e-6, kMaxFactor);
}

/// Refuses members that have no meaning without a type, since they were meant to scale.
void refuse_untyped(FieldReader& scaling) {
  for (const char* key : {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "attention_factor",
                          "beta_fast", "beta_slow", "short_factor", "long_factor"})
    if (scaling.has(key)) scaling.fail_with("rope_type is missing, though {} is given", key);
  if (scaling.number_or("factor", 1.0, 0.0, kMaxFactor) != 1.0)
    scaling.fail("rope_type is missing, though factor is given");
}

/// Reads a rotation that is called dynamic and has an alpha, which stretches the base for every length of text.
void read_alpha(FieldReader& scaling, int32_t rotated, RopeConfig& rope) {
  constexpr double kMaxAlpha = 1e9;
  const double alpha = scaling.number("alpha", 1.0, kMaxAlpha);
  if (scaling.number_or("factor", 1.0, 0.0, kMaxFactor) != 1.0)
    scaling.fail("factor other than 1 is not supported beside alpha");
  rope.theta *= std::pow(alpha, static_cast<double>(rotated) / std::max(rotated - 2, 1));
}

/// Reads rope_scaling or rope_parameters.
void read_scaling(FieldReader& scaling, const RopeReading& reading, const Positions& positions, RopeConfig& rope) {
  if (!scaling.has("rope_type") && !scaling.has("type")) {
    refuse_untyped(scaling);
    return;
  }
  const std::string name = scaling.text(scaling.has("rope_type") ? "rope_type" : "type");
  if (reading.has_alpha && name == "dynamic") return read_alpha(scaling, reading.head_dim, rope);
  const std::optional<RopeKind> kind = kind_of(name, reading.has_longrope);
  if (!kind) {
    scaling.fail_with("rope_type '{}' is not one of default, linear, llama3, proportional, yarn", name);
    return;
  }
  rope.kind = *kind;
  if (rope.kind == RopeKind::kDefault) return;
  const int32_t rotated = rope.rotary_dim > 0 ? rope.rotary_dim : reading.head_dim;
  if (rope.kind == RopeKind::kLongrope) return read_longrope(scaling, positions, rotated / 2, rope);
  if (rope.kind == RopeKind::kDivided) {
    // What the metadata of GGUF files has in place of llama3's parameters.
    rope.divisors = read_divisors(scaling, "divisors", rotated / 2);
    return;
  }
  if (rope.kind == RopeKind::kProportional) {
    rope.rotated_pairs = static_cast<int32_t>(scaling.number_or("partial_rotary_factor", 1.0, 0.0, 1.0) * rotated / 2);
    rope.factor = scaling.number_or("factor", 1.0, 1e-3, kMaxFactor);
    return;
  }
  rope.factor = scaling.number("factor", 1e-3, kMaxFactor);
  if (rope.kind == RopeKind::kLlama3) read_llama3(scaling, positions, rope);
  if (rope.kind == RopeKind::kYarn) read_yarn(scaling, positions, rope);
}

/// Reads the rotated channels of a head; 0: all.
int32_t read_rotary_dim(FieldReader& fields, const RopeReading& reading, int32_t fallback) {
  constexpr const char* kKey = "partial_rotary_factor";
  if (!reading.partial) {
    if (fields.number_or(kKey, 1.0, 0.0, 1.0) != 1.0)
      fields.fail_with("{} below 1 is not supported by these families", kKey);
    return 0;
  }
  const std::optional<double> factor = fields.optional_number(kKey, 0.0, 1.0);
  if (!factor) return fallback;
  const auto rotated = static_cast<int32_t>(reading.head_dim * *factor);
  if (rotated < 2 || rotated % 2 != 0)
    fields.fail_with("{} {} rotates {} of {} channels, wanted an even number", kKey, *factor, rotated,
                     reading.head_dim);
  return rotated < 2 || rotated % 2 != 0 ? 0 : rotated;
}

/// Returns the members for one type of layers where they differ by type, as in {"full_attention": {...}}.
std::optional<JsonObject> of_layer_type(FieldReader& fields, std::string_view key, JsonObject object,
                                        std::string_view layer_type) {
  for (const auto member : object) {
    if (!member.value.is_object()) continue;
    if (layer_type.empty()) {
      fields.fail_with("{} differs by layer type ('{}'), which is not supported", key, member.key);
      return object;
    }
    JsonObject own;
    if (object[layer_type].get(own)) return own;
    return std::nullopt;
  }
  return object;
}

/// Reads the object of that name, if there is one. `rope` has what the members outside of it say.
std::optional<RopeConfig> read_rope_object(FieldReader& fields, const char* key, const RopeReading& reading,
                                           const Positions& positions, const RopeConfig& outside) {
  const auto object = fields.object(key);
  if (!object || object->size() == 0) return std::nullopt;
  const auto own = of_layer_type(fields, key, *object, reading.layer_type);
  if (!own) return std::nullopt;
  FieldReader scaling(fields.source() + ": " + key, *own);
  RopeConfig rope = outside;
  rope.theta = scaling.number_or("rope_theta", outside.theta, kMinTheta, kMaxTheta);
  // A proportional rotation has all pairs, of which some do not turn.
  if (reading.is_scaled && scaling.text_or("rope_type", "") == "proportional")
    rope.rotary_dim = reading.head_dim;
  else
    rope.rotary_dim = read_rotary_dim(scaling, reading, outside.rotary_dim);
  if (reading.is_scaled) read_scaling(scaling, reading, positions, rope);
  fields.take_error_of(scaling);
  return rope;
}

}  // namespace

RopeConfig parse_rope(FieldReader& fields, const RopeReading& reading) {
  RopeConfig rope;
  rope.theta = fields.number_or(reading.theta_key, reading.theta, kMinTheta, kMaxTheta);
  int32_t fallback = 0;
  if (reading.partial && *reading.partial != 1.0)
    fallback = static_cast<int32_t>(reading.head_dim * *reading.partial) / 2 * 2;
  rope.rotary_dim = read_rotary_dim(fields, reading, fallback);
  const Positions positions{reading.max_position,
                            fields.optional_integer("original_max_position_embeddings", 1, kMaxRopePosition)};
  const auto parameters = read_rope_object(fields, "rope_parameters", reading, positions, rope);
  if (parameters) rope = *parameters;
  const auto scaling = read_rope_object(fields, "rope_scaling", reading, positions, rope);
  if (parameters && scaling && *parameters != *scaling)
    fields.fail("rope_parameters and rope_scaling differ, wanted one of them, or both alike");
  return scaling.value_or(rope);
}

}  // namespace millrace::model
