//! Who runs the server, and what stands between: managed services and poolers, told by what they answer.
//!
//! In: names of settings and roles that are there, errors, host names. Out: which one it is, and how a thing is mended there. Pure.
//! A role's attributes are never taken for proof: services grant replication in ways of their own.

use crate::pg::{self, identifier, sqlstate};

/// Who runs the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Service {
    /// Whoever may change its configuration.
    #[default]
    Own,
    /// Amazon RDS or Aurora.
    Rds,
    /// Google Cloud SQL.
    CloudSql,
    /// Azure Database for PostgreSQL, Flexible Server.
    Azure,
    /// Supabase.
    Supabase,
}

/// What each service is known by: settings that only it has, and roles.
pub(super) const MARKS: [(&str, Service); 13] = [
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
];

impl Service {
    /// By the names of settings and roles that are there.
    pub(super) fn recognise<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let known = |name: &str| MARKS.iter().find(|(mark, _)| *mark == name).map(|(_, service)| *service);
        names.into_iter().find_map(known).unwrap_or_default()
    }

    /// For people.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Own => "Postgres",
            Self::Rds => "Amazon RDS or Aurora",
            Self::CloudSql => "Google Cloud SQL",
            Self::Azure => "Azure Database for PostgreSQL",
            Self::Supabase => "Supabase",
        }
    }

    /// Turns logical decoding on.
    pub(super) fn wal_level(self) -> String {
        match self {
            Self::Own => "ALTER SYSTEM SET wal_level = logical; -- then restart Postgres".to_owned(),
            Self::Rds => self.parameter("rds.logical_replication", "1", true),
            Self::CloudSql => self.parameter("cloudsql.logical_decoding", "on", true),
            Self::Azure | Self::Supabase => self.parameter("wal_level", "logical", true),
        }
    }

    /// Sets a parameter. `restart`: it takes one.
    pub(super) fn parameter(self, name: &str, value: &str, restart: bool) -> String {
        match self {
            Self::Own if restart => format!("ALTER SYSTEM SET {name} = '{value}'; -- then restart Postgres"),
            Self::Own => format!("ALTER SYSTEM SET {name} = '{value}'; SELECT pg_reload_conf();"),
            Self::Rds => {
                let (apply, then) = if restart {
                    ("pending-reboot", " && aws rds reboot-db-instance --db-instance-identifier INSTANCE")
                } else {
                    ("immediate", "")
                };
                format!(
                    "aws rds modify-db-parameter-group --db-parameter-group-name GROUP --parameters \"ParameterName={name},ParameterValue={value},ApplyMethod={apply}\"{then}"
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
        }
    }

    /// Lets a role replicate.
    pub(super) fn replication_right(self, role: &str) -> String {
        let role = identifier(role);
        match self {
            Self::Rds => format!("GRANT rds_replication TO {role};"),
            Self::CloudSql => format!("ALTER USER {role} WITH REPLICATION; -- as a member of cloudsqlsuperuser"),
            Self::Own | Self::Azure | Self::Supabase => format!("ALTER ROLE {role} REPLICATION;"),
        }
    }
}

/// What stands between us and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pooler {
    /// PgBouncer before 1.23, or one that is told so.
    PgBouncer,
    /// Supabase's.
    Supabase,
    /// Neon's.
    Neon,
    /// Something that hands out ordinary sessions where replication is asked for.
    Unknown,
}

impl Pooler {
    /// By the address, or by how it answers the attempt to connect. `host`: `name:port`.
    pub(super) fn recognise(host: &str, error: &pg::Error) -> Option<Self> {
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        if name.ends_with(".pooler.supabase.com") {
            return Some(Self::Supabase);
        }
        if name.ends_with(".neon.tech") && name.contains("-pooler.") {
            return Some(Self::Neon);
        }
        let pg::Error::Server { error, .. } = error else { return None };
        match error.code.as_str() {
            // Its own words: there is no code for it.
            PROTOCOL_VIOLATION if error.message.contains("startup parameter") => Some(Self::PgBouncer),
            PROTOCOL_VIOLATION if error.message.contains("replication connection") => Some(Self::PgBouncer),
            // IDENTIFY_SYSTEM was taken for SQL.
            SYNTAX_ERROR => Some(Self::Unknown),
            _ => None,
        }
    }

