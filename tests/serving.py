"""A web server on this machine, for what is downloaded: PYTEST_DONT_REWRITE"""

import functools
import hashlib
import http.server
import threading

import pytest

from gcfed.data.downloads.catalog import Download


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `server.files`; answers are cut after `server.cut` bytes, ranges served if wanted."""

    def do_GET(self):
        self.server.asked.append(self.headers.get("Range"))
        body = self.server.files.get(self.path)
        if body is None:
            return self.send_error(404)
        start = 0
        if self.server.ranges and (asked := self.headers.get("Range")):
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(body):
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        if self.server.announces:
            self.send_header("Content-Length", str(len(body) - start))
        self.send_header("Content-Encoding", self.server.encoding)
        self.end_headers()
        self.wfile.write(body[start:][: self.server.cut])

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        """A client that has seen enough hangs up, which is no error of the server's."""

    def publish(self, file, body):
        """Serve a file; the source of it."""
        url = f"http://127.0.0.1:{self.server_port}/{file}"
        self.files.setdefault(f"/{file}", body)
        return Download(file, hashlib.md5(body).hexdigest(), len(body), (url,))


@pytest.fixture
def server():
    """A server for one test; what it should do is set on it."""
    with Server(("127.0.0.1", 0), Handler) as server:
        server.files, server.asked = {}, []
        server.cut, server.ranges, server.encoding = None, True, "identity"
        server.announces = True
        thread = threading.Thread(target=functools.partial(server.serve_forever, 0.01))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
