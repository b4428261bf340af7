"""Tests the prefix cache through HTTP: equal text from every tier, and the reported hits."""

import json
import re
import shutil
import threading
from pathlib import Path

import httpx
import pytest
from millrace_ring import Ring
from millrace_server import MODEL, PATIENCE_S, MillraceServer, run_binary, wait_until
from streams import pause, paused_stream, resume, stands_still

BOOK = "It is a truth universally acknowledged, that a single man in possession of a good fortune must be in want of a wife. "
PROMPTS = [f"Chapter {i}. " + " ".join(f"{word}{i}" for word in BOOK.split()) + " And then" for i in range(5)]
SMALL_POOL = ("--max-total-tokens", "384", "--context-length", "256", "--page-size", "16")


def ask(server, prompt, **fields):
    body = {"model": "books-4m", "prompt": prompt, "max_tokens": 16, "temperature": 0, **fields}
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    answer = answer.json()
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def texts(server):
    return [ask(server, prompt)[0] for prompt in PROMPTS]


def metric(server, name):
    return server.metric(f"millrace:{name}")


@pytest.fixture(scope="module")
def plain():
    with MillraceServer("--disable-radix-cache", "--page-size", "16") as server:
        first = texts(server)
        assert [ask(server, prompt)[1] for prompt in PROMPTS] == [0] * len(PROMPTS)
        yield first


@pytest.mark.parametrize("pp_size", ["1", "4"])
def test_a_repeated_prompt_hits_the_cache_with_equal_words(plain, pp_size):
    with MillraceServer("--page-size", "16", "--pp-size", pp_size) as server:
        assert texts(server) == plain
        for prompt, wanted in zip(PROMPTS, plain):
            text, cached = ask(server, prompt)
            assert text == wanted
            assert cached > 0 and cached % 16 == 0


def test_salts_separate_and_scoring_computes_everything(plain):
    with MillraceServer("--page-size", "16") as server:
        ask(server, PROMPTS[0], cache_salt="a")
        assert ask(server, PROMPTS[0], cache_salt="b") == (plain[0], 0)
        assert ask(server, PROMPTS[0], cache_salt="a")[1] > 0
        assert ask(server, PROMPTS[0], cache_salt="a", echo=True, logprobs=1)[1] == 0


@pytest.mark.parametrize("policy", ["write_through", "write_through_selective", "write_back"])
def test_pages_evicted_to_the_host_come_back(plain, policy):
    flags = ("--enable-hierarchical-cache", "--hicache-ratio", "4", "--hicache-write-policy", policy)
    with MillraceServer(*SMALL_POOL, *flags, "--pp-size", "2") as server:
        for _ in range(3):
            for prompt, wanted in zip(PROMPTS, plain):
                assert [ask(server, prompt)[0] for _ in range(2)] == [wanted] * 2  # selective writes need two uses
        assert metric(server, "kv_cache_host_hit_pages_total") > 0
        assert metric(server, "kv_cache_evicted_pages_total") > 0


def test_the_store_outlives_flush_and_restart_but_not_a_resplit(plain, tmp_path):
    flags = ("--page-size", "16", "--enable-hierarchical-cache", "--hicache-storage-backend", "file",
             "--hicache-storage-path", str(tmp_path / "pages"), "--hicache-storage-prefetch-policy", "wait_complete")
    with MillraceServer(*flags, "--pp-size", "2") as server:
        assert texts(server) == plain
        wait_for_persisted(server)
        assert server.post("/flush_cache").status_code == 200
        assert [ask(server, prompt)[0] for prompt in PROMPTS] == plain
        assert metric(server, "kv_cache_fetched_pages_total") > 0
    with MillraceServer(*flags, "--pp-size", "2") as server:
        answers = [ask(server, prompt) for prompt in PROMPTS]
        assert [text for text, _ in answers] == plain
        assert all(cached > 0 for _, cached in answers)
    with MillraceServer(*flags, "--pp-size", "4") as server:
        answers = [ask(server, prompt) for prompt in PROMPTS]
        assert [text for text, _ in answers] == plain
        assert all(cached == 0 for _, cached in answers)


def wait_for_persisted(server):
    wait_until(lambda: metric(server, "kv_cache_persisted_pages_total") == metric(server, "kv_cache_stored_pages_total") > 0,
               "writing every page to the store")


