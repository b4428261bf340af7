"""Tests the live page in a headless Chromium, and the profile and metrics of a ring under load."""

import contextlib
import functools
import http.server
import json
import re
import subprocess
import threading
from pathlib import Path

import httpx
import pytest
from browser import Browser, find_chromium
from millrace_ring import Ring, free_port
from millrace_server import BUILD, PATIENCE_S, MillraceServer, run_binary, wait_until

LOAD = BUILD / "bench" / "load"
needs_chromium = pytest.mark.skipif(find_chromium() is None, reason="chromium is not installed")
STRIPS = "document.getElementById('strips').toDataURL()"


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Yields a server with its trace folder while a load generator keeps it busy."""
    folder = tmp_path_factory.mktemp("traces")
    with MillraceServer("--pp-size", 4, "--profile-dir", folder) as server:
        command = [str(LOAD), "--base-url", server.url, "--quiet", "--num-prompts", "1000000", "--max-concurrency", "6",
                   "--input-len", "200", "--range-ratio", "0.5", "--output-len", "40", "--ignore-eos"]
        load = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        server.folder = folder
        try:
            wait_until(lambda: server.get("/live").json()["micro_batches"] > 20, "load")
            yield server
        finally:
            load.kill()
            load.wait()


def text_of(page, name):
    return page.evaluate(f"document.getElementById('{name}')?.innerText ?? ''")


@needs_chromium
def test_page_shows_the_ring_and_chats(watched):
    with Browser() as page:
        page.open(watched.url + "/")
        wait_until(lambda: text_of(page, "state") == "serving", "the page's state")
        strips, batches = page.evaluate(STRIPS), text_of(page, "t_total")
        wait_until(lambda: page.evaluate(STRIPS) != strips, "movement of the strips")
        wait_until(lambda: text_of(page, "t_total") != batches, "movement of the counter")
        assert page.evaluate("plans.length") > 0
        assert page.evaluate("view.boxes.filter(box => box.row === 4).length") > 0
        assert "busy" in text_of(page, "stages") and text_of(page, "stages").count("bubble") == 4

        page.evaluate("document.getElementById('text').value = 'Call me Ishmael.'; document.getElementById('send').click()")
        wait_until(lambda: page.evaluate("document.querySelector('.assistant')?.innerText.length ?? 0") > 10, "a reply")
        wait_until(lambda: page.evaluate("reply_in_flight === null"), "the reply's end")
        page.evaluate("document.getElementById('max_tokens').value = 500;"
                      "document.getElementById('text').value = 'More'; document.getElementById('send').click()")
        wait_until(lambda: page.evaluate("document.querySelectorAll('.assistant').length") == 2, "a second reply")
        page.evaluate("document.getElementById('stop').click()")
        wait_until(lambda: page.evaluate("reply_in_flight === null"), "the stopped reply's end")
        assert page.errors == []


@needs_chromium
def test_page_shows_reasoning_apart(tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[-1].content }}{# </think> #}{% if add_generation_prompt %}<think>{% endif %}")
    with MillraceServer("--chat-template", template) as server, Browser() as page:
        page.open(server.url + "/")
        wait_until(lambda: text_of(page, "state") == "serving", "the page's state")
        page.evaluate("document.getElementById('max_tokens').value = 20;"
                      "document.getElementById('text').value = 'Call me Ishmael.'; document.getElementById('send').click()")
        wait_until(lambda: page.evaluate("document.querySelector('.thought')?.innerText.length ?? 0") > 10, "reasoning")
        wait_until(lambda: page.evaluate("reply_in_flight === null"), "the reply's end")
        assert page.evaluate("document.querySelectorAll('.assistant').length") == 0
        assert page.errors == []


@needs_chromium
def test_page_says_when_the_server_is_gone():
    with MillraceServer("--pp-size", 2) as server, Browser() as page:
        page.open(server.url + "/")
        wait_until(lambda: text_of(page, "state") == "serving", "the page's state")
        server.end()
        wait_until(lambda: "no answer" in text_of(page, "broken"), "the reason on the page")
        assert page.evaluate("getComputedStyle(document.getElementById('broken')).display") == "block"


@needs_chromium
def test_page_says_why_the_ring_is_broken_and_recovers():
    timeout = ("--ring-timeout", 3)
    with Ring(2, 2, *timeout, node_flags=timeout) as ring, Browser() as page:
        page.open(ring.server.url + "/")
        wait_until(lambda: text_of(page, "state") == "serving", "the page's state")
        ring.stop_node(1)
        try:
            page.evaluate("document.getElementById('text').value = 'Call me'; document.getElementById('send').click()")
            wait_until(lambda: text_of(page, "state") == "not ready", "the page noticing")
            assert "has been silent" in text_of(page, "broken")
            wait_until(lambda: text_of(page, "broken").startswith("the ring is broken: "), "the ring being given up")
            wait_until(lambda: page.evaluate("reply_in_flight === null"), "the reply's end")
            assert "the ring is broken" in page.evaluate("document.querySelector('.failed')?.innerText ?? ''")
        finally:
            ring.continue_node(1)
        wait_until(lambda: text_of(page, "state") == "serving", "the ring forming again")
        assert text_of(page, "broken") == ""
        page.evaluate("document.getElementById('text').value = 'Call me'; document.getElementById('send').click()")
        wait_until(lambda: page.evaluate("reply_in_flight === null"), "the reply's end")
        assert page.evaluate("document.querySelectorAll('.assistant').length") == 1
        assert page.evaluate("document.querySelectorAll('.failed').length") == 1
        assert page.errors == []


@needs_chromium
def test_page_restarts_with_a_restarted_server():
    port = free_port()
    with Browser(width=390, height=800) as page:
        with MillraceServer("--pp-size", 1, port=port) as server:
            page.open(server.url + "/")
            server.post("/v1/completions", {"prompt": "Call me", "max_tokens": 100, "ignore_eos": True})
            wait_until(lambda: page.evaluate("since") > 50, "micro-batches on the page")
        wait_until(lambda: text_of(page, "state") == "no connection", "the page noticing")
        with MillraceServer("--pp-size", 2, port=port) as server:
            server.post("/v1/completions", {"prompt": "Call me", "max_tokens": 3, "ignore_eos": True})
            wait_until(lambda: text_of(page, "state") == "serving", "the page's state")
            wait_until(lambda: 0 < page.evaluate("since") < 50, "the new server's micro-batches")
            assert page.evaluate("plans.every(plan => plan.stages.length === 2)")
            assert page.evaluate("spark.flat().every(rate => rate >= 0)")
            assert "2 stages" in text_of(page, "shape")
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.errors == []


@contextlib.contextmanager
def page_of_another_origin(folder):
    """Yields a browser whose page is served by another server of this machine."""
    (folder / "index.html").write_text("<!doctype html><title>elsewhere</title>")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as elsewhere, Browser() as page:
        threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
        page.open(f"http://127.0.0.1:{elsewhere.server_port}/index.html")
        wait_until(lambda: page.evaluate("document.title") == "elsewhere", "the page")
        yield page
        elsewhere.shutdown()


@needs_chromium
def test_a_page_of_another_origin_may_use_the_interface(watched, tmp_path):
    """OpenAI's client in a browser sends its own headers, which need a preflight."""
    with page_of_another_origin(tmp_path) as page:
        options = {"method": "POST", "body": json.dumps({"prompt": "Call me", "max_tokens": 2}),
                   "headers": {"Content-Type": "application/json", "Authorization": "Bearer none", "X-Request-Id": "mine",
                               "X-Stainless-Lang": "js", "OpenAI-Organization": "none"}}
        wanted = f"fetch('{watched.url}/v1/completions', {json.dumps(options)})"
        got = page.evaluate(f"{wanted}.then(reply => reply.status + ' ' + reply.headers.get('X-Request-Id'), String)")
    assert got == "200 mine"


