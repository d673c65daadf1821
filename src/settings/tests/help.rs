//! What is said of flags: help, the nearest one, completions, pages of the manual, defaults.

use super::*;
use crate::remedy::{Command, Remedy};

#[test]
fn an_unknown_flag_names_the_nearest() {
    assert_eq!(
        refused(&["run", "--slto", "x"]),
        "error: unexpected argument '--slto' found\nhint: the nearest flag is --slot\n"
    );
    assert!(refused(&["run", "--max-inflight=1"]).contains("--max-in-flight"));
    assert!(refused(&["rnu"]).starts_with("error: unrecognized subcommand 'rnu'\nhint: the nearest command is run\n"));
    assert!(refused(&["run", "--apply"]).ends_with("hint: --apply is a flag of walrelay setup\n"));
    assert!(refused(&["zzz"]).contains(
        "hint: the commands are run, setup, check, status, teardown, dead-letters, backfill, verify, prune, bench, completions;"
    ));
    assert!(refused(&[]).starts_with("error: no command is given\n"));
    assert!(refused(&["run", "--slot"]).starts_with("error: a value is required for '--slot <NAME>'"));
}

#[test]
fn an_argument_that_may_hold_a_password_is_not_quoted() {
    for arguments in [
        &["run", "postgres://a:hunter2@db"][..],
        &["run", "password=hunter2"],
        &["postgres://a:hunter2@db"],
        &["run", "--sorce=postgres://a:hunter2@db"],
        &["run", "--sorce", "postgres://a:hunter2@db"],
        &["run", "-z=hunter2"],
        &["run", "--setup", "hunter2:x"],
        &["status", "--json=hunter2"],
        &["run", "-b", "kafka://a:hunter2@b"],
        &["run", "-X", "hunter2"],
    ] {
        let output = refused(arguments);
        assert!(!output.contains("hunter2"), "{output}");
    }
}

#[test]
fn help_and_version_exit_with_0() {
    for arguments in
        [&["--help"][..], &["-h"], &["run", "--help"], &["help", "run"], &["--version"], &["-V"], &["run", "-V"]]
    {
        let exit = parse_in(&environment(&[]), arguments).expect_err("must not run");
        assert_eq!(exit.code(), 0, "{arguments:?}: {exit}");
    }
}

#[test]
fn short_help_fits_two_screens_and_leads_to_the_rest() {
    for command in ["run", "check"] {
        let asked = |flag| parse_in(&environment(&[]), &[command, flag]).unwrap_err().to_string();
        let (brief, whole) = (asked("-h"), asked("--help"));
        assert!(brief.lines().count() <= 60, "{brief}");
        assert!(brief.contains("--source <URI>") && !brief.contains("--coalesce"), "{brief}");
        assert!(brief.contains(&format!("walrelay {command} --help")), "{brief}");
        assert!(whole.contains("--coalesce"), "{whole}");
    }
}

#[test]
fn help_states_the_defaults() {
    let help = parse_in(&environment(&[]), &["run", "--help"]).unwrap_err().to_string();
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for default in
        ["localhost:9092", "127.0.0.1:9464", "8s", "30s", "200us", "16MiB", "256MiB", "outbox.event.{route}", "warn"]
    {
        assert!(words.contains(&format!("[default: {default}]")), "{default}\n{help}");
    }
}

#[test]
fn help_shows_no_secret_of_the_environment() {
    let variables = environment(&[("WALRELAY_SOURCE", "postgres://a:hunter2@db"), ("PGPASSWORD", "hunter2")]);
    let help = parse_in(&variables, &["run", "--help"]).unwrap_err().to_string();
    assert!(!help.contains("hunter2"));
}

#[test]
fn the_last_of_a_flag_given_twice_counts() {
    assert_eq!(run(&["--slot", "a", "--slot", "b"]).slot, "b");
    let off = run_in(&environment(&[("WALRELAY_SETUP", "true")]), &["--setup=false"]).0;
    assert!(!off.setup);
}

