"""A host on this machine that behaves well or badly, by the first part of the path."""

import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        _, how, name = self.path.split("/", 2)
        self.server.asked.append((how, self.headers.get("Range")))
        getattr(self, f"do_{how}")(self.server.files.get(name, b""))

    def send(self, content, sent=None, told=None, start=0, status=200):
        self.send_response(status)
        if told != "nothing":
            self.send_header("Content-Length", str(len(content) - start if told is None else told))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content[start:sent])
        self.close_connection = True

    def start(self):
        asked = self.headers.get("Range")
        return int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0

    def do_good(self, content):
        start = self.start()
        if start and start >= len(content):
            self.send(b"", status=416)
        else:
            self.send(content, start=start, status=206 if start else 200)

    def do_slow(self, content):
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        for at in range(0, len(content), -(-len(content) // 8)):
            time.sleep(0.05)
            self.wfile.write(content[at : at + -(-len(content) // 8)])

    def do_cut(self, content):
        """Half of what is missing, each time."""
        start = self.start()
        self.send(content, start + (len(content) - start) // 2, start=start, status=206 if start else 200)

    def do_once(self, content):
        """Cut off the first time only."""
        self.do_good(content) if self.start() else self.do_cut(content)

    def do_norange(self, content):
        """Deaf to Range; cut off the first time."""
        first = sum(how == "norange" for how, _ in self.server.asked) == 1
        self.send(content, len(content) // 2 if first else None)

    def do_silent(self, content):
        self.send(content[: len(content) // 2], told=len(content))
        self.close_connection = False
        self.wfile.flush()
        self.server.stop.wait(5)
        self.close_connection = True

    def do_deaf(self, content):
        self.server.stop.wait(5)
        self.close_connection = True

    def do_wrong(self, content):
        self.send(bytes(byte ^ 1 for byte in content))

    def do_more(self, content):
        self.send(content + b"more")

    def do_endless(self, content):
        self.send(content * 50, told="nothing")

    def do_missing(self, content):
        self.send(b"not here", status=404)

    def do_loop(self, content):
        self.redirect(self.path)

    def do_moved(self, content):
        self.redirect(self.path.replace("/moved/", "/good/"))

    def do_local(self, content):
        self.redirect("file:///etc/passwd")

    def do_ftp(self, content):
        self.redirect("ftp://127.0.0.1/file")

    def redirect(self, where):
        self.send_response(302)
        self.send_header("Location", where)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@contextmanager
def host(files):
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.asked, server.stop = files, [], threading.Event()
        server.handle_error = lambda *_: None
        server.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.stop.set()
        server.shutdown()
        thread.join()
