//! Builds a partial record of a row that gives no record, for the dead-letter topic.
//!
//! In: a row or message of which some part is bad. Out: a [`Record`] with the key, the row's payload as it is, and all headers that can
//! be built. Other parts are null or left out. If the topic cannot be built, it is empty. Such rows are rare, so this file may
//! allocate.

use super::record::{HeaderDraft, MappedRow};
use super::value::{Arena, Booleans, Piece};
use super::{Outbox, RelationEntry, RowContext, RowError, RowOutcome, message};
use crate::pgoutput::{LogicalMessage, RelationId, Tuple};
use crate::route::LastTopic;
use crate::sink::{Content, Header, Record};

impl Outbox {
    /// Calls `take` with the partial record of an inserted row.
    ///
    /// # Errors
    /// The row must not come on this connection.
    pub fn partial_record<T>(
        &mut self,
        relation: RelationId,
        tuple: &Tuple<'_>,
        context: &RowContext,
        take: impl FnOnce(&Record<'_>) -> T,
    ) -> Result<RowOutcome<T>, RowError> {
        let Some(plan) = self.relations.get(&relation).and_then(RelationEntry::plan) else {
            return Ok(RowOutcome::NotPublished);
        };
        let Self { mapping, topic, scratch, .. } = self;
        let columns = scratch.columns(plan, tuple)?;
        let made = MappedRow { plan, columns: &columns, mapping, topic, context }.with_partial_record(take);
        scratch.return_columns(columns);
        Ok(RowOutcome::Record(made))
    }

    /// Calls `take` with the partial record of a logical message. If the message is no JSON object, or lacks a member that it needs,
    /// the record has only a value: the message's content.
    pub fn partial_message_record<T>(
        &mut self,
        message: &LogicalMessage<'_>,
        context: &RowContext,
        take: impl FnOnce(&Record<'_>) -> T,
    ) -> RowOutcome<T> {
        let Self { mapping, topic, .. } = self;
        let content = Record {
            topic: "",
            key: None,
            value: Some(message.content),
            headers: &[],
            timestamp_millis: context.time_without_column(&mapping.timestamp).unix_millis(),
            partition: None,
            content: Content::Unknown,
        };
        let Ok(mut members) = message::members(message) else { return RowOutcome::Record(take(&content)) };
        message::complete(&mut members, mapping);
        let table = format!("message {:?}", message.prefix);
        let Ok(plan) = message::plan(table, &members, mapping, topic) else {
            return RowOutcome::Record(take(&content));
        };
        let row = MappedRow { plan: &plan, columns: &message::columns(&members), mapping, topic, context };
        RowOutcome::Record(row.with_partial_record(take))
    }
}

impl<'a> MappedRow<'a> {
    fn with_partial_record<T>(self, take: impl FnOnce(&Record<'_>) -> T) -> T {
        let mut arena = Arena::new();
        let key = self.key(Booleans::Letters, &mut arena).unwrap_or(Piece::Null);
        let value = self.piece(self.plan.payload, Booleans::Letters, &mut arena).unwrap_or(Piece::Null);
        let drafts = self.partial_headers(&mut arena);
        let without_column = self.context.time_without_column(&self.mapping.timestamp);
        let timestamp_millis = self.timestamp_millis(&mut arena).unwrap_or_else(|_| without_column.unix_millis());
        let topic = self.partial_topic(&mut arena).unwrap_or_default();
        let partition = self.partition(&mut arena).unwrap_or_default();
        let arena = &arena;
        let headers = drafts.iter().map(|draft| Header { name: &draft.name, value: draft.value.bytes(arena) });
        let headers: Vec<Header<'_>> = headers.collect();
        let (key, value) = (key.bytes(arena), value.bytes(arena));
        let content = self.kind(self.plan.payload).content();
        take(&Record { topic: &topic, key, value, headers: &headers, timestamp_millis, partition, content })
    }

    /// The topic of the row's record. `None` if the topic itself is wrong.
    fn partial_topic(self, arena: &mut Arena) -> Option<String> {
        let mut values = Vec::new();
        self.topic_values(&mut values, arena).ok()?;
        let arena = &*arena;
        let values = values.iter().map(|piece| piece.bytes(arena).unwrap_or_default());
        LastTopic::default().resolve(self.topic, values).ok().map(str::to_owned)
    }

    fn partial_headers(self, arena: &mut Arena) -> Vec<HeaderDraft<'a>> {
        let mut drafts = Vec::new();
        if let Ok(value) = self.id(arena) {
            drafts.push(HeaderDraft { name: "id".into(), value });
        }
        if let Some(Ok(value)) = self.plan.event_type.map(|index| self.piece(index, Booleans::Words, arena)) {
            drafts.push(HeaderDraft { name: "eventType".into(), value });
        }
        let whole = drafts.len();
        if self.plan.headers.is_some_and(|index| self.headers_column(index, &mut drafts, arena).is_err()) {
            drafts.truncate(whole);
        }
        for (at, (name, index)) in self.plan.extra_headers.iter().enumerate() {
            self.constants(at, &mut drafts);
            if let Ok(value) = self.piece(*index, Booleans::Words, arena) {
                drafts.push(HeaderDraft { name: name.into(), value });
            }
        }
        self.last_headers(&mut drafts, arena);
        drafts
    }
}
