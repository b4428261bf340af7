"""Rules about the size and the layout of files, functions and classes."""

import re

from source import functions_of, is_cpp, resolve, strip_all, includes_of

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70
MAX_COLUMNS = 120
DETACHED_HOME = "src/async/"
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")
CLASS = re.compile(r"\b(?:class|struct)\s+(?:\[\[.*?\]\]\s*|alignas\([^)]*\)\s*)?(\w+)\s*(?:final\s*)?(?::[^:;{][^;{]*)?\{")
MEMBER = re.compile(r"\b(\w+)(?:<[^<>()]*>)?::(?:~?\w+|operator\s*\S{1,3}|operator\s+\w+)\s*\(")


def file_length(files):
    for path, text in files.items():
        count = text.count("\n")
        if count > MAX_FILE_LINES:
            yield f"{path}: {count} lines, at most {MAX_FILE_LINES} are wanted"


def function_length(files):
    for path, text in files.items():
        if not is_cpp(path):
            continue
        for line, count, head in functions_of(text):
            if count > MAX_FUNCTION_LINES:
                yield f"{path}:{line}: {count} lines, at most {MAX_FUNCTION_LINES} are wanted: {head[-80:]}"


def line_length(files):
    for path, text in files.items():
        if not (is_cpp(path) or path.endswith("meson.build")):
            continue
        for number, line in enumerate(text.split("\n"), 1):
            if len(line) > MAX_COLUMNS:
                yield f"{path}:{number}: {len(line)} columns, at most {MAX_COLUMNS} are wanted"


def whitespace(files):
    for path, text in files.items():
        if text and not text.endswith("\n"):
            yield f"{path}: the last line has no line end"
        for number, line in enumerate(text.split("\n"), 1):
            if line != line.rstrip():
                yield f"{path}:{number}: blanks at the end of the line"
            if "\t" in line:
                yield f"{path}:{number}: a tab"


def pragma_once(files):
    for path, text in files.items():
        if path.endswith((".h", ".cuh")) and not re.search(r"^#pragma once$", text, re.MULTILINE):
            yield f"{path}: no #pragma once"


def detached(files):
    for path, text in files.items():
        if not is_cpp(path) or path.startswith(DETACHED_HOME):
            continue
        for number, line in enumerate(strip_all(text).split("\n"), 1):
            if re.search(r"\bdetached\b", line):
                yield f"{path}:{number}: 'detached'; a task belongs to a task group that someone joins"


def unfinished(files):
    for path, text in files.items():
        for number, line in enumerate(text.split("\n"), 1):
            if UNFINISHED.search(line):
                yield f"{path}:{number}: unfinished: {line.strip()[:80]}"


def include_paths(files):
    for path, text in files.items():
        if not is_cpp(path):
            continue
        for kind, name in includes_of(text):
            if kind == '"' and resolve(name, files) is None:
                yield f"{path}: \"{name}\" is no file below src/, tests/ or bench/"
            if kind == "<" and resolve(name, files) is not None:
                yield f"{path}: <{name}> is a file of this repository and wants quotes"


def classes_of(text):
    """Returns the names of the classes that a file defines."""
    return set(CLASS.findall(strip_all(text)))


def one_class_one_source(files):
    """A class of a header has its member functions in one source of the header's folder."""
    headers = {}  # (folder, class) -> header
    for path, text in files.items():
        if path.startswith("src/") and path.endswith((".h", ".cuh")):
            for name in classes_of(text):
                headers[path.rpartition("/")[0], name] = path
    sources = {}  # (folder, class) -> {source: number of functions}
    for path, text in files.items():
        if not path.startswith("src/") or not path.endswith((".cc", ".cu")):
            continue
        folder, own = path.rpartition("/")[0], classes_of(text)
        for _, _, head in functions_of(text):
            member = MEMBER.search(head)
            if member and member[1] not in own and (folder, member[1]) in headers:
                counts = sources.setdefault((folder, member[1]), {})
                counts[path] = counts.get(path, 0) + 1
    for (folder, name), counts in sources.items():
        home = max(counts, key=lambda path: (path.rpartition(".")[0] == headers[folder, name].rpartition(".")[0],
                                             counts[path]))
        for path, count in counts.items():
            if path != home:
                yield f"{path}: {count} functions of {name}, which lives in {home}; give the job a class of its own"
