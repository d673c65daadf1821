//! Curves below each other, over the same time.

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 120.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = WIDTH - 10.0;
const TOP: f64 = 30.0;

/// What is drawn above the time.
pub(super) struct Curve {
    pub(super) name: &'static str,
    /// One for each time.
    pub(super) values: Vec<f64>,
}

/// The curves as an SVG picture.
pub(super) fn draw(minutes: &[f64], curves: &[Curve]) -> String {
    let last = minutes.last().copied().unwrap_or_default().max(f64::MIN_POSITIVE);
    let each = HEIGHT + 2.0 * TOP;
    let drawn: Vec<String> = (0_u32..)
        .zip(curves)
        .map(|(place, curve)| curve.draw(f64::from(place) * each + TOP, minutes.iter().map(|minute| minute / last)))
        .collect();
    let height = each * f64::from(u32::try_from(curves.len()).unwrap_or_default());
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH:.0}\" height=\"{height:.0}\" fill=\"#ffffff\"/>\n{}\
         <text x=\"{RIGHT:.0}\" y=\"{:.0}\" text-anchor=\"end\">{last:.0} min</text>\n</svg>\n",
        drawn.concat(),
        height - 10.0,
    )
}

impl Curve {
    /// `shares`: how much of the time has passed at each value.
    fn draw(&self, top: f64, shares: impl Iterator<Item = f64>) -> String {
        let most = self.values.iter().copied().fold(1.0, f64::max);
        let (bottom, beside) = (top + HEIGHT, LEFT - 6.0);
        let point = |(share, value): (f64, &f64)| {
            format!("{:.1},{:.1}", LEFT + share * (RIGHT - LEFT), bottom - value / most * HEIGHT)
        };
        let points: Vec<String> = shares.zip(&self.values).map(point).collect();
        format!(
            "<text x=\"{LEFT:.0}\" y=\"{:.0}\" font-weight=\"bold\">{}</text>\n\
             <text x=\"{beside:.0}\" y=\"{:.0}\" text-anchor=\"end\">{most:.0}</text>\n\
             <text x=\"{beside:.0}\" y=\"{bottom:.0}\" text-anchor=\"end\">0</text>\n\
             <path d=\"M{LEFT:.0} {top:.0}V{bottom:.0}H{RIGHT:.0}\" stroke=\"#94a3b8\" fill=\"none\"/>\n\
             <polyline points=\"{}\" stroke=\"#2563eb\" fill=\"none\"/>\n",
            top - 8.0,
            self.name,
            top + 10.0,
            points.join(" "),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_begins_left_and_ends_right_and_its_highest_point_is_on_top() {
        let curves =
            [Curve { name: "files", values: vec![0.0, 20.0, 10.0] }, Curve { name: "memory", values: vec![0.5] }];
        let picture = draw(&[0.0, 30.0, 60.0], &curves);
        for part in [
            ">files<",
            ">20<",
            "points=\"70.0,150.0 410.0,30.0 750.0,90.0\"",
            ">memory<",
            ">1<",
            ">60 min<",
            "0 0 760 360",
        ] {
            assert!(picture.contains(part), "{part} in {picture}");
        }
        assert!(draw(&[], &[]).contains("<svg"));
    }
}
