//! AMQP 0-9-1 by its bytes: frames, and the values in them.
//!
//! In: bytes that have come. Out: whole frames, and what stands in them, borrowed. Back: values appended to bytes to be sent. It does
//! no I/O and knows no method. Bytes that are no frame are an error, never a panic.
//!
//! ```text
//!   frame:  type (1)  channel (2)  size (4)  payload (size)  0xCE
//! ```
//!
//! Specification: AMQP 0-9-1, sections 2.3 and 4.2; RabbitMQ, "AMQP 0-9-1 Errata" for the types of values in tables.

/// What opens a connection.
pub(super) const PROTOCOL: [u8; 8] = *b"AMQP\x00\x00\x09\x01";

/// What a frame costs beyond its payload, in bytes.
pub(super) const FRAME_OVERHEAD: usize = 8;

/// The longest short string, in bytes.
pub(super) const SHORT: usize = 255;

const HEAD: usize = 7;
const END: u8 = 0xCE;

/// Tables that stand in each other deeper than this are none of a broker's.
const DEEPEST: usize = 16;

/// These are not AMQP's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Garbled;

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    Method,
    /// What precedes a message's body.
    Header,
    Body,
    Heartbeat,
}

/// A frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) sort: Sort,
    pub(super) channel: u16,
    pub(super) payload: &'a [u8],
}

/// The first frame of `bytes` and its length, once it has come whole. `largest`: bytes of a whole frame.
pub(super) fn frame(bytes: &[u8], largest: usize) -> Result<Option<(Frame<'_>, usize)>, Garbled> {
    let Some((&sort, rest)) = bytes.split_first() else { return Ok(None) };
    let sort = match sort {
        1 => Sort::Method,
        2 => Sort::Header,
        3 => Sort::Body,
        8 => Sort::Heartbeat,
        _ => return Err(Garbled),
    };
    let Some((channel, rest)) = rest.split_first_chunk() else { return Ok(None) };
    let Some((size, rest)) = rest.split_first_chunk() else { return Ok(None) };
    let size = usize::try_from(u32::from_be_bytes(*size)).map_err(|_| Garbled)?;
    if size > largest.saturating_sub(FRAME_OVERHEAD) {
        return Err(Garbled);
    }
    let Some((payload, rest)) = rest.split_at_checked(size) else { return Ok(None) };
    match rest.first() {
        None => Ok(None),
        Some(&END) => {
            let frame = Frame { sort, channel: u16::from_be_bytes(*channel), payload };
            Ok(Some((frame, HEAD + size + 1)))
        }
        Some(_) => Err(Garbled),
    }
}

/// Values one after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Values<'a>(&'a [u8]);

impl<'a> Values<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], Garbled> {
        let (number, rest) = self.0.split_first_chunk().ok_or(Garbled)?;
        self.0 = rest;
        Ok(*number)
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], Garbled> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Garbled)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Garbled> {
        self.number::<1>().map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Garbled> {
        self.number().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Garbled> {
        self.number().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Garbled> {
        self.number().map(u64::from_be_bytes)
    }

    pub(super) fn short(&mut self) -> Result<&'a [u8], Garbled> {
        let length = self.u8()?;
        self.bytes(length.into())
    }

    pub(super) fn long(&mut self) -> Result<&'a [u8], Garbled> {
        let length = self.u32()?;
        self.bytes(usize::try_from(length).map_err(|_| Garbled)?)
    }

    /// Calls `take` with the name and the text of each entry that is a long string; tables in the table are looked into as well.
    pub(super) fn table(&mut self, take: &mut dyn FnMut(&'a [u8], &'a [u8])) -> Result<(), Garbled> {
        self.table_in(take, 0)
    }

    fn table_in(&mut self, take: &mut dyn FnMut(&'a [u8], &'a [u8]), depth: usize) -> Result<(), Garbled> {
        if depth > DEEPEST {
            return Err(Garbled);
        }
        let mut entries = Self(self.long()?);
        while !entries.0.is_empty() {
            let name = entries.short()?;
            entries.value(name, take, depth)?;
        }
        Ok(())
    }

    fn value(&mut self, name: &'a [u8], take: &mut dyn FnMut(&'a [u8], &'a [u8]), depth: usize) -> Result<(), Garbled> {
        match self.u8()? {
            b'V' => Ok(()),
            b't' | b'b' | b'B' => self.bytes(1).map(drop),
            b's' | b'u' => self.bytes(2).map(drop),
            b'I' | b'i' | b'f' => self.bytes(4).map(drop),
            b'D' => self.bytes(5).map(drop),
            b'l' | b'L' | b'd' | b'T' => self.bytes(8).map(drop),
            b'S' | b'x' => self.long().map(|text| take(name, text)),
            b'F' => self.table_in(take, depth + 1),
            b'A' => {
                if depth > DEEPEST {
                    return Err(Garbled);
                }
                let mut items = Self(self.long()?);
                while !items.0.is_empty() {
                    items.value(name, take, depth + 1)?;
                }
                Ok(())
            }
            _ => Err(Garbled),
        }
    }
}

