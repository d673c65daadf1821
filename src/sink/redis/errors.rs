//! The meaning of a server's replies, for the records of a batch, and the redirects of a cluster's nodes (MOVED, ASK).
//!
//! In: the form of a batch, and its replies. Out: for each record whether it was added, refused, or neither. This file does no I/O.
//! Control flow follows the code with which an error begins. Where Redis gives no code of its own, constants here name the texts.
//! The codes and texts are closed lists: any other error is of the class `Unlisted`, and says nothing about a record. A proxy before the server
//! may give any error for a reason of its own, mostly with the code ERR.
//! Specification: Redis, "Redis cluster specification", section "Redirection and resharding"; the table of shared errors in the server's
//! `server.c`; `t_stream.c` (XADD), `networking.c` (errors of the protocol), `multi.c` (EXECABORT).

use super::RedisSettings;
use super::message::BatchForm;
use crate::setting_text::shell_quoted;
use crate::sink::destination::CONNECTION;
use crate::sink::ordered_queue::address::Server;
use crate::sink::ordered_queue::{LOG_IN_LABEL, RecordOutcome};
use crate::sink::{DUPLICATE, Failure, FailureClass, UNLISTED};
use redis::{FromRedisValue, Value, from_redis_value};
use std::slice::Iter;

/// The meaning of the replies to a batch as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Classified {
    /// Each record has its outcome.
    Each,
    /// The server added no record, for a reason that passes by itself. Records that are not refused are sent again later.
    Later(Failure),
    /// As [`Classified::Later`], but on another connection: this server takes no writes.
    Elsewhere(Failure),
    /// The server added no record: the client has to ask another node of the cluster. The failure is for people.
    Redirected(Redirect, Failure),
    /// The server added no record, and does not say which one is the cause.
    Among(Failure),
    /// The replies do not fit the batch.
    Broken,
}

/// The meaning of an error.
enum RedisFault {
    /// The record itself.
    Row,
    /// An error that is in no list.
    Unlisted,
    /// The user lacks a right.
    NotPermitted,
    /// The key that has the stream's name holds something else.
    WrongType,
    /// The slot of a cluster cannot be written. The server may take records of other streams.
    Slot,
    Redirect(Redirect),
    Later,
    Elsewhere,
    /// The server does not accept the credentials.
    LogIn,
}

impl RedisFault {
    /// Whether the server takes the same command once its state has changed, or another server does.
    fn passes(&self) -> bool {
        match self {
            Self::Row | Self::Unlisted | Self::NotPermitted | Self::WrongType | Self::LogIn => false,
            Self::Slot | Self::Redirect(_) | Self::Later | Self::Elsewhere => true,
        }
    }
}

/// Labels of failures, for metrics.
const MEMORY: &str = "memory";
pub(super) const NOT_WRITABLE: &str = "not_writable";
pub(super) const NOT_PERMITTED: &str = "not_permitted";
pub(super) const WRONG_TYPE: &str = "wrong_type";
const REFUSED: &str = "refused";
pub(super) const STREAM: &str = "stream";
pub(super) const HEADERS: &str = "headers";

/// The labels for which Redis may refuse a record.
pub(super) const REFUSALS: [&str; 6] = [NOT_PERMITTED, WRONG_TYPE, REFUSED, STREAM, HEADERS, DUPLICATE];

/// The errors that say of a record itself that the server does not take it: an argument above `proto-max-bulk-len`, and an entry that is too large
/// for a stream. The server closes the connection after the first one.
const OF_RECORD: [&str; 2] = ["ERR Protocol error: invalid bulk length", "ERR Elements are too large to be stored"];

/// The text in front of the error for which the server did not execute a transaction.
const ABORTED: &str = "EXECABORT Transaction discarded because of: ";

/// The labels of failed deliveries.
pub(super) const REASONS: [&str; 9] =
    [CONNECTION, LOG_IN_LABEL, MEMORY, NOT_WRITABLE, NOT_PERMITTED, WRONG_TYPE, REFUSED, UNLISTED, DUPLICATE];

/// The fix if the server does not accept the credentials.
const CREDENTIALS: &str = "check the user in --to, and the password (WALRELAY_REDIS_PASSWORD, -X password=@FILE)";

