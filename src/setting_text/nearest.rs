//! The known word that a mistyped one most resembles.
//!
//! In: what was typed, and what is valid. Out: the best candidate, or none when nothing resembles it enough to be a help.

/// A candidate must resemble the word at least so much; 1 is equality. Below it, suggestions read like guesses.
const RESEMBLANCE: f64 = 0.6;

/// Jaro-Winkler finds shared beginnings (`pub` for `publication`) but is generous; this brings it in line with edit distance.
const JARO_WINKLER_DISCOUNT: f64 = 0.2;

/// A longer word is none that was mistyped, in bytes; and to compare costs time and room for each of its characters.
const LONGEST_WORD: usize = 200;

/// The candidate nearest to `word`, whatever its case and whether it is written with `-`, `_` or `.`.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > LONGEST_WORD {
        return None;
    }
    let word = plain(word);
    candidates
        .into_iter()
        .map(|candidate| (resemblance(&word, &plain(candidate)), candidate))
        .filter(|(score, _)| *score >= RESEMBLANCE)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

fn resemblance(word: &str, candidate: &str) -> f64 {
    strsim::normalized_damerau_levenshtein(word, candidate)
        .max(strsim::jaro_winkler(word, candidate) - JARO_WINKLER_DISCOUNT)
}

fn plain(word: &str) -> String {
    word.trim_start_matches('-').to_lowercase().replace(['_', '.'], "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 5] = ["slot", "publication", "max-in-flight", "max-row", "source"];

    #[test]
    fn a_slip_of_the_finger_finds_its_word() {
        for (typed, meant) in
            [("slto", "slot"), ("publicaton", "publication"), ("MAX_INFLIGHT", "max-in-flight"), ("--sorce", "source")]
        {
            assert_eq!(nearest(typed, NAMES), Some(meant), "{typed}");
        }
    }

    #[test]
    fn a_beginning_finds_its_word() {
        assert_eq!(nearest("pub", NAMES), Some("publication"));
    }

    #[test]
    fn what_resembles_nothing_gets_no_guess() {
        assert_eq!(nearest("zzzzzz", NAMES), None);
        assert_eq!(nearest("", NAMES), None);
        // Words of other programs' connection strings.
        let keywords =
            ["max_protocol_version", "connect_timeout", "sslmode", "dbname", "application_name", "keepalives_idle"];
        for foreign in ["pool_max_conns", "pool_min_conns", "schema", "pgbouncer"] {
            assert_eq!(nearest(foreign, keywords), None, "{foreign}");
        }
        assert_eq!(nearest(&"publication".repeat(10_000), NAMES), None);
    }
}
