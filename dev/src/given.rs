//! A server that a variable names may stand in for one of our own, where nothing is done to its process.

use std::sync::OnceLock;

use anyhow::{Result, anyhow};

/// A server of our own that the user's can stand in for.
pub(crate) trait Replaceable {
    /// What it is.
    const NAME: &'static str;

    /// The variable that names the user's.
    const VARIABLE: &'static str;
}

/// A server: our own, or one that the user has, by its address.
#[derive(Debug)]
pub(crate) enum Given<T> {
    Own(Box<T>),
    External(String),
}

impl<T: Replaceable> Given<T> {
    /// The user's, if its variable is set.
    pub(crate) fn named() -> Option<Self> {
        std::env::var(T::VARIABLE).ok().filter(|address| !address.is_empty()).map(Self::External)
    }

    pub(crate) fn is_external(&self) -> bool {
        matches!(self, Self::External(_))
    }

    /// Our own, to `verb` it.
    pub(crate) fn own(&self, verb: &str) -> Result<&T> {
        match self {
            Self::Own(own) => Ok(own),
            Self::External(_) => Err(external::<T>(verb)),
        }
    }

    pub(crate) fn own_mut(&mut self, verb: &str) -> Result<&mut T> {
        match self {
            Self::Own(own) => Ok(own),
            Self::External(_) => Err(external::<T>(verb)),
        }
    }
}

fn external<T: Replaceable>(verb: &str) -> anyhow::Error {
    anyhow!("cannot {verb} the {} that {} names: it is yours; unset the variable", T::NAME, T::VARIABLE)
}

/// What all tests of a process share: started by the first that asks; the same error for everybody who asks.
pub(crate) fn shared<T>(
    place: &'static OnceLock<Result<T, String>>,
    start: impl FnOnce() -> Result<T>,
) -> Result<&'static T> {
    let shared = place.get_or_init(|| start().map_err(|error| format!("{error:#}")));
    shared.as_ref().map_err(|error| anyhow!("{error}"))
}
