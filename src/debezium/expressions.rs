//! Resolves `${…}` in values.
//!
//! In: a value, and its environment. Out: the value that Debezium would see. Kafka Connect's config providers `env`, `file` and `dir`
//! are supported, under the names that the worker gives them. Debezium Server's files may also have `${NAME}` and `${NAME:default}` of
//! Quarkus, and there `$$` and `\$` stand for one `$`. This file reads files that values name, and contacts nobody.
//! Specification: Kafka's `ConfigTransformer` and `config.provider` package, SmallRye Config's "Property Expressions".

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::config_sources::ConfigSources;
use super::document::Platform;
use super::keys::Keys;
use super::properties;
use crate::pg::source::Environment;

/// The deepest nesting of expressions.
const DEEPEST: usize = 16;

/// The most expressions in one value, including those in other values that they name.
const MOST: usize = 10_000;

/// The longest value that expressions may have, in bytes.
const LONGEST: usize = 1 << 20;

/// The reason why an expression has no value. It has no value of a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unresolved {
    #[error("{0} is neither a variable nor a key of the file, and has no default")]
    Unset(String),
    #[error("the config provider \"{0}\" is not one of env, file and dir")]
    Provider(String),
    #[error("{path} cannot be read: {reason}")]
    File { path: String, reason: String },
    #[error("{path} has no key {key}")]
    NoKey { path: String, key: String },
    #[error("a ${{ has no }}")]
    Unclosed,
    #[error("expressions are nested too deeply, or in a circle")]
    TooDeep,
    #[error("its expressions are too many, or make too much of it")]
    TooMuch,
}

/// The values that expressions are resolved with.
pub(super) struct ExpressionContext<'a> {
    platform: Platform,
    environment: &'a Environment,
    /// The sources in which Debezium Server looks `${other.key}` up.
    sources: &'a ConfigSources,
    /// The names of config providers, each with the last part of its class's name.
    providers: BTreeMap<String, String>,
    /// Whether Debezium Server's engine uses the providers, too: `config.providers` is set. Quarkus has resolved the value before.
    asks: bool,
    /// How many more expressions the present value may have.
    left: Cell<usize>,
}

/// The providers that a worker (or the `config.providers.*` of a connector) names.
fn providers(keys: &[&Keys]) -> BTreeMap<String, String> {
    let mut providers =
        [("env", "EnvVarConfigProvider"), ("file", "FileConfigProvider"), ("dir", "DirectoryConfigProvider")]
            .map(|(name, class)| (name.to_owned(), class.to_owned()))
            .into_iter()
            .collect::<BTreeMap<_, _>>();
    for (key, value) in keys.iter().flat_map(|keys| keys.iter()) {
        let name = key.strip_prefix("config.providers.").and_then(|rest| rest.strip_suffix(".class"));
        if let Some(name) = name {
            let class = value.text.trim().rsplit('.').next().unwrap_or_default();
            providers.insert(name.to_owned(), class.to_owned());
        }
    }
    providers
}

impl<'a> ExpressionContext<'a> {
    /// `keys`: those that may name providers.
    pub(super) fn new(
        platform: Platform,
        environment: &'a Environment,
        sources: &'a ConfigSources,
        keys: &[&Keys],
        asks: bool,
    ) -> Self {
        Self { platform, environment, sources, providers: providers(keys), asks, left: Cell::new(MOST) }
    }

    /// The value without expressions.
    pub(super) fn resolve(&self, text: &str) -> Result<String, Unresolved> {
        self.left.set(MOST);
        match self.platform {
            Platform::Connect => self.connect(text),
            Platform::Server if self.asks => self.server(text, 0).and_then(|text| self.connect(&text)),
            Platform::Server => self.server(text, 0),
        }
    }

