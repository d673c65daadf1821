//! The latest rows of a table, sent through the mapping that `run` uses.
//!
//! In: a table and its rows as text. Out: the topics they would go to, the largest record, and which of them could not be published.
//! Pure: each row is written as the message that the server would send, and read as the relay reads it.

use super::facts::TableFacts;
use crate::lsn::Position;
use crate::outbox::{BadReason, Outbox, PlanError, RowContext, RowError, RowOutcome};
use crate::pgoutput::{Message, PgTime, Relation, encode};
use std::collections::BTreeSet;

/// The results of the rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sample {
    /// Where they go.
    pub(super) topics: BTreeSet<String>,
    /// The topic of the one that stands last.
    pub(super) last_topic: Option<String>,
    /// Bytes of key and value of the largest record.
    pub(super) largest_bytes: usize,
    /// How many have a null key.
    pub(super) without_key: usize,
    /// Why rows could not be published, one for each.
    pub(super) bad: Vec<Unpublishable>,
}

/// Why a row could not be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unpublishable {
    /// For people.
    pub(super) text: String,
    /// The destination has no topics of such a name.
    pub(super) name_is_invalid: bool,
}

/// Maps them. `outbox` has the settings; what it knew of tables is forgotten. `None`: the table is not among those that are
/// published from.
///
/// # Errors
/// The table cannot be read as an outbox.
pub(super) fn sample(outbox: &mut Outbox, table: &TableFacts) -> Result<Option<Sample>, Box<PlanError>> {
    outbox.published(std::slice::from_ref(&table.published))?;
    if !outbox.covers_any() {
        return Ok(None);
    }
    let relation = &table.published.relation;
    outbox.relation(relation)?;
    let mut sample = Sample::default();
    for row in table.rows.iter().flat_map(|rows| &rows.latest) {
        take(outbox, relation, row, &mut sample);
    }
    Ok(Some(sample))
}

fn take(outbox: &mut Outbox, relation: &Relation, row: &[Option<String>], sample: &mut Sample) {
    let mut bytes = Vec::new();
    encode::insert(&mut bytes, relation.id, row.len());
    for text in row {
        encode::value(&mut bytes, text.as_ref().map(String::as_bytes));
    }
    let Ok(Message::Insert { relation, new }) = Message::decode(&bytes) else { return };
    let context = RowContext { commit_time: PgTime(0), sent_at: PgTime(0), position: Position::default() };
    let taken = outbox.row(relation, &new, &context, |record| {
        sample.largest_bytes = sample.largest_bytes.max(record.bytes());
        sample.without_key += usize::from(record.key.is_none());
        sample.last_topic = Some(record.topic.to_owned());
        sample.topics.insert(record.topic.to_owned());
    });
    match taken {
        Ok(RowOutcome::Record(()) | RowOutcome::NotPublished | RowOutcome::Ignored(_)) => {}
        Err(RowError::Bad(bad)) => {
            let name_is_invalid = matches!(bad.reason, BadReason::InvalidTopic { .. });
            sample.bad.push(Unpublishable { text: bad.reason.to_string(), name_is_invalid });
        }
        Err(other) => sample.bad.push(Unpublishable { text: other.to_string(), name_is_invalid: false }),
    }
}
