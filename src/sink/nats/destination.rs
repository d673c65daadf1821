//! NATS as settings name it.
//!
//! In: `--to nats://…` and properties. Out: [`Settings`] as a [`Destination`]: sinks, checks, a stream for measurements.

use super::check::api_error;
use super::dead_letters::Reading;
use super::link::{Answered, Link};
use super::properties::{EXAMPLE, PROPERTIES, SCHEMES, SUBJECTS};
use super::settings::{LogIn, Settings};
use super::{answer, check};
use crate::finding::Finding;
use crate::given::{Origin, SettingError};
use crate::sink::destination::{
    Asked, Can, DeadLetters, Delivery, Destination, EventBinding, Kind, NoDeadLetters, Scratch, ScratchError, Wanted,
};
use crate::sink::lanes::address::Server;
use crate::sink::lanes::{RECORD_OVERHEAD_BYTES, block_on};
use crate::sink::{Failure, FailureClass, Sink};
use serde_json::json;
use std::sync::Arc;

/// NATS JetStream.
pub const KIND: Kind = Kind {
    name: "nats",
    title: "NATS",
    schemes: &SCHEMES,
    example: EXAMPLE,
    topics: &SUBJECTS,
    can: Can { exactly_once: false, partitions: false, null_values: false, debezium: false, dead_letters: true },
    properties: &PROPERTIES,
    passes_others: false,
    record_overhead_bytes: RECORD_OVERHEAD_BYTES,
    read,
    refusals: || answer::REFUSALS.to_vec(),
    reasons: || answer::REASONS.to_vec(),
    hint,
};

fn read(asked: &mut Asked<'_>) -> Result<Arc<dyn Destination>, SettingError> {
    let settings = Settings::read(asked)?;
    let from_flag = asked.addresses.iter().any(|address| matches!(address.origin, Origin::Flag(_)));
    if from_flag && asked.property("token").is_none() && matches!(settings.login, LogIn::Token(_)) {
        let warning = "--to: its token shows in ps: use the variable WALRELAY_TO, or -X token=@FILE";
        asked.warnings.push(warning.to_owned());
    }
    Ok(Arc::new(settings))
}

/// What is to be looked at where the server does not let us in.
const LOG_IN_HINT: &str =
    "check the user in --to, and the password (WALRELAY_NATS_PASSWORD, -X password=@FILE), -X nkey or -X credentials";

/// What fixes a failure for which an operator must act.
fn hint(failure: &Failure) -> Option<String> {
    if failure.class == FailureClass::LogIn {
        return Some(LOG_IN_HINT.to_owned());
    }
    let hint = match failure.reason {
        answer::NO_STREAM => "nats stream add NAME --subjects 'SUBJECT' --storage file --defaults, or another --topic",
        answer::OTHER_STREAM => "nats stream edit NAME --subjects 'SUBJECT', or another -X stream",
        answer::NOT_PERMITTED => {
            "let the user publish to the subject and subscribe to _INBOX.> (permissions in the server's file, or nsc edit user)"
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

impl Destination for Settings {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn address(&self) -> String {
        Server::addresses(&self.servers)
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

    fn event_binding(&self) -> Option<EventBinding> {
        Some(EventBinding { prefix: "ce-", percent_encoded: true })
    }

    fn scratch(&self, client: &str, topic: &str, _partitions: i32) -> Result<Box<dyn Scratch>, ScratchError> {
        let stream = ScratchStream { settings: self.named(client), subject: topic.to_owned() };
        if stream.ask("create stream", "INFO", "").is_ok() {
            return Err(stream.failed("create stream", "there is a stream of that name".to_owned()));
        }
        let config = json!({ "name": stream.name(), "subjects": [topic], "storage": "file" });
        stream.ask("create stream", "CREATE", &config.to_string())?;
        Ok(Box::new(stream))
    }
}

/// A stream of one subject.
struct ScratchStream {
    settings: Settings,
    subject: String,
}

impl ScratchStream {
    fn name(&self) -> String {
        self.subject.replace('.', "_")
    }

    fn failed(&self, what: &'static str, reason: String) -> ScratchError {
        ScratchError { what, topic: self.subject.clone(), reason }
    }

    fn ask(&self, what: &'static str, request: &str, data: &str) -> Result<(), ScratchError> {
        let failed = |reason: String| self.failed(what, reason);
        let answered = block_on(async {
            let mut link = Link::open(&self.settings, 0).await?;
            link.ask(&format!("$JS.API.STREAM.{request}.{}", self.name()), data).await
        });
        match answered.map_err(|failure| failed(failure.text))? {
            Answered::Forbidden => Err(failed("the user may not ask for it".to_owned())),
            Answered::With(headers, data) => api_error(&headers, &data).map_or(Ok(()), |error| Err(failed(error))),
        }
    }
}

impl Scratch for ScratchStream {
    fn remove(self: Box<Self>) -> Result<(), ScratchError> {
        self.ask("remove stream", "DELETE", "")
    }
}
