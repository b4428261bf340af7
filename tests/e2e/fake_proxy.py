"""An HTTP proxy that passes plain requests on, and answers requests for tunnels with a status. Every name is this machine."""

import http.client
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeProxy:
    """Runs as a context manager."""

    def __init__(self):
        self.requests = []  # (target, Proxy-Authorization)
        self.status = 403  # of tunnels

    def __enter__(self):
        state = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                state.requests.append((self.path, self.headers.get("Proxy-Authorization")))
                url = urllib.parse.urlsplit(self.path)
                connection = http.client.HTTPConnection("127.0.0.1", url.port)
                connection.request("GET", self.path.split(url.netloc, 1)[1], headers=dict(self.headers))
                answer = connection.getresponse()
                body = answer.read()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name not in ("Server", "Date"):
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
                connection.close()

            def do_CONNECT(self):
                state.requests.append((self.path, self.headers.get("Proxy-Authorization")))
                self.send_response(state.status)
                self.end_headers()
                self.close_connection = True

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
