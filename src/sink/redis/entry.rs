//! A record as a stream's entry, and a batch of them as one command that takes all or none.
//!
//! In: records. Out: bytes of the Redis protocol. It does no I/O and judges no reply.
//!
//! ```text
//!   one record     XADD
//!   several        MULTI, XADD…, EXEC      an error while they are queued keeps all of them out
//!   with dedupe    EVAL of one script      an id that was added within that time is not added again
//! ```
//!
//! Fields, in this order: `id`, `type`, `key`, `payload`, as far as the record has them, then its other headers. Redis knows no null:
//! what is null is left out. A header that bears one of those four names is written as `header:NAME`.
//! Specification: Redis, commands XADD, MULTI, EXEC, EVAL.

use super::resp::{command, word, words};
use super::slot;
use crate::sink::Header;
use crate::sink::lanes::Stored;
use std::time::Duration;

/// Fields that are no headers of their own.
pub(super) const PARTS: [&str; 4] = ["id", "type", "key", "payload"];

/// What stands before the name of a header that is also one of [`PARTS`].
pub(super) const TAKEN: &str = "header:";

/// More headers than this a record may not have: a script passes all fields of an entry on its stack, which has 8,000 places.
pub(super) const MOST_HEADERS: usize = 3000;

/// How entries are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Adding {
    /// How long a stream may get; `None`: it is not trimmed.
    pub(super) most: Option<Most>,
    /// How long an id is remembered; `None`: repeats are added.
    pub(super) dedupe: Option<Duration>,
}

/// How long a stream may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Most {
    /// Entries.
    pub(super) entries: u64,
    /// Redis may keep some more, where that is cheaper.
    pub(super) about: bool,
}

/// How a batch was written: what its replies look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// One XADD: its reply.
    Single,
    /// MULTI: OK, QUEUED for each, and the replies as one array.
    Multi,
    /// A script: one array, of 1 (added), 0 (was there) or an error for each.
    Script,
}

impl Form {
    /// How many replies there will be for so many records.
    pub(super) fn replies(self, records: usize) -> usize {
        match self {
            Self::Single | Self::Script => 1,
            Self::Multi => records + 2,
        }
    }
}

/// Adds each entry whose marker is not there. A marker is a key of its own that expires, in the slot of its stream. Where the entry
/// is refused, so is its marker. A marker that is there is written again: WAIT and WAITAOF wait for what their own connection has written,
/// and the entry may be another's that has reached neither file nor replica. Words: time to remember in milliseconds, words before the id, those words, then for each entry how
/// many words, and the words. Keys: for each entry the stream, and the marker, or the stream again where the record has no id. Within a
/// script a missing right has the code ERR, as what is wrong with a record has: it gets back the code that it has elsewhere.
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

/// Writes a batch as one command that takes all or none.
pub(super) fn batch<'a>(out: &mut Vec<u8>, adding: Adding, records: impl Iterator<Item = Stored<'a>> + Clone) -> Form {
    let count = records.clone().count();
    if let Some(remembered) = adding.dedupe {
        script(out, adding, remembered, count, records);
        return Form::Script;
    }
    if count == 1 {
        for record in records {
            xadd(out, adding, record);
        }
        return Form::Single;
    }
    words(out, &[b"MULTI"]);
    for record in records {
        xadd(out, adding, record);
    }
    words(out, &[b"EXEC"]);
    Form::Multi
}

fn xadd(out: &mut Vec<u8>, adding: Adding, record: Stored<'_>) {
    command(out, 2 + trimming_words(adding) + 1 + field_words(record));
    word(out, b"XADD");
    word(out, record.topic().as_bytes());
    trimming(out, adding);
    word(out, b"*");
    fields(out, record);
}

fn script<'a>(
    out: &mut Vec<u8>,
    adding: Adding,
    remembered: Duration,
    count: usize,
    records: impl Iterator<Item = Stored<'a>> + Clone,
) {
    // For each entry: how many words there are, the id, and its fields.
    let words_of_entries: usize = records.clone().map(|record| 2 + field_words(record)).sum();
    command(out, 3 + 2 * count + 2 + trimming_words(adding) + words_of_entries);
    word(out, b"EVAL");
    word(out, SCRIPT.as_bytes());
    word(out, (2 * count).to_string().as_bytes());
    let mut marker = Vec::new();
    for record in records.clone() {
        word(out, record.topic().as_bytes());
        marker_of(&mut marker, record);
        word(out, &marker);
    }
    word(out, remembered.as_millis().to_string().as_bytes());
    word(out, trimming_words(adding).to_string().as_bytes());
    trimming(out, adding);
    for record in records {
        word(out, (1 + field_words(record)).to_string().as_bytes());
        word(out, b"*");
        fields(out, record);
    }
}

