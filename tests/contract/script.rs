//! What every sink promises, step by step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use walrelay::lsn::{Lsn, Position};
use walrelay::setting_text::{Given, Origin as GivenBy};
use walrelay::sink::destination::{Delivery, GivenSettings, Kind};
use walrelay::sink::{
    Content, Enqueue, FailureClass, Header, Origin, OwnedRecord, Record, RefusalId, Refused, Report, Resolution, Rows,
    Sink, Source, Tag, Token,
};

/// A deadline that only a failure reaches.
const LONG: Duration = Duration::from_mins(2);

/// A destination on a server of its own.
pub(crate) trait Ground {
    /// What a record's topic is for the address of this name.
    fn address(&self, name: &str) -> String {
        name.to_owned()
    }
    /// A fresh sink. `max_in_flight`: bytes.
    fn open(&self, max_in_flight: usize) -> Box<dyn Sink>;
    /// What is stored under an address, in its order: the records' values.
    fn stored(&self, address: &str) -> Vec<String>;
    /// The same records: the value, and all other parts that the destination keeps of it as text.
    fn whole(&self, address: &str) -> Vec<(String, String)>;
    /// From now on the server refuses records for the address, whatever they are.
    fn refuse(&self, address: &str);
    /// Ends that.
    fn allow(&self, address: &str);
    /// From now on the server has no room.
    fn fill(&self);
    /// Ends that.
    fn make_room(&self);
    /// All connections are lost.
    fn cut(&self);
}

/// A sink as its settings say. `max_in_flight`: bytes.
pub(crate) fn opened(
    kind: &Kind,
    scheme: &str,
    address: &str,
    properties: &[(&str, &str)],
    max_in_flight: usize,
) -> Box<dyn Sink> {
    let given = |text: &str| Given { text: text.to_owned(), origin: GivenBy::Flag("-X".to_owned()) };
    let properties = properties.iter().map(|(name, text)| ((*name).to_owned(), given(text))).collect();
    let (addresses, warnings) = (vec![given(address)], &mut Vec::new());
    let mut asked = GivenSettings { scheme, addresses, properties, max_in_flight, warnings };
    (kind.read)(&mut asked).unwrap().open("walrelay", Delivery::default()).unwrap()
}

/// A sink, and everything that it has reported.
struct Driven<'a> {
    ground: &'a dyn Ground,
    sink: Box<dyn Sink>,
    delivered: Vec<(u32, u32)>,
    refused: Vec<Refused>,
}

fn tag(transaction: u32) -> Tag {
    let token = Token { transaction, tick: 1, topic: 2 };
    Tag {
        token,
        origin: Origin {
            position: Position { final_lsn: Lsn::new(7), ordinal: transaction.into() },
            source: Source::Table(3),
        },
    }
}

