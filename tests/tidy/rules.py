"""The rules of the house style that a machine can check. A rule takes {path: text} and yields "path: what is wrong" or
"path:line: what is wrong". Its key is what allowed.txt calls it."""

import dataclasses
from typing import Callable

import includes
import language
import names
import shape


@dataclasses.dataclass
class Rule:
    key: str
    title: str
    check: Callable


RULES = [
    Rule("file-length", "files have at most 500 lines", shape.file_length),
    Rule("function-length", "functions have at most 70 lines", shape.function_length),
    Rule("line-length", "lines of code have at most 120 columns", shape.line_length),
    Rule("whitespace", "no tabs and no blanks at line ends", shape.whitespace),
    Rule("pragma-once", "headers say #pragma once", shape.pragma_once),
    Rule("detached", "nothing is detached outside src/async", shape.detached),
    Rule("unfinished", "nothing is left unfinished", shape.unfinished),
    Rule("include-paths", "include paths are relative to src, tests or bench", shape.include_paths),
    Rule("one-source", "a class has its functions in one source", shape.one_class_one_source),
    Rule("arrows", "folders include along the table of ARCHITECTURE.md", includes.include_arrows),
    Rule("cycles", "the table of ARCHITECTURE.md has no cycle", includes.no_cycles),
    Rule("pure", "plans, the scheduler and the cache know no I/O and no clock", includes.pure_code),
    Rule("steady-clock", "the ring goes by no clock that can be set", includes.steady_time),
    Rule("fragments", "comments stand alone", language.fragments),
    Rule("words", "comments and documents use the words of the field", language.words),
    Rule("identifiers", "names are those of the field", language.identifiers),
    Rule("documents", "documents have no commit ids and no long sentences", language.documents),
    Rule("quoted-names", "documents quote paths, flags, metrics and names that exist", names.quoted_names),
    Rule("test-names", "names of tests are short and work with --filter", language.test_names),
]

# Folders that rules name. One that holds no code would make its rule empty.
NAMED_FOLDERS = includes.PURE_FOLDERS + includes.STEADY_FOLDERS + (shape.DETACHED_HOME,)
