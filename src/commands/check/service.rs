//! Managed services that run servers, detected from their servers' answers.
//!
//! In: names of settings and roles that are there, errors, host names. Out: which one it is, and how a thing is fixed there. Pure.
//! A role's attributes are never taken for proof: services grant replication in ways of their own.

use crate::pg::{self, identifier, sqlstate};
use crate::supervise::LOGIN_RULE;

/// The service that runs the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Service {
    /// A server whose configuration its owner may change.
    #[default]
    Own,
    /// Amazon RDS.
    Rds,
    /// Amazon Aurora, whose parameters belong to a cluster of instances.
    Aurora,
    /// Google Cloud SQL.
    CloudSql,
    /// Azure Database for PostgreSQL, Flexible Server.
    Azure,
    /// Supabase.
    Supabase,
    /// Neon, whose settings belong to a project.
    Neon,
}

/// The settings and roles that only one service has.
pub(super) const MARKS: [(&str, Service); 15] = [
    ("rds.logical_replication", Service::Rds),
    ("rds.extensions", Service::Rds),
    ("rds_superuser", Service::Rds),
    ("rds_replication", Service::Rds),
    ("cloudsql.logical_decoding", Service::CloudSql),
    ("cloudsql.iam_authentication", Service::CloudSql),
    ("cloudsqlsuperuser", Service::CloudSql),
    ("azure.extensions", Service::Azure),
    ("azure.accepted_password_auth_method", Service::Azure),
    ("azure_pg_admin", Service::Azure),
    ("supabase_admin", Service::Supabase),
    ("supabase_replication_admin", Service::Supabase),
    ("supabase_auth_admin", Service::Supabase),
    ("neon.timeline_id", Service::Neon),
    ("neon_superuser", Service::Neon),
];

/// How settings begin that Aurora has and RDS has not: its planner's.
const OF_AURORA: &str = "apg_";

impl Service {
    /// By the names of settings and roles that are there.
    pub(super) fn recognise<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let known = |name: &str| MARKS.iter().find(|(mark, _)| *mark == name).map(|(_, service)| *service);
        let (mut found, mut of_aurora) = (None, false);
        for name in names {
            found = found.or_else(|| known(name));
            of_aurora |= name.starts_with(OF_AURORA);
        }
        let found = found.unwrap_or_default();
        if found == Self::Rds && of_aurora { Self::Aurora } else { found }
    }

    /// For people.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Own => "Postgres",
            Self::Rds => "Amazon RDS",
            Self::Aurora => "Amazon Aurora",
            Self::CloudSql => "Google Cloud SQL",
            Self::Azure => "Azure Database for PostgreSQL",
            Self::Supabase => "Supabase",
            Self::Neon => "Neon",
        }
    }

    /// Turns logical decoding on.
    pub(super) fn wal_level(self) -> String {
        match self {
            Self::Own => "ALTER SYSTEM SET wal_level = logical; -- then restart Postgres".to_owned(),
            Self::Rds | Self::Aurora => self.parameter("rds.logical_replication", "1", true),
            Self::CloudSql => self.parameter("cloudsql.logical_decoding", "on", true),
            Self::Azure | Self::Supabase => self.parameter("wal_level", "logical", true),
            Self::Neon => {
                "enable logical replication in the project's settings (it cannot be disabled again)".to_owned()
            }
        }
    }

    /// Limits the WAL that slots keep, to so many MiB.
    pub(super) fn wal_limit(self, mib: u64) -> String {
        let with_unit = if mib.is_multiple_of(1024) { format!("{}GB", mib / 1024) } else { format!("{mib}MB") };
        let instead = "# max_slot_wal_keep_size cannot be set there: alert on walrelay_slot_retained_wal_bytes";
        match self {
            Self::Own | Self::Rds | Self::Aurora | Self::Supabase => {
                self.quantity("max_slot_wal_keep_size", mib, &with_unit)
            }
            Self::Neon => "keep the relay running: Neon removes a slot that is inactive for about 40 hours".to_owned(),
            Self::CloudSql => format!("gcloud sql instances patch INSTANCE --storage-auto-increase {instead}"),
            Self::Azure => format!(
                "az postgres flexible-server update --resource-group GROUP --name SERVER --storage-auto-grow Enabled {instead}"
            ),
        }
    }

    /// Sets a parameter that has a unit. `number`: in the unit in which Postgres counts it (`pg_settings.unit`), which is what the services'
    /// own tools take. `with_unit`: the same as a configuration file takes it, into which Supabase's tool writes it, too.
    pub(super) fn quantity(self, name: &str, number: u64, with_unit: &str) -> String {
        let value = match self {
            Self::Own | Self::Supabase | Self::Neon => with_unit.to_owned(),
            Self::Rds | Self::Aurora | Self::CloudSql | Self::Azure => number.to_string(),
        };
        self.parameter(name, &value, false)
    }

    /// Sets a parameter without a unit. `restart`: it takes one.
    pub(super) fn parameter(self, name: &str, value: &str, restart: bool) -> String {
        match self {
            Self::Own if restart => format!("ALTER SYSTEM SET {name} = '{value}'; -- then restart Postgres"),
            Self::Own => format!("ALTER SYSTEM SET {name} = '{value}'; SELECT pg_reload_conf();"),
            Self::Rds | Self::Aurora => {
                let group = if self == Self::Aurora { "db-cluster-parameter-group" } else { "db-parameter-group" };
                let (apply, then) = if restart {
                    ("pending-reboot", " && aws rds reboot-db-instance --db-instance-identifier INSTANCE")
                } else {
                    ("immediate", "")
                };
                format!(
                    "aws rds modify-{group} --{group}-name GROUP --parameters \"ParameterName={name},ParameterValue={value},ApplyMethod={apply}\"{then}"
                )
            }
            Self::CloudSql => {
                format!(
                    "gcloud sql instances patch INSTANCE --database-flags={name}={value} # and the flags it has already"
                )
            }
            Self::Azure => {
                let then = if restart {
                    " && az postgres flexible-server restart --resource-group GROUP --name SERVER"
                } else {
                    ""
                };
                format!(
                    "az postgres flexible-server parameter set --resource-group GROUP --server-name SERVER --name {name} --value {value}{then}"
                )
            }
            Self::Supabase => {
                format!("supabase --experimental --project-ref REF postgres-config update --config {name}={value}")
            }
            Self::Neon => format!("Neon sets {name} itself; its support can change it ({value} is wanted)"),
        }
    }

    /// Lets a role replicate.
    pub(super) fn replication_right(self, role: &str) -> String {
        let role = identifier(role);
        match self {
            Self::Rds | Self::Aurora => format!("GRANT rds_replication TO {role};"),
            Self::CloudSql => format!("ALTER USER {role} WITH REPLICATION; -- as a member of cloudsqlsuperuser"),
            Self::Own | Self::Azure | Self::Supabase | Self::Neon => format!("ALTER ROLE {role} REPLICATION;"),
        }
    }

    /// Lets a role in from this host. Only who runs the server may change `pg_hba.conf`.
    fn admission(self, role: &str, database: &str) -> String {
        match self {
            Self::Own => format!(
                "a line in pg_hba.conf, then SELECT pg_reload_conf();   host {} {} all scram-sha-256",
                identifier(database),
                identifier(role)
            ),
            Self::Rds | Self::Aurora => {
                "allow this host in the instance's security group, and connect with TLS (sslmode=require or better)"
                    .to_owned()
            }
            Self::CloudSql | Self::Azure | Self::Supabase | Self::Neon => {
                format!(
                    "allow this host in the network rules of {}, and connect with TLS (sslmode=require or better)",
                    self.name()
                )
            }
        }
    }
}

