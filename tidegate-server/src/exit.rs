//! `Exit`: how the program ends, for scripts. It says nothing itself.

use std::process::ExitCode;

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exit {
    /// 0: all is well; the request is allowed.
    Fine,
    /// 1: the answer is no: a file has errors, a test failed, the request is denied.
    No,
    /// 2: the question cannot be answered: arguments or files are not usable.
    Usage,
    /// 3: the store failed.
    Store,
}

impl Exit {
    /// The number.
    pub const fn code(self) -> u8 {
        match self {
            Self::Fine => 0,
            Self::No => 1,
            Self::Usage => 2,
            Self::Store => 3,
        }
    }

    /// [`Fine`](Self::Fine) or [`No`](Self::No).
    pub(crate) const fn yes(yes: bool) -> Self {
        if yes { Self::Fine } else { Self::No }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}
