//! The read buffer, and the frames in it: a tag byte, a 32-bit length that counts itself, a body.
//!
//! ```text
//!  bytes:  [ consumed │ tag len body │ tag len body │ tag le… │ free ]
//!                     ▲ start                                 ▲ end
//! ```
//!
//! In: the bytes of a read, which may end within a frame. Out: one whole frame at a time, borrowed from the buffer. A frame stays in
//! the buffer until it is consumed. So if a destination has no room for a record, its frame is simply read again later.
//! Invariant: `start <= end <= bytes.len()`; the buffer grows only for a frame whose length was checked against the limit.
//! Specification: PostgreSQL manual, section 54.2 "Message Flow", 54.7 "Message Formats".

use std::ops::Range;

/// The size of the buffer in bytes, unless a frame is larger. A walsender's socket buffer is smaller.
const INITIAL_BYTES: usize = 256 * 1024;

/// The least room for a read, in bytes. If there is less, the buffer's content is moved to its front.
const LEAST_READ_BYTES: usize = 32 * 1024;

/// The bytes of tag and length.
const HEADER_BYTES: usize = 5;

/// One message of the frontend/backend protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The kind: `d` for CopyData, `E` for ErrorResponse, …
    pub tag: u8,
    /// The bytes after the length.
    pub body: &'a [u8],
}

impl Frame<'_> {
    /// The bytes of the whole frame.
    pub const fn len(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }

    /// Whether the body is empty.
    pub const fn is_empty(&self) -> bool {
        self.body.is_empty()
    }
}

/// The next frame cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length is less than its own four bytes.
    #[error("malformed frame: tag {:?} with a length of {length}", char::from(*.tag))]
    BadLength {
        /// The frame's tag.
        tag: u8,
        /// The length as sent.
        length: i32,
    },
    /// The frame is larger than the limit.
    #[error("a message of {length} bytes is larger than the {limit} that are allowed")]
    TooLarge {
        /// The frame's tag.
        tag: u8,
        /// Bytes of the whole frame.
        length: usize,
        /// The largest frame that is read, in bytes.
        limit: usize,
    },
}

/// The bytes that were received and not yet consumed.
#[derive(Debug)]
pub struct ReadBuffer {
    bytes: Vec<u8>,
    /// The index of the first byte that is not consumed.
    start: usize,
    /// The index behind the last received byte.
    end: usize,
    /// The largest frame, in bytes.
    limit: usize,
    /// The number of coming bytes to drop: the rest of a frame that was discarded. The buffer is empty while this is not 0.
    unwanted: usize,
}

