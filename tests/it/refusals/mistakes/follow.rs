//! From hint to hint, as somebody would who does what is printed and nothing else.
//!
//! In: a place with mistakes. Out: nothing, once the right records are there. What a hint can ask for: SQL that begins it, commands of
//! ours, a command of Kafka's tools, or words that only whoever made the mistake can turn into a value: see [`Mistake::by_hand`].

use super::place::{Outcome, Place};
use super::table::Mistake;
use super::{Case, MOST_STEPS};
use crate::hints::first_commands;
use crate::secure;

/// Stands in hints for what was to be looked at first.
const CHECK: &str = "walrelay check, with the same flags";

/// Follows until the rows flow.
pub(super) fn out_of(case: &Case) {
    let own = case.iter().find_map(|mistake| mistake.place);
    let mut place = own.map_or_else(Place::new, |own| own());
    for mistake in case {
        (mistake.make)(&mut place);
    }
    place.commit_early();
    let mut walk = Walk { place, left: case.clone(), seen: Vec::new(), told: false };
    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| walk.until_rows_flow(case.len() * MOST_STEPS)));
    if let Err(panic) = told {
        eprintln!("{}: {:#?}\nflags: {:?}", super::name(case), walk.seen, walk.place.flags);
        std::panic::resume_unwind(panic);
    }
    if std::env::var_os("MISTAKES").is_some() {
        eprintln!("{}: {} steps", super::name(case), walk.seen.len());
    }
}

struct Walk {
    place: Place,
    /// Mistakes that no hand has put right yet; SQL and commands may have.
    left: Vec<&'static Mistake>,
    seen: Vec<String>,
    /// That older rows are not published.
    told: bool,
}

impl Walk {
    fn until_rows_flow(&mut self, most: usize) {
        while let Outcome::Says(hint) = self.place.start() {
            assert!(self.seen.len() < most, "{most} steps lead nowhere");
            assert!(hint.contains(CHECK) || self.seen.last() != Some(&hint), "followed, and said once more");
            self.seen.push(hint.clone());
            self.follow(&hint);
        }
        let has_all = self.place.verify();
        let told = self.told || self.seen.iter().any(|hint| hint.contains("docs/operations/republish.md"));
        assert!(has_all || told, "older rows are not there, and no hint has said how to publish them");
    }

    fn follow(&mut self, hint: &str) {
        self.follow_of(hint, true);
    }

    fn follow_of(&mut self, hint: &str, whole: bool) {
        if hint.contains(CHECK) {
            if let Some(fix) = self.place.first_fix() {
                self.seen.push(fix.clone());
                return self.follow(&fix);
            }
            // Where it says neither, what was in the way has passed, as brokers that were slow to answer.
            if let Some(line) = line_of(hint, "kafka-acls.sh ") {
                secure::kafka().run_acls(line).unwrap();
            }
            if let Some(line) = line_of(hint, "kafka-topics.sh ") {
                create_topic(line);
            }
            return;
        }
        let is_asked_for = |mistake: &&Mistake| {
            mistake.by_hand.is_some_and(|(words, _)| words.split('|').any(|words| hint.contains(words)))
        };
        let (asked_for, left): (Vec<_>, Vec<_>) = self.left.iter().copied().partition(is_asked_for);
        if !asked_for.is_empty() {
            if let Some(statements) = leading_sql(hint) {
                self.place.sql(statements);
            }
            // Of several things that are named, each is looked at.
            self.left = left;
            return asked_for.iter().filter_map(|mistake| mistake.by_hand).for_each(|(_, hand)| hand(&mut self.place));
        }
        if let Some(statements) = leading_sql(hint) {
            return self.place.sql(statements);
        }
        if let Some(line) = line_of(hint, "kafka-acls.sh ") {
            return secure::kafka().run_acls(line).unwrap();
        }
        if let Some(line) = line_of(hint, "kafka-topics.sh ") {
            return create_topic(line);
        }
        self.run_ours(hint, whole);
    }

