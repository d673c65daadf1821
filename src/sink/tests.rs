//! What the tests of several destinations have in common.

use super::destination::Asked;
use crate::setting_text::{Given, Origin};

/// Reads what tests say of a destination. `max_in_flight` is 1 MiB.
pub(super) fn read_in_test<T>(
    scheme: &str,
    address: &str,
    properties: &[(&str, &str)],
    read: impl FnOnce(&mut Asked<'_>) -> T,
) -> T {
    let given = |text: &str| Given { text: text.to_owned(), origin: Origin::Flag("--to".to_owned()) };
    let properties = properties.iter().map(|(name, text)| ((*name).to_owned(), given(text))).collect();
    let (addresses, warnings) = (vec![given(address)], &mut Vec::new());
    read(&mut Asked { scheme, addresses, properties, max_in_flight: 1 << 20, warnings })
}
