//! The chain against services of its own on loopback.

use super::*;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

const JSON: &str = r#"{"Code":"Success","AccessKeyId":"AKID-J","SecretAccessKey":"s","Token":"t","Expiration":"2026-11-22T18:30:05Z"}"#;
const XML: &str = "<R xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Credentials><AccessKeyId>AKID-X</AccessKeyId>\
                   <SecretAccessKey>a/b+c=</SecretAccessKey><SessionToken>t//=</SessionToken>\
                   <Expiration>2026-11-22T18:30:05Z</Expiration></Credentials></R>";

/// Answers paths, and remembers what it was asked.
struct Service {
    base: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Service {
    fn new(answers: &'static [(&'static str, u16, &'static str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let theirs = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(&stream);
                let (mut text, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    if line.trim().is_empty() {
                        break;
                    }
                    if let Some(bytes) = line.strip_prefix("Content-Length: ") {
                        length = bytes.trim().parse().unwrap();
                    }
                    text.push_str(&line);
                }
                reader.take(length).read_to_string(&mut text).unwrap();
                let path = text.split(' ').nth(1).unwrap().to_owned();
                theirs.lock().unwrap().push(text);
                let answer = answers.iter().find(|(known, ..)| *known == path);
                let (status, body) = answer.map_or((404, "no"), |(_, status, body)| (*status, *body));
                let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", body.len());
                (&stream).write_all(head.as_bytes()).unwrap();
                (&stream).write_all(body.as_bytes()).unwrap();
            }
        });
        Self { base, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn surroundings(variables: &[(&str, &str)]) -> Surroundings {
    // Nobody shall wait for an instance that is not there.
    let fixed = [("AWS_EC2_METADATA_DISABLED", "true")];
    Surroundings::of(&fixed.iter().chain(variables).copied().collect::<Vec<_>>())
}

#[track_caller]
fn keys(variables: &[(&str, &str)]) -> Keys {
    surroundings(variables).keys(SystemTime::now()).unwrap()
}

#[track_caller]
fn refused(variables: &[(&str, &str)]) -> String {
    surroundings(variables).keys(SystemTime::now()).unwrap_err().to_string()
}

fn token(keys: &Keys) -> Option<&str> {
    keys.token.as_ref().map(secrecy::ExposeSecret::expose_secret)
}

#[test]
fn the_environment_comes_first_and_has_to_be_whole() {
    let found = keys(&[("AWS_ACCESS_KEY_ID", "AKID"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_SESSION_TOKEN", "t")]);
    assert_eq!((found.id.as_str(), token(&found), found.expires_at), ("AKID", Some("t"), None));
    assert_eq!(refused(&[("AWS_ACCESS_KEY_ID", "AKID")]), "AWS_ACCESS_KEY_ID: AWS_SECRET_ACCESS_KEY is missing");
    assert!(refused(&[]).contains("not in the environment, in a profile"), "{}", refused(&[]));
}

#[test]
fn a_profile_has_keys_or_a_program_that_prints_them_and_says_what_it_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (config, credentials, json) = (path("config"), path("credentials"), path("json"));
    fs::write(&json, r#"{"Version":1,"AccessKeyId":"AKID-P","SecretAccessKey":"s","SessionToken":"t"}"#).unwrap();
    let text = format!(
        "[profile program]\ncredential_process = cat '{json}'\n[profile sso]\nsso_session = x\n\
         [profile role]\nrole_arn = arn:aws:iam::1:role/r\n[profile circle]\nrole_arn = a\nsource_profile = back\n\
         [profile back]\nrole_arn = b\nsource_profile = circle\n[default]\nregion = eu-west-3\n"
    );
    fs::write(&config, text).unwrap();
    fs::write(&credentials, "[orders]\naws_access_key_id = AKID-F\naws_secret_access_key = s\n").unwrap();
    let of = |profile: &'static str| {
        [("AWS_CONFIG_FILE", config.as_str()), ("AWS_SHARED_CREDENTIALS_FILE", &credentials), ("AWS_PROFILE", profile)]
    };
    assert_eq!(keys(&of("orders")).id, "AKID-F");
    let found = keys(&of("program"));
    assert_eq!((found.id.as_str(), token(&found)), ("AKID-P", Some("t")));
    assert!(refused(&of("sso")).contains("aws configure export-credentials"));
    assert_eq!(refused(&of("role")), "AWS profile \"role\": source_profile or credential_source is missing");
    assert!(refused(&of("circle")).contains("in a circle"));
    assert_eq!(refused(&of("nobody")), "there is no AWS profile \"nobody\"");
    assert_eq!(surroundings(&of("default")).region().as_deref(), Some("eu-west-3"));
}

#[test]
fn a_web_identity_is_read_from_its_file_each_time_and_goes_to_the_token_service() {
    let service = Service::new(&[("/", 200, XML)]);
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "ey.J.first\n").unwrap();
    let path = file.path().display().to_string();
    let variables = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", path.as_str()),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r"),
        ("AWS_ENDPOINT_URL_STS", &service.base),
    ];
    let found = keys(&variables);
    assert_eq!((found.id.as_str(), found.secret.expose_secret(), token(&found)), ("AKID-X", "a/b+c=", Some("t//=")));
    assert_eq!(found.expires_at, time::of_extended("2026-11-22T18:30:05Z"));
    fs::write(file.path(), "ey.J.second\n").unwrap();
    keys(&variables);
    let asked = service.asked();
    assert!(
        asked[0].contains("RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr") && asked[0].ends_with("=ey.J.first"),
        "{asked:?}"
    );
    assert!(asked[1].ends_with("WebIdentityToken=ey.J.second"), "{asked:?}");
    assert!(refused(&variables[..1]).contains("AWS_ROLE_ARN is missing"));
}

