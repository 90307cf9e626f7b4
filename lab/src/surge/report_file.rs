//! `ReportFile`: a file that the run writes at its end. Whether it can be written is checked before the run, and a run that fails leaves no
//! empty file behind.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use tidegate_server::command::Failure;

/// A file that can be written.
pub(crate) struct ReportFile<'a> {
    /// The option that names it.
    option: &'static str,
    path: &'a Path,
    /// Whether the file is new and still empty, so that it is removed on drop.
    remove_on_drop: bool,
}

impl<'a> ReportFile<'a> {
    /// Checks that the file can be written. An existing file keeps its content until [`write`](Self::write).
    pub(crate) fn reserve(option: &'static str, path: &'a Path) -> Result<Self, Failure> {
        let remove_on_drop = !path.exists();
        OpenOptions::new().append(true).create(true).open(path).map_err(|error| write_failure(option, path, &error))?;
        Ok(Self { option, path, remove_on_drop })
    }

    /// Replaces the content of the file.
    pub(crate) fn write(mut self, text: &str) -> Result<(), Failure> {
        fs::write(self.path, text).map_err(|error| write_failure(self.option, self.path, &error))?;
        self.remove_on_drop = false;
        Ok(())
    }
}

impl Drop for ReportFile<'_> {
    fn drop(&mut self) {
        if self.remove_on_drop {
            // An empty file that stays behind does no harm.
            let _ = fs::remove_file(self.path);
        }
    }
}

fn write_failure(option: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::usage(format!("{option} {}: {error}; choose another file", path.display()))
}
