//! [`Login`]: tokens and passwords that change while the relay runs.
//!
//! ```text
//!  a program, a file, AWS ──► thread kafka-login ──► present proof ──► new clients, when they are created
//!                          ▲        └─────────────────────────► producers that live, as soon as it is there
//!                          └── a broker refuses the present proof
//! ```
//!
//! In: the properties `oauthbearer-token-command`, `oauthbearer=aws-msk-iam` and `password-command`, and `sasl.password` from a file. Out: the
//! present token or password (the *proof*) for each client of the cluster, and each later one for producers. The thread that creates the
//! first client fetches the first proof. The thread `kafka-login` fetches all others, before the present one expires, while the relay is
//! idle too, and as long as a broker refuses the present one. librdkafka authenticates again by itself when the broker asks for it (KIP-368).
//! librdkafka's OIDC (`sasl.oauthbearer.method=oidc`) is not here: each of its clients fetches its tokens on a thread of its own.
//!
//! Invariants: the thread ends with the last [`Login`]; no secret shows in `Debug` or in an error.
//! Specification: KIP-255, KIP-368; librdkafka's `rd_kafka_oauthbearer_set_token`, `rd_kafka_sasl_set_credentials`.

#[cfg(feature = "aws")]
mod msk;
mod native;
mod token;

use crate::secret::{Secret, SecretCommand, SecretError};
use crate::setting_text::{Given, Origin, SettingError, nearest};
#[cfg(feature = "aws")]
use msk::Msk;
use rdkafka::ClientContext;
use rdkafka::client::Client;
use rdkafka::producer::{BaseProducer, NoCustomPartitioner, Producer as _, ProducerContext};
use secrecy::{ExposeSecret as _, SecretString};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, SystemTime};
use token::Token;

/// The property with a command that prints a token, or JSON about one.
pub(super) const TOKEN_COMMAND: &str = "oauthbearer-token-command";
/// The property with a command that prints the password.
pub(super) const PASSWORD_COMMAND: &str = "password-command";
/// The property that names another source of tokens: `aws-msk-iam`.
const ISSUED_BY: &str = "oauthbearer";
const MSK: &str = "aws-msk-iam";
const REGION: &str = "aws-region";
/// librdkafka's property with the password, which may come from a file.
const PASSWORD: &str = "sasl.password";
const USER: &str = "sasl.username";
const MECHANISM: &str = "sasl.mechanism";
const PROTOCOL: &str = "security.protocol";

/// The properties that walrelay has beside librdkafka's.
pub(super) const PROPERTIES: [&str; 4] = [TOKEN_COMMAND, PASSWORD_COMMAND, ISSUED_BY, REGION];

/// How often a password is read again.
const PASSWORD_EVERY: Duration = Duration::from_mins(1);

/// How often a file is read again while a broker refuses the present password.
const REFUSED_FILE_EVERY: Duration = Duration::from_secs(1);

/// How often a program is run again while a broker refuses the present proof.
const REFUSED_EVERY: Duration = Duration::from_secs(5);

/// The shortest and the longest pause after a failed attempt. In between, it is a tenth of the time that the present proof is valid.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// The longest wait without a look at the clock, since wall clocks are set and machines sleep.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The reason why there is no token or password.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// A file cannot be read, or a program fails.
    #[error("-X {property}: {source}")]
    Secret {
        /// The property that names its source.
        property: &'static str,
        /// The reason.
        source: SecretError,
    },
    /// AWS gives no access keys.
    #[error("-X oauthbearer=aws-msk-iam: {0}")]
    Aws(String),
    /// A program prints no token.
    #[error(
        "-X {TOKEN_COMMAND}: what it prints is neither a token nor JSON with token, expires_at, principal and extensions"
    )]
    NoToken,
    /// The token has expired.
    #[error("-X {property}: the token that it prints has expired")]
    Expired {
        /// The property that names its source.
        property: &'static str,
    },
    /// librdkafka refuses the token.
    #[error("-X {property}: {reason}")]
    Unfit {
        /// The property that names its source.
        property: &'static str,
        /// librdkafka's words.
        reason: String,
    },
}

