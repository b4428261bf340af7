"""Checks the source tree, or the one named on the command line, against the rules of rules.py. Prints one line of the
Test Anything Protocol per rule."""

import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))

import formatting  # noqa: E402
import includes  # noqa: E402
from rules import NAMED_FOLDERS, RULES  # noqa: E402
from samples import SAMPLES  # noqa: E402

ROOT = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
ALLOWED_FILE = Path(__file__).parent / "allowed.txt"
FOLDERS = ("src", "tests", "bench", "tools", "scripts", "docs", "examples", ".ci")
EXTENSIONS = (".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".build", ".md", ".txt")
TOP_FILES = ("run", "test", ".ci/run", "meson.build", "meson_options.txt", "README.md", "ARCHITECTURE.md",
             "CONTRIBUTING.md", "CHANGELOG.md")
# Recorded outputs and other data are not ours to format.
DATA_FOLDERS = ("tests/golden", "tests/fuzz/corpus")


def read_tree():
    files = {}
    for folder in FOLDERS:
        for where, folders, names in os.walk(ROOT / folder):
            inside = os.path.relpath(where, ROOT)
            folders[:] = sorted(name for name in folders
                                if name != "__pycache__" and f"{inside}/{name}" not in DATA_FOLDERS)
            for name in sorted(names):
                if name.endswith(EXTENSIONS):
                    files[f"{inside}/{name}"] = (Path(where) / name).read_text(encoding="utf-8")
    for name in TOP_FILES:
        if (ROOT / name).is_file():
            files[name] = (ROOT / name).read_text(encoding="utf-8")
    return files


def read_allowed():
    """Returns {(rule, path)} of allowed.txt, whose lines are "RULE PATH reason"; a reason is a must."""
    allowed = set()
    for line in ALLOWED_FILE.read_text().splitlines():
        if line and not line.startswith("#"):
            rule, path, reason = line.split(maxsplit=2)
            assert reason
            allowed.add((rule, path))
    return allowed


def check_modes(files):
    """Documentation starts programs by their names."""
    for path, text in files.items():
        if text.startswith("#!") != os.access(ROOT / path, os.X_OK):
            yield f"{path}: {'begins with #! and may not be run' if text.startswith('#!') else 'may be run, and has no #!'}"


def check_names():
    """The lists of this file name what exists."""
    for name in TOP_FILES:
        if not (ROOT / name).is_file():
            yield f"{name}: tidy.py names this file, and it does not exist"
    for name in FOLDERS + DATA_FOLDERS:
        if not (ROOT / name).is_dir():
            yield f"{name}: tidy.py names this folder, and it does not exist"


def check_samples():
    """Each rule finds what samples.py names, and nothing else."""
    checks = {rule.key: rule.check for rule in RULES}
    checks["folders"] = lambda files: includes.folders_with_code(files, ("src/a", "src/b/"))
    unsampled = checks.keys() - {key for key, _, _ in SAMPLES}
    problems = [f"{key}: no sample" for key in sorted(unsampled)]
    for key, files, wanted in SAMPLES:
        found = [problem.split(": ")[0] for problem in checks[key](files)]
        if found != wanted:
            problems.append(f"{key}: found {found}, wanted {wanted}")
    return problems


def report(number, title, problems, skip=""):
    print(f"{'not ok' if problems else 'ok'} {number} - {title}" + (f" # SKIP {skip}" if skip else ""))
    for problem in problems:
        print(f"# {problem}")


def main():
    files = read_tree()
    allowed = read_allowed()
    used = set()
    results = []
    for rule in RULES:
        problems = []
        for problem in rule.check(files):
            entry = rule.key, problem.split(":")[0]
            if entry in allowed:
                used.add(entry)
            else:
                problems.append(problem)
        results.append((rule.title, problems))
    stale = [f"{path}: breaks no rule {key}; take its line out of {ALLOWED_FILE.name}"
             for key, path in sorted(allowed - used)]
    results.append(("exceptions are needed", stale))
    results.append(("rules and lists name what exists",
                    list(check_names()) + list(includes.folders_with_code(files, NAMED_FOLDERS))))
    results.append(("files that begin with #! and they alone may be run", list(check_modes(files))))
    results.append(("the rules find what they are made for", check_samples()))
    has_format = formatting.is_installed()
    results.append(("code is formatted by clang-format 19", formatting.check_format(ROOT, files) if has_format else []))
    for number, (title, problems) in enumerate(results, 1):
        is_format = number == len(results)
        report(number, title, problems, "" if has_format or not is_format else "clang-format-19 is not installed")
    print(f"1..{len(results)}")
    return 1 if any(problems for _, problems in results) else 0


if __name__ == "__main__":
    sys.exit(main())
