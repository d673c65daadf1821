//! The meaning of SQS' and SNS' errors, for a message, for its queue, or for all of them.
//!
//! In: codes and statuses. Out: faults and failures. This file does no I/O. Control flow follows codes and statuses, and two texts: that of
//! SNS' `InvalidParameter`, which names the parameter, and that of a signature whose time is wrong. The codes are closed lists: any other is of the
//! class `Unlisted`, and says nothing about a message. A status from 500 on, and an entry without sender's fault, say that the service failed.
//! Specification: Amazon SQS API Reference, "SendMessageBatch", "BatchResultErrorEntry", "Common Errors"; Amazon SNS API Reference,
//! "PublishBatch"; AWS SDKs and Tools Reference Guide, "Retry behavior".

use super::message::{ATTRIBUTES, BODY, TOO_LARGE};
use super::{FIFO, Service, SqsSettings};
use crate::sink::aws::words;
use crate::sink::destination::{CONNECTION, Destination as _};
use crate::sink::ordered_queue::{LOG_IN_LABEL, RecordOutcome};
use crate::sink::{Failure, FailureClass, UNLISTED};

/// The meaning of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SqsFault {
    /// The service refuses the message, or one of its batch, and would do so again.
    Row,
    /// The queue or topic does not exist.
    Missing,
    /// The keys do not allow to write to the queue or topic, or to use its KMS key.
    NotPermitted,
    /// The service refuses this kind of request for the queue or topic.
    Unsupported,
    /// The error passes by itself.
    Later,
    /// The error is in no list.
    Unlisted,
    /// The service does not accept the keys.
    LogIn,
}

impl SqsFault {
    /// Whether the queue or topic is at fault. The fault is the same for each message then.
    pub(super) fn is_of_resource(self) -> bool {
        match self {
            Self::Missing | Self::NotPermitted | Self::Unsupported => true,
            Self::Row | Self::Later | Self::Unlisted | Self::LogIn => false,
        }
    }

    /// Whether the error passes by itself, or once the keys are replaced.
    pub(super) fn passes(self) -> bool {
        matches!(self, Self::Later | Self::LogIn)
    }
}

/// The fix if the service does not accept the keys.
const CREDENTIALS: &str = "check AWS's credentials (AWS_ACCESS_KEY_ID, AWS_PROFILE, the role), or -X access-key-id and -X secret-access-key=@FILE";

/// The fix if this machine's clock is wrong.
const SET_CLOCK: &str = "set the clock of the machine on which walrelay runs (timedatectl set-ntp true, or chronyd)";

/// Labels of failures, for metrics.
const THROTTLED: &str = "throttled";
const SERVICE: &str = "service";
const CLOCK: &str = "clock";
pub(super) const QUEUE: &str = "queue";
pub(super) const NOT_PERMITTED: &str = "not_permitted";
const REFUSED: &str = "refused";

/// The labels for which a service may refuse a record.
pub(super) const REFUSALS: [&str; 6] = [BODY, ATTRIBUTES, TOO_LARGE, QUEUE, NOT_PERMITTED, REFUSED];

/// The labels of failed deliveries.
pub(super) const REASONS: [&str; 10] =
    [CONNECTION, LOG_IN_LABEL, THROTTLED, SERVICE, CLOCK, QUEUE, NOT_PERMITTED, TOO_LARGE, REFUSED, UNLISTED];

/// The texts of a signature whose time differs too much from that of the service. Their codes are those of wrong credentials, so the text decides.
const WRONG_TIME: [&str; 2] = ["Signature expired", "Signature not yet current"];

/// A request that was not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServiceRefusal {
    /// The HTTP status.
    pub(super) status: u16,
    /// The error code. Empty: the answer has none.
    pub(super) code: String,
    /// The text for people.
    pub(super) text: String,
}

/// The reason why a request was not served.
#[derive(Debug)]
pub(super) enum Unserved {
    /// The service refuses the request.
    Refused(ServiceRefusal),
    /// The request was not sent, or nobody knows whether it was served.
    Failed(Failure),
    /// The request was sent, and no answer came in time.
    Unanswered(Failure),
}

