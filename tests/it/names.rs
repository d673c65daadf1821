//! Name servers that do not answer: `getaddrinfo` then takes as long as it likes, and nothing interrupts it.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use walrelay_dev::consume;
use walrelay_dev::postgres::shared_postgres;
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use crate::lane::{LONG, binary};
use crate::load::Load;
use crate::network::wait_in_flight;
use crate::own;

/// The broker's name, which only [`RESOLVER`] knows.
const NAME: &str = "kafka.walrelay.test";

/// Takes the place of libc's function: the name is this machine, and is looked up for as long as the file lasts.
const RESOLVER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int look_up(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    look_up *libc = (look_up *) dlsym(RTLD_NEXT, "getaddrinfo");
    if (name && strcmp(name, getenv("RESOLVER_NAME")) == 0) {
        while (access(getenv("RESOLVER_SILENT"), F_OK) == 0) usleep(100000);
        return libc("127.0.0.1", service, hints, found);
    }
    return libc(name, service, hints, found);
}
"#;

/// Name servers of a relay's own.
struct Resolver {
    folder: TempDir,
}

impl Resolver {
    fn make() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (source, library) = (folder.path().join("resolver.c"), folder.path().join("resolver.so"));
        std::fs::write(&source, RESOLVER).unwrap();
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg("-ldl").output();
        let built = built.unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn environment(&self) -> [(&'static str, PathBuf); 3] {
        [
            ("LD_PRELOAD", self.path("resolver.so")),
            ("RESOLVER_NAME", NAME.into()),
            ("RESOLVER_SILENT", self.path("silent")),
        ]
    }

    fn fall_silent(&self) {
        std::fs::write(self.path("silent"), "").unwrap();
    }

    fn answer(&self) {
        std::fs::remove_file(self.path("silent")).unwrap();
    }
}

/// How many of a process's threads have this name.
fn threads(relay: &Relay, name: &str) -> usize {
    let folder = PathBuf::from(format!("/proc/{}/task", relay.pid().unwrap()));
    let is_it = |thread: &Path| std::fs::read_to_string(thread.join("comm")).is_ok_and(|comm| comm.trim_end() == name);
    std::fs::read_dir(folder).unwrap().filter(|thread| thread.as_ref().is_ok_and(|it| is_it(&it.path()))).count()
}

/// Each producer that is given up meanwhile ends on a thread of its own, which waits for the look-up.
#[test]
#[ignore = "slow"]
fn producers_that_are_looking_a_name_up_hold_nothing_up() {
    let resolver = Resolver::make();
    let mut kafka = own::kafka();
    let load = Load::on(shared_postgres().unwrap(), &kafka);
    let mut arguments = load.lane.arguments(&["--delivery=exactly-once", "-X", "transaction.timeout.ms=20000"]);
    let port = kafka.port().to_string();
    arguments.extend(["--brokers".to_owned(), format!("{NAME}:{port}")]);
    let mut relay = Relay::start(&binary(), &arguments, &resolver.environment()).unwrap();
    relay.wait_streaming(LONG).unwrap();
    let mut client = load.connect();
    Load::bulk(&mut client, "order-before", 0..100);
    load.lane.wait_confirmed();
    // A broker that is killed between a commit and its marker may forget the marker.
    consume::read_to_end(&load.lane.client, &["walrelay.progress"]).unwrap();
    // A transaction is open when it dies: none begins once the connection is known to be lost.
    kafka.suspend().unwrap();
    Load::bulk(&mut client, "order-meanwhile", 0..100);
    wait_in_flight(&relay, 1.0);
    resolver.fall_silent();
    kafka.kill().unwrap();
    wait_until(LONG, "two producers that end", || {
        let live = relay.get("/livez")?;
        assert!(live.status == 200, "{}: {}", live.body, relay.log());
        Ok(threads(&relay, "kafka-end") >= 2)
    })
    .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    resolver.answer();
    kafka.start_again().unwrap();
    load.assert_exact(&relay);
    wait_until(LONG, "the producers to have ended", || Ok(threads(&relay, "kafka-end") == 0)).unwrap();
    assert_eq!(relay.exited().unwrap(), None);
}
