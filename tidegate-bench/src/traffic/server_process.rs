//! `ServerProcess`: a server started for a measurement, with its stderr and CPU time. Dropping it stops the server.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;
use std::{fs, io};

use rustix::process::{Pid, Signal, kill_process};
use tidegate_server::command::Failure;

/// A server process that runs until this is dropped.
pub(crate) struct ServerProcess {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl ServerProcess {
    /// Starts the command. It inherits the CPU affinity of the calling thread.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let stderr = child.stderr.take().ok_or_else(|| io::Error::other("stderr is not piped"))?;
        Ok(Self { child, stderr: BufReader::new(stderr) })
    }

    /// The process ID.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the stderr line that begins with `prefix`, and parses the address in it.
    pub(crate) fn read_address(&mut self, prefix: &str) -> Result<SocketAddr, Failure> {
        let mut output = String::new();
        loop {
            let line_start = output.len();
            if !matches!(self.stderr.read_line(&mut output), Ok(1..)) {
                return Err(exit_failure(&output));
            }
            if let Some(address) = output[line_start..].strip_prefix(prefix).and_then(parse_address) {
                return Ok(address);
            }
        }
    }

    /// Waits until the address accepts connections. Fails if the process exits first.
    pub(crate) fn wait_until_listening(&mut self, address: SocketAddr) -> Result<(), Failure> {
        while TcpStream::connect(address).is_err() {
            if !matches!(self.child.try_wait(), Ok(None)) {
                let mut output = String::new();
                while matches!(self.stderr.read_line(&mut output), Ok(1..)) {}
                return Err(exit_failure(&output));
            }
            std::thread::yield_now();
        }
        Ok(())
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

fn exit_failure(output: &str) -> Failure {
    Failure::usage(format!("a server to be measured exited:\n{}", output.trim_end()))
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
