//! The words and figures of a record that the sink sends alone, since it does not take it for an answer that is in no list.
//!
//! In: what the sink saw of the record, the table of its row. Out: a failure for the log and `/readyz`, and the figures of `/status`. Such an
//! answer is no evidence against the row, so nothing here gives a row up. `--bad-row-at` is named only if other records of the topic arrive
//! between two refusals: otherwise the destination refuses everything, and the row is as good as any.

use crate::metrics::TriedRow;
use crate::remedy::{Command, Remedy};
use crate::sink::{Failure, FailureClass, TriedAlone};

/// The figures of `/status`.
pub(super) fn figures(tried: &TriedAlone, table: &str) -> TriedRow {
    TriedRow {
        table: table.to_owned(),
        position: tried.origin.position.to_string(),
        topic: tried.topic.clone(),
        answer: tried.answer.text.clone(),
        attempts: tried.attempts,
        since: tried.since,
        others_arrive: tried.others_arrive,
    }
}

/// The failure that people see. Its text has no figures that change with each attempt.
pub(super) fn failure(tried: &TriedAlone, table: &str) -> Failure {
    let TriedAlone { topic, answer, others_arrive, .. } = tried;
    let at = tried.origin.position;
    let tries =
        format!("{}; walrelay does not know this answer and goes on trying the row of {table} at {at}", answer.text);
    if !others_arrive {
        return Failure { class: FailureClass::Unlisted, text: tries, ..answer.clone() };
    }
    let text = format!(
        "{tries}, while other records for {topic} arrive: if the row is the cause, --bad-row-at {at}=dead-letter or {at}=skip and a restart let the \
         others behind it go on"
    );
    let decided = |action| Command::new("run").set("--bad-row-at", format!("{at}={action}"));
    let remedy = Remedy::from(
        "look at the row and at the answer; if the row is the cause, publish it to the dead-letter topic: ",
    )
    .and(decided("dead-letter"))
    .and("; or skip it: ")
    .and(decided("skip"));
    Failure { class: FailureClass::Unlisted, text, remedy: Some(remedy), ..answer.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::{Lsn, Position};
    use crate::sink::{Origin, Source};
    use std::time::Instant;

    fn tried(others_arrive: bool) -> TriedAlone {
        TriedAlone {
            origin: Origin {
                position: Position { final_lsn: Lsn::new(0x16_B374_D848), ordinal: 3 },
                source: Source::Table(1),
            },
            topic: "orders".to_owned(),
            since: Instant::now(),
            attempts: 2,
            answer: Failure::new(FailureClass::Unlisted, "unlisted", "stream orders: ERR no"),
            others_arrive,
        }
    }

    #[test]
    fn an_unknown_answer_names_the_row_and_says_what_decides_on_it_only_once_others_arrive() {
        let alone = failure(&tried(false), "public.outbox");
        assert_eq!(
            alone.text,
            "stream orders: ERR no; walrelay does not know this answer and goes on trying the row of public.outbox at 16/B374D848:3"
        );
        assert_eq!((alone.class, alone.remedy), (FailureClass::Unlisted, None));
        let beside = failure(&tried(true), "public.outbox");
        assert!(beside.text.contains("--bad-row-at 16/B374D848:3=dead-letter"), "{beside}");
        let hint = beside.logged_remedy();
        assert!(hint.contains("walrelay run --bad-row-at 16/B374D848:3=skip"), "{hint}");
    }
}
