"""Tests rings on an emulated GPU that share experts."""

import signal

import pytest
from millrace_server import MillraceServer
from ring_process import DividedServer
from test_devices import EMULATED, FAKE_NCCL, GPU, completion, serve
from test_rings import ids_answer, mixture, wait_for_all_rings  # noqa: F401 (a fixture)
from test_rings_elsewhere import RingsOverNodes

pytestmark = pytest.mark.skipif(not EMULATED.exists(), reason="the CUDA toolkit's headers are not installed")


def answers_of(server, ring):
    return [ids_answer(server, number, routed_dp_rank=ring) for number in range(2)]


def test_rings_on_gpus_share_experts(mixture):  # noqa: F811
    with serve(*GPU, model=mixture) as server:
        wanted = answers_of(server, 0)
    layouts = [(["--pp-size", 2, "--tp-size", 2], 1)]
    if FAKE_NCCL.exists():
        layouts.append((["--tp-size", 2], 4))
    for flags, gpus in layouts:
        with serve(*GPU, "--dp-size", 2, "--enable-ep", *flags, gpus=gpus, model=mixture,
                   environment=[f"MILLRACE_NCCL_LIBRARY={FAKE_NCCL}"]) as server:
            wait_for_all_rings(server)
            assert server.log().count("decode steps run without CUDA graphs") == 1
            for ring in (0, 1):
                assert answers_of(server, ring) == wanted
                assert server.metric("millrace:decode_steps_total", ring=ring, stage=0, rank=0, graph="off") > 0
                assert server.metric("millrace:expert_steps_total", ring=ring, rows="none") > 0


def test_processes_on_gpus_share_experts(mixture, monkeypatch):  # noqa: F811
    monkeypatch.setenv("MILLRACE_CUDA_MODULE", str(EMULATED))
    with MillraceServer(*GPU, "--max-total-tokens", 16384, model=mixture) as server:
        wanted = answers_of(server, 0)
    with DividedServer(*GPU, "--max-total-tokens", 16384, "--enable-ep", model=mixture) as server:
        for ring in (0, 1):
            assert answers_of(server, ring) == wanted


def test_rings_over_nodes_on_gpus_share_experts(mixture, monkeypatch):  # noqa: F811
    monkeypatch.setenv("MILLRACE_CUDA_MODULE", str(EMULATED))
    flags = ("--max-total-tokens", 16384, "--pp-size", 2)
    with MillraceServer(*GPU, *flags, model=mixture) as server:
        wanted = answers_of(server, 0)
    with RingsOverNodes(mixture, *flags, device=GPU) as rings:
        for ring in (0, 1):
            assert answers_of(rings.server, ring) == wanted
        rings.workers[1].signal(signal.SIGKILL)
        rings.workers[1].wait()
        rings.start_worker(1)
        rings.server.wait_for_all_rings()
        for ring in (0, 1):
            assert answers_of(rings.server, ring) == wanted


def test_a_failing_gpu_ends_rings_that_share_experts(mixture):  # noqa: F811
    """A call of either ring fails while decode steps run. Both rings end and come back."""
    with serve(*GPU, "--dp-size", 2, "--enable-ep", "--disable-radix-cache", model=mixture,
               environment=["MILLRACE_EMULATED_FAILING_CALL=40000"]) as server:
        wait_for_all_rings(server)
        body = {"prompt": [5, 9, 300, 17], "max_tokens": 20, "temperature": 0, "logprobs": 2, "ignore_eos": True}
        answers = [server.post("/v1/completions", body)]
        while answers[-1].status_code == 200 and len(answers) < 200:
            answers.append(server.post("/v1/completions", body))
        assert answers[-1].status_code == 503, answers[-1].text
        served = [answer.json()["choices"][0] for answer in answers[:-1]]
        assert served and served == served[:1] * len(served)
        wait_for_all_rings(server)
        for ring in (0, 1):
            assert server.metric("millrace:ring_epochs_total", ring=ring) == 2
            assert completion(server, {**body, "routed_dp_rank": ring}) == served[0]