#[test]
fn the_other_commands_have_their_flags() {
    let environment = environment(&[("WALRELAY_SLOT", "s"), ("WALRELAY_BROKERS", "not: a broker")]);
    let task = |arguments: &[&str]| parse_in(&environment, arguments).unwrap().task;
    let Task::Setup(config, None) =
        task(&["setup", "-t", "a", "--apply", "--failover", "--role", "relay", "--create-table"])
    else {
        panic!("no setup");
    };
    assert!(config.apply && config.failover && config.create_table);
    assert_eq!((config.slot.as_str(), config.role.as_deref(), config.tables.len()), ("s", Some("relay"), 1));
    let Task::Status(config) = task(&["status", "--json", "--watch"]) else { panic!("no status") };
    assert!(config.json && config.watch.is_some());
    let Task::Teardown(config) = task(&["teardown", "--yes", "--publication-too"]) else { panic!("no teardown") };
    assert!(config.yes && config.publication_too);
    assert!(matches!(task(&["status", "--ready", "--http", ":1"]), Task::Ready(http) if http == "127.0.0.1:1"));
    assert!(matches!(task(&["completions", "bash"]), Task::Completions(Shell::Bash)));
}

#[test]
fn completions_are_scripts() {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let script = String::from_utf8(cli::completions(shell)).unwrap();
        assert!(script.contains("walrelay") && script.contains("max-in-flight"), "{shell}");
    }
}

#[test]
fn the_manual_has_a_page_for_each_command_that_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let Task::Man(to) = parse_in(&environment(&[]), &["man", folder.path().to_str().unwrap()]).unwrap().task else {
        panic!("no manual");
    };
    cli::write_manual(&to).unwrap();
    let page = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(page("walrelay.1").contains("walrelay\\-run(1)") && page("walrelay-run.1").contains("max\\-in\\-flight"));
    assert!(!folder.path().join("walrelay-man.1").exists());
}

#[test]
fn log_settings_are_read_for_every_command() {
    let invocation = parse_in(&environment(&[]), &["teardown", "--log-level", "info,walrelay::relay=debug"]).unwrap();
    assert_eq!(invocation.log, LogConfig { format: LogFormat::Auto, filter: "info,walrelay::relay=debug".into() });
}

#[test]
fn a_file_that_cannot_be_read_is_named_with_the_reason() {
    let output = refused(&["run", "-c", "/no/such/file.toml"]);
    assert_eq!(output, "error: --config: cannot read /no/such/file.toml: No such file or directory (os error 2)\n");
}

#[test]
fn a_property_that_kafka_does_not_have_names_the_nearest_and_where_it_stands() {
    let typed = refused(&["run", "-X", "compresion.type=lz4"]);
    assert_eq!(
        typed,
        "error: -X compresion.type: Kafka has no property \"compresion.type\"\nhint: the nearest property is compression.type\n"
    );
    let secret = refused_in(&environment(&[("WALRELAY_KAFKA_SASL_PASSWRD", "hunter2")]), &["run"]);
    assert!(
        secret.starts_with("error: WALRELAY_KAFKA_SASL_PASSWRD: Kafka has no property \"sasl.passwrd\""),
        "{secret}"
    );
    assert!(
        secret.contains("hint: the nearest property is sasl.password\n") && !secret.contains("hunter2"),
        "{secret}"
    );
    let far = refused(&["run", "-X", "zzzz=1"]);
    assert!(far.contains("librdkafka/blob/master/CONFIGURATION.md"), "{far}");
}

