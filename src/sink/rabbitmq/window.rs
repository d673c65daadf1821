//! Messages of a channel that are not confirmed yet: which record each delivery tag stands for.
//!
//! In: messages in the order in which they are published, returns, confirms in whatever order they come. Out: what became of each,
//! once. Pure.
//!
//! A server returns a message before it confirms it, so that a confirm alone does not say that a queue has it. Returns are matched by
//! what the message is, never by the confirm that comes next: confirms of other messages come in between.
//!
//! Invariants: a message is kept only when it was confirmed and not returned; each is reported once; what does not fit the messages
//! under way is an error, after which nothing of them is known.
//! Specification: RabbitMQ, "Consumer Acknowledgements and Publisher Confirms".

use super::message::Print;
use std::collections::VecDeque;
use tokio::time::Instant;

/// What became of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Confirmed<R> {
    /// A queue has it.
    Kept,
    /// No queue takes it, for this reason.
    Returned(R),
    /// The server could not deal with it.
    Refused,
}

/// What came fits none of the messages under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Misfit;

/// Messages under way.
#[derive(Debug)]
pub(super) struct Window<T, R> {
    /// The delivery tag of the first entry.
    first: u64,
    entries: VecDeque<Entry<T, R>>,
}

#[derive(Debug)]
struct Entry<T, R> {
    print: Print,
    published: Instant,
    /// `None`: nobody asks any more.
    item: Option<T>,
    returned: Option<R>,
    confirmed: bool,
}

impl<T, R> Default for Window<T, R> {
    fn default() -> Self {
        Self { first: 1, entries: VecDeque::new() }
    }
}

impl<T, R> Window<T, R> {
    /// A message is published: the next delivery tag is its.
    pub(super) fn publish(&mut self, print: Print, published: Instant, item: T) {
        self.entries.push_back(Entry { print, published, item: Some(item), returned: None, confirmed: false });
    }

