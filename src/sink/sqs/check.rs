//! What `walrelay check` looks at: the service, our keys, and the queues of the latest rows.
//!
//! In: facts, gathered without changing anything (the right to send by a batch without messages). Out: findings. Judging is pure.

use super::batch::text;
use super::call::{Caller, Unserved};
use super::destination::KIND;
use super::http::Link;
use super::judge::{self, Fault, Refusal};
use super::message::LARGEST;
use super::properties::{FIFO, is_url};
use super::settings::Settings;
use super::worker::url_of;
use crate::finding::{Finding, Side};
use crate::sink::destination::Wanted;
use crate::sink::lanes::block_on;
use crate::sink::{Failure, FailureClass};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Messages that nobody has read after less than this may be gone before somebody looks.
const SHORT: Duration = Duration::from_hours(24);

/// What is known of a queue.
#[derive(Debug)]
struct Queue {
    name: String,
    found: Found,
}

#[derive(Debug)]
enum Found {
    /// There is none, or none that we may see.
    Refused(Refusal),
    /// It is there.
    There {
        /// Why no message may be sent to it; `None`: it may.
        refused: Option<Refusal>,
        /// As the service names them; empty: they may not be seen.
        attributes: BTreeMap<String, String>,
    },
}

fn ok(check: &'static str, finding: impl Into<String>) -> Finding {
    Finding::ok(Side::Destination(KIND.name), check, finding)
}

fn warn(check: &'static str, finding: impl Into<String>) -> Finding {
    Finding::warn(Side::Destination(KIND.name), check, finding)
}

fn fail(check: &'static str, finding: impl Into<String>) -> Finding {
    Finding::fail(Side::Destination(KIND.name), check, finding)
}

/// Looks at the service, and judges it.
pub(super) fn check(settings: &Settings, wanted: &Wanted<'_>) -> Vec<Finding> {
    let queues = wanted.topics.iter().map(String::as_str).chain(wanted.dead_letters);
    match block_on(gather(settings, queues)) {
        Ok(queues) => {
            let reached = ok("connection", format!("{} at {} answers", settings.service.title(), settings.address()));
            let of_queue = |queue: &Queue| findings(queue, wanted);
            [reached].into_iter().chain(queues.iter().flat_map(of_queue)).collect()
        }
        Err(failure) => vec![unreachable(&failure)],
    }
}

async fn gather<'a>(settings: &Settings, queues: impl Iterator<Item = &'a str>) -> Result<Vec<Queue>, Failure> {
    let caller = Caller::new(settings.clone());
    let mut link = None;
    answered(settings, caller.call(&mut link, "ListQueues", b"{\"MaxResults\":1}").await)?.ok();
    let mut gathered = Vec::new();
    for name in queues {
        let url = if is_url(name) { Ok(name.to_owned()) } else { url_of(&caller, &mut link, name).await };
        let found = match answered(settings, url)? {
            Err(refusal) => Found::Refused(refusal),
            Ok(url) => of_queue(&caller, &mut link, &url).await?,
        };
        gathered.push(Queue { name: name.to_owned(), found });
    }
    Ok(gathered)
}

async fn of_queue(caller: &Caller, link: &mut Option<Link>, url: &str) -> Result<Found, Failure> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Written {
        attributes: BTreeMap<String, String>,
    }
    let body = |more: &[u8]| {
        let mut body = b"{\"QueueUrl\":".to_vec();
        text(&mut body, url);
        body.extend_from_slice(more);
        body
    };
    let asked = caller.call(link, "GetQueueAttributes", &body(b",\"AttributeNames\":[\"All\"]}")).await;
    let asked = match answered(&caller.settings, asked)? {
        Err(refusal) if refusal.fault() == (Fault::Topic, judge::QUEUE) => return Ok(Found::Refused(refusal)),
        asked => asked,
    };
    let written = asked.ok().and_then(|answer| serde_json::from_slice(&answer).ok());
    let attributes = written.map(|Written { attributes }| attributes).unwrap_or_default();
    // Rights are looked at before what a request holds: this one holds nothing.
    let sent = caller.call(link, "SendMessageBatch", &body(b",\"Entries\":[]}")).await;
    let refused = answered(&caller.settings, sent)?.err().filter(|refusal| refusal.fault().0 == Fault::Topic);
    Ok(Found::There { refused, attributes })
}

