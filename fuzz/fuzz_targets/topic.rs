//! Any topic setting, and what it makes of rows with any values.
//!
//! The input is `template` and a template, or `regex`, an expression and a replacement; then the values of a row's columns, of
//! which `NULL` is SQL's null. A setting that is refused marks a place in its text. Of one that is taken, each row gives a name
//! that Kafka allows or a reason why it gives none: the same whatever row came before, alone as on a record, and a template's
//! is what its words say.

#![no_main]

use libfuzzer_sys::fuzz_target;
use walrelay::lsn::{Lsn, Position};
use walrelay::outbox::{BadReason, Mapping, Outbox, RowContext, RowError, RowOutcome};
use walrelay::pgoutput::{Message, PgTime, Relation, RelationColumn, encode};
use walrelay::route::{LastTopic, NoTopic, TOPICS, TopicError, TopicInput, TopicRule, TopicSetting};
use walrelay_fuzz::{assert_bounded, texts};

const CONTEXT: RowContext = RowContext { commit_time: PgTime(0), sent_at: PgTime(0), position: Position { final_lsn: Lsn::ZERO, ordinal: 0 } };

/// The columns that any outbox has, and that roles are found by.
const COLUMNS: [&str; 5] = ["id", "payload", "aggregatetype", "aggregateid", "type"];

const TEXT: u32 = 25;

fuzz_target!(|input: &[u8]| {
    let mut texts = texts(input);
    let mut next = || texts.next().and_then(|text| std::str::from_utf8(text).ok()).unwrap_or_default().to_owned();
    let setting = match next().as_str() {
        "template" => TopicSetting::Template(next()),
        "regex" => TopicSetting::Regex { regex: next(), replacement: next() },
        _ => return,
    };
    let values = texts.collect::<Vec<_>>();
    match TopicRule::new(&setting, &TOPICS) {
        Ok(topic) => rows(&setting, &topic, &values),
        Err(error) => judge(&error),
    }
});

fn judge(error: &TopicError) {
    let (shown, characters) = (error.to_string(), error.text.chars().count());
    // A regular expression that is not well-formed comes back with marks below each line of it.
    assert_bounded(&shown, 8 * characters);
    assert_bounded(&error.hint.unwrap_or_default(), 0);
    if let Some(at) = error.at {
        assert!(at <= characters, "{shown:?} marks {at} of {characters}");
        let lines = shown.lines().collect::<Vec<_>>();
        assert!(lines.len() == 3 && lines[2].chars().count() == at + 3 && lines[2].ends_with('^'), "{shown:?}");
    }
}

/// A row, another one, and the first again.
fn rows(setting: &TopicSetting, topic: &TopicRule, values: &[&[u8]]) {
    let mut columns = COLUMNS.map(str::to_owned).to_vec();
    for name in topic.names() {
        match name {
            TopicInput::ColumnOrRole(name) if name.contains('\0') => return,
            TopicInput::ColumnOrRole("route" | "key") | TopicInput::Route => {}
            TopicInput::ColumnOrRole(name) if columns.iter().any(|column| column == name) => {}
            TopicInput::ColumnOrRole(name) => columns.push(name.to_owned()),
        }
    }
    let mapping = Mapping { topic: setting.clone(), headers_column: Some(String::new()), ..Mapping::default() };
    let mut outbox = Outbox::new(mapping, Vec::new()).unwrap();
    outbox.relation(&relation(&columns)).unwrap();
    let mut last = LastTopic::default();
    for turn in [0, 1, 0] {
        let row = row(&columns, values, turn);
        let alone = alone(topic, &row, &mut LastTopic::default());
        assert_eq!(self::alone(topic, &row, &mut last), alone, "the row before made a difference");
        assert_eq!(on_a_record(&mut outbox, &row), alone);
        if let (TopicSetting::Template(template), Ok(name)) = (setting, &alone) {
            assert_eq!(*name, by_its_words(template, &row));
        }
    }
}

/// Each column with its value.
type Row<'a> = Vec<(&'a str, Option<&'a [u8]>)>;

