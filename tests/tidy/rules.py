"""The rules of the house style that a machine can check. A rule takes the files and yields 'place: what is wrong'."""

import re

from source import functions_of, strip_all, strip_comments

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70
MAX_COLUMNS = 120
CPP = (".h", ".cc", ".cu", ".cuh")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+(["<])([^">]+)[">]', re.MULTILINE)
INCLUDE_ROOTS = ("src", "tests", "bench")

# Which folders of src/ a folder may include, besides itself and base: the arrows of ARCHITECTURE.md, written out.
BELOW_SCHED = ("async", "grammar", "text", "tensor", "model", "cache", "comm")
ARROWS = {
    "base": (),
    "async": (),
    "grammar": (),
    "text": (),
    "tensor": (),
    "cpu": ("tensor",),
    "cuda": ("async", "tensor"),
    "model": ("async", "tensor"),
    "cache": ("async", "tensor"),
    "comm": ("async", "tensor"),
    "sched": BELOW_SCHED,
    "server": ("sched",) + BELOW_SCHED,
    "sim": ("sched",) + BELOW_SCHED,
    "cluster": ("sched",) + BELOW_SCHED,
    "app": ("cluster", "cpu", "cuda", "sched", "server", "sim") + BELOW_SCHED,
}

# What decides is plain code: whatever these files include, directly or not, knows no Asio, no CUDA and no clock.
PURE = re.compile(r"src/(sched/scheduler|cache)/[^/]+\.(h|cc)")
IMPURE_INCLUDE = re.compile(r"boost/asio|cuda|chrono$|ctime$|sys/time|^time\.h|^async/")

# What waits, forms and ends the ring goes by time that nobody sets: a clock that jumps would break it.
STEADY = re.compile(r"src/(async|comm|cluster|sched)/.*")
SETTABLE_CLOCK = re.compile(r"\b(system_clock|utc_clock|CLOCK_REALTIME|gettimeofday)\b")

DETACHED_HOME = "src/async/"


def is_cpp(path):
    return path.endswith(CPP)


def file_length(files, allowed):
    for path, text in files.items():
        count = text.count("\n")
        if count > MAX_FILE_LINES and path not in allowed.get("file-length", ()):
            yield f"{path}: {count} lines, at most {MAX_FILE_LINES} are wanted"


def function_length(files, allowed):
    for path, text in files.items():
        if not is_cpp(path):
            continue
        for line, count, head in functions_of(text):
            if count > MAX_FUNCTION_LINES and path not in allowed.get("function-length", ()):
                yield f"{path}:{line}: {count} lines, at most {MAX_FUNCTION_LINES} are wanted: {head[-80:]}"


def whitespace(files, allowed):
    for path, text in files.items():
        if text and not text.endswith("\n"):
            yield f"{path}: the last line has no end"
        for number, line in enumerate(text.split("\n"), 1):
            if line != line.rstrip():
                yield f"{path}:{number}: blanks at the end of the line"
            if "\t" in line:
                yield f"{path}:{number}: a tab"
            is_code = path.endswith(CPP)
            if is_code and len(line) > MAX_COLUMNS and path not in allowed.get("line-length", ()):
                yield f"{path}:{number}: {len(line)} columns, at most {MAX_COLUMNS} are wanted"


def pragma_once(files, _):
    for path, text in files.items():
        if path.endswith((".h", ".cuh")) and not re.search(r"^#pragma once$", text, re.MULTILINE):
            yield f"{path}: no #pragma once"


def detached(files, _):
    for path, text in files.items():
        if not is_cpp(path) or path.startswith(DETACHED_HOME):
            continue
        code = strip_all(text)
        for number, line in enumerate(code.split("\n"), 1):
            if re.search(r"\bdetached\b", line):
                yield f"{path}:{number}: 'detached'; a task belongs to a task group that someone joins"


def unfinished(files, _):
    marks = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")
    for path, text in files.items():
        for number, line in enumerate(text.split("\n"), 1):
            if marks.search(line):
                yield f"{path}:{number}: unfinished: {line.strip()[:80]}"


def includes_of(text):
    """What a file includes, less what the build generates."""
    return [(kind, name) for kind, name in INCLUDE.findall(strip_comments(text)) if not name.endswith(".inc")]


def resolve(name, files):
    """The repository's file that `#include "name"` means, or None."""
    return next((f"{root}/{name}" for root in INCLUDE_ROOTS if f"{root}/{name}" in files), None)


def include_paths(files, _):
    for path, text in files.items():
        if not is_cpp(path):
            continue
        for kind, name in includes_of(text):
            if kind == '"' and resolve(name, files) is None:
                yield f"{path}: \"{name}\" is no file below {', '.join(root + '/' for root in INCLUDE_ROOTS)}"
            if kind == "<" and resolve(name, files) is not None:
                yield f"{path}: <{name}> is a file of this repository and wants quotes"


def include_arrows(files, _):
    for path, text in files.items():
        parts = path.split("/")
        if not is_cpp(path) or parts[0] != "src" or len(parts) < 3:
            continue
        folder = parts[1]
        if folder not in ARROWS:
            yield f"{path}: src/{folder} has no entry in the table of arrows"
            continue
        for kind, name in includes_of(text):
            target = name.split("/")[0]
            if kind == '"' and target not in (folder, "base") + ARROWS[folder]:
                yield f"{path}: includes {name}; {folder} may know {', '.join(('base',) + ARROWS[folder])}"


def pure_code(files, _):
    for path, text in files.items():
        if not PURE.fullmatch(path):
            continue
        seen, waiting = {path}, [(path, [])]
        while waiting:
            current, way = waiting.pop()
            for kind, name in includes_of(files[current]):
                if IMPURE_INCLUDE.search(name):
                    yield f"{path}: reaches <{name}>" + "".join(f" through {step}" for step in way)
                    continue
                target = resolve(name, files) if kind == '"' else None
                if target and target not in seen:
                    seen.add(target)
                    waiting.append((target, way + [target]))


def steady_time(files, _):
    for path, text in files.items():
        if not is_cpp(path) or not STEADY.fullmatch(path):
            continue
        for number, line in enumerate(strip_all(text).split("\n"), 1):
            found = SETTABLE_CLOCK.search(line)
            if found:
                yield f"{path}:{number}: '{found[0]}' may jump; async::Runtime and steady_clock do not"


RULES = {
    "files have at most 500 lines": file_length,
    "functions have at most 70 lines": function_length,
    "no tabs, no blanks at line ends, at most 120 columns": whitespace,
    "headers say #pragma once": pragma_once,
    "nothing is detached outside src/async": detached,
    "nothing is left unfinished": unfinished,
    "include paths are relative to src, tests or bench": include_paths,
    "folders include along the arrows": include_arrows,
    "what decides includes neither Asio nor CUDA nor a clock": pure_code,
    "what keeps the ring goes by no clock that can be set": steady_time,
}
