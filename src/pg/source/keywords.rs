//! libpq's connection keywords: which ones walrelay uses, ignores or refuses.
//!
//! In: pairs of a connection string or service file, and `PG*` variables. Out: [`Parameters`]: known keywords, each with its value and
//! origin. [`super`] interprets the values.
//! Invariant: a keyword is ignored only if that loses no protection and changes no record. Else it is refused.
//! Specification: PostgreSQL manual, sections 32.1.2 "Parameter Key Words" and 32.15 "Environment Variables".

use std::collections::BTreeMap;

use super::environment::Environment;
use super::error::{SourceError, SourcePart, SourceProblem};
use crate::setting_text::{nearest, shown};

/// A keyword and its value, from a connection string. It has no `Debug`, since the value may be the password.
pub(super) struct Pair {
    pub(super) keyword: String,
    pub(super) value: String,
    /// Whether a message may quote the keyword. It may not if the keyword may be a part of a password.
    pub(super) quotable: bool,
}

impl Pair {
    pub(super) fn new(keyword: &str, value: &str) -> Self {
        Self { keyword: keyword.to_owned(), value: value.to_owned(), quotable: true }
    }
}

/// The action of walrelay for a keyword.
#[derive(Clone, Copy)]
enum KeywordUse {
    /// It uses the value.
    Used,
    /// It ignores the keyword, which has no effect here.
    Ignored,
    /// It accepts the keyword with these values, which have no effect. It refuses other values, for this reason.
    Only(&'static [&'static str], &'static str),
    /// It refuses all values but the empty one.
    Refused(&'static str),
}

struct Keyword {
    name: &'static str,
    variable: &'static str,
    usage: KeywordUse,
}

const fn keyword(name: &'static str, variable: &'static str, usage: KeywordUse) -> Keyword {
    Keyword { name, variable, usage }
}

use KeywordUse::{Ignored, Only, Refused, Used};

const NO_GSS: &str = "GSSAPI encryption is not supported: use sslmode";
const NO_OAUTH: &str = "there is no OAuth flow here: --source-password-command COMMAND prints the token";
const NO_CRL: &str = "revocation lists are not checked";
const NO_KEYS: &str = "SCRAM keys are not taken: give the password";

/// Every keyword of libpq 18 and of earlier versions, in the manual's order. An empty variable means that there is none.
static KEYWORDS: [Keyword; 52] = [
    keyword("host", "PGHOST", Used),
    keyword("hostaddr", "PGHOSTADDR", Used),
    keyword("port", "PGPORT", Used),
    keyword("dbname", "PGDATABASE", Used),
    keyword("user", "PGUSER", Used),
    keyword("password", "PGPASSWORD", Used),
    keyword("passfile", "PGPASSFILE", Used),
    keyword("require_auth", "PGREQUIREAUTH", Refused("how the server asks for the password is not restricted")),
    keyword("channel_binding", "PGCHANNELBINDING", Used),
    keyword("connect_timeout", "PGCONNECT_TIMEOUT", Used),
    // The session's encoding is always UTF-8.
    keyword("client_encoding", "PGCLIENTENCODING", Ignored),
    keyword("options", "PGOPTIONS", Used),
    keyword("application_name", "PGAPPNAME", Used),
    keyword("fallback_application_name", "", Ignored),
    keyword("keepalives", "", Used),
    keyword("keepalives_idle", "", Used),
    keyword("keepalives_interval", "", Used),
    keyword("keepalives_count", "", Used),
    keyword("tcp_user_timeout", "", Used),
    // walrelay requests replication itself.
    keyword("replication", "", Ignored),
    keyword("gssencmode", "PGGSSENCMODE", Only(&["disable", "prefer"], NO_GSS)),
    keyword("sslmode", "PGSSLMODE", Used),
    keyword("requiressl", "PGREQUIRESSL", Only(&["0"], "it is obsolete: write sslmode=require")),
    keyword(
        "sslnegotiation",
        "PGSSLNEGOTIATION",
        Only(&["postgres"], "TLS is always negotiated as sslnegotiation=postgres does"),
    ),
    // Servers do not compress since Postgres 14.
    keyword("sslcompression", "PGSSLCOMPRESSION", Ignored),
    keyword("sslcert", "PGSSLCERT", Used),
    keyword("sslkey", "PGSSLKEY", Used),
    keyword("sslkeylogfile", "", Refused("keys of TLS sessions are not written anywhere")),
    keyword(
        "sslpassword",
        "",
        Refused("encrypted keys cannot be read: give an unencrypted one that only this user may read"),
    ),
    keyword(
        "sslcertmode",
        "PGSSLCERTMODE",
        Only(&["allow", "disable"], "that the server asked for the certificate is not checked"),
    ),
    keyword("sslrootcert", "PGSSLROOTCERT", Used),
    keyword("sslcrl", "PGSSLCRL", Refused(NO_CRL)),
    keyword("sslcrldir", "PGSSLCRLDIR", Refused(NO_CRL)),
    keyword("sslsni", "PGSSLSNI", Only(&["1"], "the host's name is always sent in the TLS handshake")),
    keyword("requirepeer", "PGREQUIREPEER", Refused("the owner of the server's process is not checked")),
    keyword(
        "ssl_min_protocol_version",
        "PGSSLMINPROTOCOLVERSION",
        Only(&["TLSv1", "TLSv1.1", "TLSv1.2"], "the lowest TLS version is always 1.2"),
    ),
    keyword(
        "ssl_max_protocol_version",
        "PGSSLMAXPROTOCOLVERSION",
        Only(&["TLSv1.3"], "the highest TLS version is always 1.3"),
    ),
    // Every server speaks this lowest version of the protocol.
    keyword("min_protocol_version", "PGMINPROTOCOLVERSION", Only(&["3.0"], "version 3.0 of the protocol is spoken")),
    keyword("max_protocol_version", "PGMAXPROTOCOLVERSION", Ignored),
    // walrelay does not use GSSAPI, so its settings have no effect.
    keyword("krbsrvname", "PGKRBSRVNAME", Ignored),
    keyword("gsslib", "PGGSSLIB", Ignored),
    keyword("gssdelegation", "PGGSSDELEGATION", Ignored),
    keyword("scram_client_key", "", Refused(NO_KEYS)),
    keyword("scram_server_key", "", Refused(NO_KEYS)),
    keyword("service", "PGSERVICE", Used),
    keyword("servicefile", "PGSERVICEFILE", Used),
    keyword("target_session_attrs", "PGTARGETSESSIONATTRS", Used),
    // walrelay has one connection, and tries hosts in the given order.
    keyword("load_balance_hosts", "PGLOADBALANCEHOSTS", Ignored),
    keyword("oauth_issuer", "", Refused(NO_OAUTH)),
    keyword("oauth_client_id", "", Refused(NO_OAUTH)),
    keyword("oauth_client_secret", "", Refused(NO_OAUTH)),
    keyword("oauth_scope", "", Refused(NO_OAUTH)),
];

/// A value and its origin.
pub(super) struct Parameter {
    pub(super) value: String,
    pub(super) part: SourcePart,
}

/// The values of the given keywords. Each is from the first origin that has it.
#[derive(Default)]
pub(super) struct Parameters {
    values: BTreeMap<&'static str, Parameter>,
}

impl Parameters {
    /// Adds the pairs of one origin. If a keyword repeats, its last value counts. Values that were added before take precedence.
    pub(super) fn add(&mut self, pairs: Vec<Pair>, part: &SourcePart) -> Result<(), SourceError> {
        let mut added = BTreeMap::new();
        for pair in pairs {
            let keyword = known(&pair).map_err(|problem| problem.at(part.clone()))?;
            admit(keyword, &pair.value).map_err(|problem| problem.at(part.clone()))?;
            if matches!(keyword.usage, Used) || keyword.name == "sslcertmode" {
                added.insert(keyword.name, Parameter { value: pair.value, part: part.clone() });
            }
        }
        for (name, parameter) in added {
            self.values.entry(name).or_insert(parameter);
        }
        Ok(())
    }

