//! The decisions of [`Hold`] on what a scripted server answers.

use super::*;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct Server {
    asked: Arc<Mutex<Vec<Duration>>>,
    answers: Arc<Mutex<VecDeque<HolderAnswer>>>,
}

impl AskHolder for Server {
    fn ask(&mut self, now: Duration) {
        self.asked.lock().unwrap().push(now);
    }

    fn answer(&mut self) -> Option<HolderAnswer> {
        self.answers.lock().unwrap().pop_front()
    }
}

const AT: Lsn = Lsn::new(100);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn taken(patience: Option<Duration>) -> (Hold, Server) {
    let (mut hold, server) = (Hold::default(), Server::default());
    let asks = Box::new(server.clone());
    hold.slot_taken(HeldSlot {
        asks,
        walsender: 7,
        since: ms(1000),
        patience,
        released: None,
        sends_from: Duration::ZERO,
        log_end: None,
    });
    hold.confirmed = AT;
    (hold, server)
}

fn answer(server: &Server, asked: u64, holder: Holder) {
    server.answers.lock().unwrap().push_back(HolderAnswer { asked: ms(asked), holder, who: None });
}

/// Whether records are in flight, and for longer than a second.
fn in_flight(in_flight: bool, old: bool) -> Unconfirmed {
    Unconfirmed { any: in_flight, in_flight, old }
}

const ACKNOWLEDGED: Unconfirmed = Unconfirmed { any: true, in_flight: false, old: false };

#[test]
fn nothing_is_asked_while_records_are_answered_within_a_second() {
    let (mut hold, server) = taken(None);
    for now in (1000..60_000).step_by(100) {
        assert_eq!(hold.decide(ms(now), in_flight(now % 200 == 0, false)), HoldVerdict::Holds);
        hold.caught_up();
    }
    assert!(server.asked.lock().unwrap().is_empty());
    assert_eq!(hold.records_may_leave_until, ms(61_900));
}

#[test]
fn an_old_record_is_asked_for_four_times_a_second_and_leaves_only_while_the_answers_say_so() {
    let (mut hold, server) = taken(Some(ms(10_000)));
    for now in (1000..2000).step_by(50) {
        assert_eq!(hold.decide(ms(now), in_flight(true, true)), HoldVerdict::Holds);
    }
    assert_eq!(*server.asked.lock().unwrap(), [ms(1000), ms(1250), ms(1500), ms(1750)]);
    answer(&server, 1750, Holder::Walsender(7));
    assert_eq!(hold.decide(ms(2900), in_flight(true, true)), HoldVerdict::Holds);
    assert_eq!(hold.records_may_leave_until, ms(6750), "half of what the server waits for us, from the question on");
    assert_eq!(hold.decide(ms(6700), in_flight(true, true)), HoldVerdict::Holds);
    assert_eq!(hold.decide(ms(6750), in_flight(true, true)), HoldVerdict::Unproven);
}

#[test]
fn a_free_slot_is_as_good_as_ours_for_half_a_second_where_we_left_it() {
    let (mut hold, server) = taken(None);
    hold.decide(ms(1000), in_flight(true, false));
    hold.stream_ended(ms(1100));
    assert_eq!(hold.records_may_leave_until, ms(1600));
    assert_eq!(hold.decide(ms(1101), in_flight(true, false)), HoldVerdict::Holds);
    assert_eq!(*server.asked.lock().unwrap(), [ms(1101)]);
    answer(&server, 1400, Holder::Nobody(AT));
    assert_eq!(hold.decide(ms(1500), in_flight(true, false)), HoldVerdict::Holds);
    assert_eq!(hold.records_may_leave_until, ms(1900));
    answer(&server, 1750, Holder::Nobody(Lsn::new(101)));
    assert!(matches!(hold.decide(ms(1800), in_flight(true, false)), HoldVerdict::TakenOver(_)));
}

