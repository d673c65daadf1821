//! Tests sources as users write them: their meaning, and the errors of wrong ones.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;
use secrecy::ExposeSecret;

use super::*;

/// An environment with a user `me`, without a home directory and sockets.
fn bare() -> Environment {
    Environment { user: Some("me".into()), ..Environment::default() }
}

fn with_variables(variables: &[(&str, &str)]) -> Environment {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Environment { variables, ..bare() }
}

#[track_caller]
fn source(text: &str) -> Source {
    in_environment(Some(text), &bare())
}

#[track_caller]
fn in_environment(text: Option<&str>, environment: &Environment) -> Source {
    match Source::resolve(text, environment) {
        Ok(resolved) => resolved.source,
        Err(error) => panic!("{text:?}: {error}"),
    }
}

#[track_caller]
fn refused(text: &str) -> SourceError {
    Source::resolve(Some(text), &bare()).map(|resolved| resolved.source).expect_err(text)
}

/// The text is refused, in these words.
#[track_caller]
fn says(text: &str, words: &str) {
    let error = refused(text).to_string();
    assert!(error.contains(words), "{text}: {error}");
}

#[track_caller]
fn check(text: &str, expected: &str) {
    assert_eq!(source(text).to_string(), expected, "{text}");
}

fn password(source: &Source) -> Option<&str> {
    source.password_for(&source.hosts[0]).map(ExposeSecret::expose_secret)
}

#[test]
fn uris_and_keyword_strings_mean_the_same() {
    check("postgres://app@db:5433/shop", "shop as app at db:5433");
    check("host=db port=5433 user=app dbname=shop", "shop as app at db:5433");
    check("POSTGRESQL://app@[::1]/shop", "shop as app at [::1]:5432");
    check("postgres://app@a:1,b:2/shop", "shop as app at a:1, b:2");
    check("host=a,b port=7 user=app dbname=shop", "shop as app at a:7, b:7");
    check("postgres:///shop?host=/srv/pg&port=6000", "shop as me at /srv/pg/.s.PGSQL.6000");
    check("postgres://%2Fsrv%2Fpg/shop", "shop as me at /srv/pg/.s.PGSQL.5432");
}

#[test]
fn a_bare_word_is_a_database_as_for_psql() {
    check("shop", "shop as me at localhost:5432");
}

#[test]
fn what_is_left_out_is_libpqs_default() {
    let socket = Environment { socket_dir: Some("/var/run/postgresql".into()), ..bare() };
    assert_eq!(in_environment(None, &bare()).to_string(), "me as me at localhost:5432");
    assert_eq!(in_environment(None, &socket).to_string(), "me as me at /var/run/postgresql/.s.PGSQL.5432");
    let source = source("postgres://db");
    assert_eq!(source.sslmode, SslMode::Prefer);
    assert_eq!(source.sslrootcert, RootCert::None);
    assert_eq!(source.channel_binding, ChannelBinding::Prefer);
    assert_eq!(source.target_session_attrs, TargetSessionAttrs::Any);
    assert_eq!(source.connect_timeout, None);
    assert_eq!(source.application_name, None);
    assert_eq!(source.keepalives, Keepalives { enabled: true, idle: None, interval: None, count: None });
}

#[test]
fn variables_fill_in_what_the_string_leaves_out() {
    let environment = with_variables(&[
        ("PGHOST", "elsewhere"),
        ("PGPORT", "6000"),
        ("PGUSER", "app"),
        ("PGDATABASE", "shop"),
        ("PGPASSWORD", "hunter2"),
        ("PGSSLMODE", "require"),
        ("PGCONNECT_TIMEOUT", "3"),
        ("PGAPPNAME", "mine"),
        ("PGOPTIONS", "-c a=b"),
    ]);
    let source = in_environment(Some("postgres://db"), &environment);
    assert_eq!(source.to_string(), "shop as app at db:6000");
    assert_eq!(password(&source), Some("hunter2"));
    assert_eq!(source.sslmode, SslMode::Require);
    assert_eq!(source.connect_timeout, Some(Duration::from_secs(3)));
    assert_eq!(source.application_name.as_deref(), Some("mine"));
    assert_eq!(source.options.as_deref(), Some("-c a=b"));
}

#[test]
fn a_service_comes_before_variables_and_after_the_string() {
    let home = tempfile::tempdir().unwrap();
    let text = "[shop]\nhost=service\nport=1\ndbname=shop\n";
    fs::write(home.path().join(".pg_service.conf"), text).unwrap();
    let variables = [("PGSERVICE", "shop"), ("PGHOST", "variable"), ("PGUSER", "app")];
    let environment = Environment { home: Some(home.path().into()), ..with_variables(&variables) };
    assert_eq!(in_environment(None, &environment).to_string(), "shop as app at service:1");
    assert_eq!(in_environment(Some("port=2"), &environment).to_string(), "shop as app at service:2");
    let error = Source::resolve(Some("service=nowhere"), &environment).unwrap_err();
    assert_eq!((error.to_string().as_str(), error.part), ("service \"nowhere\" is not defined", SourcePart::Text));
}

