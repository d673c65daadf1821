//! walrelay: every row committed to an outbox table of Postgres becomes one record of a message broker.
//!
//! # The picture
//!
//! ```text
//!  Postgres                                   walrelay                                             Kafka
//!  ┌───────────┐ CopyBoth   ┌───────┐  ┌────────────┐  ┌────────┐  ┌────────┐  enqueue  ┌──────────┐      ┌────────┐
//!  │ walsender ├───────────►│ frame ├─►│  pgoutput  ├─►│ outbox ├─►│ record ├──────────►│ producer ├─────►│ broker │
//!  │           │            └───────┘  └────────────┘  └────────┘  └────────┘           └────┬─────┘      └────────┘
//!  │   slot    │◄───────────────────── status update ◄── feedback ◄── ledger ◄─── delivery report
//!  └───────────┘             one thread owns everything in this row; no queue, lock or task per row
//! ```
//!
//! Data flows left to right through pure functions. Positions flow back right to left. walrelay stores its position in the slot's
//! `confirmed_flush_lsn`, and with exactly once also in Kafka. It has no files and no tables of its own: its notes are comments on
//! objects of the database (`src/pg/marker.rs`, `src/pg/large_object_state.rs`).
//!
//! `docs/internals.md` follows a row, a position, a refused record and a setting. `CONTRIBUTING.md` has a table of changes, and the
//! files for each.
//!
//! # Invariants
//!
//! | # | always true | kept by |
//! |---|---|---|
//! | 1 | `flush_lsn` never goes back, except by `Ledger::fall_back_to`: the server left the timeline there, or another relay has had the slot | `assert!` in [`positions::Ledger`] |
//! | 2 | an LSN is confirmed only once every record of its transaction and of all earlier ones is acknowledged | [`positions::Ledger`]; the simulation compares each confirmed LSN with what the scripted broker has |
//! | 3 | a keepalive moves `flush_lsn` only when nothing is in flight and no transaction is open | [`positions::Ledger`]; simulation |
//! | 4 | one delivery report per enqueued record | `assert!` in [`positions::Ledger`] |
//! | 5 | bytes in flight ≤ `--max-in-flight` ≤ the client's queue | [`settings`] refuses otherwise |
//! | 6 | a length from the wire never drives an allocation or a loop unchecked | [`wire`] is the one reader; fuzzing |
//! | 7 | a problem that network, server, table or user can cause is an `Err`; a mistake of this program is an assert | review |
//!
//! # The modules, in the order of the data
//!
//! | module | takes | gives | never |
//! |---|---|---|---|
//! | [`lsn`], [`wire`] | bytes | LSNs, positions of rows, integers, slices | allocates by a length from the wire |
//! | [`stderr`] | log lines, the last `error:` line | the same on stderr, by a thread of its own | makes the caller wait for the reader of stderr |
//! | [`setting_text`] | texts of settings | the same with their origin, units, the nearest known text | knows a single setting |
//! | [`remedy`] | the parts of a hint, and the flags that the user typed | the hint, whose commands have those flags | parses text |
//! | [`check_finding`] | - | an observation of `check`, and its fix | parses text |
//! | [`secret`] | where a secret is | its present value | shows it |
//! | [`tls`] | trusted certificates, a client's key | a configuration of rustls | opens a connection |
//! | [`pg`] | a source's settings | frames, replication messages, query results | knows what a row means |
//! | [`pgoutput`] | one change's bytes | a message | does I/O |
//! | [`route`], [`outbox`] | relations and rows | records | does I/O |
//! | [`sink`] | settings of a destination, records | delivery reports, findings | confirms an LSN |
//! | [`positions`] | commits, reports, keepalives | the LSN to confirm, when to confirm it, the rows already received | reads a clock |
//! | [`relay`] | all of the above | the loop | - |
//! | [`supervise`] | settings | connections to Postgres, pauses, how the run ended | handles a row |
//! | [`metrics`], [`http`] | the loop's figures | metrics, health, `/status`, a page | slows the loop down |
//! | [`commands`] | a request | `run`, `setup`, `check`, `status`, `backfill`, `dead-letters`, `verify`, `prune`, `bench`, `teardown` | - |
//! | [`debezium`] | the files of a Debezium configuration | settings, and notes on keys without a counterpart; with the feature `debezium` | contacts anybody |
//! | [`settings`] | its table of settings, the command line, the file, the environment | requests, validated once | contacts anybody |

pub mod check_finding;
pub mod commands;
#[cfg_attr(not(feature = "debezium"), path = "debezium/off.rs")]
pub mod debezium;
pub mod http;
pub mod lsn;
pub mod metrics;
pub mod outbox;
pub mod pg;
pub mod pgoutput;
pub mod positions;
pub mod relay;
pub mod remedy;
pub mod route;
pub mod secret;
pub mod setting_text;
pub mod settings;
pub mod sink;
pub mod stderr;
pub mod supervise;
#[cfg(test)]
mod tests;
pub mod tls;
pub mod wire;