impl Unserved {
    /// The text for people.
    pub(super) fn into_text(self) -> String {
        match self {
            Self::Refused(refusal) => refusal.text,
            Self::Failed(failure) | Self::Unanswered(failure) => failure.text,
        }
    }
}

/// The meaning and the label of an error with this code. `status`: that of the answer. For an unknown code, `by_sender` decides.
pub(super) fn fault(code: &str, status: u16, by_sender: bool) -> (SqsFault, &'static str) {
    if let Some(of_key) = of_kms(code) {
        let is_later = of_key.starts_with("Throttl");
        return if is_later { (SqsFault::Later, THROTTLED) } else { (SqsFault::NotPermitted, NOT_PERMITTED) };
    }
    match plain(code) {
        "QueueDoesNotExist" | "NonExistentQueue" | "QueueDeletedRecently" | "InvalidAddress" | "NotFound" => {
            (SqsFault::Missing, QUEUE)
        }
        "AccessDenied" | "AuthorizationError" | "NotAuthorized" => (SqsFault::NotPermitted, NOT_PERMITTED),
        // The service refuses the kind of request, which is the same for each message.
        "UnsupportedOperation" | "UnknownOperation" | "InvalidAction" => (SqsFault::Unsupported, REFUSED),
        "RequestThrottled"
        | "Throttling"
        | "ThrottledException"
        | "Throttled"
        | "TooManyRequests"
        | "SlowDown"
        | "OverLimit"
        | "RequestLimitExceeded"
        | "BandwidthLimitExceeded" => (SqsFault::Later, THROTTLED),
        "ServiceUnavailable" | "InternalError" | "InternalFailure" | "InternalServerError" | "RequestTimeout" => {
            (SqsFault::Later, SERVICE)
        }
        "RequestTimeTooSkewed" | "RequestInTheFuture" | "RequestExpired" => (SqsFault::Later, CLOCK),
        "InvalidClientTokenId"
        | "UnrecognizedClient"
        | "SignatureDoesNotMatch"
        | "InvalidSignature"
        | "IncompleteSignature"
        | "MissingAuthenticationToken"
        | "MissingAuthentication"
        | "ExpiredToken"
        | "InvalidAccessKeyId"
        | "OptInRequired"
        | "InvalidSecurity" => (SqsFault::LogIn, LOG_IN_LABEL),
        "BatchRequestTooLong" | "MessageTooLong" => (SqsFault::Row, TOO_LARGE),
        // Characters that a message may not have; an attribute, a group or an id that is not valid; a parameter that is missing.
        "InvalidMessageContents"
        | "InvalidParameterValue"
        | "InvalidParameter"
        | "InvalidAttributeName"
        | "InvalidAttributeValue"
        | "MissingParameter"
        | "Validation"
        | "ValidationError" => (SqsFault::Row, REFUSED),
        _ if status == 429 => (SqsFault::Later, THROTTLED),
        // An answer without a code comes from a proxy or another server.
        "" => (SqsFault::Later, SERVICE),
        _ if status >= 500 || (status == 200 && !by_sender) => (SqsFault::Later, SERVICE),
        _ => (SqsFault::Unlisted, UNLISTED),
    }
}

/// The part of a code about the KMS key that encrypts the queue, such as `Disabled`. `None`: the code is not about a key. Services write
/// these codes as `com.amazonaws.sqs#KmsDisabled`, `KMS.DisabledException` and `KMSDisabled`; no message is at fault.
fn of_kms(code: &str) -> Option<&str> {
    let code = code.rsplit('#').next().unwrap_or_default();
    let (start, rest) = code.split_at_checked("KMS".len())?;
    start.eq_ignore_ascii_case("KMS").then(|| rest.trim_start_matches('.'))
}

/// The last part of a code. Services write `com.amazonaws.sqs#QueueDoesNotExist`, `AWS.SimpleQueueService.NonExistentQueue`,
/// `KMS.DisabledException`.
fn plain(code: &str) -> &str {
    let code = code.split(':').next().unwrap_or_default();
    let code = code.rsplit(['#', '.']).next().unwrap_or_default();
    code.strip_suffix("Exception").unwrap_or(code)
}

