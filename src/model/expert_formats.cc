#include "model/expert_formats.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::model {
namespace {

using weights::StoredFormat;

/// The formats of a layer's experts, [experts, parts].
class LayerFormats {
 public:
  LayerFormats(std::span<const StoredFormat> formats, size_t parts, const PackingRules& rules)
      : formats_(formats), parts_(parts), rules_(rules) {
    CHECK(parts == 2 || parts == 3, "experts of {} parts", parts);
    CHECK(!formats.empty() && formats.size() % parts == 0, "{} formats of experts of {} parts", formats.size(), parts);
  }

  /// Returns whether each of the parts [begin, end) has one format in all experts.
  [[nodiscard]] bool are_alike(size_t begin, size_t end) const {
    for (size_t first = 0; first < formats_.size(); first += parts_) {
      if (!std::ranges::equal(parts_of(first, begin, end), parts_of(0, begin, end))) return false;
    }
    return true;
  }

  /// Returns whether the parts [begin, end) of each expert, which are packed together, can keep their codes.
  [[nodiscard]] bool keep_codes(size_t begin, size_t end) const {
    if (!rules_.mixes_codes && !are_alike(begin, end)) return false;
    const KeptCodes kept = kept_codes(rules_, PackedTogether::kPaired);
    for (size_t first = 0; first < formats_.size(); first += parts_) {
      if (!can_keep_codes(parts_of(first, begin, end), kept)) return false;
    }
    return true;
  }

 private:
  /// Returns the formats of some parts of the expert whose formats begin at `first`.
  [[nodiscard]] std::span<const StoredFormat> parts_of(size_t first, size_t begin, size_t end) const {
    return formats_.subspan(first + begin, end - begin);
  }

  std::span<const StoredFormat> formats_;
  size_t parts_;
  const PackingRules& rules_;
};

}  // namespace

ExpertFormats::ExpertFormats(std::span<const StoredFormat> formats, size_t parts, const PackingRules& rules) {
  const LayerFormats layer(formats, parts, rules);
  const bool inputs_fit = layer.keep_codes(0, parts - 1);
  const bool downs_fit = layer.keep_codes(parts - 1, parts);
  bits_ = packed_bits(formats, rules, rules.mixes_codes || layer.are_alike(0, parts), inputs_fit && downs_fit);
  keeps_inputs_ = rules.mixes_codes || inputs_fit;
  keeps_downs_ = rules.mixes_codes || downs_fit;
}

}  // namespace millrace::model
