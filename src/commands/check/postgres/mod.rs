//! The server, the publication and the slot: what prevents a start, and what fails later.
//!
//! In: [`Facts`] and the settings. Out: findings. Pure. Where `run` has a word for it, it is `run`'s.

use super::asking::Asking;
use super::facts::{Facts, ServerFacts, SlotFacts};
use super::service::replication_fix;
use super::tables::publication_change;
use crate::check_finding::{Finding, Fix, Side};
use crate::commands::output::{self, bytes, duration, session};
use crate::commands::run;
use crate::outbox::OnUpdate;
use crate::pg::catalog;
use crate::pg::pooler::Pooler;
use crate::pg::{self, identifier, literal, marker, sqlstate};
use crate::remedy::{Command, Remedy};
use crate::sink::destination::Delivery;
use crate::supervise::coverage::published_names;
use crate::supervise::{REPUBLISH_PAGE, RunError, agrees, chain, check_slot};
use std::time::Duration;

/// The subject of the findings here.
const SIDE: Side = Side::Postgres;

/// The oldest version that is tested.
const OLDEST: u32 = 140_000;

/// The first whose slots standbys can keep.
const FAILOVER_SLOTS: u32 = 170_000;

/// From when on an open transaction is worth a word.
const LONG: Duration = Duration::from_mins(1);

/// Clocks further apart than this make latencies meaningless, in milliseconds.
const CLOCK_MS: i64 = 1_000;

/// A slot further behind than this is worth a word, in bytes.
const FAR_BEHIND: u64 = 1 << 30;

/// The limit of the WAL that slots keep, where none keeps more than a quarter of it, in MiB.
const WAL_LIMIT_MIB: u64 = 50 * 1024;

/// The output plugin of the relay's slot.
const PLUGIN: &str = "pgoutput";

/// Decoding with less than this much memory writes ordinary transactions to disk, in kB.
const LITTLE_MEMORY_KB: i64 = 16 * 1024;

/// The finding about a connection that failed.
pub(super) fn unreachable(host: &str, error: pg::Error) -> Finding {
    if let pg::Error::Locked { holder, .. } = &error {
        let found = SIDE.fail("lock", error.to_string()).why(
            "until the lock is gone, Postgres does not list the publication's tables: a relay that starts waits for it",
        );
        return match (holder.pid, holder.way_to_end()) {
            (Some(_), Some(sql)) => found.bounded(sql),
            (_, Some(words)) => found.words(words),
            (_, None) => found.words("wait for the transaction that holds the lock"),
        };
    }
    let found = SIDE.fail("connection", chain(&error));
    if let Some(pooler) = Pooler::recognise(host, &error) {
        return found
            .why(format!("this is {}, and a slot's stream does not go through it", pooler.name))
            .words(pooler.way_around);
    }
    let hint = RunError::from(error).remedy;
    found.why("nothing else could be checked here").bounded(
        hint.unwrap_or_else(|| "is it running, and is the address right? --source, or PGHOST and PGPORT".into()),
    )
}

/// Everything about the server, the publication and the slot.
pub(super) fn findings(config: &run::RunRequest, facts: &Facts) -> Vec<Finding> {
    let server = &facts.server;
    let mut found = vec![version(server), service(server)];
    found.extend(encryption(facts));
    found.extend(recovery(server));
    found.push(wal_level(server));
    found.extend(output_plugin(server));
    found.push(replication(config, facts));
    found.extend(slot_holder(config, facts));
    found.extend(slots(facts));
    found.extend(walsenders(facts));
    found.extend(publication(config, facts));
    found.extend(on_update(config, facts));
    found.extend(slot(config, facts));
    found.push(wal_keep(facts));
    found.push(sender_timeout(server));
    found.push(decoding_memory(facts));
    found.extend(idle_timeout(server));
    found.extend(transactions(facts));
    found.push(synchronous_commit(server));
    found.extend(synchronous_standby(config, server));
    found.push(clock(server));
    found
}