def model_with_other_first_layer(folder):
    """Writes the shipped model with the first layer's feed-forward set to zero."""
    shutil.copytree(MODEL, folder)
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    size = int.from_bytes(data[:8], "little")
    begin, end = json.loads(data[8:8 + size])["model.layers.0.mlp.down_proj.weight"]["data_offsets"]
    data[8 + size + begin:8 + size + end] = bytes(end - begin)
    weights.write_bytes(data)
    return folder


def test_stages_of_different_models_share_no_pages(plain, tmp_path):
    other = model_with_other_first_layer(tmp_path / "other" / MODEL.name)
    flags = ("--page-size", "16", "--pp-size", "2", "--enable-hierarchical-cache", "--hicache-storage-backend", "file",
             "--hicache-storage-path", str(tmp_path / "pages"), "--hicache-storage-prefetch-policy", "wait_complete")
    with MillraceServer(*flags) as server:
        assert texts(server) == plain
        wait_for_persisted(server)
    with MillraceServer(*flags, model=other) as server:
        computed = [ask(server, prompt) for prompt in PROMPTS]
        assert [text for text, _ in computed] != plain
        assert all(cached == 0 for _, cached in computed)
        wait_for_persisted(server)
        assert server.post("/flush_cache").status_code == 200
        fetched = [ask(server, prompt) for prompt in PROMPTS]
        assert [text for text, _ in fetched] == [text for text, _ in computed]
        assert all(cached > 0 for _, cached in fetched)


def test_host_pages_outlive_a_broken_link_but_not_a_dead_node(plain):
    flags = ("--page-size", 16, "--enable-hierarchical-cache", "--hicache-ratio", 4, "--ring-timeout", 3)
    with Ring(2, 2, *flags, node_flags=("--enable-hierarchical-cache", "--ring-timeout", 3)) as ring:
        assert texts(ring.server) == plain
        wait_until(lambda: metric(ring.server, "kv_cache_host_pages") == metric(ring.server, "kv_cache_cached_pages") > 0,
                   "every page going to the host")
        ring.stop_node(1)
        wait_until(lambda: "the ring is broken" in ring.server.log(), "the ring being given up")
        ring.continue_node(1)
        ring.wait_until_whole()
        answers = [ask(ring.server, prompt) for prompt in PROMPTS]
        assert [text for text, _ in answers] == plain
        assert all(cached > 0 for _, cached in answers)
        assert metric(ring.server, "kv_cache_host_hit_pages_total") > 0
        ring.nodes[1].kill()
        ring.wait_until_broken()
        ring.start_node(1)
        ring.wait_until_whole()
        assert [ask(ring.server, prompt) for prompt in PROMPTS] == [(text, 0) for text in plain]


def test_tiers_over_two_nodes_survive_a_death(plain, tmp_path):
    """A node's death loses device and host pages. The page store keeps them."""
    flags = ("--enable-hierarchical-cache", "--hicache-storage-backend", "file", "--hicache-storage-path",
             str(tmp_path / "pages"), "--hicache-storage-prefetch-policy", "wait_complete")
    with Ring(2, 2, "--page-size", 16, *flags, node_flags=flags) as ring:
        assert texts(ring.server) == plain
        assert ask(ring.server, PROMPTS[0])[1] > 0
        wait_for_persisted(ring.server)
        ring.nodes[1].kill()
        wait_until(lambda: ring.server.get("/health").status_code == 503, "noticing the death")
        ring.start_node(1)
        wait_until(lambda: ring.server.get("/health").status_code == 200, "forming again")
        answers = [ask(ring.server, prompt) for prompt in PROMPTS]
        assert [text for text, _ in answers] == plain
        assert all(cached > 0 for _, cached in answers)
        for stage in range(2):
            wait_until(lambda: ring.server.metric("millrace:page_store_hits_total", stage=stage) > 0, "the stage's report")


