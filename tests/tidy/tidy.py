"""Checks the source tree, or the one named on the command line, against the rules of rules.py; prints one line of the
Test Anything Protocol per rule."""

import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))

from rules import RULES  # noqa: E402
from samples import SAMPLES  # noqa: E402

ROOT = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
FOLDERS = ("src", "tests", "bench", "tools", "scripts", "docs", ".ci")
EXTENSIONS = (".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".build", ".md", ".txt")
TOP_FILES = ("run", "test", ".ci/run", "meson.build", "meson_options.txt", "README.md", "ARCHITECTURE.md",
             "CONTRIBUTING.md", "CHANGELOG.md")
# Recorded outputs and other data are not ours to format.
DATA_FOLDERS = ("tests/golden/data", "tests/fuzz/corpus")


def read_tree():
    files = {}
    for folder in FOLDERS:
        for where, folders, names in os.walk(ROOT / folder):
            inside = os.path.relpath(where, ROOT)
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            if inside.startswith(DATA_FOLDERS):
                continue
            for name in sorted(names):
                if name.endswith(EXTENSIONS):
                    files[f"{inside}/{name}"] = (Path(where) / name).read_text(encoding="utf-8")
    for name in TOP_FILES:
        if (ROOT / name).is_file():
            files[name] = (ROOT / name).read_text(encoding="utf-8")
    return files


def read_allowed():
    """allowed.txt: "RULE PATH reason" lines; a reason is a must."""
    allowed = {}
    for line in (Path(__file__).parent / "allowed.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        rule, path, reason = line.split(maxsplit=2)
        assert reason
        allowed.setdefault(rule, set()).add(path)
    return allowed


def report(number, name, problems):
    print(f"{'not ok' if problems else 'ok'} {number} - {name}")
    for problem in problems:
        print(f"# {problem}")


def check_modes(files):
    """Documentation starts programs by their names."""
    for path, text in files.items():
        if text.startswith("#!") != os.access(ROOT / path, os.X_OK):
            yield f"{path}: {'begins with #! and may not be run' if text.startswith('#!') else 'may be run, and has no #!'}"


def check_samples():
    """What each rule must find in samples.py, and nothing else."""
    problems = []
    for rule, files, wanted in SAMPLES:
        found = [problem.split(": ")[0] for problem in RULES[rule](files, {})]
        if found != wanted:
            problems.append(f"{rule}: found {found}, wanted {wanted}")
    return problems


def main():
    files = read_tree()
    allowed = read_allowed()
    stale = [path for paths in allowed.values() for path in sorted(paths) if path not in files]
    failed = False
    results = [(name, list(rule(files, allowed))) for name, rule in RULES.items()]
    results.append(("the list of exceptions names files that exist", stale))
    results.append(("files that begin with #!, and they alone, may be run", list(check_modes(files))))
    results.append(("the rules find what they are made for", check_samples()))
    for number, (name, problems) in enumerate(results, 1):
        report(number, name, problems)
        failed = failed or bool(problems)
    print(f"1..{len(results)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
