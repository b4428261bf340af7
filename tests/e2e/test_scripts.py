"""Tests ./run, ./test and their scripts (scripts/dev.sh, scripts/run_tests.py) with a fake Meson and a fake Ninja."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from millrace_server import PATIENCE_S, ROOT, wait_until

FAKES = {
    "dpkg-query": 'for package; do echo "installed $package"; done\n',
    # Logs its begin and its end, so that two concurrent runs show.
    "meson": """echo "begin $1" >> "$LOG"
if [ "$1" = introspect ]; then cat "$ANSWERS/$2"; exit 0; fi
while [ -e "$HOLD" ]; do sleep 0.02; done
mkdir -p "$2/meson-private" && touch "$2/build.ninja" && echo "end $*" >> "$LOG"
printf "[options]\ngpu_architectures = 80,90a\n\n[properties]\n" > "$2/meson-private/cmd_line.txt"
""",
    "ninja": """case "$*" in *" -n "*) echo "[1/1] something"; exit 0 ;; esac
echo begin ninja >> "$LOG"; echo end ninja >> "$LOG"
""",
}


class Checkout:
    """A folder with the scripts and with fake programs that precede others in the PATH. No package is ever missing."""

    def __init__(self, folder):
        self.folder, self.programs, self.log = folder, folder / "programs", folder / "log"
        self.hold = folder / "hold"  # while it exists, the fake Meson configures
        shutil.copytree(ROOT / "scripts", folder / "scripts")
        self.programs.mkdir()
        for name, text in FAKES.items():
            self.add(name, text)
        self.environment = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}", "LOG": str(self.log),
                            "ANSWERS": str(folder / "answers"), "HOLD": str(self.hold)}

    def add(self, name, text):
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)

    def start(self, command):
        return subprocess.Popen(["bash", "-euc", f"source scripts/dev.sh; {command}"], cwd=self.folder,
                                env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, command):
        process = self.start(command)
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, output
        return output

    def said(self):
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def test_two_at_once_take_turns_with_a_build_folder(checkout):
    command = 'configure "$root/build"; build "$root/build" all'
    checkout.hold.touch()
    first = checkout.start(command)
    wait_until(lambda: "begin setup" in checkout.said(), "the first one having the folder")
    second = checkout.start(command)
    assert second.stdout.readline().startswith("Waiting for another")
    checkout.hold.unlink()
    outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    said = checkout.said()
    assert said.count("begin setup") == 1
    assert said.count("begin ninja") == 2
    for begin, end in zip(said[::2], said[1::2], strict=True):
        assert (begin.split()[0], end.split()[0]) == ("begin", "end"), said


def test_what_a_build_leaves_running_does_not_keep_the_folder(checkout):
    checkout.add("ninja", 'case "$*" in *" -n "*) echo "[1/1]"; exit 0 ;; esac\nsleep 100 > /dev/null 2>&1 &\necho $! > "$LOG"\n')
    try:
        checkout.run('build "$root/build" all')
        checkout.run('alone build echo free')
    finally:
        os.kill(int(checkout.log.read_text()), 9)


NINJA_OF_40_STEPS = """case "$*" in *" -n "*) echo "[1/40] something"; exit 0 ;; esac
i=0
while [ $i -lt 40 ]; do
  i=$((i + 1))
  echo "$NINJA_STATUS" | sed "s/%f/$i/; s/%t/40/; s/$/Compiling $i/"
  [ $i = 7 ] && echo "7.cc: warning"
