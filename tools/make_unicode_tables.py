#!/usr/bin/env python3
"""Writes src/text/unicode_tables*.cc: the character properties with which Hugging Face's tokenizers splits text.

The properties are asked of the installed library itself, code point by code point, so they have its versions of Unicode.
The library holds several: its regular expressions are Oniguruma's, and some components have older tables of their own.
Needs `pip install tokenizers==0.23.3`."""
import argparse
import pathlib

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cs Cn").split()
SCRIPTS = """
Adlam Ahom Anatolian_Hieroglyphs Arabic Armenian Avestan Balinese Bamum Bassa_Vah Batak Bengali Bhaiksuki Bopomofo Brahmi
Braille Buginese Buhid Canadian_Aboriginal Carian Caucasian_Albanian Chakma Cham Cherokee Chorasmian Common Coptic Cuneiform
Cypriot Cypro_Minoan Cyrillic Deseret Devanagari Dives_Akuru Dogra Duployan Egyptian_Hieroglyphs Elbasan Elymaic Ethiopic
Garay Georgian Glagolitic Gothic Grantha Greek Gujarati Gunjala_Gondi Gurmukhi Gurung_Khema Han Hangul Hanifi_Rohingya
Hanunoo Hatran Hebrew Hiragana Imperial_Aramaic Inherited Inscriptional_Pahlavi Inscriptional_Parthian Javanese Kaithi
Kannada Katakana Kawi Kayah_Li Kharoshthi Khitan_Small_Script Khmer Khojki Khudawadi Kirat_Rai Lao Latin Lepcha Limbu
Linear_A Linear_B Lisu Lycian Lydian Mahajani Makasar Malayalam Mandaic Manichaean Marchen Masaram_Gondi Medefaidrin
Meetei_Mayek Mende_Kikakui Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi Mongolian Mro Multani Myanmar Nabataean
Nag_Mundari Nandinagari New_Tai_Lue Newa Nko Nushu Nyiakeng_Puachue_Hmong Ogham Ol_Chiki Ol_Onal Old_Hungarian Old_Italic
Old_North_Arabian Old_Permic Old_Persian Old_Sogdian Old_South_Arabian Old_Turkic Old_Uyghur Oriya Osage Osmanya
Pahawh_Hmong Palmyrene Pau_Cin_Hau Phags_Pa Phoenician Psalter_Pahlavi Rejang Runic Samaritan Saurashtra Sharada Shavian
Siddham SignWriting Sinhala Sogdian Sora_Sompeng Soyombo Sundanese Sunuwar Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le
Tai_Tham Tai_Viet Takri Tamil Tangsa Tangut Telugu Thaana Thai Tibetan Tifinagh Tirhuta Todhri Toto Tulu_Tigalari Ugaritic
Vai Vithkuqi Wancho Warang_Citi Yezidi Yi Zanabazar_Square
""".split()
EVERY = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


class Prober:
    """Asks the library which of some code points belong to a set."""

    def __init__(self, code_points):
        self.code_points = code_points
        self.text = "".join(map(chr, code_points))

    def kept_by(self, pre_tokenizer):
        found = set()
        for _, (begin, end) in pre_tokenizer.pre_tokenize_str(self.text):
            found.update(self.code_points[begin:end])
        return found

    def matching(self, pattern):
        return self.kept_by(pre_tokenizers.Split(Regex(pattern), "removed", invert=True))

    def removed_by(self, normalizer):
        """Those that the normalizer deletes when they stand between two letters."""
        tried = [c for c in self.code_points if c != ord("b")]
        marked = normalizer.normalize_str("".join(f"a{chr(c)}b" for c in tried))
        found, at = set(), 0
        for c in tried:
            if marked.startswith("ab", at):
                found.add(c)
                at += 2
            else:
                at = marked.index("b", at + 2) + 1
        return found


