//! [`EntryReader`]: reads many streams at once, each from an entry on, for as long as it is asked.
//!
//! ```text
//!  entry 1795372205123-7 ─► offset 1795372205123 × 2^22 + 7, which keeps the order
//! ```
//!
//! In: settings, names of streams, offsets. Out: records, ends, positions, and the reasons for which entries may have gone unread: trimmed,
//! deleted, a stream that is gone. It writes nothing, and joins no group. A stream is one partition. Ids begin with the server's time, so a
//! time is an offset, and streams need no list of them. A mark is a minute earlier, since the clocks of servers differ.
//!
//! A server that holds all streams is read over one connection, up to `AT_ONCE` entries of each stream at a time. In a cluster each question
//! opens a connection.
//!
//! Invariant: a reply has at most `MOST_READ` bytes, or one entry of each stream. It ends the connection if it has more, and the same entries are
//! read one by one. So that this is rare, a stream is asked for as many entries as fit by the size of those before.
//! Specification: Redis, commands XREAD, XINFO STREAM, TIME.

use super::RedisSettings;
use super::client::{self, StreamsFound};
use super::connection::RedisConnection;
use super::dead_letters::{MOST_BYTES, entries};
use super::errors::{allow, not_understood, of_stream, pattern, said, understood, with_fix};
use crate::setting_text::SettingError;
use crate::sink::destination::KeptRecord;
use crate::sink::reading::{ReadRecord, RecordReader, TopicOffsets};
use crate::sink::{Failure, FailureClass, HeaderRoom, OwnedRecord, Record};
use redis::{Cmd, FromRedisValue, Pipeline, Value, cmd, from_redis_value};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// The most entries of a stream that are read at once.
const AT_ONCE: u32 = 500;

/// The most bytes of a reply with more than one entry of a stream.
const MOST_READ: usize = 64 << 20;

/// The bytes that a reply is meant to have at most, of all streams.
const WANTED: usize = 16 << 20;

/// The bits of the second part of an id. A server adds fewer entries in a millisecond.
const SECOND_BITS: u32 = 22;

/// The pause while nothing comes.
const PAUSE: Duration = Duration::from_millis(20);

/// How long a lost connection is tried again.
const SILENT_FOR: Duration = Duration::from_mins(1);

/// The clocks of a cluster's nodes differ by less.
const CLOCKS_DIFFER_MILLIS: i64 = 60_000;

/// The name under which a mark has the offset of the present, which is that of each stream. No stream has it.
const ALL: &str = "";

const TRIMMED: &str = "entries of it were trimmed or deleted before they were read (MAXLEN, XTRIM, XDEL, eviction)";
const DELETED: &str = "entries of it were deleted (XDEL), perhaps these";
const UNCOUNTED: &str =
    "the server is older than Redis 7, which does not say whether entries were trimmed or deleted, perhaps these";
const MADE_AGAIN: &str = "it was deleted and created again";
const GONE: &str = "it was deleted";

/// Commands with the streams that they ask, and their replies.
type Asked = (Vec<(String, Cmd)>, Vec<Value>);

/// The reader.
pub(super) struct EntryReader {
    settings: RedisSettings,
    runtime: Runtime,
    /// `None`: it is to be opened, or the streams are on the nodes of a cluster.
    connection: Option<RedisConnection>,
    is_cluster: bool,
    streams: BTreeMap<String, FollowedStream>,
}

/// A stream that is read.
#[derive(Debug)]
struct FollowedStream {
    first: i64,
    next: i64,
    /// `next` when the stream was looked at last. Entries behind it may have been read or not when others were trimmed.
    looked: i64,
    /// How many entries are read next.
    at_once: u32,
    /// The end that was seen last. If a read brings fewer entries than it may, all in front of this were read.
    end: i64,
    /// The server's first answer.
    before: Option<StreamInfo>,
    /// Why it is not read further.
    ended: Option<&'static str>,
    unread: BTreeSet<&'static str>,
}

/// The answer of XINFO STREAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StreamInfo {
    /// Behind the last entry that was ever added.
    end: i64,
    /// The first entry that is there. Without one: the end.
    first: i64,
    /// How many entries were ever added, and how many of them are gone. `None`: the server does not count.
    added: Option<(u64, u64)>,
    /// The last entry that XDEL has deleted. 0: none.
    deleted: i64,
}

