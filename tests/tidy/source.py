"""C++ text without what rules must not see: comments, strings, preprocessor lines. Lines keep their numbers."""

import re

TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)"'
    r'|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)


def _blank(match):
    text = match.group(0)
    kept = "\n" * text.count("\n")
    if text.startswith("/"):
        return " " + kept
    return '""' + kept if text.endswith('"') else "' '"


def strip_comments(text):
    return TOKEN.sub(lambda m: _blank(m) if m.group(0).startswith("/") else m.group(0), text)


def strip_all(text):
    text = TOKEN.sub(_blank, text)
    return PREPROCESSOR.sub(lambda m: "\n" * m.group(0).count("\n"), text)


SCOPE = re.compile(r"^\s*(?:inline\s+)?namespace\b|^\s*extern\s*\"\"\s*$|\b(?:class|struct|union|enum)\b[^()=]*$")


def is_function(head):
    """Whether a brace behind `head` opens a body, not an initializer or an argument."""
    is_value = re.search(r"(?<!operator)=\s*[\w:<>,\s]*$", head)
    return "(" in head and head.count("(") == head.count(")") and not is_value


def functions_of(text):
    """[(first line, line count, head)] of the functions at namespace or class level: from the line of the opening
    brace to that of the closing one. Lambdas and blocks count as part of the function they stand in."""
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
