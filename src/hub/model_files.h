#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hub/hub_api.h"

namespace millrace::hub {

/// Returns whether a file of a repository describes its model: configuration, tokenizer, chat templates, and the
/// folders of a sentence-transformers model. Weights are none of them.
[[nodiscard]] bool is_model_description(const std::string& path);

/// Returns the files that serving a model needs in addition to its weights.
[[nodiscard]] std::vector<RepoFile> description_files(const RepoListing& listing);

/// Returns the files with the model's weights: those that model.safetensors.index.json lists, whose text is `index`.
/// model.safetensors takes their place where there is no index, or it is broken or names files that are missing, as for
/// model::SafetensorsFolder. Where there is neither, or `gguf` is not empty, choose_gguf() chooses. Errors: kNotFound
/// when the repository has none, which names what it has instead; kData for such an index without model.safetensors;
/// those of choose_gguf(). Errors call what was listed the `holder`.
[[nodiscard]] Result<std::vector<RepoFile>> weight_files(const RepoListing& listing, const std::string& index,
                                                         std::string_view gguf = {},
                                                         std::string_view holder = "the repository");

inline constexpr std::string_view kIndexName = "model.safetensors.index.json";
inline constexpr std::string_view kSingleName = "model.safetensors";

}  // namespace millrace::hub
