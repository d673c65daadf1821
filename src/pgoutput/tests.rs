use super::*;
use proptest::prelude::*;

/// The bytes of a message, put together as the manual lists its fields.
#[derive(Clone)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn of(kind: u8) -> Self {
        Self(vec![kind])
    }

    fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn string(mut self, text: &str) -> Self {
        self.0.extend(text.as_bytes());
        self.u8(0)
    }

    fn value(self, kind: u8, value: &[u8]) -> Self {
        let mut sized = self.u8(kind).u32(u32::try_from(value.len()).unwrap());
        sized.0.extend(value);
        sized
    }
}

/// Decodes a message and all columns of its row.
fn whole(bytes: &[u8]) -> Result<Message<'_>, DecodeError> {
    let message = Message::decode(bytes)?;
    if let Message::Insert { new, .. } | Message::Update { new, .. } = &message {
        new.columns().try_for_each(|column| column.map(drop))?;
    }
    Ok(message)
}

fn walked<'a>(message: &Message<'a>) -> Vec<TupleValue<'a>> {
    let (Message::Insert { new, .. } | Message::Update { new, .. }) = message else { panic!("a row is wanted") };
    new.columns().map(Result::unwrap).collect()
}

/// Checks that the bytes decode, and that they are an error if they are cut anywhere or one byte longer.
#[track_caller]
fn check<'a>(bytes: &'a Bytes, expected: Option<&Message<'a>>) -> Message<'a> {
    let message = whole(&bytes.0).unwrap();
    if let Some(expected) = expected {
        assert_eq!(&message, expected);
    }
    for length in 0..bytes.0.len() {
        let outcome = whole(&bytes.0[..length]);
        assert!(outcome.is_err(), "cut to {length} of {} bytes: {outcome:?}", bytes.0.len());
    }
    let mut longer = bytes.0.clone();
    longer.push(0);
    assert_eq!(whole(&longer).unwrap_err().fault, DecodeFault::Trailing(1));
    message
}

fn begin_bytes() -> Bytes {
    Bytes::of(b'B').u64(0x16_0000_0001).u64(5_000_000).u32(731)
}

fn commit_bytes() -> Bytes {
    Bytes::of(b'C').u8(0).u64(0x10).u64(0x20).u64(7)
}

fn relation_bytes() -> Bytes {
    Bytes::of(b'R')
        .u32(16_390)
        .string("shop")
        .string("Out box")
        .u8(b'd')
        .u16(2)
        .u8(1)
        .string("id")
        .u32(2950)
        .u32(u32::MAX)
        .u8(0)
        .string("größe")
        .u32(1043)
        .u32(44)
}

fn insert_bytes() -> Bytes {
    Bytes::of(b'I').u32(16_390).u8(b'N').u16(4).value(b't', b"text").u8(b'n').value(b'b', &[0, 255]).value(b't', b"")
}

fn update_bytes(old: Option<u8>) -> Bytes {
    let start = Bytes::of(b'U').u32(16_390);
    let start = match old {
        Some(kind) => start.u8(kind).u16(3).value(b't', b"old").u8(b'n').u8(b'u'),
        None => start,
    };
    start.u8(b'N').u16(2).u8(b'u').value(b't', b"new")
}

fn message_bytes(flags: u8) -> Bytes {
    Bytes::of(b'M').u8(flags).u64(0x30).string("outbox").u32(3).u8(0).u8(0xFF).u8(b'x')
}

#[test]
fn begin_has_the_position_time_and_id_of_its_transaction() {
    let begin = Begin { final_lsn: Lsn::new(0x16_0000_0001), commit_time: PgTime(5_000_000), xid: 731 };
    check(&begin_bytes(), Some(&Message::Begin(begin)));
}

#[test]
fn commit_has_both_ends_of_its_record() {
    let commit = Commit { commit_lsn: Lsn::new(0x10), end_lsn: Lsn::new(0x20), commit_time: PgTime(7) };
    check(&commit_bytes(), Some(&Message::Commit(commit)));
}

#[test]
fn relation_has_names_types_and_modifiers() {
    let column = |name: &str, type_id, type_modifier| RelationColumn { name: name.to_owned(), type_id, type_modifier };
    let relation = Relation {
        id: 16_390,
        namespace: "shop".into(),
        name: "Out box".into(),
        replica_identity: b'd',
        columns: vec![column("id", 2950, -1), column("größe", 1043, 44)],
    };
    check(&relation_bytes(), Some(&Message::Relation(relation)));
}

