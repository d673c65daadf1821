use super::*;
use std::collections::{BTreeMap, BTreeSet};

const SETTINGS: [&str; 8] = ["--config", "--source", "--slot", "--table", "--topic", "-X", "--header", "--bad-row-at"];

fn typed(command: &str, flags: &[(&str, Option<&str>)]) -> TypedFlags {
    let place = ["--config", "--source", "--slot", "--table"];
    let known: [(&str, &[&str], &[&str]); 6] = [
        ("run", &SETTINGS, &["--dry-run"]),
        ("check", &SETTINGS, &["--json"]),
        ("backfill", &SETTINGS, &["--rate", "--where", "--again"]),
        ("setup", &place, &["--apply", "--role", "--create-table", "--shards", "--reshard", "--backfill"]),
        ("teardown", &place[..3], &["--yes"]),
        ("dead-letters", &["--config", "--slot"], &["--replay"]),
    ];
    let known = known.map(|(name, settings, own)| {
        let flags: BTreeSet<String> = settings.iter().chain(own).map(|flag| (*flag).to_owned()).collect();
        (name.to_owned(), flags)
    });
    TypedFlags {
        command: command.to_owned(),
        arguments: flags.iter().map(|(flag, value)| Argument::typed(flag, *value)).collect(),
        known: BTreeMap::from(known),
    }
}

const PLACE: [(&str, Option<&str>); 2] = [("--source", Some("postgres://u@h/d?a=1&b=2")), ("--slot", Some("orders"))];

fn setup() -> Command {
    Command::new("setup").flag("--apply")
}

/// `§` stands for the flags of [`PLACE`].
#[track_caller]
fn check(remedy: impl Into<Remedy>, completed: &str) {
    let flags = " --source 'postgres://u@h/d?a=1&b=2' --slot orders";
    assert_eq!(remedy.into().with(&typed("run", &PLACE)).to_string(), completed.replace('§', flags));
}

#[test]
fn a_command_in_a_hint_gets_the_flags_that_were_typed() {
    check(setup(), "walrelay setup --apply§");
    check(
        Remedy::from("never made: ").and(setup()).and(", then run it. (").and(Command::new("run")).and(")"),
        "never made: walrelay setup --apply§, then run it. (walrelay run§)",
    );
    let backfill = Command::new("backfill").set("--where", "at > now() - interval '1 day'").flag("--again");
    check(backfill, r"walrelay backfill --where 'at > now() - interval '\''1 day'\''' --again§");
}

#[test]
fn what_a_command_has_is_not_said_twice() {
    let command = setup().set("--slot", "s");
    check(command, "walrelay setup --apply --slot s --source 'postgres://u@h/d?a=1&b=2'");
    check(
        Remedy::new_slot("s"),
        "walrelay teardown --slot s --yes --source 'postgres://u@h/d?a=1&b=2' && walrelay setup --apply --slot s --source 'postgres://u@h/d?a=1&b=2'",
    );
}

#[test]
fn every_setting_that_was_typed_stays_and_the_hints_own_wins() {
    let flags = [
        ("--topic", Some("x.{route}")),
        ("-X", Some("linger.ms=5")),
        ("-X", Some("security.protocol=SSL")),
        ("--header", Some("a=typ")),
        ("--header", Some("b=at")),
        ("--dry-run", None),
    ];
    let hint = Command::new("run").set("-X", "security.protocol=PLAINTEXT").set("--header", "a=type");
    assert_eq!(
        Remedy::from(hint.clone()).with(&typed("check", &flags)).to_string(),
        format!("{hint} --topic 'x.{{route}}' -X linger.ms=5 --header b=at")
    );
    // The same job once more.
    let again = Remedy::from(Command::new("run").set("--topic", "x")).with(&typed("run", &flags)).to_string();
    assert!(again.ends_with("--dry-run") && !again.contains("route"), "{again}");
}

#[test]
fn a_command_gets_no_flag_that_it_does_not_take_and_no_consent() {
    let flags = [("--table", Some("a")), ("--topic", Some("t")), ("--apply", None), ("--role", Some("r"))];
    let said = |command, hint| Remedy::from(Command::new(hint)).with(&typed(command, &flags)).to_string();
    assert_eq!(said("run", "setup"), "walrelay setup --table a");
    assert_eq!(said("setup", "setup"), "walrelay setup --table a --role r");
    assert_eq!(said("run", "teardown"), "walrelay teardown");
    // It says which table is pruned, not which are published.
    assert_eq!(said("prune", "run"), "walrelay run --topic t");
    let nothing_typed = Remedy::from(Command::new("run")).with(&TypedFlags::default());
    assert_eq!(nothing_typed.to_string(), "walrelay run");
}

#[test]
fn a_command_gets_no_flag_that_excludes_one_that_it_has() {
    let flags = [("--reshard", Some("2")), ("--create-table", None), ("--slot", Some("s"))];
    let shards = || setup().set("--shards", "2");
    assert_eq!(
        Remedy::from(shards()).with(&typed("setup", &flags)).to_string(),
        "walrelay setup --apply --shards 2 --slot s"
    );
    let flags = [("--shards", Some("2")), ("--backfill", None)];
    let reshard = Remedy::from(setup().set("--reshard", "2")).with(&typed("setup", &flags));
    assert_eq!(reshard.to_string(), "walrelay setup --apply --reshard 2");
}

#[test]
fn the_hint_of_a_backfill_says_how_to_backfill() {
    let typed = typed("backfill", &[("--rate", Some("5/s")), ("--again", None)]);
    let said = |hint: Command| Remedy::from(hint).with(&typed).to_string();
    assert_eq!(said(Command::new("run").set("--topic", "x")), "walrelay backfill --topic x --rate 5/s");
    assert_eq!(said(Command::new("run")), "walrelay run");
}

#[test]
fn a_command_that_asks_no_database_gets_no_source() {
    let replay = Command::new("dead-letters").flag("--replay");
    check(Remedy::from(replay).and(" shows"), "walrelay dead-letters --replay --slot orders shows");
}

#[test]
fn words_and_sql_stay() {
    let remedy = Remedy::sql("ALTER x;").and(" -- as ").and("walrelay run").and(" needs it");
    assert_eq!(
        remedy.parts(),
        [Part::Sql("ALTER x;".to_owned()), Part::Text(" -- as walrelay run needs it".to_owned())]
    );
    check(remedy, "ALTER x; -- as walrelay run needs it");
}

#[test]
fn a_secret_is_not_repeated() {
    let flags = [
        ("--source", Some("postgres://u:hunter2@h/d")),
        ("-X", Some("sasl.password=hunter2")),
        ("-X", Some("ssl.key.password=@/run/key")),
        ("-X", Some("ssl.keystore.password=@@hunter2")),
        ("--schema-registry-password", Some("@@hunter2")),
    ];
    let typed = typed("run", &flags);
    let said = "walrelay run --source postgres://u@h/d -X 'sasl.password=…' -X ssl.key.password=@/run/key -X 'ssl.keystore.password=…'";
    assert_eq!(Remedy::from(Command::new("run")).with(&typed).to_string(), said);
    assert!(!format!("{typed:?}").contains("hunter2"));
}
