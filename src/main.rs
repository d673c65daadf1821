//! The program: settings, logging, the command, the exit code.

use rustix::process::DumpableBehavior;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, BufRead, IsTerminal, Write};
use std::panic::PanicHookInfo;
use std::sync::atomic::Ordering;
use tracing_subscriber::EnvFilter;
use walrelay::commands::{self, CommandCause, CommandError, Dialogue};
use walrelay::commands::{backfill, bench, check, dead_letters, prune, setup, status, teardown, verify};
use walrelay::pg::source::Environment;
use walrelay::remedy::TypedFlags;
use walrelay::settings::cli;
use walrelay::settings::{self, Exit, Invocation, LogConfig, LogFormat, Task};
use walrelay::sink::kinds::SILENT;
use walrelay::stderr;
use walrelay::supervise::{ExitKind, chain};

// librdkafka allocates a handful of times per record.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() {
    let code = begin();
    commands::end(code.into())
}

fn begin() -> u8 {
    // A core dump would contain passwords, and so does the memory that another process of the same user could read. Only a kernel without this
    // call refuses it.
    let _kept_out = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    if let Err(error) = stderr::start() {
        drop(writeln!(io::stderr(), "error: cannot start the thread that writes stderr: {error}"));
        return ExitKind::Restart.exit_code();
    }
    std::panic::set_hook(Box::new(report_panic));
    let invocation = match settings::parse(std::env::args_os(), &Environment::of_process()) {
        Ok(invocation) => invocation,
        Err(exit) => return leave(&exit),
    };
    log_to_stderr(&invocation.log);
    for warning in &invocation.warnings {
        tracing::warn!("{warning}");
    }
    perform(invocation)
}

fn perform(invocation: Invocation) -> u8 {
    let Invocation { task, typed, .. } = invocation;
    match execute(task, &typed) {
        Ok(()) => 0,
        // The program that read the output closed it, as `head` does: no error.
        Err(CommandError { cause: CommandCause::Output(error), .. }) if error.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(error) => fail(error, &typed),
    }
}

fn execute(task: Task, typed: &TypedFlags) -> Result<(), CommandError> {
    let stop = in_chunks(&task).then(commands::stop_on_signal).transpose()?.unwrap_or_default();
    let stop = || stop.load(Ordering::Relaxed);
    match task {
        Task::Run(request) => commands::run::run(*request, typed),
        Task::CheckDebezium(review) => Ok(review.print(&mut io::stdout())?),
        Task::Check(request) => check::check(&request, &mut io::stdout(), typed),
        Task::DeadLetters(request) => dead_letters::dead_letters(&request, &mut io::stdout(), &stop),
        Task::Prune(request) => prune::prune(&request, &mut io::stdout(), &mut io::stderr(), &stop),
        // A signal ends the process, and with its connection whatever was being waited for.
        Task::Setup(request, backfill) => {
            let exported = in_dialogue(|dialogue| setup::setup(&request, dialogue, &|| false))?;
            let fill = |request: Box<backfill::BackfillRequest>| {
                in_dialogue(|dialogue| backfill::backfill(*request, exported, dialogue, typed))
            };
            backfill.map_or(Ok(()), fill)
        }
        Task::Backfill(request) => in_dialogue(|dialogue| backfill::backfill(*request, None, dialogue, typed)),
        Task::Status(request) => status::status(&request, &mut io::stdout(), io::stdout().is_terminal(), &|| false),
        Task::Ready(address) => status::ready(&address, &mut io::stdout()),
        Task::Teardown(request) => tear_down(&request),
        Task::Bench(request) => {
            // The first signal ends the measurement, and what it made is removed; a second one ends the process.
            let stop = commands::stop_on_signal()?;
            bench::bench(&request, &mut io::stdout(), &stop)
        }
        Task::Verify(request) => {
            // The first signal ends the window, and what was seen is compared; a second one ends the process.
            let stop = commands::stop_on_signal()?;
            verify::verify(&request, &mut io::stdout(), &stop)
        }
        Task::Man(folder) => Ok(cli::write_manual(&folder)?),
        Task::Completions(shell) => Ok(io::stdout().write_all(&cli::completions(shell))?),
    }
}

/// Whether a task changes rows or publishes records chunk by chunk, so that a signal should end it between two of them.
fn in_chunks(task: &Task) -> bool {
    match task {
        Task::Prune(_) => true,
        Task::DeadLetters(request) => request.action == dead_letters::Action::Replay,
        Task::Run(_)
        | Task::CheckDebezium(_)
        | Task::Check(_)
        | Task::Setup(..)
        | Task::Status(_)
        | Task::Ready(_)
        | Task::Teardown(_)
        | Task::Backfill(_)
        | Task::Bench(_)
        | Task::Verify(_)
        | Task::Man(_)
        | Task::Completions(_) => false,
    }
}

/// Carries out what may have to ask.
fn in_dialogue<T>(work: impl FnOnce(Dialogue<'_>) -> Result<T, CommandError>) -> Result<T, CommandError> {
    let mut stdin = io::stdin().lock();
    let terminal = io::stdin().is_terminal().then_some(&mut stdin as &mut dyn BufRead);
    work(Dialogue { out: &mut io::stdout(), notes: &mut io::stderr(), terminal })
}

fn tear_down(request: &teardown::TeardownRequest) -> Result<(), CommandError> {
    let mut stdin = io::stdin().lock();
    let terminal = io::stdin().is_terminal().then_some(&mut stdin as &mut dyn BufRead);
    teardown::teardown(request, &mut io::stdout(), terminal)
}

/// Help goes to where it was asked for, errors to stderr.
fn leave(exit: &Exit) -> u8 {
    match exit {
        // A reader that has seen enough, such as `head`, is no error.
        Exit::Asked(text) => drop(io::stdout().write_all(text.as_bytes())),
        Exit::Wrong(_) => stderr::say(&exit.to_string()),
    }
    exit.code()
}

/// One line with the chain of causes, one with what fixes it. Its commands have the flags that were typed.
fn fail(error: CommandError, typed: &TypedFlags) -> u8 {
    let text = chain(&error);
    let hint = error.remedy.map_or_else(String::new, |hint| format!("hint: {}\n", hint.with(typed)));
    stderr::say(&format!("error: {text}\n{hint}"));
    error.kind.exit_code()
}

/// The process aborts after a panic. What the log has not written yet, and the panic itself, are written before that.
fn report_panic(panic: &PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    let shown = if backtrace.status() == BacktraceStatus::Captured { backtrace.to_string() } else { String::new() };
    stderr::say(&format!("thread {:?} {panic}\n{shown}", std::thread::current().name().unwrap_or_default()));
    stderr::finish();
}

fn log_to_stderr(log: &LogConfig) {
    let filter = EnvFilter::try_new(format!("{},{SILENT}", log.filter))
        .unwrap_or_else(|_| EnvFilter::new(format!("info,{SILENT}")));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| stderr::LogLines);
    let terminal = std::io::stderr().is_terminal();
    match log.format {
        LogFormat::Text => lines.with_ansi(terminal).init(),
        LogFormat::Auto if terminal => lines.init(),
        LogFormat::Auto | LogFormat::Json => lines.json().flatten_event(true).init(),
    }
}
