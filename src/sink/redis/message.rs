//! Turns a batch of records into one command that adds all entries or none, and computes the slot of a stream.
//!
//! In: records. Out: commands for the library, which writes them; the slot of a stream in a cluster. This file does no I/O and classifies no
//! reply.
//!
//! ```text
//!   one record     XADD
//!   several        MULTI, XADD…, EXEC      an error while they are queued keeps all of them out
//!   with dedupe    EVAL of one script      an id that was added within that time is not added again
//! ```
//!
//! Fields, in this order: `id`, `type`, `key`, `payload`, as far as the record has them, then its other headers. Redis has no null: a part
//! that is null is left out. A header with one of these four names is written as `header:NAME`.
//! Specification: Redis, commands XADD, MULTI, EXEC, EVAL; "Redis cluster specification", sections "Key distribution model" and "Hash tags".

use crate::sink::Header;
use crate::sink::ordered_queue::Stored;
use crc16::{State, XMODEM};
use redis::{Cmd, Pipeline, cmd};
use std::time::Duration;

/// How many slots a cluster has.
pub(super) const SLOTS: usize = 1 << 14;

/// Fields that are no headers of their own.
pub(super) const PARTS: [&str; 4] = ["id", "type", "key", "payload"];

/// The prefix of a header whose name is also one of [`PARTS`].
pub(super) const TAKEN: &str = "header:";

/// The most headers of a record: a script passes all fields of an entry on its stack, which has 8,000 places.
pub(super) const MOST_HEADERS: usize = 3000;

/// How many words of an entry get memory at once.
const FEW_WORDS: usize = 16;

/// How entries are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Adding {
    /// The greatest length of a stream. `None`: it is not trimmed.
    pub(super) most: Option<Most>,
    /// How long an id is remembered. `None`: repeats are added.
    pub(super) dedupe: Option<Duration>,
}

/// The greatest length of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Most {
    /// How many entries.
    pub(super) entries: u64,
    /// Whether Redis may keep some more if that is cheaper.
    pub(super) about: bool,
}

/// The form of a batch's command, on which the form of its replies depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BatchForm {
    /// One XADD, with one reply.
    Single,
    /// A transaction: the replies are OK, QUEUED for each command, and an array.
    Multi,
    /// A script: the reply is an array with 1 (added), 0 (was there) or an error for each record.
    Script,
}

/// Adds each entry whose marker does not exist. A marker is a key that expires, in the slot of its stream. If the server refuses an entry,
/// the script removes its marker. The script writes an existing marker again: WAIT and WAITAOF wait for writes of their own connection, and
/// another connection's entry may have reached neither the file nor a replica. Arguments: the time to remember in milliseconds; the number of
/// words before the id, and these words; then for each entry the number of its words, and the words. Keys: for each entry the stream, and the
/// marker, or the stream again if the record has no id. Within a script, a missing right has the code ERR, as a fault of a record has: the
/// script gives it back the code that it has elsewhere.
const SCRIPT: &str = "\
local ttl, n = ARGV[1], tonumber(ARGV[2])
local function refusal(result, words)
  if redis.acl_check_cmd and not redis.acl_check_cmd(unpack(words)) then
    return {err = 'NOPERM ' .. result.err}
  end
  return result