/// Returns the remedy for a refused attempt to replicate.
pub(super) fn replication_fix(service: Service, user: &str, database: &str, error: &pg::Error) -> String {
    let said = error.server_error();
    match error.code() {
        Some(sqlstate::INSUFFICIENT_PRIVILEGE) if said.is_some_and(|said| !said.hint.is_empty()) => {
            said.map(|said| said.hint.clone()).unwrap_or_default()
        }
        Some(sqlstate::INSUFFICIENT_PRIVILEGE) => service.replication_right(user),
        Some("28000") => service.admission(user, database),
        Some("53300") => service.parameter("max_wal_senders", "20", true),
        None | Some(sqlstate::NOT_IN_PREREQUISITE_STATE) => service.wal_level(),
        Some(_) if error.recovery() == pg::Recovery::Stop => LOGIN_RULE.to_owned(),
        Some(_) => "run check again once the server takes connections".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pg::ServerError;

    fn answer(code: &str, message: &str) -> pg::Error {
        let error = ServerError { code: code.to_owned(), message: message.to_owned(), ..ServerError::default() };
        pg::Error::Server { doing: "connecting".to_owned(), error: Box::new(error) }
    }

    #[test]
    fn each_service_is_known_by_what_only_it_has() {
        for (name, service) in MARKS {
            assert_eq!(Service::recognise(["plpgsql", name]), service, "{name}");
        }
        assert_eq!(Service::recognise(["postgres", "pg_read_all_stats"]), Service::Own);
        assert_eq!(Service::recognise(["rds_superuser", "apg_enable_semijoin_push_down"]), Service::Aurora);
        assert_eq!(Service::recognise(["apg_of_somebody"]), Service::Own);
    }

    #[test]
    fn a_service_gets_its_own_fix() {
        assert!(Service::Rds.wal_level().contains("ParameterName=rds.logical_replication,ParameterValue=1"));
        assert!(Service::CloudSql.wal_level().contains("--database-flags=cloudsql.logical_decoding=on"));
        assert!(Service::Azure.wal_level().contains("--name wal_level --value logical"));
        assert_eq!(Service::Rds.replication_right("app"), "GRANT rds_replication TO \"app\";");
        assert!(Service::CloudSql.replication_right("app").starts_with("ALTER USER \"app\" WITH REPLICATION;"));
        assert_eq!(Service::Own.replication_right("app"), "ALTER ROLE \"app\" REPLICATION;");
    }

    #[test]
    fn a_server_that_recovers_is_not_said_to_have_a_rule_against_the_log_in() {
        let fix = |code| replication_fix(Service::Own, "app", "shop", &answer(code, "x"));
        assert_eq!(fix("57P03"), "run check again once the server takes connections");
        assert_eq!(fix("P0001"), LOGIN_RULE);
    }

    #[test]
    fn a_quantity_is_written_as_the_services_tool_takes_it() {
        let timeout = |service: Service| service.quantity("wal_sender_timeout", 60_000, "60s");
        assert!(timeout(Service::Own).contains("SET wal_sender_timeout = '60s'"));
        assert!(timeout(Service::Rds).contains("wal_sender_timeout,ParameterValue=60000,ApplyMethod=immediate"));
        assert!(timeout(Service::CloudSql).contains("--database-flags=wal_sender_timeout=60000 "));
        assert!(timeout(Service::Azure).ends_with("--name wal_sender_timeout --value 60000"));
        assert!(timeout(Service::Supabase).ends_with("--config wal_sender_timeout=60s"));
        for (mib, text, number) in [(1000, "'1000MB'", "=1000,"), (51_200, "'50GB'", "=51200,")] {
            assert!(Service::Own.wal_limit(mib).contains(text));
            assert!(Service::Rds.wal_limit(mib).contains(number));
        }
    }

    #[test]
    fn auroras_parameters_are_its_clusters() {
        let group = "aws rds modify-db-cluster-parameter-group --db-cluster-parameter-group-name GROUP --parameters ";
        assert!(Service::Aurora.wal_level().starts_with(group));
        assert!(Service::Aurora.wal_limit(51_200).contains("ParameterValue=51200,"));
        assert_eq!(Service::Aurora.replication_right("app"), Service::Rds.replication_right("app"));
    }

    #[test]
    fn where_the_log_of_slots_cannot_be_limited_the_disk_is_to_grow() {
        let limit = |service: Service| service.wal_limit(51_200);
        assert!(limit(Service::Own).contains("SET max_slot_wal_keep_size = '50GB'"));
        assert!(limit(Service::Azure).contains("--storage-auto-grow Enabled # max_slot_wal_keep_size cannot"));
        assert!(limit(Service::CloudSql).contains("--storage-auto-increase # max_slot_wal_keep_size cannot"));
    }

    /// The page of the manual about a service, with the commands that it gives.
    const PAGES: [(Service, &str); 7] = [
        (Service::Own, include_str!("../../../docs/postgres/own.md")),
        (Service::Rds, include_str!("../../../docs/postgres/rds.md")),
        (Service::Aurora, include_str!("../../../docs/postgres/aurora.md")),
        (Service::CloudSql, include_str!("../../../docs/postgres/cloud-sql.md")),
        (Service::Azure, include_str!("../../../docs/postgres/azure.md")),
        (Service::Supabase, include_str!("../../../docs/postgres/supabase.md")),
        (Service::Neon, include_str!("../../../docs/postgres/neon.md")),
    ];

    #[test]
    fn the_manual_gives_the_commands_that_check_prints() {
        for (service, page) in PAGES {
            let mut commands = vec![service.replication_right("walrelay"), service.wal_level()];
            commands.push(service.wal_limit(51_200));
            if service == Service::Own {
                // Its page makes the role with the right.
                commands.remove(0);
            }
            if service == Service::Supabase {
                // It is `logical` already.
                commands.remove(1);
            }
            let page = page.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
            for command in commands {
                let wanted = command.to_lowercase();
                assert!(page.contains(&wanted), "{}: {command}", service.name());
            }
        }
    }

    #[test]
    fn no_managed_service_is_asked_to_change_files_or_system_settings() {
        for (service, _) in PAGES.into_iter().filter(|(service, _)| *service != Service::Own) {
            let told = [
                service.wal_level(),
                service.wal_limit(1),
                service.parameter("max_wal_senders", "20", true),
                replication_fix(service, "app", "shop", &answer("28000", "no entry")),
            ];
            for told in told {
                assert!(!told.contains("ALTER SYSTEM") && !told.contains("pg_hba.conf"), "{}: {told}", service.name());
            }
        }
    }

    #[test]
    fn a_refusal_to_replicate_is_fixed_by_what_was_refused() {
        let fix = |code| replication_fix(Service::Own, "app", "shop", &answer(code, ""));
        assert!(fix("42501").contains("REPLICATION"));
        assert!(fix("28000").contains("host \"shop\" \"app\""));
        assert!(fix("53300").contains("max_wal_senders"));
        assert!(fix("55000").contains("wal_level"));
        assert!(fix("P0001").contains("login trigger"));
        let (code, hint) = ("42501".to_owned(), "its own words".to_owned());
        let error = Box::new(ServerError { code, hint, ..ServerError::default() });
        let error = pg::Error::Server { doing: "connecting".to_owned(), error };
        assert_eq!(replication_fix(Service::Own, "app", "shop", &error), "its own words");
    }
}