/// A source of tokens or passwords that change, with the present one. Clones share it.
#[derive(Clone)]
pub(super) struct Login {
    shared: Arc<SharedLogin>,
    /// Wakes the thread. The last [`Login`] drops it, which ends the thread. `None`: there is no thread yet.
    thread: Arc<Mutex<Option<SyncSender<()>>>>,
}

struct SharedLogin {
    property: &'static str,
    source: ProofSource,
    user: String,
    present: Mutex<Option<Present>>,
    /// Whether a broker refuses the present proof.
    refused: AtomicBool,
    /// Producers that get each new proof.
    clients: Mutex<Vec<Weak<dyn LoggedIn>>>,
}

/// A producer, whatever its context.
trait LoggedIn: Send + Sync {
    /// Gives librdkafka another proof.
    fn take(&self, user: &str, proof: &LoginProof) -> Result<(), String>;
}

impl<C: ProducerContext<NoCustomPartitioner>> LoggedIn for BaseProducer<C> {
    fn take(&self, user: &str, proof: &LoginProof) -> Result<(), String> {
        match proof {
            LoginProof::Token(token) => native::set_token(self.client(), token),
            LoginProof::Password(password) => native::set_password(self.client(), user, password),
        }
    }
}

#[derive(Debug, Clone)]
enum ProofSource {
    Token(SecretCommand),
    #[cfg(feature = "aws")]
    Msk(Msk),
    Password(Secret),
}

/// The present proof.
#[derive(Debug, Clone)]
struct Present {
    proof: LoginProof,
    /// When to fetch the next proof, by the wall clock.
    renew_at: SystemTime,
}

#[derive(Debug, Clone)]
enum LoginProof {
    Token(Token),
    Password(SecretString),
}

impl Login {
    /// Takes walrelay's properties out of `properties`, and adds those that librdkafka needs instead. `brokers`: their addresses.
    /// `None`: tokens and passwords do not change.
    ///
    /// # Errors
    /// A command line cannot be parsed; properties exclude each other, or need another one.
    pub(super) fn take(properties: &mut Vec<(String, Given)>, brokers: &[Given]) -> Result<Option<Self>, SettingError> {
        let (issuer, region) = (take(properties, ISSUED_BY), take(properties, REGION));
        let (token, command) = (take(properties, TOKEN_COMMAND), take(properties, PASSWORD_COMMAND));
        let last = |wanted: &str| properties.iter().rfind(|(name, _)| name == wanted).map(|(_, given)| given.clone());
        let (password, user) = (last(PASSWORD), last(USER).map(|given| given.text).unwrap_or_default());
        if let (None, Some(region)) = (&issuer, &region) {
            return Err(region.needs("-X oauthbearer=aws-msk-iam"));
        }
        let sources: Vec<&Given> = [&issuer, &token, &command, &password].into_iter().flatten().collect();
        if let [first, second, ..] = sources.as_slice() {
            return Err(first.excludes(second));
        }
        if let Some(issuer) = issuer {
            return by_msk(properties, &issuer, region, brokers).map(Some);
        }
        let (property, source) = if let Some(command) = token {
            by_token(properties, &command)?;
            (TOKEN_COMMAND, ProofSource::Token(parse(&command)?))
        } else if let Some(command) = command {
            (PASSWORD_COMMAND, ProofSource::Password(Secret::Command(parse(&command)?)))
        } else if let Some(Given { origin: Origin::FlagFile(from), .. }) = password {
            (PASSWORD, ProofSource::Password(Secret::File(from.file)))
        } else {
            return Ok(None);
        };
        Ok(Some(Self::new(property, source, user)))
    }

