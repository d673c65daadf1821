//! The process's exit codes.
//!
//! In: what a command's codes mean, where that differs. Out: the line of its `--help`. The manual's table is made of the same
//! values.

use crate::supervise::ExitKind;

/// The meaning of an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExitCode {
    /// The code; of one that signals give, with its others.
    pub codes: &'static [u8],
    /// In few words, for `--help`.
    pub short: &'static str,
    /// The whole meaning, for the manual.
    pub meaning: &'static str,
    /// The user's next step.
    pub action: &'static str,
}

/// All of them.
pub const EXIT_CODES: [ExitCode; 5] = [
    ExitCode { codes: &[0], short: "done", meaning: "done, or stopped on request", action: "nothing" },
    ExitCode {
        codes: &[ExitKind::Restart.exit_code()],
        short: "failed and a restart may fix it",
        meaning: "failed, and a restart may fix it; or a graceful shutdown ran out of time",
        action: "let the service manager restart it",
    },
    ExitCode {
        codes: &[ExitKind::Operator.exit_code()],
        short: "an operator must act",
        meaning: "an operator must act; a restart does not help",
        action: "read the line `hint:`, then [When it stops](../errors.md)",
    },
    ExitCode {
        codes: &[ExitKind::Settings.exit_code()],
        short: "the settings are wrong",
        meaning: "the settings are wrong; nothing was changed",
        action: "correct the setting that the error names",
    },
    ExitCode {
        codes: &[130, 143],
        short: "ended by a second signal",
        meaning: "ended at once by a second SIGINT, or by a second SIGTERM or SIGHUP, 0.2 s or more after the first",
        action: "nothing; [some rows repeat](../duplicates.md)",
    },
];

/// The line of a command's help: its codes, each with what it means there, or empty for what it always means.
pub fn exit_codes(of_command: &[(u8, &str)]) -> String {
    let known = |code: u8| EXIT_CODES.iter().find(|known| known.codes.contains(&code)).map_or("", |known| known.short);
    let each =
        of_command.iter().map(|&(code, own)| format!("{code} {}", if own.is_empty() { known(code) } else { own }));
    format!("Exit codes: {}.", each.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_says_what_is_its_own_and_the_table_the_rest() {
        let line = exit_codes(&[(0, "stopped on request"), (1, ""), (2, ""), (64, "")]);
        assert_eq!(
            line,
            "Exit codes: 0 stopped on request, 1 failed and a restart may fix it, 2 an operator must act, 64 the settings are wrong."
        );
    }
}
