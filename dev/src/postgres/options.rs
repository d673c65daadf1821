//! What a server is to be, and how it is stopped.

use std::path::PathBuf;

use rustix::process::Signal;

use crate::provision;

/// Names the major version of servers of our own that none is said for, so that the same tests run on each.
pub const MAJOR_VARIABLE: &str = "WALRELAY_TEST_POSTGRES";

/// What the server is to be.
#[derive(Debug, Clone)]
pub struct Options {
    /// Major version, 14 to 18, or 19 (a release candidate).
    pub major: u32,
    /// More lines of `postgresql.conf`; they win over ours.
    pub settings: Vec<(String, String)>,
    /// Lines of `pg_hba.conf`; none: trust everybody from this machine. User `postgres` on the Unix socket is trusted
    /// in any case, because it creates databases and asks for readiness.
    pub hba: Vec<String>,
    /// Turns TLS on.
    pub tls: Option<TlsFiles>,
    /// A new cluster, with a system identifier of its own: the others are copies of one.
    pub another_cluster: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { major: default_major(), settings: Vec::new(), hba: Vec::new(), tls: None, another_cluster: false }
    }
}

/// PEM files, which are copied next to the data.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The server's certificate, with its chain.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Who signs clients' certificates; `None`: they need none.
    pub client_authority: Option<PathBuf>,
}

/// How a server is stopped, as `pg_ctl -m` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Accepts no new sessions, waits until all have ended, and then stops as `Fast` does.
    Smart,
    /// Ends sessions, waits until every walsender has sent what there is, writes a checkpoint.
    Fast,
    /// Ends at once; the next start recovers from the WAL.
    Immediate,
}

impl Mode {
    pub(super) fn signal(self) -> Signal {
        match self {
            Self::Smart => Signal::TERM,
            Self::Fast => Signal::INT,
            Self::Immediate => Signal::QUIT,
        }
    }
}

/// The version of `WALRELAY_TEST_POSTGRES` if that is set, else the usual one. What is no number is 0, which no server has.
pub fn default_major() -> u32 {
    let named = std::env::var(MAJOR_VARIABLE).ok().filter(|text| !text.is_empty());
    named.map_or(provision::DEFAULT_POSTGRES, |text| text.parse().unwrap_or_default())
}
