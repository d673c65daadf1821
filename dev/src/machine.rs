//! What figures were measured on, and the files of a report.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// Processor, memory, system, and the load before the first run.
pub(crate) fn describe() -> Value {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpu.lines().find(|line| line.starts_with(name))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = memory.lines().next().and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    json!({
        "processor": field("model name").unwrap_or_else(|| "unknown".to_owned()),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory_gib": kib.unwrap_or_default() / (1 << 20),
        "kernel": kernel(&fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default()),
        "load_before": fs::read_to_string("/proc/loadavg").unwrap_or_default().split(' ').next().unwrap_or_default(),
    })
}

/// Writes a report as `name.md` and `name.json`.
pub(crate) fn write(folder: &Path, name: &str, markdown: &str, json: &Value) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::write(folder.join(format!("{name}.md")), markdown)?;
    Ok(fs::write(folder.join(format!("{name}.json")), format!("{json:#}\n"))?)
}

/// The version without what its builder added.
fn kernel(release: &str) -> String {
    release.trim().split(['.', '-']).take(2).collect::<Vec<_>>().join(".")
}

/// The same in one line.
pub(crate) fn line(machine: &Value) -> String {
    let text = |name: &str| machine.get(name).map(|value| value.to_string().replace('"', "")).unwrap_or_default();
    format!(
        "{}, {} cores, {} GiB, Linux {}, load {} before",
        text("processor"),
        text("cores"),
        text("memory_gib"),
        text("kernel"),
        text("load_before")
    )
}
