//! `Upstream`: a real server behind the gateway. It answers `handler NAME TARGET`: the handler that it chose, and the request target
//! that it received.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use conformance::process::{Process, program};
use conformance::server::free_port;

/// nginx decodes a path, removes empty segments and resolves dots before it chooses a location.
const NGINX_CONF: &str = "
pid nginx.pid;
error_log stderr;
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server {
        listen 127.0.0.1:PORT;
        location = /api/login { return 200 'handler login $request_uri'; }
        location ~ ^/api/.    { return 200 'handler api $request_uri'; }
        location = /healthz   { return 200 'handler healthz $request_uri'; }
        location /            { return 200 'handler other $request_uri'; }
    }
}
";

/// Werkzeug decodes a path before it chooses a route, and resolves no dots.
const FLASK_APP: &str = "
import sys
from flask import Flask, request

app = Flask(__name__)

def answer(handler):
    return f\"handler {handler} {request.environ['RAW_URI']}\"

@app.route('/api/login', strict_slashes=False)
def login():
    return answer('login')

@app.route('/api/<path:rest>')
def api(rest):
    return answer('api')

@app.route('/healthz')
def healthz():
    return answer('healthz')

@app.route('/')
@app.route('/<path:rest>')
def other(rest=None):
    return answer('other')

app.run(host='127.0.0.1', port=int(sys.argv[1]))
";

/// A running upstream.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    _process: Process,
    _directory: TempDir,
}

impl Upstream {
    pub(crate) fn start_nginx() -> Self {
        Self::start("nginx", |directory, port| {
            std::fs::write(directory.join("nginx.conf"), NGINX_CONF.replace("PORT", &port.to_string())).unwrap();
            let mut command = Command::new(program("nginx"));
            // One process, so that a kill leaves no worker behind.
            command.arg("-p").arg(directory).arg("-c").arg(directory.join("nginx.conf")).args(["-e", "stderr"]);
            command.args(["-g", "daemon off; master_process off;"]);
            command
        })
    }

    pub(crate) fn start_flask() -> Self {
        Self::start("flask", |directory, port| {
            std::fs::write(directory.join("app.py"), FLASK_APP).unwrap();
            let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/python/bin/python");
            assert!(python.exists(), "Flask is missing: `make tools-prove` installs it");
            let mut command = Command::new(python);
            command.arg("app.py").arg(port.to_string());
            command
        })
    }

    /// Starts a server. Another process may take its port first: then it exits, and is started on another port.
    fn start(name: &str, command: impl Fn(&Path, u16) -> Command) -> Self {
        for _ in 0..20 {
            let (directory, port) = (TempDir::new().unwrap(), free_port());
            let mut process = Process::start(command(directory.path(), port).current_dir(directory.path()));
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            if process.wait_until_listening(address).is_ok() {
                return Self { address, _process: process, _directory: directory };
            }
        }
        panic!("{name} does not start")
    }
}