/// The fix if the key with the stream's name is no stream.
const OTHER_KEY: &str = "RENAME or DEL the key that has the stream's name, or give another --topic";

/// The reply on a connection above `maxclients`, whose code other errors have too.
const FULL: &str = "ERR max number of clients";

/// The text of a missing right within a script. Servers before Redis 7.0 give it no code.
const MAY_NOT: &str = "The user executing the script can't ";

/// The text behind which an error repeats the command's words.
const REPEATS: &str = ", with args";

/// The text of a reply that is an error. `None`: it is no error.
pub(super) fn said(reply: &Value) -> Option<String> {
    let Value::ServerError(error) = reply else { return None };
    let details = error.details().map_or_else(String::new, |details| format!(" {details}"));
    Some(format!("{}{details}", error.code()))
}

/// Whether a reply is a text without length, such as `OK` and `QUEUED`.
pub(super) fn is_text(reply: &Value) -> bool {
    matches!(reply, Value::Okay | Value::SimpleString(_))
}

/// An error's code: its first word, such as `OOM`.
pub(super) fn code(error: &str) -> &str {
    error.split(' ').next().unwrap_or_default()
}

fn fault(error: &str) -> (RedisFault, &'static str) {
    let error = behind_place(error);
    match code(error) {
        "OOM" => (RedisFault::Later, MEMORY),
        "MISCONF" | "LOADING" | "BUSY" | "NOREPLICAS" => (RedisFault::Later, NOT_WRITABLE),
        "READONLY" | "MASTERDOWN" | "UNBLOCKED" => (RedisFault::Elsewhere, NOT_WRITABLE),
        // DENIED: the server's protected mode.
        "NOAUTH" | "WRONGPASS" | "DENIED" => (RedisFault::LogIn, LOG_IN_LABEL),
        "MOVED" | "ASK" | "CROSSSLOT" | "CLUSTERDOWN" | "TRYAGAIN" => {
            (Redirect::of(error).map_or(RedisFault::Slot, RedisFault::Redirect), NOT_WRITABLE)
        }
        "NOPERM" => (RedisFault::NotPermitted, NOT_PERMITTED),
        "WRONGTYPE" => (RedisFault::WrongType, WRONG_TYPE),
        _ if error.starts_with(FULL) => (RedisFault::Elsewhere, CONNECTION),
        _ if error.starts_with(MAY_NOT) => (RedisFault::NotPermitted, NOT_PERMITTED),
        _ if is_of_record(error) => (RedisFault::Row, REFUSED),
        _ => (RedisFault::Unlisted, UNLISTED),
    }
}

/// Whether the error says of a record itself that the server does not take it.
pub(super) fn is_of_record(error: &str) -> bool {
    OF_RECORD.iter().any(|text| error.starts_with(text))
}

/// Whether the error may be about a record, as far as its text says.
pub(super) fn may_be_of_record(error: &str) -> bool {
    matches!(fault(error).0, RedisFault::Row | RedisFault::Unlisted)
}

/// An error without its place in the script, or in front of it. Redis before 7.0 writes that in front of a command's error: `@user_script: 24: -OOM …`.
fn behind_place(error: &str) -> &str {
    if let Some(cause) = error.strip_prefix(ABORTED) {
        return cause.strip_prefix('-').unwrap_or(cause);
    }
    let Some(rest) = error.strip_prefix("@user_script: ") else { return error };
    let rest = rest.trim_start_matches(|digit: char| digit.is_ascii_digit()).strip_prefix(": ").unwrap_or(error);
    rest.strip_prefix('-').unwrap_or(rest)
}

/// The command that gives the user rights. `words`: the rights in Redis' syntax, such as `+info`. It is quoted for shells and `redis-cli`.
pub(super) fn allow(settings: &RedisSettings, words: &[&str]) -> String {
    let words = [&["ACL", "SETUSER", settings.user()], words].concat();
    words
        .into_iter()
        .map(|word| if word.starts_with('+') { word.to_owned() } else { shell_quoted(word) })
        .collect::<Vec<_>>()
        .join(" ")
}

