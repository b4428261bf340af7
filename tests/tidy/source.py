"""Reads C++ as the rules need it: without comments, strings and preprocessor lines. Lines keep their numbers."""

import functools
import re

CPP_SUFFIXES = (".h", ".cc", ".cu", ".cuh")
INCLUDE_ROOTS = ("src", "tests", "bench")
TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)"'
    r'|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+(["<])([^">]+)[">]', re.MULTILINE)


def is_cpp(path):
    return path.endswith(CPP_SUFFIXES)


def _blank(match):
    text = match.group(0)
    kept = "\n" * text.count("\n")
    if text.startswith("/"):
        return " " + kept
    return '""' + kept if text.endswith('"') else "' '"


def comments_of(text):
    """Yields (line number, text) of the comments."""
    for match in TOKEN.finditer(text):
        if match.group(0).startswith("/"):
            yield text.count("\n", 0, match.start()) + 1, match.group(0)


@functools.lru_cache(maxsize=None)
def strip_comments(text):
    return TOKEN.sub(lambda m: _blank(m) if m.group(0).startswith("/") else m.group(0), text)


@functools.lru_cache(maxsize=None)
def strip_all(text):
    text = TOKEN.sub(_blank, text)
    return PREPROCESSOR.sub(lambda m: "\n" * m.group(0).count("\n"), text)


def includes_of(text):
    """Returns [(quote or bracket, name)] of what a file includes, without files that the build generates."""
    return [(kind, name) for kind, name in INCLUDE.findall(strip_comments(text)) if not name.endswith(".inc")]


def resolve(name, files):
    """Returns the repository's file that `#include "name"` means, or None."""
    return next((f"{root}/{name}" for root in INCLUDE_ROOTS if f"{root}/{name}" in files), None)


SCOPE = re.compile(r"^\s*(?:inline\s+)?namespace\b|^\s*extern\s*\"\"\s*$|\b(?:class|struct|union|enum)\b[^()=]*$")


def is_function(head):
    """Tells whether a brace that follows `head` opens a body, not an initializer or an argument."""
    is_value = re.search(r"(?<!operator)=\s*[\w:<>,\s]*$", head)
    return "(" in head and head.count("(") == head.count(")") and not is_value


@functools.lru_cache(maxsize=None)
def functions_of(text):
    """Returns [(first line, line count, head)] of the functions at namespace or class level. A function reaches from the
    line of its opening brace to that of the closing one. Lambdas and blocks count as part of their function."""
    found = []
    head, depth, line = "", 0, 1
    opened_at = None  # line of the brace that opened the function or initializer being skipped
    scopes = 0
    for character in strip_all(text):
        if character == "\n":
            line += 1
        if opened_at is not None:
            depth += (character == "{") - (character == "}")
            if depth == 0:
                if is_function(head):
                    found.append((opened_at, line - opened_at + 1, " ".join(head.split())))
                opened_at = None
                if not re.search(r"[\w>]\s*$", head):  # a body, not the braces of a member initializer
                    head = ""
            continue
        if character == "{":
            if SCOPE.search(re.sub(r"\[\[.*?\]\]|alignas\([^)]*\)|__\w+__\(\([^)]*\)\)", "", head)):
                scopes += 1
                head = ""
            else:
                opened_at, depth = line, 1
        elif character == "}":
            scopes -= 1
            head = ""
        elif character == ";":
            head = ""
        else:
            head += character
    return found
