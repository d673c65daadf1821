//! Names and addresses: slot, publication, tables, columns, the HTTP address.
//!
//! In: texts. Out: names that Postgres takes, an address to bind. Whether anything has these names is not known here.

use crate::pgoutput::{PublishedTable, Relation};
use std::fmt;

/// Postgres cuts names off after so many bytes (NAMEDATALEN - 1).
pub const MAX_NAME_BYTES: usize = 63;

/// What a slot may be called, for messages.
pub(super) const SLOT: &str = "1 to 63 lower-case letters, digits and underscores";

/// What a name may be, for messages.
pub(super) const NAME: &str = "a name of 1 to 63 bytes";

/// What a table may look like, for messages.
pub(super) const TABLE: &str =
    "SCHEMA.TABLE or TABLE, with parts in double quotes to keep their case: public.\"Outbox\"";

/// What an address may look like, for messages.
pub(super) const HTTP: &str = "HOST:PORT, :PORT for every address, or off";

/// A table's name, as Postgres stores it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName {
    /// The schema; `public` when none was given.
    pub schema: String,
    /// The table.
    pub name: String,
}

impl TableName {
    /// Whether `relation` is this table.
    pub fn names(&self, relation: &Relation) -> bool {
        self.schema == relation.namespace && self.name == relation.name
    }

    /// Whether `table` is this table or a partition of it.
    pub fn covers(&self, table: &PublishedTable) -> bool {
        self.names(&table.relation)
            || table.ancestors.iter().any(|(schema, name)| *schema == self.schema && *name == self.name)
    }
}

impl fmt::Display for TableName {
    /// `public.outbox`, without quotes: for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

impl TableName {
    /// Reads it as SQL does: what is not in double quotes is folded to lower case. `None`: it is no table's name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (first, rest) = identifier(text.trim())?;
        match rest.strip_prefix('.') {
            None if rest.is_empty() => Some(Self { schema: "public".to_owned(), name: first }),
            None => None,
            Some(rest) => match identifier(rest)? {
                (name, "") => Some(Self { schema: first, name }),
                _ => None,
            },
        }
    }
}

/// One identifier, and the text after it.
fn identifier(text: &str) -> Option<(String, &str)> {
    let (name, rest) = match text.strip_prefix('"') {
        Some(quoted) => quoted_identifier(quoted)?,
        None => plain_identifier(text)?,
    };
    is_name(&name).then_some((name, rest))
}

/// Up to a dot or a quote, folded as Postgres does: letters beyond ASCII stay.
fn plain_identifier(text: &str) -> Option<(String, &str)> {
    let (name, rest) = text.split_at_checked(text.find(['.', '"']).unwrap_or(text.len()))?;
    Some((name.to_ascii_lowercase(), rest))
}

/// Up to the closing quote; a doubled one stands for itself.
fn quoted_identifier(text: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut rest = text;
    loop {
        let (part, after) = rest.split_once('"')?;
        name.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => (name.push('"'), rest = after),
            None => return Some((name, after)),
        };
    }
}

/// Whether Postgres takes it as a name, in double quotes.
pub(super) fn is_name(text: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&text.len()) && !text.contains('\0')
}

/// Whether Postgres takes it as a slot's name.
pub(super) fn is_slot(text: &str) -> bool {
    is_name(text) && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// The slot's name that was probably meant.
pub(super) fn nearest_slot(text: &str) -> Option<String> {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    let name = text.trim().chars().map(plain).take(MAX_NAME_BYTES).collect::<String>();
    name.bytes().any(|byte| byte != b'_').then_some(name)
}

/// Where to serve HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAddress {
    /// A name or an IP address, without brackets; `None`: every address.
    pub host: Option<String>,
    /// 0: any free port.
    pub port: u16,
}

impl Default for HttpAddress {
    fn default() -> Self {
        Self { host: Some("127.0.0.1".to_owned()), port: 9464 }
    }
}

