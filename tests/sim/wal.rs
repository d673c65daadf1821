//! What was committed: the truth that everything else is compared with.
//!
//! ```text
//!  log:   … rows of A, rows of B, rows of A … │ commit A │ commit B │ … another table's work …
//!                                             ▲ final_lsn ▲ A's end_lsn, and B's final_lsn: neighbours
//! ```
//!
//! Rolled-back transactions leave nothing but distance. Rows are numbered in commit order, and in row order within a
//! transaction; the number is the row's `id`, so that a record says which row it is.

use crate::bytes::{self, Bytes};
use crate::dice::Dice;
use walrelay::lsn::{Lsn, Position};
use walrelay::pgoutput::{PgTime, PublishedTable, Relation, RelationColumn};

const OUTBOX: u32 = 16_500;
const ORDERS: u32 = 16_501;

/// The prefix of messages that are published.
pub(crate) const PREFIX: &str = "events";

/// What no topic can be made of.
pub(crate) const BAD_ROUTE: &str = "no topic";

const TEXT: u32 = 25;
const UUID: u32 = 2950;
const JSONB: u32 = 3802;

/// The outbox's columns, before and after a migration in the middle of the stream.
const SHAPES: [&[(&str, u32)]; 2] = [
    &[("id", UUID), ("aggregatetype", TEXT), ("aggregateid", TEXT), ("type", TEXT), ("payload", JSONB)],
    &[("note", TEXT), ("id", UUID), ("payload", JSONB), ("aggregatetype", TEXT), ("aggregateid", TEXT), ("type", TEXT)],
];

const ORDERS_SHAPE: &[(&str, u32)] = &[("id", UUID), ("total", TEXT)];

/// A row (or message) that must become a record.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) route: &'static str,
    pub(crate) key: Option<String>,
    pub(crate) payload: String,
    pub(crate) commit_time: PgTime,
    /// Where it stands; the number counts other tables' rows as well.
    pub(crate) position: Position,
    /// A table's row, and no message.
    pub(crate) of_table: bool,
    /// On a timeline that was left: it need not arrive.
    pub(crate) lost: bool,
}

/// One thing done inside a transaction.
#[derive(Debug, Clone)]
pub(crate) enum Piece {
    /// A row of the outbox.
    Row {
        route: &'static str,
        key: Option<String>,
        bytes: usize,
    },
    /// The same by `pg_logical_emit_message`.
    Message {
        route: &'static str,
        key: Option<String>,
        bytes: usize,
    },
    /// A row of a table that is published and not asked for.
    OtherRow,
    /// A message with another prefix.
    OtherMessage,
    Update,
    Delete,
    Truncate,
    Origin,
    Type,
    StrayStreamAbort,
}

#[derive(Debug, Clone)]
enum Change {
    Row(usize),
    Message(usize),
    Piece(Piece),
}

/// One committed transaction.
#[derive(Debug, Clone)]
pub(crate) struct Transaction {
    pub(crate) final_lsn: Lsn,
    pub(crate) end_lsn: Lsn,
    commit_time: PgTime,
    xid: u32,
    shape: usize,
    changes: Vec<Change>,
    /// The first of its rows' numbers, and the first behind them.
    pub(crate) rows: (usize, usize),
}

/// The WAL.
#[derive(Debug)]
pub(crate) struct Wal {
    /// By number.
    pub(crate) rows: Vec<Row>,
    /// In commit order, of this timeline.
    pub(crate) transactions: Vec<Transaction>,
    /// Where the next record goes.
    pub(crate) end: Lsn,
    shape: usize,
}

impl Wal {
    pub(crate) fn new(begin: Lsn) -> Self {
        Self { rows: Vec::new(), transactions: Vec::new(), end: begin, shape: 0 }
    }

    /// Work that publishes nothing: other tables outside the publication, rolled-back transactions, rows not yet committed.
    pub(crate) fn write(&mut self, bytes: u64) {
        self.end = Lsn::new(self.end.bytes() + bytes);
    }

    /// The outbox gets another shape, for the transactions that follow.
    pub(crate) fn migrate(&mut self) {
        self.shape = (self.shape + 1) % SHAPES.len();
    }

    /// A transaction commits: its commit record goes to the end of the WAL.
    pub(crate) fn commit(&mut self, pieces: Vec<Piece>) -> &Transaction {
        let first = self.rows.len();
        let final_lsn = self.end;
        let commit_time = PgTime(i64::try_from(1_000_000 + final_lsn.bytes()).unwrap());
        let mut ordinal = 0;
        let mut changes = Vec::new();
        for piece in pieces {
            let counts =
                matches!(piece, Piece::Row { .. } | Piece::Message { .. } | Piece::OtherRow | Piece::OtherMessage);
            changes.push(self.change(piece, Position { final_lsn, ordinal }, commit_time));
            ordinal += u64::from(counts);
        }
        self.write(48);
        let xid = 700 + u32::try_from(self.transactions.len()).unwrap();
        let rows = (first, self.rows.len());
        let (end_lsn, shape) = (self.end, self.shape);
        self.transactions.push(Transaction { final_lsn, end_lsn, commit_time, xid, shape, changes, rows });
        self.transactions.last().unwrap()
    }

    fn change(&mut self, piece: Piece, position: Position, commit_time: PgTime) -> Change {
        let number = self.rows.len();
        match piece {
            Piece::Row { route, key, bytes } => {
                let (payload, of_table) = (payload(number, bytes), true);
                self.rows.push(Row { route, key, payload, commit_time, position, of_table, lost: false });
                Change::Row(number)
            }
            Piece::Message { route, key, bytes } => {
                let (payload, of_table) = (payload(number, bytes), false);
                self.rows.push(Row { route, key, payload, commit_time, position, of_table, lost: false });
                Change::Message(number)
            }
            piece @ (Piece::OtherRow
            | Piece::OtherMessage
            | Piece::Update
            | Piece::Delete
            | Piece::Truncate
            | Piece::Origin
            | Piece::Type
            | Piece::StrayStreamAbort) => Change::Piece(piece),
        }
    }

