//! Upgrades under load: one program ends, and another version goes on with the state that it has left.
//!
//! ```text
//!  old ──SIGTERM──▶ new ──SIGTERM──▶ old ──SIGKILL──▶ new ──SIGKILL──▶ old ──▶ … ──SIGTERM──▶ new
//! ```
//!
//! In: the revision of the old program, or that program. Out: a line for each hand-over, the books, PASS or FAIL. The old program makes
//! publication and slot, as it does where it was installed first. The last program is the new one.
//!
//! Services, load, and the comparison of rows and records are those of the rounds of chaos: see [`super::world`] and [`super::report`].

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use walrelay_dev::{process, provision, relay};

use super::plan::{Kind, Round, Strike};
use super::report::{Outcome, Report};
use super::world::{PATIENCE, Settings, World};
use super::{PUT_OFF, folder};
use crate::binary::Binary;
use crate::screen::{again, line};

/// How long one program publishes before it ends.
const LEG: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The new program
    #[command(flatten)]
    binary: Binary,
    /// The revision of the old program, such as a tag: it is built from this repository, unless it was before
    #[arg(long, required_unless_present = "old")]
    from: Option<String>,
    /// The old program itself
    #[arg(long, conflicts_with = "from")]
    old: Option<PathBuf>,
    /// How often the programs take turns, there and back by SIGTERM and there and back by SIGKILL
    #[arg(long, default_value_t = 2)]
    times: usize,
    #[command(flatten)]
    settings: Settings,
}

/// Whether everything that is promised held.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let settings = &arguments.settings;
    settings.ensure_possible()?;
    let new = arguments.binary.path()?;
    let old = match (&arguments.from, &arguments.old) {
        (Some(revision), _) => build(revision)?,
        (None, Some(old)) => std::path::absolute(old)?,
        (None, None) => anyhow::bail!("--from or --old"),
    };
    for (name, binary) in [("old", &old), ("new", &new)] {
        let version = relay::run_well(binary, &["--version"])?;
        line(&format!("{name}: {}, {}", version.trim(), binary.display()));
    }
    let hand_overs = hand_overs(arguments.times, &old, &new);
    let mut world = World::start(settings, 1, &old)?;
    let mut report = Report::default();
    let mut broken = Vec::new();
    let played = hand_overs.iter().try_for_each(|hand_over| -> Result<()> {
        let outcome = hand_over.play(&mut world, settings).with_context(|| hand_over.name())?;
        line(&format!("{}  {}", outcome.describe(hand_overs.len()), hand_over.name()));
        let memory = world.relay.usage().map(|usage| usage.memory.peak).unwrap_or_default();
        report.peak_kib = report.peak_kib.max(memory);
        report.outcomes.push(outcome);
        Ok(())
    });
    match played {
        Ok(()) => report.verdicts.push(world.end().context("comparing the books")?),
        Err(error) => broken.push(format!("{error:#}")),
    }
    for outcome in &mut report.outcomes {
        outcome.repeats = world.reader.repeats(outcome.round.number);
    }
    report.print(settings);
    broken.extend(report.broken(settings));
    if !broken.is_empty() {
        let folder = folder(settings.seed, 1);
        world.keep_logs(&folder)?;
        line(&format!("logs are kept in {}", folder.display()));
    }
    world.close()?;
    for what in &broken {
        line(what);
    }
    line(&format!("{}  again: {}", if broken.is_empty() { "PASS" } else { "FAIL" }, again(settings.seed)));
    Ok(broken.is_empty())
}

/// One program ends, and another one goes on.
struct HandOver<'a> {
    number: usize,
    kind: Kind,
    to: &'a Path,
    /// Whether the new program goes on.
    is_upgrade: bool,
}

