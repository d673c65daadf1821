//! The session that has a lock, for messages and hints.
//!
//! In: the columns of a query. Out: the session's description, and the SQL that ends the lock. Pure.

use super::quoting::literal;

/// The session that has a lock. A field is `None` if the connection's role may not see it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LockHolder {
    /// The server process. `None`: a prepared transaction has the lock.
    pub pid: Option<u32>,
    /// The name of the prepared transaction.
    pub gid: Option<String>,
    /// The session's `application_name`.
    pub application: Option<String>,
    /// `active`, `idle in transaction`, …
    pub state: Option<String>,
    /// Seconds since its transaction began.
    pub open_for_s: Option<u64>,
}

impl std::fmt::Display for LockHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.pid, &self.gid) {
            (Some(pid), _) => write!(f, "process {pid}")?,
            (None, Some(gid)) => return write!(f, "prepared transaction {}", literal(gid)),
            (None, None) => return f.write_str("another transaction"),
        }
        let open = self.open_for_s.map(|seconds| format!("transaction open for {seconds} s"));
        let facts: Vec<String> = [self.application.clone(), self.state.clone(), open].into_iter().flatten().collect();
        if facts.is_empty() { Ok(()) } else { write!(f, " ({})", facts.join(", ")) }
    }
}

impl LockHolder {
    /// The way to end the lock: SQL, and words where only the transaction manager, or the application that prepared the transaction, can decide. `None`: the holder is not known.
    pub fn way_to_end(&self) -> Option<String> {
        match (self.pid, &self.gid) {
            (Some(pid), _) => Some(format!("SELECT pg_terminate_backend({pid});")),
            (None, Some(gid)) => Some(format!(
                "COMMIT PREPARED or ROLLBACK PREPARED of {}, as its transaction manager or the application has decided",
                literal(gid)
            )),
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_named_with_what_is_seen_of_it_and_what_ends_it() {
        let mut holder = LockHolder { pid: Some(42), ..LockHolder::default() };
        assert_eq!(holder.to_string(), "process 42");
        holder.application = Some("psql".to_owned());
        holder.state = Some("idle in transaction".to_owned());
        holder.open_for_s = Some(7);
        assert_eq!(holder.to_string(), "process 42 (psql, idle in transaction, transaction open for 7 s)");
        assert_eq!(holder.way_to_end().as_deref(), Some("SELECT pg_terminate_backend(42);"));
        let prepared = LockHolder { gid: Some("it's".to_owned()), ..LockHolder::default() };
        assert_eq!(prepared.to_string(), "prepared transaction 'it''s'");
        assert!(
            prepared
                .way_to_end()
                .unwrap()
                .ends_with("of 'it''s', as its transaction manager or the application has decided")
        );
        assert_eq!(LockHolder::default().way_to_end(), None);
    }
}