/// The command that gives the user the rights for publishing to the stream.
pub(super) fn allow_stream(settings: &RedisSettings, stream: &str) -> String {
    let key = pattern(stream);
    let mut words = match settings.adding.dedupe {
        Some(_) => vec![key.as_str(), "~walrelay:seen:*", "+eval", "+set", "+del", "+xadd"],
        None => vec![key.as_str(), "+multi", "+exec", "+xadd"],
    };
    if settings.wait.is_some() {
        words.extend(["+info", "+wait", "+waitaof"]);
    }
    allow(settings, &words)
}

/// A pattern that matches only this key.
pub(super) fn pattern(key: &str) -> String {
    let mut pattern = "~".to_owned();
    for character in key.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

/// Adds the command that gives a right to the failure of a missing right. Returns another failure as it is.
pub(super) fn with_fix(failure: Failure, fix: impl FnOnce() -> String) -> Failure {
    if failure.reason != NOT_PERMITTED {
        return failure;
    }
    Failure { text: format!("{}; to allow it: {}", failure.text, fix()), ..failure }
}

/// The failure if the server at `address` refuses the credentials, or if they cannot be read.
pub(super) fn log_in_fails(address: &str, reason: &str) -> Failure {
    Failure::new(FailureClass::LogIn, LOG_IN_LABEL, format!("Redis at {address}: {reason}")).with_remedy(CREDENTIALS)
}

/// The failure of a command that concerns no record.
pub(super) fn environment(address: &str, error: &str) -> Failure {
    match fault(error) {
        (RedisFault::LogIn, _) => log_in_fails(address, error),
        (_, reason) => Failure::new(FailureClass::Environment, reason, format!("Redis at {address}: {error}")),
    }
}

/// The failure of a login.
pub(super) fn of_login(address: &str, error: &str) -> Failure {
    // A server that does not know the command repeats its words, the password among them.
    let (said, _) = error.split_once(REPEATS).unwrap_or((error, ""));
    if fault(error).0.passes() { environment(address, said) } else { log_in_fails(address, said) }
}

/// The failure of a command that reads a stream or deletes from it.
pub(super) fn of_stream(address: &str, error: &str) -> Failure {
    let failure = environment(address, error);
    let is_of_stream = failure.class != FailureClass::LogIn && !fault(error).0.passes();
    if is_of_stream { Failure { class: FailureClass::Topic, ..failure } } else { failure }
}

/// The failure of a part of a stream's replies that has another form than the server's. It does not quote that part, in which values may be.
pub(super) fn not_understood(part: &str, stream: &str) -> Failure {
    Failure::new(
        FailureClass::Environment,
        CONNECTION,
        format!("stream {stream} cannot be read: {part} is not understood"),
    )
}

/// The content of a reply to a command about a stream.
pub(super) fn understood<T: FromRedisValue>(command: &str, stream: &str, reply: Value) -> Result<T, Failure> {
    from_redis_value(reply).map_err(|_| not_understood(&format!("the reply to {command}"), stream))
}

/// The failure of a record whose command got this error, or over which the server closed the connection.
pub(super) fn refused(stream: &str, error: &str) -> Failure {
    let text = format!("Redis refuses a record for stream {stream}: {error}");
    if is_of_record(error) {
        return Failure::new(FailureClass::Row, REFUSED, text);
    }
    Failure::new(FailureClass::Unlisted, UNLISTED, text)
}

/// The settings, the server and the form of a batch whose replies are classified.
#[derive(Clone, Copy)]
pub(super) struct AskedBatch<'a> {
    pub(super) settings: &'a RedisSettings,
    /// The server's address, for people.
    pub(super) address: &'a str,
    pub(super) form: BatchForm,
}

/// Classifies the replies to records for `streams`, one stream for each record. Appends an outcome for each record to `outcomes`.
pub(super) fn classify<'a>(
    asked: AskedBatch<'_>,
    streams: impl Iterator<Item = &'a str> + Clone,
    replies: &mut Iter<'_, Value>,
    outcomes: &mut Vec<RecordOutcome>,
) -> Classified {
    let records = streams.clone().count();
    let mut classify = Classifier { asked, streams, records, outcomes, later: None, elsewhere: false, redirect: None };
    let whole = match asked.form {
        BatchForm::Single => classify.each(replies.next().map(std::slice::from_ref).unwrap_or_default()),
        BatchForm::Script => classify.array(replies.next()),
        BatchForm::Multi => classify.transaction(replies),
    };
    match (whole, classify.later, classify.redirect) {
        (Some(classified), ..) => classified,
        (None, Some(failure), _) if classify.elsewhere => Classified::Elsewhere(failure),
        (None, _, Some((redirect, failure))) => Classified::Redirected(redirect, failure),
        (None, Some(failure), None) => Classified::Later(failure),
        (None, None, None) => Classified::Each,
    }
}

