"""Tests the environments of launchers and the files of examples/."""

import os
import re
import shutil
import signal
import subprocess
import threading

import pytest
import yaml
from millrace_ring import free_port
from millrace_server import BINARY, LISTENING, MODEL, PATIENCE_S, ROOT, MillraceServer, run_binary, wait_until
from prompts import PROMPT

EXAMPLES = ROOT / "examples"
GREEDY = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0}
#: Maps a launcher to what it sets for a rank and whether it names the head. None stands for the port of the head.
ENVIRONMENTS = {
    "torchrun": lambda rank, port: {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
    "slurm": lambda rank, port: {"SLURM_PROCID": rank, "SLURM_NTASKS": 2, "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"},
    "openmpi": lambda rank, port: {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": 2},
    "leaderworkerset": lambda rank, port: {"LWS_WORKER_INDEX": rank, "LWS_GROUP_SIZE": 2,
                                           "LWS_LEADER_ADDRESS": "localhost"},
}


def env_command(values):
    return ["env", *(f"{name}={value}" for name, value in values.items())]


def text_of(server):
    answer = server.post("/v1/completions", GREEDY)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


@pytest.mark.parametrize("launcher", ENVIRONMENTS)
def test_a_ring_finds_its_ranks_in_the_environment(launcher, pp1):
    port = free_port()
    # A launcher without a port, or with another address than the flag, leaves both to the flag.
    flags = [] if launcher == "torchrun" else ["--dist-init-addr", f"127.0.0.1:{port}"]
    environment = ENVIRONMENTS[launcher]
    worker = subprocess.Popen([*env_command(environment(1, port)), str(BINARY), "serve", "--model-path", str(MODEL),
                               "--threads", "1", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with MillraceServer("--pp-size", 2, "--threads", 1, *flags, prefix=env_command(environment(0, port))) as server:
            assert text_of(server) == text_of(pp1)
            assert "node 1 of 2 (stages 1 to 1) has connected" in server.log()
    finally:
        worker.kill()
        worker.wait()


def commands_of(path):
    """Returns the words after 'millrace serve' in the commands of an example."""
    text = re.sub(r"\\\n", " ", path.read_text())
    text = re.sub(r"command: \[(.*)\]", lambda found: found.group(1).replace(",", " "), text)
    return re.findall(r"millrace\}?\"? +serve +(.*)", text)


@pytest.mark.parametrize("name, count", [("torchrun.sh", 1), ("slurm.sbatch", 1), ("openmpi.sh", 1),
                                         ("leaderworkerset.yaml", 2)])
def test_examples_use_flags_that_exist(name, count):
    known = set(re.findall(r"--[a-z][a-z-]+", run_binary("serve", "--help").stdout))
    commands = commands_of(EXAMPLES / name)
    assert len(commands) == count
    for command in commands:
        flags = re.findall(r"--[a-z][a-z-]+", command)
        assert "--model-path" in flags
        assert set(flags) <= known, command
    if not name.endswith(".yaml"):
        assert subprocess.run(["bash", "-n", str(EXAMPLES / name)]).returncode == 0


def test_the_services_of_a_leaderworkerset_are_distinct():
    workers, service = yaml.safe_load_all((EXAMPLES / "leaderworkerset.yaml").read_text())
    # The controller creates a headless service with the name of the set, unless there is one.
    name = workers["metadata"]["name"]
    assert service["metadata"]["name"] != name
    template = workers["spec"]["leaderWorkerTemplate"]
    labels = {"leaderworkerset.sigs.k8s.io/name": name, **template["leaderTemplate"]["metadata"]["labels"]}
    assert service["spec"]["selector"].items() <= labels.items()
    drain_s = float(re.search(r"--drain-timeout [^\]]*default (\d+)", run_binary("serve", "--help").stdout)[1])
    for pod in (template["leaderTemplate"], template["workerTemplate"]):
        assert pod["spec"]["terminationGracePeriodSeconds"] > drain_s


def mpirun_arguments(folder, *arguments):
    """Returns the flags of the mpirun that an example calls."""
    program = folder / "mpirun"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    done = subprocess.run([str(EXAMPLES / "openmpi.sh"), *arguments], capture_output=True, text=True, timeout=PATIENCE_S,
                          env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_open_mpis_hosts_may_have_slots(tmp_path):
    arguments = mpirun_arguments(tmp_path, "a:2,b:2", "--host", "0.0.0.0")
    assert arguments[arguments.index("--dist-init-addr") + 1] == "a:30100"
    assert arguments[arguments.index("--host") + 1] == "a:2,b:2"


def test_open_mpi_divides_stages_into_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("PP", "2")
    monkeypatch.setenv("TP", "2")
    arguments = mpirun_arguments(tmp_path, "a,b,c,d")
    assert arguments[arguments.index("-np") + 1] == "4"
    assert arguments[arguments.index("--pp-size") + 1] == "2"
    assert arguments[arguments.index("--tp-size") + 1] == "2"


def test_slurm_hands_flags_on(tmp_path):
    (tmp_path / "srun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_CPUS_PER_TASK": "2",
                   "SLURM_SUBMIT_DIR": ".", "SLURM_NTASKS": "2"}
    done = subprocess.run(["bash", EXAMPLES / "slurm.sbatch", "--max-queued-requests", "7"], env=environment,
                          capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.splitlines()[-2:] == ["--max-queued-requests", "7"], done.stderr


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed")
def test_two_ranks_under_open_mpi(pp1):
    environment = {**os.environ, "MILLRACE": str(BINARY), "MODEL": str(MODEL), "RING_PORT": str(free_port()),
                   "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    process = subprocess.Popen([str(EXAMPLES / "openmpi.sh"), "localhost,localhost", "--threads", "1", "--port", "0"],
                               env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               start_new_session=True)
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")), daemon=True)
    reader.start()
    try:
        server = MillraceServer()
        wait_until(lambda: LISTENING.search("".join(lines)) or process.poll() is not None, "the line 'listening on'")
        assert process.poll() is None, "".join(lines)
        server.url = LISTENING.search("".join(lines)).group(1)
        wait_until(lambda: server.get("/health").status_code == 200, "readiness")
        assert text_of(server) == text_of(pp1)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=PATIENCE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join()
