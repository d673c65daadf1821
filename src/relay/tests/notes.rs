//! Cases of skipped rows whose notes are not committed yet: no way leads the position past one of them.

use super::dead_letters::{ByKey, SharedByKey, with_dead_letters_in};
use super::*;
use crate::lsn::Position;
use std::cell::RefCell;

/// A relay that skips bad rows, its slot at 1000, what its server sends, and its noter.
struct Fixture {
    relay: Relay<SharedByKey, TestClock>,
    noter: TestNoter,
    server: Server,
    sink: Rc<RefCell<ByKey>>,
}

fn fixture(sent: &[Vec<u8>]) -> Fixture {
    let (relay, server, sink) = with_dead_letters_in(ByKey::default(), sent);
    let (relay, noter) = noting(relay.with_bad_rows(BadRows { action: BadRowAction::Skip, ..BadRows::default() }));
    Fixture { relay, noter, server, sink }
}

impl Fixture {
    /// Another connection, on which the server sends this.
    fn server(&self, sent: &[Vec<u8>]) -> Server {
        let (clock, began) = (self.server.clock.clone(), self.server.clock.now());
        let sends = sent.iter().map(|message| (Duration::ZERO, message.clone())).collect();
        Server { buffer: ReadBuffer::new(1 << 16), clock, began, until: seconds(2), sends, window: None }
    }
}

/// A transaction of one bad row of a table, which ends at 2040.
fn skipped() -> Vec<Vec<u8>> {
    let [table, row] = table_and_row(["1", "a b", "a", "t", "{}"]);
    vec![begin(2000), table, row, commit(2000, 2040)]
}

fn after_skipped(sent: &[Vec<u8>]) -> Vec<Vec<u8>> {
    [skipped(), sent.to_vec()].concat()
}

/// The position of the last status update.
fn last_update(script: &Script) -> u64 {
    u64::from_be_bytes(script.got.last().unwrap()[6..14].try_into().unwrap())
}

#[test]
fn a_stream_that_ends_in_the_same_turn_does_not_confirm_it() {
    let sent = after_skipped(&[vec![0; LIMIT]]);
    let mut fixture = fixture(&[]);
    let mut script = Script::of(&sent);
    let ended = fixture.relay.stream(&mut script, None);
    assert!(matches!(ended, StreamEnd::Disconnected(pg::Error::Frame(FrameError::TooLarge { .. }))), "{ended:?}");
    assert_eq!((fixture.noter.ids().len(), last_update(&script)), (1, 1000));
}

#[test]
fn a_row_that_stops_the_relay_waits_for_the_note_of_the_one_before_it() {
    let stops = [begin(3000), row("null"), commit(3000, 3040)];
    let mut fixture = fixture(&after_skipped(&stops));
    fixture.relay.bad_rows.at = vec![(Position { final_lsn: Lsn::new(3000), ordinal: 0 }, BadRowAction::Stop)];
    let mut session = Session::new(fixture.relay.clock().now(), None, Lsn::new(1000));
    for _ in 0..500 {
        fixture.relay.turn(&mut fixture.server, &mut session).unwrap();
    }
    assert_eq!(fixture.relay.flush_lsn(), Lsn::new(1000));
    fixture.noter.commit(1);
    let ended = (0..500).find_map(|_| fixture.relay.turn(&mut fixture.server, &mut session).err()).unwrap();
    assert!(matches!(&*ended, StreamEnd::BadRow(bad) if bad.confirmed == Lsn::new(2040)), "{ended:?}");
}

#[test]
fn a_stop_whose_time_runs_out_leaves_it_unconfirmed() {
    let mut fixture = fixture(&skipped());
    fixture.server.until = seconds(20);
    let mut session = Session::new(fixture.relay.clock().now(), None, Lsn::new(1000));
    for _ in 0..5 {
        fixture.relay.turn(&mut fixture.server, &mut session).unwrap();
    }
    fixture.relay.stop.store(true, Ordering::Relaxed);
    let ended = fixture.relay.stream(&mut fixture.server, None);
    assert!(matches!(ended, StreamEnd::StopTimedOut { in_flight: 0 }), "{ended:?}");
    assert_eq!(fixture.relay.flush_lsn(), Lsn::new(1000));
}

