//! Words as a shell takes them.
//!
//! In: a text. Out: the same as one word of a command that can be pasted. Pure.

/// As one word for a POSIX shell.
pub fn shell_quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@=,%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_word_that_the_shell_would_change_is_quoted() {
        let quoted = ["orders", "postgres://u@h:5432/d", "", "a b", "it's", "outbox.event.{route}"].map(shell_quoted);
        assert_eq!(quoted, ["orders", "postgres://u@h:5432/d", "''", "'a b'", "'it'\\''s'", "'outbox.event.{route}'"]);
    }
}
