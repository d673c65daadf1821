//! What targets share whose inputs are texts: several texts in one input, files that hold them, and what a message must be like.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use walrelay::pg::source::{Environment, Source};

/// Between two texts of one input: a line with nothing else on it.
pub const BETWEEN: &str = "\n%%\n";

/// A secret that no input has: a target puts it where secrets stand, and looks for it in all that is shown.
pub const SECRET: &str = "hunter2hunter2";

/// What messages say of a text that libpq cannot read. `assert_well_formed` needs them, since a problem has no other kind.
const MALFORMED: [&str; 7] = [
    "the connection string is empty",
    "is not one of Postgres: expected postgres://",
    "neither a connection URI",
    "the connection URI is malformed",
    "the connection string is malformed",
    "has an @ that",
    "is not a connection keyword",
];

/// The most that a message has beside what it quotes, in characters.
const WORDS: usize = 1000;

/// A file without a name, so that a run that is cut off leaves nothing behind. Only its owner may read it.
pub struct Scratch {
    file: File,
    path: PathBuf,
}

impl Scratch {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("walrelay-fuzz-{}-{name}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
        Self { file, path }
    }

    /// Where it can be read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn write(&self, bytes: &[u8]) {
        self.file.set_len(0).unwrap();
        self.file.write_all_at(bytes, 0).unwrap();
    }
}

/// Whether a text may name a file that has no end, and so is not to be read.
pub fn names_devices(text: &str) -> bool {
    ["dev", "proc"].iter().any(|folder| text.contains(folder))
}

/// The texts of an input.
pub fn texts(input: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(input);
    std::iter::from_fn(move || {
        let text = rest?;
        let end = text.windows(BETWEEN.len()).position(|window| window == BETWEEN.as_bytes());
        rest = end.map(|end| &text[end + BETWEEN.len()..]);
        Some(&text[..end.unwrap_or(text.len())])
    })
}

/// A message for people is not longer than its words and `quoted` characters.
#[track_caller]
pub fn assert_bounded(message: &str, quoted: usize) {
    assert!(message.chars().count() <= WORDS + quoted, "{} characters: {message:?}", message.chars().count());
}

/// And it is one line.
#[track_caller]
pub fn assert_short(message: &str, quoted: usize) {
    assert_bounded(message, quoted);
    assert!(!message.contains(char::is_control), "{message:?} is not one line");
}

/// A connection string that is written for people may name what there is not, and ask for what cannot be had, but its syntax and its
/// parameters are libpq's.
#[track_caller]
pub fn assert_well_formed(source: &str) {
    let Err(error) = Source::resolve(Some(source), &bare()) else { return };
    let malformed = MALFORMED.iter().any(|text| error.problem.text.contains(text));
    assert!(!malformed, "{source:?}: {error}");
}

/// A user `me` without a home, sockets and variables.
pub fn bare() -> Environment {
    Environment { user: Some("me".to_owned()), ..Environment::default() }
}

/// The bytes with each `from` replaced.
pub fn replaced(bytes: &[u8], from: &str, to: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, behind)) = rest.split_first() {
        if let Some(behind) = rest.strip_prefix(from.as_bytes()) {
            out.extend_from_slice(to);
            rest = behind;
        } else {
            out.push(*first);
            rest = behind;
        }
    }
    out
}
