//! One stage, so many times: for `benches/instructions`, which counts instructions under callgrind.
//!
//! `instructions STAGE SIZE TIMES`, with the stages of `stages.rs`.
#![allow(
    missing_docs,
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "a benchmark"
)]

#[path = "stages/mod.rs"]
mod stages;

use std::hint::black_box;
use std::time::Instant;
use walrelay::lsn::Lsn;
use walrelay::pg::frame::ReadBuffer;
use walrelay::positions::Ledger;

fn main() {
    // cargo's own arguments, such as --bench, are none of ours.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let [stage, size, times] = arguments.as_slice() else {
        eprintln!("usage: instructions frame|decode|insert|ledger SIZE TIMES (nothing is run)");
        return;
    };
    let size: usize = size.parse().expect("a size");
    let times: u64 = times.parse().expect("a number");
    run(stage, size, times);
}

fn repeat(times: u64, mut once: impl FnMut() -> usize) {
    for _ in 0..times {
        black_box(once());
    }
}

fn run(stage: &str, size: usize, times: u64) {
    let frame = stages::frame(size);
    let message = stages::insert(size);
    match stage {
        "frame" => {
            let mut buffer = ReadBuffer::new(1 << 30);
            repeat(times, || stages::frames(&mut buffer, black_box(&frame)));
        }
        "decode" => repeat(times, || stages::decode(black_box(&frame[5..]))),
        "insert" => {
            let mut outbox = stages::outbox();
            repeat(times, || stages::map(&mut outbox, &stages::tuple(black_box(&message))));
        }
        "ledger" => {
            let (mut ledger, mut lsn, now) = (Ledger::new(Lsn::new(1)), 1, Instant::now());
            let rows = u32::try_from(size).expect("rows");
            (0..times).for_each(|_| stages::track(&mut ledger, &mut lsn, black_box(rows), now));
        }
        other => panic!("no stage {other}"),
    }
}