fn row<'a>(columns: &'a [String], values: &[&'a [u8]], turn: usize) -> Row<'a> {
    let value = |at: usize| match values {
        // There must be one.
        _ if at == 0 => Some(&b"1"[..]),
        [] => Some(&b""[..]),
        values => Some(values[(at + turn) % values.len()]).filter(|value| *value != b"NULL"),
    };
    columns.iter().enumerate().map(|(at, column)| (column.as_str(), value(at))).collect()
}

fn value<'a>(row: &Row<'a>, name: TopicInput<'_>) -> Option<&'a [u8]> {
    let column = match name {
        TopicInput::Route | TopicInput::ColumnOrRole("route") => "aggregatetype",
        TopicInput::ColumnOrRole("key") => "aggregateid",
        TopicInput::ColumnOrRole(name) => name,
    };
    row.iter().find(|(known, _)| *known == column).unwrap().1
}

/// Why there is no topic.
#[derive(Debug, PartialEq, Eq)]
enum Lack {
    Null,
    NotUtf8,
    Invalid,
}

fn alone(topic: &TopicRule, row: &Row<'_>, last: &mut LastTopic) -> Result<String, Lack> {
    let values =
        topic.names().into_iter().map(|name| value(row, name)).collect::<Option<Vec<_>>>().ok_or(Lack::Null)?;
    match last.resolve(topic, values.iter().copied()) {
        Ok(name) => {
            assert!(is_legal(name), "topic {name:?}");
            Ok(name.to_owned())
        }
        Err(NoTopic::NotUtf8 { name }) => {
            assert!(std::str::from_utf8(values[name]).is_err());
            Err(Lack::NotUtf8)
        }
        Err(NoTopic::Invalid { topic, fault }) => {
            assert!(!is_legal(&topic), "{topic:?}: {fault}");
            assert_bounded(&fault.to_string(), 0);
            Err(Lack::Invalid)
        }
    }
}

fn on_a_record(outbox: &mut Outbox, row: &Row<'_>) -> Result<String, Lack> {
    let mut bytes = Vec::new();
    encode::insert(&mut bytes, 1, row.len());
    row.iter().for_each(|(_, value)| encode::value(&mut bytes, *value));
    let Ok(Message::Insert { new, .. }) = Message::decode(&bytes) else { panic!("{bytes:?}") };
    let bad = match outbox.row(1, &new, &CONTEXT, |record| record.topic.to_owned()) {
        Ok(RowOutcome::Record(topic)) => return Ok(topic),
        Err(RowError::Bad(bad)) => bad,
        other => panic!("{other:?}"),
    };
    // Names of columns are whole.
    assert_bounded(&bad.to_string(), row.iter().map(|(name, _)| name.len()).sum());
    Err(match bad.reason {
        BadReason::NullRoute { .. } => Lack::Null,
        BadReason::NotUtf8 { .. } => Lack::NotUtf8,
        BadReason::InvalidTopic { .. } => Lack::Invalid,
        other => panic!("{other:?}"),
    })
}

/// `[a-zA-Z0-9._-]{1,249}`, but not `.` or `..`.
fn is_legal(topic: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=249).contains(&topic.len()) && topic.bytes().all(allowed) && topic != "." && topic != ".."
}

/// What a template that is taken says: names in braces, with filters behind them. No brace is a literal in a topic.
fn by_its_words(template: &str, row: &Row<'_>) -> String {
    let mut parts = template.split('{');
    let mut topic = parts.next().unwrap().to_owned();
    for part in parts {
        let (inside, literal) = part.split_once('}').unwrap();
        let mut words = inside.split('|').map(str::trim);
        let value = value(row, TopicInput::ColumnOrRole(words.next().unwrap())).unwrap();
        let start = std::str::from_utf8(value).unwrap().to_owned();
        topic += &words.fold(start, |text, filter| match filter {
            "lower" => text.to_lowercase(),
            "kebab" => text.to_lowercase().replace(['_', ' '], "-"),
            other => panic!("{other:?} was taken for a filter"),
        });
        topic += literal;
    }
    topic
}

fn relation(columns: &[String]) -> Relation {
    let column = |name: &String| RelationColumn { name: name.clone(), type_id: TEXT, type_modifier: -1 };
    Relation {
        id: 1,
        namespace: "public".to_owned(),
        name: "outbox".to_owned(),
        replica_identity: b'd',
        columns: columns.iter().map(column).collect(),
    }
}