impl EntryReader {
    pub(super) fn new(settings: RedisSettings) -> Result<Self, SettingError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| {
            SettingError::usage(format!("cannot start the client: {error}"), "free threads and memory")
        })?;
        Ok(Self { settings, runtime, connection: None, is_cluster: false, streams: BTreeMap::new() })
    }

    /// Sends commands, each about the stream of its name. Tries again for a while if the connection is lost.
    fn ask(&mut self, commands: &[(String, Cmd)]) -> Result<Vec<Value>, Failure> {
        // The server has no answer to an empty pipeline.
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let begun = Instant::now();
        loop {
            match self.try_ask(commands, MOST_BYTES) {
                Err(failure) if failure.class == FailureClass::Environment && begun.elapsed() < SILENT_FOR => {
                    self.connection = None;
                    std::thread::sleep(PAUSE * 10);
                }
                answered => return answered,
            }
        }
    }

    /// Sends commands, as [`EntryReader::ask`] does, once. `most`: the most bytes of the replies.
    fn try_ask(&mut self, commands: &[(String, Cmd)], most: usize) -> Result<Vec<Value>, Failure> {
        let Self { settings, runtime, connection, is_cluster, .. } = self;
        runtime.block_on(async {
            if connection.is_none() && !*is_cluster {
                match client::find(settings).await? {
                    StreamsFound::Server(found, _) => *connection = Some(found),
                    StreamsFound::Cluster(_) => *is_cluster = true,
                }
            }
            let Some(connection) = connection else {
                let mut replies = Vec::with_capacity(commands.len());
                for (stream, command) in commands {
                    replies.push(client::call(settings, stream, command, most).await?.1);
                }
                return Ok(replies);
            };
            let mut pipeline = Pipeline::new();
            for (_, command) in commands {
                pipeline.add_command(command.clone());
            }
            connection.expect(most);
            connection.call_all(pipeline).await
        })
    }

    /// Reads the next entries of all streams. Returns the commands, and their replies.
    fn read_entries(&mut self) -> Result<Asked, Failure> {
        // Without a new end nothing says that there is more. Beyond that, new entries come.
        let reads = |streams: &BTreeMap<String, FollowedStream>| -> Vec<(String, Cmd)> {
            let read = |(name, stream): (&String, &FollowedStream)| {
                let mut command = cmd("XREAD");
                command.arg("COUNT").arg(stream.at_once).arg("STREAMS").arg(name).arg(before(stream.next));
                (name.clone(), command)
            };
            streams.iter().filter(|(_, stream)| stream.ended.is_none()).map(read).collect()
        };
        let commands = reads(&self.streams);
        if commands.is_empty() {
            return Ok(Default::default());
        }
        match self.try_ask(&commands, MOST_READ) {
            Err(failure) if failure.class == FailureClass::Environment => {
                // The reply may have been too long.
                self.connection = None;
                self.streams.values_mut().for_each(|stream| stream.at_once = 1);
                let commands = reads(&self.streams);
                let replies = self.ask(&commands)?;
                Ok((commands, replies))
            }
            replies => Ok((commands, replies?)),
        }
    }

    /// A reply that is no error.
    fn classified(&self, stream: &str, reply: Value) -> Result<Value, Failure> {
        let Some(error) = said(&reply) else { return Ok(reply) };
        let address = self.connection.as_ref().map_or_else(String::new, |connection| connection.address().to_owned());
        let rights =
            || allow(&self.settings, &[&pattern(stream), "+info", "+exists", "+xinfo|stream", "+xread", "+time"]);
        Err(with_fix(of_stream(&address, &error), rights))
    }

    /// The server's figures of these streams. Those that are missing are left out: XINFO has no code for that.
    fn infos(&mut self, streams: &BTreeSet<String>) -> Result<BTreeMap<String, StreamInfo>, Failure> {
        let exist: Vec<(String, Cmd)> = streams.iter().map(|stream| (stream.clone(), exists(stream))).collect();
        let mut there = Vec::new();
        for ((stream, _), reply) in exist.iter().zip(self.ask(&exist)?) {
            if understood::<u64>("EXISTS", stream, self.classified(stream, reply)?)? == 1 {
                there.push((stream.clone(), info_of(stream)));
            }
        }
        let mut found = BTreeMap::new();
        for ((stream, _), reply) in there.iter().zip(self.ask(&there)?) {
            let info = StreamInfo::of(self.classified(stream, reply)?);
            let info = info.ok_or_else(|| not_understood("the reply to XINFO STREAM", stream))?;
            found.insert(stream.clone(), info);
        }
        Ok(found)
    }

    /// Notes entries that are gone before they were read.
    fn look_at(&mut self, asked: &BTreeSet<String>, infos: &BTreeMap<String, StreamInfo>) {
        for (name, stream) in &mut self.streams {
            if let Some(info) = infos.get(name) {
                stream.look(*info);
            } else if asked.contains(name) && stream.before.is_some() {
                stream.ended.get_or_insert(GONE);
            }
        }
    }
}

