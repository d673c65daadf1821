//! The relay that is measured, in a thread of its own, and what is seen of it from outside.

use super::BenchRequest;
use super::stopwatch::{Acknowledged, Stopwatch};
use crate::commands::error::CommandError;
use crate::lsn::Lsn;
use crate::metrics::Metrics;
use crate::outbox::{Mapping, Outbox, TablePatterns};
use crate::pg::{Connection, Purpose, literal};
use crate::relay::{Relay, SystemClock};
use crate::route::TopicSetting;
use crate::sink::Sink;
use crate::sink::destination::Delivery;
use crate::sink::null::NullSink;
use crate::supervise::{NotAcquired, PgServer, RunError, StreamTarget, Supervisor};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often the drain is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// How often it is asked what walsender and relay are doing.
const SAMPLE: Duration = Duration::from_millis(100);

/// Most of what may be in flight: a relay at this bound waits for the destination.
const FULL: f64 = 0.9;

/// A running relay.
pub(super) struct Running {
    thread: JoinHandle<Result<(), RunError>>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) acknowledged: Arc<Acknowledged>,
    stop: Arc<AtomicBool>,
    max_in_flight: u64,
    /// The bytes of a record in flight beyond key and value.
    overhead_bytes: u64,
    /// Just before its thread's start.
    begun: Moment,
}

/// The figures of a drain.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Drain {
    /// Acknowledged between the last look that saw none, and the last of all.
    pub(super) rows: u64,
    /// The bytes of their keys and values.
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    /// From the thread's start to the first acknowledgement.
    pub(super) first_seconds: f64,
    /// Of the whole process.
    pub(super) cpu_seconds: Option<f64>,
    /// Of the walsender, when it runs on this machine.
    pub(super) walsender_cpu_seconds: Option<f64>,
    /// Shares of the looks at which the walsender worked, and at which it waited for the relay to read.
    pub(super) walsender_works: f64,
    pub(super) walsender_waits: f64,
    /// The share of the looks at which as much was in flight as may be.
    pub(super) full: f64,
}

/// A moment of the drain.
#[derive(Clone, Copy)]
struct Moment {
    at: Instant,
    rows: u64,
    bytes: u64,
    cpu: Option<f64>,
    walsender_cpu: Option<f64>,
}

/// The looks at a drain.
struct Looks {
    begun: Instant,
    /// The last moment at which nothing was acknowledged. From the first at which something was, a drain that one look sees
    /// whole would have no rate.
    before: Moment,
    /// When a look first saw something.
    first: Option<Instant>,
    /// The numbers of looks at what the relay and the walsender do, by what they saw.
    all: u32,
    works: u32,
    waits: u32,
    full: u32,
}

impl Running {
    /// Starts it. `slot`: the connection with the temporary slot, and the position from which it reads.
    pub(super) fn start(
        request: &BenchRequest,
        name: &str,
        topic: &str,
        slot: (Connection, Lsn),
    ) -> Result<Self, CommandError> {
        let sink: Box<dyn Sink + Send> = match &request.destination {
            Some(destination) => destination.open(&format!("walrelay/{name}"), Delivery::AtLeastOnce)?,
            None => Box::new(NullSink::default()),
        };
        let mapping = Mapping { topic: TopicSetting::Template(topic.to_owned()), ..Mapping::default() };
        let outbox = Outbox::new(mapping, Vec::new())?;
        let metrics = Arc::new(Metrics::new(name, name, Instant::now()));
        let (stop, acknowledged) = (Arc::<AtomicBool>::default(), Arc::<Acknowledged>::default());
        let mut source = request.source.clone();
        source.application_name.get_or_insert_with(|| format!("walrelay/{name}"));
        let target = StreamTarget {
            source,
            publication: name.to_owned(),
            slot: name.to_owned(),
            shard: None,
            tables: Vec::new(),
            without_children: Vec::new(),
            patterns: TablePatterns::default(),
            messages: false,
            only_local: false,
            max_row: request.limits.max_row,
            temporary_slot: Some(name.to_owned()),
            accept_slot_at: None,
        };
        let limits = request.limits.of_relay();
        let sink = Stopwatch::new(sink, Arc::clone(&acknowledged));
        let relay = Relay::new(outbox, sink, SystemClock, Arc::clone(&metrics), Arc::clone(&stop), limits);
        let shown = Arc::clone(&metrics);
        let mut slot = Some(slot);
        let take_slot = Box::new(move |_: Connection, name: &str| {
            slot.take().ok_or_else(|| NotAcquired::Failed(RunError::temporary_slot_gone(name)))
        });
        let postgres = PgServer::new(target).with_make_slot(take_slot);
        let begun = Moment { at: Instant::now(), rows: 0, bytes: 0, cpu: cpu_seconds("self"), walsender_cpu: None };
        let thread = thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || Supervisor::new(postgres, relay, shown).run());
        let thread = thread.map_err(|error| CommandError::not_begun("start the relay's thread", error))?;
        let max_in_flight = request.limits.max_in_flight as u64;
        let overhead_bytes = request.destination.as_ref().map_or(0, |to| to.kind().record_overhead_bytes);
        Ok(Self { thread, metrics, acknowledged, stop, max_in_flight, overhead_bytes, begun })
    }

    /// Whether it has ended, which it should not by itself.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Stops it, and says why it ended.
    pub(super) fn stop(self) -> Result<(), CommandError> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(ended) => Ok(ended?),
            Err(_) => Err(CommandError::vanished()),
        }
    }

    /// Waits until `rows` are acknowledged; `progress` is told how many are, and says whether to go on.
    pub(super) fn drain(
        &self,
        request: &BenchRequest,
        slot: &str,
        rows: u64,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Drain, CommandError> {
        let mut control = Connection::open(&request.source, Purpose::Control)?;
        let mut looks = Looks::new(self.begun);
        let (mut sampled, mut walsender) = (Instant::now(), None);
        loop {
            if sampled.elapsed() >= SAMPLE {
                sampled = Instant::now();
                looks.take(&mut control, slot, self.is_full(), &mut walsender);
            }
            let now = self.moment(walsender);
            looks.see(now);
            if !progress(now.rows) || self.has_ended() || now.rows >= rows {
                return Ok(looks.drain(now));
            }
            thread::sleep(LOOK);
        }
    }

    fn moment(&self, walsender: Option<u32>) -> Moment {
        let status = self.metrics.status(Instant::now());
        Moment {
            at: Instant::now(),
            rows: status.events_total,
            bytes: self.metrics.event_bytes_total(),
            cpu: cpu_seconds("self"),
            walsender_cpu: walsender.and_then(|pid| cpu_seconds(&pid.to_string())),
        }
    }

    // Both are bounded by 2^31.
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    fn is_full(&self) -> bool {
        let status = self.metrics.status(Instant::now());
        let memory = status.in_flight_bytes + status.in_flight_records * self.overhead_bytes;
        memory as f64 >= self.max_in_flight as f64 * FULL
    }
}