    fn new(property: &'static str, source: ProofSource, user: String) -> Self {
        let shared = SharedLogin {
            property,
            source,
            user,
            present: Mutex::default(),
            refused: AtomicBool::new(false),
            clients: Mutex::default(),
        };
        Self { shared: Arc::new(shared), thread: Arc::default() }
    }

    /// The present password. `None`: the login is by token.
    ///
    /// # Errors
    /// There was no password before, and none can be fetched.
    pub(super) fn password(&self) -> Result<Option<SecretString>, LoginError> {
        Ok(match self.present()?.proof {
            LoginProof::Password(password) => Some(password),
            LoginProof::Token(_) => None,
        })
    }

    /// Gives a new client its token. A new client has a password from its settings.
    ///
    /// # Errors
    /// There was no token before, and none can be fetched; or librdkafka refuses it.
    pub(super) fn begin<C: ClientContext>(&self, client: &Client<C>) -> Result<(), LoginError> {
        match self.present()?.proof {
            LoginProof::Token(token) if !token.has_expired(SystemTime::now()) => native::set_token(client, &token)
                .map_err(|reason| LoginError::Unfit { property: self.shared.property, reason }),
            // The thread fetches another token.
            LoginProof::Token(_) | LoginProof::Password(_) => Ok(()),
        }
    }

    /// Gives a producer each new proof, as long as it lives.
    pub(super) fn keep<C: ProducerContext<NoCustomPartitioner> + 'static>(&self, producer: &Arc<BaseProducer<C>>) {
        let weak: Weak<BaseProducer<C>> = Arc::downgrade(producer);
        let mut clients = lock(&self.shared.clients);
        clients.retain(|client| client.strong_count() > 0);
        clients.push(weak);
        drop(clients);
        // The proof may have changed since the producer was created.
        if let Some(present) = lock(&self.shared.present).clone() {
            self.shared.give(&**producer, &present.proof);
        }
    }

    /// A broker refuses the present proof: the thread fetches another one at once, and again until a broker accepts one.
    pub(super) fn refused(&self) {
        let was_refused = self.shared.refused.swap(true, Ordering::Relaxed);
        if let Some(thread) = lock(&self.thread).as_ref().filter(|_| !was_refused)
            && thread.try_send(()).is_err()
        {
            tracing::debug!("the credentials are being renewed already");
        }
    }

    /// A broker has accepted the present proof.
    pub(super) fn accepted(&self) {
        self.shared.refused.store(false, Ordering::Relaxed);
    }

    /// The present proof. The first call fetches it on this thread, and starts the thread that fetches the later ones.
    fn present(&self) -> Result<Present, LoginError> {
        let mut thread = lock(&self.thread);
        if let Some(present) = lock(&self.shared.present).clone() {
            return Ok(present);
        }
        let first = self.shared.ask()?;
        *lock(&self.shared.present) = Some(first.clone());
        let (wake, woken) = mpsc::sync_channel(1);
        let shared = Arc::clone(&self.shared);
        let spawned = thread::Builder::new().name("kafka-login".to_owned()).spawn(move || shared.keep_renewed(&woken));
        match spawned {
            Ok(_) => *thread = Some(wake),
            Err(error) => tracing::error!(%error, "cannot start the thread that renews the credentials for Kafka"),
        }
        Ok(first)
    }
}

/// Takes the property with this name. If there are several, the last counts.
fn take(properties: &mut Vec<(String, Given)>, name: &str) -> Option<Given> {
    let taken = properties.iter().rfind(|(known, _)| known == name).map(|(_, given)| given.clone());
    properties.retain(|(known, _)| known != name);
    taken
}

fn parse(command: &Given) -> Result<SecretCommand, SettingError> {
    SecretCommand::parse(&command.text).map_err(|error| command.invalid(format!("a program: {error}"), None))
}

