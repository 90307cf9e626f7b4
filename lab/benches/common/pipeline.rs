//! `Pipeline`: a raw connection that pipelines commands, for comparisons.

use std::io::{Read, Write};
use std::net::TcpStream;

use conformance::server::Server;

/// Commands per batch; the store is driven in batches of the same size.
pub(crate) const BATCH_SIZE: usize = 500;

/// A connection for commands with one-line replies.
pub(crate) struct Pipeline {
    stream: TcpStream,
    unsent: Vec<u8>,
    waiting: usize,
}

impl Pipeline {
    pub(crate) fn connect(server: &Server) -> Self {
        let address = server.bare_url().replace("redis://", "");
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, unsent: Vec::new(), waiting: 0 }
    }

    /// Sends commands in batches and waits for all replies.
    pub(crate) fn send(&mut self, commands: impl IntoIterator<Item = redis::Cmd>) {
        for command in commands {
            command.write_packed_command(&mut self.unsent);
            self.waiting += 1;
            if self.waiting == BATCH_SIZE {
                self.flush();
            }
        }
        self.flush();
    }

    fn flush(&mut self) {
        self.stream.write_all(&self.unsent).unwrap();
        self.unsent.clear();
        let mut buffer = [0; 16384];
        while self.waiting > 0 {
            let length = self.stream.read(&mut buffer).unwrap();
            let answers = &buffer[..length];
            assert!(length > 0 && !answers.contains(&b'-'), "the server failed: {}", String::from_utf8_lossy(answers));
            self.waiting -= answers.split(|byte| *byte == b'\n').count() - 1;
        }
    }
}
