#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/tokenizer_parts.h"

namespace millrace::text {

TokenizerParts build_ranked(const RankedVocabulary& vocabulary) {
  TokenizerParts parts;
  parts.pre_tokenizer.add(regex_split(vocabulary.pattern, SplitBehavior::kIsolated));
  parts.byte_level = true;
  parts.model = std::make_unique<const TokenModel>(Bpe(vocabulary.tokens, vocabulary.first_id));
  TokenId id = vocabulary.first_id;
  for (const std::string& bytes : vocabulary.tokens)
    register_token(parts, id++, byte_level_text(bytes), TokenKind::kPlain);
  // An added token goes before a token of the model that is spelt alike.
  for (const AddedToken& token : vocabulary.added) {
    register_token(parts, token.id, token.content, token.kind());
    parts.raw_added.add(token, token.content);
  }
  std::vector<std::string> spellings = parts.tokens;
  for (const AddedToken& token : vocabulary.added) {
    spellings[static_cast<size_t>(token.id)] = byte_level_text(token.content);
  }
  parts.decoder.compile({TokenDecoder::ByteLevel{}}, spellings);
  return parts;
}

}  // namespace millrace::text