/// The login by tokens that walrelay signs for MSK.
fn by_msk(
    properties: &mut Vec<(String, Given)>,
    issuer: &Given,
    region: Option<Given>,
    brokers: &[Given],
) -> Result<Login, SettingError> {
    if issuer.text.trim() != MSK {
        return Err(issuer.invalid(MSK, Some(MSK.to_owned())));
    }
    by_token(properties, issuer)?;
    #[cfg(feature = "aws")]
    return Ok(Login::new(
        ISSUED_BY,
        ProofSource::Msk(Msk::new(region.map(|it| it.text.trim().to_owned()), brokers)),
        String::new(),
    ));
    #[cfg(not(feature = "aws"))]
    {
        drop((region, brokers));
        Err(issuer.invalid("a program (oauthbearer-token-command): this walrelay was built without AWS", None))
    }
}

/// Checks or adds the mechanism and the protocol that a token needs.
fn by_token(properties: &mut Vec<(String, Given)>, given: &Given) -> Result<(), SettingError> {
    let value = |wanted: &str| properties.iter().rfind(|(name, _)| name.replace("mechanisms", "mechanism") == wanted);
    match value(MECHANISM) {
        Some((_, mechanism)) if !mechanism.text.trim().eq_ignore_ascii_case("OAUTHBEARER") => {
            return Err(mechanism.invalid(format!("OAUTHBEARER, as {} has it", given.origin), None));
        }
        Some(_) => {}
        None => properties.push((MECHANISM.to_owned(), Given { text: "OAUTHBEARER".to_owned(), ..given.clone() })),
    }
    let protocol = properties.iter().rfind(|(name, _)| name == PROTOCOL);
    match protocol {
        Some((_, protocol)) if !protocol.text.trim().to_ascii_lowercase().starts_with("sasl_") => {
            let near = nearest(&protocol.text, ["SASL_SSL", "SASL_PLAINTEXT"]).unwrap_or("SASL_SSL");
            Err(protocol
                .invalid(format!("SASL_SSL or SASL_PLAINTEXT, as {} needs", given.origin), Some(near.to_owned())))
        }
        Some(_) => Ok(()),
        // A token is a secret, as a password is: it needs an encrypted connection.
        None => {
            properties.push((PROTOCOL.to_owned(), Given { text: "SASL_SSL".to_owned(), ..given.clone() }));
            Ok(())
        }
    }
}

impl SharedLogin {
    /// Fetches a proof from its source.
    fn ask(&self) -> Result<Present, LoginError> {
        let property = self.property;
        let secret = |source| LoginError::Secret { property, source };
        let now = SystemTime::now();
        match &self.source {
            ProofSource::Password(password) => {
                // A program's output may be cached: this password is as old as that.
                password.refused();
                let proof = LoginProof::Password(password.read().map_err(secret)?);
                Ok(Present { proof, renew_at: now + PASSWORD_EVERY })
            }
            ProofSource::Token(command) => {
                let output = command.output().map_err(secret)?;
                let token = Token::read(output.expose_secret(), now).ok_or(LoginError::NoToken)?;
                self.checked(token, now)
            }
            #[cfg(feature = "aws")]
            ProofSource::Msk(msk) => {
                let token = msk.token(now).map_err(LoginError::Aws)?;
                self.checked(token, now)
            }
        }
    }

    fn checked(&self, token: Token, now: SystemTime) -> Result<Present, LoginError> {
        let renew_at = token.renew_at(now);
        if token.has_expired(now) {
            return Err(LoginError::Expired { property: self.property });
        }
        Ok(Present { proof: LoginProof::Token(token), renew_at })
    }

    /// Fetches new proofs until the last [`Login`] is dropped.
    fn keep_renewed(&self, woken: &Receiver<()>) {
        let mut failing = false;
        loop {
            match woken.recv_timeout(self.pause()) {
                Err(RecvTimeoutError::Timeout) if !self.is_due() => continue,
                Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            match self.ask() {
                Ok(fresh) => {
                    if std::mem::take(&mut failing) {
                        tracing::info!(property = self.property, "Kafka credentials renewed");
                    }
                    self.take(fresh);
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::error!(%error, "no new credentials for Kafka; the current ones are used until they expire; asking again");
                    }
                    self.retry_later();
                }
            }
        }
    }

