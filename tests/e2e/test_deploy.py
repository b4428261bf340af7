"""Compares the files of deploy/ and the lists in docs/ with the built program."""

import json
import re
import shutil
import subprocess

import pytest
from millrace_ring import Ring
from millrace_server import BINARY, MODEL, ROOT, run_binary, wait_until
from prompts import PROMPT

DEPLOY = ROOT / "deploy"
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")


LABELS = set("stage rank cause from to end sender receiver in_flight phase work route status refused "
             "graph replayed new failed too_large loading off "
             "source ngram prediction grammar fate accepted rejected "
             "ring reason pinned prefix load round_robin "
             "rows some none window state".split())
# test_devices.py has a server with one.
OF_A_GPU = {"decode_steps_total"}
# test_rings.py has a server with several.
OF_SEVERAL_RINGS = {"ring_serves", "ring_requests_running", "ring_requests_waiting", "ring_cache_hit_pages_total",
                    "ring_cache_missed_pages_total", "ring_moved_requests_total", "routed_requests_total"}
# tests/server has a ring with windows.
OF_WINDOWS = {f"kv_cache_window_{pages}_pages" for pages in ("free", "total", "cached", "host")}


def expanded(word):
    """Expands a_{b,c}_d to a_b_d and a_c_d."""
    braces = re.search(r"\{(.*?)\}", word)
    if not braces:
        return [word]
    return [word[:braces.start()] + each + word[braces.end():] for each in braces.group(1).split(",")]


def known_flags():
    return set(FLAG.findall(run_binary("serve", "--help").stdout)) - {"--help"}


def expressions(node):
    if isinstance(node, dict):
        yield from (value for key, value in node.items() if key == "expr")
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from expressions(child)


def test_the_dashboard_shows_what_is_exported(pp4):
    pp4.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 4})
    samples = set(re.findall(r"^([\w:]+)(?:\{| )", pp4.get("/metrics").text, re.MULTILINE))
    board = json.loads((DEPLOY / "grafana.json").read_text())
    named = {name for text in expressions(board) for name in re.findall(r"(?:vllm|millrace):\w+", text)}
    assert len(named) > 25
    assert named <= samples
    places = [tuple(panel["gridPos"][key] for key in "xy") for panel in board["panels"]]
    assert len(set(places)) == len(places)


@pytest.mark.skipif(MODEL.name != "books-4m", reason="the example is of the model that ships")
def test_the_answer_in_the_readme_has_the_form_of_the_servers(pp4):
    def forms(text):
        """Returns the kinds of events in order. Tokens that come together share an event."""
        found = set()
        for line in re.findall(r"^data: (\{.*\})$", text, re.MULTILINE):
            event = json.loads(line)
            assert re.fullmatch(r"cmpl-[0-9a-f]{32}", event.pop("id")) and event.pop("created") > 0
            event["choices"][0]["text"] = bool(event["choices"][0]["text"])
            found.add(json.dumps(event))
        return found

    readme = (ROOT / "README.md").read_text()
    body = json.loads(re.search(r"-d '(\{.*?\})'", readme).group(1))
    shown = forms(readme)
    assert len(shown) == 2
    assert forms(pp4.post("/v1/completions", body).text) == shown


def test_the_list_of_metrics_is_whole_and_true(tmp_path):
    """Uses a TCP link and a page store, so that every metric is exported."""
    store = ("--enable-hierarchical-cache", "--hicache-storage-backend", "file", "--hicache-storage-path", tmp_path)
    with Ring(2, 2, *store, node_flags=store) as ring:
        assert ring.server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 4}).status_code == 200
        wait_until(lambda: "page_store_hits_total" in ring.server.get("/metrics").text, "the stores' counters")
        exported = set(re.findall(r"^# TYPE (\S+)", ring.server.get("/metrics").text, re.MULTILINE))
    text = (ROOT / "docs" / "observing.md").read_text()
    text = text[text.index("## /metrics"):]
    text = text[:text.index("\n## ", 1)]
    words = {word for quoted in re.findall(r"`([\w{},]+)`", text) for word in expanded(quoted)}
    both = {name.removeprefix("vllm:") for name in exported if name.startswith("vllm:")}
    own = {name.removeprefix("millrace:") for name in exported if name.startswith("millrace:")} - both
    of_any_process = {name for name in exported if ":" not in name}
    assert own | of_any_process <= words, "not in docs/observing.md"
    assert words - own - both - of_any_process - LABELS == OF_A_GPU | OF_SEVERAL_RINGS | OF_WINDOWS, "not in /metrics"


@pytest.mark.parametrize("name", ["millrace.service", "Containerfile"])
def test_deployed_commands_use_flags_that_exist(name):
    commands = [line for line in (DEPLOY / name).read_text().splitlines() if line.startswith(("ExecStart", "ENTRYPOINT"))]
    used = set(FLAG.findall(" ".join(commands)))
    assert "--model-path" in used
    assert used <= known_flags()


def test_systemd_takes_the_unit(tmp_path):
    verifier = shutil.which("systemd-analyze")
    if verifier is None:
        pytest.skip("no systemd-analyze")
    unit = tmp_path / "millrace.service"
    unit.write_text((DEPLOY / "millrace.service").read_text().replace("/usr/local/bin/millrace", str(BINARY.resolve())))
    result = subprocess.run([verifier, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert str(unit) not in result.stderr, result.stderr


def test_the_list_of_flags_is_whole_and_true():
    text = (ROOT / "docs" / "operations.md").read_text()
    listed = text[text.index("## Flags"):]
    listed = set(FLAG.findall(listed[:listed.index("\n## ", 1)]))
    assert listed - {"--help"} == known_flags()