/// A frame that is being written.
#[derive(Debug)]
pub(super) struct Writing<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Writing<'a> {
    pub(super) fn begin(out: &'a mut Vec<u8>, sort: Sort, channel: u16) -> Self {
        let start = out.len();
        out.push(match sort {
            Sort::Method => 1,
            Sort::Header => 2,
            Sort::Body => 3,
            Sort::Heartbeat => 8,
        });
        out.extend_from_slice(&channel.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        Self { out, start }
    }

    /// A method of this class.
    pub(super) fn method(out: &'a mut Vec<u8>, channel: u16, (class, method): (u16, u16)) -> Self {
        Self::begin(out, Sort::Method, channel).u16(class).u16(method)
    }

    pub(super) fn u8(self, number: u8) -> Self {
        self.raw(&[number])
    }

    pub(super) fn u16(self, number: u16) -> Self {
        self.raw(&number.to_be_bytes())
    }

    pub(super) fn u32(self, number: u32) -> Self {
        self.raw(&number.to_be_bytes())
    }

    pub(super) fn u64(self, number: u64) -> Self {
        self.raw(&number.to_be_bytes())
    }

    pub(super) fn raw(self, bytes: &[u8]) -> Self {
        self.out.extend_from_slice(bytes);
        self
    }

    /// At most [`SHORT`] bytes; what is beyond is left out.
    pub(super) fn short(self, text: &[u8]) -> Self {
        let text = text.get(..SHORT).unwrap_or(text);
        let length = u8::try_from(text.len()).unwrap_or(u8::MAX);
        self.u8(length).raw(text)
    }

    /// A short string, where there is one.
    pub(super) fn property(self, text: Option<&[u8]>) -> Self {
        match text {
            Some(text) => self.short(text),
            None => self,
        }
    }

    pub(super) fn long(self, text: &[u8]) -> Self {
        self.u32(size_of_long(text.len())).raw(text)
    }

    /// A table of the entries that `fill` writes.
    pub(super) fn table(self, fill: impl FnOnce(Self) -> Self) -> Self {
        let at = self.out.len();
        let mut filled = fill(self.u32(0));
        let length = filled.out.len() - at - 4;
        filled.patch(at, length);
        filled
    }

    /// An entry of a table: a long string, or nothing.
    pub(super) fn entry(self, name: &[u8], value: Option<&[u8]>) -> Self {
        match value {
            Some(value) => self.short(name).u8(b'S').long(value),
            None => self.short(name).u8(b'V'),
        }
    }

    /// An entry of a table: it is so.
    pub(super) fn yes(self, name: &[u8]) -> Self {
        self.short(name).u8(b't').u8(1)
    }

    /// An entry of a table: another table.
    pub(super) fn within(self, name: &[u8], fill: impl FnOnce(Self) -> Self) -> Self {
        self.short(name).u8(b'F').table(fill)
    }

    fn patch(&mut self, at: usize, length: usize) {
        if let Some(place) = self.out.get_mut(at..at + 4) {
            place.copy_from_slice(&size_of_long(length).to_be_bytes());
        }
    }

    /// The frame is whole: its length in bytes.
    pub(super) fn end(mut self) -> usize {
        let (start, payload) = (self.start, self.out.len() - self.start - HEAD);
        self.patch(start + 3, payload);
        self.out.push(END);
        payload + FRAME_OVERHEAD
    }
}

