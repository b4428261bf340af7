"""Runs the test groups of one build folder and counts their cases; called by ./test.

A group is a Catch2 program that Meson knows, the style checks, or the end-to-end tests. Each case of a group is passed,
failed or skipped. A program that crashes, hangs or reports nothing is a failed case named "(program)".
"""

import argparse
import concurrent.futures
import dataclasses
import fnmatch
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHOWN_LINES = 60
SANITIZER_FACTOR = 4
SYMBOLIZER = "/usr/lib/llvm-19/bin/llvm-symbolizer"
SUPPRESSIONS = ROOT / "tests/support/thread_sanitizer.supp"
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "halt_on_error=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": f"halt_on_error=1:second_deadlock_stack=1:suppressions={SUPPRESSIONS}",
}
running = set()  # process groups in flight, which end with this script


@dataclasses.dataclass
class Case:
    name: str
    outcome: str  # passed, failed, skipped
    detail: str = ""


@dataclasses.dataclass
class Group:
    name: str
    command: list
    kind: str  # catch2, plain, tap, gpu, pytest; absent: not built, and `command` holds the reason
    environment: dict
    timeout_s: float
    priority: int = 0  # groups with a higher one start first
    cases: list = dataclasses.field(default_factory=list)
    wall_s: float = 0.0

    def count(self, outcome):
        return sum(case.outcome == outcome for case in self.cases)


def tail(text):
    lines = text.rstrip().splitlines()
    cut = [f"... ({len(lines) - SHOWN_LINES} lines before)"] if len(lines) > SHOWN_LINES else []
    return "\n".join(cut + lines[-SHOWN_LINES:])


