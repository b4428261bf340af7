#include "text/tokenizer/token_decoder.h"

#include "base/result.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/normalizer.h"

namespace millrace::text {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

/// One token on its way through the steps.
struct Piece {
  std::string text;
  bool is_first;
  RegexScratch& scratch;
  bool is_byte = false;

  void operator()(const TokenDecoder::ByteLevel&) {
    if (auto bytes = byte_level_bytes(text)) text = *std::move(bytes);
  }
  void operator()(const TokenDecoder::ByteFallback&) {
    if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return;
    const int high = hex_digit(text[3]);
    const int low = hex_digit(text[4]);
    if (high < 0 || low < 0) return;
    text.assign(1, static_cast<char>(high * 16 + low));
    is_byte = true;
  }
  void operator()(const TokenDecoder::Fuse&) {}
  void operator()(const TokenDecoder::Replace& step) {
    text =
        step.from.empty() ? replace_all(text, step.pattern, step.to, scratch) : replace_all(text, step.from, step.to);
  }
  void operator()(const TokenDecoder::Strip& step) {
    for (size_t i = 0; i < step.start && text.starts_with(step.content); ++i) text.erase(0, step.content.size());
  }
  void operator()(const TokenDecoder::Metaspace& step) {
    text = replace_all(text, step.replacement, is_first && step.drops_first ? "" : " ");
  }
  void operator()(const TokenDecoder::WordPiece& step) {
    if (!is_first && text.starts_with(step.prefix)) {
      text.erase(0, step.prefix.size());
    } else if (!is_first) {
      text.insert(0, " ");
    }
    if (!step.cleanup) return;
    constexpr std::pair<std::string_view, std::string_view> kCleanup[] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (const auto& [from, to] : kCleanup) text = replace_all(text, from, to);
  }
  void operator()(const TokenDecoder::WordSuffix& step) {
    if (!step.suffix.empty()) text = replace_all(text, step.suffix, " ");
  }
  void operator()(const TokenDecoder::JoinWithSpaces&) {
    if (!is_first) text.insert(0, " ");
  }
};

}  // namespace

void TokenDecoder::compile(const std::vector<Step>& steps, const std::vector<std::string>& tokens) {
  std::vector<Step> per_token;
  bool fused = false;
  bool first_differs = false;
  for (const Step& step : steps) {
    first_differs = first_differs || std::holds_alternative<Metaspace>(step) ||
                    std::holds_alternative<WordPiece>(step) || std::holds_alternative<JoinWithSpaces>(step);
    drops_last_space_ = drops_last_space_ || std::holds_alternative<WordSuffix>(step);
    if (fused && std::holds_alternative<Strip>(step) && strip_.start == 0) {
      strip_ = std::get<Strip>(step);
      continue;
    }
    // A step after a Fuse sees the whole text, of which only the start is known while it streams.
    if (fused && !std::holds_alternative<Fuse>(step)) {
      throw ErrorException(make_error(ErrorCode::kData, "decoder: only one Strip may follow Fuse or ByteLevel"));
    }
    fused = fused || std::holds_alternative<Fuse>(step) || std::holds_alternative<ByteLevel>(step);
    per_token.push_back(step);
  }
  RegexScratch scratch;
  const auto fill = [&](std::vector<Range>& ranges, bool is_first) {
    for (const std::string& token : tokens) {
      Piece piece{token, is_first, scratch};
      // What a byte means is known with its neighbours only, so the steps that follow do not see it.
      for (size_t i = 0; i < per_token.size() && !piece.is_byte; ++i) std::visit(piece, per_token[i]);
      if (!is_first) is_byte_.push_back(piece.is_byte);
      const auto begin = static_cast<uint32_t>(storage_.size());
      storage_ += piece.text;
      if (storage_.size() > UINT32_MAX) {
        throw ErrorException(make_error(ErrorCode::kData, "decoder: the vocabulary spells more than 4 GiB"));
      }
      ranges.push_back({begin, static_cast<uint32_t>(storage_.size())});
    }
  };
  fill(ranges_, false);
  if (first_differs) fill(first_ranges_, true);
}

std::string_view TokenDecoder::view(const std::vector<Range>& ranges, TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) >= ranges.size()) return {};
  const Range range = ranges[static_cast<size_t>(id)];
  return std::string_view(storage_).substr(range.begin, range.end - range.begin);
}

std::string_view TokenDecoder::bytes(TokenId id) const {
  return view(ranges_, id);
}

std::string_view TokenDecoder::first_bytes(TokenId id) const {
  return view(first_ranges_.empty() ? ranges_ : first_ranges_, id);
}

std::string_view TokenDecoder::strip_start(std::string_view text, size_t& stripped) const {
  while (stripped < strip_.start && text.starts_with(strip_.content)) {
    text.remove_prefix(strip_.content.size());
    ++stripped;
  }
  if (!text.empty()) stripped = strip_.start;
  return text;
}

}  // namespace millrace::text