/// What the service itself says; else why nothing can be looked at.
fn answered<T>(settings: &Settings, asked: Result<T, Unserved>) -> Result<Result<T, Refusal>, Failure> {
    match asked {
        Ok(answer) => Ok(Ok(answer)),
        Err(Unserved::Failed { failure, .. }) => Err(failure),
        Err(Unserved::Refused(refusal)) => match refusal.fault() {
            fault @ (Fault::Later | Fault::LogIn, _) => Err(judge::passing(settings, fault, &refusal.text)),
            (Fault::Row | Fault::Topic, _) => Ok(Err(refusal)),
        },
    }
}

/// Nobody answers, or not us.
fn unreachable(failure: &Failure) -> Finding {
    let found = fail("connection", failure.text.clone());
    match (failure.class, judge::hint(failure)) {
        (FailureClass::LogIn, Some(hint)) => found.why("the service refuses the authentication").fix(hint),
        (_, _) => found
            .why("nothing else could be looked at here")
            .fix("--to sqs://REGION, or -X endpoint-url=https://HOST for an endpoint of one's own"),
    }
}

fn findings(queue: &Queue, wanted: &Wanted<'_>) -> Vec<Finding> {
    let Queue { name, found } = queue;
    let (refused, attributes) = match found {
        Found::Refused(refusal) if refusal.fault().1 == judge::QUEUE => {
            return vec![
                fail("queue", format!("queue {name}: {}", refusal.text))
                    .why("records for it wait, and so does the slot")
                    .fix(create(name)),
            ];
        }
        Found::Refused(refusal) => return vec![not_permitted(name, refusal)],
        Found::There { refused, attributes } => (refused, attributes),
    };
    if let Some(refusal) = refused {
        return vec![not_permitted(name, refusal)];
    }
    let mut found = vec![of_order(name, attributes)];
    if attributes.is_empty() {
        found.push(
            warn("attributes", format!("queue {name}: its attributes cannot be seen"))
                .why("retention and limits could not be looked at")
                .fix("allow sqs:GetQueueAttributes on it"),
        );
    }
    found.extend(of_retention(name, attributes));
    found.extend(of_size(name, attributes, wanted.largest_bytes));
    found
}

fn create(name: &str) -> String {
    let fifo = if name.ends_with(FIFO) { " --attributes FifoQueue=true" } else { "" };
    let name = name.rsplit('/').next().unwrap_or(name);
    format!("aws sqs create-queue --queue-name {name}{fifo}")
}

fn not_permitted(name: &str, refusal: &Refusal) -> Finding {
    fail("queue", format!("queue {name}: {}", refusal.text))
        .why("records for it are refused")
        .fix("allow sqs:SendMessage and sqs:GetQueueUrl on it, and kms:GenerateDataKey and kms:Decrypt on its key")
}

fn number(attributes: &BTreeMap<String, String>, name: &str) -> Option<u64> {
    attributes.get(name)?.parse().ok()
}

fn is_true(attributes: &BTreeMap<String, String>, name: &str) -> bool {
    attributes.get(name).is_some_and(|value| value == "true")
}

fn of_order(name: &str, attributes: &BTreeMap<String, String>) -> Finding {
    if !name.ends_with(FIFO) {
        return warn("order", format!("queue {name} is a standard queue"))
            .why("it keeps no order, and may deliver a message twice")
            .fix(format!(
                "{}, and the name {}{FIFO} in --topic, if rows of a key must stay in order",
                create(&format!("{name}{FIFO}")),
                name
            ));
    }
    let found = ok(
        "order",
        format!("queue {name} is a FIFO queue: rows of a key stay in order, repeats within 5 minutes are dropped"),
    );
    if is_true(attributes, "ContentBasedDeduplication") {
        return found.why(
            "content-based deduplication is on, and has no effect: walrelay sends the row's id with each message",
        );
    }
    found
}

