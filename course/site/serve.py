"""Show the built site on localhost until Ctrl-C.

python -m course.site serve [PORT]      the first free port from 8000 if none is named
"""

import functools
import http.server
import sys

from . import BUILD


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files as they are now, and reports nothing."""

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
