//! Quotes names and texts for SQL.

/// `name` as an SQL identifier, always quoted.
pub fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `text` as an SQL string literal.
pub fn literal(text: &str) -> String {
    postgres_protocol::escape::escape_literal(text).trim_start().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_and_literals_are_quoted_whatever_they_hold() {
        assert_eq!(identifier("Od\"d"), "\"Od\"\"d\"");
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("a\\b"), "E'a\\\\b'");
    }
}
