#include "model/expert_formats.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::model {
namespace {

using weights::StoredFormat;

/// The formats of a layer's experts, [experts, parts].
class Layer {
 public:
  Layer(std::span<const StoredFormat> formats, size_t parts, const PackingRules& rules)
      : formats_(formats), parts_(parts), rules_(rules) {
    CHECK(parts == 2 || parts == 3, "experts of {} parts", parts);
    CHECK(!formats.empty() && formats.size() % parts == 0, "{} formats of experts of {} parts", formats.size(), parts);
  }

  [[nodiscard]] bool any(StoredFormat::Kind kind) const {
    return std::ranges::any_of(formats_, [kind](const StoredFormat& format) { return format.kind == kind; });
  }
  [[nodiscard]] bool all(StoredFormat::Kind kind) const {
    return std::ranges::all_of(formats_, [kind](const StoredFormat& format) { return format.kind == kind; });
  }

  /// Returns whether a part has one format in all experts.
  [[nodiscard]] bool is_alike(size_t part) const {
    for (size_t i = part; i < formats_.size(); i += parts_) {
      if (formats_[i] != formats_[part]) return false;
    }
    return true;
  }
  [[nodiscard]] bool are_alike() const {
    for (size_t part = 0; part < parts_; ++part) {
      if (!is_alike(part)) return false;
    }
    return true;
  }

  /// Returns whether the parts [begin, end) of each expert, which are packed together, can keep their codes.
  [[nodiscard]] bool keep_codes(size_t begin, size_t end) const {
    const KeptCodes kept = kept_codes(rules_, PackedTogether::kPaired);
    for (size_t first = 0; first < formats_.size(); first += parts_) {
      if (!can_keep_codes(formats_.subspan(first + begin, end - begin), kept)) return false;
    }
    for (size_t part = begin; part < end && !rules_.mixes_codes; ++part) {
      if (!is_alike(part)) return false;
    }
    return true;
  }

 private:
  std::span<const StoredFormat> formats_;
  size_t parts_;
  const PackingRules& rules_;
};

PackedBits bits_of(const Layer& layer, bool keeps_all_codes, const PackingRules& rules) {
  if (rules.quantization == Quantization::kW4) return PackedBits::k4;
  if (rules.quantization != Quantization::kNone)
    return rules.quantizes_all || layer.any(StoredFormat::Kind::kW8) ? PackedBits::k8 : PackedBits::kCompute;
  const bool fit_together = rules.mixes_codes || layer.are_alike();
  if (rules.keeps_fp8 && fit_together && layer.all(StoredFormat::Kind::kFp8)) return PackedBits::kFp8;
  return rules.keeps_codes && keeps_all_codes ? PackedBits::k4 : PackedBits::kCompute;
}

}  // namespace

ExpertFormats::ExpertFormats(std::span<const StoredFormat> formats, size_t parts, const PackingRules& rules) {
  const Layer layer(formats, parts, rules);
  const bool inputs_fit = layer.keep_codes(0, parts - 1);
  const bool downs_fit = layer.keep_codes(parts - 1, parts);
  bits_ = bits_of(layer, inputs_fit && downs_fit, rules);
  keeps_inputs_ = rules.mixes_codes || inputs_fit;
  keeps_downs_ = rules.mixes_codes || downs_fit;
}

}  // namespace millrace::model
