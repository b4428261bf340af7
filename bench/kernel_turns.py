#!/usr/bin/env python3
"""Kernels of the CPU backend as they are here against those of other revisions, in turns of milliseconds in one process.

Builds src/cpu/kernels.cc of each revision for one instruction set, with the flags of the build folder, and runs
bench/kernel_turns over them: GFLOP/s of one thread and the ratio to the first; whose turn it is when is drawn. The revisions must share the kernels'
table (src/cpu/kernels.h); what differs there cannot be compared."""

import argparse
import json
import shlex
import subprocess
import tempfile
from pathlib import Path

import machine_load
from runs import add_seed, draw_seed, positive

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src/cpu", "src/tensor", "src/base", "src/model")  # that kernels.cc may include from


def compile_command(build, isa):
    """The build folder's own for the kernels of this set, without what names its files."""
    wanted = f"libcpu_{isa}.a.p/"
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if wanted in entry["output"]:
            return [word for word in shlex.split(entry["command"]) if not word.startswith(("-I", "-MD", "-MQ", "-MF"))
                    and not word.endswith((".o", ".o.d", ".cc", ".cpp")) and word not in ("-o", "-c")]
    raise SystemExit(f"kernel_turns: {build} does not build kernels for '{isa}'")


def source_of(revision, folder):
    """The sources of a revision, or of a working tree."""
    if Path(revision).is_dir():
        return Path(revision).resolve()
    archive = subprocess.run(["git", "-C", ROOT, "archive", revision, "--", *FOLDERS], check=True, capture_output=True)
    target = folder / revision.replace("/", "_")
    if target.exists():
        return target
    target.mkdir()
    subprocess.run(["tar", "-x", "-C", target], input=archive.stdout, check=True)
    return target


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revisions", nargs="+", help="of git, or folders of working trees; the first one is compared with")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="build folder")
    parser.add_argument("--isa", default="avx2", help="instruction set, as --cpu-isa of serve has it")
    parser.add_argument("--runs", type=positive, default=15)
    parser.add_argument("--memory", type=positive, default=256,
                        help="MiB that weights, keys and values are read from: more than the last cache to measure memory")
    parser.add_argument("--kinds", default="bf16,w8,w8a8,attention", help="what to compare; w8a8_int8, fp8, w4, q4_k and q6_k too")
    parser.add_argument("--rows", default="1,2,3,4,8,16,32,64,128,512", help="rows of the products")
    add_seed(parser)
    options = parser.parse_args()
    command = compile_command(options.build, options.isa)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        objects = []
        for number, revision in enumerate(options.revisions):
            source = source_of(revision, folder) / "src"
            name = Path(revision).resolve().name if Path(revision).is_dir() else revision.replace("/", "_")
            again = f"-{number}" if revision in options.revisions[:number] else ""  # it against itself, as a control
            objects.append(folder / f"{name}{again}.so")
            # What a set does not use depends on its flags, which are those of this build.
            subprocess.run([*command, "-Wno-unused-function", f"-I{source}", "-shared", "-o", objects[-1],
                            source / "cpu" / "kernels.cc"], check=True)
        machine_load.print_load_at_exit()
        draw_seed(options)
        subprocess.run([options.build / "bench" / "kernel_turns", "--isa", options.isa, "--runs", str(options.runs),
                        "--seed", str(options.seed), "--memory", str(options.memory), "--kinds", options.kinds,
                        "--rows", options.rows, *objects], check=True)


if __name__ == "__main__":
    main()