    /// Adds the `PG*` variables of keywords that are not given yet.
    pub(super) fn add_variables(&mut self, environment: &Environment) -> Result<(), SourceError> {
        let mut found = Vec::new();
        for keyword in KEYWORDS.iter().filter(|keyword| !self.values.contains_key(keyword.name)) {
            if let Some(value) = environment.variable(keyword.variable) {
                found.push((Pair::new(keyword.name, value), SourcePart::Variable(keyword.variable)));
            }
        }
        found.into_iter().try_for_each(|(pair, part)| self.add(vec![pair], &part))
    }

    /// The value of a keyword. An empty value counts as not given.
    pub(super) fn get(&self, name: &'static str) -> Option<&str> {
        self.values.get(name).map(|parameter| parameter.value.as_str()).filter(|value| !value.is_empty())
    }

    /// The origin of a keyword's value.
    pub(super) fn part(&self, name: &'static str) -> SourcePart {
        self.values.get(name).map_or(SourcePart::Default, |parameter| parameter.part.clone())
    }

    /// The error for a keyword's value.
    pub(super) fn error(&self, name: &'static str, problem: SourceProblem) -> SourceError {
        problem.at(self.part(name))
    }
}

/// Whether libpq has the keyword.
pub(super) fn is_known(name: &str) -> bool {
    KEYWORDS.iter().any(|keyword| keyword.name == name)
}

fn known(pair: &Pair) -> Result<&'static Keyword, SourceProblem> {
    KEYWORDS.iter().find(|keyword| keyword.name == pair.keyword).ok_or_else(|| {
        let word = if pair.quotable {
            format!("\"{}\"", shown(pair.keyword.as_bytes()))
        } else {
            "a word after the password".to_owned()
        };
        let hint = nearest(&pair.keyword, KEYWORDS.iter().map(|keyword| keyword.name)).map_or_else(
            || "only libpq's keywords are taken: leave out those of other libraries".to_owned(),
            |nearest| format!("the nearest keyword is {nearest}"),
        );
        SourceProblem::with_hint(format!("{word} is not a connection keyword"), hint)
    })
}