    /// How long the thread waits before it looks again.
    fn pause(&self) -> Duration {
        if self.refused.load(Ordering::Relaxed) {
            let runs_nothing = matches!(self.source, ProofSource::Password(Secret::File(_) | Secret::Text(_)));
            return if runs_nothing { REFUSED_FILE_EVERY } else { REFUSED_EVERY };
        }
        let due = lock(&self.present).as_ref().map(|present| present.renew_at);
        let pause = due.and_then(|due| due.duration_since(SystemTime::now()).ok()).unwrap_or_default();
        // Never zero, so that the loop does not spin, and never long, since wall clocks are set.
        pause.clamp(RETRY.0, LONGEST_WAIT)
    }

    fn is_due(&self) -> bool {
        let is_over = |present: &Present| SystemTime::now() >= present.renew_at;
        self.refused.load(Ordering::Relaxed) || lock(&self.present).as_ref().is_none_or(is_over)
    }

    /// Stores a new proof, and gives it to all producers if it differs.
    fn take(&self, fresh: Present) {
        let mut present = lock(&self.present);
        let is_same = present.as_ref().is_some_and(|present| present.proves_the_same(&fresh));
        let proof = fresh.proof.clone();
        *present = Some(fresh);
        drop(present);
        if is_same {
            return;
        }
        let clients: Vec<_> = lock(&self.clients).iter().filter_map(Weak::upgrade).collect();
        for client in clients {
            self.give(&*client, &proof);
        }
    }

    fn give(&self, client: &dyn LoggedIn, proof: &LoginProof) {
        if let Err(reason) = client.take(&self.user, proof) {
            tracing::warn!(property = self.property, reason, "librdkafka does not take the new credentials");
        }
    }

    fn retry_later(&self) {
        if let Some(present) = lock(&self.present).as_mut() {
            present.renew_at = SystemTime::now() + (present.left() / 10).clamp(RETRY.0, RETRY.1);
        }
    }
}

impl Present {
    fn proves_the_same(&self, other: &Self) -> bool {
        match (&self.proof, &other.proof) {
            (LoginProof::Password(one), LoginProof::Password(two)) => one.expose_secret() == two.expose_secret(),
            (LoginProof::Token(_) | LoginProof::Password(_), _) => false,
        }
    }

