//! Says which host's name is being looked up. A name server that does not answer stops whoever asks it, for half a minute and more, and
//! until then there is no error to show.
//!
//! In: names, and when their look-ups begin and end. Out: the one that has lasted longest, for people.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A look-up that lasts longer is reported.
const REPORTED_AFTER: Duration = Duration::from_secs(1);

/// All look-ups of the process.
static UNDER_WAY: Lookups = Lookups(Mutex::new(Vec::new()));

#[derive(Debug)]
struct Lookups(Mutex<Vec<(String, Instant)>>);

/// A look-up under way. It has ended once this is dropped.
#[derive(Debug)]
pub struct Lookup {
    begun: Instant,
    among: &'static Lookups,
}

impl Lookup {
    /// The look-up of `name` begins.
    pub fn begin(name: &str) -> Self {
        UNDER_WAY.begin(name)
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        let mut names = self.among.names();
        if let Some(at) = names.iter().position(|(_, begun)| *begun == self.begun) {
            names.remove(at);
        }
    }
}

/// The name whose look-up has lasted longest, and for how long. `None`: none lasts for long.
pub fn silent(now: Instant) -> Option<String> {
    UNDER_WAY.silent(now)
}

impl Lookups {
    fn names(&self) -> MutexGuard<'_, Vec<(String, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&'static self, name: &str) -> Lookup {
        let begun = Instant::now();
        self.names().push((name.to_owned(), begun));
        Lookup { begun, among: self }
    }

    fn silent(&self, now: Instant) -> Option<String> {
        let names = self.names();
        let (name, begun) = names.iter().min_by_key(|(_, begun)| *begun)?;
        let lasted = now.saturating_duration_since(*begun);
        (lasted >= REPORTED_AFTER)
            .then(|| format!("the name server has not answered for {} s: looking up {name}", lasted.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_up_is_reported_once_it_lasts_and_until_it_ends() {
        static OWN: Lookups = Lookups(Mutex::new(Vec::new()));
        let silent = |now| OWN.silent(now);
        let lookup = OWN.begin("db.internal");
        let other = OWN.begin("later.internal");
        let now = Instant::now();
        assert_eq!(silent(now), None);
        let said = silent(now + Duration::from_secs(5)).unwrap();
        assert_eq!(said, "the name server has not answered for 5 s: looking up db.internal");
        drop(lookup);
        assert!(silent(now + Duration::from_secs(5)).unwrap().ends_with("later.internal"));
        drop(other);
        assert_eq!(silent(now + Duration::from_secs(5)), None);
    }
}