def end_processes(process_group):
    try:
        os.killpg(process_group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run_command(group, extra):
    """Runs the group's command in a process group of its own. Returns (exit code or None at the time-out, output)."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            group.command + extra, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=ROOT,
            env={**os.environ, **group.environment}, start_new_session=True)
        running.add(process.pid)
        try:
            code = process.wait(timeout=group.timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        end_processes(process.pid)  # a program past its time-out, and children that outlive their program
        running.discard(process.pid)
        process.wait()
        output.seek(0)
        return code, output.read().decode("utf-8", "replace")


def ending(code, timeout_s):
    if code is None:
        return f"did not end within {timeout_s:.0f} s"
    if code < 0:
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"
    return f"ended with code {code}"


def read_catch2_report(path):
    """Returns [(name, success or None, detail)] of a Catch2 XML report, which may be cut short."""
    parser = ElementTree.XMLPullParser(events=("start", "end"))
    cases, name, success, detail, text = [], None, None, [], ""
    try:
        parser.feed(path.read_bytes())
    except (ElementTree.ParseError, FileNotFoundError):
        pass
    try:
        for event, element in parser.read_events():
            tag = element.tag
            if tag == "TestCase" and event == "start":
                name, success, detail = element.get("name"), None, []
            elif event == "start" or name is None:
                continue
            elif tag == "Expression" and element.get("success") == "false":
                original = (element.findtext("Original") or "").strip()
                expanded = (element.findtext("Expanded") or "").strip()
                thrown = (element.findtext("Exception") or "").strip()
                detail.append(f"{element.get('filename')}:{element.get('line')}: {element.get('type')}({original})\n"
                              f"  is {expanded}" + (f"\n  threw {thrown}" if thrown else ""))
            elif tag in ("Exception", "Failure", "FatalErrorCondition") and element.get("filename"):
                text = (element.text or "").strip()
                detail.append(f"{element.get('filename')}:{element.get('line')}: {tag}: {text}")
            elif tag in ("Info", "Warning"):
                detail.append(f"{tag.lower()}: {(element.text or '').strip()}")
            elif tag == "OverallResult":
                success = element.get("success") == "true"
            elif tag == "TestCase":
                cases.append((name, success, "\n".join(detail)))
                name = None
    except ElementTree.ParseError:
        pass
    if name is not None:
        cases.append((name, None, "\n".join(detail)))
    return cases


def catch2_names(group):
    """Returns the names of a Catch2 program's cases."""
    _, output = run_command(group, ["--list-test-names-only"])
    return output.splitlines()


def catch2_filter(group, selection):
    """Returns the test specification that selects one case by its whole name, or else by the given Catch2 pattern."""
    return re.sub(r'([\\,\["~])', r"\\\1", selection) if selection in catch2_names(group) else selection


def run_catch2(group, selection, folder):
    report = Path(folder) / f"{group.name}.xml"
    chosen = [catch2_filter(group, selection)] if selection else []
    code, output = run_command(group, ["-r", "xml", "-o", str(report)] + chosen)
    skips = [line[len("[skipped] "):] for line in output.splitlines() if line.startswith("[skipped] ")]
    output = "\n".join(line for line in output.splitlines() if not line.startswith("[skipped] "))
    cases = read_catch2_report(report)
    for name, success, detail in cases:
        reasons = [skip[len(name) + 2:] for skip in skips if skip.startswith(name + ": ")]
        if success is None:
            group.cases.append(Case(name, "failed", f"the program {ending(code, group.timeout_s)} in this case\n"
                                    f"{detail}\n{tail(output)}".strip()))
        elif not success:
            group.cases.append(Case(name, "failed", f"{detail}\n{tail(output)}".strip()))
        elif reasons:
            group.cases.append(Case(name, "skipped", reasons[0]))
        else:
            group.cases.append(Case(name, "passed"))
    if code != 0 and not group.count("failed"):
        group.cases.append(Case("(program)", "failed", f"{ending(code, group.timeout_s)}\n{tail(output)}"))
    if not cases and code == 0 and not selection:
        group.cases.append(Case("(program)", "failed", f"reported no test case\n{tail(output)}"))


def run_plain(group):
    code, output = run_command(group, [])
    passed = code == 0
    group.cases.append(Case(group.name, "passed" if passed else "failed",
                            "" if passed else f"{ending(code, group.timeout_s)}\n{tail(output)}"))


def run_tap(group):
    """Reads the Test Anything Protocol: "ok 1 - NAME", "not ok 2 - NAME", "ok 3 - NAME # SKIP reason", "# detail"."""
    code, output = run_command(group, [])
    for line in output.splitlines():
        match = re.match(r"(not )?ok \d+ - (.*?)(?: # SKIP (.*))?$", line)
        if match:
            failed, name, reason = match.groups()
            group.cases.append(Case(name, "failed" if failed else "skipped" if reason else "passed", reason or ""))
        elif line.startswith("# ") and group.cases:
            group.cases[-1].detail += line[2:] + "\n"
    if not group.cases or (code != 0 and not group.count("failed")):
        group.cases.append(Case("(program)", "failed", f"{ending(code, group.timeout_s)}\n{tail(output)}"))


def run_gpu(group):
    """Reads the table of tests/gpu/run, or its line "skipped: reason"."""
    code, output = run_command(group, [])
    if output.startswith("skipped: "):
        group.cases.append(Case("(all)", "skipped", output.splitlines()[0][len("skipped: "):]))
        return
    for name, outcome, detail in re.findall(r"^(.{40})(passed|skipped|FAILED) +[\d.]+ s(.*)$", output, re.MULTILINE):
        group.cases.append(Case(name.strip(), outcome.lower(), detail.strip()))
    if not group.cases or (code != 0 and not group.count("failed")):
        group.cases.append(Case("(program)", "failed", f"{ending(code, group.timeout_s)}\n{tail(output)}"))


def pytest_selection(selection):
    """Returns pytest's arguments for one case, "FILE::CASE", or for an expression of -k."""
    file, separator, case = selection.partition("::")
    if separator:
        return [str(ROOT / "tests/e2e" / f"{file}.py") + f"::{case}"]
    return [str(ROOT / "tests/e2e")] + (["-k", selection] if selection else [])


def run_pytest(group, selection, folder):
    report = Path(folder) / f"{group.name}.xml"
    code, output = run_command(group, ["--junitxml", str(report)] + pytest_selection(selection))
    try:
        cases = list(ElementTree.parse(report).iter("testcase"))
    except (ElementTree.ParseError, FileNotFoundError):
        cases = []
    if selection and code == 5:  # nothing was selected; skipped files are reported all the same
        return
    for case in cases:
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        problem = next((child for child in case if child.tag in ("failure", "error")), None)
        skip = case.find("skipped")
        if problem is not None:
            group.cases.append(Case(name, "failed", tail(problem.text or problem.get("message") or "")))
        elif skip is not None:
            group.cases.append(Case(name, "skipped", skip.get("message") or ""))
        else:
            group.cases.append(Case(name, "passed"))
    nothing_selected = selection and not cases and code == 4 and "::" in selection  # pytest's code
    if not nothing_selected and (not cases or (code != 0 and not group.count("failed"))):
        group.cases.append(Case("(program)", "failed", f"{ending(code, group.timeout_s)}\n{tail(output)}"))


def introspect(arguments, what):
    done = subprocess.run(["meson", "introspect", what, str(arguments.build_dir)], check=True, text=True,
                          stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def find_groups(arguments):
    environment = {"MILLRACE_BUILD_DIR": str(arguments.build_dir)}
    if arguments.sanitized:
        for name, options in SANITIZER_OPTIONS.items():
            environment[name] = os.environ.get(name, f"{options}:external_symbolizer_path={SYMBOLIZER}")
    if arguments.effort_percent is not None:
        environment["MILLRACE_TEST_EFFORT"] = str(arguments.effort_percent)
    factor = SANITIZER_FACTOR if arguments.sanitized else 1
    groups = []
    for test in introspect(arguments, "--tests"):
        kind = "plain" if any(suite.endswith("plain") for suite in test["suite"]) else "catch2"
        timeout_s = max(arguments.timeout_s, test["timeout"]) * factor
        groups.append(Group(test["name"], test["cmd"], kind, {**environment, **test["env"]}, timeout_s, test["priority"]))
    if not any(group.name == "cuda_ops" for group in groups):
        reason = "the headers of the CUDA toolkit or Boost.Context are not installed"
        groups.append(Group("cuda", [reason], "absent", {}, 0))
    if any(target["name"] == "millrace_cuda" for target in introspect(arguments, "--targets")):
        groups.append(Group("gpu", [sys.executable, str(ROOT / "tests/gpu/run"), str(arguments.build_dir)], "gpu", {},
                            4 * arguments.timeout_s))
    else:
        groups.append(Group("gpu", ["the build has no millrace_cuda.so: nvcc was not found"], "absent", {}, 0))
    groups.append(Group("tidy", [sys.executable, str(ROOT / "tests/tidy/tidy.py")], "tap", {}, arguments.timeout_s))
    python = str(ROOT / ".venv/bin/python")
    # Files go to processes whole, since the tests of a file share servers.
    workers = ["-n", str(arguments.jobs), "--dist", "loadfile", "--no-loadscope-reorder"] if arguments.jobs > 1 else []
    groups.append(Group("e2e", [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *workers],
                        "pytest", environment, 3 * arguments.timeout_s * factor))
    return groups


def list_cases(group, selection):
    """Returns the names of a group's chosen cases, without running them if that is possible."""
    if group.kind == "catch2":
        chosen = [catch2_filter(group, selection)] if selection else []
        return run_command(group, ["--list-test-names-only"] + chosen)[1].splitlines()
    if group.kind == "pytest":
        code, output = run_command(group, ["--collect-only"] + pytest_selection(selection))
        if code != 0:
            print(f"{group.name}: {tail(output)}", file=sys.stderr)
        return [file + case for file, case in re.findall(r"^(?:.*/)?(\w+)\.py(::.*)$", output, re.MULTILINE)]
    if group.kind == "tap":
        run_tap(group)
        return [case.name for case in keep_selected(group.cases, selection)]
    return [group.name] if group.kind == "plain" else []


def keep_selected(cases, selection):
    """Returns the cases that a selection names, for groups that always run whole."""
    return [case for case in cases if not selection or selection == case.name or fnmatch.fnmatch(case.name, selection)
            or case.name == "(program)"]


def select(groups, filters):
    """Returns [(group, selection within it)], with every group when there is no filter. A filter that is a group's whole
    name selects that group alone."""
    if not filters:
        return [(group, "") for group in groups]
    names = {group.name for group in groups}
    chosen = []
    for group in groups:
        for text in filters:
            name, _, selection = text.partition("/")
            if name == group.name or (name in group.name and name not in names):
                chosen.append((group, selection))
                break
    return chosen


def targets_of(chosen, arguments):
    if any(group.kind in ("gpu", "pytest") for group, _ in chosen):
        return ["all"]
    programs = [Path(group.command[0]) for group, _ in chosen if group.kind not in ("tap", "absent")]
    return [str(program.relative_to(arguments.build_dir)) for program in programs]


def run_group(group, selection, folder, arguments):
    start = time.monotonic()
    if group.kind == "pytest" and arguments.no_e2e:
        group.cases.append(Case("(all)", "skipped", arguments.no_e2e))
    elif group.kind == "absent":
        group.cases.append(Case("(all)", "skipped", group.command[0]))
    elif not Path(group.command[0]).exists():
        group.cases.append(Case("(program)", "failed", f"{group.command[0]} is not built"))
    elif group.kind == "catch2":
        run_catch2(group, selection, folder)
    elif group.kind == "plain":
        run_plain(group)
    elif group.kind == "tap":
        run_tap(group)
    elif group.kind == "gpu":
        run_gpu(group)
    else:
        run_pytest(group, selection, folder)
    if group.kind in ("plain", "tap", "gpu"):
        group.cases = keep_selected(group.cases, selection)
    group.wall_s = time.monotonic() - start
    failed, skipped = group.count("failed"), group.count("skipped")
    print(f"{group.name:<16}{group.count('passed'):>6} passed"
          + (f", {failed} failed" if failed else "") + (f", {skipped} skipped" if skipped else "")
          + f"  ({group.wall_s:.1f} s)", flush=True)


def print_report(groups):
    for group in groups:
        for case in group.cases:
            if case.outcome == "failed":
                print(f"\nFAILED {group.name}: {case.name}\n{case.detail}")
    skipped = [(group, case) for group in groups for case in group.cases if case.outcome == "skipped"]
    if skipped:
        print("\nSkipped:")
        for group, case in skipped:
            print(f"  {group.name}: {case.name}: {case.detail}")
    totals = [sum(group.count(outcome) for group in groups) for outcome in ("passed", "failed", "skipped")]
    print("\n{} passed, {} failed, {} skipped".format(*totals))
    return totals


def positive(text):
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"found '{text}', wanted a whole number above 0")
    return int(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build-dir", type=Path, required=True)
    parser.add_argument("--filter", action="append", default=[])
    parser.add_argument("--jobs", type=positive, default=2)
    parser.add_argument("--timeout-s", type=float, default=1200.0)
    parser.add_argument("--sanitized", action="store_true")
    parser.add_argument("--effort-percent", type=int, help="how many of their random repetitions tests make")
    parser.add_argument("--no-e2e", default="")
    parser.add_argument("--list", action="store_true", help="print the chosen groups")
    parser.add_argument("--list-cases", action="store_true", help="print the chosen cases, as --filter takes them")
    parser.add_argument("--targets", action="store_true", help="print what ninja must build for the chosen groups")
    arguments = parser.parse_args()
    chosen = select(find_groups(arguments), arguments.filter)
    if arguments.targets:
        for target in targets_of(chosen, arguments):
            print(target)
        return 0
    if arguments.list:
        print("\n".join(group.name for group, _ in chosen))
        return 0
    if arguments.list_cases:
        for group, selection in chosen:
            for case in list_cases(group, selection):
                print(f"{group.name}/{case}")
        return 0
    if not chosen:
        print(f"no test group matches {arguments.filter}")
        print("\n0 passed, 0 failed, 0 skipped")
        return 1
    run_groups(chosen, arguments)
    counts = print_report([group for group, _ in chosen])
    if not any(counts):
        print(f"no test case matches {arguments.filter}", file=sys.stderr)
    return 1 if counts[1] or not any(counts) else 0


def run_groups(chosen, arguments):
    with tempfile.TemporaryDirectory() as folder:
        # The end-to-end tests load every core by themselves and run last, alone. A long program that starts last would run
        # alone too.
        early = sorted((pair for pair in chosen if pair[0].kind != "pytest"), key=lambda pair: -pair[0].priority)
        with concurrent.futures.ThreadPoolExecutor(max_workers=arguments.jobs) as pool:
            waiting = [pool.submit(run_group, *pair, folder, arguments) for pair in early]
            try:
                for done in waiting:
                    done.result()
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                for process_group in list(running):
                    end_processes(process_group)
                raise
        for pair in chosen:
            if pair[0].kind == "pytest":
                run_group(*pair, folder, arguments)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        for leftover in list(running):
            end_processes(leftover)
        sys.exit(130)
