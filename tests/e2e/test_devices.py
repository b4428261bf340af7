"""Tests the choice of devices, and the server with the CUDA module on an emulated GPU."""

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from millrace_ring import Ring
from millrace_server import BINARY, BUILD, MODEL, PATIENCE_S, ROOT, MillraceServer, wait_until
from prompts import PROMPT

#: The CUDA backend over a fake runtime with plain loops as kernels.
EMULATED = BUILD / "tests/cuda_backend/millrace_cuda_plain.so"
REAL = BUILD / "millrace_cuda.so"
FAKE_NCCL = BUILD / "tests/cuda_backend/nccl_fake.so"
GPU = ["--device", "cuda"]
needs_nccl = pytest.mark.skipif(not FAKE_NCCL.exists(), reason="nccl.h is not installed")
GREEDY = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "logprobs": 2}
PROMPTS_OF_FIVE_PAGES = [{**GREEDY, "prompt": [start + i % 300 for i in range(330)]} for start in (7, 9)]

pytestmark = pytest.mark.skipif(not EMULATED.exists(), reason="the CUDA toolkit's headers are not installed")


def run(*arguments, **environment):
    return subprocess.run([str(BINARY), *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S,
                          env={**os.environ, **{name: str(value) for name, value in environment.items()}})


def serve(*flags, gpus=1, tokens=16384, environment=(), model=MODEL):
    prefix = ["env", f"MILLRACE_CUDA_MODULE={EMULATED}", f"MILLRACE_EMULATED_GPUS={gpus}", *environment]
    return MillraceServer("--max-total-tokens", tokens, *flags, prefix=prefix, model=model)


def has_driver():
    return subprocess.run(["sh", "-c", "ldconfig -p | grep -q libcuda.so.1"], check=False).returncode == 0


def completion(server, body=GREEDY):
    response = server.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


@pytest.fixture(scope="module")
def wanted():
    """Returns what one GPU answers."""
    with serve(*GPU) as server:
        return completion(server)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """Returns a small mixture of experts, with the tokenizer of another model."""
    model = tmp_path_factory.mktemp("mixture") / "mixture"
    shutil.copytree(ROOT / "tests/golden/qwen3moe", model)
    for tokenizer in MODEL.glob("tokenizer*"):
        shutil.copy(tokenizer, model)
    return model


def test_devices_lists_the_processor_and_every_gpu():
    listed = run("devices", MILLRACE_CUDA_MODULE=EMULATED, MILLRACE_EMULATED_GPUS=2)
    assert listed.returncode == 0, listed.stderr
    cpu, *gpus = listed.stdout.splitlines()
    assert cpu.startswith("cpu ") and "portable" in cpu and "memory available" in cpu
    assert [line.split(";")[0] for line in gpus] == [f"cuda {i}  Emulated GPU, sm_90, 4 SMs" for i in (0, 1)]


def test_a_gpu_in_exclusive_use_keeps_the_others_listed():
    listed = run("devices", MILLRACE_CUDA_MODULE=EMULATED, MILLRACE_EMULATED_GPUS=3, MILLRACE_EMULATED_BUSY_GPU=1)
    assert listed.returncode == 0, listed.stderr
    first, busy, last = listed.stdout.splitlines()[1:]
    assert "memory free" in first and "memory free" in last
    assert busy.startswith("cuda 1  Emulated GPU") and "of no use now: CUDA: cudaSetDevice: CUDA-capable" in busy


def test_a_gpu_serves_a_mixture_of_experts_on_stages_and_ranks(mixture):
    body = {"prompt": [5, 9, 300, 17], "max_tokens": 20, "temperature": 0, "logprobs": 2, "ignore_eos": True}
    answers = []
    for flags in ([], ["--disable-cuda-graph"], ["--pp-size", 2, "--pp-layer-partition", "auto"],
                  ["--tp-size", 2, "--pp-size", 2, "--pp-layer-partition", "auto"]):
        with serve(*GPU, *flags, model=mixture) as server:
            answers.append(completion(server, body))
    assert answers[0]["text"] and answers[1:] == answers[:1] * 3


@pytest.mark.parametrize("module,gpus,reason", [
    ("/nowhere/at_all.so", 1, "no CUDA module: /nowhere/at_all.so does not exist"),
    (__file__, 1, "the CUDA module does not load: "),
    (EMULATED, 0, "no CUDA driver"),
])
def test_without_a_gpu_the_reason_is_logged(module, gpus, reason):
    environment = {"MILLRACE_CUDA_MODULE": module, "MILLRACE_EMULATED_GPUS": gpus}
    refused = run("serve", "--model-path", MODEL, "--port", 0, "--device", "cuda", **environment)
    assert refused.returncode == 1
    assert f"--device cuda: {reason}" in refused.stderr
    assert f"cuda    none: {reason}" in run("devices", **environment).stdout


def test_an_old_driver_is_named_with_the_wanted_version():
    refused = run("serve", "--model-path", MODEL, "--port", 0, "--device", "cuda", MILLRACE_CUDA_MODULE=EMULATED,
                  MILLRACE_EMULATED_DRIVER=11080)
    assert refused.returncode == 1
    assert re.search(r"--device cuda: the CUDA driver is for CUDA 11\.8, wanted 1[2-9]\.0 or later", refused.stderr)


@pytest.mark.skipif(not REAL.exists() or has_driver(), reason="there is no module, or there is a driver")
def test_the_real_module_loads_without_a_driver():
    listed = run("devices", MILLRACE_CUDA_MODULE=REAL)
    assert "cuda    none: no CUDA driver\n" in listed.stdout


def test_auto_says_what_it_takes_and_why():
    with serve("--device", "auto") as server:
        assert "--device auto: cuda (1 of Emulated GPU, sm_90, 4 SMs)" in server.log()
        assert server.get("/server_info").json()["nodes"][0]["compute"] == "bf16 cuda sm_90 wgmma fp8"
    with serve("--device", "auto", gpus=0) as server:
        assert "--device auto: cpu (no CUDA driver)" in server.log()


def test_a_gpu_computes_in_bf16():
    with serve("--device", "auto", "--dtype", "f32") as server:
        assert "--device auto: cpu (--dtype f32)" in server.log()
    refused = run("serve", "--model-path", MODEL, "--port", 0, "--device", "cuda", "--dtype", "f32",
                  MILLRACE_CUDA_MODULE=EMULATED)
    assert refused.returncode == 1 and "--dtype f32: a GPU computes in bf16" in refused.stderr


def test_the_gemm_kernels_are_chosen_at_start_and_logged():
    with serve("--device", "cuda") as server:
        wanted = completion(server)
        assert ", wgmma" in server.log()
    with serve("--device", "cuda", "--cuda-products", "mma") as server:
        assert completion(server) == wanted  # the fake computes both as plain sums
        assert server.get("/server_info").json()["nodes"][0]["compute"] == "bf16 cuda sm_90 mma"
    with serve("--device", "cuda", environment=["MILLRACE_EMULATED_WGMMA=wrong"]) as server:
        assert re.search(r"warning +device 0: wgmma fails its self-test, GEMMs use mma instead: a sum of \d+ "
                         r"products is \S+, by mma \S+", server.log())
        assert completion(server) == wanted
    refused = run("serve", "--model-path", MODEL, "--port", 0, "--device", "cuda", "--cuda-products", "wgmma",
                  MILLRACE_CUDA_MODULE=EMULATED, MILLRACE_EMULATED_WGMMA="absent")
    assert refused.returncode == 1
    assert "--cuda-products wgmma: device 0 is Emulated GPU, sm_90, 4 SMs, wanted sm_90, and kernels" in refused.stderr


@pytest.mark.parametrize("flags, gpus", [(["--disable-cuda-graph"], 1), (["--pp-size", 4], 2)])
def test_the_answer_does_not_depend_on_stages_gpus_or_graphs(wanted, flags, gpus):
    with serve(*GPU, *flags, gpus=gpus) as server:
        assert wanted["text"] and completion(server) == wanted


def test_a_gpu_without_graphs_answers_equally_and_logs_why(wanted):
    def steps(server, graph):
        return server.metric("millrace:decode_steps_total", stage=0, graph=graph)

    with serve("--device", "cuda") as server:
        assert completion(server) == wanted
        assert steps(server, "replayed") > 0 and steps(server, "new") > 0 and steps(server, "failed") == 0
        server.terminate()
        assert server.wait() == 0
    assert re.search(r"stage 0: decode steps by what became of their graphs: replayed \d+, new \d+", server.log())
    with serve("--device", "cuda", environment=["MILLRACE_EMULATED_REFUSED_GRAPHS=1"]) as server:
        assert completion(server) == wanted
        assert steps(server, "replayed") == 0 and steps(server, "failed") > 0
        assert re.search(r"device 0: decode steps of up to \d+ rows and \d+ tokens of all contexts run without a graph: "
                         r"CUDA: cudaStreamBeginCapture: operation not supported", server.log())


def test_stages_on_parts_of_a_gpu_answer_equally(wanted):
    with serve("--device", "cuda", "--divide-gpu", "--pp-size", 4, gpus=2) as server:
        assert completion(server) == wanted
        for stage, part in enumerate((1, 1, 2, 2)):
            assert re.search(rf"stage {stage}: .* 4 SMs, wgmma, part {part} of 2, 2 SMs", server.log())


SHARED = "copies on the device, without graphs: "


@pytest.mark.parametrize("flags,gpus,exchange", [
    (["--tp-size", 2], 1, SHARED + "2 ranks of a stage share 1 GPU"),
    (["--tp-size", 4, "--divide-gpu"], 1, SHARED + "4 ranks of a stage share 1 GPU"),
    (["--tp-size", 4], 2, SHARED + "4 ranks of a stage share 2 GPUs"),
    (["--tp-size", 2, "--pp-size", 2], 1, SHARED + "2 ranks of a stage share 1 GPU"),
    (["--tp-size", 2, "--nccl", "off"], 2, SHARED + "--nccl off"),
    pytest.param(["--tp-size", 2], 2, "NCCL 2.", marks=needs_nccl),
    pytest.param(["--tp-size", 2, "--pp-size", 2, "--nccl", "on"], 4, "NCCL 2.", marks=needs_nccl),
])
def test_ranks_on_gpus_answer_as_one(wanted, flags, gpus, exchange):
    with serve(*GPU, *flags, gpus=gpus, environment=[f"MILLRACE_NCCL_LIBRARY={FAKE_NCCL}"]) as server:
        assert f"the ranks of a stage exchange by {exchange}" in server.log()
        assert completion(server) == wanted
        assert completion(server) == wanted
        by_copies = exchange.startswith("copies")
        for graph, counted in (("off", by_copies), ("replayed", not by_copies)):
            assert (server.metric("millrace:decode_steps_total", stage=0, rank=1, graph=graph) > 0) == counted
        if "--divide-gpu" in flags:
            assert re.search(r"stage 0 rank 3: .* part 4 of 4, 1 SMs", server.log())


def test_pages_of_ranks_on_a_gpu_return_from_the_host():
    first, other = PROMPTS_OF_FIVE_PAGES
    with serve(*GPU, "--enable-hierarchical-cache", "--tp-size", 2, tokens=512) as server:
        wanted = completion(server, first)
        completion(server, other)
        answer = server.post("/v1/completions", first).json()
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 256
        assert answer["choices"][0] == wanted


@pytest.mark.parametrize("gpus", [1, pytest.param(2, marks=needs_nccl)])
def test_a_failing_rank_ends_requests_and_the_ring_rebuilds(gpus):
    """A call of either rank fails while decode steps run. The other rank's results must not count."""
    body = {**GREEDY, "max_tokens": 20, "ignore_eos": True}
    environment = ["MILLRACE_EMULATED_FAILING_CALL=40000", f"MILLRACE_NCCL_LIBRARY={FAKE_NCCL}"]
    with serve(*GPU, "--disable-radix-cache", "--disable-cuda-graph", "--tp-size", 2, gpus=gpus,
               environment=environment) as server:
        answers = [server.post("/v1/completions", body)]
        while answers[-1].status_code == 200 and len(answers) < 100:
            answers.append(server.post("/v1/completions", body))
        assert answers[-1].status_code == 503, answers[-1].text
        assert "stage 0" in answers[-1].text
        served = [answer.json()["choices"][0] for answer in answers[:-1]]
        assert served and served == served[:1] * len(served)
        wait_until(lambda: server.get("/health").status_code == 200, "a new ring")
        assert completion(server, body) == served[0]


def test_ranks_that_cannot_exchange_as_wanted_are_refused():
    def refused(*flags, gpus=1):
        found = run("serve", "--model-path", MODEL, "--port", 0, *GPU, *flags, MILLRACE_CUDA_MODULE=EMULATED,
                    MILLRACE_EMULATED_GPUS=gpus, MILLRACE_NCCL_LIBRARY=FAKE_NCCL)
        assert found.returncode == 1
        return found.stderr

    assert "--nccl on: 2 ranks of a stage share 1 GPU, wanted NCCL and a GPU" in refused("--tp-size", 2, "--nccl", "on")
    nodes = ["--nnodes", 2, "--node-rank", 0, "--dist-init-addr", "127.0.0.1:1"]
    assert "--nnodes: --nccl off; ranks of a stage on several nodes" in refused("--tp-size", 2, "--nccl", "off", *nodes)
    assert "--nnodes: 2 ranks of a stage share 1 GPU; " in refused("--tp-size", 4, *nodes)
    assert "--nccl on: the activations of --tp-size 2" in refused("--tp-size", 2, "--pp-size", 2, "--nccl", "on", *nodes,
                                                                  gpus=2)


def test_without_green_contexts_stages_share_the_whole_gpu():
    with serve("--device", "cuda", "--divide-gpu", "--pp-size", 2,
               environment=["MILLRACE_EMULATED_DRIVER=12020"]) as server:
        assert completion(server)["text"]
        assert ("4 SMs, wgmma, not divided: the driver (CUDA 12.2) lacks cuDeviceGetDevResource, wanted a driver for "
                "CUDA 12.4 or later") in server.log()


def test_prefixes_go_to_the_host_tier_and_come_back():
    """The cache is too small for both prompts. Pages of the first one return from the host and give equal text."""
    first, other = PROMPTS_OF_FIVE_PAGES
    with serve("--device", "cuda", "--enable-hierarchical-cache", "--pp-size", 2, tokens=512) as server:
        wanted = completion(server, first)
        completion(server, other)
        answer = server.post("/v1/completions", first).json()
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 256
        assert answer["choices"][0] == wanted
        assert server.metric("millrace:kv_cache_host_hit_pages_total") > 0


@pytest.mark.parametrize("failing, flags", [
    ("MILLRACE_EMULATED_FAILING_CALL=12000", ["--disable-cuda-graph"]),
    ("MILLRACE_EMULATED_FAILING_CALL=12000", ["--disable-cuda-graph", "--pp-size", 2]),
    ("MILLRACE_EMULATED_FAILING_EVENT=400", ["--disable-cuda-graph"]),
    ("MILLRACE_EMULATED_FAILING_EVENT=400", ["--pp-size", 2]),
])
def test_a_device_failure_ends_requests_and_the_ring_rebuilds(failing, flags):
    """A call fails while decode steps run. That request ends with an error, and later ones are served. The calls
    exclude graph launches, since a step runs without its graph too."""
    with serve("--device", "cuda", "--disable-radix-cache", *flags, environment=[failing]) as server:
        body = {**GREEDY, "max_tokens": 20, "ignore_eos": True}
        answers = [server.post("/v1/completions", body)]
        while answers[-1].status_code == 200 and len(answers) < 100:
            answers.append(server.post("/v1/completions", body))
        assert answers[-1].status_code == 503, answers[-1].text
        wait_until(lambda: server.get("/health").status_code == 200, "a new ring")
        assert completion(server, body) == answers[0].json()["choices"][0]


@pytest.mark.parametrize("flags", [[], ["--pp-size", 2]])
def test_a_gpu_that_only_fails_ends_the_process(flags):
    """The fault is confined to its process, so a restarted process can use the GPU."""
    environment = ["MILLRACE_EMULATED_FAILING_EVENT=400", "MILLRACE_EMULATED_FAILURE_STICKS=1"]
    with serve("--device", "cuda", "--disable-radix-cache", *flags, environment=environment) as server:
        body = {**GREEDY, "max_tokens": 20, "ignore_eos": True}
        answers = [server.post("/v1/completions", body)]
        while answers[-1].status_code == 200 and len(answers) < 100:
            answers.append(server.post("/v1/completions", body))
        assert answers[-1].status_code == 503 and "illegal memory access" in answers[-1].text, answers[-1].text
        assert server.wait() == 1
        reason = "device 0 is lost to this process: an illegal memory access was encountered"
        assert re.search(rf"^millrace: {reason}", server.log(), re.MULTILINE)


@needs_nccl
def test_a_node_with_a_lost_gpu_ends_and_rejoins_later():
    body = {**GREEDY, "max_tokens": 20, "ignore_eos": True}
    environment = ["MILLRACE_EMULATED_FAILING_EVENT=1000", "MILLRACE_EMULATED_FAILURE_STICKS=1"]
    with GpuRing(node_environment=environment) as ring:
        ring.wait_until_whole()
        answers = [ring.server.post("/v1/completions", body)]
        while answers[-1].status_code == 200 and len(answers) < 100:
            answers.append(ring.server.post("/v1/completions", body))
        assert answers[-1].status_code == 503, answers[-1].text
        assert ring.nodes[1].wait() == 1, ring.nodes[1].log()
        ring.wait_until_broken()
        ring.node_environment = ()
        ring.start_node(1)
        ring.wait_until_whole()
        assert completion(ring.server, body) == answers[0].json()["choices"][0]


@pytest.mark.parametrize("mib,flags,reason", [
    (4, [], "stage 0: its weights take "),
    (1024, ["--max-total-tokens", 10_000_000], "cuda 0: a KV cache of 8192 pages of 64 tokens takes "),
    (16, ["--chunked-prefill-size", 8192], "stage 0: CUDA: cudaMalloc of "),
])
def test_short_memory_is_an_error_at_start(mib, flags, reason):
    refused = run("serve", "--model-path", MODEL, "--port", 0, "--device", "cuda", *flags,
                  MILLRACE_CUDA_MODULE=EMULATED, MILLRACE_EMULATED_GPU_MIB=mib)
    assert refused.returncode == 1
    assert reason in refused.stderr and " MB are missing" in refused.stderr


def test_the_cache_takes_the_rest_of_a_gpu_memory():
    prefix = ["env", f"MILLRACE_CUDA_MODULE={EMULATED}", "MILLRACE_EMULATED_GPU_MIB=128"]
    pages = []
    for flags in ([], ["--mem-fraction-static", 0.3]):
        with MillraceServer("--device", "cuda", *flags, prefix=prefix) as server:
            pages.append(int(re.search(r"KV cache: (\d+) pages of 64", server.log()).group(1)))
            assert completion(server)["text"]
    page_bytes = 2147.5e6 / 8192
    assert 48 << 20 < pages[0] * page_bytes < 0.9 * (128 << 20)
    assert abs(pages[1] - pages[0] / 3) <= 1


class GpuRing(Ring):
    """Nodes with emulated GPUs, linked by a fake NCCL."""

    def __init__(self, *flags, node_environment=(), node_flags=GPU, stages=4, nodes=2, gpus=1):
        self.node_environment = node_environment
        self.gpus = gpus
        super().__init__(nodes, stages, "--device", "cuda", "--max-total-tokens", 16384, *flags, node_flags=node_flags)

    def prefix(self, rank):
        return ["env", f"MILLRACE_CUDA_MODULE={EMULATED}", f"MILLRACE_EMULATED_FIRST_SERIAL={rank * self.gpus}",
                f"MILLRACE_EMULATED_GPUS={self.gpus}", f"MILLRACE_NCCL_LIBRARY={FAKE_NCCL}",
                *(self.node_environment if rank else ())]


def wait_until_running(ring, answers):
    """Waits until requests run, or one of their answers is there."""
    wait_until(lambda: ring.server.metric("millrace:num_requests_running") > 0 or any(each.done() for each in answers),
               "running requests")


class UnreadyGpuRing(GpuRing):
    """A ring that does not form, so that nothing waits until it is ready."""

    def start_head(self, *flags):
        self.server = MillraceServer(*self.head_flags, *flags, model=self.model, prefix=self.prefix(0))
        self.server._is_ready = lambda: True
        self.server.__enter__()


@needs_nccl
def test_activations_go_between_gpus_also_after_a_node_returns(wanted):
    with GpuRing("--nccl", "on") as ring:
        ring.wait_until_whole()
        assert "activations from stage 1 to stage 2 go from device to device, by NCCL 2." in ring.server.log()
        assert completion(ring.server) == wanted
        for _ in range(2):
            ring.nodes[1].kill()
            ring.wait_until_broken()
            ring.start_node(1)
            ring.wait_until_whole()
            assert completion(ring.server, {**GREEDY, "n": 3})["text"] == wanted["text"]


@needs_nccl
def test_a_node_death_under_load_ends_requests_and_ring_recovers(wanted):
    body = {**GREEDY, "max_tokens": 150, "ignore_eos": True}
    with GpuRing() as ring, ThreadPoolExecutor(4) as clients:
        ring.wait_until_whole()
        assert completion(ring.server) == wanted
        running = [clients.submit(ring.server.post, "/v1/completions", body) for _ in range(4)]
        wait_until_running(ring, running)
        ring.nodes[1].kill()
        assert {answer.result().status_code for answer in running} <= {200, 503}
        ring.wait_until_broken()
        ring.start_node(1)
        ring.wait_until_whole()
        assert completion(ring.server) == wanted


@needs_nccl
def test_slices_of_ranks_go_from_node_to_node_through_the_hosts(wanted):
    with GpuRing("--tp-size", 2, stages=2) as ring:
        ring.wait_until_whole()
        assert completion(ring.server) == wanted
        ring.nodes[1].kill()
        ring.wait_until_broken()
        ring.start_node(1)
        ring.wait_until_whole()
        assert completion(ring.server, {**GREEDY, "n": 3})["text"] == wanted["text"]


@needs_nccl
@pytest.mark.parametrize("nodes,stages,ranks,gpus", [(2, 1, 2, 1), (2, 1, 4, 2), (4, 2, 2, 1)])
def test_ranks_of_a_stage_on_several_nodes_answer_as_one(wanted, nodes, stages, ranks, gpus):
    with GpuRing("--tp-size", ranks, stages=stages, nodes=nodes, gpus=gpus) as ring, ThreadPoolExecutor(4) as clients:
        ring.wait_until_whole()
        assert "the ranks of a stage exchange by NCCL 2." in ring.server.log()
        assert completion(ring.server) == wanted
        body = {**GREEDY, "max_tokens": 150, "ignore_eos": True}
        running = [clients.submit(ring.server.post, "/v1/completions", body) for _ in range(4)]
        wait_until_running(ring, running)
        ring.nodes[nodes - 1].kill()
        ring.wait_until_broken()
        ring.start_node(nodes - 1)
        ring.wait_until_whole()
        assert {answer.result().status_code for answer in running} <= {200, 503}  # what was queued is answered now
        assert completion(ring.server, {**GREEDY, "n": 3})["text"] == wanted["text"]


@needs_nccl
@pytest.mark.parametrize("environment,flags,reason", [
    (["MILLRACE_EMULATED_FIRST_SERIAL=0"], GPU, "both have one device, GPU-00"),
    (["MILLRACE_FAKE_NCCL_VERSION=22105"], GPU, ", the other NCCL 2.21.5"),
    (["MILLRACE_FAKE_NCCL_UNREACHABLE=1"], GPU, "the ranks of stage 0: NCCL: "),
    ([], ["--device", "cpu"], "one computes on a GPU, the other in memory of its host"),
])
def test_nodes_that_cannot_share_a_stage_are_named(environment, flags, reason):
    timeout = ["--nccl-timeout", 4]
    with UnreadyGpuRing("--tp-size", 2, *timeout, stages=1, node_environment=environment,
                        node_flags=[*flags, *timeout]) as ring:
        wait_until(lambda: reason in ring.server.log(), f"the reason: {reason}")
        assert ring.health() == 503
        assert ring.nodes[1].process.poll() is None


@needs_nccl
def test_a_node_without_nccl_leaves_a_stage_of_several_nodes():
    with UnreadyGpuRing("--tp-size", 2, stages=1, node_flags=[*GPU, "--nccl", "off"]) as ring:
        reason = "--nnodes: --nccl off; ranks of a stage on several nodes exchange by NCCL"
        wait_until(lambda: reason in ring.nodes[1].log(), "the node's reason")
        wait_until(lambda: reason in ring.server.log(), "the reason at the head")
        assert ring.health() == 503


@needs_nccl
def test_a_missing_transfer_ends_its_request_at_the_deadline():
    timeout = ["--nccl-timeout", 4]
    body = {**GREEDY, "ignore_eos": True}
    with GpuRing(*timeout, node_environment=["MILLRACE_FAKE_NCCL_SILENT_TRANSFER=60"],
                 node_flags=[*GPU, *timeout]) as ring:
        ring.wait_until_whole()
        answers = [ring.server.post("/v1/completions", body) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 503]
        wait_until(lambda: ring.server.get("/health").status_code == 200, "a new ring")
        assert completion(ring.server, body) == answers[0].json()["choices"][0]
        reasons = ring.server.log() + ring.nodes[1].log()
        assert re.search(r"stage 1 -> stage 2: NCCL: stage [12] has not (sent|taken) the activations of plan \d+ ", reasons)


@needs_nccl
@pytest.mark.parametrize("environment,flags,reason", [
    (["MILLRACE_NCCL_LIBRARY=/nowhere/libnccl.so"], GPU, "at the receiver, NCCL cannot be loaded: /nowhere/libnccl.so"),
    (["MILLRACE_EMULATED_FIRST_SERIAL=0"], GPU, "both stages are on one device, GPU-00"),
    (["MILLRACE_FAKE_NCCL_VERSION=22105"], GPU, ", the receiver NCCL 2.21.5"),
    (["MILLRACE_FAKE_NCCL_VERSION=21003"], GPU, "is NCCL 2.10.3, wanted 2.18.0 or later"),
    ([], [*GPU, "--nccl", "off"], "at the receiver, --nccl off"),
    (["MILLRACE_FAKE_NCCL_UNREACHABLE=1"], GPU,
     " is present and cannot connect: stage 1 -> stage 2: NCCL: the communicator: unhandled system error"),
    ([], ["--device", "cpu"], "the receiver computes in memory of its host"),
])
def test_without_a_channel_hosts_carry_and_the_reason_is_logged(environment, flags, reason):
    with GpuRing(node_environment=environment, node_flags=flags) as ring:
        ring.wait_until_whole()
        assert "activations from stage 1 to stage 2 go through the hosts: " in ring.server.log()
        assert reason in ring.server.log()
        assert completion(ring.server)["text"]


@needs_nccl
def test_channels_that_are_required_and_missing_are_an_error():
    refused = run("serve", "--model-path", MODEL, "--port", 0, "--device", "cuda", "--nccl", "on",
                  MILLRACE_CUDA_MODULE=EMULATED, MILLRACE_NCCL_LIBRARY="/nowhere/libnccl.so")
    assert refused.returncode == 1
    assert "--nccl on: stage 0: NCCL cannot be loaded: /nowhere/libnccl.so" in refused.stderr
