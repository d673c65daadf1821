//! Where AWS' access keys come from: each place of AWS' own chain, with real files and metadata services of the test's own.
//!
//! One server answers as the token service, the container's and the instance's metadata service, and SQS, which shows whose keys a
//! request is signed with.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::lane::binary;

const ROLE: &str = "arn:aws:iam::123456789012:role/relay";

/// What the instance's metadata service says of its own token.
const TTL: &str = "x-aws-ec2-metadata-token-ttl-seconds: 21600\r\n";

/// A request: its first line, its headers in lower case, and its body.
#[derive(Debug, Clone)]
struct Request {
    line: String,
    headers: String,
    body: String,
}

/// Answers as every service of AWS that gives keys, and as SQS.
struct Aws {
    base: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Aws {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(&stream);
                let (mut line, mut headers) = (String::new(), String::new());
                reader.read_line(&mut line).unwrap();
                while !headers.ends_with("\r\n\r\n") && reader.read_line(&mut headers).unwrap() > 2 {}
                let headers = headers.to_ascii_lowercase();
                let length = headers.lines().find_map(|header| header.strip_prefix("content-length: "));
                let mut body = vec![0; length.map_or(0, |text| text.parse().unwrap())];
                reader.read_exact(&mut body).unwrap();
                let request = Request { line, headers, body: String::from_utf8(body).unwrap() };
                let answer = answer(&request);
                all.lock().unwrap().push(request);
                let head =
                    format!("HTTP/1.1 200 OK\r\nconnection: close\r\n{TTL}content-length: {}\r\n\r\n", answer.len());
                (&stream).write_all((head + &answer).as_bytes()).unwrap();
            }
        });
        Self { base, requests }
    }

    /// Runs `walrelay check`. Its output, and the id of the keys that it signed its request to SQS with.
    fn check(&self, variables: &[(&str, &str)]) -> (String, Option<String>) {
        self.requests.lock().unwrap().clear();
        let endpoint = format!("endpoint-url={}", self.base);
        let output = Command::new(binary())
            .args([
                "check",
                "--source",
                "postgres://nobody@127.0.0.1:1/none",
                "--to",
                "sqs://eu-central-1",
                "-X",
                &endpoint,
            ])
            .env_clear()
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let requests = self.requests.lock().unwrap();
        let to_sqs = requests.iter().find(|request| request.headers.contains("x-amz-target: amazonsqs.listqueues"));
        (text, to_sqs.map(|request| id_of(request).to_uppercase()))
    }

    fn asked(&self, part: &str) -> Vec<Request> {
        self.requests.lock().unwrap().iter().filter(|it| format!("{it:?}").contains(part)).cloned().collect()
    }
}

fn id_of(request: &Request) -> &str {
    let (_, rest) = request.headers.split_once("credential=").unwrap();
    rest.split('/').next().unwrap()
}

fn answer(request: &Request) -> String {
    let of_role = |id: &str| {
        format!(
            "<Credentials><AccessKeyId>{id}</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>\
             <Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>"
        )
    };
    let json = |id: &str| {
        format!(
            "{{\"Code\":\"Success\",\"Type\":\"AWS-HMAC\",\"LastUpdated\":\"2026-01-01T00:00:00Z\",\"AccessKeyId\":\"{id}\",\
             \"SecretAccessKey\":\"s\",\"Token\":\"t\",\"Expiration\":\"2099-01-01T00:00:00Z\"}}"
        )
    };
    let path = request.line.split(' ').nth(1).unwrap();
    if request.headers.contains("x-amz-target: amazonsqs.") {
        "{}".to_owned()
    } else if request.body.contains("Action=AssumeRoleWithWebIdentity") {
        format!(
            "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult>{}</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>",
            of_role("AKIDWEB")
        )
    } else if request.body.contains("Action=AssumeRole") {
        format!("<AssumeRoleResponse><AssumeRoleResult>{}</AssumeRoleResult></AssumeRoleResponse>", of_role("AKIDROLE"))
    } else if path == "/container" {
        json("AKIDCONTAINER")
    } else if path == "/latest/api/token" {
        "metadata-token".to_owned()
    } else if path.ends_with("/iam/security-credentials/") || path.ends_with("/iam/security-credentials-extended/") {
        "instance-role".to_owned()
    } else if path.ends_with("/instance-role") {
        json("AKIDINSTANCE")
    } else {
        String::new()
    }
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn keys_come_from_each_place_of_awss_own_chain() {
    let (aws, folder) = (Aws::start(), tempfile::tempdir().unwrap());
    let printed = write(folder.path(), "printed", r#"{"Version":1,"AccessKeyId":"AKIDPROGRAM","SecretAccessKey":"s"}"#);
    let token = write(folder.path(), "token", "web.identity.token");
    let config = write(
        folder.path(),
        "config",
        &format!(
            "[profile role]\nrole_arn = {ROLE}\nsource_profile = plain\n[profile program]\ncredential_process = cat {printed}\n"
        ),
    );
    let credentials =
        write(folder.path(), "credentials", "[plain]\naws_access_key_id = AKIDFILE\naws_secret_access_key = s\n");
    let home = folder.path().display().to_string();
    let container = format!("{}/container", aws.base);
    let basis = [
        ("HOME", home.as_str()),
        ("PATH", "/usr/bin:/bin"),
        ("AWS_CONFIG_FILE", &config),
        ("AWS_SHARED_CREDENTIALS_FILE", &credentials),
        ("AWS_ENDPOINT_URL_STS", &aws.base),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &aws.base),
    ];
    let places: [(&str, &[(&str, &str)]); 7] = [
        ("AKIDENVIRONMENT", &[("AWS_ACCESS_KEY_ID", "AKIDENVIRONMENT"), ("AWS_SECRET_ACCESS_KEY", "s")]),
        ("AKIDFILE", &[("AWS_PROFILE", "plain")]),
        ("AKIDROLE", &[("AWS_PROFILE", "role")]),
        ("AKIDPROGRAM", &[("AWS_PROFILE", "program")]),
        ("AKIDWEB", &[("AWS_WEB_IDENTITY_TOKEN_FILE", &token), ("AWS_ROLE_ARN", ROLE)]),
        ("AKIDCONTAINER", &[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &container)]),
        ("AKIDINSTANCE", &[]),
    ];
    for (expected, variables) in places {
        let variables: Vec<(&str, &str)> = basis.iter().chain(variables).copied().collect();
        let (text, id) = aws.check(&variables);
        assert_eq!(id.as_deref(), Some(expected), "{text}");
        assert!(text.contains("answers"), "{expected}: {text}");
        assert_eq!(aws.asked("amazonsqs.listqueues").len(), 1, "{expected}");
        let source = aws.asked("Action=AssumeRole&");
        assert!(expected != "AKIDROLE" || source.iter().any(|it| id_of(it) == "akidfile"), "{source:?}");
    }
}

#[test]
fn no_keys_at_all_is_an_error_that_names_where_to_put_them() {
    let (aws, folder) = (Aws::start(), tempfile::tempdir().unwrap());
    let home = folder.path().display().to_string();
    let (text, id) = aws.check(&[("HOME", &home), ("AWS_EC2_METADATA_DISABLED", "true")]);
    assert_eq!(id, None, "{text}");
    assert!(text.contains("AWS_ACCESS_KEY_ID"), "{text}");
}