@needs_chromium
def test_a_page_of_another_origin_cannot_stop_the_server(watched, tmp_path):
    """Sends a request that needs no preflight and whose response the page cannot read."""
    with page_of_another_origin(tmp_path) as page:
        ask = "fetch('{}/pause_generation', {{method: 'POST', mode: 'no-cors'}}).then(() => 'sent', String)"
        assert page.evaluate(ask.format(watched.url)) == "sent"
        page.open(watched.url + "/")
        wait_until(lambda: text_of(page, "state") == "serving", "the page's state")
        own = f"fetch('{watched.url}/continue_generation', {{method: 'POST'}}).then(reply => reply.status, String)"
        assert page.evaluate(own) == 200
    assert watched.metric("millrace:http_requests_total", route="/pause_generation", status=403) == 1
    assert not watched.get("/server_info").json()["engine"]["paused"]


def test_page_requests_nothing_from_other_hosts(watched):
    reply = watched.get("/")
    assert reply.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert not re.findall(r"(?:src|href)=\"(?!data:)", reply.text)


def test_api_key_guards_all_but_the_page():
    with MillraceServer("--pp-size", 1, "--api-key", "secret") as server:
        assert server.get("/").status_code == 200
        assert server.get("/live").status_code == 401
        for path in ("/start_profile", "/stop_profile"):
            assert server.post(path, {}).status_code == 401
        reply = httpx.get(server.url + "/live", headers={"Authorization": "Bearer secret"}, timeout=PATIENCE_S)
        assert reply.json()["ready"]