/// As `run` says it, with its fix.
fn as_run(check: &'static str, facts: &Facts, error: RunError) -> Finding {
    let error = facts.around.advised(error);
    Finding { fix: error.remedy.clone().map(Fix::bounded), ..SIDE.fail(check, error.to_string()) }
}

fn version(server: &ServerFacts) -> Finding {
    let text = server.row.as_ref().map_or("unknown", |row| row.version_text.as_str());
    SIDE.fail("version", format!("Postgres {text}"))
        .why("walrelay is tested with 14 to 19; older ones lack what it asks for")
        .words("upgrade to a version that is maintained")
        .ok_if(server.version() >= OLDEST)
}

fn service(server: &ServerFacts) -> Finding {
    SIDE.ok("service", server.service.name())
}

/// Beyond this machine, others may read along.
fn encryption(facts: &Facts) -> Option<Finding> {
    facts.unencrypted.as_ref().map(|reason| {
        SIDE.warn("encryption", format!("the connection to Postgres at {} is not encrypted: {reason}", facts.host))
            .why("others on the network path can read the rows, and somebody between may change them")
            .words("sslmode=verify-full in --source, with sslrootcert=FILE or sslrootcert=system, once the server has TLS (ssl = on)")
    })
}

fn recovery(server: &ServerFacts) -> Option<Finding> {
    server.in_recovery.then(|| {
        SIDE.fail("standby", "this server is a standby")
            .why("slots and publications are created on the primary, and rows are written there")
            .words("set --source to the primary's address, or to all hosts with target_session_attrs=read-write")
    })
}

fn wal_level(server: &ServerFacts) -> Finding {
    let setting = |name: &str| server.settings.get(name).cloned();
    let found = setting("wal_level").unwrap_or_default();
    if catalog::decodes(server.version(), &found) {
        let effective = setting("effective_wal_level").filter(|effective| *effective != found);
        let both = effective.map_or_else(|| found.clone(), |level| format!("{found}, effective_wal_level is {level}"));
        let finding = SIDE.ok("wal_level", both);
        return if found == "logical" {
            finding
        } else {
            finding.why("the first logical slot raises effective_wal_level to logical, without a restart")
        };
    }
    let error = RunError::wal_level(&found);
    SIDE.fail("wal_level", error.to_string())
        .why("without it, the WAL lacks what a slot decodes")
        .bounded(server.service.wal_level())
}

/// Whether the server lets slots use `pgoutput`. Versions without the setting let them use any output plugin.
fn output_plugin(server: &ServerFacts) -> Option<Finding> {
    let trusted = server.settings.get("output_plugin_libraries")?;
    let has = trusted.split(',').map(|name| name.trim().trim_matches('"')).any(|name| name == PLUGIN);
    (!has).then(|| {
        SIDE.fail("output_plugin", format!("output_plugin_libraries = '{trusted}' does not have {PLUGIN}"))
            .why("the server refuses to create or read a slot: it says that the library may not be used as an output plugin")
            .words(format!(
                "add {PLUGIN} to what output_plugin_libraries has, and reload the server's configuration"
            ))
    })
}

fn replication(config: &run::RunRequest, facts: &Facts) -> Finding {
    let Err(error) = &facts.replication else {
        return SIDE.ok("replication", format!("role {} may replicate", config.source.user));
    };
    let found = SIDE.fail("replication", chain(error));
    let why = "the slot's stream comes over a replication connection";
    match Pooler::recognise(&facts.host, error) {
        Some(pooler) => found.why(format!("{why}, and this is {}", pooler.name)).words(pooler.way_around),
        None => found.why(why).bounded(replication_fix(
            facts.server.service,
            &config.source.user,
            &config.source.dbname,
            error,
        )),
    }
}

