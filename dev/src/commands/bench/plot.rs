//! A case as a picture: one bar for each subject's rate, with its range.

use super::report::Table;
use crate::screen::thousands;

const WIDTH: f64 = 760.0;
const BAR: f64 = 26.0;
const GAP: f64 = 12.0;
const LABELS: f64 = 190.0;
const TOP: f64 = 64.0;

/// The picture as SVG; bars of subjects without a rate are left out.
pub(super) fn bars(table: &Table) -> String {
    let rates: Vec<_> = table
        .rows
        .iter()
        .filter_map(|row| {
            Some((row.subject.to_string(), row.figure(|run| run.rows_per_second)?, row.figure(|run| run.tool_cpu)?))
        })
        .collect();
    let most = rates.iter().map(|(_, rate, _)| rate.most).fold(1.0, f64::max);
    let scale = (WIDTH - LABELS - 200.0) / most;
    let mut bars = String::new();
    let mut y = TOP;
    for (name, rate, cpu) in &rates {
        let (middle, end) = (y + BAR / 2.0, LABELS + rate.median * scale);
        let fill = if name == "walrelay" { "#2563eb" } else { "#94a3b8" };
        let line = format!(
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{name}</text>\n\
             <rect x=\"{LABELS:.0}\" y=\"{y:.0}\" width=\"{:.1}\" height=\"{BAR:.0}\" fill=\"{fill}\"/>\n\
             <path d=\"M{:.1} {middle:.0}H{:.1}\" stroke=\"#0f172a\" stroke-width=\"1.5\"/>\n\
             <text x=\"{:.0}\" y=\"{:.0}\">{} rows/s, {:.1} CPU-s/M</text>\n",
            LABELS - 8.0,
            middle + 5.0,
            rate.median * scale,
            LABELS + rate.least * scale,
            LABELS + rate.most * scale,
            end.max(LABELS + rate.most * scale) + 8.0,
            middle + 5.0,
            whole(rate.median),
            cpu.median
        );
        bars.push_str(&line);
        y += BAR + GAP;
    }
    let height = y + GAP;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"14\">\n\
         <rect width=\"{WIDTH:.0}\" height=\"{height:.0}\" fill=\"#ffffff\"/>\n\
         <text x=\"16\" y=\"24\" font-weight=\"bold\">{}</text>\n<text x=\"16\" y=\"44\">{}</text>\n{bars}</svg>\n",
        table.load, table.reading
    )
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive rate")]
fn whole(rate: f64) -> String {
    thousands(rate.round() as u64)
}