impl ServiceRefusal {
    /// The refusal in an answer with another status than 200. `said`: its code and message, if it has them.
    pub(super) fn of(status: u16, said: Option<(String, String)>) -> Self {
        let Some((code, message)) = said else {
            return Self { status, code: String::new(), text: format!("HTTP {status}") };
        };
        let (plain, words) = (plain(&code), words(&message));
        let text = if words.is_empty() { plain.to_owned() } else { format!("{plain}: {words}") };
        Self { status, code, text }
    }

    /// The meaning and the label of the refusal.
    pub(super) fn fault(&self) -> (SqsFault, &'static str) {
        // The topic is of another region, or no topic: that is the same for each message. A message that is at fault has the same code.
        if plain(&self.code) == "InvalidParameter" && self.text.contains("TopicArn") {
            return (SqsFault::Missing, QUEUE);
        }
        let said = self.text.split_once(": ").map_or("", |(_, said)| said);
        if WRONG_TIME.iter().any(|text| said.starts_with(text)) {
            return (SqsFault::Later, CLOCK);
        }
        fault(&self.code, self.status, true)
    }
}

/// The failure of a record, or of all records of its queue.
pub(super) fn refused(
    settings: &SqsSettings,
    queue: &str,
    (fault, reason): (SqsFault, &'static str),
    said: &str,
) -> Failure {
    let service = settings.service;
    let text = format!("{} refuses a record for {} {queue}: {said}", service.kind().title, service.resource());
    match fault {
        SqsFault::Row => Failure::new(FailureClass::Row, reason, text),
        SqsFault::Unlisted => Failure::new(FailureClass::Unlisted, reason, text),
        SqsFault::Missing => {
            let text = format!("{text}; to create it: {}", create(service, queue));
            Failure::new(FailureClass::Topic, reason, text)
        }
        SqsFault::NotPermitted => {
            let allow = allow(service, &format!("the {}", service.resource()));
            Failure::new(FailureClass::Topic, reason, text).with_remedy(allow)
        }
        SqsFault::Unsupported => Failure::new(FailureClass::Topic, reason, text),
        SqsFault::Later | SqsFault::LogIn => passing(settings, (fault, reason), said),
    }
}

/// The rights that publishing needs, in words. `resource`: the queue or topic.
pub(super) fn allow(service: Service, resource: &str) -> String {
    let rights = match service {
        Service::Sqs => "sqs:SendMessage and sqs:GetQueueUrl",
        Service::Sns => "sns:Publish",
    };
    format!("allow {rights} on {resource}, and kms:GenerateDataKey and kms:Decrypt on its key")
}

/// The command that creates a queue or topic, given its name, URL or ARN.
pub(super) fn create(service: Service, queue: &str) -> String {
    let name = queue.rsplit(['/', ':']).next().unwrap_or_default();
    let (command, attributes) = match service {
        Service::Sqs => ("aws sqs create-queue --queue-name", " --attributes FifoQueue=true"),
        Service::Sns => ("aws sns create-topic --name", " --attributes FifoTopic=true"),
    };
    format!("{command} {name}{}", if name.ends_with(FIFO) { attributes } else { "" })
}

/// The failure of all records, which passes by itself or once the keys are replaced.
pub(super) fn passing(settings: &SqsSettings, (fault, reason): (SqsFault, &'static str), said: &str) -> Failure {
    let text = format!("{} at {}: {said}", settings.kind().title, settings.address());
    if fault == SqsFault::LogIn {
        return Failure::new(FailureClass::LogIn, reason, text).with_remedy(CREDENTIALS);
    }
    if reason == CLOCK {
        let text = format!("{text}: the clock of this machine differs from that of AWS by more than AWS allows");
        return Failure::new(FailureClass::Environment, reason, text).with_remedy(SET_CLOCK);
    }
    Failure::new(FailureClass::Environment, reason, text)
}

/// The failure if the service cannot be reached, or the connection is lost.
pub(super) fn broken(settings: &SqsSettings, reason: &str) -> Failure {
    settings.kind().broken(&settings.address(), reason)
}

/// The service's own answer or refusal. The failure is one that passes by itself, or once the keys are replaced.
pub(super) fn answered<T>(
    settings: &SqsSettings,
    asked: Result<T, Unserved>,
) -> Result<Result<T, ServiceRefusal>, Failure> {
    match asked {
        Ok(answer) => Ok(Ok(answer)),
        Err(Unserved::Failed(failure) | Unserved::Unanswered(failure)) => Err(failure),
        Err(Unserved::Refused(refusal)) => match refusal.fault() {
            fault if fault.0.passes() => Err(passing(settings, fault, &refusal.text)),
            _ => Ok(Err(refusal)),
        },
    }
}

/// The outcome of a batch.
#[derive(Debug)]
pub(super) struct BatchOutcome {
    /// The outcome of each message, in their order. If the list is shorter, nobody knows what became of the last messages.
    pub(super) outcomes: Vec<RecordOutcome>,
    /// A failure that passes by itself.
    pub(super) problem: Option<Failure>,
    /// The answer to the request as a whole, if it may be the fault of any message.
    pub(super) among: Option<Failure>,
}

impl BatchOutcome {
    /// All records go again, for a failure that passes by itself.
    pub(super) fn passing(problem: Failure) -> Self {
        Self { outcomes: Vec::new(), problem: Some(problem), among: None }
    }
}

/// The outcome of a batch of `messages` whose answer has the status 200, which says nothing about any message. `kept`: the ids of stored
/// messages. `failed`: of each other message its id, the error's code, whether the message is at fault and not the service, and the text for
/// people. `None`: the answer names a message that was not sent.
pub(super) fn of_each<'a>(
    settings: &SqsSettings,
    queue: &str,
    messages: usize,
    kept: impl Iterator<Item = &'a str>,
    failed: impl Iterator<Item = (&'a str, &'a str, bool, Option<&'a str>)>,
) -> Option<BatchOutcome> {
    let (mut outcomes, mut problem) = (vec![None; messages], None);
    for id in kept {
        *outcomes.get_mut(id.parse::<usize>().ok()?)? = Some(RecordOutcome::Delivered);
    }
    for (id, code, by_sender, text) in failed {
        let (fault, said) = (fault(code, 200, by_sender), format!("{code}: {}", text.unwrap_or_default()));
        let outcome = if fault.0.passes() {
            problem = Some(passing(settings, fault, &said));
            RecordOutcome::Unknown
        } else {
            RecordOutcome::Refused(refused(settings, queue, fault, &said))
        };
        *outcomes.get_mut(id.parse::<usize>().ok()?)? = Some(outcome);
    }
    if outcomes.iter().any(Option::is_none) {
        problem = Some(broken(settings, "its answer does not name each message"));
    }
    let outcomes = outcomes.into_iter().map(|outcome| outcome.unwrap_or(RecordOutcome::Unknown)).collect();
    Some(BatchOutcome { outcomes, problem, among: None })
}

/// An example of each failure with a remedy, for the review of hints.
#[cfg(test)]
fn remedied_of(scheme: &str) -> Vec<Failure> {
    let settings =
        crate::sink::tests::read_in_test(scheme, "eu-west-1", &[], |asked| SqsSettings::read(asked)).unwrap();
    let of = |fault| refused(&settings, "orders", fault, "no");
    vec![of((SqsFault::LogIn, LOG_IN_LABEL)), of((SqsFault::NotPermitted, NOT_PERMITTED))]
}

#[cfg(test)]
pub(in crate::sink) fn remedied() -> Vec<Failure> {
    remedied_of("sqs")
}

#[cfg(test)]
pub(in crate::sink) fn remedied_of_topics() -> Vec<Failure> {
    remedied_of("sns")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::tests::read_in_test;

    #[test]
    fn codes_say_what_to_do() {
        for (code, status, by_sender, expected) in [
            ("com.amazonaws.sqs#QueueDoesNotExist", 400, true, (SqsFault::Missing, QUEUE)),
            ("AWS.SimpleQueueService.NonExistentQueue", 400, true, (SqsFault::Missing, QUEUE)),
            ("com.amazon.coral.service#AccessDeniedException", 400, true, (SqsFault::NotPermitted, NOT_PERMITTED)),
            ("KMS.AccessDeniedException", 400, true, (SqsFault::NotPermitted, NOT_PERMITTED)),
            ("KMS.DisabledException", 400, true, (SqsFault::NotPermitted, NOT_PERMITTED)),
            ("KMS.InvalidStateException", 400, true, (SqsFault::NotPermitted, NOT_PERMITTED)),
            ("KMS.InvalidKeyUsageException", 400, true, (SqsFault::NotPermitted, NOT_PERMITTED)),
            ("KMS.NotFoundException", 400, true, (SqsFault::NotPermitted, NOT_PERMITTED)),
            ("KMS.OptInRequired", 403, true, (SqsFault::NotPermitted, NOT_PERMITTED)),
            ("com.amazonaws.sqs#KmsDisabled", 400, true, (SqsFault::NotPermitted, NOT_PERMITTED)),
            ("KMSInvalidState", 400, true, (SqsFault::NotPermitted, NOT_PERMITTED)),
            ("com.amazonaws.sqs#KmsThrottled", 400, true, (SqsFault::Later, THROTTLED)),
            ("KMS.ThrottlingException", 400, true, (SqsFault::Later, THROTTLED)),
            ("KMSThrottling", 400, true, (SqsFault::Later, THROTTLED)),
            ("AWS.SimpleQueueService.UnsupportedOperation", 400, true, (SqsFault::Unsupported, REFUSED)),
            ("UnknownOperationException", 404, true, (SqsFault::Unsupported, REFUSED)),
            ("com.amazonaws.sqs#RequestThrottled", 403, true, (SqsFault::Later, THROTTLED)),
            ("ThrottlingException", 400, true, (SqsFault::Later, THROTTLED)),
            ("UnrecognizedClientException", 400, true, (SqsFault::LogIn, LOG_IN_LABEL)),
            ("ExpiredTokenException", 403, true, (SqsFault::LogIn, LOG_IN_LABEL)),
            ("com.amazonaws.sqs#BatchRequestTooLong", 400, true, (SqsFault::Row, TOO_LARGE)),
            ("InvalidParameterValue", 200, true, (SqsFault::Row, REFUSED)),
            ("InternalError", 200, false, (SqsFault::Later, SERVICE)),
            ("Unheard", 200, false, (SqsFault::Later, SERVICE)),
            ("InvalidMessageContents", 200, true, (SqsFault::Row, REFUSED)),
            ("ValidationException", 400, true, (SqsFault::Row, REFUSED)),
            ("Unheard", 200, true, (SqsFault::Unlisted, UNLISTED)),
            ("Unheard", 400, true, (SqsFault::Unlisted, UNLISTED)),
            ("com.amazonaws.sqs#RequestAbortedException", 400, true, (SqsFault::Unlisted, UNLISTED)),
            ("AccountProblem", 403, true, (SqsFault::Unlisted, UNLISTED)),
            ("ServiceQuotaExceededException", 402, true, (SqsFault::Unlisted, UNLISTED)),
            ("RequestTimeTooSkewed", 403, true, (SqsFault::Later, CLOCK)),
            ("RequestExpired", 400, true, (SqsFault::Later, CLOCK)),
            ("Unheard", 500, true, (SqsFault::Later, SERVICE)),
            ("", 503, true, (SqsFault::Later, SERVICE)),
            ("", 404, true, (SqsFault::Later, SERVICE)),
            ("", 429, true, (SqsFault::Later, THROTTLED)),
        ] {
            assert_eq!(fault(code, status, by_sender), expected, "{code} {status} {by_sender}");
        }
    }

    #[test]
    fn a_refusal_has_its_code_and_message_or_its_status() {
        let said = |code: &str, message: &str| Some((code.to_owned(), message.to_owned()));
        let refusal = ServiceRefusal::of(400, said("com.amazonaws.sqs#QueueDoesNotExist", "no"));
        assert_eq!((refusal.text.as_str(), refusal.fault().0), ("QueueDoesNotExist: no", SqsFault::Missing));
        assert_eq!(ServiceRefusal::of(400, said("X", "")).text, "X");
        for (message, expected) in [("TopicArn", SqsFault::Missing), ("Message too long", SqsFault::Row)] {
            let refusal = ServiceRefusal::of(400, said("InvalidParameter", &format!("Invalid parameter: {message}")));
            assert_eq!(refusal.fault().0, expected, "{message}");
        }
        assert_eq!(ServiceRefusal::of(502, None).text, "HTTP 502");
    }

    #[test]
    fn a_wrong_clock_is_no_wrong_key() {
        let of =
            |code: &str, message: &str| ServiceRefusal::of(403, Some((code.to_owned(), message.to_owned()))).fault();
        let late =
            "Signature expired: 20261129T050000Z is now earlier than 20261129T055500Z (20261129T060000Z - 5 min.)";
        let early = "Signature not yet current: 20261129T070000Z is still later than 20261129T060500Z";
        for (code, message) in [("InvalidSignatureException", late), ("SignatureDoesNotMatch", early)] {
            assert_eq!(of(code, message), (SqsFault::Later, CLOCK), "{code}");
        }
        assert_eq!(of("SignatureDoesNotMatch", "The signature does not match.").0, SqsFault::LogIn);
    }

    #[test]
    fn a_refusal_does_not_repeat_the_request_whose_signature_is_wrong() {
        let message = "The signature does not match.\n\nThe Canonical String for this request should have been\n'POST\n/\n\nx-amz-security-token:t";
        let refusal = ServiceRefusal::of(403, Some(("SignatureDoesNotMatch".to_owned(), message.to_owned())));
        assert_eq!(refusal.text, "SignatureDoesNotMatch: The signature does not match.");
    }

    #[test]
    fn each_message_has_its_own_result_and_none_is_made_up() {
        let settings = read_in_test("sqs", "eu-west-1", &[], |asked| SqsSettings::read(asked)).unwrap();
        let outcome_of = |kept: &[&'static str], failed: &[(&'static str, &'static str)], messages: usize| {
            let failed = failed.iter().map(|(id, code)| (*id, *code, false, Some("again")));
            of_each(&settings, "orders", messages, kept.iter().copied(), failed).map(
                |BatchOutcome { outcomes, problem, .. }| {
                    let outcomes = outcomes.iter().map(|outcome| match outcome {
                        RecordOutcome::Delivered => "kept".to_owned(),
                        RecordOutcome::Unknown => "unknown".to_owned(),
                        RecordOutcome::Refused(failure) => failure.text.clone(),
                        RecordOutcome::Duplicate
                        | RecordOutcome::RefusedPerhapsStored(_)
                        | RecordOutcome::Unanswered
                        | RecordOutcome::NotStored
                        | RecordOutcome::Later(_) => panic!("{outcome:?}"),
                    });
                    (outcomes.collect::<Vec<_>>().join(", "), problem.map(|failure| failure.text).unwrap_or_default())
                },
            )
        };
        let (outcomes, problem) = outcome_of(&["0"], &[("2", "InternalError")], 3).unwrap();
        assert_eq!(outcomes, "kept, unknown, unknown");
        assert!(problem.ends_with("its answer does not name each message"), "{problem}");
        let (outcomes, problem) = outcome_of(&["0"], &[("1", "InternalError")], 2).unwrap();
        assert_eq!(outcomes, "kept, unknown");
        assert!(problem.ends_with("InternalError: again"), "{problem}");
        let (outcomes, problem) = outcome_of(&["1"], &[("0", "MessageTooLong")], 2).unwrap();
        assert_eq!(outcomes, "SQS refuses a record for queue orders: MessageTooLong: again, kept");
        assert_eq!(problem, "");
        for id in ["3", "x", ""] {
            assert_eq!(outcome_of(&[id], &[], 3), None, "{id}");
            assert_eq!(outcome_of(&[], &[(id, "InternalError")], 3), None, "{id}");
        }
    }
}
