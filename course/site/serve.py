"""Show the built site on localhost until Ctrl-C.

python -m course.site serve [PORT]      the first free port from 8000 if none is named
"""

import functools
import gzip
import http.server
import io
import sys
from pathlib import Path

from . import BUILD

COMPRESSED = (".html", ".js", ".css", ".svg", ".json")


@functools.lru_cache(maxsize=64)
def compressed(path: Path, modified: float) -> bytes:
    """A file's bytes under gzip; ``modified`` tells its versions apart."""
    return gzip.compress(path.read_bytes(), compresslevel=6, mtime=0)


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files as they are now, texts under gzip as GitHub Pages does, and reports nothing."""

    def send_head(self):
        path = Path(self.translate_path(self.path))
        if path.suffix not in COMPRESSED or not path.is_file() or "gzip" not in self.headers.get("Accept-Encoding", ""):
            return super().send_head()
        body = compressed(path, path.stat().st_mtime)
        self.send_response(http.HTTPStatus.OK)
        self.send_header("Content-Type", self.guess_type(path))
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return io.BytesIO(body)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")  # a page built again shows at once
        super().end_headers()

    def log_message(self, *args) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    """Takes a port only if nobody listens on it."""

    allow_reuse_address = False
    daemon_threads = True


def server(directory: str, ports) -> Server:
    """A server of ``directory`` on the first free port of ``ports``, reachable from this machine only."""
    for port in ports:
        try:
            return Server(("127.0.0.1", port), functools.partial(Handler, directory=directory))
        except OSError:
            continue
    sys.exit(f"No free port among {ports[0]} to {ports[-1]}; name another: python3 -m course.site serve PORT")


def main(arguments: list[str]) -> None:
    ports = [int(arguments[0])] if arguments else [*range(8000, 8020), 0]
    with server(f"{BUILD}/html", ports) as site:
        print(f"The site is at http://localhost:{site.server_port}/ until Ctrl-C", flush=True)
        try:
            site.serve_forever()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main(sys.argv[1:])