/// The key that remembers a record's id: `walrelay:seen:{stream}:id`, in the stream's slot of a cluster. Without an id: the stream.
fn marker_of(marker: &mut Vec<u8>, record: Stored<'_>) {
    marker.clear();
    let stream = record.topic();
    match record.parts().id {
        None => marker.extend_from_slice(stream.as_bytes()),
        Some(id) => {
            marker.extend_from_slice(b"walrelay:seen:{");
            marker.extend_from_slice(slot::tag(stream).as_bytes());
            marker.extend_from_slice(b"}:");
            // Streams may share a tag.
            marker.extend_from_slice(stream.as_bytes());
            marker.push(b':');
            marker.extend_from_slice(id);
        }
    }
}

fn trimming_words(adding: Adding) -> usize {
    if adding.most.is_some() { 3 } else { 0 }
}

fn trimming(out: &mut Vec<u8>, adding: Adding) {
    if let Some(Most { entries, about }) = adding.most {
        word(out, b"MAXLEN");
        word(out, if about { b"~" } else { b"=" });
        word(out, entries.to_string().as_bytes());
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

fn fields(out: &mut Vec<u8>, record: Stored<'_>) {
    let mut any = false;
    each_field(record, |name, value| {
        any = true;
        match name {
            [name] => word(out, name.as_bytes()),
            parts => word(out, parts.concat().as_bytes()),
        }
        word(out, value);
    });
    if !any {
        // An entry needs a field.
        word(out, b"payload");
        word(out, b"");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::lanes::Chunk;
    use crate::sink::redis::resp::{Token, Tokens};
    use crate::sink::{Content, Origin, Record, Tag, Token as ReportToken};

    fn chunk(records: &[Record<'_>]) -> Chunk {
        let mut chunk = Chunk::default();
        let tag = Tag { token: ReportToken::unpack(0), origin: Origin::default() };
        for record in records {
            chunk.push(record, tag);
        }
        chunk
    }

    /// The words of all commands, `|` between commands.
    fn written(adding: Adding, records: &[Record<'_>]) -> (Form, String) {
        let (chunk, mut out) = (chunk(records), Vec::new());
        let form = batch(&mut out, adding, (0..chunk.len()).filter_map(|number| chunk.get(number)));
        let mut shown = String::new();
        for token in Tokens::of(&out) {
            match token {
                Token::Array(_) => shown.push_str("| "),
                Token::Bytes(bytes) if bytes == SCRIPT.as_bytes() => shown.push_str("SCRIPT "),
                Token::Bytes(bytes) => shown = format!("{shown}{} ", String::from_utf8_lossy(bytes)),
                Token::Text(_) | Token::Error(_) | Token::Integer(_) | Token::Null => panic!("{token:?}"),
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
    fn an_entry_has_its_parts_as_fields_and_no_nulls() {
        let fields = "id 7 type Placed key k payload {} trace t header:key K ";
        assert_eq!(written(Adding::default(), &[RECORD]), (Form::Single, format!("| XADD orders * {fields}")));
        let bare = Record { key: None, value: None, headers: &[], ..RECORD };
        assert_eq!(written(Adding::default(), &[bare]).1, "| XADD orders * payload  ");
    }

    #[test]
    fn several_are_one_transaction_trimmed_as_asked() {
        let bare = Record { headers: &[], ..RECORD };
        let adding = Adding { most: Some(Most { entries: 10, about: true }), dedupe: None };
        let one = "| XADD orders MAXLEN ~ 10 * key k payload {} ";
        assert_eq!(written(adding, &[bare, bare]), (Form::Multi, format!("| MULTI {one}{one}| EXEC ")));
        assert_eq!((Form::Multi.replies(2), Form::Script.replies(2), Form::Single.replies(1)), (4, 1, 1));
    }

    #[test]
    fn with_dedupe_a_script_gets_streams_markers_and_entries() {
        let adding = Adding { most: Some(Most { entries: 10, about: false }), dedupe: Some(Duration::from_secs(2)) };
        let tagged = Record { topic: "a{t}b", headers: &HEADERS[..1], ..RECORD };
        let bare = Record { headers: &[], key: None, ..RECORD };
        let said = "| EVAL SCRIPT 4 a{t}b walrelay:seen:{t}:a{t}b:7 orders orders 2000 3 MAXLEN = 10 \
                    7 * id 7 key k payload {} 3 * payload {} ";
        assert_eq!(written(adding, &[tagged, bare]), (Form::Script, said.to_owned()));
    }
}
