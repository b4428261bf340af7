"""Rules about words: doc comments, identifiers, documents, and names of tests."""

import re
from pathlib import Path

from source import comments_of, is_cpp, strip_all

# A doc comment stands alone in an IDE's hover; with these words it hangs on its neighbour.
FRAGMENT = re.compile(r"///<? *(Of|That|Those|Beside|Behind|The same|With(?:in)? it)[ ,;:.]|"
                      r"/// *(As|From any thread|On any thread|Whether|Has|Learns|Tells whether|Without|At|Up to)[ ,;:]")
# A comment of its own line begins likewise; a note after code may be a phrase.
BODY_FRAGMENT = re.compile(r"\s*// ?(Of|That|Those|Beside|Besides|Behind|The same|With(?:in)? it|As|Whether|Which|Has|Up to|At|On|"
                           r"From|To|For|So|Not)\b")
DOC_COMMENT = re.compile(r"[ \t]*///")
BODY_COMMENT = re.compile(r"[ \t]*//(?!/)")

# Words of comments and documents that are not the field's, with what the field writes.
BANNED_WORDS = (
    (re.compile(r"\bbeside\b"), "next to, with, in addition to"),
    (re.compile(r"\bso many\b"), "this many, or the count's name"),
    (re.compile(r"\blearnt\b"), "fitted or learned"),
    (re.compile(r"\b(hears?|told)\b"), "is notified, receives"),
    (re.compile(r"\btells? (\w+ )?apart\b|\btold apart\b"), "distinguishes"),
)
BANNED_IDENTIFIERS = (
    (re.compile(r"kMost\w*"), "kMax…"),
    (re.compile(r"k(Fewest|Longest)[A-Z]\w*"), "kMin… or kMax…"),
    (re.compile(r"\w+(Elsewhere|_elsewhere)_?"), "…_on_worker"),
    (re.compile(r"(hear_of|tell|learn)_\w+"), "await_…, log_…, send_… or update_…"),
    (re.compile(r"\w+_the_late|end_late"), "expire_…"),
    (re.compile(r"\w+Former|former_"), "RingBuilder"),
    (re.compile(r"turned_(?!away)\w+|\w+_turned"), "…_interleaved"),
    (re.compile(r"most_(?!of_)\w+"), "max_…"),
    (re.compile(r"behind_\w+|beside_\w+"), "after_… or other_…"),
)
# "OLD NEW" lines: names that the code has given up, each for the field's word.
RENAMED_FILE = Path(__file__).parent / "renamed.txt"
IDENTIFIER = re.compile(r"\b[A-Za-z_]\w*\b")

# It names the words that are not used.
GLOSSARY = "docs/GLOSSARY.md"
QUOTED = re.compile(r"`[^`]*`")

MAX_SENTENCE_WORDS = 40
COMMIT_ID = re.compile(r"`(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40}`")
PROSE = re.compile(r"(docs/[\w/]+|[A-Z]+|(?:src|bench|examples|tests|tools)(?:/(?!results/)[\w-]+)*/README)\.md")

MAX_TEST_NAME = 60
STRING = r'"(?:\\.|[^"\\\n])*"'
TEST_CASE = re.compile(r"\b(?:TEMPLATE_|TEMPLATE_LIST_)?TEST_CASE(?:_METHOD\(\s*\w+\s*,|\()\s*((?:" + STRING + r"\s*)+)")
PYTEST_CASE = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)
# Catch2's filters give these a meaning; so does a shell.
UNUSABLE_IN_NAME = re.compile(r"[,\[\]\"'\\*~`$!]|^\s|\s$|  ")