def test_profile_is_a_chrome_trace_whose_report_adds_up(watched):
    assert watched.post("/stop_profile", {}).status_code == 409
    assert watched.post("/start_profile", {"path": "../elsewhere.json"}).status_code == 400
    started = watched.post("/start_profile", {"path": "run.json"})
    assert started.status_code == 200, started.text
    assert watched.post("/start_profile", {}).status_code == 409
    seen = watched.get("/live").json()["micro_batches"]
    wait_until(lambda: watched.get("/live").json()["micro_batches"] > seen + 100, "micro-batches to look at")
    stopped = watched.post("/stop_profile", {}).json()
    assert stopped["path"] == started.json()["path"] == str(watched.folder / "run.json")
    assert stopped["plans"] > 0
    events = json.loads((watched.folder / "run.json").read_text())
    rows = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"head", "stage 0", "stage 3 waits", "lane 1 to 2", "lane 3 to head"} <= rows
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")

    report = run_binary("trace", watched.folder / "run.json")
    assert report.returncode == 0, report.stderr
    assert f"{stopped['plans']} micro-batches" in report.stdout
    figures = {line[:24].strip(): [float(each) for each in re.findall(r"(-?[\d.]+) %", line)]
               for line in report.stdout.splitlines()}
    assert figures["sum"] == [100.0] * 5
    for stage in range(4):
        assert figures["busy"][stage] + figures["bubble"][stage] + figures["idle: no request"][stage] == pytest.approx(
            100, abs=0.3)
    assert "longest bubbles" in report.stdout


def test_trace_of_something_else_is_one_line(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    for path in (tmp_path / "other.json", tmp_path / "missing.json"):
        result = run_binary("trace", path)
        assert result.returncode == 1
        assert result.stderr.startswith(f"millrace: {path}") and result.stderr.count("\n") == 1


def test_metrics_show_every_stage(watched):
    text = watched.get("/metrics").text
    sample = re.compile(r'(?:[a-z]+:)?[a-z_0-9]+(\{([a-z_]+="[^"\n]*",?)+\})? -?[0-9.e+-]+(nan|inf)?')
    for line in text.splitlines():
        assert line.startswith(("# HELP ", "# TYPE ")) or sample.fullmatch(line), line
    families = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(families) == len(set(families))
    for stage in range(4):
        assert watched.metric("millrace:stage_busy_seconds_total", stage=stage) > 0
        assert 0 <= watched.metric("millrace:bubble_ratio", stage=stage) <= 1
    assert watched.metric("millrace:link_bytes_total", to=1) > watched.metric("millrace:link_bytes_total", to=0) > 0
    assert watched.metric("millrace:ring_latency_seconds_count") > 0
    assert 0 < watched.metric("millrace:window_occupancy") <= 4
    assert watched.metric("vllm:cache_config_info", num_gpu_blocks=int(watched.metric("millrace:kv_pages_total"))) == 1
    status = Path(f"/proc/{watched.process.pid}/status").read_text()
    resident = int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) << 10
    assert watched.metric("process_resident_memory_bytes") == pytest.approx(resident, rel=0.1)
    assert watched.metric("process_open_fds") >= len(list(Path(f"/proc/{watched.process.pid}/fd").iterdir())) - 20
