//! Says why a command ended without having done its work: the cause, the exit code, and the remedy.
//!
//! In: what a command met. Out: a [`CommandError`]. The errors with words of their own are all in `cases`. The others are those of a run
//! ([`RunError`]), of settings, and of the output.

mod cases;

use crate::http::BindError;
use crate::pg;
use crate::remedy::Remedy;
use crate::route::TopicError;
use crate::setting_text::SettingError;
use crate::supervise::{ExitError, ExitKind, Explained, RunCause, RunError};
use std::{error, io};

/// The reason why a command ended.
pub type CommandError = ExitError<CommandCause>;

/// The event that ended a command. Callers decide by its cases, and by the last one's kind.
#[derive(Debug, thiserror::Error)]
pub enum CommandCause {
    /// As a run would end.
    #[error(transparent)]
    Run(Box<RunCause>),
    /// The role lacks a right, or the server something else that this step needs.
    #[error("cannot {step}")]
    Refused {
        /// The step: `create publication "p"`.
        step: String,
        /// The server's answer.
        #[source]
        source: Box<pg::Error>,
    },
    /// The command was stopped on request while it waited. It left nothing half-made.
    #[error("stopped before it was done")]
    Interrupted,
    /// The process leaves while the relay's thread may still wait for an answer.
    #[error("{0}")]
    Left(&'static str),
    /// The results cannot be written.
    #[error("cannot write the output")]
    Output(#[source] io::Error),
    /// Any other error, which people read.
    #[error(transparent)]
    Other(Box<dyn error::Error + Send + Sync>),
}

impl CommandError {
    const fn new(kind: ExitKind, cause: CommandCause) -> Self {
        Self { kind, cause, remedy: None }
    }

    /// An error in words; or another one, whose words are its own.
    fn said(kind: ExitKind, error: impl Into<Box<dyn error::Error + Send + Sync>>) -> Self {
        Self::new(kind, CommandCause::Other(error.into()))
    }

    /// An error in words, with the error that it explains.
    fn explained(kind: ExitKind, text: String, source: impl error::Error + Send + Sync + 'static) -> Self {
        Self::said(kind, Explained { text, source: Box::new(source) })
    }

    /// The error with what fixes it.
    fn with_remedy(self, remedy: impl Into<Remedy>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    /// The settings are wrong.
    fn settings(error: impl error::Error + Send + Sync + 'static, hint: Option<String>) -> Self {
        Self {
            remedy: hint.map(Remedy::from),
            ..Self::said(ExitKind::Settings, Box::new(error) as Box<dyn error::Error + Send + Sync>)
        }
    }

    /// The system does not let the process begin something: `listen for signals`.
    pub(super) fn not_begun(what: &str, source: io::Error) -> Self {
        Self::explained(ExitKind::Restart, format!("cannot {what}"), source)
    }

    /// The server refuses a step. The remedy is `fix` where a right is missing, else the server's own word.
    pub(super) fn refused(step: String, fix: Option<Remedy>, source: pg::Error) -> Self {
        let kind = if source.recovery() == pg::Recovery::Stop { ExitKind::Operator } else { ExitKind::Restart };
        let lacks_a_right = source.server_error().is_some_and(pg::ServerError::lacks_a_right);
        let by_server = || {
            let error = source.server_error()?;
            if error.lacks_a_free_slot() {
                return Some(Remedy::from(
                    "raise max_replication_slots (needs a restart), or drop a slot that nobody uses: SELECT slot_name, active, restart_lsn FROM pg_replication_slots;",
                ));
            }
            (!error.hint.is_empty()).then(|| error.hint.clone().into())
        };
        let remedy = fix.filter(|_| lacks_a_right).or_else(by_server);
        Self { kind, cause: CommandCause::Refused { step, source: Box::new(source) }, remedy }
    }

    /// Turns the answer that a right is missing into the refusal of this step, with its `fix`.
    pub(super) fn with_fix(self, step: String, fix: impl Into<Remedy>) -> Self {
        let lacks_a_right =
            self.postgres().and_then(pg::Error::server_error).is_some_and(pg::ServerError::lacks_a_right);
        let CommandCause::Run(cause) = self.cause else { return self };
        if lacks_a_right && let RunCause::Postgres(source) = *cause {
            return Self::refused(step, Some(fix.into()), source);
        }
        Self { cause: CommandCause::Run(cause), ..self }
    }

    /// The answer of Postgres that ended the command, if it was that.
    pub(super) fn postgres(&self) -> Option<&pg::Error> {
        match (self.as_run(), &self.cause) {
            (Some(RunCause::Postgres(source)), _) => Some(source),
            (_, CommandCause::Refused { source, .. }) => Some(source),
            (_, _) => None,
        }
    }

    /// The event that a run would end with, if it is that.
    pub fn as_run(&self) -> Option<&RunCause> {
        if let CommandCause::Run(cause) = &self.cause { Some(cause) } else { None }
    }
}

impl From<RunError> for CommandError {
    fn from(RunError { kind, cause, remedy }: RunError) -> Self {
        Self { kind, cause: CommandCause::Run(Box::new(cause)), remedy }
    }
}

impl From<pg::Error> for CommandError {
    fn from(error: pg::Error) -> Self {
        RunError::from(error).into()
    }
}

impl From<io::Error> for CommandError {
    fn from(error: io::Error) -> Self {
        Self::new(ExitKind::Restart, CommandCause::Output(error))
    }
}

impl From<SettingError> for CommandError {
    fn from(mut error: SettingError) -> Self {
        let hint = error.hint.take();
        Self::settings(error, hint)
    }
}

impl From<TopicError> for CommandError {
    fn from(error: TopicError) -> Self {
        let hint = error.hint.map(str::to_owned);
        Self::settings(error, hint)
    }
}

impl From<BindError> for CommandError {
    fn from(error: BindError) -> Self {
        Self::said(ExitKind::Operator, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pg::{ServerError, sqlstate};

    fn refusal(code: &str, fix: &str) -> CommandError {
        refusal_by(ServerError { code: code.to_owned(), message: "no".to_owned(), ..ServerError::default() }, fix)
    }

    fn refusal_by(error: ServerError, fix: &str) -> CommandError {
        let source = pg::Error::Server { doing: "X".to_owned(), error: Box::new(error) };
        CommandError::refused("do it".to_owned(), Some(fix.into()), source)
    }

    #[test]
    fn a_missing_right_is_fixed_by_the_steps_own_word() {
        let error = refusal(sqlstate::INSUFFICIENT_PRIVILEGE, "GRANT it");
        assert_eq!((error.kind, error.remedy), (ExitKind::Operator, Some("GRANT it".into())));
    }

    #[test]
    fn no_free_slot_is_for_an_operator_and_names_the_setting() {
        let code = sqlstate::LIMIT_EXCEEDED.to_owned();
        let no_slot = ServerError { code, routine: "ReplicationSlotCreate".to_owned(), ..ServerError::default() };
        let error = refusal_by(no_slot, "GRANT it");
        assert_eq!(error.kind, ExitKind::Operator);
        assert!(error.remedy.unwrap().to_string().contains("max_replication_slots"));
        assert_eq!(refusal(sqlstate::LIMIT_EXCEEDED, "GRANT it").remedy, None, "temp_file_limit, for one");
    }

    #[test]
    fn a_reason_of_the_servers_own_goes_before_a_right_that_may_be_missing() {
        let code = sqlstate::INSUFFICIENT_PRIVILEGE.to_owned();
        let untrusted = ServerError { code, hint: "add it".to_owned(), ..ServerError::default() };
        assert_eq!(refusal_by(untrusted, "GRANT it").remedy, Some("add it".into()));
    }

    #[test]
    fn what_passes_by_itself_is_worth_another_try() {
        assert_eq!(refusal("57P01", "").kind, ExitKind::Restart);
    }

    #[test]
    fn a_slot_in_use_names_the_process_and_how_to_end_it() {
        let error = CommandError::slot_in_use("s", Some(7), None);
        assert_eq!(error.to_string(), "replication slot \"s\" is in use by process 7");
        assert!(error.remedy.unwrap().to_string().contains("pg_terminate_backend(7)"));
    }
}
