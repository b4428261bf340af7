#pragma once

#include "golden_test/gguf_conversion.h"
#include "golden_test/gguf_source.h"
#include "support/gguf_text.h"

namespace millrace::test {

/// Adds the metadata that converters write, and the tensors that follow from config.json.
void add_gguf_metadata(const GgufSource& source, const GgufConversion& conversion, GgufText& text);

}  // namespace millrace::test