done
exit ${CODE:-0}
"""


def test_a_build_without_a_terminal_shows_each_tenth(checkout):
    checkout.add("ninja", NINJA_OF_40_STEPS)
    lines = checkout.run('build "$root/build" all').splitlines()
    assert [line.split(" steps")[0] for line in lines if "%" in line] == [
        f"Building build/: {10 * i} % ({4 * i} of 40" for i in range(1, 11)]
    assert "7.cc: warning" in lines and not any("Compiling" in line for line in lines)
    assert lines[0] == "Building build/ ..." and lines[-1].startswith("Built build/ in ")


def test_a_failed_build_fails_without_a_terminal(checkout):
    checkout.add("ninja", NINJA_OF_40_STEPS)
    checkout.environment["CODE"] = "1"
    process = checkout.start('build "$root/build" all; echo not here')
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "the build failed" in output and "not here" not in output


def test_alone_keeps_exit_code_and_message(checkout):
    checkout.add("ninja", "exit 1\n")
    process = checkout.start('build "$root/build" all; echo not here')
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "the build failed" in output and "not here" not in output


def test_a_toolkit_that_comes_later_is_found(checkout):
    checkout.run('configure "$root/build"; configure "$root/build"')
    assert checkout.said().count("begin setup") == 1
    checkout.add("nvcc", "")
    checkout.run('configure "$root/build"; configure "$root/build"')
    assert checkout.said().count("begin setup") == 2
    assert checkout.said()[-1].endswith(" -Dgpu_architectures=80,90a")  # set by `meson configure`
    (checkout.programs / "nvcc").unlink()
    checkout.run('configure "$root/build"')
    assert checkout.said().count("begin setup") == 3


def groups_of(checkout, targets):
    answers = checkout.folder / "answers"
    answers.mkdir(exist_ok=True)
    (answers / "--tests").write_text("[]")
    (answers / "--targets").write_text(json.dumps([{"name": name} for name in targets]))
    code = ("import argparse, run_tests\n"
            "found = run_tests.find_groups(argparse.Namespace(build_dir=run_tests.Path('nowhere'), sanitized=False,\n"
            "                                                 effort_percent=None, jobs=2, timeout_s=1))\n"
            "print(*(f'{group.name} {group.kind} {group.command[0]}' for group in found), sep='\\n')\n")
    done = subprocess.run([sys.executable, "-c", code], cwd=checkout.folder / "scripts", env=checkout.environment,
                          capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_gpus_tests_are_skipped_where_nvcc_was_not_found(checkout):
    without = groups_of(checkout, ["millrace"])
    assert "gpu absent the build has no millrace_cuda.so: nvcc was not found" in without
    assert f"gpu gpu {sys.executable}" in groups_of(checkout, ["millrace", "millrace_cuda"])


FAKE_CATCH2 = """#!/bin/sh
case "$1" in --list-test-names-only) shift; [ $# = 0 ] && printf '%s\\n' "a [b], c" "a [b] d" || printf '%s' "$1"; exit 2 ;; esac
"""


def chosen_cases(folder, *filters):
    """Returns what run_tests.py chooses of two groups, whose program prints the Catch2 filter that it gets."""
    program = folder / "catch2"
    program.write_text(FAKE_CATCH2)
    program.chmod(0o755)
    code = ("import sys, run_tests\n"
            "groups = [run_tests.Group(name, [sys.argv[1]], 'catch2', {}, 60) for name in ('sim', 'sim_slow')]\n"
            "for group, selection in run_tests.select(groups, sys.argv[2:]):\n"
            "    print(group.name, *run_tests.list_cases(group, selection), sep='|')\n")
    done = subprocess.run([sys.executable, "-c", code, program, *filters], cwd=ROOT / "scripts", capture_output=True, text=True,
                          timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_filter_takes_whole_names_and_patterns(tmp_path):
    assert chosen_cases(tmp_path) == ["sim|a [b], c|a [b] d", "sim_slow|a [b], c|a [b] d"]
    assert chosen_cases(tmp_path, "sim") == ["sim|a [b], c|a [b] d"]
    assert chosen_cases(tmp_path, "slow/[b]") == ["sim_slow|[b]"]
    assert chosen_cases(tmp_path, "im_/a*,c") == ["sim_slow|a*,c"]
    assert chosen_cases(tmp_path, "sim/a [b], c") == [r"sim|a \[b]\, c"]
    assert chosen_cases(tmp_path, "none") == []


def test_groups_of_higher_priority_start_first():
    code = ("import argparse, run_tests\n"
            "groups = [run_tests.Group(name, ['/bin/true'], kind, {}, 60, priority) for name, kind, priority in\n"
            "          (('short', 'plain', 0), ('e2e', 'pytest', 0), ('long', 'plain', 90), ('middle', 'plain', 80))]\n"
            "run_tests.run_groups([(group, '') for group in groups], argparse.Namespace(jobs=1, no_e2e='no reason'))\n")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "scripts", capture_output=True, text=True,
                          timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["long", "middle", "short", "e2e"]


def test_a_test_run_that_ends_early_ends_with_its_counts(checkout):
    shutil.copy(ROOT / "test", checkout.folder / "test")
    checkout.add("meson", "exit 1\n")
    done = subprocess.run([checkout.folder / "test", "--filter", "tidy"], env=checkout.environment, capture_output=True,
                          text=True, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert "Meson could not configure" in done.stderr
    assert done.stdout.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"


def test_help_of_run_builds_nothing(checkout):
    shutil.copy(ROOT / "run", checkout.folder / "run")

    def help_text(*flags):
        done = subprocess.run([checkout.folder / "run", *flags], env=checkout.environment, capture_output=True, text=True,
                              timeout=PATIENCE_S)
        assert (done.returncode, done.stderr) == (0, "")
        assert "--model-path DIR" in done.stdout
        return done.stdout

    assert "docs/operations.md" in help_text("--help")
    binary = checkout.folder / "build" / "millrace"
    binary.parent.mkdir()
    binary.write_text('#!/bin/sh\necho "flags of $*"\n')
    binary.chmod(0o755)
    assert help_text("--pp-size", "2", "-h").endswith("flags of serve --help\n")
    binary.write_text("#!/bin/sh\nexit 127\n")
    assert "docs/operations.md" in help_text("--help")
    assert checkout.said() == []


def test_the_hint_of_run_suits_its_flags(checkout):
    shutil.copy(ROOT / "run", checkout.folder / "run")
    (checkout.folder / "answers").mkdir()
    target = {"name": "millrace", "type": "executable", "defined_in": str(checkout.folder / "meson.build"),
              "filename": [str(checkout.folder / "build" / "millrace")]}
    (checkout.folder / "answers" / "--targets").write_text(json.dumps([target]))
    (checkout.folder / "build").mkdir()
    binary = checkout.folder / "build" / "millrace"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)

    def hint(*flags):
        done = subprocess.run([checkout.folder / "run", *flags], env=checkout.environment, capture_output=True, text=True,
                              timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "curl http://127.0.0.1:30000/v1/models\n" in hint()
    assert "curl http://127.0.0.1:PORT/v1/models -H 'Authorization: Bearer KEY'\n" in hint("--port", "0", "--api-key", "x")
    assert "curl" not in hint("--node-rank", "1")
    assert "curl" in hint("--node-rank=0")
