//! The program: settings, logging, the command, the exit code.

use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;
use walrelay::commands::{self, EXIT_SETTINGS};
use walrelay::config::{self, Exit, Invocation, LogConfig, LogFormat, Task};
use walrelay::pg::source::Environment;

// librdkafka allocates a handful of times per record.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let invocation = match config::parse(std::env::args_os(), &Environment::of_process()) {
        Ok(invocation) => invocation,
        Err(exit) => return leave(&exit),
    };
    log_to_stderr(&invocation.log);
    for warning in &invocation.warnings {
        tracing::warn!("{warning}");
    }
    perform(invocation)
}

fn perform(invocation: Invocation) -> ExitCode {
    match invocation.task {
        Task::Run(config) => match commands::run::run(*config) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error, error.hint(), error.exit_code()),
        },
        Task::Check(config) => match commands::check::check(*config) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error, error.hint(), EXIT_SETTINGS),
        },
        Task::Setup(_) | Task::Ready(_) | Task::Status(_) | Task::Teardown(_) | Task::Completions(_) => {
            ExitCode::from(EXIT_SETTINGS)
        }
    }
}

/// Help goes to where it was asked for, errors to stderr.
#[allow(clippy::print_stdout, reason = "help and version are what the user asked to see")]
fn leave(exit: &Exit) -> ExitCode {
    match exit {
        Exit::Asked(text) => print!("{text}"),
        Exit::Wrong(_) => eprint!("{exit}"),
    }
    ExitCode::from(exit.code())
}

/// One line with the chain of causes, one with what mends it.
fn fail(error: &dyn std::error::Error, hint: Option<String>, code: u8) -> ExitCode {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    eprintln!("error: {text}");
    if let Some(hint) = hint {
        eprintln!("hint: {hint}");
    }
    ExitCode::from(code)
}

fn log_to_stderr(log: &LogConfig) {
    let filter = EnvFilter::try_new(&log.filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let terminal = std::io::stderr().is_terminal();
    match log.format {
        LogFormat::Text => lines.with_ansi(terminal).init(),
        LogFormat::Auto if terminal => lines.init(),
        LogFormat::Auto | LogFormat::Json => lines.json().flatten_event(true).init(),
    }
}