/// Whether the relay could ask who holds its slot. With exactly once it does not: the destination fences another relay.
fn slot_holder(config: &run::RunRequest, facts: &Facts) -> Option<Finding> {
    let Ok((_, Asking { beside_stream, ordinary })) = &facts.replication else { return None };
    if config.delivery != Delivery::AtLeastOnce {
        return None;
    }
    let refused = |way: &str, error| format!("{way} is refused: {}", chain(error));
    let beside = |error| refused("a replication connection beside the relay's stream", error);
    let second = |error| refused("one more ordinary connection", error);
    let warn = |text: String| SIDE.warn("slot_holder", text);
    let waits =
        "until its records are acknowledged, a relay sends nothing whose slot another may hold, and asks who does";
    Some(match (beside_stream, ordinary) {
        (Ok(()), Ok(())) => SIDE.ok("slot_holder", "who holds the slot can be asked beside the stream"),
        (Err(error), Ok(())) => warn(beside(error))
            .why(format!("{waits}: over an ordinary connection, once a second, each with a log-in"))
            .bounded(connection_fix(config, facts, "max_wal_senders", error)),
        (Ok(()), Err(error)) => warn(second(error))
            .why("the relay could not ask once max_wal_senders are in use, nor note a skipped row")
            .bounded(connection_fix(config, facts, "max_connections", error)),
        (Err(error), Err(other)) => warn(format!("{}; {}", beside(error), second(other)))
            .why(format!("{waits}: it could not, and would wait"))
            .bounded(connection_fix(config, facts, "max_wal_senders", error)),
    })
}

/// What lets one more connection in. `limit`: the setting that bounds how many there may be.
fn connection_fix(config: &run::RunRequest, facts: &Facts, limit: &str, error: &pg::Error) -> String {
    let (service, user) = (facts.server.service, &config.source.user);
    match (error.code(), facts.server.number(limit)) {
        (Some(sqlstate::TOO_MANY_CONNECTIONS), Some(most)) => service.parameter(limit, &(most + 10).to_string(), true),
        (_, _) => replication_fix(service, user, &config.source.dbname, error),
    }
}

fn slots(facts: &Facts) -> Option<Finding> {
    let (used, most) = (facts.server.slots, facts.server.number("max_replication_slots")?);
    let free = most.saturating_sub(i64::try_from(used).unwrap_or(i64::MAX));
    let text = format!("{used} of max_replication_slots = {most} in use");
    let more = facts.server.service.parameter("max_replication_slots", &(most + 10).to_string(), true);
    let found = SIDE.fail("free_slots", text).why("the slot still has to be created, and none is free").bounded(more);
    Some(found.ok_if(facts.slot.is_some() || free > 0))
}

fn walsenders(facts: &Facts) -> Option<Finding> {
    let (used, most) = (facts.server.walsenders, facts.server.number("max_wal_senders")?);
    let text = format!("{used} of max_wal_senders = {most} in use");
    let more = facts.server.service.parameter("max_wal_senders", &(most + 10).to_string(), true);
    let found = SIDE.warn("free_walsenders", text).bounded(more);
    let found = found.why("none is free for a standby relay, a dry run or a physical standby");
    Some(found.ok_if(i64::try_from(used).unwrap_or(i64::MAX) < most))
}

fn publication(config: &run::RunRequest, facts: &Facts) -> Vec<Finding> {
    let name = &config.publication;
    let refused = |error| as_run("publication", facts, error);
    let Some(found) = &facts.publication else {
        return vec![refused(RunError::no_publication(name, &config.source.dbname))];
    };
    if !found.row.pubinsert {
        return vec![refused(RunError::no_inserts(name))];
    }
    if !facts.refused.is_empty() {
        return Vec::new();
    }
    if facts.tables.is_empty() && facts.trees.is_empty() && config.mapping.message_prefixes.is_empty() {
        return vec![refused(RunError::no_tables(name))];
    }
    let mut published: Vec<String> = facts.tables.iter().map(super::facts::TableFacts::name).collect();
    if published.is_empty() {
        published = published_names(&facts.trees).iter().map(ToString::to_string).collect();
    }
    vec![SIDE.ok("publication", format!("{name}: {}", published.join(", ")))]
}

