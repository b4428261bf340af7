"""Runs Schemathesis over /openapi.json. Valid requests get documented responses and no server error, invalid ones are
refused. The seed is fixed. MILLRACE_SCHEMATHESIS_EXAMPLES sets the number of examples, with a random seed."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from millrace_server import PATIENCE_S, MillraceServer, wait_until
from prompts import PROMPT

EXAMPLES = int(os.environ.get("MILLRACE_SCHEMATHESIS_EXAMPLES", "10"))
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
          "response_schema_conformance", "negative_data_rejection", "unsupported_method", "allow_header_conformance")
LATE_S = 1800

needs_schemathesis = pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not installed")


def run_schemathesis(server, folder, checks, *more):
    program = Path(sys.executable).parent / "schemathesis"
    command = [program, "run", server.url + "/openapi.json", "--no-color", "--checks", ",".join(checks), "--seed",
               EXAMPLES, "--max-examples", EXAMPLES, "--generation-database", "none", "--request-timeout", 60, *more]
    result = subprocess.run([str(each) for each in command], cwd=folder, capture_output=True, text=True, timeout=LATE_S)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert " generated, " in result.stdout, result.stdout


@needs_schemathesis
def test_the_server_does_what_its_document_says(tmp_path):
    # A short context, since schemas allow outputs as long as it is.
    with MillraceServer("--max-body-mib", 1, "--profile-dir", tmp_path, "--context-length", 64) as server:
        server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 32, "ignore_eos": True})
        wait_until(lambda: server.get("/cost_model").status_code == 200, "a measured ring")
        # A pause would delay every later request.
        run_schemathesis(server, tmp_path, CHECKS, "--exclude-path", "/pause_generation", "--exclude-path", "/cost_model",
                         "--phases", "coverage,fuzzing")
        # A disturbed machine may make predictions wrong, which the documentation allows as a 503.
        run_schemathesis(server, tmp_path, [check for check in CHECKS if check != "not_a_server_error"], "--include-path",
                         "/cost_model", "--phases", "coverage,fuzzing")
        assert server.get("/health").status_code == 200
        assert "a request failed" not in server.log()


def test_every_documented_key_is_required():
    with MillraceServer("--api-key", "secret") as server:
        right, wrong = ({"Authorization": f"Bearer {key}"} for key in ("secret", "secrets"))
        document = httpx.get(server.url + "/openapi.json", headers=right, timeout=PATIENCE_S).json()

        def status(method, path, headers):
            url = server.url + re.sub(r"\{\w+\}", "x", path)
            body = {"json": []} if method == "post" else {}  # which no route takes
            return httpx.request(method, url, headers=headers, timeout=PATIENCE_S, **body).status_code

        needed = {}
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                is_needed = bool(operation.get("security", document.get("security")))
                assert [status(method, path, headers) == 401 for headers in ({}, wrong, right)] == [
                    is_needed, is_needed, False], (method, path)
                needed.setdefault(is_needed, []).append(path)
        assert len(needed[True]) > 20 and "/health" in needed[False]


def test_the_document_lists_only_existing_paths(pp4):
    document = pp4.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    vocab_size = pp4.get("/server_info").json()["model"]["vocab_size"]
    ids = document["components"]["schemas"]["CompletionRequest"]["properties"]["stop_token_ids"]
    assert ids["items"]["maximum"] == vocab_size - 1