    /// How long the proof is still valid.
    fn left(&self) -> Duration {
        match &self.proof {
            LoginProof::Token(token) => token.left(SystemTime::now()),
            LoginProof::Password(_) => PASSWORD_EVERY,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting_text::FlagFile;

    fn given(pairs: &[(&str, &str)]) -> Vec<(String, Given)> {
        let origin = |name: &str| Origin::Flag(format!("-X {name}"));
        pairs
            .iter()
            .map(|(name, text)| ((*name).to_owned(), Given { text: (*text).to_owned(), origin: origin(name) }))
            .collect()
    }

    fn names(properties: &[(String, Given)]) -> Vec<(&str, &str)> {
        properties.iter().map(|(name, given)| (name.as_str(), given.text.as_str())).collect()
    }

    #[track_caller]
    fn refused(pairs: &[(&str, &str)]) -> String {
        Login::take(&mut given(pairs), &[]).err().unwrap().to_string()
    }

    #[test]
    fn our_own_properties_do_not_reach_librdkafka_and_bring_what_it_needs() {
        let mut properties = given(&[("linger.ms", "5"), (TOKEN_COMMAND, "print-token 'a b'")]);
        assert!(Login::take(&mut properties, &[]).unwrap().is_some());
        let expected = [("linger.ms", "5"), (MECHANISM, "OAUTHBEARER"), (PROTOCOL, "SASL_SSL")];
        assert_eq!(names(&properties), expected);
        assert!(Login::take(&mut properties, &[]).unwrap().is_none());
        let said = [("sasl.mechanisms", "oauthbearer"), (PROTOCOL, "sasl_plaintext")];
        let mut properties = given(&[said[0], said[1], (TOKEN_COMMAND, "a")]);
        assert!(Login::take(&mut properties, &[]).unwrap().is_some());
        assert_eq!(names(&properties), said);
    }

    #[test]
    fn what_does_not_go_together_is_refused_with_what_does() {
        assert_eq!(
            refused(&[(TOKEN_COMMAND, "a"), (PASSWORD_COMMAND, "b")]),
            "-X oauthbearer-token-command and -X password-command exclude each other"
        );
        assert_eq!(
            refused(&[(PASSWORD, "hunter2"), (PASSWORD_COMMAND, "b")]),
            "-X password-command and -X sasl.password exclude each other"
        );
        assert!(refused(&[(MECHANISM, "PLAIN"), (TOKEN_COMMAND, "a")]).contains("expected OAUTHBEARER"));
        assert!(refused(&[(PROTOCOL, "SSL"), (TOKEN_COMMAND, "a")]).contains("expected SASL_SSL"));
        assert!(refused(&[(ISSUED_BY, "aws-msk-iam"), (TOKEN_COMMAND, "a")]).contains("exclude each other"));
        assert!(refused(&[(ISSUED_BY, "aws")]).contains("expected aws-msk-iam"));
        assert_eq!(refused(&[(REGION, "eu-west-1")]), "-X aws-region needs -X oauthbearer=aws-msk-iam");
        assert!(refused(&[(PASSWORD_COMMAND, "cat 'x")]).contains("a quote in it is not closed"));
    }

    fn from_file(text: &str) -> (Login, tempfile::NamedTempFile) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let from = FlagFile { flag: "-X sasl.password".to_owned(), file: file.path().to_owned() };
        let given = Given { text: text.to_owned(), origin: Origin::FlagFile(Box::new(from)) };
        let login = Login::take(&mut vec![(PASSWORD.to_owned(), given)], &[]).unwrap().unwrap();
        (login, file)
    }

    #[test]
    fn a_password_that_changes_is_a_new_one_and_the_same_is_not() {
        let (login, file) = from_file("first");
        assert_eq!(login.password().unwrap().unwrap().expose_secret(), "first");
        let shared = &login.shared;
        let first = lock(&shared.present).clone().unwrap();
        assert!(first.proves_the_same(&shared.ask().unwrap()));
        std::fs::write(file.path(), "second\n").unwrap();
        assert!(!first.proves_the_same(&shared.ask().unwrap()));
        let path = file.path().to_owned();
        drop(file);
        assert!(shared.ask().unwrap_err().to_string().contains(&path.display().to_string()));
        assert_eq!(login.password().unwrap().unwrap().expose_secret(), "first", "the present one stays");
    }

    #[test]
    fn a_refusal_has_the_password_read_again_at_once() {
        let (login, file) = from_file("first");
        assert_eq!(login.password().unwrap().unwrap().expose_secret(), "first");
        std::fs::write(file.path(), "second\n").unwrap();
        login.refused();
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while login.password().unwrap().unwrap().expose_secret() == "first" {
            assert!(std::time::Instant::now() < deadline, "it is still the first");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn the_thread_ends_with_the_last_that_knows_the_login() {
        let (login, _file) = from_file("first");
        login.password().unwrap();
        let shared = Arc::downgrade(&login.shared);
        let other = login.clone();
        drop(login);
        assert!(shared.strong_count() > 1);
        drop(other);
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while shared.strong_count() > 0 {
            assert!(std::time::Instant::now() < deadline, "the thread is still there");
            thread::sleep(Duration::from_millis(10));
        }
    }
}