struct Classifier<'j, S> {
    asked: AskedBatch<'j>,
    streams: S,
    records: usize,
    outcomes: &'j mut Vec<RecordOutcome>,
    later: Option<Failure>,
    elsewhere: bool,
    redirect: Option<(Redirect, Failure)>,
}

impl<'a, S: Iterator<Item = &'a str> + Clone> Classifier<'_, S> {
    /// Classifies one reply for each record: an entry's id, or the script's 1 (added) or 0 (was there).
    fn each(&mut self, replies: &[Value]) -> Option<Classified> {
        if replies.len() != self.records {
            return Some(Classified::Broken);
        }
        for (stream, reply) in self.streams.clone().zip(replies) {
            let outcome = match (reply, said(reply)) {
                (Value::Int(0), _) => RecordOutcome::Duplicate,
                (Value::BulkString(_) | Value::Int(_), _) => RecordOutcome::Delivered,
                (_, Some(error)) => self.of_error(stream, &error),
                (_, None) => return Some(Classified::Broken),
            };
            self.outcomes.push(outcome);
        }
        None
    }

    fn of_error(&mut self, stream: &str, error: &str) -> RecordOutcome {
        let (fault, reason) = fault(error);
        let AskedBatch { settings, address, .. } = self.asked;
        let refused = |class| Failure { class, reason, ..refused(stream, error) };
        RecordOutcome::Refused(match fault {
            RedisFault::Row => refused(FailureClass::Row),
            RedisFault::Unlisted => refused(FailureClass::Unlisted),
            RedisFault::NotPermitted => with_fix(refused(FailureClass::Topic), || allow_stream(settings, stream)),
            RedisFault::WrongType => refused(FailureClass::Topic).with_remedy(OTHER_KEY),
            RedisFault::Slot => return RecordOutcome::Later(environment(address, error)),
            RedisFault::Redirect(redirect) => {
                self.redirect = Some((redirect, environment(address, error)));
                return RecordOutcome::Unknown;
            }
            RedisFault::Later | RedisFault::Elsewhere | RedisFault::LogIn => {
                self.elsewhere |= !matches!(fault, RedisFault::Later);
                self.later = Some(environment(address, error));
                return RecordOutcome::Unknown;
            }
        })
    }

    /// Classifies an array with a reply for each record, or an error for all.
    fn array(&mut self, reply: Option<&Value>) -> Option<Classified> {
        match (reply, reply.and_then(said)) {
            (Some(Value::Array(replies)), _) => self.each(replies),
            (_, Some(error)) => self.none(&error),
            (_, None) => Some(Classified::Broken),
        }
    }

    /// Classifies an error for all records: the server added none.
    fn none(&mut self, error: &str) -> Option<Classified> {
        let fault = fault(error).0;
        // Without a log-in, the server refuses every command.
        if self.records == 1 || fault.passes() || matches!(fault, RedisFault::LogIn) {
            let first = self.of_error(self.streams.clone().next().unwrap_or_default(), error);
            // A fault of the slot concerns each record. Otherwise the error is about the whole command, and the first record has it.
            let other = if let RecordOutcome::Later(_) = first { first.clone() } else { RecordOutcome::Unknown };
            self.outcomes.push(first);
            self.outcomes.extend(std::iter::repeat_n(other, self.records.saturating_sub(1)));
            return None;
        }
        self.outcomes.extend(std::iter::repeat_n(RecordOutcome::Unknown, self.records));
        let RecordOutcome::Refused(failure) = self.of_error(self.streams.clone().next().unwrap_or_default(), error)
        else {
            return Some(Classified::Broken);
        };
        Some(Classified::Among(failure))
    }

    /// Classifies the replies of a transaction: MULTI's, one for each queued command, and EXEC's.
    fn transaction(&mut self, replies: &mut Iter<'_, Value>) -> Option<Classified> {
        let multi = replies.next();
        let (queued, rest) = replies.as_slice().split_at_checked(self.records).unwrap_or_default();
        *replies = rest.iter();
        let exec = replies.next();
        if queued.iter().all(is_text) && multi.is_some_and(is_text) {
            return self.array(exec);
        }
        // EXEC's own error says only that a queued command failed.
        if exec.is_none_or(|exec| said(exec).is_none()) {
            return Some(Classified::Broken);
        }
        if let Some(error) = multi.and_then(said) {
            return self.none(&error);
        }
        for (stream, reply) in self.streams.clone().zip(queued) {
            let outcome = said(reply).map_or(RecordOutcome::Unknown, |error| self.of_error(stream, &error));
            self.outcomes.push(outcome);
        }
        None
    }
}