/// Value and id are the number; the key is given.
fn with_record<T>(address: &str, key: Option<&str>, number: u32, take: impl FnOnce(&Record<'_>) -> T) -> T {
    let text = number.to_string();
    let headers = [Header { name: "id", value: Some(text.as_bytes()) }];
    take(&Record {
        topic: address,
        key: key.map(str::as_bytes),
        value: Some(text.as_bytes()),
        headers: &headers,
        timestamp_millis: 0,
        partition: None,
        content: Content::Unknown,
    })
}

impl<'a> Driven<'a> {
    fn new(ground: &'a impl Ground, max_in_flight: usize) -> Self {
        Self { ground, sink: ground.open(max_in_flight), delivered: Vec::new(), refused: Vec::new() }
    }

    fn poll(&mut self) {
        let Self { sink, delivered, refused, .. } = self;
        sink.poll(&mut |report| match report {
            Report::Delivered(run) => {
                assert_eq!((run.token.tick, run.token.topic), (1, 2));
                delivered.push((run.token.transaction, run.records));
            }
            Report::Refused(one) => refused.push(*one),
            Report::Failed(failure) => panic!("{failure}"),
        });
    }

    #[track_caller]
    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + LONG;
        loop {
            self.poll();
            if holds(self) {
                return;
            }
            let state = (self.sink.in_flight(), self.sink.blocked(), self.sink.problem());
            assert!(Instant::now() < deadline, "waited in vain for {what}: {state:?} {:?}", self.refused);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[track_caller]
    fn take(&mut self, address: &str, key: Option<&str>, number: u32) {
        let address = self.ground.address(address);
        self.until("room", |it| {
            with_record(&address, key, number, |record| match it.sink.try_enqueue(record, tag(number)) {
                Enqueue::Taken => true,
                Enqueue::Full | Enqueue::Blocked(_) => false,
                Enqueue::Bad(failure) => panic!("{failure}"),
            })
        });
    }

    #[track_caller]
    fn until_idle(&mut self) {
        self.sink.on_idle(Rows::Live);
        self.until("everything to be reported", |it| it.sink.in_flight().records == 0);
    }

    /// The numbers that were reported, each as often as it was.
    fn numbers(&self) -> BTreeMap<u32, u32> {
        let mut numbers = BTreeMap::new();
        for (number, records) in &self.delivered {
            *numbers.entry(*number).or_default() += records;
        }
        numbers
    }

    #[track_caller]
    fn reported_once(&self, numbers: impl IntoIterator<Item = u32>) {
        let expected: BTreeMap<u32, u32> = numbers.into_iter().map(|number| (number, 1)).collect();
        assert_eq!(self.numbers(), expected);
    }

    #[track_caller]
    fn refusal(&mut self) -> Refused {
        self.until("a refusal", |it| !it.refused.is_empty());
        self.refused.remove(0)
    }

    fn resolve(&mut self, id: RefusalId, resolution: Resolution<'_>) {
        assert!(matches!(self.sink.resolve(id, resolution), Enqueue::Taken));
    }
}

fn numbers(stored: &[String]) -> Vec<u32> {
    stored.iter().map(|text| text.parse().unwrap()).collect()
}

/// Each number where it appears first.
fn firsts(stored: &[u32]) -> Vec<u32> {
    let mut seen = BTreeSet::new();
    stored.iter().copied().filter(|number| seen.insert(*number)).collect()
}

/// A record that is taken is stored, those of a key in their order, and reported once.
pub(crate) fn taken(ground: &impl Ground) {
    let mut driven = Driven::new(ground, 1 << 20);
    for number in 0..500 {
        driven.take("taken", Some(&format!("k{}", number % 7)), number);
    }
    driven.take("taken", None, 500);
    driven.take("other", None, 501);
    assert!(driven.sink.in_flight().records > 0);
    driven.until_idle();
    driven.reported_once(0..502);
    assert_eq!((driven.sink.in_flight().bytes, driven.sink.in_flight().held), (0, 0));
    let stored = numbers(&ground.stored("taken"));
    for key in 0..7 {
        let of_key: Vec<u32> = stored.iter().copied().filter(|number| *number < 500 && number % 7 == key).collect();
        assert_eq!(of_key, (0..500).filter(|number| number % 7 == key).collect::<Vec<_>>());
    }
    assert_eq!((stored.len(), ground.stored("other")), (501, vec!["501".to_owned()]));
    driven.poll();
    driven.reported_once(0..502);
}

/// What is in flight is bounded; a record that is larger than the bound goes alone.
pub(crate) fn full(ground: &impl Ground) {
    ground.fill();
    let mut driven = Driven::new(ground, 20_000);
    let mut taken = 0;
    loop {
        let outcome =
            with_record(&ground.address("full"), None, taken, |record| driven.sink.try_enqueue(record, tag(taken)));
        driven.poll();
        match outcome {
            Enqueue::Taken => taken += 1,
            Enqueue::Full => break,
            Enqueue::Blocked(_) => {}
            Enqueue::Bad(failure) => panic!("{failure}"),
        }
        assert!(taken < 10_000, "it has no bound");
    }
    assert!(driven.sink.in_flight().bytes <= 20_000);
    ground.make_room();
    driven.take("full", None, taken);
    driven.until_idle();
    let large = vec![b'x'; 100_000];
    let record = Record {
        topic: &ground.address("large"),
        key: None,
        value: Some(&large),
        headers: &[],
        timestamp_millis: 0,
        partition: None,
        content: Content::Unknown,
    };
    assert!(matches!(driven.sink.try_enqueue(&record, tag(taken + 1)), Enqueue::Taken));
    assert!(matches!(driven.sink.try_enqueue(&record, tag(taken + 2)), Enqueue::Full));
    driven.until_idle();
    driven.reported_once(0..taken + 2);
    assert_eq!(numbers(&ground.stored("full")), (0..=taken).collect::<Vec<_>>());
}

/// No room is waited out, `blocked` says so, and nothing is lost or reported before.
pub(crate) fn blocked(ground: &impl Ground) {
    let mut driven = Driven::new(ground, 1 << 20);
    driven.take("blocked", Some("k"), 0);
    driven.until_idle();
    ground.fill();
    for number in 1..50 {
        driven.take("blocked", Some("k"), number);
    }
    driven.sink.on_idle(Rows::Live);
    driven.until("it to say so", |it| it.sink.blocked().is_some());
    assert_eq!(driven.sink.blocked().unwrap().class, FailureClass::Environment);
    assert!(driven.sink.problem().is_some() && driven.refused.is_empty());
    driven.reported_once(0..1);
    ground.make_room();
    driven.until_idle();
    driven.until("it to be over", |it| it.sink.blocked().is_none() && it.sink.problem().is_none());
    driven.reported_once(0..50);
    assert_eq!(numbers(&ground.stored("blocked")), (0..50).collect::<Vec<_>>());
}

/// A refusal names the record, holds its sequence alone, and each of the three decisions does what it says.
pub(crate) fn refused(ground: &impl Ground) {
    let mut driven = Driven::new(ground, 1 << 20);
    ground.refuse("refused");
    driven.take("refused", Some("k"), 0);
    driven.take("refused", Some("k"), 1);
    driven.take("refused", Some("k"), 2);
    driven.take("free", Some("k"), 3);
    driven.sink.on_idle(Rows::Live);
    let refusal = driven.refusal();
    assert_eq!((refusal.tag, refusal.record.topic()), (tag(0), ground.address("refused").as_str()));
    assert_eq!(refusal.failure.class, FailureClass::Topic);
    driven.until("another sequence to go on", |it| it.numbers().contains_key(&3));
    driven.reported_once([3]);
    assert_eq!((driven.sink.in_flight().records, driven.sink.in_flight().held), (3, 3));
    driven.take("refused", Some("k"), 4);
    driven.sink.on_idle(Rows::Live);
    driven.until("one that comes later to be held as well", |it| it.sink.in_flight().held == 4);

    driven.resolve(refusal.id, Resolution::Retry);
    let again = driven.refusal();
    assert!(again.tag == tag(0) && again.id != refusal.id);

    // The dead-letter record is refused as well, then taken.
    ground.refuse("dead");
    let instead = Token { transaction: 100, tick: 1, topic: 2 };
    with_record(&ground.address("dead"), Some("k"), 100, |record| {
        driven.resolve(again.id, Resolution::ReplaceWith(record, instead));
    });
    let dead = driven.refusal();
    let dead_address = ground.address("dead");
    let expected = (dead_address.as_str(), tag(0).origin, instead);
    assert_eq!((dead.record.topic(), dead.tag.origin, dead.tag.token), expected);
    ground.allow("dead");
    driven.resolve(dead.id, Resolution::Retry);
    let second = driven.refusal();
    assert_eq!(second.tag, tag(1), "what stood behind the first");
    driven.reported_once([3, 100]);

    driven.resolve(second.id, Resolution::Skip);
    let third = driven.refusal();
    assert_eq!((third.tag, driven.sink.in_flight().records), (tag(2), 2));
    ground.allow("refused");
    driven.resolve(third.id, Resolution::Retry);
    driven.until_idle();
    driven.reported_once([2, 3, 4, 100]);
    assert_eq!((numbers(&ground.stored("refused")), numbers(&ground.stored("dead"))), (vec![2, 4], vec![100]));
    assert_eq!((driven.sink.in_flight().bytes, driven.sink.in_flight().held), (0, 0));
}

/// After a restart nothing that was taken before is reported or refused.
pub(crate) fn restart(ground: &impl Ground) {
    let mut driven = Driven::new(ground, 1 << 20);
    ground.refuse("held");
    driven.take("held", Some("k"), 0);
    driven.sink.on_idle(Rows::Live);
    let refusal = driven.refusal();
    ground.fill();
    for number in 1..20 {
        driven.take("restart", Some("k"), number);
    }
    driven.sink.restart().unwrap();
    assert_eq!(driven.sink.in_flight(), walrelay::sink::InFlight::default());
    ground.make_room();
    ground.allow("held");
    // Of a refusal that is forgotten, nothing comes.
    driven.resolve(refusal.id, Resolution::Retry);
    for number in 20..40 {
        driven.take("restart", Some("k"), number);
    }
    driven.until_idle();
    driven.reported_once(20..40);
    assert!(driven.refused.is_empty() && ground.stored("held").is_empty());
    let stored = numbers(&ground.stored("restart"));
    assert!(stored.is_sorted() && stored.ends_with(&(20..40).collect::<Vec<_>>()), "{stored:?}");
}

/// Every part of this record depends on its number.
fn with_whole<T>(address: &str, number: u32, take: impl FnOnce(&Record<'_>) -> T) -> T {
    let text = number.to_string();
    let value = format!("{{\"n\": {number}}}");
    let headers = [
        Header { name: "id", value: Some(text.as_bytes()) },
        Header { name: "eventType", value: Some(b"placed") },
        Header { name: "trace", value: Some(value.as_bytes()) },
    ];
    take(&Record {
        topic: address,
        key: Some(format!("k{}", number % 7).as_bytes()),
        value: Some(value.as_bytes()),
        headers: &headers,
        timestamp_millis: 1_700_000_000_000 + i64::from(number) * 1000,
        partition: None,
        content: Content::Json,
    })
}

/// A record that is refused, or whose connection is lost, and that is sent again, is stored as one that is sent once.
pub(crate) fn resent(ground: &impl Ground) {
    let mut driven = Driven::new(ground, 1 << 20);
    let take = |driven: &mut Driven<'_>, name: &str, number: u32| {
        let address = ground.address(name);
        driven.until("room", |it| {
            with_whole(&address, number, |record| matches!(it.sink.try_enqueue(record, tag(number)), Enqueue::Taken))
        });
    };
    (0..50).for_each(|number| take(&mut driven, "taken", number));
    driven.until_idle();
    ground.refuse("refused");
    (0..50).for_each(|number| take(&mut driven, "refused", number));
    driven.sink.on_idle(Rows::Live);
    let first = driven.refusal();
    let number = first.tag.token.transaction;
    with_whole(&ground.address("refused"), number, |record| assert_eq!(first.record, OwnedRecord::of(record)));
    ground.allow("refused");
    driven.resolve(first.id, Resolution::Retry);
    (50..100).for_each(|number| take(&mut driven, "refused", number));
    ground.cut();
    (50..100).for_each(|number| take(&mut driven, "taken", number));
    driven.until("everything to be delivered", |it| {
        for refused in std::mem::take(&mut it.refused) {
            it.resolve(refused.id, Resolution::Retry);
        }
        it.sink.on_idle(Rows::Live);
        it.sink.in_flight().records == 0
    });
    let parts = |name: &str| -> BTreeSet<(String, String)> {
        let whole = ground.whole(name).into_iter();
        whole.map(|(value, rest)| (value, rest.replace(&ground.address(name), "ADDRESS"))).collect()
    };
    let expected = parts("taken");
    assert_eq!(expected.len(), 100);
    assert_eq!(parts("refused"), expected);
}

/// Connections are lost and records refused all the time: nothing is lost, and no key's records change places where they appear
/// first.
pub(crate) fn order(ground: &impl Ground) {
    let mut driven = Driven::new(ground, 64 << 10);
    let keys = 5;
    let address = |number: u32| format!("order{}", number % 2);
    for number in 0..2000 {
        match number % 400 {
            100 | 200 => ground.cut(),
            300 => ground.refuse("order1"),
            _ => {}
        }
        driven.take(&address(number), Some(&format!("k{}", number % keys)), number);
        if number % 400 == 300 {
            driven.sink.on_idle(Rows::Live);
            driven.refusal();
            driven.refused.clear();
            // Those that come meanwhile are held as well; all are forgotten together.
            ground.allow("order1");
            driven.sink.restart().unwrap();
            replay(&mut driven, number, keys, address);
        }
    }
    driven.until_idle();
    for parity in 0..2 {
        let stored = firsts(&numbers(&ground.stored(&format!("order{parity}"))));
        for key in 0..keys {
            let belongs = |number: &u32| number % 2 == parity && number % keys == key;
            let of_key: Vec<u32> = stored.iter().copied().filter(belongs).collect();
            assert_eq!(of_key, (0..2000).filter(belongs).collect::<Vec<_>>(), "address {parity}, key {key}");
        }
    }
}

/// The server refuses and allows an address, again and again, while many records of one key go there: none is stored before an earlier
/// one that was refused.
pub(crate) fn switched(ground: &(impl Ground + Sync)) {
    let mut driven = Driven::new(ground, 1 << 20);
    let mut skipped = BTreeSet::new();
    let switching = AtomicBool::new(true);
    let mut skip = |driven: &mut Driven<'_>| {
        for refused in std::mem::take(&mut driven.refused) {
            driven.resolve(refused.id, Resolution::Skip);
            skipped.insert(refused.tag.token.transaction);
            switching.store(skipped.len() < 100, Relaxed);
        }
    };
    let last = std::thread::scope(|scope| {
        scope.spawn(|| {
            while switching.load(Relaxed) {
                ground.refuse("order0");
                ground.allow("order0");
            }
        });
        let mut number = 0;
        while switching.load(Relaxed) {
            if driven.sink.in_flight().records < 500 {
                driven.take("order0", Some("k"), number);
                number += 1;
            }
            driven.sink.on_idle(Rows::Live);
            driven.poll();
            skip(&mut driven);
        }
        number
    });
    driven.until("everything to be delivered", |it| {
        skip(it);
        it.sink.on_idle(Rows::Live);
        it.sink.in_flight().records == 0
    });
    let expected: Vec<u32> = (0..last).filter(|number| !skipped.contains(number)).collect();
    driven.reported_once(expected.iter().copied());
    assert_eq!(firsts(&numbers(&ground.stored("order0"))), expected);
}

/// As after a restart of the relay's sink: everything that is not known to be delivered comes again, in order.
fn replay(driven: &mut Driven<'_>, last: u32, keys: u32, address: impl Fn(u32) -> String) {
    let delivered = driven.numbers();
    let first = (0..=last).find(|number| !delivered.contains_key(number)).unwrap_or(last + 1);
    for number in first..=last {
        driven.take(&address(number), Some(&format!("k{}", number % keys)), number);
    }
}
