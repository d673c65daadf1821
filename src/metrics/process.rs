//! Reads the kernel's figures about this process, for the `process_*` metrics that every exporter has.
//!
//! In: `/proc`. Out: figures. A figure is not known if the kernel does not have it. Outside Linux, there is no `/proc`.
//! Specification: proc(5), "/proc/pid/stat" and "/proc/stat".

use std::fs;
use std::time::Duration;

/// The figures of the process at one moment. `None`: not known.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ProcessFigures {
    /// The user and system time.
    pub(super) cpu: Option<Duration>,
    /// The start, since 1970.
    pub(super) started: Option<Duration>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) virtual_bytes: Option<u64>,
    pub(super) threads: Option<u64>,
    pub(super) open_fds: Option<u64>,
    /// `None` also if there is no limit.
    pub(super) max_fds: Option<u64>,
}

impl ProcessFigures {
    /// Reads the figures.
    pub(super) fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let boot = fs::read_to_string("/proc/stat").unwrap_or_default();
        let units = Units {
            ticks_per_second: rustix::param::clock_ticks_per_second().max(1),
            page_bytes: rustix::param::page_size() as u64,
        };
        Self {
            open_fds: open_fds(),
            max_fds: rustix::process::getrlimit(rustix::process::Resource::Nofile).current,
            ..Self::parse(&stat, &boot, &units)
        }
    }

    fn parse(stat: &str, boot: &str, units: &Units) -> Self {
        let field = |number| field(stat, number);
        Self {
            cpu: field(14).zip(field(15)).map(|(user, system)| units.ticks(user + system)),
            started: field(22).zip(boot_time(boot)).map(|(ticks, boot)| boot + units.ticks(ticks)),
            resident_bytes: field(24).map(|pages| pages.saturating_mul(units.page_bytes)),
            virtual_bytes: field(23),
            threads: field(20),
            open_fds: None,
            max_fds: None,
        }
    }
}

struct Units {
    ticks_per_second: u64,
    page_bytes: u64,
}

impl Units {
    fn ticks(&self, ticks: u64) -> Duration {
        Duration::from_millis(ticks.saturating_mul(1000) / self.ticks_per_second)
    }
}

/// Field `number` of `/proc/pid/stat` as the manual counts them: from 1. The second field, the command's name, may have blanks and
/// parentheses, so the count starts after it.
fn field(stat: &str, number: usize) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

/// The time when the machine started, since 1970.
fn boot_time(stat: &str) -> Option<Duration> {
    let seconds = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    Some(Duration::from_secs(seconds.trim().parse().ok()?))
}

/// The number of open descriptors, without the one that this function opens.
fn open_fds() -> Option<u64> {
    let count = fs::read_dir("/proc/self/fd").ok()?.count();
    u64::try_from(count).ok()?.checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: Units = Units { ticks_per_second: 100, page_bytes: 4096 };

    #[test]
    fn fields_are_found_behind_a_name_with_blanks_and_parentheses() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 9 0 12345 104857600 2560 184467";
        let figures = ProcessFigures::parse(stat, "cpu 1 2\nbtime 1700000000\nprocesses 9\n", &UNITS);
        assert_eq!(
            figures,
            ProcessFigures {
                cpu: Some(Duration::from_secs(3)),
                started: Some(Duration::from_millis(1_700_000_123_450)),
                resident_bytes: Some(10_485_760),
                virtual_bytes: Some(104_857_600),
                threads: Some(9),
                open_fds: None,
                max_fds: None,
            }
        );
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_unknown() {
        assert_eq!(ProcessFigures::parse("", "", &UNITS), ProcessFigures::default());
        assert_eq!(ProcessFigures::parse("7 (x) S 1 2", "btime x", &UNITS), ProcessFigures::default());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_memory_threads_and_descriptors() {
        let figures = ProcessFigures::read();
        for figure in [figures.resident_bytes, figures.virtual_bytes, figures.threads, figures.open_fds] {
            assert!(figure.is_some_and(|value| value > 0), "{figures:?}");
        }
        assert!(figures.started.is_some());
    }
}