impl FollowedStream {
    fn new(first: i64) -> Self {
        let unread = BTreeSet::new();
        Self { first, next: first, looked: first, at_once: AT_ONCE, end: 0, before: None, ended: None, unread }
    }

    /// Chooses how many entries are read next, if `read` had so many bytes. `share`: the bytes that this stream's may have.
    fn adapt(&mut self, read: usize, bytes: usize, share: usize) {
        if read == 0 {
            return;
        }
        let fitting = u32::try_from(share / (bytes / read).max(1)).unwrap_or(AT_ONCE);
        self.at_once = fitting.clamp(1, self.at_once.saturating_mul(2).min(AT_ONCE));
    }

    fn look(&mut self, info: StreamInfo) {
        self.end = info.end;
        if info.deleted >= self.first {
            self.unread.insert(DELETED);
        }
        // Not the present `next`: it may have passed entries that were trimmed before they were read.
        let looked = std::mem::replace(&mut self.looked, self.next);
        let Some(before) = self.before.replace(info) else {
            if info.first > self.first && info.added.is_some_and(|(_, gone)| gone > 0) {
                self.unread.insert(TRIMMED);
            }
            return;
        };
        match (before.added, info.added) {
            (Some((added, _)), Some((now, _))) if now < added => drop(self.ended.get_or_insert(MADE_AGAIN)),
            (Some((_, gone)), Some((_, now))) if now > gone && info.first > looked => drop(self.unread.insert(TRIMMED)),
            (_, None) if info.first > before.first && info.first > looked => drop(self.unread.insert(TRIMMED)),
            _ => {}
        }
    }
}

impl StreamInfo {
    /// `None`: the reply is not understood.
    fn of(reply: Value) -> Option<Self> {
        let fields: HashMap<String, Value> = from_redis_value(reply).ok()?;
        let end = offset_of(&field::<String>(&fields, "last-generated-id")??)? + 1;
        let length: u64 = field(&fields, "length")??;
        let first = match field::<Option<(String, Value)>>(&fields, "first-entry")?? {
            Some((id, _)) => offset_of(&id)?,
            None => end,
        };
        let added = field(&fields, "entries-added")?.map(|added: u64| (added, added.saturating_sub(length)));
        let deleted = match field::<String>(&fields, "max-deleted-entry-id")? {
            Some(id) => offset_of(&id)?,
            None => 0,
        };
        Some(Self { end, first, added, deleted })
    }
}

/// The value of a field, or `None` for one that the server does not have. `None` instead of either: it is not understood.
#[allow(clippy::option_option, reason = "both are passed on by `?`")]
fn field<T: FromRedisValue>(fields: &HashMap<String, Value>, name: &str) -> Option<Option<T>> {
    fields.get(name).cloned().map(from_redis_value).transpose().ok()
}

fn exists(stream: &str) -> Cmd {
    let mut command = cmd("EXISTS");
    command.arg(stream);
    command
}

fn info_of(stream: &str) -> Cmd {
    let mut command = cmd("XINFO");
    command.arg("STREAM").arg(stream);
    command
}

/// The offset of an entry.
fn offset_of(id: &str) -> Option<i64> {
    let (millis, number) = id.split_once('-')?;
    let (millis, number): (i64, i64) = (millis.parse().ok()?, number.parse().ok()?);
    Some(millis.checked_mul(1 << SECOND_BITS)?.saturating_add(number.min((1 << SECOND_BITS) - 1)))
}

