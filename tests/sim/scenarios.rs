//! Single scenarios: nothing happens but what the test says, so that each shows one thing.

use crate::machines::Shared;
use crate::nature::{Bounds, Nature};
use crate::postgres::BEGIN;
use crate::process::{Outcome, Process};
use crate::run::{ended, run};
use crate::wal::Piece;
use crate::world::World;
use std::time::Duration;
use walrelay::lsn::Lsn;
use walrelay::relay::BadRowAction;

/// A world in which only the script acts, until it calms down.
fn world() -> Shared {
    Shared::new(World::new(1, Nature { steps: u64::MAX, ..Nature::peaceful() }))
}

/// Small pieces on the wire: a transaction takes many reads.
fn world_of_small_reads() -> Shared {
    let shared = world();
    shared.with(|world| world.nature.manner.pipe = 100);
    shared
}

fn row(key: &str) -> Piece {
    Piece::Row { route: "order", key: Some(key.to_owned()), bytes: 50 }
}

/// A transaction with a row for each key; where its commit record starts and ends.
fn commit(world: &mut World, keys: &[&str]) -> (Lsn, Lsn) {
    world.commit(keys.iter().map(|key| row(key)).collect())
}

/// Once `when` is true: `act`, once.
fn once(
    shared: &Shared,
    when: impl Fn(&World) -> bool + Send + 'static,
    act: impl FnOnce(&mut World) + Send + 'static,
) {
    let mut act = Some(act);
    shared.with(|world| {
        world.script = Some(Box::new(move |world| {
            if when(world)
                && let Some(act) = act.take()
            {
                act(world);
            }
        }));
    });
}

fn start(shared: &Shared) -> Process {
    Process::start(shared, &Bounds::new())
}

/// Connections until the process ends.
#[track_caller]
fn until_end(shared: &Shared, process: &mut Process) -> String {
    loop {
        let outcome = process.connection();
        if !matches!(outcome, Outcome::Lost) {
            let said = format!("{outcome:?}");
            ended(shared, process, outcome);
            return said;
        }
    }
}

/// Nothing goes wrong any more, and everything arrives.
fn to_the_end(shared: &Shared) {
    shared.with(|world| {
        world.script = None;
        world.broker.held.clear();
        world.calm_down();
    });
    run(shared, &Bounds::new());
}

fn times(shared: &Shared) -> Vec<u32> {
    shared.with(|world| world.truth.appended.clone())
}

fn confirmed(shared: &Shared) -> Lsn {
    shared.with(|world| world.postgres.slot.confirmed)
}

/// Rows that the relay's producers have taken, all together.
fn taken(world: &World) -> usize {
    world.broker.producers.iter().map(|producer| producer.taken.len()).sum()
}

#[test]
fn of_two_neighbouring_commits_the_second_comes_again_after_a_crash() {
    let shared = world();
    let end = shared.with(|world| {
        world.broker.partitions = 100;
        let (_, end) = commit(world, &["a"]);
        let (next, _) = commit(world, &["b"]);
        assert_eq!(end, next, "neighbours");
        world.broker.held.insert(1);
        end
    });
    once(&shared, move |world| world.postgres.slot.confirmed >= end, World::crash);
    assert_eq!(until_end(&shared, &mut start(&shared)), "Killed");
    assert_eq!(confirmed(&shared), end);
    assert_eq!(times(&shared), [1]);
    to_the_end(&shared);
    assert_eq!(times(&shared)[0], 1);
}

#[test]
fn a_relay_that_left_in_the_middle_goes_on_where_another_has_finished() {
    let shared = world_of_small_reads();
    shared.with(|world| commit(world, &["a", "b", "c", "d", "e", "f"]));
    once(&shared, |world| taken(world) == 3, World::cut);
    let mut first = start(&shared);
    assert!(matches!(first.connection(), Outcome::Lost));
    let half = shared.with(|world| taken(world));
    assert!((3..6).contains(&half) && confirmed(&shared) < shared.with(|world| world.postgres.wal.end));

    let end = shared.with(|world| world.postgres.wal.end);
    once(&shared, move |world| world.postgres.slot.confirmed == end, World::stop);
    assert_eq!(until_end(&shared, &mut start(&shared)), "Stopped");

    let (_, end) = shared.with(|world| commit(world, &["a", "b"]));
    once(&shared, move |world| world.postgres.slot.confirmed == end, World::stop);
    assert_eq!(until_end(&shared, &mut first), "Stopped");
    assert_eq!(confirmed(&shared), end);
    let repeats = shared.with(|world| world.truth.repeats);
    assert!(repeats <= half as u64, "only what the first had in hand");
    to_the_end(&shared);
}