def fragments(files):
    for path, text in files.items():
        if not is_cpp(path):
            continue
        was_doc = was_body = False
        for number, line in enumerate(text.split("\n"), 1):
            found = FRAGMENT.search(line)
            is_doc = bool(DOC_COMMENT.match(line))
            is_body = bool(BODY_COMMENT.match(line))
            body = BODY_FRAGMENT.match(line) if is_body and not was_body else None
            if body:
                yield f"{path}:{number}: the comment opens with '{body[1]}'; begin with a noun or a verb"
            if found and not (is_doc and was_doc):
                yield f"{path}:{number}: the doc comment opens with '{found[1] or found[2]}'; begin with a noun or a verb"
            was_doc, was_body = is_doc, is_body


def words(files):
    for path, text in files.items():
        if is_cpp(path) and path.startswith("src/"):
            texts = comments_of(text)
        elif PROSE.fullmatch(path) and path != GLOSSARY:
            texts = [(1, text)]
        else:
            continue
        for first, prose in texts:
            for number, line in enumerate(prose.split("\n"), first):
                for pattern, better in BANNED_WORDS:
                    for found in pattern.finditer(QUOTED.sub("", line)):
                        yield f"{path}:{number}: '{found[0]}' is not the field's word; wanted: {better}"


def renamed_names():
    return dict(line.split() for line in RENAMED_FILE.read_text().splitlines() if line and not line.startswith("#"))


def identifiers(files):
    renamed = renamed_names()
    for path, text in files.items():
        if not is_cpp(path):
            continue
        for number, line in enumerate(strip_all(text).split("\n"), 1):
            for name in IDENTIFIER.findall(line):
                better = renamed.get(name) or next((word for pattern, word in BANNED_IDENTIFIERS
                                                    if pattern.fullmatch(name)), None)
                if better:
                    yield f"{path}:{number}: '{name}' is a name of the past; wanted: {better}"


def paragraphs_of(text):
    """Yields (line number, text) of a Markdown file's paragraphs, list items and headings; code and tables are left
    out."""
    in_code, begin, lines = False, 0, []
    for number, line in enumerate(text.split("\n") + [""], 1):
        is_fence = line.lstrip().startswith("```")
        in_code ^= is_fence
        starts = re.match(r"\s*([*+-]|\d+\.|#+|>) ", line)
        if in_code or is_fence or line.startswith(("|", "    ")) or not line.strip() or starts:
            if lines:
                yield begin, " ".join(lines)
            lines = []
        if not (in_code or is_fence or line.startswith(("|", "    "))) and line.strip():
            begin = begin if lines else number
            lines.append(line[starts.end():].strip() if starts else line.strip())
            if line.startswith("#"):
                yield begin, " ".join(lines)
                lines = []


def documents(files):
    for path, text in files.items():
        if not PROSE.fullmatch(path):
            continue
        for number, line in enumerate(text.split("\n"), 1):
            if COMMIT_ID.search(line):
                yield f"{path}:{number}: a commit id; a document says what is, and the history says when"
        for number, paragraph in paragraphs_of(text):
            for sentence in re.split(r"(?<=[.!?:])[*_)\"]* +", paragraph):
                count = len(sentence.split())
                if count > MAX_SENTENCE_WORDS:
                    yield (f"{path}:{number}: a sentence of {count} words, at most {MAX_SENTENCE_WORDS} are wanted: "
                           f"{sentence[:60]} …")


def test_names(files):
    for path, text in files.items():
        if not path.startswith("tests/"):
            continue
        found = []
        if is_cpp(path):
            for match in TEST_CASE.finditer(text):
                name = "".join(part[1:-1] for part in re.findall(STRING, match[1]))
                found.append((match.start(), name))
        elif path.rpartition("/")[2].startswith("test_"):
            found = [(match.start(), match[1]) for match in PYTEST_CASE.finditer(text)]
        for position, name in found:
            line = text.count("\n", 0, position) + 1
            if len(name) > MAX_TEST_NAME:
                yield f"{path}:{line}: {len(name)} characters, at most {MAX_TEST_NAME} are wanted: {name}"
            unusable = UNUSABLE_IN_NAME.search(name)
            if unusable:
                yield f"{path}:{line}: '{unusable[0]}' in a test's name hinders --filter: {name}"
