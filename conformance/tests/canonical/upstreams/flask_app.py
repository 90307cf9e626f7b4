"""Reports what a Flask application reads from a request. Prints its port."""

import base64
import io
import json
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from flask import Flask, Response, request

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]

app = Flask(__name__)


def user():
    """The subject of a bearer token, as an application reads it that has verified the token elsewhere."""
    parts = request.headers.get("Authorization", "").split()
    if len(parts) != 2 or parts[0].lower() != "bearer" or parts[1].count(".") != 2:
        return None
    try:
        payload = parts[1].split(".")[1]
        return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))).get("sub")
    except ValueError:
        return None


@app.route("/", defaults={"path": ""}, methods=METHODS)
@app.route("/<path:path>", methods=METHODS)
def report(path):
    read = {
        "method": request.method,
        "paths": [request.path, request.headers.get("X-Original-Url"), request.headers.get("X-Rewrite-Url")],
        "keys": request.headers.getlist("X-Api-Key"),
        "accounts": request.args.getlist("account"),
        "sessions": request.cookies.getlist("sid"),
        "users": [user()],
        "hosts": [request.host, request.headers.get("X-Forwarded-Host")],
        "forwarded_for": request.headers.get("X-Forwarded-For"),
        "body": request.get_data().decode("latin1"),
    }
    return Response(json.dumps(read), content_type="application/json")


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128


class Handler(WSGIRequestHandler):
    def parse_request(self):
        """Reads a chunked body too, which this server does not by itself."""
        if not super().parse_request():
            return False
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile = io.BytesIO(body)
            del self.headers["Transfer-Encoding"]
            self.headers["Content-Length"] = str(len(body))
        return True

    def log_message(self, *arguments):
        pass


with make_server("127.0.0.1", 0, app, server_class=Server, handler_class=Handler) as server:
    print(f"port {server.server_port}", flush=True)
    server.serve_forever()
