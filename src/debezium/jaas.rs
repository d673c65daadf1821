//! Parses `sasl.jaas.config`.
//!
//! In: one entry of a JAAS configuration, `com.example.LoginModule required name="value" …;`. Out: the module and its options.
//! Specification: `javax.security.auth.login.Configuration`, Kafka's "Security" documentation.

use std::collections::BTreeMap;

/// A login module with its options. It has no `Debug`, since an option is a password.
#[derive(PartialEq, Eq)]
pub(super) struct Jaas {
    /// The name of the class, without its package.
    pub(super) module: String,
    pub(super) options: BTreeMap<String, String>,
}

/// Parses one entry. `None`: the text is not one.
pub(super) fn parse(text: &str) -> Option<Jaas> {
    let text = text.trim();
    let mut rest = text.strip_suffix(';').unwrap_or(text).trim_end();
    let module = word(&mut rest)?.rsplit('.').next()?.to_owned();
    let _flag = word(&mut rest)?;
    let mut options = BTreeMap::new();
    while !rest.is_empty() {
        let (name, behind) = rest.split_once('=')?;
        rest = behind.trim_start();
        options.insert(name.trim().to_owned(), value(&mut rest)?);
        rest = rest.trim_start();
    }
    Some(Jaas { module, options })
}

/// Reads up to the next blank.
fn word<'a>(rest: &mut &'a str) -> Option<&'a str> {
    let (word, behind) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    *rest = behind.trim_start();
    (!word.is_empty()).then_some(word)
}

/// Reads a value: in double quotes, with backslashes as escapes; or without quotes up to a blank or a semicolon.
fn value(rest: &mut &str) -> Option<String> {
    let Some(quoted) = rest.strip_prefix('"') else {
        let end = rest.find(|c: char| c.is_whitespace() || c == ';').unwrap_or(rest.len());
        let (value, behind) = rest.split_at_checked(end)?;
        *rest = behind;
        return Some(value.to_owned());
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => {
                *rest = quoted.get(at + 1..)?;
                return Some(value);
            }
            '\\' => value.push(characters.next()?.1),
            _ => value.push(character),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, module: &str, options: &[(&str, &str)]) {
        let jaas = parse(text).expect(text);
        let read = jaas.options.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect::<Vec<_>>();
        assert_eq!((jaas.module.as_str(), read.as_slice()), (module, options), "{text}");
    }

    #[test]
    fn a_module_has_options_in_quotes_or_bare() {
        let text =
            r#"org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p;= \"q\\";"#;
        check(text, "PlainLoginModule", &[("password", "p;= \"q\\"), ("username", "u")]);
        check("a.B required\n  x = 1 y=2;", "B", &[("x", "1"), ("y", "2")]);
        check("B required ;", "B", &[]);
        check("a.B required;", "B", &[]);
    }

    #[test]
    fn what_is_no_entry_is_refused() {
        for text in ["", "B", ";", "B required x;", "B required x=\"open", "B required x=\"open\\"] {
            assert!(parse(text).is_none(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[aB .=;\"\\\\\n]{0,30}") {
            let _read = parse(&text).is_some();
        }
    }
}
