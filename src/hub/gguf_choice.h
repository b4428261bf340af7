#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hub/hub_api.h"

namespace millrace::hub {

/// Returns whether a text names GGUF weights rather than a revision: the type in the name of a file, such as Q4_K_M,
/// IQ2_XXS, UD-Q4_K_XL, BF16 or MXFP4 in letters of any case, or a file that ends with .gguf.
[[nodiscard]] bool names_gguf(std::string_view text);

/// Returns whether a repository has a GGUF model.
[[nodiscard]] bool has_gguf(const RepoListing& listing);

/// Returns the files of one GGUF model, in the order of its parts. `wanted` is what names_gguf() knows: a type, with
/// which the name of a file or its folder ends, or a file. Empty: the only model, or else the one of type Q4_K_M.
///
/// Errors name the models that there are: kNotFound when none fits; kInvalidArgument when several do; kData when a part
/// is missing.
[[nodiscard]] Result<std::vector<RepoFile>> choose_gguf(const RepoListing& listing, std::string_view wanted);

}  // namespace millrace::hub
