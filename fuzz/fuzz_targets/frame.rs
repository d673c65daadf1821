//! Any bytes in any pieces: the read buffer gives the same frames as when all came at once, the same error, and no panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use walrelay::pg::frame::{FrameError, ReadBuffer};

/// Largest frame that is read.
const LIMIT: usize = 1 << 20;

type Frames = (Vec<(u8, Vec<u8>)>, Option<FrameError>);

/// Feeds `bytes` in pieces of these sizes, the last again and again.
fn read(bytes: &[u8], pieces: &[u8]) -> Frames {
    let mut buffer = ReadBuffer::new(LIMIT);
    let mut frames = Vec::new();
    let mut sizes = pieces.iter().map(|size| usize::from(*size) + 1).chain(std::iter::repeat(bytes.len().max(1)));
    let mut rest = bytes;
    loop {
        loop {
            let frame = match buffer.frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            };
            frames.push((frame.tag, frame.body.to_vec()));
            let length = frame.len();
            buffer.consume(length);
        }
        if rest.is_empty() {
            return (frames, None);
        }
        let space = buffer.space();
        let length = rest.len().min(space.len()).min(sizes.next().unwrap_or(1));
        space[..length].copy_from_slice(&rest[..length]);
        buffer.filled(length);
        rest = &rest[length..];
    }
}

fuzz_target!(|input: (Vec<u8>, &[u8])| {
    let (pieces, bytes) = input;
    assert_eq!(read(bytes, &pieces), read(bytes, &[]));
});
