#include "text/unicode.h"

#include <unicode/bytestream.h>
#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "text/unicode_properties.h"

namespace millrace::text {
namespace {

/// The one character whose lowercase form is two.
constexpr char32_t kDottedCapitalI = 0x130;

UChar32 to_icu(char32_t code_point) {
  return static_cast<UChar32>(code_point);
}

/// The normalisation tables of Hugging Face's tokenizers are those of Unicode 9. Later characters stay as they are.
constexpr const char* kNormalizedCharacters = "[:age=9.0:]";

icu::FilteredNormalizer2 restricted(const icu::Normalizer2* (*make)(UErrorCode&)) {
  static const icu::UnicodeSet characters = [] {
    UErrorCode status = U_ZERO_ERROR;
    icu::UnicodeSet set(kNormalizedCharacters, status);
    if (U_FAILURE(status)) throw std::runtime_error("ICU: its character data is missing");
    set.freeze();
    return set;
  }();
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* made = make(status);
  if (U_FAILURE(status) || made == nullptr) throw std::runtime_error("ICU: its normalisation data is missing");
  return {*made, characters};
}

const icu::Normalizer2& normalizer_for(NormalForm form) {
  static const icu::FilteredNormalizer2 nfc = restricted(&icu::Normalizer2::getNFCInstance);
  static const icu::FilteredNormalizer2 nfd = restricted(&icu::Normalizer2::getNFDInstance);
  static const icu::FilteredNormalizer2 nfkc = restricted(&icu::Normalizer2::getNFKCInstance);
  static const icu::FilteredNormalizer2 nfkd = restricted(&icu::Normalizer2::getNFKDInstance);
  switch (form) {
    case NormalForm::kNfc: return nfc;
    case NormalForm::kNfd: return nfd;
    case NormalForm::kNfkc: return nfkc;
    case NormalForm::kNfkd: return nfkd;
  }
  return nfc;
}

icu::StringPiece piece_of(std::string_view text) {
  return {text.data(), static_cast<int32_t>(text.size())};
}

template <class Map>
std::string map_text(std::string_view text, Map map) {
  icu::UnicodeString wide = icu::UnicodeString::fromUTF8(piece_of(text));
  map(wide);
  std::string out;
  wide.toUTF8String(out);
  return out;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool is_composed(NormalForm form) {
  return form == NormalForm::kNfc || form == NormalForm::kNfkc;
}

void append_by_icu(std::string_view text, NormalForm form, std::string& out) {
  const icu::Normalizer2& normalizer = normalizer_for(form);
  UErrorCode status = U_ZERO_ERROR;
  if (is_composed(form) && normalizer.isNormalizedUTF8(piece_of(text), status) && U_SUCCESS(status)) {
    out += text;
    return;
  }
  status = U_ZERO_ERROR;
  icu::StringByteSink<std::string> sink(&out, static_cast<int32_t>(text.size()));
  normalizer.normalizeUTF8(0, piece_of(text), sink, nullptr, status);
  if (U_FAILURE(status)) throw std::runtime_error("ICU: normalisation failed");
}

/// ICU takes the square of its time for a run of characters that may depend on each other. No language has such runs.
constexpr size_t kLongRun = 32;

struct Run {
  size_t begin;
  size_t end;
};

/// Returns the first run of more than kLongRun characters without a boundary between them; an empty one at the end
/// without.
Run next_long_run(std::string_view text, const icu::Normalizer2& normalizer) {
  size_t begin = 0;
  size_t length = 0;
  for (size_t at = 0; at < text.size();) {
    const DecodedUtf8 step = decode_utf8(text.substr(at));
    if (normalizer.hasBoundaryBefore(to_icu(step.code_point))) {
      if (length > kLongRun) return {begin, at};
      begin = at;
      length = 0;
    }
    ++length;
    at += step.length;
  }
  return {length > kLongRun ? begin : text.size(), text.size()};
}

struct Character {
  UChar32 code_point;
  uint8_t combining_class;
  size_t position;

  [[nodiscard]] auto rank() const { return std::pair(combining_class, position); }
};

std::vector<Character> decompose(std::string_view text, const icu::Normalizer2& normalizer) {
  std::vector<Character> characters;
  icu::UnicodeString mapping;
  while (!text.empty()) {
    const DecodedUtf8 step = decode_utf8(text);
    if (!normalizer.getDecomposition(to_icu(step.code_point), mapping)) mapping.setTo(to_icu(step.code_point));
    for (int32_t i = 0; i < mapping.length(); i = mapping.moveIndex32(i, 1)) {
      const UChar32 part = mapping.char32At(i);
      characters.push_back({part, normalizer.getCombiningClass(part), characters.size()});
    }
    text.remove_prefix(step.length);
  }
  return characters;
}

/// Puts the marks between two starters in the order of their classes.
void sort_marks(std::vector<Character>& characters) {
  const auto is_starter = [](const Character& c) { return c.combining_class == 0; };
  for (auto begin = characters.begin(); begin != characters.end();) {
    const auto end = std::find_if(begin, characters.end(), is_starter);
    std::ranges::sort(begin, end, {}, &Character::rank);
    begin = std::find_if_not(end, characters.end(), is_starter);
  }
}

void compose(std::vector<Character>& characters, const icu::Normalizer2& normalizer) {
  size_t kept = 0;
  std::optional<size_t> starter;
  for (const Character c : characters) {
    // The last one kept after the starter is of the highest class, and blocks those of its own.
    const bool is_free = starter && (*starter + 1 == kept || characters[kept - 1].combining_class < c.combining_class);
    const UChar32 composite =
        is_free ? normalizer.composePair(characters[*starter].code_point, c.code_point) : U_SENTINEL;
    if (composite >= 0) {
      characters[*starter].code_point = composite;
      continue;
    }
    if (c.combining_class == 0) starter = kept;
    characters[kept++] = c;
  }
  characters.resize(kept);
}

/// Appends a run's canonical order by the definition (Unicode 15, section 3.11), in n log n.
void append_long_run(std::string_view run, NormalForm form, std::string& out) {
  const icu::Normalizer2& normalizer = normalizer_for(form);
  std::vector<Character> characters = decompose(run, normalizer);
  sort_marks(characters);
  if (is_composed(form)) compose(characters, normalizer);
  for (const Character& c : characters) append_utf8(out, static_cast<char32_t>(c.code_point));
}

}  // namespace

bool is_white_space(char32_t code_point) {
  return u_isUWhiteSpace(to_icu(code_point)) != 0;
}

bool is_python_space(char32_t code_point) {
  return (code_point >= 0x1C && code_point <= 0x1F) || is_white_space(code_point);
}

bool is_word(char32_t code_point) {
  if (u_isUAlphabetic(to_icu(code_point))) return true;
  return (U_MASK(u_charType(to_icu(code_point))) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

bool is_printable(char32_t code_point) {
  if (code_point == ' ') return true;
  constexpr uint32_t kHidden = U_GC_C_MASK | U_GC_Z_MASK;
  return (U_MASK(u_charType(to_icu(code_point))) & kHidden) == 0;
}

bool is_alphabetic(char32_t code_point) {
  return (U_MASK(u_charType(to_icu(code_point))) & U_GC_L_MASK) != 0;
}
bool is_lower(char32_t code_point) {
  return u_isULowercase(to_icu(code_point)) != 0;
}
bool is_upper(char32_t code_point) {
  return u_isUUppercase(to_icu(code_point)) != 0;
}
bool is_cased(char32_t code_point) {
  return u_hasBinaryProperty(to_icu(code_point), UCHAR_CASED) != 0;
}

std::string normalize(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  std::string out;
  while (!text.empty()) {
    const Run run = next_long_run(text, normalizer_for(form));
    append_by_icu(text.substr(0, run.begin), form, out);
    append_long_run(text.substr(run.begin, run.end - run.begin), form, out);
    text.remove_prefix(run.end);
  }
  return out;
}

std::string lowercase_each(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const DecodedUtf8 step = decode_utf8(text);
    if (step.length == 1) {
      const char c = text[0];
      out += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    } else if (step.code_point == kDottedCapitalI) {
      out += "i\xCC\x87";
    } else {
      append_utf8(out, simple_lowercase(step.code_point));
    }
    text.remove_prefix(step.length);
  }
  return out;
}

std::string to_lower(std::string_view text) {
  return map_text(text, [](icu::UnicodeString& wide) { wide.toLower(icu::Locale::getRoot()); });
}

std::string to_upper(std::string_view text) {
  return map_text(text, [](icu::UnicodeString& wide) { wide.toUpper(icu::Locale::getRoot()); });
}

std::string to_title(std::string_view text) {
  std::string out;
  bool inside_word = false;
  while (!text.empty()) {
    const DecodedUtf8 step = decode_utf8(text);
    const std::string_view one = text.substr(0, step.length);
    if (inside_word) {
      out += to_lower(one);
    } else {
      append_utf8(out, static_cast<char32_t>(u_totitle(to_icu(step.code_point))));
    }
    inside_word = is_cased(step.code_point);
    text.remove_prefix(step.length);
  }
  return out;
}

size_t last_code_point(std::string_view text) {
  size_t start = text.size() - 1;
  while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
  return start;
}

size_t count_code_points(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

size_t code_point_offset(std::string_view text, size_t index) {
  size_t offset = 0;
  for (; offset < text.size(); ++offset) {
    if ((static_cast<unsigned char>(text[offset]) & 0xC0) == 0x80) continue;
    if (index == 0) return offset;
    --index;
  }
  return offset;
}

}  // namespace millrace::text