#[test]
fn an_empty_schema_means_pg_catalog() {
    let bytes = Bytes::of(b'R').u32(1).string("").string("t").u8(b'n').u16(0);
    let Message::Relation(relation) = check(&bytes, None) else { panic!("a relation is wanted") };
    assert_eq!((relation.namespace.as_str(), relation.columns.len()), ("pg_catalog", 0));
}

#[test]
fn insert_has_a_row_of_nulls_texts_and_binaries() {
    let bytes = insert_bytes();
    let message = check(&bytes, None);
    let expected = [TupleValue::Text(b"text"), TupleValue::Null, TupleValue::Binary(&[0, 255]), TupleValue::Text(b"")];
    assert_eq!(walked(&message), expected);
    let Message::Insert { relation, new } = message else { panic!("an insert is wanted") };
    assert_eq!((relation, new.len(), new.is_empty()), (16_390, 4, false));
}

#[test]
fn a_row_without_columns_is_a_row() {
    let bytes = Bytes::of(b'I').u32(1).u8(b'N').u16(0);
    assert_eq!(walked(&check(&bytes, None)), []);
}

#[test]
fn update_has_the_new_row_whatever_it_says_of_the_old_one() {
    for old in [None, Some(b'K'), Some(b'O')] {
        let bytes = update_bytes(old);
        assert_eq!(walked(&check(&bytes, None)), [TupleValue::Unchanged, TupleValue::Text(b"new")]);
    }
}

#[test]
fn delete_names_its_table_whatever_it_says_of_the_row() {
    for kind in [b'K', b'O'] {
        let bytes = Bytes::of(b'D').u32(9).u8(kind).u16(1).value(b't', b"1");
        assert_eq!(Message::decode(&bytes.0), Ok(Message::Delete { relation: 9 }));
        assert!((0..5).all(|length| Message::decode(&bytes.0[..length]).is_err()));
    }
}

#[test]
fn logical_messages_say_whether_they_are_part_of_a_transaction() {
    for (flags, transactional) in [(0, false), (1, true)] {
        let message =
            LogicalMessage { transactional, lsn: Lsn::new(0x30), prefix: "outbox", content: &[0, 0xFF, b'x'] };
        check(&message_bytes(flags), Some(&Message::LogicalMessage(message)));
    }
}

#[test]
fn kinds_that_carry_no_row_pass() {
    let origin = Bytes::of(b'O').u64(1).string("upstream");
    assert_eq!(Message::decode(&origin.0), Ok(Message::Origin));
    let type_ = Bytes::of(b'Y').u32(16_400).string("shop").string("mood");
    let mood = DataType { id: 16_400, namespace: "shop", name: "mood" };
    assert_eq!(Message::decode(&type_.0), Ok(Message::Type(mood)));
    let truncate = Bytes::of(b'T').u32(2).u8(3).u32(1).u32(2);
    assert_eq!(Message::decode(&truncate.0), Ok(Message::Truncate));
    let abort = Bytes::of(b'A').u32(731).u32(732);
    assert_eq!(Message::decode(&abort.0), Ok(Message::StrayStreamAbort));
}

#[test]
fn kinds_that_may_carry_or_end_rows_unknown_to_this_protocol_are_errors() {
    // Two-phase commit has b, P, K, r and p. Streaming has S, E and c. The other bytes are no kinds.
    for kind in (0..=u8::MAX).filter(|kind| !b"BCOYRIUDTMA".contains(kind)) {
        let error = Message::decode(&[kind, 0, 0, 0, 0]).unwrap_err();
        assert_eq!(error.fault, DecodeFault::UnknownTag { what: "message kind", byte: kind });
        assert_eq!(error.offset, 0);
    }
    assert!(Message::decode(&[]).is_err());
}

#[test]
fn an_error_names_the_message_and_the_place() {
    let error = whole(&insert_bytes().0[..12]).unwrap_err();
    assert_eq!(error.to_string(), "malformed TupleData: 4 bytes wanted, 3 left at offset 1 of 4 bytes: 74000000");
    let error = Message::decode(&Bytes::of(b'I').u32(1).u8(b'K').u16(0).0).unwrap_err();
    assert_eq!((error.message, error.fault), ("Insert", DecodeFault::UnknownTag { what: "tuple kind", byte: b'K' }));
}

#[test]
fn an_unknown_column_kind_is_an_error() {
    let bytes = Bytes::of(b'I').u32(1).u8(b'N').u16(1).u8(b'x');
    assert_eq!(whole(&bytes.0).unwrap_err().fault, DecodeFault::UnknownTag { what: "column kind", byte: b'x' });
}