/// The offset in front of all that is added from this time on. A server gives no entry an id of an earlier time, but ids of this millisecond may
/// be there. In a cluster another node's clock may be behind.
const fn offset_from(seconds: i64, micros: i64, is_cluster: bool) -> i64 {
    let differ = if is_cluster { CLOCKS_DIFFER_MILLIS } else { 0 };
    (seconds * 1000 + micros / 1000 - differ) << SECOND_BITS
}

/// The id of the entry right in front of an offset, behind which XREAD reads.
fn before(offset: i64) -> String {
    let at = offset.saturating_sub(1).max(0);
    format!("{}-{}", at >> SECOND_BITS, at & ((1 << SECOND_BITS) - 1))
}

impl RecordReader for EntryReader {
    fn lists_topics(&self) -> bool {
        false
    }

    fn mark(&mut self, _prefix: &str, _topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure> {
        let replies = self.ask(&[(ALL.to_owned(), cmd("TIME"))])?;
        let reply = self.classified(ALL, replies.into_iter().next().unwrap_or_default())?;
        let (seconds, micros): (i64, i64) = understood("TIME", ALL, reply)?;
        let offset = offset_from(seconds, micros, self.is_cluster);
        Ok(TopicOffsets::from([(ALL.to_owned(), vec![Some(offset)])]))
    }

    fn start_at(&mut self, mark: &TopicOffsets, topic: &str) -> Result<Option<Vec<Option<i64>>>, Failure> {
        Ok(mark.get(topic).or_else(|| mark.get(ALL)).cloned())
    }

    fn ends(&mut self, _prefix: Option<&str>, topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure> {
        let infos = self.infos(topics)?;
        self.look_at(topics, &infos);
        Ok(infos.into_iter().map(|(stream, info)| (stream, vec![Some(info.end)])).collect())
    }

    fn starts(&mut self, topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure> {
        let infos = self.infos(topics)?;
        // A first id says nothing by itself: it is a time.
        let start = |info: &StreamInfo| if info.added.is_some_and(|(_, gone)| gone == 0) { 0 } else { info.first };
        Ok(infos.into_iter().map(|(stream, info)| (stream, vec![Some(start(&info))])).collect())
    }

    fn offsets_at(&mut self, millis: i64, topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure> {
        let at = millis.max(0) << SECOND_BITS;
        let infos = self.infos(topics)?;
        Ok(infos.into_iter().map(|(stream, info)| (stream, vec![Some(at.min(info.end))])).collect())
    }

    fn follow(&mut self, topic: &str, from: &[Option<i64>]) {
        let first = from.first().copied().flatten().unwrap_or_default();
        self.streams.entry(topic.to_owned()).or_insert_with(|| FollowedStream::new(first));
    }

    fn read(&mut self, wait: Duration, each: &mut dyn FnMut(&ReadRecord<'_>)) -> Result<usize, Failure> {
        let (commands, replies) = self.read_entries()?;
        let share = WANTED / commands.len().max(1);
        let (mut count, mut room) = (0, HeaderRoom::default());
        for ((name, _), reply) in commands.iter().zip(replies) {
            let reply = self.classified(name, reply)?;
            let Some(stream) = self.streams.get_mut(name) else { continue };
            let mut of_stream: Vec<(String, Value)> = understood("XREAD", name, reply)?;
            let read = match of_stream.pop() {
                Some((_, found)) => entries("XREAD", name, found)?,
                None => VecDeque::new(),
            };
            if read.len() < stream.at_once as usize {
                stream.next = stream.next.max(stream.end);
            }
            stream.adapt(read.len(), read.iter().map(|kept| OwnedRecord::room_bytes(&kept.record)).sum(), share);
            for KeptRecord { id, record, .. } in read {
                let id = id.to_string();
                let offset = offset_of(&id).ok_or_else(|| not_understood(&format!("the id of entry {id}"), name))?;
                stream.next = stream.next.max(offset + 1);
                count += 1;
                record.with_record(&mut room, |record| {
                    let record = Record { topic: name, partition: Some(0), ..*record };
                    each(&ReadRecord { record, offset, writers_time: false, partition_of_key: None });
                });
            }
        }
        if count == 0 {
            std::thread::sleep(PAUSE.min(wait));
        }
        Ok(count)
    }

    fn positions(&mut self) -> Result<TopicOffsets, Failure> {
        let read = self.streams.iter().filter(|(_, stream)| stream.ended.is_none());
        Ok(read.map(|(name, stream)| (name.clone(), vec![Some(stream.next)])).collect())
    }

    fn ended(&self, topic: &str) -> Option<String> {
        self.streams.get(topic)?.ended.map(str::to_owned)
    }

    fn unread(&mut self, topic: &str) -> Vec<String> {
        let Some(stream) = self.streams.get(topic) else { return Vec::new() };
        let uncounted = stream.before.filter(|info| info.added.is_none()).map(|_| UNCOUNTED);
        stream.ended.into_iter().chain(stream.unread.iter().copied()).chain(uncounted).map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_have_the_order_of_ids_and_name_the_one_in_front() {
        let offset = offset_of("1795372205123-7").unwrap();
        assert!(offset_of("1795372205123-6").unwrap() < offset && offset < offset_of("1795372205124-0").unwrap());
        assert_eq!(before(offset), "1795372205123-6");
        assert_eq!(before(offset_of("5-0").unwrap()), "4-4194303");
        assert_eq!(before(0), "0-0");
        assert_eq!((offset_of("x"), offset_of("9223372036854775807-0")), (None, None));
    }

    #[test]
    fn a_mark_is_in_front_of_what_is_added_from_then_on_also_by_a_node_whose_clock_is_behind() {
        let of = |is_cluster| offset_from(1_795_372_205, 7_999, is_cluster);
        assert_eq!(of(false), offset_of("1795372205007-0").unwrap());
        assert_eq!(of(true), offset_of("1795372145007-0").unwrap());
    }

    fn info_reply(fields: &[(&str, Value)]) -> Value {
        let text = |text: &str| Value::BulkString(text.into());
        let first = Value::Array(vec![text("5-1"), Value::Array(vec![text("id"), text("a")])]);
        let usual = [("length", Value::Int(2)), ("last-generated-id", text("7-0")), ("first-entry", first)];
        let usual = usual.into_iter().filter(|(name, _)| fields.iter().all(|(other, _)| other != name));
        let all = usual.chain(fields.iter().cloned());
        Value::Map(all.map(|(name, value)| (text(name), value)).collect())
    }

    #[test]
    fn a_field_that_is_not_understood_is_not_taken_for_one_that_the_server_does_not_have() {
        let offset = |id: &str| offset_of(id).unwrap();
        let text = |text: &str| Value::BulkString(text.into());
        let of = |fields: &[(&str, Value)]| StreamInfo::of(info_reply(fields));
        let (first, end) = (offset("5-1"), offset("7-0") + 1);
        assert_eq!(of(&[]), Some(info(first, end, None, 0)));
        let counted = [("entries-added", Value::Int(9)), ("max-deleted-entry-id", text("6-0"))];
        assert_eq!(of(&counted), Some(info(first, end, Some((9, 7)), offset("6-0"))));
        assert_eq!(of(&[("first-entry", Value::Nil)]), Some(info(end, end, None, 0)));
        for (name, value) in [
            ("length", text("x")),
            ("last-generated-id", text("9223372036854775807-0")),
            ("first-entry", Value::Int(1)),
            ("entries-added", Value::Nil),
            ("max-deleted-entry-id", text("x")),
        ] {
            assert_eq!(of(&[(name, value)]), None, "{name}");
        }
        assert_eq!(StreamInfo::of(Value::Okay), None);
    }

    fn info(first: i64, end: i64, added: Option<(u64, u64)>, deleted: i64) -> StreamInfo {
        StreamInfo { end, first, added, deleted }
    }

    /// Looks at a stream that is read from 10 on, while what comes next is the first number of each pair.
    #[track_caller]
    fn look(looks: &[(i64, StreamInfo)], expected: &[&str]) {
        let mut stream = FollowedStream::new(10);
        for (next, info) in looks {
            stream.next = *next;
            stream.look(*info);
        }
        assert_eq!(stream.ended.into_iter().chain(stream.unread).collect::<Vec<_>>(), expected);
    }

    #[track_caller]
    fn check(next: i64, before: StreamInfo, now: StreamInfo, expected: &[&str]) {
        look(&[(next, before), (next, now)], expected);
    }

    #[test]
    fn entries_that_are_gone_before_they_were_read_are_noted_and_others_are_not() {
        let before = info(5, 20, Some((9, 0)), 0);
        check(15, before, info(5, 30, Some((12, 0)), 0), &[]);
        check(15, before, info(12, 30, Some((12, 4)), 0), &[]);
        check(15, before, info(16, 30, Some((12, 4)), 0), &[TRIMMED]);
        check(15, before, info(16, 30, Some((12, 0)), 0), &[]);
        check(15, before, info(5, 30, Some((12, 1)), 9), &[]);
        check(15, before, info(5, 30, Some((12, 1)), 10), &[DELETED]);
        check(15, before, info(5, 30, Some((2, 0)), 0), &[MADE_AGAIN]);
        check(15, info(5, 20, None, 0), info(16, 30, None, 0), &[TRIMMED]);
    }

    #[test]
    fn entries_that_were_trimmed_between_two_looks_are_noted_although_later_ones_were_read() {
        let before = info(5, 20, Some((9, 0)), 0);
        look(&[(15, before), (30, info(25, 30, Some((12, 4)), 0))], &[TRIMMED]);
        look(&[(15, before), (30, info(15, 30, Some((12, 4)), 0))], &[]);
        // What was trimmed had been read at the look before.
        look(&[(15, before), (30, before), (30, info(25, 30, Some((12, 4)), 0))], &[]);
        look(&[(15, info(5, 20, None, 0)), (30, info(25, 30, None, 0))], &[TRIMMED]);
    }

    #[test]
    fn entries_that_are_gone_at_the_first_look_are_noted() {
        look(&[(10, info(11, 30, Some((12, 4)), 0))], &[TRIMMED]);
        look(&[(30, info(11, 30, Some((12, 4)), 0))], &[TRIMMED]);
        look(&[(10, info(10, 30, Some((12, 4)), 0))], &[]);
        look(&[(10, info(11, 30, Some((12, 0)), 0))], &[]);
    }

    #[test]
    fn a_stream_that_is_gone_or_made_again_is_not_read_further() {
        let settings = crate::sink::tests::read_in_test("redis", "h", &[], |asked| RedisSettings::read(asked)).unwrap();
        let mut reader = EntryReader::new(settings).unwrap();
        let names = ["gone", "made again", "there"];
        for name in names {
            reader.follow(name, &[Some(10)]);
        }
        let asked = names.map(str::to_owned).into();
        let of = |added: u64, names: &[&str]| {
            names.iter().map(|name| ((*name).to_owned(), info(5, 20, Some((added, 0)), 0))).collect()
        };
        reader.look_at(&asked, &of(9, &names));
        reader.look_at(&asked, &[of(2, &names[1..2]), of(9, &names[2..])].into_iter().flatten().collect());
        // Whatever has the name later is another stream.
        reader.look_at(&asked, &of(30, &names));
        assert_eq!(names.map(|name| reader.ended(name)), [Some(GONE.to_owned()), Some(MADE_AGAIN.to_owned()), None]);
        assert_eq!(reader.unread("gone"), [GONE]);
        assert_eq!(reader.positions().unwrap().keys().collect::<Vec<_>>(), ["there"]);
    }

    #[test]
    fn as_many_entries_are_read_as_fit_by_the_size_of_those_before() {
        let mut stream = FollowedStream::new(10);
        assert_eq!(stream.at_once, AT_ONCE);
        stream.adapt(0, 0, 1000);
        stream.adapt(10, 100, 1 << 20);
        assert_eq!(stream.at_once, AT_ONCE);
        stream.adapt(500, 50_000, 1000);
        assert_eq!(stream.at_once, 10);
        stream.adapt(10, 10, 1000);
        assert_eq!(stream.at_once, 20, "it grows step by step");
        stream.adapt(20, 1 << 30, 1000);
        assert_eq!(stream.at_once, 1);
    }
}