#[test]
fn no_keepalive_confirms_what_is_in_flight() {
    let shared = world();
    shared.with(|world| {
        world.nature.manner.keepalive = 2;
        commit(world, &["a"]);
        world.broker.held.insert(0);
        world.script = Some(Box::new(|world| {
            world.postgres.wal.write(8);
            if world.now > Duration::from_secs(5) {
                world.crash();
            }
        }));
    });
    assert_eq!(until_end(&shared, &mut start(&shared)), "Killed");
    assert_eq!(confirmed(&shared), BEGIN);
    assert!(shared.with(|world| world.truth.confirmations) >= 4, "status updates went out all the time");
    to_the_end(&shared);
    assert_eq!(times(&shared)[0], 1);
    assert_eq!(confirmed(&shared), shared.with(|world| world.postgres.wal.end));
}

#[test]
fn an_idle_outbox_follows_the_keepalives() {
    let shared = world();
    shared.with(|world| {
        commit(world, &["a"]);
        world.postgres.wal.write(60_000_000);
    });
    to_the_end(&shared);
    assert_eq!(confirmed(&shared), shared.with(|world| world.postgres.wal.end));
}

#[test]
fn an_idle_hour_takes_one_connection() {
    let shared = world();
    shared.with(|world| {
        world.script = Some(Box::new(|world| {
            if world.now > Duration::from_hours(1) && world.calm_since.is_none() {
                assert_eq!(world.counts.connections, 1);
                commit(world, &["a"]);
                world.calm_down();
            }
        }));
    });
    assert_eq!(until_end(&shared, &mut start(&shared)), "Stopped");
    assert_eq!(times(&shared), [1]);
}

#[test]
fn a_server_that_shuts_down_gets_all_it_waits_for() {
    let shared = world();
    shared.with(|world| {
        commit(world, &["a", "b"]);
        world.postgres.wal.write(1000);
    });
    once(
        &shared,
        |world| taken(world) == 2,
        |world| world.postgres.sender.as_mut().expect("a connection").shutting_down = true,
    );
    let mut process = start(&shared);
    assert!(matches!(process.connection(), Outcome::Lost));
    assert!(shared.with(|world| world.now < Duration::from_secs(5) && world.postgres.is_done()));
    // With the server gone nothing is left to tell it.
    shared.with(|world| {
        world.postgres.down_until = Duration::MAX;
        world.stop();
    });
    assert_eq!(until_end(&shared, &mut process), "Stopped");
}

#[test]
fn a_confirmation_that_postgres_forgets_repeats_nothing() {
    let shared = world();
    let (_, end) = shared.with(|world| {
        commit(world, &["a", "b"]);
        commit(world, &["a"])
    });
    once(
        &shared,
        move |world| world.postgres.slot.confirmed == end,
        |world| {
            world.server_crash();
            assert_eq!(world.postgres.slot.confirmed, BEGIN);
            commit(world, &["b"]);
            world.calm_down();
        },
    );
    assert_eq!(until_end(&shared, &mut start(&shared)), "Stopped");
    assert_eq!(times(&shared), [1, 1, 1, 1]);
}

#[test]
fn reconnects_repeat_nothing() {
    let shared = world_of_small_reads();
    shared.with(|world| {
        for _ in 0..30 {
            commit(world, &["a", "b", "c", "d", "e"]);
        }
        world.nature.cut = 20;
        world.script = Some(Box::new(|world| {
            if world.counts.cuts >= 40 {
                world.calm_down();
            }
        }));
    });
    assert_eq!(until_end(&shared, &mut start(&shared)), "Stopped");
    assert_eq!(times(&shared), [1; 150]);
}

#[test]
fn a_stop_in_the_middle_of_a_transaction_finishes_it_and_begins_no_other() {
    let shared = world_of_small_reads();
    let (_, end) = shared.with(|world| {
        let keys: Vec<String> = (0..20).map(|key| format!("k{key}")).collect();
        let ends = commit(world, &keys.iter().map(String::as_str).collect::<Vec<_>>());
        commit(world, &["a"]);
        ends
    });
    once(&shared, |world| taken(world) == 3, World::stop);
    assert_eq!(until_end(&shared, &mut start(&shared)), "Stopped");
    assert_eq!(times(&shared), [1; 20]);
    assert_eq!(confirmed(&shared), end);
    to_the_end(&shared);
    assert_eq!(times(&shared), [1; 21]);
}

#[test]
fn a_stop_between_two_connections_waits_until_the_server_has_heard() {
    let shared = world();
    let (_, end) = shared.with(|world| {
        // The server reads nothing, so what is confirmed before the cut is lost.
        world.nature.inbox = 0;
        commit(world, &["a", "b"])
    });
    once(
        &shared,
        move |world| world.machines[0].told == end,
        |world| {
            world.cut();
            world.postgres.sender = None;
            world.postgres.down_until = world.now + Duration::from_secs(3);
            world.stop();
        },
    );
    assert_eq!(until_end(&shared, &mut start(&shared)), "Stopped");
    assert_eq!(confirmed(&shared), end);
    assert_eq!(times(&shared), [1, 1]);
}

