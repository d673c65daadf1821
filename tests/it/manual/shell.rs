//! A command line of the manual, as a shell reads it.

/// The words of a line, without its comment; `variable` knows what `$NAME` is.
pub(crate) fn words(line: &str, variable: &dyn Fn(&str) -> String) -> Vec<String> {
    let (mut words, mut word, mut any, mut quote) = (Vec::new(), String::new(), false, None);
    let mut rest = line.chars().peekable();
    while let Some(character) = rest.next() {
        match (quote, character) {
            (Some('\''), '\'') | (Some('"'), '"') => quote = None,
            (None, '\'' | '"') => (quote, any) = (Some(character), true),
            (None | Some('"'), '$') => {
                let mut name = String::new();
                while let Some(part) = rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
                    name.push(part);
                }
                word.push_str(&variable(&name));
            }
            (None | Some('"'), '\\') => match rest.next() {
                Some(next) if quote.is_none() || "\"\\$".contains(next) => word.push(next),
                next => word.extend(['\\'].into_iter().chain(next)),
            },
            (None, ' ') => {
                if std::mem::take(&mut any) || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            (None, '#') if word.is_empty() && !any => break,
            (_, other) => word.push(other),
        }
    }
    assert_eq!(quote, None, "{line} ends within quotes");
    if any || !word.is_empty() {
        words.push(word);
    }
    words
}

#[test]
fn a_line_is_read_as_a_shell_reads_it() {
    let read = |line| words(line, &|name| format!("<{name}>"));
    assert_eq!(read(r#"psql $URL -c "a '\x1' \"b\" \$2" # why"#), ["psql", "<URL>", "-c", r#"a '\x1' "b" $2"#]);
    assert_eq!(read(r"x --where 'status = '\''PENDING'\''' ''"), ["x", "--where", "status = 'PENDING'", ""]);
}
