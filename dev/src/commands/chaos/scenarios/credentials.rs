//! The role's password changes, and with it the password file, and the walsender is terminated: under load the relay comes back with the
//! new password, whichever of the two changed first, and repeats nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use walrelay_dev::postgres::quote_identifier;
use walrelay_dev::relay::Relay;
use walrelay_dev::{provision, run_dir};

use super::super::world::{PATIENCE, ROTATING_ROLE, World};

const ROWS: i64 = 300;

/// The pause between both changes; every second time there is none.
const GAP: Duration = Duration::from_secs(3);

pub(in super::super) fn play(world: &mut World, dice: u64) -> Result<Vec<String>> {
    let mut stage = super::aside(world, 2)?;
    let folder = run_dir::make(&provision::dev_dir().join("run"), "rotating")?;
    let file = folder.join("pgpass");
    let mut client = stage.connect()?;
    client.batch_execute(&format!(
        "DROP ROLE IF EXISTS {ROTATING_ROLE};
         CREATE ROLE {ROTATING_ROLE} LOGIN REPLICATION PASSWORD 'first' IN ROLE pg_read_all_data;
         GRANT CONNECT ON DATABASE {} TO {ROTATING_ROLE}",
        quote_identifier(&stage.name)
    ))?;
    write(&file, "first")?;
    stage.relay_source = format!("postgres://{ROTATING_ROLE}@{}/{}", world.postgres_tap.address(), stage.name);
    let arguments = stage.run_arguments(&["--shutdown-timeout=30s"]);
    let environment = [("PGPASSFILE", file.as_os_str())];
    let mut relay = Relay::start(&stage.binary, &arguments, &environment)?;
    relay.wait_streaming(PATIENCE)?;

    for number in 1..=ROWS {
        super::insert(&mut client, "order", number..=number, 10)?;
        if number == ROWS / 2 {
            let change = format!("ALTER ROLE {ROTATING_ROLE} PASSWORD 'second'");
            client.batch_execute(&change)?;
            if dice.is_multiple_of(2) {
                stage.terminate_walsender()?;
                std::thread::sleep(GAP);
                write(&file, "second")?;
            } else {
                write(&file, "second")?;
                stage.terminate_walsender()?;
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut broken: Vec<String> = super::unconfirmed(&stage, &mut relay, PATIENCE / 3)?.into_iter().collect();
    let topic = stage.topics().into_iter().next().unwrap_or_default();
    broken.extend(super::look_at(&stage, &topic)?.broken(ROWS));
    drop(client);
    super::strike_down(world, &stage, relay)?;
    world.connect()?.batch_execute(&format!("DROP ROLE IF EXISTS {ROTATING_ROLE}"))?;
    fs::remove_dir_all(folder)?;
    Ok(broken)
}

fn write(file: &Path, password: &str) -> Result<()> {
    let next = file.with_extension("next");
    fs::write(&next, format!("*:*:*:{ROTATING_ROLE}:{password}\n"))?;
    fs::set_permissions(&next, fs::Permissions::from_mode(0o600))?;
    Ok(fs::rename(next, file)?)
}