/// A redirect: the content of MOVED or ASK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Redirect {
    /// Whether this is ASK: the slot is on its way to the node, which takes one command behind ASKING. MOVED: the node has the slot.
    pub(super) ask: bool,
    pub(super) slot: u16,
    /// The node's host. Empty: the host of the node that says so. `?`: that node does not know it.
    pub(super) host: String,
    pub(super) port: u16,
}

impl Redirect {
    /// Parses an error. `None`: it is no redirect.
    pub(super) fn of(error: &str) -> Option<Self> {
        let mut words = error.split(' ');
        let ask = match words.next()? {
            "MOVED" => false,
            "ASK" => true,
            _ => return None,
        };
        let slot = words.next()?.parse().ok()?;
        // An IPv6 address has no brackets here.
        let (host, port) = words.next()?.rsplit_once(':')?;
        Some(Self { ask, slot, host: host.to_owned(), port: port.parse().ok()? })
    }

    /// The node's address. `said_by`: the host of the node that sent the redirect. `None`: that node does not know it.
    pub(super) fn server(&self, said_by: &str) -> Option<Server> {
        server(&self.host, self.port, said_by)
    }
}

/// The address of a node that the node at `said_by` calls by this host. `None`: that node does not know it.
pub(super) fn server(host: &str, port: u16, said_by: &str) -> Option<Server> {
    let host = match host {
        "?" => return None,
        "" => said_by,
        host => host,
    };
    Some(Server { host: host.to_owned(), port })
}

