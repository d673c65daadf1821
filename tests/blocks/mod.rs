//! The blocks of commands on a page of the manual.
//!
//! In: a page. Out: its blocks, each with its commands and with what they are to print, or with the reason why nobody runs it: a comment
//! `<!-- not run: REASON -->` on the line above. It runs nothing.

/// Languages of blocks that a reader types.
const TYPED: [&str; 4] = ["console", "sh", "bash", "sql"];

/// A block that a reader types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    /// Such as `console`.
    pub(crate) language: String,
    /// Its first line on the page.
    pub(crate) line: usize,
    /// Without the indentation of its fence.
    pub(crate) lines: Vec<String>,
    /// Why nobody runs it.
    pub(crate) not_run: Option<String>,
}

/// A command, and what it is to print.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    /// One line, without the prompt.
    pub(crate) command: String,
    /// What stands between `<<'END'` and `END`.
    pub(crate) input: Option<String>,
    /// Lines; `…` for what differs.
    pub(crate) expected: Vec<String>,
}

/// The blocks of a page, in its order.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let (mut found, mut open, mut above) = (Vec::new(), None::<(usize, Block)>, "");
    for (number, line) in page.lines().enumerate() {
        let indented = line.len() - line.trim_start().len();
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (None, Some(language)) => {
                let not_run = above.trim().strip_prefix("<!-- not run: ").and_then(|rest| rest.strip_suffix(" -->"));
                let block = Block {
                    language: language.trim().to_owned(),
                    line: number + 1,
                    lines: Vec::new(),
                    not_run: not_run.map(str::to_owned),
                };
                open = Some((indented, block));
            }
            (Some(_), Some(_)) => found.extend(open.take().map(|(_, block)| block)),
            (Some((indentation, block)), None) => block.lines.push(line.chars().skip(*indentation).collect()),
            (None, None) => {}
        }
        if !line.trim().is_empty() {
            above = line;
        }
    }
    found.retain(|block| TYPED.contains(&block.language.as_str()));
    found
}

impl Block {
    /// What is typed, one after the other.
    pub(crate) fn steps(&self) -> Vec<Step> {
        if self.language == "sql" {
            return vec![Step { command: "sql".to_owned(), input: Some(self.lines.join("\n")), expected: Vec::new() }];
        }
        let prompt = if self.language == "console" { "$ " } else { "" };
        let (mut steps, mut lines) = (Vec::<Step>::new(), self.lines.iter());
        while let Some(line) = lines.next() {
            match (line.strip_prefix(prompt), steps.last_mut()) {
                _ if line.trim().is_empty() => {}
                (Some(command), _) => steps.push(whole(command, &mut lines)),
                (None, Some(step)) => step.expected.push(line.clone()),
                (None, None) => panic!("line {}: what prints {line:?}?", self.line),
            }
        }
        steps
    }
}

/// A command with the lines that belong to it.
fn whole<'a>(first: &str, lines: &mut impl Iterator<Item = &'a String>) -> Step {
    let mut command = first.to_owned();
    while let Some(begun) = command.strip_suffix('\\').map(str::to_owned) {
        command = begun + lines.next().map_or("", |line| line.trim_start());
    }
    let input = command.split_once("<<'").map(|(before, end)| (before.trim_end().to_owned(), end.to_owned()));
    let Some((before, end)) = input else { return Step { command, input: None, expected: Vec::new() } };
    let end = end.trim_end_matches('\'');
    let input: Vec<&str> = lines.map(String::as_str).take_while(|line| *line != end).collect();
    Step { command: before, input: Some(input.join("\n")), expected: Vec::new() }
}

#[test]
fn a_block_has_commands_with_what_they_print_or_a_reason() {
    let page = "1. Do\n\n   ```console\n   $ one \\\n       two\n   said\n   $ psql <<'SQL'\n   SELECT 1;\n   SQL\n   ```\n\n<!-- not run: why -->\n```sh\nx\n```\n\n```json\n{}\n```\n";
    let found = blocks(page);
    assert_eq!(found.len(), 2);
    let steps = found[0].steps();
    assert_eq!((steps[0].command.as_str(), steps[0].expected.as_slice()), ("one two", ["said".to_owned()].as_slice()));
    assert_eq!((steps[1].command.as_str(), steps[1].input.as_deref()), ("psql", Some("SELECT 1;")));
    assert_eq!((found[0].not_run.as_deref(), found[1].not_run.as_deref()), (None, Some("why")));
}
