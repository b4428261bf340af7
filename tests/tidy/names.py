"""The rule about the names that documents quote: paths, links, flags, metrics and identifiers exist."""

import functools
import os
import re
from fnmatch import fnmatchcase
from pathlib import Path

from language import PROSE

ROOT = Path(__file__).resolve().parents[2]
READMES = re.compile(r"(bench/load|tools|examples|tests/golden)/README\.md")
# Names the files, flags and tests of other servers.
FOREIGN_DOCUMENTS = ("docs/compatibility.md",)
CODE_FOLDERS = ("src/", "tests/", "bench/", "tools/", "scripts/", "run", "test", "meson_options.txt")
# Programs without an ending, which no other rule reads.
CODE_FILES = ("tests/gpu/run", "tests/gpu/pack")
# A path below one of these is one of the repository; one below a folder of src/ may leave out src/.
PATH_ROOTS = ("src/", "tests/", "bench/", "tools/", "scripts/", "docs/", "deploy/", "examples/", "models/")
LEFT_OUT_ROOTS = ("src/", "tests/", "src/server/")
# Stand for any name.
PLACEHOLDERS = re.compile(r"\bNAME\b|\bx\.cc|\bx\.cu|\.inp$")

QUOTED = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
PATH = re.compile(r"[\w.{},*-]+(?:/[\w.{},*-]+)*/?")
FILE_NAME = re.compile(r"[\w{},*-]+\.(?:cc|h|cu|cuh|py|sh)")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9](?![\w-]|…|\.\.\.)")
METRIC = re.compile(r"(?:millrace|vllm):([a-z_{},]+)")
FILTER = re.compile(r"\./test\b[^#]*--filter ('[^']*'(?:/'[^']*')?|[\w/]+(?:'[^']*')?)")
MESON_TEST = re.compile(r"\btest\('(\w+)'")
SYMBOL = re.compile(r"(?:[a-z]+::)*(?:[A-Z][a-z]+[A-Z]\w*|[A-Z][a-z]+(?=::))(?:::~?\w+)*(?:\(\))?|k[A-Z]\w+")
# Headers of the CUDA toolkit, and flags of programs that documents call or compare with.
FOREIGN_FILES = ("nccl.h", "cublasLt.h")
FOREIGN_FLAGS = ("--enable-deterministic-inference", "--stop-timeout", "--kill-on-bad-exit", "--compile-commands-dir",
                 "--args", "--rm", "--ulimit", "--build-arg")


@functools.lru_cache(maxsize=None)
def _unread_paths():
    """Returns the files of the repository, those that no rule reads included."""
    return {os.path.relpath(Path(where) / name, ROOT) for folder in PATH_ROOTS
            for where, _, names in os.walk(ROOT / folder) for name in names}


def expanded(word):
    """Expands a_{b,c}_d to a_b_d and a_c_d."""
    braces = re.search(r"\{([^{}]*)\}", word)
    if not braces:
        return [word]
    return [each for part in braces[1].split(",")
            for each in expanded(word[:braces.start()] + part + word[braces.end():])]


def anchor_of(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


class Tree:
    """What the repository has: paths, words of its code, and flags."""

    def __init__(self, files):
        self.files = files
        self.paths = set(files) | _unread_paths()
        for path in list(self.paths):
            while path := path.rpartition("/")[0]:
                self.paths.add(path)
        self.base_names = {path.rpartition("/")[2] for path in self.paths}
        self.source_folders = {path.split("/")[1] for path in self.paths if path.startswith("src/")}
        code = "\n".join([text for path, text in files.items()
                          if path.startswith(CODE_FOLDERS) and not path.endswith(".md")]
                         + [(ROOT / path).read_text() for path in CODE_FILES])
        self.words = set(re.findall(r"\w+", code))
        self.flags = set(re.findall(r"--[a-z][a-z0-9-]*[a-z0-9]", code))

        self.groups = {name for path, text in files.items() if path.endswith("meson.build")
                       for name in MESON_TEST.findall(text)} | {"e2e", "gpu", "tidy"}
        self.e2e = " ".join(path + text for path, text in files.items() if path.startswith("tests/e2e/test_"))

    def has_tests(self, group, selection):
        """Returns whether `./test --filter GROUP/SELECTION` chooses a group, and end-to-end tests if it is theirs."""
        if group == "e2e":
            return selection in self.e2e
        return any(group in name for name in self.groups)

    def has_path(self, path, roots=("",)):
        """Returns whether a file or folder has this path, or is a program that is built of such a source."""
        path = path.rstrip("/")
        names = [root + path + ending for root in roots for ending in ("", ".cc", ".h", ".*")]
        return any(name in self.paths if "*" not in name else any(fnmatchcase(each, name) for each in self.paths)
                   for name in names)

    def has_link(self, document, link):
        path, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(document), path)) if path else document
        if not self.has_path(target) and not (ROOT / target).exists():
            return False
        text = self.files.get(target, "") or ((ROOT / target).read_text() if anchor and (ROOT / target).is_file() else "")
        return not anchor or anchor in map(anchor_of, HEADING.findall(text))


def unknown_in(tree, quoted):
    """Yields what a quoted piece of code names and the tree does not have."""
    for flag in FLAG.findall(quoted):
        if flag not in tree.flags and flag.replace("--no-", "--", 1) not in tree.flags and flag not in FOREIGN_FLAGS:
            yield f"no program has the flag {flag}"
    for text in FILTER.findall(quoted):
        group, _, selection = text.replace("'", "").partition("/")
        if not tree.has_tests(group, selection):
            yield f"--filter {text} chooses no test"
    if " " in quoted or PLACEHOLDERS.search(quoted):
        return
    for word in expanded(quoted):
        if PATH.fullmatch(word) and word.startswith(PATH_ROOTS):
            if not tree.has_path(word):
                yield f"there is no {word}"
        elif FILE_NAME.fullmatch(word):
            if not any(fnmatchcase(name, word) for name in tree.base_names) and word not in FOREIGN_FILES:
                yield f"there is no file {word}"
        elif PATH.fullmatch(word) and "/" in word and word.split("/")[0] in tree.source_folders:
            if not tree.has_path(word, LEFT_OUT_ROOTS):
                yield f"there is no src/{word}"
    metric = METRIC.fullmatch(quoted)
    for word in expanded(metric[1]) if metric else ():
        if word not in tree.words:
            yield f"no metric has the name {word}"
    if SYMBOL.fullmatch(quoted):
        for word in re.findall(r"\w+", quoted):
            if word not in tree.words:
                yield f"no code has the name {word}"


def quoted_names(files):
    """Documents quote what exists."""
    tree = Tree(files)
    for path, text in files.items():
        if not (PROSE.fullmatch(path) or READMES.fullmatch(path)) or path in FOREIGN_DOCUMENTS:
            continue
        in_code = False
        for number, line in enumerate(text.split("\n"), 1):
            is_fence = line.lstrip().startswith("```")
            in_code ^= is_fence
            pieces = [line] if in_code or line.startswith("    ") else QUOTED.findall(line)
            for piece in () if is_fence else pieces:
                for problem in unknown_in(tree, piece):
                    yield f"{path}:{number}: {problem}"
            for link in () if in_code else LINK.findall(line):
                if not link.startswith(("http:", "https:")) and not tree.has_link(path, link):
                    yield f"{path}:{number}: the link {link} leads nowhere"