    /// The WAL is cut here: a standby that had no more of it continues.
    pub(crate) fn cut(&mut self, at: Lsn) {
        self.transactions.retain(|transaction| transaction.end_lsn <= at);
        for row in self.rows.iter_mut().filter(|row| row.position.final_lsn >= at) {
            row.lost = true;
        }
        self.end = at;
    }

    /// The place of the first transaction whose commit record starts at or after `at`.
    pub(crate) fn from(&self, at: Lsn) -> usize {
        self.transactions.partition_point(|transaction| transaction.final_lsn < at)
    }

    /// The messages of one transaction, as they are sent on a connection that knows the shapes `told`.
    pub(crate) fn messages(&self, transaction: &Transaction, told: &mut Told, dice: &mut Dice) -> Vec<Bytes> {
        let Transaction { final_lsn, end_lsn, commit_time, xid, shape, .. } = *transaction;
        let mut messages = vec![bytes::begin(final_lsn, commit_time, xid)];
        for change in &transaction.changes {
            told.before(change, shape, &mut messages);
            let at = Lsn::new(final_lsn.bytes().saturating_sub(dice.below(5000)));
            messages.push(self.message(change, shape, xid, at));
        }
        messages.push(bytes::commit(final_lsn, end_lsn, commit_time));
        let sent = |message: &Bytes| {
            // A change's own position: goes back and forth between interleaved transactions.
            let at = Lsn::new(final_lsn.bytes().saturating_sub(dice.below(5000)).max(1));
            bytes::xlog_data(at, at, message)
        };
        messages.iter().map(sent).collect()
    }

    fn message(&self, change: &Change, shape: usize, xid: u32, at: Lsn) -> Bytes {
        match change {
            Change::Row(number) => self.with_values(*number, shape, |values| bytes::insert(OUTBOX, values)),
            Change::Message(number) => bytes::logical_message(true, at, PREFIX, &self.content(*number)),
            Change::Piece(piece) => match piece {
                Piece::OtherRow => bytes::insert(ORDERS, &[Some("0192"), Some("29.99")]),
                Piece::OtherMessage => bytes::logical_message(true, at, "audit", "not an event"),
                Piece::Update => bytes::update(OUTBOX, &vec![None; SHAPES[shape].len()]),
                Piece::Delete => bytes::delete(OUTBOX, &[Some("0192")]),
                Piece::Truncate => bytes::truncate(OUTBOX),
                Piece::Origin => bytes::origin(at),
                Piece::Type => bytes::data_type(),
                Piece::StrayStreamAbort => bytes::stray_stream_abort(xid),
                Piece::Row { .. } | Piece::Message { .. } => unreachable!("numbered when it was committed"),
            },
        }
    }

    fn with_values<T>(&self, number: usize, shape: usize, each: impl FnOnce(&[Option<&str>]) -> T) -> T {
        let row = &self.rows[number];
        let id = number.to_string();
        let value = |(name, _): &(&str, u32)| match *name {
            "id" => Some(id.as_str()),
            "aggregatetype" => Some(row.route),
            "aggregateid" => row.key.as_deref(),
            "type" => Some("Placed"),
            "payload" => Some(row.payload.as_str()),
            _ => None,
        };
        each(&SHAPES[shape].iter().map(value).collect::<Vec<_>>())
    }

    fn content(&self, number: usize) -> String {
        let row = &self.rows[number];
        let key = row.key.as_ref().map_or_else(|| "null".to_owned(), |key| format!("\"{key}\""));
        format!(
            "{{\"id\": \"{number}\", \"aggregatetype\": \"{}\", \"aggregateid\": {key}, \"type\": \"Placed\", \"payload\": {}}}",
            row.route, row.payload
        )
    }
}

fn payload(number: usize, bytes: usize) -> String {
    format!("{{\"row\": {number}, \"pad\": \"{}\"}}", "x".repeat(bytes))
}

/// Which tables' shapes a connection has been told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    outbox: Option<usize>,
    orders: bool,
}

impl Told {
    /// The Relation message that has to come before `change`.
    fn before(&mut self, change: &Change, shape: usize, messages: &mut Vec<Bytes>) {
        match change {
            Change::Row(_) | Change::Piece(Piece::Update | Piece::Delete | Piece::Truncate) => {
                if self.outbox.replace(shape) != Some(shape) {
                    messages.push(bytes::relation(OUTBOX, "outbox", SHAPES[shape]));
                }
            }
            Change::Piece(Piece::OtherRow) => {
                if !std::mem::replace(&mut self.orders, true) {
                    messages.push(bytes::relation(ORDERS, "orders", ORDERS_SHAPE));
                }
            }
            Change::Message(_) | Change::Piece(_) => {}
        }
    }
}

/// What the publication holds.
pub(crate) fn published() -> Vec<PublishedTable> {
    let column = |(name, type_id): &(&str, u32)| RelationColumn {
        name: (*name).to_owned(),
        type_id: *type_id,
        type_modifier: -1,
    };
    let table = |id, name: &str, columns: &[(&str, u32)]| PublishedTable {
        relation: Relation {
            id,
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            replica_identity: b'd',
            columns: columns.iter().map(column).collect(),
        },
        ancestors: Vec::new(),
        domains: Vec::new(),
    };
    vec![table(OUTBOX, "outbox", SHAPES[0]), table(ORDERS, "orders", ORDERS_SHAPE)]
}
