//! A figure over some runs: the median with its range.

/// A figure over the runs.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(super) struct Figure {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

/// Of so many values; `None` of none.
pub(super) fn figure_of(values: impl Iterator<Item = f64>) -> Option<Figure> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    // The middle one, or halfway between the two in the middle.
    let middle = [values.len().saturating_sub(1) / 2, values.len() / 2].map(|place| values.get(place));
    let [Some(lower), Some(upper)] = middle else { return None };
    let median = f64::midpoint(*lower, *upper);
    Some(Figure { median, least: *values.first()?, most: *values.last()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_runs_the_median_is_halfway_between_them() {
        let figure = figure_of([3.0, 1.0].into_iter());
        assert_eq!(figure, Some(Figure { median: 2.0, least: 1.0, most: 3.0 }));
        assert_eq!(figure_of(std::iter::empty()), None);
    }
}