/// Why a start would end because of the wanted tables.
pub(super) fn coverage(facts: &mut Facts) -> Vec<Finding> {
    let refused = std::mem::take(&mut facts.refused);
    refused.into_iter().map(|error| as_run("publication", facts, error)).collect()
}

fn on_update(config: &run::RunRequest, facts: &Facts) -> Option<Finding> {
    let publication = facts.publication.as_ref()?;
    let name = identifier(&config.publication);
    let changing = |sql| publication_change(config, &facts.tables, sql);
    match (config.mapping.on_update, publication.row.pubupdate) {
        (OnUpdate::Stop, false) => Some(
            SIDE.warn("updates", "--on-update is stop, and the publication carries no updates")
                .why("an updated row will never stop the relay: none arrives")
                .bounded(changing(format!("ALTER PUBLICATION {name} SET (publish = 'insert, update');"))),
        ),
        (OnUpdate::Warn | OnUpdate::Skip, true) => Some(
            SIDE.ok("updates", "the publication carries updates, which publish nothing")
                .why("each is decoded and sent for nothing, as polling workers' status columns make them")
                .bounded(changing(format!("ALTER PUBLICATION {name} SET (publish = 'insert');"))),
        ),
        (OnUpdate::Stop, true) | (OnUpdate::Warn | OnUpdate::Skip, false) => None,
    }
}

fn slot(config: &run::RunRequest, facts: &Facts) -> Vec<Finding> {
    let name = &config.slot;
    let refused = |error| vec![as_run("slot", facts, error)];
    if marker::is_creating(facts.comment(), name) {
        return refused(RunError::setup_unfinished(name, &config.publication));
    }
    let Some(found) = &facts.slot else {
        return refused(RunError::no_slot(name, marker::is_set(facts.comment(), name)));
    };
    let agreement = check_slot(name, &config.source.dbname, &found.slot).and_then(|_| {
        let now = found.sighting.as_ref();
        now.map_or(Ok(()), |now| agrees(&config.publication, name, facts.comment(), now))
    });
    if let Err(error) = agreement {
        return refused(error);
    }
    let mut findings = vec![reader(name, found), behind(config, facts, found)];
    findings.extend(failover(name, facts, found));
    findings.extend(found.slot.row.slotsync_skip_reason.as_ref().map(|reason| {
        SIDE.warn("slot_sync", format!("this standby's last copy of the slot was left out: {reason}"))
            .why("after a promotion the slot would be older than the primary's, or not there: rows would repeat, or be in no slot")
            .bounded("SELECT slot_name, slotsync_skip_count, slotsync_last_skip FROM pg_stat_replication_slots; on the standby, until the count stands still")
    }));
    findings
}

fn reader(name: &str, found: &SlotFacts) -> Finding {
    let confirmed = found.slot.confirmed_flush_lsn.map_or_else(String::new, |lsn| format!(", confirmed {lsn}"));
    match &found.reader {
        Some(reader) => SIDE
            .ok("slot", format!("{name}{confirmed}, read by {}", output::reader(reader)))
            .why("a relay that is started now waits until that one has ended"),
        None if found.slot.row.active => SIDE.ok("slot", format!("{name}{confirmed}, in use")),
        None => SIDE.ok("slot", format!("{name}{confirmed}, read by nobody now")),
    }
}