#[test]
fn a_refusal_of_the_token_service_is_reported_in_its_words() {
    // Of a request whose signature is wrong, the lines that follow repeat all.
    let refusal = "<ErrorResponse><Error><Code>AccessDenied</Code><Message>Not authorized\n\n'X-Amz-Security-Token=t'</Message></Error></ErrorResponse>";
    let service = Service::new(Box::leak(Box::new([("/", 403, refusal)])));
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().display().to_string();
    let variables = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", path.as_str()),
        ("AWS_ROLE_ARN", "r"),
        ("AWS_ENDPOINT_URL_STS", &service.base),
    ];
    assert_eq!(refused(&variables), "sts.us-east-1.amazonaws.com answers 403: AccessDenied: Not authorized");
}

#[test]
fn a_container_is_asked_with_its_token_and_only_where_the_token_is_safe() {
    let service = Service::new(&[("/v2/credentials", 200, JSON)]);
    let url = format!("{}/v2/credentials", service.base);
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "pod-token\n").unwrap();
    let path = file.path().display().to_string();
    let found = keys(&[
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", url.as_str()),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &path),
    ]);
    assert_eq!((found.id.as_str(), token(&found)), ("AKID-J", Some("t")));
    assert!(service.asked()[0].contains("Authorization: pod-token\r\n"), "{:?}", service.asked());
    let error = refused(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://example.com/x")]);
    assert!(error.contains("neither https"), "{error}");
}

#[test]
fn an_instance_is_asked_by_version_two_of_its_service() {
    let service = Service::new(&[
        ("/latest/api/token", 200, "session"),
        ("/latest/meta-data/iam/security-credentials/", 200, "orders-role"),
        ("/latest/meta-data/iam/security-credentials/orders-role", 200, JSON),
    ]);
    let found = keys(&[("AWS_EC2_METADATA_DISABLED", "false"), ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &service.base)]);
    assert_eq!(found.id, "AKID-J");
    let asked = service.asked();
    assert!(
        asked[0].starts_with("PUT ") && asked[0].contains("X-aws-ec2-metadata-token-ttl-seconds: 300\r\n"),
        "{asked:?}"
    );
    assert!(asked[2].contains("X-aws-ec2-metadata-token: session\r\n"), "{asked:?}");
    let nobody = [("AWS_EC2_METADATA_DISABLED", "false"), ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")];
    assert!(refused(&nobody).contains("from a container or an instance"));
}

#[test]
fn a_service_that_is_busy_or_ill_is_not_one_that_refuses() {
    let busy = r"<E><Error><Code>Throttling</Code><Message>Rate exceeded</Message></Error></E>";
    let denied = r"<E><Error><Code>AccessDenied</Code><Message>no</Message></Error></E>";
    for (status, body, passes) in [
        (500, "", true),
        (503, "", true),
        (429, "", true),
        (400, busy, true),
        (400, busy.replace("Throttling", "IDPCommunicationError").leak(), true),
        (403, denied, false),
        (404, "", false),
    ] {
        let answer = Answer { status, body: body.to_owned() };
        let error = succeeded(answer, "sts").map(drop).unwrap_err();
        assert_eq!(error.passes(), passes, "{status} {body}");
    }
    assert!(!AwsError::NoProfile("p".to_owned()).passes());
}
