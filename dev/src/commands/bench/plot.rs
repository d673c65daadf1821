//! Figures as pictures: a bar for each, with its range.

use super::figure::Figure;

const WIDTH: f64 = 760.0;
const BAR: f64 = 26.0;
const GAP: f64 = 12.0;
const LABELS: f64 = 190.0;
/// Room for the words behind a bar.
const WORDS: f64 = 210.0;
const TOP: f64 = 64.0;

/// A bar for each label, with its range and words behind it.
pub(super) fn bars_of(title: &str, below: &str, all: &[(String, Figure, String)]) -> String {
    let most = all.iter().map(|(_, figure, _)| figure.most).fold(f64::MIN_POSITIVE, f64::max);
    let scale = (WIDTH - LABELS - WORDS) / most;
    let mut bars = String::new();
    let mut y = TOP;
    for (name, figure, words) in all {
        let middle = y + BAR / 2.0;
        let fill = if name.starts_with("walrelay") { "#2563eb" } else { "#94a3b8" };
        let line = format!(
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{name}</text>\n\
             <rect x=\"{LABELS:.0}\" y=\"{y:.0}\" width=\"{:.1}\" height=\"{BAR:.0}\" fill=\"{fill}\"/>\n\
             <path d=\"M{:.1} {middle:.0}H{:.1}\" stroke=\"#0f172a\" stroke-width=\"1.5\"/>\n\
             <text x=\"{:.0}\" y=\"{:.0}\">{words}</text>\n",
            LABELS - 8.0,
            middle + 5.0,
            figure.median * scale,
            LABELS + figure.least * scale,
            LABELS + figure.most * scale,
            LABELS + figure.most * scale + 8.0,
            middle + 5.0,
        );
        bars.push_str(&line);
        y += BAR + GAP;
    }
    let height = y + GAP;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"14\">\n\
         <rect width=\"{WIDTH:.0}\" height=\"{height:.0}\" fill=\"#ffffff\"/>\n\
         <text x=\"16\" y=\"24\" font-weight=\"bold\">{title}</text>\n<text x=\"16\" y=\"44\">{below}</text>\n{bars}</svg>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_range_ends_before_the_words_and_each_bar_has_its_length() {
        let figure = |median, least, most| Figure { median, least, most };
        let all = [
            ("walrelay".to_owned(), figure(100.0, 90.0, 200.0), "a".to_owned()),
            ("other".to_owned(), figure(50.0, 50.0, 50.0), "b".to_owned()),
        ];
        let picture = bars_of("title", "below", &all);
        for part in ["width=\"180.0\"", "width=\"90.0\"", "M352.0 77H550.0", ">walrelay<", ">other<", "#2563eb"] {
            assert!(picture.contains(part), "{part} in {picture}");
        }
    }
}