fn behind(config: &run::RunRequest, facts: &Facts, found: &SlotFacts) -> Finding {
    let row = &found.slot.row;
    let (lag, kept) = (found.slot.lag_bytes.unwrap_or_default(), found.slot.retained_wal_bytes.unwrap_or_default());
    let status = row.wal_status.as_deref().unwrap_or("unknown");
    let text = format!("{} behind the server, {} of WAL kept (wal_status {status})", bytes(lag), bytes(kept));
    let most = facts.server.slot_wal_limit_mib().map(|mib| mib << 20);
    let run = || Remedy::from(Command::new("run"));
    if status == "unreserved" {
        return SIDE
            .fail("slot_wal", text)
            .why("the next checkpoint may remove WAL that it needs: then its unpublished rows are lost")
            .bounded(run().and(format!(", at once; and more room: {}", room(facts))));
    }
    if most.is_some_and(|most| most > 0 && kept >= most / 5 * 4) {
        return SIDE
            .warn("slot_wal", text)
            .why("above max_slot_wal_keep_size the slot is lost")
            .bounded(run().and(format!("; and more room: {}", room(facts))));
    }
    if lag < FAR_BEHIND {
        return SIDE.ok("slot_wal", text);
    }
    let fix = if row.active {
        Command::new("status").flag("--watch").into()
    } else {
        run().and(", or if nobody needs it any more: ").and(Command::new("teardown").set("--slot", &config.slot))
    };
    SIDE.warn("slot_wal", text).why("rows wait to be published, and the server's disk holds them all").bounded(fix)
}

/// Twice as much as the limit is now, or something that is not nothing; and at least four times what a slot keeps.
fn room(facts: &Facts) -> String {
    let now = facts.server.slot_wal_limit_mib().unwrap_or(0);
    let kept = most_kept(facts).unwrap_or(0);
    facts.server.service.wal_limit(four_times_mib(kept).max(now.max(8 * 1024) * 2))
}

/// The most WAL that a slot keeps, in bytes. `None`: not known.
fn most_kept(facts: &Facts) -> Option<u64> {
    let own = facts.slot.as_ref().and_then(|slot| slot.slot.retained_wal_bytes).unwrap_or(0);
    Some(facts.server.most_kept_bytes?.max(own))
}

/// Four times as much, in MiB, rounded up to whole GiB.
const fn four_times_mib(kept_bytes: u64) -> u64 {
    kept_bytes.saturating_mul(4).div_ceil(1 << 30) * 1024
}

fn failover(name: &str, facts: &Facts, found: &SlotFacts) -> Option<Finding> {
    if facts.server.standbys == 0 {
        return None;
    }
    if found.slot.row.failover {
        return Some(SIDE.ok("failover", "the slot is kept on standbys"));
    }
    let text = format!("{} standbys are connected, and the slot is not kept on them", facts.server.standbys);
    let found = SIDE.warn("failover", text).why("after a promotion there is no slot, and rows in between are in none");
    Some(if facts.server.version() < FAILOVER_SLOTS {
        found.words(
            Remedy::from("Postgres 17 or later keeps slots; until then, after a promotion: ")
                .and(Command::new("setup").flag("--apply").flag("--after-loss"))
                .and(format!(", then the SQL statement in {REPUBLISH_PAGE}")),
        )
    } else {
        found.bounded(format!(
            "with the relay stopped, over a replication connection (psql 'replication=database …'): ALTER_REPLICATION_SLOT {} (FAILOVER true);",
            identifier(name)
        ))
    })
}

fn wal_keep(facts: &Facts) -> Finding {
    match facts.server.slot_wal_limit_mib() {
        None => SIDE
            .warn("slot_wal_limit", "max_slot_wal_keep_size is unlimited")
            .why("while the relay or the destination is unavailable, WAL fills the server's disk")
            .with_fix(new_wal_limit(facts)),
        Some(mib) => SIDE
            .ok("slot_wal_limit", format!("max_slot_wal_keep_size is {}", bytes(mib << 20)))
            .why("beyond that the slot is lost: alert on walrelay_slot_retained_wal_bytes"),
    }
}