end
local at, results = 3 + n, {}
for i = 1, #KEYS, 2 do
  local stream, marker = KEYS[i], KEYS[i + 1]
  local count = tonumber(ARGV[at])
  local set = {'SET', marker, '1', 'NX', 'PX', ttl}
  local new = marker == stream or redis.pcall(unpack(set))
  if not new then
    set[4] = 'XX'
    local again = redis.pcall(unpack(set))
    if again and again.err then new = again end
  end
  if type(new) == 'table' and new.err then
    results[#results + 1] = refusal(new, set)
  elseif not new then
    results[#results + 1] = 0
  else
    local words = {'XADD', stream}
    for j = 1, n do words[#words + 1] = ARGV[2 + j] end
    for j = 1, count do words[#words + 1] = ARGV[at + j] end
    local added = redis.pcall(unpack(words))
    if type(added) == 'table' and added.err then
      if marker ~= stream then redis.pcall('DEL', marker) end
      results[#results + 1] = refusal(added, words)
    else
      results[#results + 1] = 1
    end
  end
  at = at + count + 1
end
return results";

/// Appends the command of a batch, which adds all entries or none.
pub(super) fn batch<'a>(
    commands: &mut Pipeline,
    adding: Adding,
    records: impl Iterator<Item = Stored<'a>> + Clone,
) -> BatchForm {
    let count = records.clone().count();
    if let Some(remembered) = adding.dedupe {
        commands.add_command(script(adding, remembered, count, records));
        return BatchForm::Script;
    }
    if count == 1 {
        for record in records {
            commands.add_command(xadd(adding, record));
        }
        return BatchForm::Single;
    }
    commands.add_command(cmd("MULTI"));
    for record in records {
        commands.add_command(xadd(adding, record));
    }
    commands.add_command(cmd("EXEC"));
    BatchForm::Multi
}

fn xadd(adding: Adding, record: Stored<'_>) -> Cmd {
    let mut command = Cmd::with_capacity(FEW_WORDS, record.topic().len() + record.held_bytes());
    command.arg("XADD").arg(record.topic());
    trimming(&mut command, adding);
    command.arg("*");
    fields(&mut command, record);
    command
}

fn script<'a>(
    adding: Adding,
    remembered: Duration,
    count: usize,
    records: impl Iterator<Item = Stored<'a>> + Clone,
) -> Cmd {
    let bytes: usize = records.clone().map(|record| 3 * record.topic().len() + record.held_bytes()).sum();
    let mut command = Cmd::with_capacity(count * FEW_WORDS, SCRIPT.len() + bytes);
    command.arg("EVAL").arg(SCRIPT).arg(2 * count);
    let mut marker = Vec::new();
    for record in records.clone() {
        marker_of(&mut marker, record);
        command.arg(record.topic()).arg(marker.as_slice());
    }
    command.arg(remembered.as_millis().to_string()).arg(trimming_words(adding));
    trimming(&mut command, adding);
    for record in records {
        // The number of words, the id, and the fields.
        command.arg(1 + field_words(record)).arg("*");
        fields(&mut command, record);
    }
    command
}

/// The marker of a record's id, or of a dead letter's own: the key `walrelay:seen:{stream}:id`, in the stream's slot of a cluster. Without an
/// id: the stream.
fn marker_of(marker: &mut Vec<u8>, record: Stored<'_>) {
    marker.clear();
    let stream = record.topic();
    match record.repeat_id() {
        None => marker.extend_from_slice(stream.as_bytes()),
        Some(id) => {
            marker.extend_from_slice(b"walrelay:seen:{");
            marker.extend_from_slice(hash_tag(stream).as_bytes());
            marker.extend_from_slice(b"}:");
            // Streams may have the same tag, so the marker has the stream's name too.
            marker.extend_from_slice(stream.as_bytes());
            marker.push(b':');
            marker.extend_from_slice(id);
        }
    }
}

fn trimming_words(adding: Adding) -> usize {
    if adding.most.is_some() { 3 } else { 0 }
}

fn trimming(command: &mut Cmd, adding: Adding) {
    if let Some(Most { entries, about }) = adding.most {
        command.arg("MAXLEN").arg(if about { "~" } else { "=" }).arg(entries);
    }
}

fn each_field(record: Stored<'_>, mut take: impl FnMut(&[&str], &[u8])) {
    let parts = record.parts();
    let said = [parts.id, parts.kind, record.key(), record.value()];
    for (name, value) in PARTS.into_iter().zip(said) {
        if let Some(value) = value {
            take(&[name], value);
        }
    }
    for Header { name, value } in record.headers().skip(parts.headers) {
        let name: &[&str] = if PARTS.contains(&name) { &[TAKEN, name] } else { &[name] };
        if let Some(value) = value {
            take(name, value);
        }
    }
}

fn field_words(record: Stored<'_>) -> usize {
    let mut words = 0;
    each_field(record, |_, _| words += 2);
    words.max(2)
}

fn fields(command: &mut Cmd, record: Stored<'_>) {
    let mut any = false;
    each_field(record, |name, value| {
        any = true;
        match name {
            [name] => command.arg(*name),
            parts => command.arg(parts.concat()),
        };
        command.arg(value);
    });
    if !any {
        // An entry needs at least one field.
        command.arg("payload").arg("");
    }
}

/// The slot of a key, which decides on its node in a cluster.
pub(super) fn slot(key: &str) -> u16 {
    State::<XMODEM>::calculate(hash_tag(key).as_bytes()) % (1 << 14)
}

/// Whether a marker can be in the slot of this stream: its name has the stream's tag in braces, so the tag has none that close.
pub(super) fn can_have_markers(stream: &str) -> bool {
    !hash_tag(stream).contains('}')
}

/// The part of a key that decides its slot: the text between the first `{` and the next `}`, or the whole key if that is empty.
fn hash_tag(key: &str) -> &str {
    let inner = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    inner.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::ordered_queue::Chunk;
    use crate::sink::tests::dead_letters_by;
    use crate::sink::{Content, Origin, Record, Tag, Token};
    use crate::tests::assert_written;
    use proptest::prelude::*;
    use redis::Arg;

    fn chunk(records: &[Record<'_>]) -> Chunk {
        let mut chunk = Chunk::default();
        let tag = Tag { token: Token::unpack(0), origin: Origin::default() };
        for record in records {
            chunk.push(record, tag);
        }
        chunk
    }

    /// The words of all commands, `|` between commands.
    fn written(adding: Adding, records: &[Record<'_>]) -> (BatchForm, String) {
        let (chunk, mut commands) = (chunk(records), Pipeline::new());
        let form = batch(&mut commands, adding, (0..chunk.len()).filter_map(|number| chunk.get(number)));
        let mut shown = String::new();
        for command in commands.cmd_iter() {
            shown.push_str("| ");
            for word in command.args_iter() {
                let Arg::Simple(bytes) = word else { panic!("{word:?}") };
                let word = if bytes == SCRIPT.as_bytes() { "SCRIPT".into() } else { String::from_utf8_lossy(bytes) };
                shown = format!("{shown}{word} ");
            }
        }
        (form, shown)
    }

    const HEADERS: &[Header<'_>] = &[
        Header { name: "id", value: Some(b"7") },
        Header { name: "eventType", value: Some(b"Placed") },
        Header { name: "trace", value: Some(b"t") },
        Header { name: "none", value: None },
        Header { name: "key", value: Some(b"K") },
    ];

    const RECORD: Record<'_> = Record {
        topic: "orders",
        key: Some(b"k"),
        value: Some(b"{}"),
        headers: HEADERS,
        timestamp_millis: 0,
        partition: None,
        content: Content::Unknown,
    };

    #[test]
    fn dead_letters_are_written_as_the_last_version_that_changed_them_wrote_them() {
        let fields = |record: &Record<'_>| {
            let (chunk, mut commands) = (chunk(&[*record]), Pipeline::new());
            batch(&mut commands, Adding::default(), chunk.get(0).into_iter());
            let words: Vec<String> = commands
                .cmd_iter()
                .flat_map(Cmd::args_iter)
                .map(|word| {
                    let Arg::Simple(bytes) = word else { panic!("{word:?}") };
                    String::from_utf8(bytes.to_vec()).unwrap()
                })
                .collect();
            // XADD, the stream, the id, and then names and values.
            words[3..].chunks(2).map(|pair| pair.join("\t") + "\n").collect::<Vec<_>>().concat()
        };
        assert_written("dead-letters/redis.txt", &dead_letters_by(fields));
    }

    #[test]
    fn an_entry_has_its_parts_as_fields_and_no_nulls() {
        let fields = "id 7 type Placed key k payload {} trace t header:key K ";
        assert_eq!(written(Adding::default(), &[RECORD]), (BatchForm::Single, format!("| XADD orders * {fields}")));
        let bare = Record { key: None, value: None, headers: &[], ..RECORD };
        assert_eq!(written(Adding::default(), &[bare]).1, "| XADD orders * payload  ");
    }

    #[test]
    fn several_are_one_transaction_trimmed_as_asked() {
        let bare = Record { headers: &[], ..RECORD };
        let adding = Adding { most: Some(Most { entries: 10, about: true }), dedupe: None };
        let one = "| XADD orders MAXLEN ~ 10 * key k payload {} ";
        assert_eq!(written(adding, &[bare, bare]), (BatchForm::Multi, format!("| MULTI {one}{one}| EXEC ")));
    }

    #[test]
    fn with_dedupe_a_script_gets_streams_markers_and_entries() {
        let adding = Adding { most: Some(Most { entries: 10, about: false }), dedupe: Some(Duration::from_secs(2)) };
        let tagged = Record { topic: "a{t}b", headers: &HEADERS[..1], ..RECORD };
        let bare = Record { headers: &[], key: None, ..RECORD };
        let said = "| EVAL SCRIPT 4 a{t}b walrelay:seen:{t}:a{t}b:7 orders orders 2000 3 MAXLEN = 10 \
                    7 * id 7 key k payload {} 3 * payload {} ";
        assert_eq!(written(adding, &[tagged, bare]), (BatchForm::Script, said.to_owned()));
    }

    #[test]
    fn the_tag_that_decides_the_slot_is_what_the_specification_says() {
        for (key, tag) in [("a", "a"), ("{a}b", "a"), ("x{}y", "x{}y"), ("x{{a}}", "{a"), ("x}{a", "x}{a")] {
            assert_eq!(hash_tag(key), tag, "{key}");
        }
    }

    /// As CLUSTER KEYSLOT says them.
    #[test]
    fn slots_are_those_of_the_server() {
        assert_eq!(State::<XMODEM>::calculate(b"123456789"), 0x31C3);
        for (key, slot) in [("foo", 12_182), ("hello", 866), ("{foo}bar", 12_182), ("somekey", 11_058)] {
            assert_eq!(super::slot(key), slot, "{key}");
        }
    }

    proptest! {
        #[test]
        fn between_braces_a_keys_tag_leads_to_its_slot(key in "[a{}]{1,6}|.{1,12}") {
            let marker = format!("seen:{{{}}}:{key}:1", hash_tag(&key));
            prop_assert!(!can_have_markers(&key) || slot(&marker) == slot(&key), "{}", key);
        }
    }
}