#[test]
fn no_keepalive_confirms_it() {
    let mut fixture = fixture(&after_skipped(&[keepalive(5000)]));
    fixture.relay.stream(&mut fixture.server, None);
    assert_eq!((fixture.noter.ids().len(), fixture.relay.flush_lsn()), (1, Lsn::new(1000)));
    fixture.noter.commit(1);
    let mut again = fixture.server(&after_skipped(&[keepalive(6000)]));
    fixture.relay.stream(&mut again, None);
    assert_eq!((fixture.noter.ids().len(), fixture.relay.flush_lsn()), (1, Lsn::new(6000)), "not noted again");
}

/// A transaction of a bad row, a good one, a bad one and a good one.
fn mixed() -> Vec<Vec<u8>> {
    let [table, bad] = table_and_row(["1", "a b", "a", "t", "{}"]);
    let [_, first] = table_and_row(["2", "order", "a", "first", "{}"]);
    let [_, other] = table_and_row(["3", "a b", "a", "t", "{}"]);
    let [_, second] = table_and_row(["4", "order", "a", "second", "{}"]);
    vec![begin(2000), table, bad, first, other, second, commit(2000, 2040)]
}

#[test]
fn rows_behind_it_count_in_their_own_places_after_a_broken_connection() {
    let mut fixture = fixture(&mixed()[..4]);
    fixture.relay.stream(&mut fixture.server, None);
    let delivered = |fixture: &Fixture| fixture.sink.borrow().delivered.clone();
    assert_eq!(delivered(&fixture), ["outbox.event.order first"]);
    let mut again = fixture.server(&mixed());
    fixture.relay.stream(&mut again, None);
    assert_eq!(delivered(&fixture), ["outbox.event.order first", "outbox.event.order second"]);
    assert_eq!(fixture.noter.ids(), [Some("1".to_owned()), Some("3".to_owned())]);
    fixture.noter.commit(1);
    fixture.relay.idle(seconds(1)).unwrap();
    assert_eq!(fixture.relay.flush_lsn(), Lsn::new(1000), "one of two");
    fixture.noter.commit(2);
    fixture.relay.idle(seconds(1)).unwrap();
    assert_eq!(fixture.relay.flush_lsn(), Lsn::new(2040));
}

#[test]
fn it_comes_again_with_what_the_sink_forgets() {
    let mut fixture = fixture(&mixed());
    fixture.relay.stream(&mut fixture.server, None);
    fixture.relay.start_over().unwrap();
    fixture.noter.commit(2);
    let mut again = fixture.server(&mixed());
    fixture.relay.stream(&mut again, None);
    assert_eq!(fixture.noter.ids().len(), 4, "they are noted again");
    assert_eq!(fixture.relay.flush_lsn(), Lsn::new(1000), "the notes of the first time are others");
    fixture.noter.commit(4);
    fixture.relay.idle(seconds(1)).unwrap();
    assert_eq!(fixture.relay.flush_lsn(), Lsn::new(2040));
}

#[test]
fn a_message_above_the_limit_is_not_noted_as_a_row() {
    let mut fixture = fixture(&[]);
    let mut script =
        Script::of(&[begin(2000), row_with("\"order\"", &format!("\"{}\"", "o".repeat(LIMIT))), commit(2000, 2040)]);
    fixture.relay.stream(&mut script, None);
    assert_eq!((fixture.noter.ids(), fixture.relay.flush_lsn()), (vec![], Lsn::new(2040)));
    assert_eq!(fixture.relay.handled_bad_rows, 1);
}