fn size_of_long(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Whole = (Sort, u16, Vec<u8>);

    /// All frames of `bytes`, and how many bytes are left.
    fn frames(mut bytes: &[u8], largest: usize) -> Result<(Vec<Whole>, usize), Garbled> {
        let mut found = Vec::new();
        while let Some((whole, length)) = frame(bytes, largest)? {
            found.push((whole.sort, whole.channel, whole.payload.to_vec()));
            bytes = &bytes[length..];
        }
        Ok((found, bytes.len()))
    }

    fn sort() -> impl Strategy<Value = Sort> {
        prop_oneof![Just(Sort::Method), Just(Sort::Header), Just(Sort::Body), Just(Sort::Heartbeat)]
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in_wherever_they_are_split(
            written in prop::collection::vec((sort(), any::<u16>(), prop::collection::vec(any::<u8>(), 0..40)), 0..8),
            splits in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let mut bytes = Vec::new();
            for (sort, channel, payload) in &written {
                let length = Writing::begin(&mut bytes, *sort, *channel).raw(payload).end();
                prop_assert_eq!(length, payload.len() + FRAME_OVERHEAD);
            }
            let mut ends: Vec<usize> = splits.iter().map(|split| split.index(bytes.len() + 1)).collect();
            ends.push(bytes.len());
            ends.sort_unstable();
            let (mut input, mut found, mut start) = (Vec::new(), Vec::new(), 0);
            for end in ends {
                input.extend_from_slice(&bytes[start..end]);
                start = end;
                let (some, left) = frames(&input, 1000).unwrap();
                found.extend(some);
                input.drain(..input.len() - left);
            }
            prop_assert_eq!(found, written);
            prop_assert!(input.is_empty());
        }

        #[test]
        fn garbage_is_an_error_or_incomplete_and_never_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            largest in 0..5000_usize,
        ) {
            if let Ok((_, left)) = frames(&bytes, largest) {
                prop_assert!(left <= bytes.len());
            }
            let mut values = Values::of(&bytes);
            while values.table(&mut |_, _| {}).is_ok() && !values.0.is_empty() {}
            let mut values = Values::of(&bytes);
            let _of_any_kind = (values.short().is_ok(), values.u64().is_ok(), values.long().is_ok());
        }

        #[test]
        fn tables_that_are_almost_right_never_panic(
            entries in prop::collection::vec((any::<u8>(), "VtbBsuIifDlLdTSxFA", prop::collection::vec(any::<u8>(), 0..20)), 0..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = Vec::new();
            Writing::begin(&mut bytes, Sort::Method, 1).table(|table| {
                entries.iter().fold(table, |table, (name, kind, value)| {
                    table.short(&[*name]).u8(kind.bytes().next().unwrap_or(b'V')).raw(value)
                })
            }).end();
            let mut names = 0;
            let whole = Values::of(&bytes[HEAD..]).table(&mut |_, _| names += 1);
            let part = Values::of(&bytes[HEAD..HEAD + cut.index(bytes.len() - HEAD)]).table(&mut |_, _| {});
            prop_assert!(whole.is_ok() || part.is_err() || entries.is_empty());
        }
    }

    #[test]
    fn a_frame_larger_than_agreed_or_without_its_end_is_garbled() {
        let mut bytes = Vec::new();
        Writing::begin(&mut bytes, Sort::Body, 3).raw(&[7; 100]).end();
        assert!(frame(&bytes, 108).unwrap().is_some());
        assert_eq!(frame(&bytes, 107), Err(Garbled));
        *bytes.last_mut().unwrap() = 0;
        assert_eq!(frame(&bytes, 108), Err(Garbled));
        assert_eq!(frame(b"HTTP/1.1 400", 4096), Err(Garbled));
    }

    #[test]
    fn a_table_keeps_its_texts_also_those_deeper_in_it() {
        let mut bytes = Vec::new();
        Writing::begin(&mut bytes, Sort::Method, 0)
            .table(|table| {
                table
                    .entry(b"a", Some(b"1"))
                    .entry(b"none", None)
                    .within(b"t", |inner| inner.yes(b"flag").entry(b"b", Some(b"2")))
            })
            .u16(7)
            .end();
        let (whole, _) = frame(&bytes, 1000).unwrap().unwrap();
        let (mut values, mut found) = (Values::of(whole.payload), Vec::new());
        values.table(&mut |name, text| found.push((name.to_vec(), text.to_vec()))).unwrap();
        assert_eq!(found, [(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), b"2".to_vec())]);
        assert_eq!((values.u16(), values.u8()), (Ok(7), Err(Garbled)));
    }

    #[test]
    fn tables_within_tables_without_end_are_garbled() {
        let mut bytes = Vec::new();
        for _ in 0..2000 {
            bytes = [&size_of_long(bytes.len() + 3).to_be_bytes()[..], b"\x01nF", &bytes].concat();
        }
        bytes.extend_from_slice(&[0; 4]);
        assert_eq!(Values::of(&bytes).table(&mut |_, _| {}), Err(Garbled));
    }
}
