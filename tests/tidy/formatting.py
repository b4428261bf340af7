"""Checks C++ files against .clang-format with the version of clang-format that made them."""

import concurrent.futures
import os
import re
import shutil
import subprocess

from source import is_cpp

CLANG_FORMAT = "clang-format-19"
FILES_PER_RUN = 40
PROBLEM = re.compile(r"^(.*?):(\d+):\d+: (?:error|warning): code should be clang-formatted", re.MULTILINE)


def tracked_files(root, files):
    """Returns the C++ files that git tracks, or all of them in a tree without git."""
    done = subprocess.run(["git", "-C", str(root), "ls-files"], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL)
    tracked = set(done.stdout.splitlines()) if done.returncode == 0 else set(files)
    return sorted(path for path in files if is_cpp(path) and path in tracked)


def check_some(root, paths):
    done = subprocess.run([CLANG_FORMAT, "--dry-run", *paths], cwd=root, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    problems = {}
    for path, line in PROBLEM.findall(done.stdout):
        problems.setdefault(path, f"{path}:{line}: not formatted; run {CLANG_FORMAT} -i {path}")
    if done.returncode != 0:
        problems[""] = f"{CLANG_FORMAT}: ended with code {done.returncode}: {done.stdout[-300:]}"
    return list(problems.values())


def is_installed():
    return shutil.which(CLANG_FORMAT) is not None


def check_format(root, files):
    paths = tracked_files(root, files)
    parts = [paths[i:i + FILES_PER_RUN] for i in range(0, len(paths), FILES_PER_RUN)]
    with concurrent.futures.ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        return [problem for some in pool.map(lambda part: check_some(root, part), parts) for problem in some]