impl Looks {
    fn new(begun: Moment) -> Self {
        Self { begun: begun.at, before: begun, first: None, all: 0, works: 0, waits: 0, full: 0 }
    }

    fn see(&mut self, now: Moment) {
        if now.rows == 0 {
            self.before = now;
        } else {
            self.first.get_or_insert(now.at);
        }
    }

    fn take(&mut self, control: &mut Connection, slot: &str, full: bool, walsender: &mut Option<u32>) {
        let sql = format!(
            "SELECT a.pid, a.wait_event FROM pg_catalog.pg_stat_activity AS a \
             JOIN pg_catalog.pg_replication_slots AS s ON a.pid = s.active_pid WHERE s.slot_name = {}",
            literal(slot)
        );
        let rows = control.query(&sql).unwrap_or_default();
        let Some(row) = rows.first() else { return };
        *walsender = row.parse(0).filter(|pid| is_postgres(*pid));
        self.all += 1;
        self.full += u32::from(full);
        match row.text(1) {
            None => self.works += 1,
            Some("WalSenderWriteData") => self.waits += 1,
            Some(_) => {}
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "counts of rows and bytes, far below 2^52")]
    fn drain(&self, last: Moment) -> Drain {
        let before = self.before;
        let share = |count: u32| f64::from(count) / f64::from(self.all.max(1));
        let between = |before: Option<f64>, last: Option<f64>| Some((last? - before.unwrap_or(0.0)).max(0.0));
        Drain {
            rows: last.rows.saturating_sub(before.rows),
            bytes: last.bytes.saturating_sub(before.bytes),
            seconds: last.at.duration_since(before.at).as_secs_f64(),
            first_seconds: self.first.unwrap_or(last.at).duration_since(self.begun).as_secs_f64(),
            cpu_seconds: between(before.cpu, last.cpu),
            walsender_cpu_seconds: between(before.walsender_cpu, last.walsender_cpu),
            walsender_works: share(self.works),
            walsender_waits: share(self.waits),
            full: share(self.full),
        }
    }
}

/// User and system time of a process; `None` where there is no /proc, or no such process.
fn cpu_seconds(pid: &str) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may contain anything: fields 14 and 15 of proc(5) are the twelfth and thirteenth.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<u32>().ok();
    let per_second = u32::try_from(rustix::param::clock_ticks_per_second()).ok()?;
    Some(f64::from(ticks(11)? + ticks(12)?) / f64::from(per_second))
}

/// Whether the process is here and a server's: the server may be elsewhere, and the number somebody else's.
fn is_postgres(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "postgres")
}

/// The most memory that this process has had, in KiB.
pub(super) fn peak_kib() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The drain of 5005 rows of 500 bytes, of which each look saw so many, so many milliseconds after the start.
    #[track_caller]
    fn check(looks: &[(u64, u64)], expected: (u64, u64, f64, f64)) {
        let begun = Instant::now();
        let look = |&(millis, rows): &(u64, u64)| Moment {
            at: begun + Duration::from_millis(millis),
            rows,
            bytes: rows * 500,
            cpu: None,
            walsender_cpu: None,
        };
        let mut seen = Looks::new(look(&(0, 0)));
        looks.iter().map(look).for_each(|now| seen.see(now));
        let drain = seen.drain(look(looks.last().unwrap()));
        let (rows, bytes, seconds, first_seconds) = expected;
        assert_eq!((drain.rows, drain.bytes), (rows, bytes));
        assert!((drain.seconds - seconds).abs() < 1e-6, "{drain:?}");
        assert!((drain.first_seconds - first_seconds).abs() < 1e-6, "{drain:?}");
    }

    #[test]
    fn a_drain_is_measured_from_the_last_look_before_its_first_rows() {
        check(&[(30, 0), (40, 1000), (50, 3000), (60, 5005)], (5005, 2_502_500, 0.03, 0.04));
    }

    #[test]
    fn a_drain_that_one_look_sees_whole_has_a_rate() {
        check(&[(30, 0), (40, 5005)], (5005, 2_502_500, 0.01, 0.04));
        check(&[(40, 5005)], (5005, 2_502_500, 0.04, 0.04));
    }

    #[test]
    fn a_drain_that_has_not_begun_has_no_rows() {
        check(&[(30, 0), (40, 0)], (0, 0, 0.0, 0.04));
    }
}