#[test]
fn a_bad_row_is_named_with_all_before_it_delivered_and_nothing_behind_it_confirmed() {
    let shared = world();
    let end = shared.with(|world| {
        world.broker.partitions = 1;
        let (_, end) = commit(world, &["a", "b", "c"]);
        commit(world, &["d", "e", "f"]);
        world.broker.rules.refused.insert(4);
        for _ in 0..200 {
            commit(world, &["a", "b", "c"]);
        }
        end
    });
    let mut process = start(&shared);
    let outcome = loop {
        let outcome = process.connection();
        if !matches!(outcome, Outcome::Lost) {
            break outcome;
        }
    };
    let Outcome::BadRow(bad) = &outcome else { panic!("{outcome:?}") };
    assert_eq!((bad.row.id.as_deref(), bad.position.ordinal), (Some("4"), 1));
    assert_eq!((bad.confirmed, confirmed(&shared)), (end, end));
    assert_eq!(times(&shared), [1, 1, 1, 1], "nothing behind the row in its partition");
    assert_eq!(shared.with(|world| world.counts.restarts), 0, "the broker says which row it is");
    ended(&shared, &mut process, outcome);
    to_the_end(&shared);
    assert!(times(&shared).iter().all(|times| *times > 0), "its neighbours arrive once it is fixed");
}

#[test]
fn a_record_that_the_client_itself_refuses_is_named_without_a_search() {
    let shared = world();
    let (_, end) = shared.with(|world| {
        let ends = commit(world, &["a", "b"]);
        world.nature.client.as_mut().expect("settings").record = 10_000;
        let large = Piece::Row { route: "order", key: None, bytes: 10_000 };
        world.commit(vec![row("a"), large, row("b")]);
        ends
    });
    let mut process = start(&shared);
    let outcome = process.connection();
    let Outcome::BadRow(bad) = &outcome else { panic!("{outcome:?}") };
    assert_eq!((bad.row.id.as_deref(), bad.position.ordinal), (Some("3"), 1));
    assert_eq!((bad.confirmed, confirmed(&shared)), (end, end));
    assert_eq!(times(&shared), [1, 1, 1]);
}

#[test]
fn a_batch_that_is_too_large_as_a_whole_gets_through_in_smaller_ones() {
    let shared = Shared::new(World::new(1, Nature { steps: u64::MAX, exactly_once: true, ..Nature::peaceful() }));
    shared.with(|world| {
        world.broker.partitions = 1;
        world.broker.rules.limit = 10_000;
        commit(world, &["k"; 600]);
        world.script = Some(Box::new(|world| {
            if taken(world) > 0 && world.broker.down_until.is_zero() {
                // Meanwhile batches fill.
                world.broker.down_until = world.now + Duration::from_secs(2);
            } else if world.now > Duration::from_secs(5) && world.calm_since.is_none() {
                world.calm_down();
            }
        }));
    });
    assert_eq!(until_end(&shared, &mut start(&shared)), "Stopped");
    assert_eq!(shared.with(|world| world.counts.bad_rows), 0);
    assert!(shared.with(|world| world.counts.restarts) > 0, "a batch was refused");
    assert_eq!(shared.with(|world| world.truth.first_missing(&world.postgres.wal)), None);
}

#[test]
fn rows_of_a_new_timeline_arrive_though_their_positions_were_delivered_on_the_old_one() {
    let shared = world();
    let ((_, switch), (_, end)) = shared.with(|world| (commit(world, &["a"]), commit(world, &["a", "b"])));
    once(
        &shared,
        move |world| world.postgres.slot.confirmed == end,
        move |world| {
            // The standby lags by a transaction, and by the slot's position.
            world.postgres.promote(switch, &mut world.dice);
            world.truth.cut(switch);
            let (_, new_end) = commit(world, &["a", "c"]);
            assert!(new_end <= end, "where something else has been confirmed");
            commit(world, &["d"]);
            world.calm_down();
        },
    );
    assert_eq!(until_end(&shared, &mut start(&shared)), "Stopped");
    assert_eq!(times(&shared), [1, 1, 1, 1, 1, 1]);
}

#[test]
fn a_broker_that_is_away_holds_no_connection_for_long_and_loses_nothing() {
    let shared = world();
    shared.with(|world| {
        commit(world, &["a", "b"]);
        world.broker.down_until = Duration::from_mins(1);
        world.script = Some(Box::new(|world| {
            if world.now > Duration::from_secs(61) && world.calm_since.is_none() {
                assert_eq!(world.counts.connections, 2, "one before the outage was noticed, one after it");
                world.calm_down();
            }
        }));
    });
    assert_eq!(until_end(&shared, &mut start(&shared)), "Stopped");
    assert_eq!(times(&shared), [1, 1]);
}