/// An example of each failure with a remedy, for the review of hints.
#[cfg(test)]
pub(in crate::sink) fn remedied() -> Vec<Failure> {
    let settings = crate::sink::tests::read_in_test("redis", "h", &[], |asked| RedisSettings::read(asked)).unwrap();
    let (asked, mut outcomes) =
        (AskedBatch { settings: &settings, address: "h:1", form: BatchForm::Single }, Vec::new());
    let wrong_type = redis::parse_redis_value(b"-WRONGTYPE no\r\n").unwrap();
    classify(asked, ["orders"].into_iter(), &mut [wrong_type].iter(), &mut outcomes);
    let Some(RecordOutcome::Refused(wrong_type)) = outcomes.pop() else { unreachable!() };
    vec![log_in_fails("h:1", "no"), wrong_type]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::tests::read_in_test;

    /// `+` delivered, `?` unknown, or the class and reason.
    fn classified(form: BatchForm, records: usize, replies: &str) -> (Classified, Vec<String>) {
        let bytes = replies.replace(' ', "\r\n").replace('_', " ").replace("@user script", "@user_script") + "\r\n";
        let (mut parser, mut bytes) = (redis::Parser::new(), bytes.as_bytes());
        let replies: Vec<Value> = std::iter::from_fn(|| parser.parse_value(&mut bytes).ok()).collect();
        let (settings, mut outcomes) = (settings(&[]), Vec::new());
        let streams = ["a", "b", "c"].into_iter().take(records);
        let asked = AskedBatch { settings: &settings, address: "h:1", form };
        let classified = classify(asked, streams, &mut replies.iter(), &mut outcomes);
        let shown = outcomes.iter().map(|outcome| match outcome {
            RecordOutcome::Delivered => "+".to_owned(),
            RecordOutcome::Unknown | RecordOutcome::Unanswered | RecordOutcome::NotStored => "?".to_owned(),
            RecordOutcome::Duplicate => "=".to_owned(),
            RecordOutcome::Refused(failure)
            | RecordOutcome::RefusedPerhapsStored(failure)
            | RecordOutcome::Later(failure) => {
                format!("{:?} {}", failure.class, failure.text)
            }
        });
        (classified, shown.collect())
    }

    fn settings(properties: &[(&str, &str)]) -> RedisSettings {
        read_in_test("redis", "h", properties, |asked| RedisSettings::read(asked)).unwrap()
    }

    #[test]
    fn a_missing_right_has_the_whole_command_that_gives_it() {
        let allow = |properties: &[(&str, &str)], stream: &str| allow_stream(&settings(properties), stream);
        assert_eq!(allow(&[], "orders"), "ACL SETUSER default '~orders' +multi +exec +xadd");
        let more = [("username", "app"), ("dedupe", "1d"), ("wait", "1,10")];
        let whole = "ACL SETUSER app '~s.dead-letter' '~walrelay:seen:*' +eval +set +del +xadd +info +wait +waitaof";
        assert_eq!(allow(&more, "s.dead-letter"), whole);
        assert_eq!(pattern("a*[b]?\\"), "~a\\*\\[b\\]\\?\\\\");
        let (_, each) = classified(BatchForm::Single, 1, "-NOPERM_no");
        assert!(each[0].ends_with("NOPERM no; to allow it: ACL SETUSER default '~a' +multi +exec +xadd"), "{each:?}");
    }

    fn later(text: &str) -> Classified {
        let reason = if text.starts_with("OOM") { "memory" } else { "not_writable" };
        Classified::Later(Failure::new(FailureClass::Environment, reason, format!("Redis at h:1: {text}")))
    }

    #[test]
    fn a_stream_that_may_not_be_read_is_somebodys_to_fix_and_a_server_that_loads_is_not() {
        let class = |error: &str| of_stream("h:1", error).class;
        for error in ["NOPERM no", "WRONGTYPE no", "ERR unknown command"] {
            assert_eq!(class(error), FailureClass::Topic, "{error}");
        }
        assert_eq!((class("LOADING data"), class("NOAUTH")), (FailureClass::Environment, FailureClass::LogIn));
    }

    #[test]
    fn a_login_that_a_full_server_does_not_hear_is_not_refused() {
        let of_login = |error: &str| of_login("h:1", error);
        let full = of_login("ERR max number of clients reached");
        assert_eq!((full.class, full.reason), (FailureClass::Environment, CONNECTION));
        for error in ["WRONGPASS no", "ERR AUTH <password> called without any password", "ERR DB index is out of range"]
        {
            assert_eq!(of_login(error).class, FailureClass::LogIn, "{error}");
        }
        for error in ["BUSY Redis is busy running a script", "LOADING data", "MASTERDOWN Link with MASTER is down"] {
            assert_eq!(of_login(error).class, FailureClass::Environment, "{error}");
        }
        let unknown = of_login("ERR unknown command 'AUTH', with args beginning with: 'app' 'hush' ");
        assert_eq!(unknown.text, "Redis at h:1: ERR unknown command 'AUTH'");
    }

    #[test]
    fn an_error_within_a_script_is_the_same_where_its_place_stands_in_front() {
        // As Redis 6.2 writes them.
        let oom = "-@user_script:_24:_-OOM_command_not_allowed_when_used_memory_>_'maxmemory'.";
        let (whole, each) = classified(BatchForm::Script, 2, &format!("*2 :1 {oom}"));
        assert!(matches!(&whole, Classified::Later(failure) if failure.reason == MEMORY), "{whole:?}");
        assert_eq!(each, ["+", "?"]);
        let read_only = "*1 -@user_script:_15:_-READONLY_You_can't_write_against_a_read_only_replica.";
        assert!(matches!(classified(BatchForm::Script, 1, read_only).0, Classified::Elsewhere(_)));
        let may_not = "*1 -@user_script:_15:_The_user_executing_the_script_can't_run_this_command_or_subcommand";
        assert!(classified(BatchForm::Script, 1, may_not).1[0].starts_with("Topic"));
    }

    #[test]
    fn one_record_has_one_reply() {
        assert_eq!(classified(BatchForm::Single, 1, "$3 1-0"), (Classified::Each, vec!["+".to_owned()]));
        assert_eq!(classified(BatchForm::Single, 1, "-OOM_no"), (later("OOM no"), vec!["?".to_owned()]));
        let wrong = "Topic Redis refuses a record for stream a: WRONGTYPE x".to_owned();
        assert_eq!(classified(BatchForm::Single, 1, "-WRONGTYPE_x"), (Classified::Each, vec![wrong]));
        let large = "ERR Elements are too large to be stored";
        let row = format!("Row Redis refuses a record for stream a: {large}");
        let reply = format!("-{}", large.replace(' ', "_"));
        assert_eq!(classified(BatchForm::Single, 1, &reply), (Classified::Each, vec![row]));
        assert!(matches!(classified(BatchForm::Single, 1, "-READONLY_x").0, Classified::Elsewhere(_)));
        assert_eq!(classified(BatchForm::Single, 1, "+OK").0, Classified::Broken);
    }

    /// Errors of quotas, of replaced or renamed commands, of proxies, and codes that no server has.
    #[test]
    fn an_error_that_is_in_no_list_is_no_ones_fault() {
        for error in [
            "ERR max requests limit exceeded. Limit: 500000",
            "ERR unknown command `EVAL`, with args beginning with:",
            "ERR wrong number of arguments for 'xadd' command",
            "ERR Protocol error: too big bulk count string",
            "ERR x",
            "EXECABORT Transaction discarded because of previous errors.",
            "upstream failure",
            "IOERR x",
            "",
        ] {
            let shown = error.replace(' ', "_");
            let (whole, each) = classified(BatchForm::Single, 1, &format!("-{shown}"));
            assert!(whole == Classified::Each && each[0].starts_with("Unlisted"), "{error}: {each:?}");
            let whole = classified(BatchForm::Script, 2, &format!("-{shown}")).0;
            assert!(
                matches!(&whole, Classified::Among(it) if it.class == FailureClass::Unlisted),
                "{error}: {whole:?}"
            );
            let (whole, each) = classified(BatchForm::Multi, 2, &format!("+OK +QUEUED -{shown} -EXECABORT_y"));
            assert!(
                whole == Classified::Each && each[0] == "?" && each[1].starts_with("Unlisted"),
                "{error}: {each:?}"
            );
        }
    }

    #[test]
    fn a_transaction_that_ran_says_it_for_each_and_neighbours_of_a_refused_record_are_in() {
        let replies = "+OK +QUEUED +QUEUED +QUEUED *3 $3 1-0 -WRONGTYPE_x $3 1-0";
        let (whole, each) = classified(BatchForm::Multi, 3, replies);
        assert_eq!(whole, Classified::Each);
        assert_eq!((each[0].as_str(), each[2].as_str()), ("+", "+"));
        assert!(each[1].starts_with("Topic") && each[1].contains("stream b"), "{}", each[1]);
    }

    #[test]
    fn a_transaction_that_was_not_run_has_delivered_nothing() {
        let (whole, each) = classified(BatchForm::Multi, 2, "+OK +QUEUED -NOPERM_x -EXECABORT_y");
        assert_eq!(whole, Classified::Each);
        assert!(each[0] == "?" && each[1].starts_with("Topic"), "{each:?}");
        assert_eq!(classified(BatchForm::Multi, 2, "+OK -OOM_x +QUEUED -EXECABORT_y").0, later("OOM x"));
        let nothing = vec!["?".to_owned(), "?".to_owned()];
        assert_eq!(classified(BatchForm::Multi, 2, "+OK +QUEUED +QUEUED -OOM_x"), (later("OOM x"), nothing.clone()));
        assert_eq!(classified(BatchForm::Multi, 2, "+OK +QUEUED +QUEUED -NOREPLICAS_x").0, later("NOREPLICAS x"));
        let because = "-EXECABORT_Transaction_discarded_because_of:_OOM_x";
        let whole = classified(BatchForm::Multi, 2, &format!("+OK +QUEUED +QUEUED {because}")).0;
        assert!(matches!(&whole, Classified::Later(it) if it.reason == MEMORY), "{whole:?}");
        let (whole, each) = classified(BatchForm::Multi, 2, "+OK +QUEUED +QUEUED -ERR_x");
        assert_eq!(
            (matches!(&whole, Classified::Among(it) if it.class == FailureClass::Unlisted), each),
            (true, nothing)
        );
        assert_eq!(classified(BatchForm::Multi, 2, "+OK +QUEUED +QUEUED *1 $3 1-0").0, Classified::Broken);
    }

    #[test]
    fn a_node_that_does_not_have_the_slot_names_the_one_that_does_and_takes_nothing() {
        let redirected = |form: BatchForm, records: usize, replies: &str| match classified(form, records, replies) {
            (Classified::Redirected(redirect, failure), each) => {
                (redirect.ask, redirect.port, failure.text, each.concat())
            }
            other => panic!("{other:?}"),
        };
        let moved = "Redis at h:1: MOVED 9 b:7".to_owned();
        assert_eq!(redirected(BatchForm::Single, 1, "-MOVED_9_b:7"), (false, 7, moved.clone(), "?".to_owned()));
        let queued = "+OK +QUEUED -MOVED_9_b:7 -EXECABORT_y";
        assert_eq!(redirected(BatchForm::Multi, 2, queued), (false, 7, moved.clone(), "??".to_owned()));
        assert_eq!(
            redirected(BatchForm::Multi, 2, "+OK +QUEUED +QUEUED -MOVED_9_b:7"),
            (false, 7, moved, "??".to_owned())
        );
        let ask = "Redis at h:1: ASK 9 b:7".to_owned();
        assert_eq!(redirected(BatchForm::Script, 2, "-ASK_9_b:7"), (true, 7, ask, "??".to_owned()));
    }

    #[test]
    fn a_slot_that_cannot_be_written_now_concerns_its_own_records_alone() {
        for error in ["TRYAGAIN_x", "CLUSTERDOWN_x", "CROSSSLOT_x"] {
            let text = format!("Environment Redis at h:1: {}", error.replace('_', " "));
            let both = vec![text.clone(), text.clone()];
            assert_eq!(classified(BatchForm::Script, 2, &format!("-{error}")), (Classified::Each, both.clone()));
            let exec = format!("+OK +QUEUED +QUEUED -{error}");
            assert_eq!(classified(BatchForm::Multi, 2, &exec), (Classified::Each, both.clone()));
            let queued = format!("+OK -{error} -{error} -EXECABORT_y");
            assert_eq!(classified(BatchForm::Multi, 2, &queued), (Classified::Each, both));
            assert_eq!(classified(BatchForm::Single, 1, &format!("-{error}")), (Classified::Each, vec![text]));
        }
    }

    #[test]
    fn a_script_says_what_was_added_and_what_was_there() {
        assert_eq!(
            classified(BatchForm::Script, 2, "*2 :1 :0"),
            (Classified::Each, vec!["+".to_owned(), "=".to_owned()])
        );
        assert!(classified(BatchForm::Script, 2, "*2 :1 -WRONGTYPE_x").1[1].starts_with("Topic"));
        assert!(
            matches!(classified(BatchForm::Script, 2, "-NOPERM_x").0, Classified::Among(it) if it.class == FailureClass::Topic)
        );
        assert!(classified(BatchForm::Script, 1, "-NOPERM_x").1[0].starts_with("Topic"));
    }

    #[test]
    fn a_redirect_names_the_slot_and_the_node() {
        let at = |error: &str| {
            let redirect = Redirect::of(error)?;
            Some((redirect.ask, redirect.slot, redirect.server("seed").map(|server| server.address())))
        };
        assert_eq!(at("MOVED 3999 10.0.0.1:6381"), Some((false, 3999, Some("10.0.0.1:6381".to_owned()))));
        assert_eq!(at("ASK 7 node-2.cache:6379"), Some((true, 7, Some("node-2.cache:6379".to_owned()))));
        assert_eq!(at("MOVED 1 ::1:6379"), Some((false, 1, Some("::1:6379".to_owned()))));
        assert_eq!(at("MOVED 1 :6380"), Some((false, 1, Some("seed:6380".to_owned()))));
        assert_eq!(at("MOVED 1 ?:6380"), Some((false, 1, None)));
        for error in ["TRYAGAIN Multiple keys", "MOVED", "MOVED x h:1", "MOVED 1 h", "ASK 1 h:x"] {
            assert_eq!(at(error), None, "{error}");
        }
    }
}