    /// `whole`: `run` said it, or `check`, so that a `run` in it has all of the flags. Of what other commands say, the flags go along with
    /// those that are typed already.
    fn run_ours(&mut self, hint: &str, whole: bool) {
        let as_owner = hint.contains("as the publication's owner");
        let commands = first_commands(hint);
        assert!(!commands.is_empty(), "nothing to do in {hint:?}");
        for mut words in commands {
            words.iter_mut().filter(|word| *word == "SCHEMA.TABLE").for_each(|word| "public.outbox".clone_into(word));
            let (name, flags) = words.split_first().unwrap();
            if name == "run" {
                let flags = without_http(flags);
                if whole {
                    self.place.flags = flags;
                } else {
                    flags.chunks(2).for_each(|pair| self.place.flag(&pair[0], &pair[1]));
                }
                continue;
            }
            if as_owner {
                words.extend(["--source".to_owned(), self.place.lane().source.clone()]);
            }
            let output = self.place.run(&words);
            if output.status.success() {
                self.told |= String::from_utf8_lossy(&output.stdout).contains("will not be published");
                continue;
            }
            let said = String::from_utf8(output.stderr).unwrap();
            let more = if said.contains("\nhint: run it as the owner") {
                vec!["--source".to_owned(), self.place.lane().source.clone()]
            } else if said.contains("if it is the one to drop, add --unmarked") {
                // The hint that is followed has named the slot.
                vec!["--unmarked".to_owned()]
            } else {
                Vec::new()
            };
            if !more.is_empty() {
                words.extend(more);
                let output = self.place.run(&words);
                assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
                self.told |= String::from_utf8_lossy(&output.stdout).contains("will not be published");
                continue;
            }
            let next = said.lines().find_map(|line| line.strip_prefix("hint: "));
            let next = next.unwrap_or_else(|| panic!("{words:?}: {said}")).to_owned();
            assert!(!self.seen.contains(&next), "{words:?}: followed, and said once more: {said}");
            self.seen.push(next.clone());
            // The rest of the commands is typed again after that.
            return self.follow_of(&next, false);
        }
    }
}

/// The harness gives each start a port of its own.
fn without_http(flags: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut flags = flags.iter();
    while let Some(flag) = flags.next() {
        match flag.as_str() {
            "--http" => drop(flags.next()),
            other if other.starts_with("--http=") => {}
            _ => kept.push(flag.clone()),
        }
    }
    kept
}

/// The statements that a text begins with.
fn leading_sql(text: &str) -> Option<&str> {
    let is_sql = |part: &str| {
        part.trim_start().split(' ').next().is_some_and(|word| {
            word.len() > 3 && word.trim_end_matches(';').bytes().all(|byte| byte.is_ascii_uppercase())
        })
    };
    let mut end = 0;
    for part in text.split_inclusive(';') {
        if !part.ends_with(';') || !is_sql(part) {
            break;
        }
        end += part.len();
    }
    (end > 0).then(|| &text[..end])
}

/// A command of Kafka's tools in a text, to its end.
fn line_of<'h>(hint: &'h str, tool: &str) -> Option<&'h str> {
    hint.find(tool).map(|at| hint[at..].split("; ").next().unwrap_or_default())
}

fn create_topic(line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let value = |name: &str| words.iter().position(|word| *word == name).map(|at| words[at + 1]);
    assert!(words.contains(&"--create"), "{line}");
    let (kafka, topic) = (&secure::kafka().kafka, value("--topic").unwrap());
    if kafka.topics().unwrap().iter().any(|known| known == topic) {
        // The command says that it exists. A first record has created it since, or the rights were all that was missing.
        return;
    }
    let partitions = value("--partitions").map_or(1, |count| count.parse().unwrap());
    kafka.create_topic(topic, partitions, &[]).unwrap();
}

#[test]
fn sql_at_the_beginning_of_a_hint_is_what_is_run() {
    assert_eq!(leading_sql("ALTER ROLE \"a\" LOGIN;"), Some("ALTER ROLE \"a\" LOGIN;"));
    assert_eq!(leading_sql("BEGIN; ALTER x; COMMIT; -- rows; stay"), Some("BEGIN; ALTER x; COMMIT;"));
    assert_eq!(leading_sql("is it running; or not;"), None);
    assert_eq!(leading_sql("ALTER SYSTEM is not for you"), None);
}