    /// When the first was published that is not confirmed.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.entries.front().map(|entry| entry.published)
    }

    /// Delivery tags from the first that is not confirmed to the last.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// A message came back. Of those that look like it, the first that has not.
    pub(super) fn returned(&mut self, print: Print, reason: R) -> Result<(), Misfit> {
        let is_it = |entry: &&mut Entry<T, R>| entry.print == print && !entry.confirmed && entry.returned.is_none();
        let entry = self.entries.iter_mut().find(is_it).ok_or(Misfit)?;
        entry.returned = Some(reason);
        Ok(())
    }

    /// The message with this tag is confirmed; `multiple`: and all before it that were not, and for tag 0 all that there are.
    pub(super) fn confirmed(
        &mut self,
        tag: u64,
        multiple: bool,
        kept: bool,
        mut each: impl FnMut(T, Confirmed<R>),
    ) -> Result<(), Misfit> {
        let last = match (tag, multiple) {
            (0, true) => self.entries.len(),
            // Below the first, everything was confirmed before.
            (tag, _) if tag > 0 && tag < self.first => return Ok(()),
            (tag, _) => tag.checked_sub(self.first).and_then(|at| usize::try_from(at).ok()).ok_or(Misfit)? + 1,
        };
        if last > self.entries.len() {
            return Err(Misfit);
        }
        let from = if multiple { 0 } else { last - 1 };
        for entry in self.entries.iter_mut().take(last).skip(from).filter(|entry| !entry.confirmed) {
            entry.confirmed = true;
            let Some(item) = entry.item.take() else { continue };
            each(
                item,
                match (entry.returned.take(), kept) {
                    (Some(reason), _) => Confirmed::Returned(reason),
                    (None, true) => Confirmed::Kept,
                    (None, false) => Confirmed::Refused,
                },
            );
        }
        while self.entries.front().is_some_and(|entry| entry.confirmed) {
            self.entries.pop_front();
            self.first += 1;
        }
        Ok(())
    }

    /// How many of them the server may have closed the channel for.
    pub(super) fn suspects(&self) -> usize {
        self.entries.iter().filter(|entry| !entry.confirmed && entry.returned.is_none()).count()
    }

    /// The channel is closed: what was not confirmed, and the next message is the first. With each whether it came back.
    pub(super) fn closed(&mut self) -> impl Iterator<Item = (T, Option<R>)> {
        let entries = std::mem::take(self).entries;
        entries.into_iter().filter_map(|entry| Some((entry.item?, entry.returned)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Seen = Vec<(u64, Confirmed<&'static str>)>;

    fn window(messages: u64) -> Window<u64, &'static str> {
        let mut window = Window::default();
        for tag in 1..=messages {
            window.publish(Print::numbered(tag), Instant::now(), tag);
        }
        window
    }

    fn confirm(window: &mut Window<u64, &'static str>, tag: u64, multiple: bool, kept: bool) -> Result<Seen, Misfit> {
        let mut seen = Vec::new();
        window.confirmed(tag, multiple, kept, |item, what| seen.push((item, what)))?;
        Ok(seen)
    }

    #[test]
    fn a_returned_message_is_not_kept_whichever_confirm_comes_first() {
        let mut window = window(10);
        window.returned(Print::numbered(10), "nowhere").unwrap();
        assert_eq!(confirm(&mut window, 9, false, true), Ok(vec![(9, Confirmed::Kept)]));
        let rest = confirm(&mut window, 10, true, true).unwrap();
        assert_eq!(rest.len(), 9);
        assert_eq!(rest.last(), Some(&(10, Confirmed::Returned("nowhere"))));
        assert_eq!((window.len(), window.first), (0, 11));
    }

    #[test]
    fn a_refused_message_is_not_kept() {
        let mut window = window(3);
        assert_eq!(confirm(&mut window, 2, false, false), Ok(vec![(2, Confirmed::Refused)]));
        assert_eq!(confirm(&mut window, 3, true, true), Ok(vec![(1, Confirmed::Kept), (3, Confirmed::Kept)]));
    }

    #[test]
    fn of_equal_messages_each_return_is_anothers() {
        let mut window = Window::default();
        for item in 0..3 {
            window.publish(Print::numbered(7), Instant::now(), item);
        }
        window.returned(Print::numbered(7), "a").unwrap();
        window.returned(Print::numbered(7), "b").unwrap();
        let seen = confirm(&mut window, 0, true, true).unwrap();
        assert_eq!(seen, [(0, Confirmed::Returned("a")), (1, Confirmed::Returned("b")), (2, Confirmed::Kept)]);
        assert_eq!(window.returned(Print::numbered(7), "c"), Err(Misfit));
    }

    #[test]
    fn what_was_never_published_is_not_confirmed_or_returned() {
        let mut window = window(2);
        assert_eq!(confirm(&mut window, 3, false, true), Err(Misfit));
        assert_eq!(confirm(&mut window, 0, false, true), Err(Misfit));
        assert_eq!(window.returned(Print::numbered(3), ""), Err(Misfit));
        assert_eq!(confirm(&mut window, 1, true, true).unwrap().len(), 1);
        assert_eq!(confirm(&mut window, 1, false, true), Ok(vec![]), "again");
    }

    #[test]
    fn a_closed_channel_starts_over_and_says_what_came_back() {
        let mut window = window(3);
        confirm(&mut window, 2, false, true).unwrap();
        window.returned(Print::numbered(3), "nowhere").unwrap();
        assert_eq!(window.closed().collect::<Vec<_>>(), [(1, None), (3, Some("nowhere"))]);
        window.publish(Print::numbered(9), Instant::now(), 9);
        assert_eq!(confirm(&mut window, 1, false, true), Ok(vec![(9, Confirmed::Kept)]));
    }

    proptest! {
        /// Beside a list in which each message has its place.
        #[test]
        fn each_message_is_reported_once_and_as_it_was(
            acts in prop::collection::vec((0..5_u8, any::<prop::sample::Index>(), any::<bool>(), any::<bool>()), 0..120),
        ) {
            let mut window: Window<u64, ()> = Window::default();
            let mut open: Vec<(u64, bool)> = Vec::new();
            let mut published = 0;
            for (act, index, multiple, kept) in acts {
                match act {
                    0 | 1 => {
                        published += 1;
                        window.publish(Print::numbered(published), Instant::now(), published);
                        open.push((published, false));
                    }
                    2 if !open.is_empty() => {
                        let at = index.index(open.len());
                        let is_new = !std::mem::replace(&mut open[at].1, true);
                        prop_assert_eq!(window.returned(Print::numbered(open[at].0), ()).is_ok(), is_new);
                    }
                    _ if !open.is_empty() => {
                        let tag = open[index.index(open.len())].0;
                        let is_in = |number: u64| if multiple { number <= tag } else { number == tag };
                        let (said, left) = open.into_iter().partition(|(number, _)| is_in(*number));
                        open = left;
                        let said: Vec<(u64, bool)> = said;
                        let mut seen = Vec::new();
                        window.confirmed(tag, multiple, kept, |item, what| seen.push((item, what))).unwrap();
                        let expected: Vec<_> = said.into_iter().map(|(number, returned)| (number, match (returned, kept) {
                            (true, _) => Confirmed::Returned(()),
                            (false, true) => Confirmed::Kept,
                            (false, false) => Confirmed::Refused,
                        })).collect();
                        prop_assert_eq!(seen, expected);
                    }
                    _ => {}
                }
            }
            let left: Vec<_> = window.closed().map(|(item, returned)| (item, returned.is_some())).collect();
            prop_assert_eq!(left, open);
        }
    }
}
