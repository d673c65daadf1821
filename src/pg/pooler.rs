//! Detects a pooler between walrelay and the server, from its address or its answers.
//!
//! In: the error of a connection attempt, and the host's name. Out: the pooler, and how to connect without it. Pure.

use super::error::Error;

/// The pooler between walrelay and the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pooler {
    /// Its name for people.
    pub(crate) name: &'static str,
    /// How to connect without it.
    pub(crate) way_around: &'static str,
}

/// PgBouncer before 1.23, or a later one that is configured like it.
static PGBOUNCER: Pooler = Pooler {
    name: "PgBouncer",
    way_around: "use the direct port: --source with Postgres' own address (often port 5432), or PgBouncer 1.23 or later, which passes replication connections",
};

static SUPABASE: Pooler = Pooler {
    name: "Supabase's pooler",
    way_around: "use the direct port: --source postgres://postgres@db.REF.supabase.co:5432/postgres",
};

static NEON: Pooler =
    Pooler { name: "Neon's pooler", way_around: "use the direct port: --source with the host's name without -pooler" };

/// Any pooler that returns an ordinary session if a replication connection is requested.
static ANY: Pooler =
    Pooler { name: "a pooler", way_around: "use the direct port: --source with Postgres' own address" };

impl Pooler {
    /// Detects the pooler by the host's address, or by its answer to the connection attempt. `host`: `name:port`.
    pub(crate) fn recognise(host: &str, error: &Error) -> Option<&'static Self> {
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        if name.ends_with(".pooler.supabase.com") {
            return Some(&SUPABASE);
        }
        if name.ends_with(".neon.tech") && name.contains("-pooler.") {
            return Some(&NEON);
        }
        let error = error.server_error()?;
        match error.code.as_str() {
            // This is PgBouncer's text. The code alone is not enough.
            PROTOCOL_VIOLATION if error.message.contains("startup parameter") => Some(&PGBOUNCER),
            PROTOCOL_VIOLATION if error.message.contains("replication connection") => Some(&PGBOUNCER),
            // The pooler took IDENTIFY_SYSTEM for SQL.
            SYNTAX_ERROR => Some(&ANY),
            _ => None,
        }
    }
}

/// `protocol_violation`.
const PROTOCOL_VIOLATION: &str = "08P01";

/// `syntax_error`.
const SYNTAX_ERROR: &str = "42601";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pg::ServerError;

    fn answer(code: &str, message: &str) -> Error {
        let error = ServerError { code: code.to_owned(), message: message.to_owned(), ..ServerError::default() };
        Error::Server { doing: "connecting".to_owned(), error: Box::new(error) }
    }

    #[test]
    fn a_pooler_is_known_by_its_address_or_by_its_answer() {
        let refused = answer("08P01", "unsupported startup parameter: replication");
        assert_eq!(Pooler::recognise("db:6432", &refused), Some(&PGBOUNCER));
        assert_eq!(Pooler::recognise("db:5432", &answer("42601", "syntax error")), Some(&ANY));
        assert_eq!(Pooler::recognise("db:5432", &answer("28P01", "password")), None);
        let ended = Error::Ended;
        assert_eq!(Pooler::recognise("aws-0-eu.pooler.supabase.com:6543", &ended), Some(&SUPABASE));
        assert_eq!(Pooler::recognise("ep-x-pooler.eu.aws.neon.tech:5432", &ended), Some(&NEON));
    }
}
