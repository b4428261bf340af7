"""Reads a folder of Project Gutenberg books as chapters of clean text."""

import re
from dataclasses import dataclass
from pathlib import Path

_START = re.compile(r"\*\*\* ?START OF TH.*?\*\*\*")
_END = re.compile(r"\*\*\* ?END OF TH.*?\*\*\*")
_HEADING = re.compile(
    r"^(?:CHAPTER|Chapter|BOOK|VOLUME|ADVENTURE|LETTER|PREFACE|EPILOGUE|FIRST EPILOGUE|SECOND EPILOGUE"
    r"|[IVXL]+\. THE ADVENTURE)\b[^\n]*$",
    re.MULTILINE,
)
_FOOTNOTES = re.compile(r"^(?:FOOTNOTES?:?|LETTER TO M\. DAELLI)\s*$", re.MULTILINE)
_FOOTER = re.compile(r"^End of (?:the )?Project Gutenberg.*$", re.MULTILINE)
_NOTE_LINK = re.compile(r"<a [^>]*>[^<]*</a>")
_PLAIN = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "\ufeff": None, "\u00a0": " ", "_": None})

MIN_CHAPTER_CHARS = 600
MAX_HEADINGS = 6


@dataclass
class Book:
    """A book: its file name without suffix, and its chapters in order, paragraphs apart by one empty line."""

    name: str
    chapters: list[str]


def strip_gutenberg(text: str) -> str:
    """The text between the licence's START and END marks."""
    start, end = _START.search(text), _END.search(text)
    if not start or not end:
        raise ValueError("no Project Gutenberg START and END marks")
    return _NOTE_LINK.sub("", _FOOTER.sub("", text[start.end() : end.start()]))


def unwrap(text: str) -> str:
    """Joins each paragraph's hard-wrapped lines, and makes quotes plain ASCII, as keyboards type them."""
    text = text.replace("\r\n", "\n").translate(_PLAIN)
    paragraphs = (" ".join(block.split()) for block in re.split(r"\n\s*\n", text))
    return "\n\n".join(p for p in paragraphs if p and not p.startswith("[Illustration"))


def read_book(path: Path) -> Book:
    """Cuts one book at its headings, without tables of contents, which are too short or full of headings."""
    text = strip_gutenberg(path.read_text(encoding="utf-8")).replace("\r\n", "\n")
    notes = _FOOTNOTES.search(text)
    if notes and notes.start() > len(text) * 0.9:
        text = text[: notes.start()]
    cuts = [m.start() for m in _HEADING.finditer(text)] + [len(text)]
    pieces = (unwrap(text[a:b]) for a, b in zip(cuts, cuts[1:]))
    chapters = [p for p in pieces if len(p) >= MIN_CHAPTER_CHARS and p.count("CHAPTER") <= MAX_HEADINGS]
    return Book(path.stem, chapters)


def read_corpus(folder: Path) -> list[Book]:
    """All `*.txt` books of a folder, by name."""
    books = [read_book(path) for path in sorted(folder.glob("*.txt"))]
    if not books:
        raise FileNotFoundError(f"{folder}: no *.txt files")
    return books


def split_held_out(books: list[Book], fraction: float) -> tuple[list[str], list[str]]:
    """(training chapters, held-out texts): of every book the last `fraction` of characters, cut at a paragraph, is held out."""
    train: list[str] = []
    held_out: list[str] = []
    for book in books:
        budget_chars = int(sum(map(len, book.chapters)) * fraction)
        chapters = list(book.chapters)
        tail: list[str] = []
        while budget_chars > 0:
            last = chapters.pop()
            if len(last) > budget_chars:
                cut = last.find("\n\n", len(last) - budget_chars)
                cut = len(last) if cut < 0 else cut
                chapters.append(last[:cut])
                last = last[cut:].lstrip("\n")
                budget_chars = len(last)
            budget_chars -= len(last)
            if last:
                tail.insert(0, last)
        train += chapters
        held_out += tail
    return train, held_out
