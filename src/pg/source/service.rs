//! Reads the connection service file, `~/.pg_service.conf`.
//!
//! In: a service's name. Out: the pairs of its section. If a keyword repeats, the first one counts.
//! Specification: PostgreSQL manual, section 32.17 "The Connection Service File".

use std::fs;
use std::path::{Path, PathBuf};

use super::environment::Environment;
use super::error::SourceProblem;
use super::keywords::Pair;
use crate::setting_text::{shown, shown_path};

/// Finds the service: in the file `named`, or else in the user's and then in the system's file.
pub(super) fn find(service: &str, named: Option<&str>, environment: &Environment) -> Result<Vec<Pair>, SourceProblem> {
    let files = candidates(named, environment);
    for path in &files {
        let Ok(text) = fs::read_to_string(path) else { continue };
        if let Some(pairs) = section(&text, service, path)? {
            return Ok(pairs);
        }
    }
    let hint = match files.as_slice() {
        [] => "name the file in PGSERVICEFILE".to_owned(),
        files => format!("looked in {}", files.iter().map(|file| shown_path(file)).collect::<Vec<_>>().join(", ")),
    };
    Err(SourceProblem::with_hint(format!("service \"{}\" is not defined", shown(service.as_bytes())), hint))
}

fn candidates(named: Option<&str>, environment: &Environment) -> Vec<PathBuf> {
    let users = named.map(PathBuf::from).or_else(|| environment.in_home(".pg_service.conf"));
    let systems = environment.variable("PGSYSCONFDIR").map(|dir| Path::new(dir).join("pg_service.conf"));
    users.into_iter().chain(systems).collect()
}

fn section(text: &str, service: &str, path: &Path) -> Result<Option<Vec<Pair>>, SourceProblem> {
    let mut found = None::<Vec<Pair>>;
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            if found.is_some() {
                break;
            }
            // The text after the bracket is ignored.
            let is_it = name.strip_prefix(service).is_some_and(|rest| rest.starts_with(']'));
            found = is_it.then(Vec::new);
        } else if let Some(pairs) = &mut found {
            let wrong = |what: &str| SourceProblem::new(format!("{}, line {}: {what}", shown_path(path), index + 1));
            let pair = entry(line).map_err(wrong)?;
            if !pairs.iter().any(|earlier| earlier.keyword == pair.keyword) {
                pairs.push(pair);
            }
        }
    }
    Ok(found)
}

fn entry(line: &str) -> Result<Pair, &'static str> {
    if line.starts_with("ldap") {
        return Err("looking a service up in LDAP is not supported");
    }
    let (keyword, value) = line.split_once('=').ok_or("a line of a service is to be keyword=value")?;
    match keyword.trim() {
        "service" | "servicefile" => Err("a service may not name another service"),
        keyword => Ok(Pair::new(keyword, value.trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# services\n[other]\nhost=elsewhere\n\n[shop]\nhost=db\nport = 5433\n[shop2]\nservice=x\n";

    fn in_file(text: &str, service: &str) -> Result<Option<Vec<(String, String)>>, SourceProblem> {
        let pairs = section(text, service, Path::new("f"))?;
        Ok(pairs.map(|pairs| pairs.into_iter().map(|pair| (pair.keyword, pair.value)).collect()))
    }

    #[test]
    fn a_service_is_its_sections_lines() {
        let expected = vec![("host".to_owned(), "db".to_owned()), ("port".to_owned(), "5433".to_owned())];
        assert_eq!(in_file(FILE, "shop"), Ok(Some(expected)));
        assert_eq!(in_file(FILE, "nowhere"), Ok(None));
    }

    #[test]
    fn if_a_keyword_repeats_the_first_one_counts() {
        let expected = vec![("host".to_owned(), "a".to_owned()), ("port".to_owned(), "1".to_owned())];
        assert_eq!(in_file("[s]\nhost=a\nport=1\nhost=b", "s"), Ok(Some(expected)));
    }

    #[test]
    fn text_after_a_sections_name_is_ignored() {
        let expected = vec![("host".to_owned(), "a".to_owned())];
        assert_eq!(in_file("[s] # of the shop\nhost=a\n[t]x\nhost=b", "s"), Ok(Some(expected)));
        assert_eq!(in_file("[sh]op]\nhost=a", "shop"), Ok(None));
    }

    #[test]
    fn a_line_that_is_no_entry_names_its_file_and_line() {
        let error = in_file(FILE, "shop2").unwrap_err();
        assert_eq!(error.text, "f, line 9: a service may not name another service");
        assert!(in_file("[a]\nldap://x", "a").is_err());
        assert!(in_file("[a]\nhost", "a").is_err());
    }

    #[test]
    fn the_users_file_comes_before_the_systems() {
        let home = tempfile::tempdir().unwrap();
        let system = tempfile::tempdir().unwrap();
        fs::write(home.path().join(".pg_service.conf"), "[a]\nhost=home\n").unwrap();
        fs::write(system.path().join("pg_service.conf"), "[a]\nhost=system\n[b]\nhost=b\n").unwrap();
        let environment = Environment {
            home: Some(home.path().into()),
            variables: [("PGSYSCONFDIR".to_owned(), system.path().display().to_string())].into(),
            ..Environment::default()
        };
        let host =
            |service| find(service, None, &environment).ok().and_then(|pairs| Some(pairs.first()?.value.clone()));
        assert_eq!(host("a").as_deref(), Some("home"));
        assert_eq!(host("b").as_deref(), Some("b"));
        let hint = find("c", None, &environment).err().and_then(|problem| problem.hint).unwrap();
        assert_eq!(hint.matches("pg_service.conf").count(), 2, "{hint}");
    }
}