#[test]
fn no_configuration_shows_a_secret() {
    let invocation = parse_in(
        &environment(&[("WALRELAY_KAFKA_SASL_PASSWORD", "hunter2")]),
        &["run", "-d", "postgres://a:hunter2@db", "-X", "ssl.key.password=hunter2"],
    );
    let shown = format!("{:?}", invocation.unwrap());
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn every_setting_has_a_group_and_a_help_without_its_default() {
    for setting in named() {
        assert!(!setting.help.is_empty() && !setting.help.contains("[default"), "{}: {}", setting.name, setting.help);
        assert!(!setting.group.is_empty(), "{}", setting.name);
    }
}

#[test]
fn a_flag_of_one_command_is_no_setting_of_the_same_name() {
    let variable = environment(&[("WALRELAY_DRY_RUN", "true"), ("WALRELAY_SETUP", "true")]);
    let task = |arguments: &[&str]| parse_in(&variable, arguments).unwrap().task;
    for (more, dry_run) in [(&[][..], false), (&["--dry-run"], true)] {
        let Task::Prune(request) = task(&[&["prune", "--older-than=1h"], more].concat()) else { panic!("no prune") };
        assert_eq!(request.dry_run, dry_run);
    }
    for (more, dry_run) in [(&[][..], true), (&["--dry-run=false"], false)] {
        let Task::Backfill(request) = task(&[&["backfill"], more].concat()) else { panic!("no backfill") };
        assert_eq!(request.run.dry_run, dry_run);
    }
}

#[test]
fn every_value_that_a_shell_offers_is_one() {
    for command in ["run", "bench"] {
        for row in table::of(command) {
            for value in row.words() {
                let flag = format!("--{}", row.name);
                let more = if flag == "--cloudevents" { &["--cloudevents-source", "/shop"][..] } else { &[] };
                let arguments = [&[command, &flag, value], more].concat();
                let parsed = parse_in(&environment(&[]), &arguments);
                assert!(parsed.is_ok(), "{arguments:?}: {}", parsed.unwrap_err());
            }
        }
    }
}

#[test]
fn every_flag_that_is_typed_is_repeated_by_hints_where_the_command_takes_it() {
    let typed = [
        "run",
        "-d",
        "postgres://u:hunter2@h/d",
        "--setup",
        "-t",
        "outbox",
        "--topic=x.{route}",
        "-X",
        "linger.ms=5",
        "-X",
        "sasl.password=hunter2",
        "--dry-run=false",
        "--on-bad-row",
        "skip",
    ];
    let typed = parse_in(&environment(&[]), &typed).unwrap().typed;
    let remedy = Remedy::from(Command::new("run").set("--key-column", "k"))
        .and("; ")
        .and(Command::new("setup").flag("--apply"))
        .and("; ")
        .and(Command::new("teardown").flag("--yes"));
    assert_eq!(
        remedy.with(&typed).to_string(),
        "walrelay run --key-column k --source postgres://u@h/d --setup --table outbox --dry-run=false -X linger.ms=5 \
         -X 'sasl.password=…' --topic 'x.{route}' --on-bad-row skip; walrelay setup --apply --source postgres://u@h/d \
         --table outbox; walrelay teardown --yes --source postgres://u@h/d"
    );
}

/// What `--help` names as a default is the default: with all of them typed, nothing changes.
#[test]
fn typing_the_defaults_that_help_names_changes_nothing() {
    const KINDS: [&str; 5] = ["DURATION", "SIZE", "ADDRESS", "TEMPLATE", "HOSTS"];
    let typed = named().filter_map(|setting| {
        let is_value = match setting.takes {
            Takes::Nothing | Takes::Switch => false,
            Takes::One | Takes::Many if !setting.words().is_empty() => setting.name != "log-format",
            Takes::One | Takes::Many => {
                KINDS.contains(&setting.value) || ["publication", "slot"].contains(&setting.name)
            }
        };
        // What stands on other settings has a default only beside them.
        let is_alone = setting.name != "schema-subject";
        let is_said = !["", "none"].contains(&setting.default);
        (is_value && is_alone && is_said).then(|| format!("--{}={}", setting.name, setting.default))
    });
    let typed: Vec<String> = typed.collect();
    assert!(typed.len() >= 14, "{typed:?}");
    let flags: Vec<&str> = typed.iter().map(String::as_str).collect();
    assert_eq!(format!("{:#?}", run(&flags)), format!("{:#?}", run(&[])), "{typed:?}");
}