/// A limit loses at once each slot that keeps more than that.
fn new_wal_limit(facts: &Facts) -> Fix {
    let service = facts.server.service;
    let Some(kept) = most_kept(facts) else {
        return Fix::words("look first how much WAL each slot keeps; a limit below that loses the slot");
    };
    match four_times_mib(kept) {
        0..=WAL_LIMIT_MIB => Fix::bounded(service.wal_limit(WAL_LIMIT_MIB)),
        more => Fix::bounded(
            Remedy::from(format!("a slot keeps {}: first run the relay (", bytes(kept)))
                .and(Command::new("run"))
                .and("), or whatever else reads that slot, and check again; or, if the disk has the room: ")
                .and(service.wal_limit(more)),
        ),
    }
}

fn sender_timeout(server: &ServerFacts) -> Finding {
    let fix = || server.service.quantity("wal_sender_timeout", 60_000, "60s");
    match server.number("wal_sender_timeout") {
        Some(0) => SIDE
            .warn("sender_timeout", "wal_sender_timeout is off")
            .why("a relay that vanished keeps the slot until TCP notices: a standby relay waits that long")
            .bounded(fix()),
        Some(ms @ 1..5_000) => SIDE
            .warn("sender_timeout", format!("wal_sender_timeout is {ms} ms"))
            .why("a pause of the machine or the network is taken for the relay's end")
            .bounded(fix()),
        Some(ms) => SIDE.ok("sender_timeout", format!("wal_sender_timeout is {} s", ms / 1000)),
        None => SIDE.ok("sender_timeout", "wal_sender_timeout cannot be seen"),
    }
}

fn decoding_memory(facts: &Facts) -> Finding {
    let kib = facts.server.number("logical_decoding_work_mem").unwrap_or(64 * 1024);
    let size = bytes(u64::try_from(kib).unwrap_or_default() << 10);
    let spilled = facts.slot.as_ref().map_or(0, |slot| slot.spilled_bytes);
    let text = match spilled {
        0 => format!("logical_decoding_work_mem is {size}"),
        spilled => {
            format!("logical_decoding_work_mem is {size}; {} were written to disk for this slot", bytes(spilled))
        }
    };
    let found =
        if kib < LITTLE_MEMORY_KB { SIDE.warn("decoding_memory", text) } else { SIDE.ok("decoding_memory", text) };
    if kib < LITTLE_MEMORY_KB || spilled > 0 {
        return found
            .why("a transaction that does not fit is written to the server's disk and read again before it is sent")
            .bounded(facts.server.service.quantity("logical_decoding_work_mem", 256 * 1024, "256MB"));
    }
    found
}

fn idle_timeout(server: &ServerFacts) -> Option<Finding> {
    let seconds = server.number("idle_replication_slot_timeout")?;
    Some(match u64::try_from(seconds) {
        Ok(seconds @ 1..) => {
            let time = duration(Duration::from_secs(seconds));
            SIDE.warn("idle_timeout", format!("idle_replication_slot_timeout is {time}"))
                .why("a relay that is unavailable for longer loses its slot, and rows with it")
                .bounded(server.service.parameter("idle_replication_slot_timeout", "0", false))
        }
        Ok(0) | Err(_) => SIDE.ok("idle_timeout", "idle_replication_slot_timeout is off"),
    })
}

fn transactions(facts: &Facts) -> Vec<Finding> {
    let why = "WAL is kept from the beginning of the oldest open transaction, and a slot can be created only once it has ended";
    let open = facts.holders.iter().filter(|holder| holder.transaction_age.is_some_and(|age| age >= LONG));
    let open = open.map(|holder| {
        SIDE.warn("transactions", session(holder))
            .why(why)
            .bounded(format!("SELECT pg_terminate_backend({});", holder.pid))
    });
    let prepared = facts.prepared.iter().filter(|holder| holder.age >= LONG).map(|holder| {
        let gid = literal(&holder.gid);
        let text = format!(
            "prepared transaction {gid} of {}, {} ago, in database {}",
            holder.owner,
            duration(holder.age),
            holder.database
        );
        SIDE.warn("transactions", text)
            .why(why)
            .words("its transaction manager, or the application that prepared it, decides whether it is committed or rolled back")
    });
    let mut found: Vec<Finding> = open.chain(prepared).collect();
    if found.is_empty() {
        found.push(SIDE.ok("transactions", "none that has written is older than a minute"));
    }
    found
}