fn admit(keyword: &Keyword, value: &str) -> Result<(), SourceProblem> {
    match keyword.usage {
        // In the protocol a NUL ends a text, and the rest would be read as another parameter.
        // The value is not quoted, since it may be the password.
        _ if value.contains('\0') => {
            Err(SourceProblem::new(format!("{} holds the character NUL, which no value of libpq's may", keyword.name)))
        }
        Used | Ignored => Ok(()),
        Only(harmless, _) if value.is_empty() || harmless.contains(&value) => Ok(()),
        Refused(_) if value.is_empty() => Ok(()),
        Only(_, reason) | Refused(reason) => Err(SourceProblem::with_hint(
            format!("{} is not supported: {reason}", keyword.name),
            format!("leave {} out", keyword.name),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_keyword_is_listed_twice() {
        let names = KEYWORDS.iter().map(|keyword| keyword.name).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(names.len(), KEYWORDS.len());
    }

    #[test]
    fn the_first_place_counts_and_in_a_place_the_last_value() {
        let mut parameters = Parameters::default();
        let pairs = |values: [&str; 2]| values.map(|value| Pair::new("host", value)).into();
        parameters.add(pairs(["a", "b"]), &SourcePart::Text).unwrap();
        parameters.add(pairs(["c", "d"]), &SourcePart::Service("s".into())).unwrap();
        assert_eq!(parameters.get("host"), Some("b"));
        assert_eq!(parameters.part("host"), SourcePart::Text);
        assert_eq!(parameters.part("port"), SourcePart::Default);
    }

    #[test]
    fn an_unknown_keyword_names_the_nearest() {
        let error = Parameters::default().add(vec![Pair::new("sslmod", "require")], &SourcePart::Text).err().unwrap();
        assert_eq!(error.to_string(), "\"sslmod\" is not a connection keyword");
        assert_eq!(error.problem.hint.as_deref(), Some("the nearest keyword is sslmode"));
    }

    #[test]
    fn what_would_lose_protection_is_refused_with_the_reason() {
        for (name, value) in [("gssencmode", "require"), ("sslcrl", "/x"), ("requirepeer", "postgres"), ("sslsni", "0")]
        {
            let error = Parameters::default().add(vec![Pair::new(name, value)], &SourcePart::Text).err().unwrap();
            assert!(error.to_string().starts_with(&format!("{name} is not supported: ")), "{error}");
        }
    }

    #[test]
    fn what_changes_nothing_is_ignored() {
        for (name, value) in [("gssencmode", "disable"), ("client_encoding", "auto"), ("replication", "database")] {
            let mut parameters = Parameters::default();
            parameters.add(vec![Pair::new(name, value)], &SourcePart::Text).unwrap();
            assert!(parameters.values.is_empty(), "{name}");
        }
    }

    #[test]
    fn a_variable_that_cannot_be_honoured_is_named() {
        let variables = [("PGREQUIREPEER".to_owned(), "postgres".to_owned())].into();
        let environment = Environment { variables, ..Environment::default() };
        let error = Parameters::default().add_variables(&environment).err().unwrap();
        assert_eq!(error.part, SourcePart::Variable("PGREQUIREPEER"));
    }
}