#[test]
fn the_password_file_is_asked_for_each_host() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join(".pgpass");
    fs::write(&file, "a:*:*:*:first\nb:*:*:*:second\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let environment = Environment { home: Some(home.path().into()), ..bare() };
    let source = in_environment(Some("postgres://a,b,c/shop"), &environment);
    let passwords = source.hosts.iter().map(|host| source.password_for(host).map(|p| p.expose_secret().to_owned()));
    assert_eq!(passwords.collect::<Vec<_>>(), [Some("first".into()), Some("second".into()), None]);
    assert_eq!(password(&in_environment(Some("postgres://me:own@a"), &environment)), Some("own"));
}

#[test]
fn an_open_password_file_is_a_warning() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join(".pgpass");
    fs::write(&file, "*:*:*:*:secret\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let environment = Environment { home: Some(home.path().into()), ..bare() };
    let resolved = Source::resolve(Some("postgres://a"), &environment).unwrap();
    assert_eq!(password(&resolved.source), None);
    assert!(resolved.warnings[0].contains("chmod 600"), "{:?}", resolved.warnings);
}

#[test]
fn hostaddr_is_connected_to_and_host_is_verified() {
    let address = Some("10.0.0.1".parse().unwrap());
    let expected = Host::Tcp { name: "db".into(), port: 5432, address };
    assert_eq!(source("host=db hostaddr=10.0.0.1").hosts, [expected]);
    says("host=a,b hostaddr=10.0.0.1", "1 addresses in hostaddr for 2 hosts");
    says("hostaddr=db", "hostaddr \"db\" is not valid");
    says("host=db;hunter2 hostaddr=10.0.0.1", "a character that no host name has");
}

#[test]
fn allow_is_taken_for_prefer() {
    assert_eq!(source("sslmode=allow").sslmode, SslMode::Prefer);
}

#[test]
fn a_verifying_mode_needs_roots() {
    let error = refused("host=db sslmode=verify-full");
    assert_eq!(
        error.to_string(),
        "sslmode verify-full needs a root certificate, and ~/.postgresql/root.crt does not exist"
    );
    assert!(error.problem.hint.unwrap().contains("sslrootcert=system"));
    assert_eq!(source("host=/srv/pg sslmode=verify-full").sslrootcert, RootCert::None);
}

#[test]
fn the_operating_systems_roots_mean_verify_full_and_nothing_weaker() {
    let source = source("host=db sslrootcert=system");
    assert_eq!((source.sslmode, &source.sslrootcert), (SslMode::VerifyFull, &RootCert::System));
    assert_eq!(source.verification(), Verification::ChainAndName);
    says("host=db sslrootcert=system sslmode=require", "is too weak with sslrootcert=system");
}

#[test]
fn a_root_certificate_in_the_home_directory_makes_require_verify() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join(".postgresql")).unwrap();
    let root = home.path().join(".postgresql/root.crt");
    fs::write(&root, "").unwrap();
    let environment = Environment { home: Some(home.path().into()), ..bare() };
    let verification = |text| in_environment(Some(text), &environment).verification();
    assert_eq!(verification("host=db sslmode=require"), Verification::Chain);
    assert_eq!(verification("host=db sslmode=verify-ca"), Verification::Chain);
    assert_eq!(verification("host=db sslmode=disable"), Verification::None);
    assert_eq!(source("host=db sslmode=require").verification(), Verification::None);
}

#[test]
fn named_certificate_files_must_exist() {
    for text in ["host=db sslrootcert=/no/root", "host=db sslcert=/no/cert sslkey=/no/key"] {
        says(text, ": cannot read /no/");
    }
    assert_eq!(source("host=db sslmode=disable sslrootcert=/no/root").sslrootcert, RootCert::None);
}

#[test]
fn a_client_certificate_needs_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = (dir.path().join("c"), dir.path().join("k"));
    fs::write(&certificate, "").unwrap();
    fs::write(&key, "").unwrap();
    let text = format!("host=db sslcert={}", certificate.display());
    says(&text, "has no key");
    let text = format!("{text} sslkey={}", key.display());
    assert_eq!(source(&text).client_certificate, Some(ClientCertificate { certificate, key }));
    assert_eq!(source(&format!("{text} sslcertmode=disable")).client_certificate, None);
}

#[test]
fn values_that_are_not_valid_name_keyword_value_and_what_is() {
    let error = refused("sslmode=requir");
    let expected = "sslmode \"requir\" is not valid: expected disable, prefer, require, verify-ca or verify-full";
    assert_eq!(error.to_string(), expected);
    assert_eq!(error.problem.hint.as_deref(), Some("the nearest valid value is require"));
    for text in ["port=x", "port=0", "port=65536", "connect_timeout=soon", "target_session_attrs=rw"] {
        says(text, "is not valid: expected");
    }
    says("host=a port=1,2", "2 ports for 1 hosts");
}