fn synchronous_commit(server: &ServerFacts) -> Finding {
    let why = "rows of such commits are sent only when the WAL writer has flushed them: up to three times wal_writer_delay (200 ms), 112 ms in the median";
    let off = server.settings.get("synchronous_commit").is_some_and(|value| value == "off");
    if let Some(scope) = server.asynchronous.first() {
        let (whom, alter) = match (&scope.role, &scope.database) {
            (Some(role), None) => (format!("role {role}"), format!("ALTER ROLE {}", identifier(role))),
            (Some(role), Some(database)) => (
                format!("role {role} in database {database}"),
                format!("ALTER ROLE {} IN DATABASE {}", identifier(role), identifier(database)),
            ),
            (None, Some(database)) => {
                (format!("database {database}"), format!("ALTER DATABASE {}", identifier(database)))
            }
            (None, None) => ("every role".to_owned(), "ALTER ROLE ALL".to_owned()),
        };
        return SIDE
            .warn("sync_commit", format!("synchronous_commit is off for {whom}"))
            .why(why)
            .bounded(format!("{alter} RESET synchronous_commit;"));
    }
    if off {
        return SIDE.warn("sync_commit", "synchronous_commit is off").why(why).bounded(server.service.parameter(
            "synchronous_commit",
            "on",
            false,
        ));
    }
    SIDE.ok("sync_commit", "commits are flushed at once, unless a session says otherwise")
}

/// A walsender is a standby to Postgres, also the relay's.
fn synchronous_standby(config: &run::RunRequest, server: &ServerFacts) -> Option<Finding> {
    let named = server.settings.get("synchronous_standby_names")?;
    let own = config.source.application_name.as_deref().unwrap_or("walrelay");
    let names: Vec<&str> = named.split(['(', ')', ',', '"', ' ']).filter(|name| !name.is_empty()).collect();
    let is_own = names.iter().any(|name| name.eq_ignore_ascii_case(own));
    if !is_own && !names.contains(&"*") {
        return None;
    }
    let text = format!("synchronous_standby_names = '{named}' names the relay (application_name {own})");
    let standbys = server.standby_names.iter().filter(|name| !name.eq_ignore_ascii_case(own));
    let standbys: Vec<String> = standbys.map(|name| identifier(name)).collect();
    Some(
        SIDE.warn("sync_standby", text)
            .why("the relay becomes the synchronous standby: commits wait for it, and hang while it or the destination is down")
            .words(format!(
                "name the standbys alone in synchronous_standby_names, with FIRST or ANY and their number as the guarantee needs it; connected now: {}",
                if standbys.is_empty() { "none".to_owned() } else { standbys.join(", ") }
            )),
    )
}

fn clock(server: &ServerFacts) -> Finding {
    let apart = server.clock_ahead_ms.abs();
    let way = if server.clock_ahead_ms < 0 { "behind" } else { "ahead of" };
    if apart <= CLOCK_MS + server.clock_exact_to_ms {
        return SIDE.ok("clock", format!("within {} ms of this machine's", apart.max(server.clock_exact_to_ms)));
    }
    let time = duration(Duration::from_millis(apart.unsigned_abs()));
    SIDE.warn("clock", format!("the server's clock is {time} {way} this machine's"))
        .why("walrelay_publish_latency_seconds and walrelay_lag_seconds are wrong by that much")
        .bounded("timedatectl set-ntp true # on both machines")
}

#[cfg(test)]
#[cfg(feature = "kafka")]
mod tests;
