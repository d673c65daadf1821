//! `dead-letters`: what is at a dead-letter address, and publishing it again to where it was meant for.
//!
//! ```text
//!  destination ─► DeadLetters ─► chosen? ─┬─► shown: a line, or one whole           (list, show)
//!                      ▲                  └─► the record that was meant ─► Sink     (replay)
//!                      └──────── marked, once it is delivered ◄─── delivery report
//! ```
//!
//! In: a destination, its dead-letter address, which records. Out: lines on `out`; with `replay` records at their topics.
//! Invariants: a record is marked only after the destination has acknowledged the one that was published of it; nothing is ever removed
//! for having failed. So a kill loses nothing, and repeats what was delivered since records were last marked. A replay goes on though nobody
//! reads what it says any more.

mod replay;
mod shown;

use super::dialogue::Finishing;
use super::error::CommandError;
use super::output::counted;
use crate::sink::dead_letter::said;
use crate::sink::destination::{DeadLetters, Destination, KeptRecord, NextKept};
use crate::sink::{HeaderRoom, Record};
use replay::Replay;
use shown::DeadLetterEntry;
use std::io::{self, Write};
use std::sync::Arc;

/// The records, and the action for them.
#[derive(Debug, Clone)]
pub struct DeadLettersRequest {
    /// Whose records.
    pub destination: Arc<dyn Destination>,
    /// Names the client.
    pub slot: String,
    /// The dead-letter address.
    pub topic: String,
    /// Only records with one of these ids; empty: all.
    pub ids: Vec<String>,
    /// Also those that were published again before.
    pub again: bool,
    /// Where records go whose own topic is unknown, or no topic name; `None`: nowhere.
    pub default_topic: Option<String>,
    /// Values begin with the numbers of their schemas: a record that was never made has none.
    pub has_schema_ids: bool,
    /// The action for the chosen records.
    pub action: Action,
    /// JSON lines.
    pub json: bool,
}

/// The actions for records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A line for each.
    List,
    /// Each whole.
    Show,
    /// They are published again.
    Replay,
}

/// Lists, shows or publishes again. `stop`: ends it between two records.
///
/// # Errors
/// They cannot be read, published or remembered; or `stop` said so, or `out` cannot be written.
pub fn dead_letters(
    request: &DeadLettersRequest,
    out: &mut dyn Write,
    stop: &dyn Fn() -> bool,
) -> Result<(), CommandError> {
    let client = format!("walrelay/{}", request.slot);
    let kept = request.destination.dead_letters(&client, &request.topic);
    let kept = kept.map_err(CommandError::dead_letters_unreadable)?;
    match request.action {
        Action::List | Action::Show => look(request, kept, out, stop),
        Action::Replay => {
            let mut out = Finishing::new(out);
            Replay::begin(request, kept, &client, &mut out, stop)?.run()?;
            out.end()
        }
    }
}

/// The numbers of records at the address.
#[derive(Debug, Default)]
struct Counts {
    /// Meant.
    chosen: u64,
    /// Left out, since they were published again before.
    replayed: u64,
    /// Left out, since they are no dead-letter records.
    others: u64,
}

impl Counts {
    /// The record as it is shown; `None`: it is not meant.
    fn choose<'a>(
        &mut self,
        request: &DeadLettersRequest,
        kept: &KeptRecord,
        record: &Record<'a>,
    ) -> Option<DeadLetterEntry<'a>> {
        let Some(said) = said(record) else {
            self.others += 1;
            return None;
        };
        let entry = DeadLetterEntry::new(kept, record, said);
        let is_asked = |id: &std::borrow::Cow<'_, str>| request.ids.iter().any(|asked| asked == id);
        if !request.ids.is_empty() && !entry.id.as_ref().is_some_and(is_asked) {
            return None;
        }
        if kept.replayed && !request.again {
            self.replayed += 1;
            return None;
        }
        self.chosen += 1;
        Some(entry)
    }
}

fn look(
    request: &DeadLettersRequest,
    mut kept: Box<dyn DeadLetters>,
    out: &mut dyn Write,
    stop: &dyn Fn() -> bool,
) -> Result<(), CommandError> {
    let (mut counts, mut room) = (Counts::default(), HeaderRoom::default());
    let whole = request.action == Action::Show;
    while !stop() {
        let each = match kept.next().map_err(CommandError::dead_letters_failed)? {
            NextKept::Kept(each) => each,
            NextKept::Waiting => continue,
            NextKept::End => return sum_up(request, &counts, out).map_err(CommandError::from),
        };
        each.record.with_record(&mut room, |record| -> io::Result<()> {
            let Some(entry) = counts.choose(request, &each, record) else { return Ok(()) };
            if counts.chosen == 1 && !request.json && !whole {
                writeln!(out, "{}", DeadLetterEntry::HEAD.trim_end())?;
            }
            entry.write(out, request.json, whole.then_some(record))
        })?;
    }
    Err(CommandError::interrupted())
}

/// For people; JSON lines speak for themselves.
fn sum_up(request: &DeadLettersRequest, counts: &Counts, out: &mut dyn Write) -> io::Result<()> {
    if request.json {
        return Ok(());
    }
    let of_ids = if request.ids.is_empty() { "" } else { " with such an id" };
    writeln!(out, "{} in {}{of_ids}{}", counted(counts.chosen, "record"), request.topic, left_out(counts))?;
    if counts.chosen > 0 && request.action == Action::List {
        writeln!(out, "next: --show --id ID shows one whole; once its cause is fixed, --replay publishes it again")?;
    }
    Ok(())
}

fn left_out(counts: &Counts) -> String {
    let mut text = String::new();
    for (count, what) in
        [(counts.replayed, "published again before (--again shows them)"), (counts.others, "of somebody else")]
    {
        if count > 0 {
            text.extend(["; left out: ", &counted(count, "record"), " ", what]);
        }
    }
    text
}