def test_damaged_pages_in_the_store_are_misses(plain, tmp_path):
    folder = tmp_path / "pages"
    flags = ("--page-size", "16", "--enable-hierarchical-cache", "--hicache-storage-backend", "file",
             "--hicache-storage-path", str(folder), "--hicache-storage-prefetch-policy", "wait_complete")
    with MillraceServer(*flags) as server:
        assert texts(server) == plain
        wait_for_persisted(server)
    # A build whose kernels compute other bits has another page identity.
    identities = [path.read_text() for path in folder.glob("*/identity.txt")]
    assert identities and all(re.search(r" revision \d+", identity) for identity in identities)
    pages = [path for path in Path(folder).rglob("*") if path.is_file() and path.stat().st_size > 4096]
    assert pages
    for path in pages:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with MillraceServer(*flags) as server:
        assert [ask(server, prompt) for prompt in PROMPTS] == [(text, 0) for text in plain]
        assert server.metric("millrace:page_store_corrupt_total", stage=0) > 0
        assert server.metric("millrace:page_store_hits_total") == 0


def test_a_flush_is_refused_during_requests_unless_it_may_wait():
    with MillraceServer() as server:
        stream = paused_stream(server, prompt="It was", max_tokens=600, ignore_eos=True)
        refused = server.post("/flush_cache")
        assert refused.status_code == 409
        assert "1 requests run" in refused.json()["error"]["message"]
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(server.post("/flush_cache", {"timeout": PATIENCE_S})))
        waiting.start()
        resume(server)
        assert stream.finish_reason() == "length"
        waiting.join()
        assert answers[0].status_code == 200
        assert server.post("/flush_cache", {"timeout": -1}).status_code == 400


def test_pause_and_continue():
    with MillraceServer() as server:
        assert server.post("/pause_generation", {"mode": "sideways"}).status_code == 400
        pause(server)
        answers = []
        client = threading.Thread(target=lambda: answers.append(ask(server, "It was")))
        client.start()
        wait_until(lambda: server.get("/load").json()["waiting"] == 1, "the request")
        stands_still(server)
        assert not answers
        resume(server)
        client.join()
        assert answers


def test_a_paused_server_ends_what_it_runs_before_it_stops():
    with MillraceServer("--drain-timeout", PATIENCE_S) as server:
        pause(server)
        answers = []
        client = threading.Thread(target=lambda: answers.append(ask(server, "It was")))
        client.start()
        wait_until(lambda: server.get("/server_info").json()["requests_in_flight"], "the request")
        server.terminate()
        client.join()
        assert answers and server.wait() == 0, server.log()


def test_administrators_have_a_key_of_their_own():
    with MillraceServer("--api-key", "user", "--admin-api-key", "root") as server:
        def status_of(path, key):
            headers = {"Authorization": f"Bearer {key}"}
            return httpx.post(server.url + path, headers=headers, timeout=PATIENCE_S).status_code

        assert [status_of("/flush_cache", key) for key in ("user", "root")] == [401, 200]
        assert [status_of("/stop_profile", key) for key in ("user", "root")] == [401, 409]


def test_an_oversized_host_tier_is_refused_with_both_sizes():
    result = run_binary("serve", "--model-path", MODEL, "--port", 0, "--enable-hierarchical-cache", "--hicache-size", 5000)
    assert result.returncode != 0
    assert re.search(r"a host tier of \d+ pages of \d+ tokens takes \d{7}\.\d MB, \d+\.\d MB of memory are available", result.stderr)


@pytest.mark.parametrize("flags, message", [
    (("--enable-hierarchical-cache", "--disable-radix-cache"), "exclude each other"),
    (("--hicache-storage-backend", "file"), "needs --enable-hierarchical-cache"),
    (("--enable-hierarchical-cache", "--hicache-storage-backend", "file"), "needs --hicache-storage-path"),
    (("--enable-hierarchical-cache", "--hicache-storage-backend", "redis"), "needs --hicache-storage-address"),
    (("--enable-hierarchical-cache", "--hicache-storage-backend", "redis", "--hicache-storage-address", "localhost:6379",
      "--hicache-storage-tls-insecure"), "rediss://HOST:PORT"),
    (("--enable-hierarchical-cache", "--hicache-storage-backend", "redis", "--hicache-storage-address", "::1"),
     "'::1' is not HOST:PORT, [ADDRESS]:PORT"),
])
def test_flags_that_contradict_each_other_are_refused(flags, message):
    result = run_binary("serve", "--model-path", MODEL, *flags)
    assert result.returncode == 2
    assert message in result.stderr