#[test]
fn a_server_that_froze_is_given_up_and_left() {
    let shared = world();
    shared.with(|world| commit(world, &["a"]));
    once(
        &shared,
        |world| world.truth.has(0),
        |world| {
            world.postgres.sender.as_mut().expect("a connection").frozen = true;
            commit(world, &["b"]);
        },
    );
    let mut process = start(&shared);
    assert!(matches!(process.connection(), Outcome::Lost));
    let silent = shared.with(|world| world.now);
    assert!(silent >= Bounds::new().wal_sender_timeout.expect("a timeout"));
    shared.with(|world| {
        world.script = None;
        world.calm_down();
    });
    assert_eq!(until_end(&shared, &mut process), "Stopped");
    assert_eq!(times(&shared), [1, 1]);
}

#[test]
fn rows_of_a_topic_that_is_missing_for_long_become_dead_letters_and_those_after_it_follow() {
    let shared = world();
    let until = Duration::from_secs(45);
    shared.with(|world| {
        world.nature.bad_rows = BadRowAction::DeadLetter;
        // Topics may fail here, though the dice make no other one missing.
        world.nature.missing = u64::MAX;
        world.broker.missing.insert("outbox.event.order".to_owned(), until);
        let elsewhere = Piece::Row { route: "invoice", key: Some("a".to_owned()), bytes: 50 };
        world.commit(vec![row("a"), row("a"), elsewhere]);
        world.script = Some(Box::new(move |world| {
            if world.truth.has(2) && world.calm_since.is_none() {
                assert!(world.now > Duration::from_secs(30) && world.now < Duration::from_secs(40), "{:?}", world.now);
                commit(world, &["b"]);
                world.broker.missing.insert("outbox.event.order".to_owned(), Duration::ZERO);
                world.calm_down();
            }
        }));
    });
    assert_eq!(until_end(&shared, &mut start(&shared)), "Stopped");
    shared.with(|world| {
        assert_eq!(world.truth.dead_letters.iter().copied().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(world.truth.first_missing(&world.postgres.wal), None);
    });
}

/// A refused row in the middle of a large transaction, exactly once: how the process ends, how often each row is there, and the dead letters.
fn exactly_once(action: BadRowAction) -> (String, Vec<u32>, Vec<usize>) {
    let nature = Nature { steps: u64::MAX, exactly_once: true, bad_rows: action, ..Nature::peaceful() };
    let shared = Shared::new(World::new(1, nature));
    shared.with(|world| {
        commit(world, &["a", "b"]);
        world.broker.rules.refused.insert(302);
        world.truth.excused.extend((action == BadRowAction::Skip).then_some(302));
        commit(world, &["k"; 600]);
    });
    once(&shared, |world| world.truth.has(601), World::calm_down);
    let ended = until_end(&shared, &mut start(&shared));
    assert!(
        shared.with(|world| world.counts.restarts) <= 4,
        "one for the batch, one for the row, one for what is whole before it"
    );
    (ended, times(&shared), shared.with(|world| world.truth.dead_letters.iter().copied().collect()))
}

#[test]
fn exactly_once_a_refused_row_is_found_among_its_batch_and_its_action_taken_within_the_transaction() {
    let all_but = |row| (0..602).map(|number| u32::from(number != row)).collect::<Vec<_>>();
    assert_eq!(exactly_once(BadRowAction::Skip), ("Stopped".to_owned(), all_but(302), vec![]));
    assert_eq!(exactly_once(BadRowAction::DeadLetter), ("Stopped".to_owned(), all_but(302), vec![302]));
    let (ended, times, dead_letters) = exactly_once(BadRowAction::Stop);
    assert!(ended.starts_with("BadRow") && ended.contains("302"), "{ended}");
    assert_eq!((times, dead_letters), (vec![1, 1], vec![]), "what is before its transaction, and nothing of it");
}

#[test]
fn two_refused_rows_of_a_transaction_become_dead_letters_and_nothing_repeats() {
    let shared = world_of_small_reads();
    shared.with(|world| {
        world.nature.bad_rows = BadRowAction::DeadLetter;
        world.nature.client.as_mut().expect("settings").room = 2000;
        world.broker.partitions = 1;
        world.broker.rules.refused.extend([150, 180]);
        commit(world, &["k"; 200]);
    });
    once(&shared, |world| world.truth.has(199), World::calm_down);
    assert_eq!(until_end(&shared, &mut start(&shared)), "Stopped");
    let times = times(&shared);
    assert!(times.iter().enumerate().all(|(row, times)| *times == u32::from(row != 150 && row != 180)), "{times:?}");
    shared.with(|world| assert!(world.truth.dead_letters.iter().eq([&150, &180])));
}
