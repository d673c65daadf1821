//! Checks the service, the keys, and the queues or topics of the latest rows.
//!
//! In: the service's answers, without changing anything (a batch without messages shows the right to send). Out: findings. The functions
//! that make findings are pure.

use super::client::Caller;
use super::errors::{self, ServiceRefusal, SqsFault, answered};
use super::message::LARGEST;
use super::{FIFO, Service, SqsSettings, is_url};
use crate::check_finding::{Finding, Side};
use crate::sink::Failure;
use crate::sink::destination::{Destination as _, Wanted};
use crate::sink::ordered_queue::block_on;
use std::collections::BTreeMap;
use std::time::Duration;

/// A shorter retention may delete messages before somebody notices that no consumer reads them.
const SHORT: Duration = Duration::from_hours(24);

/// The fix if nobody answers.
const ELSEWHERE: &str =
    "--to with the region of the queues or topics, or -X endpoint-url=https://HOST for an endpoint of one's own";

/// The service's answers about a queue or topic.
#[derive(Debug)]
struct Queue {
    service: Service,
    name: String,
    /// `Err`: the queue does not exist, the keys do not allow to see it or to send messages to it, or the service does not support it.
    found: Result<QueueFound, ServiceRefusal>,
}

/// A queue or topic that takes messages.
#[derive(Debug)]
struct QueueFound {
    /// The URL or the ARN.
    resource: String,
    /// The attributes, as the service names them. Empty: the keys do not allow to see them.
    attributes: BTreeMap<String, String>,
}

/// Asks the service, and makes findings of its answers.
pub(super) fn check(settings: &SqsSettings, wanted: &Wanted<'_>) -> Vec<Finding> {
    let kind = settings.kind();
    match block_on(gather(settings, wanted.addresses())) {
        Ok(queues) => {
            let text = format!("{} at {} answers", kind.title, settings.address());
            let of_queue = |queue: &Queue| queue.findings(wanted);
            [Side::Destination(kind.name).ok("connection", text)]
                .into_iter()
                .chain(queues.iter().flat_map(of_queue))
                .collect()
        }
        Err(failure) => vec![kind.unreachable(&failure, "service", ELSEWHERE)],
    }
}

async fn gather<'a>(settings: &SqsSettings, queues: impl Iterator<Item = &'a str>) -> Result<Vec<Queue>, Failure> {
    let caller = Caller::new(settings.clone());
    answered(settings, caller.look().await)?.ok();
    let mut gathered = Vec::new();
    for name in queues {
        let found = look_at(&caller, name).await?;
        gathered.push(Queue { service: settings.service, name: name.to_owned(), found });
    }
    Ok(gathered)
}

/// Asks for the attributes of a queue or topic, and whether messages may be sent to it.
async fn look_at(caller: &Caller, name: &str) -> Result<Result<QueueFound, ServiceRefusal>, Failure> {
    let settings = &caller.settings;
    let resource = if is_url(name) { Ok(name.to_owned()) } else { caller.url_of(name).await };
    let resource = match answered(settings, resource)? {
        Err(refusal) => return Ok(Err(refusal)),
        Ok(resource) => resource,
    };
    let attributes = match answered(settings, caller.attributes(&resource).await)? {
        Err(refusal) if refusal.fault().0 == SqsFault::Missing => return Ok(Err(refusal)),
        Err(_not_permitted) => BTreeMap::new(),
        Ok(attributes) => attributes,
    };
    // The service checks rights before the batch, which is empty.
    let sent = caller.send(name, &resource, settings.service.batch()).await;
    let refused = answered(settings, sent)?.err().filter(|refusal| refusal.fault().0.is_of_resource());
    Ok(refused.map_or(Ok(QueueFound { resource, attributes }), Err))
}

impl Queue {
    fn side(&self) -> Side {
        Side::Destination(self.service.kind().name)
    }

    /// The name for people, such as `queue orders.fifo`.
    fn shown(&self) -> String {
        format!("{} {}", self.service.resource(), self.name)
    }