#[test]
fn what_was_in_flight_goes_on_under_a_slot_that_was_free_until_it_was_taken() {
    let again = |since: u64| {
        let (asks, patience) = (Box::new(Server::default()), None);
        HeldSlot {
            asks,
            walsender: 9,
            since: ms(since),
            patience,
            released: None,
            sends_from: Duration::ZERO,
            log_end: None,
        }
    };
    let (mut hold, server) = taken(None);
    hold.stream_ended(ms(1000));
    answer(&server, 1400, Holder::Nobody(AT));
    answer(&server, 1800, Holder::Walsender(9));
    let released = |at: u64| HeldSlot { released: Some(ms(at)), ..again(2000) };
    let (idle, parked, sends) = (SinkState::Idle, SinkState::Parked, SinkState::Sends);
    let mut held = |taken: HeldSlot, at: Lsn, sink: SinkState| hold.was_held_until(&taken, at, sink);
    let unknown =
        "another relay may have held the slot: nobody said whose it was for 0ns before this relay took it again";
    assert_eq!((held(again(1750), AT, sends), held(again(1900), AT, sends)), (Ok(()), Err(unknown.to_owned())));
    assert!(held(again(1900), AT, parked).is_err(), "the server does not say when the slot was released");
    assert!(held(released(1899), AT, parked).is_ok() && held(released(1899), AT, sends).is_err());
    assert!(held(again(1900), AT, idle).is_ok(), "nothing is in flight, and nobody was seen");
    assert!(held(again(1750), Lsn::new(101), idle).is_err(), "another relay has moved the slot");
    let said =
        "another relay may have held the slot: it was released 1ms after this relay last knew that it was its own";
    assert_eq!([idle, parked].map(|sink| held(released(1901), AT, sink)), [(); 2].map(|()| Err(said.to_owned())));
    hold.is_server_restarted = true;
    let mut held = |taken: HeldSlot, at: Lsn, sink: SinkState| hold.was_held_until(&taken, at, sink);
    assert!(held(released(1901), AT, idle).is_ok());
    assert!(held(released(1899), AT, parked).is_err(), "its word counts from its own start on");
    answer(&server, 1500, Holder::Walsender(8));
    assert_eq!(held(again(1750), AT, idle), Err("another relay holds the slot: process 8".to_owned()));
}

#[test]
fn what_is_acknowledged_and_not_confirmed_is_asked_for_and_given_up_once_another_relay_is_seen() {
    let (mut hold, server) = taken(None);
    hold.stream_ended(ms(1000));
    for now in (1000..60_000).step_by(1000) {
        assert_eq!(hold.decide(ms(now), ACKNOWLEDGED), HoldVerdict::Holds, "the server is away");
    }
    assert_eq!(server.asked.lock().unwrap().len(), 59);
    answer(&server, 60_000, Holder::Nobody(Lsn::new(101)));
    assert!(matches!(hold.decide(ms(60_000), ACKNOWLEDGED), HoldVerdict::TakenOver(_)));
}

#[test]
fn a_second_that_was_not_over_when_the_slot_was_lost_goes_on() {
    let (mut hold, server) = taken(None);
    let again = |sends_from: Duration| {
        let (asks, patience) = (Box::new(server.clone()), None);
        HeldSlot { asks, walsender: 9, since: ms(1500), patience, released: None, sends_from, log_end: None }
    };
    hold.slot_taken(again(ms(2000)));
    hold.slot_taken(again(Duration::ZERO));
    assert_eq!(hold.slot.map(|slot| slot.sends_from), Some(ms(2000)));
}

#[test]
fn who_has_taken_the_slot_sends_nothing_before_an_answer_says_that_it_is_still_held_half_a_second_later() {
    let (mut hold, server) = (Hold::default(), Server::default());
    let asks = Box::new(server.clone());
    let (sends_from, patience) = (ms(1800), None);
    hold.slot_taken(HeldSlot {
        asks,
        walsender: 7,
        since: ms(1000),
        patience,
        released: None,
        sends_from,
        log_end: None,
    });
    hold.confirmed = AT;
    for now in (1000..1900).step_by(100) {
        answer(&server, now, if now < 1300 { Holder::Walsender(7) } else { Holder::NotAccepting });
        hold.decide(ms(now), in_flight(false, false));
    }
    assert_eq!(*server.asked.lock().unwrap(), [ms(1000), ms(1300), ms(1500), ms(1800)], "also as soon as it counts");
    assert!(hold.waits_for_last_holder, "the slot may have been released since 1.2 s");
    answer(&server, 1499, Holder::Walsender(7));
    hold.decide(ms(1900), in_flight(false, false));
    assert!(hold.waits_for_last_holder);
    answer(&server, 1500, Holder::Walsender(7));
    hold.decide(ms(1950), in_flight(false, false));
    assert!(!hold.waits_for_last_holder);
}

