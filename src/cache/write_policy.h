#pragma once

#include <cstdint>

#include "base/enum_names.h"

namespace millrace::cache {

/// The moment at which a page on the device gets its copy on the host. From there it goes on to the store, if any.
enum class WritePolicy : uint8_t {
  kWriteThrough,           ///< as soon as it has been computed
  kWriteThroughSelective,  ///< once a second sequence uses it
  kWriteBack,              ///< when its device page is wanted for something else
};

inline constexpr EnumName<WritePolicy> kWritePolicyNames[] = {
    {WritePolicy::kWriteThrough, "write_through"},
    {WritePolicy::kWriteThroughSelective, "write_through_selective"},
    {WritePolicy::kWriteBack, "write_back"},
};
constexpr std::span<const EnumName<WritePolicy>> enum_names(WritePolicy) {
  return kWritePolicyNames;
}

}  // namespace millrace::cache
