//! `Exit`: the exit codes of the process.

use std::process::ExitCode;

/// The exit code of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exit {
    /// 0: success; the request is allowed.
    Success,
    /// 1: a negative result: a file has errors, a test failed, the request is denied.
    Negative,
    /// 2: no result: the arguments or files are unusable.
    Usage,
    /// 3: the store failed, or a running server cannot be reached.
    Store,
}

impl Exit {
    /// The number.
    pub const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Negative => 1,
            Self::Usage => 2,
            Self::Store => 3,
        }
    }

    /// [`Success`](Self::Success) or [`Negative`](Self::Negative).
    pub const fn from_success(success: bool) -> Self {
        if success { Self::Success } else { Self::Negative }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}