#[test]
fn a_stream_whose_end_was_not_read_before_a_row_was_taken_needs_no_answer_the_next_time() {
    let (mut hold, server) = (Hold::default(), Server::default());
    hold.confirmed = AT;
    let take = |hold: &mut Hold, since: u64, sends_from: Duration| {
        let asks = Box::new(server.clone());
        hold.slot_taken(HeldSlot {
            asks,
            walsender: 7,
            since: ms(since),
            patience: None,
            released: None,
            sends_from,
            log_end: None,
        });
    };
    let waits = |hold: &mut Hold, since: u64| {
        take(hold, since, ms(since + 500));
        hold.decide(ms(since + 250), in_flight(false, false));
        hold.decide(ms(since + 500), in_flight(false, false));
        let waits = hold.waits_for_last_holder;
        hold.stream_ended(ms(since + 500));
        waits
    };
    let unread_end = |hold: &mut Hold, since: u64| {
        take(hold, since, ms(since + 500));
        answer(&server, since, Holder::Nobody(AT));
        answer(&server, since + 250, Holder::Nobody(AT));
        assert_eq!(hold.decide(ms(since + 300), in_flight(false, false)), HoldVerdict::ServerStops);
        hold.stream_ended(ms(since + 300));
    };
    unread_end(&mut hold, 1000);
    // The pause before the next attempt, however long it is.
    hold.decide(ms(1600), in_flight(false, false));
    assert!(!waits(&mut hold, 3000), "the relay reads why the server ends the stream");
    assert!(waits(&mut hold, 5000));
    assert!(waits(&mut hold, 7000), "a connection that broke is no such end");
    unread_end(&mut hold, 9000);
    take(&mut hold, 11_000, Duration::ZERO);
    hold.stream_ended(ms(11_500));
    assert!(waits(&mut hold, 13_000), "that end was not the last one");
}

#[test]
fn a_server_without_a_connection_to_spare_holds_up_a_start_for_less_than_a_second_more() {
    let (mut hold, server) = (Hold::default(), Server::default());
    let (asks, sends_from) = (Box::new(server), ms(2000));
    hold.slot_taken(HeldSlot {
        asks,
        walsender: 7,
        since: ms(1000),
        patience: None,
        released: None,
        sends_from,
        log_end: None,
    });
    let waits = (1000..3000).step_by(50).map(|now| {
        hold.decide(ms(now), in_flight(false, false));
        hold.waits_for_last_holder
    });
    assert_eq!(waits.filter(|waits| *waits).count(), 25, "until 2.25 s");
}

#[test]
fn a_relay_whose_rows_wait_for_the_destination_asks() {
    let (mut hold, server) = taken(None);
    for now in (1000..1500).step_by(100) {
        assert_eq!(hold.decide(ms(now), in_flight(true, false)), HoldVerdict::Holds);
    }
    assert_eq!((hold.records_may_leave_until, server.asked.lock().unwrap().len()), (ms(3400), 0));
    assert_eq!(hold.decide(ms(1500), in_flight(true, false)), HoldVerdict::Holds);
    assert_eq!(
        (hold.records_may_leave_until, server.asked.lock().unwrap().len()),
        (ms(3400), 1),
        "turns prove nothing"
    );
    answer(&server, 1500, Holder::Walsender(8));
    assert!(matches!(hold.decide(ms(1600), in_flight(true, false)), HoldVerdict::TakenOver(_)));
}

#[test]
fn after_a_standstill_turns_prove_nothing_until_an_answer_says_that_it_is_ours() {
    let (mut hold, server) = taken(None);
    hold.decide(ms(1000), in_flight(true, false));
    assert_eq!(hold.decide(ms(1600), in_flight(true, false)), HoldVerdict::Holds);
    assert_eq!((hold.records_may_leave_until, server.asked.lock().unwrap().len()), (ms(3000), 1));
    answer(&server, 1600, Holder::Walsender(7));
    hold.decide(ms(1700), in_flight(true, false));
    assert!(
        hold.records_may_leave_until > ms(3000)
            && matches!(&hold.stream, StreamPhase::Open(open) if open.open_question.is_none())
    );
    hold.decide(ms(2300), in_flight(true, false));
    hold.stream_ended(ms(2310));
    assert_eq!(hold.records_may_leave_until, ms(2200), "half a second from the turn before on");
}

#[test]
fn a_stream_whose_walsender_is_gone_is_let_go() {
    let (mut hold, server) = taken(None);
    answer(&server, 1100, Holder::Nobody(AT));
    assert_eq!(hold.decide(ms(1200), in_flight(true, false)), HoldVerdict::Holds, "the socket may say why");
    assert_eq!(hold.records_may_leave_until, ms(1600));
    answer(&server, 1350, Holder::Nobody(AT));
    assert_eq!(hold.decide(ms(1400), in_flight(true, false)), HoldVerdict::ServerStops);
    assert_eq!(hold.records_may_leave_until, ms(1600));
}

