//! `Place`: the file that the report goes to. Whether it can be written is known before the run, and a run that comes to nothing
//! leaves nothing.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;
use tidegate_server::command::Failure;

/// A file that can be written.
pub(crate) struct Place<'a> {
    path: &'a Path,
    /// Whether it is to be taken away again, since it was not there before and nothing is in it yet.
    is_empty: bool,
}

impl<'a> Place<'a> {
    /// Makes sure that it can be written. What is in it stays until then.
    pub(crate) fn reserve(path: &'a Path) -> Result<Self, Failure> {
        let is_empty = !path.exists();
        OpenOptions::new().append(true).create(true).open(path).map_err(|error| unwritten(path, &error))?;
        Ok(Self { path, is_empty })
    }

    /// Writes it.
    pub(crate) fn write(mut self, text: &str) -> Result<(), Failure> {
        fs::write(self.path, text).map_err(|error| unwritten(self.path, &error))?;
        self.is_empty = false;
        Ok(())
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.is_empty {
            // It is empty, and nobody waits for it.
            let _ = fs::remove_file(self.path);
        }
    }
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    Failure::usage(format!("--report {}: {error}; choose another file", path.display()))
}
