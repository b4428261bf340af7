#pragma once

#include <filesystem>
#include <memory>

#include "base/result.h"
#include "text/chat_template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace millrace::app {

/// What a model's files say of texts: in a folder its tokenizer and the files that go with it, in a GGUF file its
/// metadata, or the same files in the file's folder.
struct ModelTexts {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  text::ChatTemplate::SpecialTokens special_tokens;
  std::shared_ptr<const text::ChatTemplate> chat_template;  ///< null: the model has none, or it was not asked for
};

/// Reads the texts of the model in a folder or a GGUF file. A tokenizer.json in a GGUF file's folder goes before the
/// metadata, if its tokens are those of the file. Errors: kNotFound, kData; they name the file.
[[nodiscard]] Result<ModelTexts> load_model_texts(const std::filesystem::path& model_path, bool with_chat_template);

}  // namespace millrace::app
