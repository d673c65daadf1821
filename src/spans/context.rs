//! The trace context that a row brings along, as its record's header `traceparent` has it.
//!
//! In: the header's bytes. Out: a [`Context`], or nothing where it is none: a header is never changed for that. Pure, allocates nothing.
//! Specification: W3C, "Trace Context", section 3.2; of a later version, what the first one has counts.

/// Where in which trace a row was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// Never all zero.
    pub trace_id: [u8; 16],
    /// The span that wrote the row; never all zero.
    pub span_id: [u8; 8],
    /// The trace's flags.
    pub flags: u8,
}

/// The flag that says that somebody records the trace.
const SAMPLED: u8 = 1;

impl Context {
    /// Reads the header; `None`: it is malformed.
    pub fn parse(header: &[u8]) -> Option<Self> {
        let ([version], rest) = field(header)?;
        let (trace_id, rest) = field(rest.strip_prefix(b"-")?)?;
        let (span_id, rest) = field(rest.strip_prefix(b"-")?)?;
        let ([flags], rest) = field(rest.strip_prefix(b"-")?)?;
        let ends_well = match version {
            0 => rest.is_empty(),
            0xff => false,
            1..0xff => rest.is_empty() || rest.starts_with(b"-"),
        };
        let is_whole = ends_well && trace_id != [0; 16] && span_id != [0; 8];
        is_whole.then_some(Self { trace_id, span_id, flags })
    }

    /// Whether somebody records the trace.
    pub const fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }
}

/// So many bytes as hexadecimal digits, and what follows them.
fn field<const BYTES: usize>(text: &[u8]) -> Option<([u8; BYTES], &[u8])> {
    let (digits, rest) = text.split_at_checked(2 * BYTES)?;
    let mut bytes = [0; BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some((bytes, rest))
}

/// The specification allows lower case only.
const fn digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_header_has_trace_span_and_flags() {
        let context = Context::parse(format!("00-{TRACE}-{SPAN}-01").as_bytes()).unwrap();
        assert_eq!(context.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes());
        assert_eq!(context.span_id, 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes());
        assert!(context.flags == 1 && context.is_sampled());
    }

    #[test]
    fn the_lowest_flag_alone_says_whether_it_is_sampled() {
        for (flags, is_sampled) in [("00", false), ("01", true), ("02", false), ("03", true), ("ff", true)] {
            let context = Context::parse(format!("00-{TRACE}-{SPAN}-{flags}").as_bytes()).unwrap();
            assert_eq!(context.is_sampled(), is_sampled, "{flags}");
        }
    }

    #[test]
    fn a_later_version_may_have_more() {
        let first = Context::parse(format!("00-{TRACE}-{SPAN}-01").as_bytes());
        for later in [format!("01-{TRACE}-{SPAN}-01"), format!("cc-{TRACE}-{SPAN}-01-what-the-future-has")] {
            assert_eq!(Context::parse(later.as_bytes()), first, "{later}");
        }
    }

    #[test]
    fn what_is_malformed_is_none() {
        let whole = format!("00-{TRACE}-{SPAN}-01");
        for end in 0..whole.len() {
            assert_eq!(Context::parse(&whole.as_bytes()[..end]), None, "{end}");
        }
        for text in [
            format!("{whole}-"),
            format!("{whole} "),
            format!(" {whole}"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("01-{TRACE}-{SPAN}-01x"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00_{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-0g"),
            format!("00-{}é-{SPAN}-01", &TRACE[2..]),
        ] {
            assert_eq!(Context::parse(text.as_bytes()), None, "{text}");
        }
    }
}
