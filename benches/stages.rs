//! How long each stage takes for a row: `cargo bench --bench stages`, or with a part of an id behind it, `-- insert/`.
//!
//! Times are this machine's. What shows a regression anywhere is `benches/instructions.md`.
#![allow(
    missing_docs,
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "a benchmark"
)]

#[path = "stages/mod.rs"]
mod stages;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::Instant;
use walrelay::lsn::Lsn;
use walrelay::pg::frame::ReadBuffer;
use walrelay::positions::Ledger;

/// Bytes of payload that each stage is measured with.
const PAYLOADS: [usize; 4] = [200, 1024, 10_240, 921_600];

/// Rows to a transaction for the ledger.
const TRANSACTIONS: [u32; 3] = [1, 10, 1000];

fn payloads(criterion: &mut Criterion, name: &str, mut each: impl FnMut(usize) -> Box<dyn FnMut() -> usize>) {
    let mut group = criterion.benchmark_group(name);
    for payload in PAYLOADS {
        let mut run = each(payload);
        group.throughput(Throughput::Bytes(payload as u64));
        group.bench_function(BenchmarkId::from_parameter(format!("payload={payload}")), |bencher| {
            bencher.iter(|| black_box(run()));
        });
    }
    group.finish();
}

fn frames(criterion: &mut Criterion) {
    payloads(criterion, "frame", |payload| {
        let (frame, mut buffer) = (stages::frame(payload), ReadBuffer::new(1 << 30));
        Box::new(move || stages::frames(&mut buffer, black_box(&frame)))
    });
}

fn decode(criterion: &mut Criterion) {
    payloads(criterion, "decode", |payload| {
        let frame = stages::frame(payload);
        Box::new(move || stages::decode(black_box(&frame[5..])))
    });
}

fn insert(criterion: &mut Criterion) {
    payloads(criterion, "insert", |payload| {
        let (message, mut outbox) = (stages::insert(payload), stages::outbox());
        Box::new(move || stages::map(&mut outbox, &stages::tuple(black_box(&message))))
    });
}

fn ledger(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ledger");
    for rows in TRANSACTIONS {
        let (mut ledger, mut lsn, now) = (Ledger::new(Lsn::new(1)), 1, Instant::now());
        group.throughput(Throughput::Elements(rows.into()));
        group.bench_function(BenchmarkId::from_parameter(format!("rows_per_transaction={rows}")), |bencher| {
            bencher.iter(|| stages::track(&mut ledger, &mut lsn, black_box(rows), now));
        });
    }
    group.finish();
}

criterion_group!(benches, frames, decode, insert, ledger);
criterion_main!(benches);
