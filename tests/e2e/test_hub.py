"""Tests models that come from a hub, against a server that behaves like one."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from fake_hub import COMMIT, EXPIRED_TOKEN, TOKEN, FakeHub
from fake_proxy import FakeProxy
from gguf_writer import write_gguf
from millrace_ring import Ring
from millrace_server import BINARY, MODEL, PATIENCE_S, MillraceServer
from prompts import PROMPT

REPO = "acme/books-4m"
WEIGHTS = "model.safetensors"
GREEDY = {"prompt": PROMPT, "max_tokens": 16, "temperature": 0}


@pytest.fixture
def hub():
    with FakeHub(MODEL) as hub:
        yield hub


@pytest.fixture
def home(tmp_path, hub, monkeypatch):
    """Returns the folder of downloads of an environment in which the hub is the fake one."""
    for name in list(os.environ):
        if name.startswith("HF_") or name.lower().endswith("_proxy") or name in ("XDG_CACHE_HOME", "TRANSFORMERS_OFFLINE", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    return tmp_path / "cache" / "huggingface" / "hub"


def run(*arguments):
    return subprocess.run([str(BINARY), *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S)


def fetch(*arguments):
    """Runs `millrace fetch`, and returns the folder that it prints."""
    done = run("fetch", *arguments)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def refusal(*arguments):
    """Returns what `millrace fetch` says when it fails."""
    done = run("fetch", *arguments)
    assert done.returncode == 1, done.stdout
    return done.stderr


def same_files(folder, hub):
    return all((folder / name).read_bytes() == content for name, content in hub.files.items()
               if name.endswith((".json", ".safetensors", ".txt", ".jinja")))


def test_a_fetched_model_has_the_layout_of_the_python_library(hub, home):
    folder = fetch(REPO)
    repo = home / "models--acme--books-4m"
    assert folder == repo / "snapshots" / COMMIT
    assert (repo / "refs" / "main").read_text() == COMMIT
    assert same_files(folder, hub)
    weights = folder / WEIGHTS
    assert weights.is_symlink()
    assert os.readlink(weights) == f"../../blobs/{hashlib.sha256(hub.files[WEIGHTS]).hexdigest()}"
    assert not list(repo.rglob("*.incomplete"))
    listed = run("ls").stdout
    assert REPO in listed and COMMIT[:12] in listed and "main" in listed


def test_a_model_in_the_cache_is_not_fetched_again(hub, home):
    fetch(REPO)
    before = sum(hub.sent_bytes.values())
    fetch(REPO)
    assert sum(hub.sent_bytes.values()) == before
    asked = len(hub.requests)
    fetch(f"{REPO}:{COMMIT}")  # a commit never changes
    assert len(hub.requests) == asked


def test_a_commit_that_is_there_in_part_is_completed(hub, home):
    # As another program leaves it that has asked for two files.
    fetch(REPO)
    snapshot = home / "models--acme--books-4m" / "snapshots" / COMMIT
    for path in snapshot.iterdir():
        if path.name not in ("config.json", WEIGHTS):
            path.unlink()
    (home / "models--acme--books-4m" / "millrace" / f"{COMMIT}.json").unlink()
    assert same_files(fetch(f"{REPO}:{COMMIT}"), hub)


def test_weights_that_only_the_cache_lacks(hub, home, monkeypatch):
    folder = fetch(REPO)
    (folder / WEIGHTS).unlink()
    (home / "models--acme--books-4m" / "millrace" / f"{COMMIT}.json").unlink()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "its snapshot in the cache holds no weights" in refusal(REPO)


def test_revisions_and_renamed_repositories(hub, home):
    assert fetch(REPO, "--revision", "v1").name == COMMIT
    assert (home / "models--acme--books-4m" / "refs" / "v1").read_text() == COMMIT
    fetch(f"{REPO}:pr/3")
    assert (home / "models--acme--books-4m" / "refs" / "pr" / "3").read_text() == COMMIT
    assert "no revision 'v9'" in refusal(f"{REPO}:v9")


def test_offline_and_unreachable_hubs(hub, home, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE" in refusal(REPO)
    assert not hub.requests
    monkeypatch.delenv("HF_HUB_OFFLINE")
    folder = fetch(REPO)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    asked = len(hub.requests)
    assert fetch(REPO) == folder
    assert len(hub.requests) == asked
    (folder / WEIGHTS).resolve().unlink()
    assert WEIGHTS in refusal(REPO)


def test_a_cached_revision_is_served_when_the_hub_fails(hub, home):
    folder = fetch(REPO)
    hub.limits = [{"Retry-After": "200"}]  # longer than a user with a complete cache would wait
    done = run("fetch", REPO)
    assert done.returncode == 0 and done.stdout.strip() == str(folder)
    assert "using the revision in the cache" in done.stderr
    # Another program fetched the commit, and the repository has been closed since.
    (home / "models--acme--books-4m" / "millrace" / f"{COMMIT}.json").unlink()
    hub.private = True
    done = run("fetch", f"{REPO}:{COMMIT}")
    assert done.returncode == 0 and "using the revision in the cache" in done.stderr
    (folder / WEIGHTS).resolve().unlink()
    assert "does not exist, or is private" in refusal(f"{REPO}:{COMMIT}")


def test_a_token_goes_to_the_hub_only(hub, home, monkeypatch):
    hub.gated = True
    said = refusal(REPO)
    assert "gated" in said and "HF_TOKEN" in said
    assert "not been given access" in refusal(REPO, "--hf-token", "hf_wrong")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert same_files(fetch(REPO), hub)
    sent = [headers for origin, _, headers in hub.requests if origin == "storage"]
    assert sent and not any("Authorization" in headers for headers in sent)


def test_private_and_missing_repositories(hub, home, monkeypatch):
    assert "does not exist, or is private" in refusal("acme/other")
    hub.private = True
    assert "HF_TOKEN is not set" in refusal(REPO)
    token = Path(os.environ["HOME"]) / "token"
    token.write_text(TOKEN + "\n")
    monkeypatch.setenv("HF_TOKEN_PATH", str(token))
    assert same_files(fetch(REPO), hub)


def test_a_token_that_is_not_accepted_is_named(hub, home):
    # The hub refuses even public models then.
    said = refusal(REPO, "--hf-token", EXPIRED_TOKEN)
    assert "token of HF_TOKEN is not accepted" in said and "Invalid credentials" in said


@pytest.mark.parametrize("field", [{"Retry-After": "2"}, {"RateLimit": '"api";r=0;t=2'}])
def test_the_hub_is_asked_again_when_it_says_so(hub, home, field):
    hub.limits = [field]
    done = run("fetch", REPO)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("trying again in 2000 ms") == 1
    assert hub.api_count >= 3


def test_plain_requests_go_to_the_proxy(hub, home, monkeypatch):
    direct = hub.url
    hub.url = hub.url.replace("127.0.0.1", "hub.test")
    hub.storage_url = hub.storage_url.replace("127.0.0.1", "storage.test")
    with FakeProxy() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://user:pass@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        assert same_files(fetch(REPO), hub)
        assert {target.split("/")[2] for target, _ in proxy.requests} == \
            {hub.url.removeprefix("http://"), hub.storage_url.removeprefix("http://")}
        assert all(credentials == "Basic dXNlcjpwYXNz" for _, credentials in proxy.requests)
        assert not any("Authorization" in headers for _, _, headers in hub.requests)
        asked = len(proxy.requests)
        hub.requests.clear()
        # This machine is never reached through a proxy, whose credentials it does not get.
        monkeypatch.setenv("HF_ENDPOINT", direct)
        hub.url = direct
        fetch(f"{REPO}:v1")
        assert len(proxy.requests) == asked
        assert hub.requests and not any("Proxy-Authorization" in headers for _, _, headers in hub.requests)


def test_encrypted_requests_go_through_a_tunnel(home, monkeypatch):
    with FakeProxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
        proxy.status = 407
        said = refusal(REPO)
        assert f"the proxy 127.0.0.1:{proxy.port}" in said and "407" in said
        assert proxy.requests == [("hub.invalid:443", None)]


def test_a_broken_download_goes_on_where_it_stopped(hub, home):
    hub.breaks = 2
    assert same_files(fetch(REPO), hub)
    ranges = [headers["Range"] for origin, _, headers in hub.requests if origin == "storage" and "Range" in headers]
    assert len(ranges) >= 2
    # Each byte travels once.
    assert hub.sent_bytes[WEIGHTS] == len(hub.files[WEIGHTS])


def test_a_later_process_goes_on(hub, home):
    content = hub.files[WEIGHTS]
    blobs = home / "models--acme--books-4m" / "blobs"
    blobs.mkdir(parents=True)
    half = len(content) // 2
    (blobs / (hashlib.sha256(content).hexdigest() + ".millrace.incomplete")).write_bytes(content[:half])
    assert same_files(fetch(REPO), hub)
    assert hub.sent_bytes[WEIGHTS] == len(content) - half


def test_a_damaged_remainder_is_fetched_anew(hub, home):
    content = hub.files[WEIGHTS]
    blobs = home / "models--acme--books-4m" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / (hashlib.sha256(content).hexdigest() + ".millrace.incomplete")).write_bytes(b"\0" * 1000)
    assert same_files(fetch(REPO), hub)


def test_a_server_without_ranges_starts_over(hub, home):
    hub.serves_ranges = False
    hub.breaks = 1
    assert same_files(fetch(REPO), hub)
    assert hub.sent_bytes[WEIGHTS] > len(hub.files[WEIGHTS])


def test_temporary_refusals_are_repeated(hub, home):
    hub.failures = [429, 503]
    assert same_files(fetch(REPO), hub)


def test_wrong_contents_never_reach_the_cache(hub, home):
    hub.corrupts.add(WEIGHTS)
    said = refusal(REPO)
    assert WEIGHTS in said and hashlib.sha256(hub.files[WEIGHTS]).hexdigest() in said
    assert not list(home.glob("models--*/snapshots/*/" + WEIGHTS))
    hub.corrupts.clear()
    assert same_files(fetch(REPO), hub)


def test_a_wrong_length_is_refused(hub, home):
    hub.wrong_length.add(WEIGHTS)
    size = len(hub.files[WEIGHTS])
    said = refusal(REPO)
    assert str(size) in said and str(size + 7) in said


def test_a_small_file_is_checked_too(hub, home):
    hub.corrupts.add("config.json")
    assert "config.json" in refusal(REPO)


def test_a_repository_without_safetensors_says_what_it_has(hub, home):
    hub.files["pytorch_model.bin"] = hub.files.pop(WEIGHTS)
    said = refusal(REPO)
    assert WEIGHTS in said and "pytorch_model.bin" in said


def test_a_served_model_has_the_name_of_its_repository(hub, home):
    with MillraceServer(model=REPO) as server:
        assert [model["id"] for model in server.get("/v1/models").json()["data"]] == [REPO]
        from_hub = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 16, "temperature": 0}).json()
    with MillraceServer() as server:
        local = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 16, "temperature": 0}).json()
    assert from_hub["choices"][0]["text"] == local["choices"][0]["text"]


@pytest.mark.parametrize("name", ["./no/such/folder", "/no/such/folder", "a/b/c"])
def test_what_looks_like_a_path_is_no_repository(hub, home, name):
    done = run("serve", name)
    assert done.returncode == 1 and "no such folder" in done.stderr
    assert not hub.requests


def test_each_node_fetches_the_tensors_of_its_own_layers(hub, home, tmp_path, monkeypatch):
    total = len(hub.files[WEIGHTS])
    ring = Ring(2, 2)
    try:
        # The nodes have no disk in common.
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "node1"))
        ring.start_node(1, model=REPO)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "node0"))
        ring.server = MillraceServer(*ring.head_flags, model=REPO)
        ring.server.__enter__()
        body = {"prompt": PROMPT, "max_tokens": 16, "temperature": 0}
        text = ring.server.post("/v1/completions", body).json()["choices"][0]["text"]
    finally:
        ring.__exit__()
    with MillraceServer() as server:
        assert text == server.post("/v1/completions", body).json()["choices"][0]["text"]
    files = list(tmp_path.glob(f"node*/millrace/partial/*/{COMMIT}/{WEIGHTS}"))
    assert len(files) == 2
    assert all(path.stat().st_size == total and path.stat().st_blocks * 512 < total for path in files)
    assert not list(tmp_path.glob(f"node*/huggingface/hub/*/snapshots/*/{WEIGHTS}"))


def test_a_node_that_starts_again_has_its_tensors(hub, home):
    def start_once():
        ring = Ring(2, 2)
        try:
            ring.start_node(1, model=REPO)
            ring.server = MillraceServer(*ring.head_flags, model=REPO)
            ring.server.__enter__()
        finally:
            ring.__exit__()

    start_once()
    sent = hub.sent_bytes[WEIGHTS]
    start_once()
    assert hub.sent_bytes[WEIGHTS] == sent


def test_a_tensor_that_does_not_come_ends_the_start(hub, home):
    hub.serves_ranges = False
    ring = Ring(2, 2)
    try:
        with pytest.raises(AssertionError) as failure:
            ring.server = MillraceServer(*ring.head_flags, model=REPO)
            ring.server.__enter__()
        assert "serves no ranges" in str(failure.value)
    finally:
        ring.__exit__()


@pytest.fixture(scope="module")
def gguf_folder(tmp_path_factory):
    """Returns a folder as a repository of GGUF files: two types, one of them split, and a file with other contents."""
    folder = tmp_path_factory.mktemp("repository")
    whole = write_gguf(MODEL, tmp_path_factory.mktemp("whole"))
    parts = write_gguf(MODEL, tmp_path_factory.mktemp("parts"), parts=3)
    (folder / "books-Q8_0.gguf").write_bytes(whole.read_bytes())
    (folder / "mmproj-F16.gguf").write_bytes(b"GGUF")
    (folder / "README.md").write_text("books")
    (folder / "BF16").mkdir()
    for part in parts.parent.glob("*.gguf"):
        (folder / "BF16" / part.name.replace("books", "books-BF16")).write_bytes(part.read_bytes())
    return folder


def test_a_gguf_model_of_a_repository_is_served(gguf_folder, home, monkeypatch, pp1):
    with FakeHub(gguf_folder) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        assert fetch(f"{REPO}:q8_0").name == "books-Q8_0.gguf"
        fetched = {name for name, count in hub.sent_bytes.items() if count > 0 and name.endswith(".gguf")}
        assert fetched == {"books-Q8_0.gguf"}
        said = refusal(REPO)
        assert "books-Q8_0.gguf" in said and "books-BF16-00001-of-00003.gguf" in said and "mmproj" not in said
        assert "books-Q8_0.gguf" in refusal(f"{REPO}:Q5_K_M")
        with MillraceServer(model=f"{REPO}:BF16") as server:
            assert server.get("/v1/models").json()["data"][0]["id"] == REPO
            assert server.post("/v1/completions", GREEDY).json()["choices"][0]["text"] == \
                pp1.post("/v1/completions", GREEDY).json()["choices"][0]["text"]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch(f"{REPO}:BF16").name == "books-BF16-00001-of-00003.gguf"


def test_each_node_fetches_its_own_tensors_of_gguf_files(gguf_folder, home, tmp_path, monkeypatch, pp1):
    name = "books-Q8_0.gguf"
    with FakeHub(gguf_folder) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        ring = Ring(2, 2)
        try:
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "node1"))
            ring.start_node(1, model=f"{REPO}:Q8_0")
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "node0"))
            ring.server = MillraceServer(*ring.head_flags, model=f"{REPO}:Q8_0")
            ring.server.__enter__()
            text = ring.server.post("/v1/completions", GREEDY).json()["choices"][0]["text"]
        finally:
            ring.__exit__()
        assert text == pp1.post("/v1/completions", GREEDY).json()["choices"][0]["text"]
        total = len(hub.files[name])
        files = list(tmp_path.glob(f"node*/millrace/partial/*/{COMMIT}/{name}"))
        assert len(files) == 2
        assert all(path.stat().st_size == total and path.stat().st_blocks * 512 < total for path in files)
        assert not list(tmp_path.glob(f"node*/huggingface/hub/*/snapshots/*/{name}"))
