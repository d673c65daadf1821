//! Questions to people, and output whose reader may go away.
//!
//! In: a writer, and perhaps somebody who answers. Out: the answer; or whether all of the output was written. A command that
//! changes something finishes its work although nobody reads what it says any more, and then ends with an error.

use super::error::CommandError;
use std::io::{self, BufRead, Write};

/// Where a command's words go to, and where answers come from.
pub struct Dialogue<'a> {
    /// The lines that say what was done, or found.
    pub out: &'a mut dyn Write,
    /// The lines that say what is waited for, and questions where `out` may be where the records go.
    pub notes: &'a mut dyn Write,
    /// Where an answer is read from. `None`: nobody is there.
    pub terminal: Option<&'a mut dyn BufRead>,
}

/// Asks whether to go on. `terminal`: where the answer is read from; `None` when nobody is there.
///
/// # Errors
/// Nobody can be asked, or the question cannot be written.
pub(super) fn agreed(
    out: &mut dyn Write,
    terminal: Option<&mut dyn BufRead>,
    command: &str,
) -> Result<bool, CommandError> {
    let Some(terminal) = terminal else {
        return Err(CommandError::nobody_to_ask(command));
    };
    let asked = write!(out, "Continue? [y/N] ").and_then(|()| out.flush());
    asked.map_err(CommandError::unheard)?;
    let mut answer = String::new();
    terminal.read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Writes as long as somebody reads, and remembers that nobody does.
pub(super) struct Finishing<'a> {
    out: &'a mut dyn Write,
    failed: Option<io::Error>,
}

impl<'a> Finishing<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> Self {
        Self { out, failed: None }
    }

    /// As [`agreed`], unless nobody has read what came before.
    ///
    /// # Errors
    /// Nobody can be asked, or somebody could not read all of it.
    pub(super) fn agreed(&mut self, terminal: Option<&mut dyn BufRead>, command: &str) -> Result<bool, CommandError> {
        match self.failed.take() {
            Some(error) => Err(CommandError::unheard(error)),
            None => agreed(self.out, terminal, command),
        }
    }

    /// Whether nobody reads any more.
    pub(super) const fn is_unheard(&self) -> bool {
        self.failed.is_some()
    }

    /// Checks that all was written.
    ///
    /// # Errors
    /// It was not, and the work is done.
    pub(super) fn end(self) -> Result<(), CommandError> {
        self.failed.map_or(Ok(()), |error| Err(CommandError::unheard(error)))
    }
}

impl Write for Finishing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.failed.is_none() {
            self.failed = self.out.write_all(bytes).err();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.failed.is_none() {
            self.failed = self.out.flush().err();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that is gone.
    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn only_a_clear_yes_is_one_and_nobody_cannot_be_asked() {
        for (answer, yes) in
            [("y\n", true), ("YES\n", true), ("\n", false), ("", false), ("no\n", false), ("yo\n", false)]
        {
            assert_eq!(agreed(&mut Vec::new(), Some(&mut answer.as_bytes()), "it").unwrap(), yes, "{answer:?}");
        }
        assert_eq!(agreed(&mut Vec::new(), None, "it").unwrap_err().kind.exit_code(), 64);
    }

    #[test]
    fn work_goes_on_without_a_reader_and_ends_with_1_and_a_question_without_one_is_no_yes() {
        let mut closed = Closed;
        let mut out = Finishing::new(&mut closed);
        assert!(writeln!(out, "one").is_ok() && writeln!(out, "two").is_ok());
        assert_eq!(out.end().unwrap_err().kind.exit_code(), 1);
        let mut heard = Vec::new();
        let mut out = Finishing::new(&mut heard);
        writeln!(out, "one").unwrap();
        out.end().unwrap();
        assert_eq!(heard, b"one\n");
        let error = agreed(&mut Closed, Some(&mut "y\n".as_bytes()), "it").unwrap_err();
        assert_eq!(error.kind.exit_code(), 1);
        let mut out = Finishing::new(&mut closed);
        writeln!(out, "this goes").unwrap();
        assert_eq!(out.agreed(Some(&mut "y\n".as_bytes()), "it").unwrap_err().kind.exit_code(), 1);
    }
}