#[test]
fn another_holder_and_another_server_close_and_say_who_it_is() {
    let (mut hold, server) = taken(None);
    let who = Some("application_name walrelay/walrelay, from 10.0.0.3".to_owned());
    server.answers.lock().unwrap().push_back(HolderAnswer { asked: ms(1100), holder: Holder::Walsender(8), who });
    let said = "another relay holds the slot: process 8 (application_name walrelay/walrelay, from 10.0.0.3)";
    assert_eq!(hold.decide(ms(1200), in_flight(true, true)), HoldVerdict::TakenOver(said.to_owned()));
    answer(&server, 1200, Holder::Nobody(Lsn::new(101)));
    let said = "another relay has moved the slot to 0/65; this one left it at 0/64";
    assert_eq!(hold.decide(ms(1300), in_flight(true, true)), HoldVerdict::TakenOver(said.to_owned()));
    answer(&server, 1300, Holder::Unknown);
    assert!(matches!(hold.decide(ms(1400), in_flight(true, true)), HoldVerdict::OtherServer(_)));
}

#[test]
fn silence_ends_nothing_and_the_answer_decides_however_late_it_comes() {
    let (mut hold, server) = taken(None);
    for now in (1000..3000).step_by(100) {
        assert_eq!(hold.decide(ms(now), in_flight(true, true)), HoldVerdict::Holds);
    }
    for now in (3000..600_000).step_by(100) {
        assert_eq!(hold.decide(ms(now), in_flight(true, true)), HoldVerdict::Unproven, "{now}");
    }
    assert_eq!(hold.unanswered_since, Some(ms(1000)));
    assert!(server.asked.lock().unwrap().len() > 1900, "it goes on asking");
    // Turns prove nothing any more, not even once nothing is in flight.
    assert_eq!(hold.decide(ms(600_000), in_flight(false, false)), HoldVerdict::Holds);
    assert!(!hold.is_proven(ms(600_000)));
    answer(&server, 600_000, Holder::Walsender(7));
    assert_eq!(hold.decide(ms(600_100), in_flight(true, true)), HoldVerdict::Holds);
    assert!(hold.is_proven(ms(600_100)) && hold.unanswered_since != Some(ms(1000)));
}

#[test]
fn a_slot_that_is_free_proves_nothing_once_another_relay_may_have_come_and_gone() {
    let (mut hold, server) = taken(None);
    hold.stream_ended(ms(1000));
    answer(&server, 1499, Holder::Nobody(AT));
    assert_eq!(hold.decide(ms(1500), in_flight(true, false)), HoldVerdict::Holds);
    assert_eq!(hold.records_may_leave_until, ms(1999));
    answer(&server, 1999, Holder::Nobody(AT));
    assert_eq!(hold.decide(ms(2000), in_flight(true, false)), HoldVerdict::Unproven);
    answer(&server, 2200, Holder::Walsender(7));
    assert_eq!(
        hold.decide(ms(2250), in_flight(true, false)),
        HoldVerdict::Holds,
        "its walsender was there all the time"
    );
    assert_eq!(hold.records_may_leave_until, ms(2700));
}

#[test]
fn a_server_that_accepts_nobody_beside_our_stream_is_let_go() {
    let (mut hold, server) = taken(None);
    answer(&server, 1100, Holder::NotAccepting);
    assert_eq!(hold.decide(ms(1200), in_flight(true, true)), HoldVerdict::ServerStops);
    hold.stream_ended(ms(1200));
    answer(&server, 1300, Holder::NotAccepting);
    assert_eq!(hold.decide(ms(1400), in_flight(true, true)), HoldVerdict::Holds);
    assert_eq!(hold.decide(ms(1700), in_flight(true, true)), HoldVerdict::Unproven);
}

#[test]
fn a_process_that_stood_still_asks_before_it_takes_a_row() {
    let (mut hold, server) = taken(None);
    hold.decide(ms(1000), in_flight(false, false));
    assert_eq!(hold.decide(ms(90_000), in_flight(false, false)), HoldVerdict::Holds);
    assert!(hold.records_may_leave_until < ms(90_000), "no turn proves anything by itself now");
    assert_eq!(*server.asked.lock().unwrap(), [ms(90_000)]);
    answer(&server, 90_000, Holder::Walsender(7));
    hold.decide(ms(90_010), in_flight(false, false));
    assert!(hold.records_may_leave_until > ms(90_010));
    assert_eq!(hold.decide(ms(200_000), in_flight(false, false)), HoldVerdict::Holds);
    assert_eq!(hold.decide(ms(205_000), in_flight(false, false)), HoldVerdict::Holds, "nobody answers");
    assert!(!hold.is_proven(ms(205_000)), "no row is taken");
}
