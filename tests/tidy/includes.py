"""Rules about what may include what. The table of folders in ARCHITECTURE.md is their source."""

import re

from source import includes_of, is_cpp, resolve, strip_all

ARCHITECTURE = "ARCHITECTURE.md"
ROW = re.compile(r"^\| `src/([\w/]+)/` \|.*\| ([^|]+) \|$", re.MULTILINE)
BASE = "base"  # every folder may include it

# Code that decides is plain code: whatever these folders include, directly or not, knows no I/O and no clock.
PURE_FOLDERS = ("src/sched/plan", "src/sched/scheduler", "src/cache")
IMPURE_INCLUDE = re.compile(r"boost/asio|cuda|(^|/)(chrono|ctime|filesystem|fstream|iostream|cstdio|unistd\.h|fcntl\.h|"
                            r"time\.h)$|^sys/|^async/")

# Code that keeps the ring alive goes by time that nobody can set: a clock that jumps would break it.
STEADY_FOLDERS = ("src/async", "src/comm", "src/cluster", "src/sched/head", "src/sched/stage", "src/sched/scheduler",
                  "src/sched/plan")
SETTABLE_CLOCK = re.compile(r"\b(system_clock|utc_clock|CLOCK_REALTIME|gettimeofday)\b")


def folder_of(path):
    return path.rpartition("/")[0]


def arrows_of(files):
    """Returns {folder below src/: set of the folders that its row names, or None for "all"}."""
    arrows = {}
    for folder, cell in ROW.findall(files.get(ARCHITECTURE, "")):
        names = {name.strip() for name in cell.split(",")} - {"–"}
        arrows[folder] = None if names == {"all"} else names
    return arrows


def include_arrows(files):
    """The code includes along the table's arrows, and every arrow of the table stands for an include."""
    arrows = arrows_of(files)
    used = {folder: set() for folder in arrows}
    for path, text in files.items():
        folder = folder_of(path).removeprefix("src/")
        if not is_cpp(path) or not path.startswith("src/") or folder == "src":
            continue
        if folder not in arrows:
            yield f"{path}: src/{folder}/ has no row in the table of {ARCHITECTURE}"
            continue
        for kind, name in includes_of(text):
            target = resolve(name, files) if kind == '"' else None
            if target is None or arrows[folder] is None:
                continue
            if not target.startswith("src/"):
                yield f"{path}: includes {target}, which is no part of the program"
                continue
            other = folder_of(target).removeprefix("src/")
            used[folder].add(other)
            if other not in arrows[folder] | {folder, BASE}:
                yield f"{path}: includes {name}; {folder} may include {', '.join(sorted(arrows[folder] | {BASE}))}"
    for folder, names in arrows.items():
        if not any(path.startswith(f"src/{folder}/") for path in files):
            yield f"{ARCHITECTURE}: there is no folder src/{folder}/"
        for name in sorted((names or set()) - used[folder]):
            yield f"{ARCHITECTURE}: src/{folder}/ may include {name} and does not"


def no_cycles(files):
    """No folder of the table reaches itself along the arrows."""
    arrows = arrows_of(files)
    for start in arrows:
        reached, waiting = set(), list(arrows[start] or ())
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += arrows.get(name) or ()
        if start in reached:
            yield f"{ARCHITECTURE}: the arrows lead from {start} back to {start}"


def pure_code(files):
    for path, text in files.items():
        if not is_cpp(path) or folder_of(path) not in PURE_FOLDERS:
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


def steady_time(files):
    for path, text in files.items():
        if not is_cpp(path) or folder_of(path) not in STEADY_FOLDERS:
            continue
        for number, line in enumerate(strip_all(text).split("\n"), 1):
            found = SETTABLE_CLOCK.search(line)
            if found:
                yield f"{path}:{number}: '{found[0]}' may jump; async::Runtime and steady_clock do not"


def folders_with_code(files, folders):
    """Yields the folders that a rule names and that hold no code, since such a rule checks nothing."""
    with_code = {folder_of(path) for path in files if is_cpp(path)}
    for folder in folders:
        if folder.rstrip("/") not in with_code:
            yield f"{folder}: a rule names this folder, and it holds no code"