impl HttpAddress {
    /// Reads `host:port`, `:port`, `[v6]:port`. `None`: it is no address.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.trim().rsplit_once(':')?;
        let port = port.parse().ok().filter(|_| port.bytes().all(|byte| byte.is_ascii_digit()))?;
        let host = match host.strip_prefix('[') {
            Some(v6) => v6.strip_suffix(']').filter(|v6| v6.parse::<std::net::Ipv6Addr>().is_ok())?,
            None if host.contains(|c: char| c.is_whitespace() || "/:[]@".contains(c)) => return None,
            None => host,
        };
        Some(Self { host: (!host.is_empty()).then(|| host.to_owned()), port })
    }

    /// Where a client on the same machine finds it: an address that stands for every one is asked at loopback.
    pub fn local(&self) -> (&str, u16) {
        match self.host.as_deref() {
            None | Some("0.0.0.0" | "*") => ("127.0.0.1", self.port),
            Some("::") => ("::1", self.port),
            Some(host) => (host, self.port),
        }
    }
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.as_deref().unwrap_or("") {
            v6 if v6.contains(':') => write!(f, "[{v6}]:{}", self.port),
            host => write!(f, "{host}:{}", self.port),
        }
    }
}

/// The address that was probably meant: a port alone, or a URL.
pub(super) fn nearest_http(text: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase();
    if text.parse::<u16>().is_ok() {
        return Some(format!("127.0.0.1:{text}"));
    }
    if ["none", "no", "false", "disable", "disabled", "0", ""].contains(&text.as_str()) {
        return Some("off".to_owned());
    }
    let bare = text.trim_start_matches("http://").trim_start_matches("https://");
    let bare = bare.split('/').next().unwrap_or(bare);
    let with_port = if bare.contains(':') { bare.to_owned() } else { format!("{bare}:9464") };
    HttpAddress::parse(&with_port).map(|address| address.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn table(text: &str, schema: &str, name: &str) {
        assert_eq!(TableName::parse(text), Some(TableName { schema: schema.into(), name: name.into() }), "{text}");
    }

    #[test]
    fn tables_are_folded_unless_quoted() {
        table("outbox", "public", "outbox");
        table("Shop.Outbox", "shop", "outbox");
        table("shop.\"Out.Box\"", "shop", "Out.Box");
        table("\"My \"\"Schema\"\"\".outbox", "My \"Schema\"", "outbox");
    }

    #[test]
    fn what_is_no_table_is_refused() {
        for text in ["", ".", "a.", ".a", "a.b.c", "\"a", "\"\"", "a\"b\"", "\"a\"b", &"x".repeat(64)] {
            assert_eq!(TableName::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_slots_name_is_lower_case_letters_digits_and_underscores() {
        for name in ["walrelay", "a_1", &"x".repeat(63)] {
            assert!(is_slot(name), "{name}");
        }
        for name in ["", "Walrelay", "wal-relay", "wal relay", "é", &"x".repeat(64)] {
            assert!(!is_slot(name), "{name}");
        }
        assert_eq!(nearest_slot("Wal-Relay").as_deref(), Some("wal_relay"));
        assert_eq!(nearest_slot("--"), None);
    }

    #[test]
    fn http_addresses_have_a_port_and_maybe_a_host() {
        for (text, host, port) in [
            ("127.0.0.1:9464", Some("127.0.0.1"), 9464),
            (":9464", None, 9464),
            ("[::1]:9464", Some("::1"), 9464),
            ("localhost:0", Some("localhost"), 0),
        ] {
            let address = HttpAddress::parse(text).unwrap();
            assert_eq!((address.host.as_deref(), address.port), (host, port), "{text}");
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_http_address_gets_a_suggestion_where_one_can_be_guessed() {
        for (text, nearest) in [
            ("9464", Some("127.0.0.1:9464")),
            ("localhost", Some("localhost:9464")),
            ("http://localhost:9464/metrics", Some("localhost:9464")),
            ("false", Some("off")),
            ("a:b", None),
            ("::1", None),
            ("a:+1", None),
        ] {
            assert_eq!(HttpAddress::parse(text), None, "{text}");
            assert_eq!(nearest_http(text).as_deref(), nearest, "{text}");
        }
    }

    #[test]
    fn every_address_is_asked_at_loopback() {
        assert_eq!(HttpAddress::parse(":1").unwrap().local(), ("127.0.0.1", 1));
        assert_eq!(HttpAddress::parse("[::]:1").unwrap().local(), ("::1", 1));
        assert_eq!(HttpAddress::parse("db:1").unwrap().local(), ("db", 1));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _read = (TableName::parse(&text), HttpAddress::parse(&text), nearest_http(&text), nearest_slot(&text));
        }

        #[test]
        fn a_quoted_name_comes_back_as_it_was(schema in "[^\0]{1,10}", name in "[^\0]{1,10}") {
            let text = format!("\"{}\".\"{}\"", schema.replace('"', "\"\""), name.replace('"', "\"\""));
            prop_assert_eq!(TableName::parse(&text), Some(TableName { schema, name }));
        }
    }
}
