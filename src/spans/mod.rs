//! One span for each published transaction whose rows belong to a sampled trace, exported over OTLP.
//!
//! ```text
//!  relay's thread:  record ─► Traced ─► sink          settled ─► Span ─► queue, bounded
//!  otlp (a thread):                                   queue ─► batch ─► Protobuf ─► collector
//! ```
//!
//! In: records with the header `traceparent`, and which transactions are delivered. Out: spans at a collector. Records stay as they are: their
//! consumers see the context that the row brought. A span that cannot be exported is dropped and counted.
//!
//! Invariants: without a collector in the settings nothing of this runs; a record never waits for a collector; what is kept is bounded
//! (`pending`, `queue`).
//! Specifications: W3C "Trace Context"; OpenTelemetry Protocol 1.x; OpenTelemetry's semantic conventions for messaging spans.

mod context;
mod encode;
mod exporter;
mod pending;
mod queue;
mod traced;

pub use context::Context;
pub use encode::Resource;
pub use exporter::{Exporter, Settings};
pub use pending::Span;
pub use traced::Traced;