fn of_retention(name: &str, attributes: &BTreeMap<String, String>) -> Option<Finding> {
    let seconds = number(attributes, "MessageRetentionPeriod")?;
    let text = format!("queue {name} keeps messages for {} hours", seconds / 3600);
    Some(if Duration::from_secs(seconds) < SHORT {
        let fix = format!(
            "aws sqs set-queue-attributes --queue-url URL-OF-{name} --attributes MessageRetentionPeriod=1209600"
        );
        warn("retention", text).why("the service deletes messages that nobody has read by then").fix(fix)
    } else {
        ok("retention", text)
    })
}

fn of_size(name: &str, attributes: &BTreeMap<String, String>, largest_bytes: usize) -> Option<Finding> {
    let limit = number(attributes, "MaximumMessageSize")?;
    let text = format!("queue {name} takes messages of {limit} bytes, the largest row has {largest_bytes}");
    if u64::try_from(largest_bytes).is_ok_and(|bytes| bytes < limit) {
        return Some(ok("size", text));
    }
    let found = fail("size", text).why("such a row is a bad row");
    Some(if limit < LARGEST as u64 {
        found.fix(format!(
            "aws sqs set-queue-attributes --queue-url URL-OF-{name} --attributes MaximumMessageSize={LARGEST}"
        ))
    } else {
        found.fix("--on-bad-row dead-letter, or smaller rows")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Level;
    use std::collections::BTreeSet;

    fn judged(name: &str, found: Found, largest_bytes: usize) -> Vec<(Level, String, String)> {
        let topics = BTreeSet::new();
        let wanted = Wanted {
            client: "walrelay",
            topics: &topics,
            topics_begin: "",
            dead_letters: None,
            largest_bytes,
            without_key: false,
            exactly_once: None,
        };
        let found = findings(&Queue { name: name.to_owned(), found }, &wanted);
        found.into_iter().map(|found| (found.level, found.finding, found.fix.unwrap_or_default())).collect()
    }

    fn there(attributes: &[(&str, &str)]) -> Found {
        let attributes = attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Found::There { refused: None, attributes }
    }

    fn refusal(code: &str) -> Refusal {
        Refusal { status: 400, code: code.to_owned(), text: code.to_owned() }
    }

    #[test]
    fn a_fifo_queue_that_takes_all_rows_is_fine() {
        let sound = [("MessageRetentionPeriod", "345600"), ("MaximumMessageSize", "1048576")];
        let found = judged("orders.fifo", there(&sound), 1000);
        assert!(found.len() == 3 && found.iter().all(|(level, ..)| *level == Level::Ok), "{found:?}");
    }

    #[test]
    fn what_loses_order_or_messages_is_told_with_what_fixes_it() {
        let short = [("MessageRetentionPeriod", "60"), ("MaximumMessageSize", "1024")];
        let found = judged("orders", there(&short), 5000);
        let levels: Vec<Level> = found.iter().map(|(level, ..)| *level).collect();
        assert_eq!(levels, [Level::Warn, Level::Warn, Level::Fail], "{found:?}");
        assert!(found[0].2.contains("--queue-name orders.fifo --attributes FifoQueue=true"), "{found:?}");
        assert!(found[2].2.contains("MaximumMessageSize=1048576"), "{found:?}");
        let blind = judged("orders.fifo", there(&[]), 1);
        assert!(blind.iter().any(|(level, _, fix)| *level == Level::Warn && fix.contains("GetQueueAttributes")));
    }

    #[test]
    fn a_queue_that_is_missing_or_forbidden_is_a_failure() {
        let missing = judged("orders.fifo", Found::Refused(refusal("QueueDoesNotExist")), 1);
        assert!(
            missing[0].0 == Level::Fail && missing[0].2.starts_with("aws sqs create-queue --queue-name orders.fifo ")
        );
        let denied = Some(refusal("AccessDenied"));
        let forbidden = judged("orders", Found::There { refused: denied, attributes: BTreeMap::new() }, 1);
        assert!(forbidden.len() == 1 && forbidden[0].0 == Level::Fail && forbidden[0].2.contains("sqs:SendMessage"));
    }
}
