"""A server that answers as a Hugging Face hub does, for one folder of files, and misbehaves where a test says so."""

import collections
import hashlib
import json
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_right"
EXPIRED_TOKEN = "hf_expired"
PAGE_SIZE = 3
REVISIONS = ("main", "v1", "pr/3", COMMIT)


def etag_of(content, is_lfs):
    if is_lfs:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class FakeHub:
    """Serves the files of `folder` as the repository `repo`, as a context manager. A second origin has the contents of
    large files, as the hub's storage does."""

    def __init__(self, folder, repo="acme/books-4m"):
        self.repo = repo
        self.files = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*"))
                      if path.is_file()}
        self.requests = []  # (origin, path, headers)
        self.sent_bytes = collections.Counter()  # by file
        self.gated = False
        self.private = False
        self.failures = []  # statuses that answer the next requests for large files, before any content
        self.breaks = 0  # answers with contents that end in the middle
        self.corrupts = set()  # files of which one byte is wrong
        self.wrong_length = set()  # files that are announced with another size than the listing says
        self.serves_ranges = True
        self.limits = []  # header fields of answers 429 that the next requests to the API get
        self.lock = threading.Lock()

    @property
    def api_count(self):
        return sum(path.startswith("/api/") for _, path, _ in self.requests)

    def is_lfs(self, name):
        return name.endswith(".safetensors") or len(self.files[name]) > 100_000

    def __enter__(self):
        self.hub = self._start("hub")
        self.storage = self._start("storage")
        self.url = f"http://127.0.0.1:{self.hub.server_port}"
        self.storage_url = f"http://127.0.0.1:{self.storage.server_port}"
        return self

    def __exit__(self, *_):
        for server in (self.hub, self.storage):
            server.shutdown()
            server.server_close()

    def _start(self, origin):
        state = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                with state.lock:
                    state.requests.append((origin, self.path, dict(self.headers)))
                state.answer(self, origin)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def answer(self, request, origin):
        path, _, query = request.path.partition("?")
        path = urllib.parse.unquote(path)
        if origin == "storage":
            if not query.endswith("&Signature=a~b%2Fc"):
                return self.send_text(request, 403, "the signature does not fit")
            return self.send_file(request, path.removeprefix("/content/"))
        if self.private and request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.send_text(request, 401, "", {"X-Error-Code": "RepoNotFound"})
        given = request.headers.get("Authorization")
        if given and given == f"Bearer {EXPIRED_TOKEN}":
            message = "Invalid credentials in Authorization header"
            return self.send_text(request, 401, "", {"X-Error-Message": message})
        if path.startswith("/api/models/"):
            with self.lock:
                limit = self.limits.pop(0) if self.limits else None
            if limit is not None:
                return self.send_text(request, 429, "", limit)
            return self.answer_api(request, path.removeprefix("/api/models/"), query)
        prefix = next((f"/{self.repo}/resolve/{revision}/" for revision in REVISIONS
                       if path.startswith(f"/{self.repo}/resolve/{revision}/")), None)
        if prefix is None:
            return self.send_text(request, 404, "", {"X-Error-Code": "RepoNotFound"})
        name = path.removeprefix(prefix)
        if name not in self.files:
            return self.send_text(request, 404, "", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        if self.gated and request.headers.get("Authorization") != f"Bearer {TOKEN}":
            code = 403 if request.headers.get("Authorization") else 401
            return self.send_text(request, code, "", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
        if self.is_lfs(name):
            # Signed URLs of storage servers have characters that RFC 3986 wants encoded.
            signature = f'response-content-disposition=inline; filename="{name}"&Signature=a~b%2Fc'
            location = f"{self.storage_url}/content/{urllib.parse.quote(name)}?{signature}"
            content = self.files[name]
            return self.send_text(request, 302, "", {"Location": location, "X-Repo-Commit": COMMIT,
                                                     "X-Linked-Etag": f'"{etag_of(content, True)}"',
                                                     "X-Linked-Size": str(len(content))})
        return self.send_file(request, name, {"X-Repo-Commit": COMMIT,
                                              "ETag": f'"{etag_of(self.files[name], False)}"'})

    def answer_api(self, request, rest, query):
        if rest.startswith("acme/old-name"):  # a repository that was renamed
            location = "/api/models/" + self.repo + rest.removeprefix("acme/old-name") + ("?" + query if query else "")
            return self.send_text(request, 307, "", {"Location": location})
        if not rest.startswith(self.repo + "/"):
            return self.send_text(request, 404, "", {"X-Error-Code": "RepoNotFound"})
        kind, _, revision = rest.removeprefix(self.repo + "/").partition("/")
        if kind == "revision":
            if revision not in REVISIONS:
                return self.send_text(request, 404, "", {"X-Error-Code": "RevisionNotFound"})
            siblings = [{"rfilename": name} for name in sorted(self.files)]
            return self.send_text(request, 200, json.dumps({"id": self.repo, "sha": COMMIT, "gated": self.gated,
                                                            "siblings": siblings}))
        names = sorted(self.files)
        begin = int(urllib.parse.parse_qs(query).get("cursor", ["0"])[0])
        page = [self.entry(name) for name in names[begin:begin + PAGE_SIZE]]
        page.append({"type": "directory", "path": "folder", "size": 0, "oid": "0" * 40})
        headers = {}
        if begin + PAGE_SIZE < len(names):
            url = f"{self.url}/api/models/{self.repo}/tree/{COMMIT}?recursive=true&cursor={begin + PAGE_SIZE}"
            headers["Link"] = f'<{url}>; rel="next"'
        return self.send_text(request, 200, json.dumps(page), headers)

    def entry(self, name):
        content = self.files[name]
        entry = {"type": "file", "path": name, "size": len(content), "oid": etag_of(content, False)}
        if self.is_lfs(name):
            entry["lfs"] = {"oid": etag_of(content, True), "size": len(content), "pointerSize": 130}
        return entry

    def send_text(self, request, status, text, headers=None):
        body = text.encode()
        request.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)

    def send_file(self, request, name, headers=None):
        with self.lock:
            failure = self.failures.pop(0) if self.failures and self.is_lfs(name) else None
            breaks = self.breaks > 0 and name.endswith(".safetensors")
            self.breaks -= breaks
        if failure:
            return self.send_text(request, failure, "", {"Retry-After": "0"})
        content = self.files[name]
        if name in self.corrupts:
            content = content[:-1] + bytes([content[-1] ^ 1])
        begin, end = 0, len(content)
        asked = request.headers.get("Range")
        if asked and self.serves_ranges:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            begin, end = int(first), int(last) + 1 if last else len(content)
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        else:
            request.send_response(200)
        for field, value in (headers or {}).items():
            request.send_header(field, value)
        length = end - begin + (7 if name in self.wrong_length else 0)
        request.send_header("Content-Length", str(length))
        request.end_headers()
        if request.command == "HEAD":
            return
        part = content[begin:end]
        if breaks:
            part = part[:len(part) // 2]
        request.wfile.write(part)
        with self.lock:
            self.sent_bytes[name] += len(part)
        if breaks:
            request.wfile.flush()
            request.connection.close()
            request.close_connection = True
