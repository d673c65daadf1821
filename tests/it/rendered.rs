//! The commands of rendered Kubernetes objects, run with their own arguments and settings file: they agree on slot, publication and table.
//!
//! In: `packaging/golden`. Only what a test machine lacks is replaced: addresses, passwords and certificates.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::{self as server, Postgres, default_major};
use walrelay_dev::relay::Relay;

use crate::lane::{LONG, Lane, binary};
use crate::prune::{AGED, left};

const SETTINGS_FILE: &str = "/etc/walrelay/walrelay.toml";

/// The arguments of each container, as they are rendered: a list with a line for each.
fn commands(objects: &str) -> Vec<Vec<String>> {
    let mut lines = objects.lines();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        if !line.trim_start_matches([' ', '-']).starts_with("args:") {
            continue;
        }
        let argument = |line: &str| Some(line.trim_start().strip_prefix("- ")?.trim_matches('"').to_owned());
        found.push(lines.by_ref().map_while(argument).collect());
    }
    found
}

/// The settings file of the ConfigMap.
fn settings(objects: &str) -> String {
    let (_, text) = objects.split_once("  walrelay.toml: |\n").unwrap();
    let lines = text.lines().take_while(|line| line.is_empty() || line.starts_with("    "));
    lines.map(str::trim_start).collect::<Vec<_>>().join("\n")
}

fn is_secret(property: &str) -> bool {
    ["sasl.", "ssl.", "security."].iter().any(|prefix| property.trim_matches('"').starts_with(prefix))
}

/// The settings and commands of one file, on a server of this machine.
struct Rendered<'a> {
    lane: &'a Lane,
    file: &'a Path,
    commands: Vec<Vec<String>>,
}

impl Rendered<'_> {
    /// The arguments of a command. `None`: no container has it.
    fn arguments(&self, command: &str) -> Option<Vec<String>> {
        let rendered = self.commands.iter().find(|arguments| arguments[0] == command)?;
        let mut arguments: Vec<String> = Vec::new();
        for argument in rendered {
            match argument.as_str() {
                _ if argument.starts_with("--source=") => arguments.push(format!("--source={}", self.lane.source)),
                SETTINGS_FILE => arguments.push(self.file.to_str().unwrap().to_owned()),
                "--failover" if default_major() < 17 => {}
                property if is_secret(property) => assert_eq!(arguments.pop().as_deref(), Some("-X")),
                other => arguments.push(other.to_owned()),
            }
        }
        Some(arguments)
    }

    fn run(&self, command: &str) -> Option<Output> {
        let output = Command::new(binary()).args(self.arguments(command)?).envs(self.environment()).output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout.clone(), output.stderr.clone()].concat()).into_owned();
        assert!(output.status.success(), "{command}: {}: {text}", output.status);
        Some(output)
    }

    /// Where a Secret has the address, it comes by this variable.
    fn environment(&self) -> [(&str, String); 2] {
        [("WALRELAY_SOURCE", self.lane.source.clone()), ("WALRELAY_TOPIC", self.lane.topic("{route}"))]
    }
}

/// Returns the commands that its objects run.
#[track_caller]
fn check(server: &Postgres, name: &str) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/golden");
    let objects = fs::read_to_string(folder.join(name)).unwrap();
    let lane = Lane::on(server, shared_kafka().unwrap());
    lane.sql(AGED);
    let text = settings(&objects);
    let lines = text.lines().filter(|line| !is_secret(line)).map(|line| match line.split_once(" = ") {
        Some(("source", _)) => format!("source = \"{}\"", lane.source),
        Some(("brokers", _)) => format!("brokers = [\"{}\"]", lane.brokers),
        _ => line.to_owned(),
    });
    let file = std::env::temp_dir().join(format!("{}.toml", lane.name));
    fs::write(&file, lines.collect::<Vec<_>>().join("\n")).unwrap();
    let rendered = Rendered { lane: &lane, file: &file, commands: commands(&objects) };

    assert!(rendered.run("setup").is_some(), "each of them has the Job that sets up");
    rendered.run("status");
    let arguments = rendered.arguments("run").unwrap();
    let mut relay = Relay::start(&binary(), &arguments, &rendered.environment()).unwrap();
    relay.wait_streaming(LONG).unwrap();
    lane.sql(
        "INSERT INTO outbox VALUES ('old', 'order', 'k', 'p', now() - interval '20 days'), ('new', 'order', 'k', 'p', now())",
    );
    let slot: String = lane
        .connect()
        .query_one("SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()", &[])
        .unwrap()
        .get(0);
    lane.wait_confirmed_of(&slot);
    rendered.run("check");
    rendered.run("verify");
    if rendered.run("prune").is_some() {
        assert_eq!(left(&lane), ["new"], "prune and the relay do not have the same slot, publication or table");
    }
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    lane.drop_slot(&slot);
    fs::remove_file(&file).unwrap();
    rendered.commands.iter().map(|arguments| arguments[0].clone()).collect()
}

#[test]
fn the_jobs_of_charts_and_kustomizations_have_the_relays_settings() {
    let server = Postgres::start(&server::Options::default()).unwrap();
    let files = ["helm-full.yaml", "helm-minimal.yaml", "helm-strimzi.yaml", "kustomize-example.yaml"];
    let commands: BTreeSet<String> = files.iter().flat_map(|name| check(&server, name)).collect();
    // Each of them was run by at least one file.
    assert_eq!(Vec::from_iter(commands), ["check", "prune", "run", "setup", "status", "verify"]);
}