    /// For people.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::PgBouncer => "PgBouncer",
            Self::Supabase => "Supabase's pooler",
            Self::Neon => "Neon's pooler",
            Self::Unknown => "a pooler",
        }
    }

    /// The way past it.
    pub(super) const fn mend(self) -> &'static str {
        match self {
            Self::PgBouncer => {
                "use the direct port: --source with Postgres' own address (often port 5432), or PgBouncer 1.23 or later, which passes replication connections"
            }
            Self::Supabase => "use the direct port: --source postgres://postgres@db.REF.supabase.co:5432/postgres",
            Self::Neon => "use the direct port: --source with the host's name without -pooler",
            Self::Unknown => "use the direct port: --source with Postgres' own address",
        }
    }
}

/// `protocol_violation`.
const PROTOCOL_VIOLATION: &str = "08P01";

/// `syntax_error`.
const SYNTAX_ERROR: &str = "42601";

/// What a refused attempt to replicate asks for.
pub(super) fn replication_mend(service: Service, user: &str, database: &str, error: &pg::Error) -> String {
    match error.code() {
        Some(sqlstate::INSUFFICIENT_PRIVILEGE) => service.replication_right(user),
        Some("28000") => format!(
            "a line in pg_hba.conf, then SELECT pg_reload_conf();   host {} {} all scram-sha-256",
            identifier(database),
            identifier(user)
        ),
        Some("53300") => service.parameter("max_wal_senders", "20", true),
        _ => service.wal_level(),
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
    }

    #[test]
    fn a_service_gets_its_own_mend() {
        assert!(Service::Rds.wal_level().contains("ParameterName=rds.logical_replication,ParameterValue=1"));
        assert!(Service::CloudSql.wal_level().contains("--database-flags=cloudsql.logical_decoding=on"));
        assert!(Service::Azure.wal_level().contains("--name wal_level --value logical"));
        assert_eq!(Service::Rds.replication_right("app"), "GRANT rds_replication TO \"app\";");
        assert!(Service::CloudSql.replication_right("app").starts_with("ALTER USER \"app\" WITH REPLICATION;"));
        assert_eq!(Service::Own.replication_right("app"), "ALTER ROLE \"app\" REPLICATION;");
    }

    #[test]
    fn a_pooler_is_known_by_its_address_or_by_its_answer() {
        let refused = answer("08P01", "unsupported startup parameter: replication");
        assert_eq!(Pooler::recognise("db:6432", &refused), Some(Pooler::PgBouncer));
        assert_eq!(Pooler::recognise("db:5432", &answer("42601", "syntax error")), Some(Pooler::Unknown));
        assert_eq!(Pooler::recognise("db:5432", &answer("28P01", "password")), None);
        let ended = pg::Error::Ended;
        assert_eq!(Pooler::recognise("aws-0-eu.pooler.supabase.com:6543", &ended), Some(Pooler::Supabase));
        assert_eq!(Pooler::recognise("ep-x-pooler.eu.aws.neon.tech:5432", &ended), Some(Pooler::Neon));
        assert!(Pooler::PgBouncer.mend().contains("use the direct port"));
    }

    #[test]
    fn a_refusal_to_replicate_is_mended_by_what_was_refused() {
        let mend = |code| replication_mend(Service::Own, "app", "shop", &answer(code, ""));
        assert!(mend("42501").contains("REPLICATION"));
        assert!(mend("28000").contains("host \"shop\" \"app\""));
        assert!(mend("53300").contains("max_wal_senders"));
    }
}