/// There and back by SIGTERM, there and back by SIGKILL, so many times, and a last time there.
fn hand_overs<'a>(times: usize, old: &'a Path, new: &'a Path) -> Vec<HandOver<'a>> {
    let turn = [(Kind::RelayTerm, true), (Kind::RelayTerm, false), (Kind::RelayKill, true), (Kind::RelayKill, false)];
    let turns = turn.into_iter().cycle().take(turn.len() * times).chain([(Kind::RelayTerm, true)]);
    let hand_over =
        |(number, (kind, is_upgrade))| HandOver { number, kind, to: if is_upgrade { new } else { old }, is_upgrade };
    (1..).zip(turns).map(hand_over).collect()
}

impl HandOver<'_> {
    fn name(&self) -> String {
        (if self.is_upgrade { "old, then new" } else { "new, then old" }).to_owned()
    }

    fn play(&self, world: &mut World, settings: &Settings) -> Result<Outcome> {
        world.reader.begin_round(self.number);
        std::thread::sleep(LEG);
        let in_flight = world.caught_in_flight(PUT_OFF);
        let (mut code, mut absent) = (None, Vec::new());
        if self.kind == Kind::RelayKill {
            world.relay.kill9()?;
            if !settings.exactly_once() {
                absent = world.absent_below_confirmed(true)?;
            }
        } else {
            code = Some(world.relay.terminate(PATIENCE)?.code);
        }
        world.relay.start_again_as(self.to)?;
        let (recovery, standstill) = world.recover()?;
        world.settle()?;
        absent.extend(world.absent_below_confirmed(false)?);
        let first = Strike { kind: self.kind, hold: Duration::ZERO, dice: 0 };
        Ok(Outcome {
            round: Round { number: self.number, brokers: 1, calm: LEG, first, second: None },
            in_flight,
            second: None,
            killed: self.kind == Kind::RelayKill,
            lost: false,
            given_up: 0,
            code,
            recovery,
            standstill,
            repeats: world.reader.repeats(self.number),
            absent,
            moved_back: world.moved_back(false)?,
        })
    }
}

/// Builds the program of a revision of this repository in a folder of its own, unless it was built before. Returns where it is.
fn build(revision: &str) -> Result<PathBuf> {
    let repository = walrelay_dev::repository();
    let git = |arguments: &[&str]| {
        process::finish(Command::new("git").arg("-C").arg(&repository).args(arguments))
            .with_context(|| format!("git {}", arguments.join(" ")))
    };
    let commit = git(&["rev-parse", "--verify", "--short=12", &format!("{revision}^{{commit}}")])?;
    let home = provision::dev_dir().join("upgrade").join(commit.trim());
    let (program, sources, archive) = (home.join("walrelay"), home.join("sources"), home.join("sources.tar"));
    if program.exists() {
        return Ok(program);
    }
    line(&format!("building {} of {revision} in {}", commit.trim(), home.display()));
    std::fs::create_dir_all(&sources)?;
    git(&["archive", "--format=tar", &format!("--output={}", archive.display()), commit.trim()])?;
    process::finish(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&sources))?;
    std::fs::remove_file(&archive)?;
    let target = home.join("target");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(cargo);
    cargo
        .args(["build", "--locked", "--workspace", "--bin", "walrelay"])
        .current_dir(&sources)
        .env("CARGO_TARGET_DIR", &target);
    anyhow::ensure!(cargo.status().context("cargo")?.success(), "{revision} cannot be built");
    // The name is there only once the build is done.
    std::fs::rename(target.join("debug/walrelay"), &program)?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_ends_by_each_signal_and_the_new_one_is_the_last() {
        let (old, new) = (Path::new("old"), Path::new("new"));
        let found: Vec<_> = hand_overs(1, old, new).iter().map(|one| (one.kind, one.to.to_str().unwrap())).collect();
        let expected = [
            (Kind::RelayTerm, "new"),
            (Kind::RelayTerm, "old"),
            (Kind::RelayKill, "new"),
            (Kind::RelayKill, "old"),
            (Kind::RelayTerm, "new"),
        ];
        assert_eq!(found, expected);
    }
}