#[test]
fn a_negative_length_is_an_error_in_a_row_and_in_a_message() {
    let row = Bytes::of(b'I').u32(1).u8(b'N').u16(1).u8(b't').u32(u32::MAX);
    assert_eq!(whole(&row.0).unwrap_err().fault, DecodeFault::Negative(-1));
    let message = Bytes::of(b'M').u8(1).u64(1).string("p").u32(u32::MAX);
    assert_eq!(whole(&message.0).unwrap_err().fault, DecodeFault::Negative(-1));
}

#[test]
fn a_count_that_the_bytes_do_not_bear_out_takes_no_room() {
    let relation = Bytes::of(b'R').u32(1).string("s").string("t").u8(b'd').u16(u16::MAX);
    assert!(matches!(whole(&relation.0).unwrap_err().fault, DecodeFault::Truncated { .. }));
    let row = Bytes::of(b'I').u32(1).u8(b'N').u16(u16::MAX);
    assert!(matches!(whole(&row.0).unwrap_err().fault, DecodeFault::Truncated { .. }));
}

#[test]
fn names_must_be_utf8_and_end() {
    let relation = Bytes::of(b'R').u32(1).u8(0xFF).u8(0).string("t").u8(b'd').u16(0);
    assert_eq!(whole(&relation.0).unwrap_err().fault, DecodeFault::NotUtf8);
    let message = Bytes::of(b'M').u8(1).u64(1).u8(b'p');
    assert_eq!(whole(&message.0).unwrap_err().fault, DecodeFault::Unterminated);
}

#[test]
fn a_walk_ends_at_its_first_error() {
    let bytes = Bytes::of(b'I').u32(1).u8(b'N').u16(3).u8(b'n').u8(b'x').u8(b'n');
    let Ok(Message::Insert { new, .. }) = Message::decode(&bytes.0) else { panic!("an insert is wanted") };
    let mut columns = new.columns();
    assert_eq!(columns.next(), Some(Ok(TupleValue::Null)));
    assert!(matches!(columns.next(), Some(Err(_))));
    assert_eq!(columns.next(), None);
}

#[test]
fn times_count_from_2000_and_round_down() {
    assert_eq!(PgTime(0).unix_millis(), 946_684_800_000);
    assert_eq!(PgTime(1999).unix_millis(), 946_684_800_001);
    assert_eq!(PgTime(-946_684_800_000_001).unix_millis(), -1);
    assert_eq!(PgTime::from_unix_micros(PgTime(17).unix_micros()), PgTime(17));
    assert_eq!(PgTime(i64::MAX).unix_micros(), i64::MAX);
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes: Vec<u8>) {
        drop(whole(&bytes));
    }

    #[test]
    fn no_bytes_of_a_known_kind_panic(
        kind in proptest::sample::select(b"BCOYRIUDTMA".to_vec()),
        body in proptest::collection::vec(prop_oneof![Just(0), any::<u8>(), proptest::sample::select(b"NKOtbnu".to_vec())], 0..80),
    ) {
        drop(whole(&[vec![kind], body].concat()));
    }

    #[test]
    fn one_changed_byte_never_panics(which in 0..7_usize, at: proptest::sample::Index, byte: u8) {
        let kinds = [
            begin_bytes(), commit_bytes(), relation_bytes(), insert_bytes(), update_bytes(None), update_bytes(Some(b'O')),
            message_bytes(1),
        ];
        let mut bytes = kinds[which].0.clone();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        drop(whole(&bytes));
    }

    #[test]
    fn rows_come_back_as_they_were_put_together(values: Vec<Option<(bool, Vec<u8>)>>) {
        let start = Bytes::of(b'I').u32(1).u8(b'N').u16(u16::try_from(values.len()).unwrap());
        let bytes = values.iter().fold(start, |bytes, value| match value {
            None => bytes.u8(b'n'),
            Some((text, value)) => bytes.value(if *text { b't' } else { b'b' }, value),
        });
        let read = |column: TupleValue<'_>| match column {
            TupleValue::Text(value) => Some((true, value.to_vec())),
            TupleValue::Binary(value) => Some((false, value.to_vec())),
            TupleValue::Null | TupleValue::Unchanged => None,
        };
        let message = whole(&bytes.0).unwrap();
        prop_assert_eq!(walked(&message).into_iter().map(read).collect::<Vec<_>>(), values);
    }
}
