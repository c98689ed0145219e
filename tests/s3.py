"""An S3 server on loopback that counts what it hands out."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from urllib.request import Request, urlopen

KEY, SECRET = "AKIAOURKEY42", "sEcReTpAsSwOrD"
BUCKET = "bucket"
_DENIED = b"""<?xml version="1.0"?><Error><Code>AccessDenied</Code>
<Message>Access Denied for AKIAOURKEY42</Message></Error>"""


@dataclass
class S3:
    """The server; `fetched` has the key and the bytes of every answer with an object's content."""

    port: int = 0
    fetched: list[tuple[str, int]] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    requests: int = 0
    down: bool = False

    def url(self, path: str, bucket: str = BUCKET, port: int | None = None) -> str:
        """A URL with credentials and endpoint in it."""
        endpoint = f"endpoint_override=127.0.0.1:{port or self.port}&scheme=http&region=us-east-1"
        return f"s3://{KEY}:{SECRET}@{bucket}/{path}?{endpoint}"

    def bytes(self) -> int:
        """Of objects, handed out so far."""
        return sum(size for _, size in self.fetched)

    def counting(self, app: Any) -> Any:
        """The application with its answers counted; `denied` (or `down`) is refused."""

        def call(environ: dict[str, Any], start: Any) -> Any:
            method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
            self.requests += 1
            if path.startswith("/denied") or self.down:
                start("403 Forbidden", [("Content-Type", "application/xml")])
                return [b"" if method == "HEAD" else _DENIED]
            is_object = re.fullmatch(r"/[^/]+/.+", path)
            answer = app(environ, start)
            if method == "GET" and is_object:
                content = b"".join(answer)
                self.fetched.append((path, len(content)))
                return [content]
            if method == "PUT" and is_object:
                self.written.append(path)
            return answer

        return call


@contextmanager
def s3_server() -> Iterator[S3]:
    """A server with one empty bucket."""
    serving: Any = import_module("werkzeug.serving")
    application: Any = import_module("moto.moto_server.werkzeug_app")

    class Quiet(serving.WSGIRequestHandler):  # type: ignore[misc]
        def log(self, *arguments: object) -> None:
            pass

    s3 = S3()
    app = application.DomainDispatcherApplication(application.create_backend_app)
    server = serving.make_server(
        "127.0.0.1", 0, s3.counting(app), threaded=True, request_handler=Quiet
    )
    s3.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        reset = Request(f"http://127.0.0.1:{s3.port}/moto-api/reset", method="POST")
        urlopen(reset).close()  # what earlier servers of this process had is still there
        fs: Any = import_module("pyarrow.fs")
        fs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            endpoint_override=f"http://127.0.0.1:{s3.port}",
            region="us-east-1",
            allow_bucket_creation=True,
        ).create_dir(BUCKET)
        yield s3
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