    fn findings(&self, wanted: &Wanted<'_>) -> Vec<Finding> {
        let QueueFound { resource, attributes } = match &self.found {
            Ok(found) => found,
            Err(refusal) => return vec![self.refused(refusal)],
        };
        let mut found = vec![self.of_order(attributes)];
        if attributes.is_empty() {
            let right = match self.service {
                Service::Sqs => "sqs:GetQueueAttributes",
                Service::Sns => "sns:GetTopicAttributes",
            };
            found.push(
                self.side()
                    .warn("attributes", format!("{}: its attributes cannot be seen", self.shown()))
                    .why("limits could not be checked")
                    .words(format!("allow {right} on it")),
            );
        }
        found.extend(self.of_retention(resource, attributes));
        found.extend(self.of_subscriptions(resource, attributes));
        found.extend(self.of_size((resource, attributes), wanted.largest_bytes));
        found
    }

    /// The command that creates it, with `more` at the end of its name.
    fn create(&self, more: &str) -> String {
        errors::create(self.service, &format!("{}{more}", self.name))
    }

    /// The command that sets an attribute of the queue or topic at `resource` to `value`.
    fn set(&self, resource: &str, attribute: &str, value: &str) -> String {
        match self.service {
            Service::Sqs => {
                format!("aws sqs set-queue-attributes --queue-url {resource} --attributes {attribute}={value}")
            }
            Service::Sns => format!(
                "aws sns set-topic-attributes --topic-arn {resource} --attribute-name {attribute} --attribute-value {value}"
            ),
        }
    }

    fn refused(&self, refusal: &ServiceRefusal) -> Finding {
        let found = self.side().fail("queue", format!("{}: {}", self.shown(), refusal.text));
        if refusal.fault().0 == SqsFault::Missing {
            return found.why("records for it wait, and so does the slot").safe(self.create(""));
        }
        found.why("records for it are refused").safe(errors::allow(self.service, "it"))
    }

    fn of_order(&self, attributes: &BTreeMap<String, String>) -> Finding {
        let resource = self.service.resource();
        if !self.name.ends_with(FIFO) {
            return self
                .side()
                .warn("order", format!("{} is a standard {resource}", self.shown()))
                .why("it keeps no order, and may deliver a message twice")
                .safe(format!("{}, and its name in --topic, if rows of a key must stay in order", self.create(FIFO)));
        }
        let text = format!(
            "{} is a FIFO {resource}: rows of a key stay in order, repeats within 5 minutes are dropped",
            self.shown()
        );
        let found = self.side().ok("order", text);
        if attributes.get("ContentBasedDeduplication").is_some_and(|value| value == "true") {
            let why =
                "content-based deduplication is on, and has no effect: walrelay sends the row's id with each message";
            return found.why(why);
        }
        found
    }

    fn of_retention(&self, resource: &str, attributes: &BTreeMap<String, String>) -> Option<Finding> {
        let seconds = number(attributes, "MessageRetentionPeriod")?;
        let text = format!("{} keeps messages for {} hours", self.shown(), seconds / 3600);
        let found =
            self.side().warn("retention", text).bounded(self.set(resource, "MessageRetentionPeriod", "1209600"));
        let found = found.why("the service deletes messages that nobody has read by then");
        Some(found.ok_if(Duration::from_secs(seconds) >= SHORT))
    }

    /// The finding about a topic without subscriptions: a topic keeps no messages.
    fn of_subscriptions(&self, resource: &str, attributes: &BTreeMap<String, String>) -> Option<Finding> {
        let subscriptions = number(attributes, "SubscriptionsConfirmed")?;
        let text = format!("{} has {subscriptions} confirmed subscriptions", self.shown());
        let queue = resource.replacen(":sns:", ":sqs:", 1);
        let subscribe =
            format!("aws sns subscribe --topic-arn {resource} --protocol sqs --notification-endpoint {queue}");
        let found = self.side().warn("subscriptions", text).safe(subscribe);
        let found = found.why("SNS keeps no message: what is published while nobody is subscribed is lost");
        Some(found.ok_if(subscriptions > 0))
    }