def ranges(code_points):
    out = []
    for c in sorted(code_points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def wrapped(items, indent="    "):
    lines, line = [], indent
    for item in items:
        if len(line) + len(item) + 1 > 118:
            lines.append(line.rstrip())
            line = indent
        line += item + " "
    return "\n".join([*lines, line.rstrip()])


def transitions(value_of):
    """The code points at which the value changes, with the new value, as one number each."""
    out, last = [], None
    for c in range(0x110000):
        value = value_of.get(c)
        if value != last:
            out.append(f"0x{c << 8 | value:X},")
            last = value
    return out


def set_rows(code_points):
    return [f"{{0x{first:X}, 0x{last:X}}}," for first, last in ranges(code_points)]


def lowercase_rows(prober):
    """Runs of code points at one stride that map by one distance; U+0130 alone maps to two."""
    marked = normalizers.Lowercase().normalize_str("".join(f"{chr(c)}\0" for c in prober.code_points)).split("\0")[:-1]
    mapped = [(c, to) for c, to in zip((c for c in prober.code_points if c), (t for t in marked if t)) if chr(c) != to]
    assert [c for c, to in mapped if len(to) != 1] == [0x130]
    rows = []
    for c, distance in ((c, ord(to) - c) for c, to in mapped if len(to) == 1):
        if rows and rows[-1][3] == distance:
            first, last, stride, _ = rows[-1]
            if c - last in (1, 2) and (first == last or c - last == stride):
                rows[-1] = [first, c, c - last, distance]
                continue
        rows.append([c, c, 1, distance])
    return [f"{{0x{first:X}, 0x{last:X}, {stride}, {distance}}}," for first, last, stride, distance in rows]


def unicode_scripts_classes(prober):
    """The classes of the UnicodeScripts pre-tokenizer, numbered from 1, or 0 for what joins any neighbour."""
    splitter = pre_tokenizers.UnicodeScripts()
    joined = lambda a, b: len(splitter.pre_tokenize_str(chr(a) + chr(b))) == 1
    starts = {prober.code_points[begin] for _, (begin, _) in splitter.pre_tokenize_str(prober.text)}
    representatives, value_of, current = [], {}, 0
    for c in prober.code_points:
        # What joins both a Latin letter and a digit is in no script.
        if joined(c, ord("a")) and joined(c, ord("0")):
            value_of[c] = 0
            continue
        if c in starts or not current:
            found = next((i for i, r in enumerate(representatives) if joined(r, c)), None)
            if found is None:
                found = len(representatives)
                representatives.append(c)
            current = found + 1
        value_of[c] = current
    return value_of


def check(name, expected, found):
    if expected != found:
        raise SystemExit(f"{name}: the library's set differs from the derived one, for instance at "
                         f"U+{min(expected ^ found):04X}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "src/text")
    out = parser.parse_args().out
    everything = Prober(EVERY)
    assigned = Prober(sorted(everything.matching(r"[^\p{Cn}\p{Co}]+")))
    in_category = {name: assigned.matching(rf"\p{{{name}}}+") for name in CATEGORIES if name not in ("Co", "Cs", "Cn")}
    in_category["Co"] = everything.matching(r"\p{Co}+")
    in_category["Cs"] = set(range(0xD800, 0xE000))
    category_of = dict.fromkeys(range(0x110000), CATEGORIES.index("Cn"))
    for name, members in in_category.items():
        category_of.update(dict.fromkeys(members, CATEGORIES.index(name)))
    group = lambda letters: set().union(*(in_category.get(name, set()) for name in CATEGORIES if name[0] in letters))
    script_of = dict.fromkeys(range(0x110000), 0)
    for i, name in enumerate(SCRIPTS):
        script_of.update(dict.fromkeys(assigned.matching(rf"\p{{{name}}}+"), i + 1))
    missing = [c for c in assigned.code_points if not script_of[c]]
    if missing:
        raise SystemExit(f"U+{missing[0]:04X} is in none of the listed scripts")

    ask = lambda pattern: everything.matching(pattern)
    alphabetic, upper, lower = (assigned.matching(rf"\p{{{name}}}+") for name in ("Alphabetic", "Uppercase", "Lowercase"))
    white_space = ask(r"\s+")
    word = alphabetic | group("M") | in_category["Nd"] | in_category["Pc"]
    ascii_symbols = set(map(ord, "$+<=>^`|~"))
    check(r"\p{White_Space}", white_space, ask(r"\p{White_Space}+"))
    # Below U+0100 Oniguruma has a table of its own, in which superscript digits and fractions are words.
    check(r"\w", word | set(map(ord, "\u00b2\u00b3\u00b9\u00bc\u00bd\u00be")), ask(r"\w+"))
    check(r"\d", in_category["Nd"], ask(r"\d+"))
    check("[:alpha:]", alphabetic, ask("[[:alpha:]]+"))
    check("[:alnum:]", alphabetic | in_category["Nd"], ask("[[:alnum:]]+"))
    check("[:upper:]", upper, ask("[[:upper:]]+"))
    check("[:lower:]", lower, ask("[[:lower:]]+"))
    check("[:punct:]", group("PS"), ask("[[:punct:]]+"))
    check("[:blank:]", in_category["Zs"] | {9}, ask("[[:blank:]]+"))
    check("[:cntrl:]", in_category["Cc"], ask("[[:cntrl:]]+"))
    graph = set(EVERY) - white_space - in_category["Cc"] - {c for c in EVERY if category_of[c] == CATEGORIES.index("Cn")}
    check("[:graph:]", graph, ask("[[:graph:]]+"))
    check("[:print:]", graph | in_category["Zs"], ask("[[:print:]]+"))
    check("whitespace of Rust", set(EVERY) - white_space, everything.kept_by(pre_tokenizers.WhitespaceSplit()))

    numeric = everything.kept_by(pre_tokenizers.Split(Regex(r"\p{N}+"), "removed", invert=True))
    check("Digits", set(EVERY) - numeric, everything.kept_by(pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(False), pre_tokenizers.Split(Regex(r"\p{N}+"), "removed")])))
    words = Prober([c for c in EVERY if c not in white_space])
    rust_word = {p for p in words.code_points if len(pre_tokenizers.Whitespace().pre_tokenize_str(f"a{chr(p)}a")) == 1}
    check("Whitespace", word | {0x200C, 0x200D}, rust_word)
    punctuation = {c for c in EVERY if len(pre_tokenizers.Punctuation().pre_tokenize_str(f"a{chr(c)}a")) == 3}
    bert = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    accents = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    control = everything.removed_by(bert)
    nonspacing = assigned.removed_by(accents)
    combining = assigned.removed_by(normalizers.StripAccents())

    sets = {
        "kOtherAlphabetic": ("what is alphabetic beyond L and Nl", alphabetic ^ (group("L") | in_category["Nl"])),
        "kOtherUppercase": ("what is uppercase beyond Lu", upper ^ in_category["Lu"]),
        "kOtherLowercase": ("what is lowercase beyond Ll", lower ^ in_category["Ll"]),
        "kPunctuationChange": ("where the Punctuation pre-tokenizer differs from P and ASCII's symbols",
                               punctuation ^ (group("P") | ascii_symbols)),
        "kControlChange": ("where BertNormalizer's control characters differ from Cc, Cf and Co",
                           control ^ (in_category["Cc"] | in_category["Cf"] | in_category["Co"])),
        "kNonspacingChange": ("where BertNormalizer's accents differ from Mn", nonspacing ^ in_category["Mn"]),
        "kCombiningChange": ("where StripAccents differs from M", combining ^ group("M")),
    }
    head = f"// Made by tools/make_unicode_tables.py from tokenizers {tokenizers.__version__}. Do not edit.\n"
    head += '#include "text/unicode_tables.h"\n\nnamespace millrace::text::unicode_tables {\n'
    off, on = "// clang-format off\n", "// clang-format on\n"
    tail = "}  // namespace millrace::text::unicode_tables\n"
    rows = transitions(category_of)
    (out / "unicode_tables_categories.cc").write_text(
        f"{head}{off}\nconst std::array<uint32_t, kCategoryChanges> kCategories = {{\n{wrapped(rows)}\n}};\n\n{on}{tail}")
    script_rows, class_rows = transitions(script_of), transitions({0xD800 + i: 0 for i in range(0x800)} | unicode_scripts_classes(everything))
    (out / "unicode_tables_scripts.cc").write_text(
        f"{head}{off}\nconst std::array<uint32_t, kScriptChanges> kScripts = {{\n{wrapped(script_rows)}\n}};\n\n"
        f"const std::array<std::string_view, kScriptCount> kScriptNames = {{\n"
        f"{wrapped([chr(34) + name + chr(34) + ',' for name in SCRIPTS])}\n}};\n\n{on}{tail}")
    (out / "unicode_tables_script_classes.cc").write_text(
        f"{head}{off}\nconst std::array<uint32_t, kScriptClassChanges> kScriptClasses = {{\n{wrapped(class_rows)}\n}};\n\n{on}{tail}")
    lower_rows = lowercase_rows(everything)
    body = "".join(f"const std::array<CodePointRange, {name}Count> {name} = {{{{\n{wrapped(set_rows(members))}\n}}}};\n\n"
                   for name, (_, members) in sets.items())
    (out / "unicode_tables.cc").write_text(
        f"{head}{off}\n{body}const std::array<CaseRun, kLowercaseRuns> kLowercase = {{{{\n{wrapped(lower_rows)}\n}}}};\n\n{on}{tail}")
    counts = {"kCategoryChanges": rows, "kScriptChanges": script_rows, "kScriptCount": SCRIPTS,
              "kScriptClassChanges": class_rows, "kLowercaseRuns": lower_rows}
    counts |= {f"{name}Count": ranges(members) for name, (_, members) in sets.items()}
    lines = [f"inline constexpr size_t {name} = {len(items)};" for name, items in counts.items()]
    declared = "".join(f"/// Holds {text}.\nextern const std::array<CodePointRange, {name}Count> {name};\n"
                       for name, (text, _) in sets.items())
    (out / "unicode_tables.h").write_text(HEADER.format(counts="\n".join(lines), sets=declared))


HEADER = """\
// Made by tools/make_unicode_tables.py. Do not edit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "text/code_point_set.h"

/// Private to src/text: character properties as Hugging Face's tokenizers has them.
namespace millrace::text::unicode_tables {{

{counts}

/// Maps the code points `first`, `first + stride`, up to `last` by adding `distance`.
struct CaseRun {{
  char32_t first;
  char32_t last;
  uint8_t stride;
  int32_t distance;
}};

/// Holds where the general category changes: the code point times 256, plus the index of the new category.
extern const std::array<uint32_t, kCategoryChanges> kCategories;
/// Holds where the script changes; 0 is no script, and n is kScriptNames[n - 1].
extern const std::array<uint32_t, kScriptChanges> kScripts;
extern const std::array<std::string_view, kScriptCount> kScriptNames;
/// Holds where the class of the UnicodeScripts pre-tokenizer changes; 0 joins any neighbour.
extern const std::array<uint32_t, kScriptClassChanges> kScriptClasses;
{sets}/// Holds the lowercase mappings of single code points, but that of U+0130, which has two.
extern const std::array<CaseRun, kLowercaseRuns> kLowercase;

}}  // namespace millrace::text::unicode_tables
"""

if __name__ == "__main__":
    main()
