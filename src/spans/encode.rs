//! Spans as the body of one OTLP request.
//!
//! In: spans, what they have in common, a random id for each. Out: bytes of `ExportTraceServiceRequest`. Pure.
//! Specifications: OpenTelemetry Protocol 1.x; "Semantic conventions for messaging spans" 1.36, whose state is development.

use super::context::Context;
use super::pending::Span;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1 as resource;
use opentelemetry_proto::tonic::trace::v1 as otlp;
use opentelemetry_proto::tonic::trace::v1::span::{Link, SpanKind};
use prost::Message as _;
use std::collections::BTreeMap;

/// `SpanFlags` of the protocol: it is known whether the parent is another process', and it is.
const PARENT_IS_REMOTE: u32 = 0x300;

/// What walrelay calls what it does; also the type of the operation.
const OPERATION: &str = "send";

/// What spans are of: attributes such as `service.name`.
pub type Resource = BTreeMap<String, String>;

/// What the spans of one relay have in common.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) resource: Resource,
    /// `messaging.system`.
    pub(super) system: &'static str,
    /// `messaging.client.id`.
    pub(super) client: String,
}

/// The body of a request. `ids` has eight bytes for each span.
pub(super) fn request(common: &Common, spans: &[Span], ids: &[u8]) -> Vec<u8> {
    let spans = spans.iter().zip(ids.chunks_exact(8)).map(|(span, id)| encoded(common, span, id)).collect();
    let scope = InstrumentationScope {
        name: env!("CARGO_PKG_NAME").to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let attributes = common.resource.iter().map(|(key, value)| text(key, value)).collect();
    let spans = otlp::ResourceSpans {
        resource: Some(resource::Resource { attributes, ..resource::Resource::default() }),
        scope_spans: vec![otlp::ScopeSpans { scope: Some(scope), spans, ..otlp::ScopeSpans::default() }],
        ..otlp::ResourceSpans::default()
    };
    ExportTraceServiceRequest { resource_spans: vec![spans] }.encode_to_vec()
}

/// How many spans the collector says that it did not take, and why. An answer that is none refuses nothing.
pub(super) fn refused(answer: &[u8]) -> Option<(u64, String)> {
    let ExportTracePartialSuccess { rejected_spans, error_message } =
        ExportTraceServiceResponse::decode(answer).ok()?.partial_success?;
    let rejected = u64::try_from(rejected_spans).unwrap_or(0);
    (rejected > 0).then_some((rejected, error_message))
}

fn encoded(common: &Common, span: &Span, id: &[u8]) -> otlp::Span {
    let mut attributes = vec![
        text("messaging.system", common.system),
        text("messaging.operation.name", OPERATION),
        text("messaging.operation.type", OPERATION),
        text("messaging.client.id", &common.client),
        attribute("walrelay.publish_latency_seconds", Value::DoubleValue(span.latency.as_secs_f64())),
    ];
    attributes.extend(span.topic.as_ref().map(|topic| text("messaging.destination.name", topic)));
    attributes.extend(span.message_id.as_ref().map(|id| text("messaging.message.id", id)));
    if span.records > 1 {
        attributes.push(attribute("messaging.batch.message_count", Value::IntValue(span.records.into())));
    }
    otlp::Span {
        trace_id: span.parent.trace_id.to_vec(),
        span_id: id.to_vec(),
        trace_state: span.state.clone(),
        parent_span_id: span.parent.span_id.to_vec(),
        flags: flags(&span.parent),
        name: span.topic.as_ref().map_or_else(|| OPERATION.to_owned(), |topic| format!("{OPERATION} {topic}")),
        kind: SpanKind::Producer.into(),
        start_time_unix_nano: nanos(span.start.unix_micros()),
        end_time_unix_nano: nanos(span.end.unix_micros().max(span.start.unix_micros())),
        attributes,
        links: span.links.iter().map(link).collect(),
        dropped_links_count: span.dropped_links,
        ..otlp::Span::default()
    }
}

fn link(context: &Context) -> Link {
    Link {
        trace_id: context.trace_id.to_vec(),
        span_id: context.span_id.to_vec(),
        flags: flags(context),
        ..Link::default()
    }
}

fn flags(context: &Context) -> u32 {
    u32::from(context.flags) | PARENT_IS_REMOTE
}

fn nanos(unix_micros: i64) -> u64 {
    u64::try_from(unix_micros).unwrap_or(0).saturating_mul(1000)
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

#[cfg(test)]
mod tests {
    use super::super::queue::tests::span;
    use super::*;

    fn common() -> Common {
        Common {
            resource: [("service.name".to_owned(), "shop-relay".to_owned())].into(),
            system: "kafka",
            client: "walrelay/orders".to_owned(),
        }
    }

    fn decoded(spans: &[Span], ids: &[u8]) -> Vec<otlp::Span> {
        let body = ExportTraceServiceRequest::decode(request(&common(), spans, ids).as_slice()).unwrap();
        let [resource]: [otlp::ResourceSpans; 1] = body.resource_spans.try_into().unwrap();
        let named = resource.resource.unwrap().attributes;
        assert_eq!(named, [text("service.name", "shop-relay")]);
        let [scope]: [otlp::ScopeSpans; 1] = resource.scope_spans.try_into().unwrap();
        assert_eq!(scope.scope.unwrap().name, "walrelay");
        scope.spans
    }

    fn attributes(span: &otlp::Span) -> BTreeMap<String, Value> {
        let value = |pair: &KeyValue| pair.value.clone().unwrap().value.unwrap();
        span.attributes.iter().map(|pair| (pair.key.clone(), value(pair))).collect()
    }

    fn string(text: &str) -> Value {
        Value::StringValue(text.to_owned())
    }

    #[test]
    fn a_span_has_its_parent_its_times_and_the_attributes_of_a_message_that_is_sent() {
        let one = Span { message_id: Some("a".to_owned()), state: "v=x".to_owned(), ..span(1) };
        let [span]: [otlp::Span; 1] = decoded(&[one], &[7; 8]).try_into().unwrap();
        assert_eq!((span.trace_id.as_slice(), span.parent_span_id.as_slice()), ([1; 16].as_slice(), [2; 8].as_slice()));
        assert_eq!((span.span_id.as_slice(), span.flags), ([7; 8].as_slice(), 0x301));
        assert_eq!((span.name.as_str(), span.kind()), ("send order", SpanKind::Producer));
        assert_eq!((span.trace_state.as_str(), span.links.len()), ("v=x", 0));
        assert_eq!(span.end_time_unix_nano - span.start_time_unix_nano, 1_000_000);
        assert_eq!(span.start_time_unix_nano, 946_684_800_000_000_000, "2000-01-01");
        let found = attributes(&span);
        for (name, value) in [
            ("messaging.system", "kafka"),
            ("messaging.operation.name", "send"),
            ("messaging.operation.type", "send"),
            ("messaging.destination.name", "order"),
            ("messaging.message.id", "a"),
            ("messaging.client.id", "walrelay/orders"),
        ] {
            assert_eq!(found.get(name), Some(&string(value)), "{name}");
        }
        assert_eq!(found["walrelay.publish_latency_seconds"], Value::DoubleValue(0.005));
        assert!(!found.contains_key("messaging.batch.message_count"), "not of a single message");
    }

    #[test]
    fn several_records_are_counted_and_several_topics_have_no_name() {
        let link = Context { trace_id: [3; 16], span_id: [4; 8], flags: 3 };
        let many = Span { topic: None, links: vec![link], dropped_links: 2, ..span(3) };
        let [span, other]: [otlp::Span; 2] = decoded(&[many, span(2)], &[[7; 8], [8; 8]].concat()).try_into().unwrap();
        assert_eq!(span.name, "send");
        let found = attributes(&span);
        assert_eq!(found["messaging.batch.message_count"], Value::IntValue(3));
        assert!(!found.contains_key("messaging.destination.name"));
        assert_eq!((span.links[0].trace_id.as_slice(), span.links[0].flags), ([3; 16].as_slice(), 0x303));
        assert_eq!((span.dropped_links_count, other.span_id.as_slice()), (2, [8; 8].as_slice()));
    }

    #[test]
    fn a_clock_that_was_set_back_makes_no_span_that_ends_before_it_starts() {
        let back = Span { end: crate::pgoutput::PgTime(-5), ..span(1) };
        let [span]: [otlp::Span; 1] = decoded(&[back], &[7; 8]).try_into().unwrap();
        assert_eq!(span.end_time_unix_nano, span.start_time_unix_nano);
    }

    #[test]
    fn an_answer_may_refuse_some() {
        let answer = |rejected_spans| {
            let partial_success = Some(ExportTracePartialSuccess { rejected_spans, error_message: "quota".to_owned() });
            ExportTraceServiceResponse { partial_success }.encode_to_vec()
        };
        assert_eq!(refused(&answer(300)), Some((300, "quota".to_owned())));
        assert_eq!(refused(&answer(0)), None, "a warning only");
        assert_eq!(refused(&answer(-1)), None);
        assert_eq!(refused(b""), None);
        assert_eq!(refused(b"{}"), None, "not what was asked for");
    }
}