#[test]
fn no_value_holds_the_character_that_ends_texts_in_c() {
    for text in ["host=db user=a\0b", "postgres://a\0b@db", "postgres://a%00b@db", "host=db password=hunter2\0"] {
        let error = refused(text);
        assert!(error.to_string().ends_with("holds the character NUL, which no value of libpq's may"), "{error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}

#[test]
fn a_message_is_one_line_of_bounded_length() {
    let long = "x".repeat(10_000);
    for text in [
        "sslmode='a\nb'".to_owned(),
        format!("sslmode={long}"),
        format!("{long}=1"),
        format!("{long}://db"),
        format!("host=db sslrootcert=/no/{long}"),
        "host=db sslrootcert='/no\nfile'".to_owned(),
        format!("service={long}"),
    ] {
        let error = refused(&text);
        let message = format!("{} {}", error.part, error);
        assert!(message.chars().count() < 1000 && !message.contains(char::is_control), "{message:?}");
    }
}

#[test]
fn a_variables_error_names_the_variable() {
    let error = Source::resolve(None, &with_variables(&[("PGSSLMODE", "on")])).unwrap_err();
    assert_eq!(error.part, SourcePart::Variable("PGSSLMODE"));
}

#[test]
fn other_libraries_urls_are_refused_by_their_scheme_and_show_no_password() {
    for (text, scheme) in [
        ("jdbc:postgresql://db/shop?user=app&password=hunter2", "jdbc"),
        ("jdbc:postgresql://db/shop?password=hunter2&ssl=true", "jdbc"),
        ("jdbc:postgresql://app:hunter2@db/shop?ssl=true", "jdbc"),
        ("jdbc:postgresql://app:hunter2=x@db/shop", "jdbc"),
        ("jdbc:postgresql:// password=hunter2", "jdbc"),
        ("postgresql+psycopg2://app:hunter2@db/shop", "postgresql+psycopg2"),
        ("mysql://app:hunter2@db/shop", "mysql"),
    ] {
        says(text, &format!("the scheme \"{scheme}\" is not one of Postgres"));
        let shown = everything_shown(text);
        assert!(!shown.contains("hunter2") && shown.contains("expected postgres://"), "{text}: {shown}");
    }
    for text in ["jdbc:postgresql:shop", "jdbc:postgresql:shop?user=app&password=hunter2", "app:hunter2@db?sslmode=x"] {
        says(text, "neither a connection URI");
    }
}

#[test]
fn what_is_no_connection_string_is_not_quoted() {
    for text in ["app:hunter2@db/shop", "db:5432", "app@db", ""] {
        let words = if text.is_empty() { "is empty" } else { "neither a connection URI" };
        says(text, words);
    }
    for text in ["host=db;password=hunter2", "user=app;Password=hunter2", "host=db@hunter2"] {
        let error = refused(text);
        assert!(!error.to_string().contains("hunter2") && !format!("{error:?}").contains("hunter2"), "{text}: {error}");
    }
}

#[test]
fn without_any_name_for_the_user_it_is_asked_for() {
    let error = Source::resolve(Some("host=db"), &Environment::default()).unwrap_err();
    assert!(error.to_string().starts_with("there is no user to log in as"), "{error}");
}

const SECRET: &str = "hunter2hunter2";

/// All texts that a source or its error could show.
fn everything_shown(text: &str) -> String {
    match Source::resolve(Some(text), &bare()) {
        Ok(resolved) => format!("{resolved:?} {}", resolved.source),
        Err(error) => format!("{error:?} {error}"),
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in any::<String>()) {
        let _shown = everything_shown(&text);
    }

    #[test]
    fn no_text_of_the_right_alphabet_panics(text in r"(postgres|jdbc:postgresql|x)?(://)?[a-z:/@?=&%'\\, \[\].0-9]{0,40}") {
        let _shown = everything_shown(&text);
    }

    #[test]
    fn an_unescaped_password_in_a_uri_never_shows(
        before in r"[a-z0-9:/@#%!;' ]{0,4}",
        after in r"[a-z0-9:/@?#%&=!;' ]{0,4}",
        scheme in "(postgres|postgresql|postgresql\\+psycopg2|mysql|jdbc:postgresql)",
        end in "(@db|@db/shop|@db:5432/shop\\?sslmode=x|/shop|)",
    ) {
        // Without an `@` after it, and with an `@` or a slash before it, the text is the name of a host or a database.
        prop_assume!(end.contains('@') || !before.contains(['@', '/']));
        let shown = everything_shown(&format!("{scheme}://app:{before}{SECRET}{after}{end}"));
        prop_assert!(!shown.contains(SECRET), "{shown}");
    }

    #[test]
    fn a_password_in_a_keyword_string_never_shows(
        before in r"[a-z0-9:/@?#%&!;'\\ ]{0,4}",
        after in r"[a-z0-9:/@?#%&=!;'\\ ]{0,4}",
        quote in "'?",
        end in "( host=db| sslmode=x| nonsense=1| nonsense|)",
    ) {
        let shown = everything_shown(&format!("user=app password={quote}{before}{SECRET}{after}{quote}{end}"));
        prop_assert!(!shown.contains(SECRET), "{shown}");
    }
}
