"""Two pages on loopback for the browsers to open."""

import http.server
import threading

PAGES = {
    "/one": ("First page", "Alpha heading"),
    "/two": ("Second page", "Beta heading"),
}


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        page = PAGES.get(self.path)
        if not page:
            self.send_error(404)
            return
        title, heading = page
        body = f"<!doctype html><html lang=en><title>{title}</title><link rel=icon href=data:,><h1>{heading}</h1><button>Press</button>".encode()
        self.send_response(200)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing: what counts is what the browsers show."""


def serve() -> tuple[http.server.ThreadingHTTPServer, str]:
    """A running server and its URL."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}"
