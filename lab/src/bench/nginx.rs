//! nginx as a gateway for comparison: the same upstream and forwarding headers, one worker. Its files are in a folder that the
//! caller deletes.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use conformance::process::Process;
use rustix::process::Signal;
use tidegate_server::command::Failure;

use super::launcher::exit_failure;

/// By name, and where Debian installs it outside the `PATH` of normal users.
const PROGRAMS: [&str; 2] = ["nginx", "/usr/sbin/nginx"];

/// Starts nginx; `None` if it is not installed.
pub(crate) fn start(
    folder: &Path,
    upstream: SocketAddr,
    limits: bool,
) -> Result<Option<(Process, SocketAddr)>, Failure> {
    let failed = |error: io::Error| Failure::usage(format!("cannot start nginx: {error}"));
    let folder = folder.join(if limits { "nginx-limits" } else { "nginx" });
    std::fs::create_dir_all(&folder).map_err(failed)?;
    // nginx cannot listen on port 0, so a free port is found for it.
    let address =
        std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()).map_err(failed)?;
    let file = folder.join("nginx.conf");
    std::fs::write(&file, config(&folder, address, upstream, limits)).map_err(failed)?;
    for program in PROGRAMS {
        let mut command = Command::new(program);
        command.arg("-p").arg(&folder).arg("-c").arg(&file).args(["-e", "stderr"]);
        match Process::try_start(&mut command) {
            Ok(process) => {
                // So that it stops its workers.
                let mut process = process.with_end_signal(Signal::TERM);
                process.wait_until_listening(address).map_err(|output| exit_failure(&output))?;
                return Ok(Some((process, address)));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(None)
}

fn config(folder: &Path, address: SocketAddr, upstream: SocketAddr, limits: bool) -> String {
    let folder = folder.display();
    let (zone, limit) = if limits {
        (
            "limit_req_zone $binary_remote_addr zone=clients:10m rate=1000000r/s;",
            "limit_req zone=clients burst=1000000 nodelay;",
        )
    } else {
        ("", "")
    };
    format!(
        "daemon off;
worker_processes 1;
error_log stderr crit;
pid {folder}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000000;
  {zone}
  upstream service {{ server {upstream}; keepalive 1024; keepalive_requests 1000000000; }}
  server {{
    listen {address};
    location / {{
      {limit}
      proxy_pass http://service;
      proxy_http_version 1.1;
      proxy_set_header Connection '';
      proxy_set_header Host $http_host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header X-Forwarded-Host $http_host;
    }}
  }}
}}
"
    )
}