    /// Resolves `${provider:…}`, the only expression in Kafka Connect. `${name}` is none there.
    fn connect(&self, text: &str) -> Result<String, Unresolved> {
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, inside, after)) = first_expression(rest) {
            out.push_str(before);
            match inside.split_once(':') {
                Some((provider, reference)) => {
                    out.push_str(&self.provided(provider, reference)?);
                    self.count(&out)?;
                }
                None => out.extend(["${", inside, "}"]),
            }
            rest = after;
        }
        out.push_str(rest);
        Ok(out)
    }

    fn server(&self, text: &str, depth: usize) -> Result<String, Unresolved> {
        if depth > DEEPEST {
            return Err(Unresolved::TooDeep);
        }
        let text = text.replace("\\$", "$$");
        let mut out = String::new();
        let mut rest = text.as_str();
        while let Some((before, behind)) = rest.split_once('$') {
            out.push_str(before);
            rest = if let Some(after) = behind.strip_prefix('$') {
                out.push('$');
                after
            } else if behind.starts_with('{') {
                let (inside, after) = matching(behind).ok_or(Unresolved::Unclosed)?;
                out.push_str(&self.expression(inside, depth)?);
                self.count(&out)?;
                after
            } else {
                out.push('$');
                behind
            };
        }
        out.push_str(rest);
        Ok(out)
    }

    /// Counts one more expression. A few that name each other could need more time or memory than there is.
    fn count(&self, made: &str) -> Result<(), Unresolved> {
        let left = self.left.get().checked_sub(1).filter(|_| made.len() <= LONGEST).ok_or(Unresolved::TooMuch)?;
        self.left.set(left);
        Ok(())
    }

    /// Resolves the text between `${` and `}`. Quarkus has no config providers: it takes `provider:…` for a name with a default.
    fn expression(&self, inside: &str, depth: usize) -> Result<String, Unresolved> {
        if let Some((handler, _)) = inside.split_once("::") {
            return Err(Unresolved::Provider(handler.to_owned()));
        }
        let (name, default) = inside.split_once(':').map_or((inside, None), |(name, default)| (name, Some(default)));
        let name = self.server(name, depth + 1)?;
        match (self.sources.find(&name), default) {
            (Some(value), _) => self.server(&value.text, depth + 1),
            (None, Some(default)) => self.server(default, depth + 1),
            (None, None) => Err(Unresolved::Unset(name)),
        }
    }

    /// Resolves `[PATH:]KEY` by a config provider.
    fn provided(&self, provider: &str, reference: &str) -> Result<String, Unresolved> {
        let (path, key) = reference.split_once(':').unwrap_or(("", reference));
        match self.providers.get(provider).map(String::as_str) {
            Some("EnvVarConfigProvider") => {
                self.environment.variables.get(key).cloned().ok_or_else(|| Unresolved::Unset(key.to_owned()))
            }
            Some("FileConfigProvider") => from_file(path, key),
            Some("DirectoryConfigProvider") => from_directory(path, key),
            _ => Err(Unresolved::Provider(provider.to_owned())),
        }
    }
}

fn from_file(path: &str, key: &str) -> Result<String, Unresolved> {
    let no_key = || Unresolved::NoKey { path: path.to_owned(), key: key.to_owned() };
    let entries = properties::parse(&properties::decode(&read(Path::new(path))?)).map_err(|_| no_key())?;
    entries.into_iter().rev().find(|entry| entry.key == key).map(|entry| entry.value).ok_or_else(no_key)
}

/// Reads a file of a mounted secret. A newline at its end is not part of the secret.
fn from_directory(path: &str, key: &str) -> Result<String, Unresolved> {
    let bytes = read(&Path::new(path).join(key))?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(text.strip_suffix('\n').map(str::to_owned).unwrap_or(text))
}

fn read(path: &Path) -> Result<Vec<u8>, Unresolved> {
    fs::read(path).map_err(|error| Unresolved::File { path: path.display().to_string(), reason: error.to_string() })
}

/// Splits a text at its first `${…}`: the text before it, inside it, and after it.
fn first_expression(text: &str) -> Option<(&str, &str, &str)> {
    let (before, behind) = text.split_once("${")?;
    let (inside, after) = behind.split_once('}')?;
    Some((before, inside, after))
}