    fn of_size(
        &self,
        (resource, attributes): (&str, &BTreeMap<String, String>),
        largest_bytes: usize,
    ) -> Option<Finding> {
        let limit = number(attributes, "MaximumMessageSize")?;
        let text = format!("{} takes messages of {limit} bytes, the largest row has {largest_bytes}", self.shown());
        let fix = if limit < LARGEST as u64 {
            self.set(resource, "MaximumMessageSize", &LARGEST.to_string())
        } else {
            "--on-bad-row dead-letter, or smaller rows".to_owned()
        };
        let found = self.side().fail("size", text).why("such a row is a bad row").bounded(fix);
        Some(found.ok_if(u64::try_from(largest_bytes).is_ok_and(|bytes| bytes < limit)))
    }
}

fn number(attributes: &BTreeMap<String, String>, name: &str) -> Option<u64> {
    attributes.get(name)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check_finding::Level;

    fn findings(
        name: &str,
        found: Result<QueueFound, ServiceRefusal>,
        largest_bytes: usize,
    ) -> Vec<(Level, String, String)> {
        let wanted = Wanted { largest_bytes, ..Wanted::nothing() };
        let service = if name.contains(':') { Service::Sns } else { Service::Sqs };
        let found = Queue { service, name: name.to_owned(), found }.findings(&wanted);
        found
            .into_iter()
            .map(|found| (found.level, found.finding, found.fix.map(|fix| fix.to_string()).unwrap_or_default()))
            .collect()
    }

    fn there(attributes: &[(&str, &str)]) -> QueueFound {
        let attributes = attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        QueueFound { resource: "arn:aws:sns:eu-west-1:1:orders".to_owned(), attributes }
    }

    fn refusal(code: &str) -> ServiceRefusal {
        ServiceRefusal { status: 400, code: code.to_owned(), text: code.to_owned() }
    }

    #[test]
    fn a_fifo_queue_that_takes_all_rows_is_fine() {
        let sound = [("MessageRetentionPeriod", "345600"), ("MaximumMessageSize", "1048576")];
        let found = findings("orders.fifo", Ok(there(&sound)), 1000);
        assert!(found.len() == 3 && found.iter().all(|(level, ..)| *level == Level::Ok), "{found:?}");
    }

    #[test]
    fn what_loses_order_or_messages_is_reported_with_what_fixes_it() {
        let short = [("MessageRetentionPeriod", "60"), ("MaximumMessageSize", "1024")];
        let found = findings("orders", Ok(there(&short)), 5000);
        let levels: Vec<Level> = found.iter().map(|(level, ..)| *level).collect();
        assert_eq!(levels, [Level::Warn, Level::Warn, Level::Fail], "{found:?}");
        assert!(found[0].2.contains("--queue-name orders.fifo --attributes FifoQueue=true"), "{found:?}");
        assert!(found[2].2.contains("MaximumMessageSize=1048576"), "{found:?}");
        let blind = findings("orders.fifo", Ok(there(&[])), 1);
        assert!(blind.iter().any(|(level, _, fix)| *level == Level::Warn && fix.contains("GetQueueAttributes")));
    }

    #[test]
    fn a_queue_that_is_missing_or_forbidden_is_a_failure() {
        let missing = findings("orders.fifo", Err(refusal("QueueDoesNotExist")), 1);
        assert!(
            missing[0].0 == Level::Fail && missing[0].2.starts_with("aws sqs create-queue --queue-name orders.fifo ")
        );
        let forbidden = findings("orders", Err(refusal("AccessDenied")), 1);
        assert!(forbidden.len() == 1 && forbidden[0].0 == Level::Fail && forbidden[0].2.contains("sqs:SendMessage"));
    }

    #[test]
    fn a_topic_without_subscriptions_keeps_nothing() {
        let topic = "arn:aws:sns:r:1:orders.fifo";
        let found = findings(topic, Ok(there(&[("SubscriptionsConfirmed", "0")])), 1);
        assert!(found[1].0 == Level::Warn && found[1].2.starts_with("aws sns subscribe"), "{found:?}");
        assert!(found[1].2.ends_with("--notification-endpoint arn:aws:sqs:eu-west-1:1:orders"), "{found:?}");
        let found = findings(topic, Ok(there(&[("SubscriptionsConfirmed", "2")])), 1);
        assert!(found.iter().all(|(level, ..)| *level == Level::Ok), "{found:?}");
        let missing = findings(topic, Err(refusal("NotFound")), 1);
        assert_eq!(missing[0].2, "aws sns create-topic --name orders.fifo --attributes FifoTopic=true");
    }
}