impl ReadBuffer {
    /// Creates an empty buffer for frames of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { bytes: vec![0; INITIAL_BYTES], start: 0, end: 0, limit, unwanted: 0 }
    }

    /// Changes the limit for the frames that follow.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Drops all bytes, for a new connection.
    pub fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
        self.unwanted = 0;
    }

    /// Whether no bytes wait.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The frame at the front. `None`: it was not received whole yet.
    ///
    /// # Errors
    /// Its length is impossible or above the limit. No later frame can be read.
    #[inline]
    pub fn frame(&self) -> Result<Option<Frame<'_>>, FrameError> {
        let Some((tag, length)) = self.header()? else { return Ok(None) };
        Ok(self.front().get(HEADER_BYTES..length).map(|body| Frame { tag, body }))
    }

    /// Removes the first `length` bytes: a frame that was handled.
    ///
    /// # Panics
    /// Fewer bytes were received.
    pub fn consume(&mut self, length: usize) {
        assert!(length <= self.end - self.start, "consumed {length} bytes of {}", self.end - self.start);
        self.start += length;
        self.return_to_front();
    }

    /// Removes the frame at the front, of `length` bytes, even if it was not received whole. This is for frames above the limit.
    pub fn discard(&mut self, length: usize) {
        self.unwanted = length;
        self.drop_unwanted();
    }

    /// The room for the next read. It is never empty.
    pub fn space(&mut self) -> &mut [u8] {
        self.make_room();
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    /// `length` bytes of [`ReadBuffer::space`] were filled.
    ///
    /// # Panics
    /// There was less room.
    pub fn filled(&mut self, length: usize) {
        assert!(length <= self.bytes.len() - self.end, "more bytes filled than there is room for");
        self.end += length;
        if self.unwanted > 0 {
            self.drop_unwanted();
        }
    }

    #[cold]
    fn drop_unwanted(&mut self) {
        let dropped = self.unwanted.min(self.end - self.start);
        self.unwanted -= dropped;
        self.start += dropped;
        self.return_to_front();
    }

    fn return_to_front(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// The bytes of the first frame that were not received yet. 0: the frame is whole, or its length is not known.
    pub fn missing(&self) -> usize {
        match self.header() {
            Ok(Some((_, length))) => length.saturating_sub(self.front().len()),
            Ok(None) | Err(_) => self.unwanted,
        }
    }

    /// The received bytes, from the tag of the first frame on.
    pub fn front(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// The tag and the whole length of the first frame.
    #[inline]
    fn header(&self) -> Result<Option<(u8, usize)>, FrameError> {
        let Some(&[tag, a, b, c, d]) = self.front().first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let counted = i32::from_be_bytes([a, b, c, d]);
        let length = match usize::try_from(counted) {
            Ok(counted @ 4..) => counted + 1,
            Ok(_) | Err(_) => return Err(FrameError::BadLength { tag, length: counted }),
        };
        if length > self.limit {
            return Err(FrameError::TooLarge { tag, length, limit: self.limit });
        }
        Ok(Some((tag, length)))
    }

    fn make_room(&mut self) {
        let wanted = match self.header() {
            Ok(Some((_, length))) => length.max(INITIAL_BYTES),
            Ok(None) | Err(_) => INITIAL_BYTES,
        };
        if self.is_empty() && self.bytes.len() > INITIAL_BYTES {
            self.bytes.truncate(INITIAL_BYTES);
            self.bytes.shrink_to_fit();
        }
        let short = self.bytes.len() - self.end < LEAST_READ_BYTES;
        if short || self.bytes.len() < wanted {
            self.move_to_front();
        }
        if self.bytes.len() < wanted || self.bytes.len() - self.end < LEAST_READ_BYTES {
            let grown = wanted.max(self.end + LEAST_READ_BYTES);
            self.bytes.reserve_exact(grown - self.bytes.len());
            self.bytes.resize(grown, 0);
        }
    }

    fn move_to_front(&mut self) {
        let kept: Range<usize> = self.start..self.end;
        self.bytes.copy_within(kept, 0);
        (self.start, self.end) = (0, self.end - self.start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(tag: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap();
        [&[tag][..], &length.to_be_bytes(), body].concat()
    }

    /// Feeds one piece for each read, and collects the frames.
    fn read_all(pieces: &[&[u8]], limit: usize) -> Vec<(u8, Vec<u8>)> {
        let mut buffer = ReadBuffer::new(limit);
        let mut frames = Vec::new();
        for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() {
                let space = buffer.space();
                let taken = rest.len().min(space.len());
                space[..taken].copy_from_slice(&rest[..taken]);
                buffer.filled(taken);
                rest = &rest[taken..];
                while let Some(frame) = buffer.frame().unwrap() {
                    frames.push((frame.tag, frame.body.to_vec()));
                    let length = frame.len();
                    buffer.consume(length);
                }
            }
        }
        assert!(buffer.is_empty());
        frames
    }

    #[test]
    fn a_frame_comes_out_whole_however_the_bytes_are_split() {
        let bytes = [frame(b'd', b"hello"), frame(b'Z', b"I"), frame(b'c', b"")].concat();
        let expected = vec![(b'd', b"hello".to_vec()), (b'Z', b"I".to_vec()), (b'c', Vec::new())];
        assert_eq!(read_all(&[&bytes], 1000), expected);
        for at in 0..bytes.len() {
            assert_eq!(read_all(&[&bytes[..at], &bytes[at..]], 1000), expected, "split at {at}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(read_all(&single, 1000), expected);
    }

    #[test]
    fn a_frame_larger_than_the_buffer_makes_it_grow_to_that_size_and_shrink_again() {
        let body = vec![7; 3 * INITIAL_BYTES];
        let bytes = frame(b'd', &body);
        let mut buffer = ReadBuffer::new(usize::MAX);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let space = buffer.space();
            let taken = rest.len().min(space.len()).min(100_000);
            space[..taken].copy_from_slice(&rest[..taken]);
            buffer.filled(taken);
            rest = &rest[taken..];
        }
        assert!(buffer.bytes.len() <= bytes.len() + LEAST_READ_BYTES);
        assert_eq!(buffer.frame().unwrap().unwrap().body, body);
        buffer.consume(bytes.len());
        buffer.space();
        assert_eq!(buffer.bytes.len(), INITIAL_BYTES);
    }

    #[test]
    fn a_length_above_the_limit_is_refused_before_any_room_is_made() {
        let mut buffer = ReadBuffer::new(1 << 20);
        buffer.space()[..5].copy_from_slice(&[b'd', 0x7F, 0xFF, 0xFF, 0xFF]);
        buffer.filled(5);
        assert_eq!(buffer.frame(), Err(FrameError::TooLarge { tag: b'd', length: 1 << 31, limit: 1 << 20 }));
        buffer.space();
        assert_eq!(buffer.bytes.len(), INITIAL_BYTES);
    }

    #[test]
    fn a_frame_that_nobody_wants_is_dropped_as_it_comes_and_takes_no_room() {
        let bytes = [frame(b'd', &vec![7; 3 * INITIAL_BYTES]), frame(b'Z', b"I")].concat();
        for piece in [1000, 50_000, INITIAL_BYTES] {
            let mut buffer = ReadBuffer::new(1000);
            let mut discarded = false;
            for mut part in bytes.chunks(piece) {
                while !part.is_empty() {
                    let space = buffer.space();
                    let taken = part.len().min(space.len());
                    space[..taken].copy_from_slice(&part[..taken]);
                    buffer.filled(taken);
                    part = &part[taken..];
                    if !discarded && let Err(FrameError::TooLarge { length, .. }) = buffer.frame() {
                        assert_eq!(buffer.front()[0], b'd');
                        buffer.discard(length);
                        discarded = true;
                    }
                    assert_eq!(buffer.bytes.len(), INITIAL_BYTES);
                }
            }
            assert_eq!(buffer.frame().unwrap(), Some(Frame { tag: b'Z', body: b"I" }));
        }
    }

    #[test]
    fn a_length_that_does_not_count_itself_is_refused() {
        for length in [-1, 0, 3, i32::MIN] {
            let mut buffer = ReadBuffer::new(1000);
            buffer.space()[0] = b'd';
            buffer.space()[1..5].copy_from_slice(&length.to_be_bytes());
            buffer.filled(5);
            assert_eq!(buffer.frame(), Err(FrameError::BadLength { tag: b'd', length }));
        }
    }

    proptest! {
        #[test]
        fn any_frames_in_any_pieces_come_out_as_they_went_in(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 1..40),
            piece in 1usize..5000,
        ) {
            let bytes: Vec<u8> = bodies.iter().flat_map(|body| frame(b'd', body)).collect();
            let pieces: Vec<&[u8]> = bytes.chunks(piece).collect();
            let expected: Vec<_> = bodies.into_iter().map(|body| (b'd', body)).collect();
            prop_assert_eq!(read_all(&pieces, usize::MAX), expected);
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut buffer = ReadBuffer::new(1 << 16);
            buffer.space()[..bytes.len()].copy_from_slice(&bytes);
            buffer.filled(bytes.len());
            while let Ok(Some(frame)) = buffer.frame() {
                let length = frame.len();
                buffer.consume(length);
            }
            buffer.space();
        }
    }
}