/// Splits a text that begins with `{`: the text up to the closing `}`, and the text after it.
fn matching(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0_usize;
    for (at, character) in text.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 1 => return Some((text.get(1..at)?, text.get(at + 1..)?)),
            '}' => depth = depth.checked_sub(1)?,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting_text::{Given, Origin};
    use proptest::prelude::*;

    fn resolve(platform: Platform, text: &str) -> Result<String, String> {
        let variables =
            [("HOST", "db"), ("DB_PASS", "hunter2"), ("EMPTY", ""), ("my.prop", "dotted"), ("NESTED", "<${HOST}>")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let environment = Environment { variables, ..Environment::default() };
        let mut keys = Keys::default();
        for (key, text) in [("other.key", "x-${HOST}"), ("circle", "${circle}"), ("config.providers.aws.class", "a.B")]
        {
            keys.insert(key.to_owned(), Given { text: text.to_owned(), origin: Origin::Flag("f".to_owned()) });
        }
        let sources = ConfigSources::new(keys.clone(), None, &environment);
        let context = ExpressionContext::new(platform, &environment, &sources, &[&keys], false);
        context.resolve(text).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn server(text: &str, expected: &str) {
        assert_eq!(resolve(Platform::Server, text).as_deref(), Ok(expected), "{text}");
    }

    #[track_caller]
    fn connect(text: &str, expected: &str) {
        assert_eq!(resolve(Platform::Connect, text).as_deref(), Ok(expected), "{text}");
    }

    #[test]
    fn quarkus_reads_variables_keys_and_defaults() {
        server("${HOST}:5432", "db:5432");
        server("${db.pass}", "hunter2");
        server("${NONE:there}", "there");
        server("${NONE:}", "");
        server("${NONE:${HOST}}", "db");
        server("${NONE:a:b}", "a:b");
        server("${other.key}", "x-db");
        server("${HOST:unused}${HOST}", "dbdb");
        server("${host}-${Host}-${EMPTY:unused}", "db-db-");
        server("${NESTED}", "<db>");
    }

    #[test]
    fn a_doubled_dollar_is_one_and_a_lone_one_stays() {
        server("outbox.$${routedByValue}", "outbox.${routedByValue}");
        server("$1.$x", "$1.$x");
        server("a$", "a$");
        server("$$1", "$1");
        server(r"\${routedByValue}", "${routedByValue}");
        server(r"(X\.User)\$", r"(X\.User)$");
        connect(r"a\$.${routedByValue}", r"a\$.${routedByValue}");
    }

    #[test]
    fn debezium_servers_files_ask_no_config_provider() {
        server("${env:HOST}", "HOST");
        server("${file:/etc/secret:password}", "/etc/secret:password");
    }

    #[test]
    fn config_providers_are_asked() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("secret"), "from-dir\n").unwrap();
        fs::write(dir.path().join("p.properties"), "user=app\npassword = a\\u0062 c\n").unwrap();
        let path = dir.path().display();
        connect("${env:HOST}", "db");
        connect("x${env:HOST}y", "xdby");
        connect(&format!("${{dir:{path}:secret}}"), "from-dir");
        connect(&format!("${{file:{path}/p.properties:password}}"), "ab c");
    }

    #[test]
    fn what_cannot_be_resolved_is_named_without_a_value() {
        let of = |platform, text| resolve(platform, text).unwrap_err();
        assert_eq!(
            of(Platform::Connect, "${vault:a:b}"),
            "the config provider \"vault\" is not one of env, file and dir"
        );
        assert_eq!(of(Platform::Connect, "${aws:a}"), "the config provider \"aws\" is not one of env, file and dir");
        assert!(of(Platform::Connect, "${env:NONE}").starts_with("NONE is neither a variable"));
        assert!(of(Platform::Connect, "${file:/no/such:k}").starts_with("/no/such cannot be read: "));
        assert!(of(Platform::Server, "${NONE}").starts_with("NONE is neither a variable"));
        assert_eq!(
            of(Platform::Server, "${vault::x}"),
            "the config provider \"vault\" is not one of env, file and dir"
        );
        assert_eq!(of(Platform::Server, "${HOST"), "a ${ has no }");
        assert!(of(Platform::Server, "${circle}").contains("circle"));
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("p"), "a=b").unwrap();
        assert!(of(Platform::Connect, &format!("${{file:{}/p:c}}", dir.path().display())).ends_with("/p has no key c"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[${}:a-c\\\\H]{0,30}") {
            let _server = resolve(Platform::Server, &text);
            let _connect = resolve(Platform::Connect, &text);
        }
    }
}
