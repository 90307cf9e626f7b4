//! `Child`: a server that was started to be measured, what it says, and the processor time it has used. It ends with its
//! owner.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{ChildStderr, ChildStdout, Command, Stdio};
use std::time::Duration;
use std::{fs, io};

use rustix::process::{Pid, Signal, kill_process};
use tidegate_server::command::Failure;

/// A server that runs until this is dropped.
pub(crate) struct Child {
    process: std::process::Child,
    said: BufReader<ChildStdout>,
    errors: BufReader<ChildStderr>,
}

impl Child {
    /// Starts it, on the core of the thread that asks.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (said, errors) = (process.stdout.take(), process.stderr.take());
        let (Some(said), Some(errors)) = (said, errors) else { return Err(io::Error::other("no pipe")) };
        Ok(Self { process, said: BufReader::new(said), errors: BufReader::new(errors) })
    }

    /// The number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits for the line that begins with `word`, and reads the address in it.
    pub(crate) fn address(&mut self, word: &str) -> Result<SocketAddr, Failure> {
        let mut heard = String::new();
        loop {
            let begin = heard.len();
            if !matches!(self.said.read_line(&mut heard), Ok(1..)) {
                return Err(self.ended());
            }
            if let Some(address) = heard[begin..].strip_prefix(word).and_then(address) {
                return Ok(address);
            }
        }
    }

    /// Waits until somebody listens there, or it has ended.
    pub(crate) fn listens(&mut self, address: SocketAddr) -> Result<(), Failure> {
        while TcpStream::connect(address).is_err() {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return Err(self.ended());
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Why it has ended, in its own words.
    fn ended(&mut self) -> Failure {
        let mut errors = String::new();
        while matches!(self.errors.read_line(&mut errors), Ok(1..)) {}
        Failure::usage(format!("a server that was to be measured ended:\n{}", errors.trim_end()))
    }

    /// The processor time of all its threads, and of the processes that it has started.
    pub(crate) fn cpu(&self) -> Result<Duration, Failure> {
        let failed = |error: io::Error| Failure::usage(format!("the CPU time of a server cannot be read: {error}"));
        let own = Path::new("/proc").join(self.process.id().to_string());
        let mut nanos = threads(&own).map_err(failed)?;
        let children = own.join("task").join(self.process.id().to_string()).join("children");
        for child in fs::read_to_string(children).unwrap_or_default().split_whitespace() {
            nanos += threads(&Path::new("/proc").join(child)).map_err(failed)?;
        }
        Ok(Duration::from_nanos(nanos))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Not `kill`, which would leave the workers of nginx behind.
        if kill_process(Pid::from_child(&self.process), Signal::TERM).is_err() {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}

/// Nanoseconds for which the threads of a process have run.
fn threads(process: &Path) -> io::Result<u64> {
    let mut sum = 0;
    for thread in fs::read_dir(process.join("task"))? {
        let status = fs::read_to_string(thread?.path().join("schedstat"))?;
        let nanos = status.split(' ').next().and_then(|nanos| nanos.parse::<u64>().ok());
        sum += nanos.ok_or_else(|| io::Error::other("schedstat has no number"))?;
    }
    Ok(sum)
}

/// The first word that is an address, with or without `http://` and a path.
fn address(text: &str) -> Option<SocketAddr> {
    text.split_whitespace()
        .find_map(|word| word.strip_prefix("http://").unwrap_or(word).split('/').next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_in_what_a_server_says() {
        let expected = Some("127.0.0.1:8081".parse().unwrap());
        assert_eq!(address("  127.0.0.1:8081 (gRPC)\n"), expected);
        assert_eq!(
            address("  http://127.0.0.1:8081/v1/check   (described in http://127.0.0.1:1/openapi.json)"),
            expected
        );
        assert_eq!(address("    http://127.0.0.1:8081\n"), expected);
        assert_eq!(address("nowhere"), None);
    }
}
