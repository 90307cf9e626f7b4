//! `ServerProcess`: a server started for a measurement, with its output and CPU time. Dropping it stops the server.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::Duration;
use std::{fs, io};

use rustix::process::{Pid, Signal, kill_process};
use tidegate_server::command::Failure;

/// A server process that runs until this is dropped.
pub(crate) struct ServerProcess {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: ChildStderr,
}

impl ServerProcess {
    /// Starts the command. It inherits the CPU affinity of the calling thread.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(io::Error::other("the output is not piped"));
        };
        Ok(Self { child, stdout: BufReader::new(stdout), stderr })
    }

    /// The process ID.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the line of output that begins with `prefix`, and parses the address in it.
    pub(crate) fn read_address(&mut self, prefix: &str) -> Result<SocketAddr, Failure> {
        loop {
            let mut line = String::new();
            if !matches!(self.stdout.read_line(&mut line), Ok(1..)) {
                return Err(self.exit_failure());
            }
            if let Some(address) = line.strip_prefix(prefix).and_then(parse_address) {
                return Ok(address);
            }
        }
    }

    /// Waits until the address accepts connections. Fails if the process exits first.
    pub(crate) fn wait_until_listening(&mut self, address: SocketAddr) -> Result<(), Failure> {
        while TcpStream::connect(address).is_err() {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return Err(self.exit_failure());
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// The failure of a process that has exited, with its errors.
    fn exit_failure(&mut self) -> Failure {
        let mut errors = Vec::new();
        // What could be read is enough.
        let _ = self.stderr.read_to_end(&mut errors);
        Failure::usage(format!("a server to be measured exited:\n{}", String::from_utf8_lossy(&errors).trim_end()))
    }

    /// The CPU time of all threads of the process and of its direct children.
    pub(crate) fn cpu_time(&self) -> Result<Duration, Failure> {
        let failed = |error: io::Error| Failure::usage(format!("cannot read the CPU time of a server: {error}"));
        let process = Path::new("/proc").join(self.child.id().to_string());
        let mut nanos = thread_nanos(&process).map_err(failed)?;
        let children = process.join("task").join(self.child.id().to_string()).join("children");
        for child in fs::read_to_string(children).unwrap_or_default().split_whitespace() {
            nanos += thread_nanos(&Path::new("/proc").join(child)).map_err(failed)?;
        }
        Ok(Duration::from_nanos(nanos))
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // SIGTERM rather than SIGKILL: nginx must stop its workers.
        if kill_process(Pid::from_child(&self.child), Signal::TERM).is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Nanoseconds of CPU time of all threads of a process.
fn thread_nanos(process: &Path) -> io::Result<u64> {
    let mut sum = 0;
    for thread in fs::read_dir(process.join("task"))? {
        let status = fs::read_to_string(thread?.path().join("schedstat"))?;
        let nanos = status.split(' ').next().and_then(|nanos| nanos.parse::<u64>().ok());
        sum += nanos.ok_or_else(|| io::Error::other("schedstat does not begin with a number"))?;
    }
    Ok(sum)
}

/// The first word that is a socket address, with or without `http://` and a path.
fn parse_address(text: &str) -> Option<SocketAddr> {
    text.split_whitespace()
        .find_map(|word| word.strip_prefix("http://").unwrap_or(word).split('/').next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_parsed_from_the_start_page_of_a_server() {
        let expected = Some("127.0.0.1:8081".parse().unwrap());
        assert_eq!(parse_address("  127.0.0.1:8081 (gRPC)\n"), expected);
        assert_eq!(
            parse_address("  http://127.0.0.1:8081/v1/check   (described in http://127.0.0.1:1/openapi.json)"),
            expected
        );
        assert_eq!(parse_address("    http://127.0.0.1:8081\n"), expected);
        assert_eq!(parse_address("nowhere"), None);
    }
}
