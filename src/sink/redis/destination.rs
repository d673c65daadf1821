//! Redis as settings name it.
//!
//! In: `--to redis://…` and properties. Out: [`Settings`] as a [`Destination`]: sinks, checks, a stream for measurements.

use super::dead_letters::Reading;
use super::lookup;
use super::properties::{EXAMPLE, PROPERTIES, SCHEMES};
use super::resp::{Token, Tokens};
use super::settings::{Place, Sentinels, Settings};
use super::{check, judge};
use crate::finding::Finding;
use crate::given::SettingError;
use crate::route::Rule;
use crate::sink::destination::{
    Can, DeadLetters, Delivery, Destination, Kind, NoDeadLetters, Scratch, ScratchError, Wanted,
};
use crate::sink::lanes::address::Server;
use crate::sink::lanes::{RECORD_OVERHEAD_BYTES, block_on};
use crate::sink::{Failure, FailureClass, Sink};
use std::sync::Arc;

/// Redis and Valkey.
pub const KIND: Kind = Kind {
    name: "redis",
    title: "Redis",
    schemes: &SCHEMES,
    example: EXAMPLE,
    topics: &STREAMS,
    can: Can { exactly_once: false, partitions: false, null_values: true, debezium: false, dead_letters: true },
    properties: &PROPERTIES,
    passes_others: false,
    record_overhead_bytes: RECORD_OVERHEAD_BYTES,
    read: |asked| Ok(Arc::new(Settings::read(asked)?)),
    refusals: || judge::REFUSALS.to_vec(),
    reasons: || judge::REASONS.to_vec(),
    hint,
};

/// A stream's key may be any text.
static STREAMS: Rule = Rule {
    expected: "a text of at most 4096 bytes that is not empty",
    made_of: "a stream's key (all others are)",
    allows: |character| character != '\0',
    longest_bytes: 4096,
    also: |_| None,
};

/// What fixes a failure for which an operator must act.
fn hint(failure: &Failure) -> Option<String> {
    if failure.class == FailureClass::LogIn {
        return Some(
            "check the user in --to, and the password (WALRELAY_REDIS_PASSWORD, -X password=@FILE)".to_owned(),
        );
    }
    match failure.reason {
        judge::NOT_PERMITTED => Some(
            "ACL SETUSER USER ~STREAM +xadd +multi +exec, with -X dedupe also +eval +set +del and ~walrelay:seen:*, \
             on a cluster also +cluster|slots +cluster|info +asking"
                .to_owned(),
        ),
        judge::WRONG_TYPE => {
            Some("RENAME or DEL the key that has the stream's name, or give another --topic".to_owned())
        }
        _ => None,
    }
}

impl Destination for Settings {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn address(&self) -> String {
        match &self.place {
            Place::Server(server) => server.address(),
            Place::Nodes(nodes) => Server::addresses(nodes),
            Place::Sentinels(Sentinels { servers, primary, .. }) => {
                format!("{primary} of {}", Server::addresses(servers))
            }
        }
    }

    fn open(&self, client: &str, _how: Delivery) -> Result<Box<dyn Sink + Send>, SettingError> {
        super::open(self.named(client))
    }

    fn check(&self, wanted: &Wanted<'_>) -> Vec<Finding> {
        check::check(&self.named(wanted.client), wanted)
    }

    fn dead_letters(&self, client: &str, topic: &str) -> Result<Box<dyn DeadLetters>, NoDeadLetters> {
        Ok(Box::new(Reading::new(self.named(client), topic)?))
    }

    fn scratch(&self, client: &str, topic: &str, _partitions: i32) -> Result<Box<dyn Scratch>, ScratchError> {
        let stream = ScratchStream { settings: self.named(client), stream: topic.to_owned() };
        match stream.number("create stream", b"EXISTS")? {
            0 => Ok(Box::new(stream)),
            _there => Err(stream.failed("create stream", "there is a key of that name")),
        }
    }
}

/// A stream that the first record creates.
struct ScratchStream {
    settings: Settings,
    stream: String,
}

impl ScratchStream {
    fn failed(&self, what: &'static str, reason: &str) -> ScratchError {
        ScratchError { what, topic: self.stream.clone(), reason: reason.to_owned() }
    }

    /// The number that a command about the stream replies with.
    fn number(&self, what: &'static str, command: &[u8]) -> Result<i64, ScratchError> {
        let asked = block_on(lookup::call(&self.settings, &self.stream, &[command, self.stream.as_bytes()]));
        let (_, reply) = asked.map_err(|failure| self.failed(what, &failure.text))?;
        match Tokens::of(&reply).next() {
            Some(Token::Integer(number)) => Ok(number),
            Some(Token::Error(error)) => Err(self.failed(what, &String::from_utf8_lossy(error))),
            Some(Token::Text(_) | Token::Bytes(_) | Token::Null | Token::Array(_)) | None => {
                Err(self.failed(what, "its reply is not a number"))
            }
        }
    }
}

impl Scratch for ScratchStream {
    fn remove(self: Box<Self>) -> Result<(), ScratchError> {
        self.number("remove stream", b"UNLINK").map(drop)
    }
}
