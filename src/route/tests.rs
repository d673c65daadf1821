use super::*;
use proptest::prelude::*;

fn template(text: &str) -> Result<TopicRule, TopicError> {
    TopicRule::new(&TopicSetting::Template(text.to_owned()), &TOPICS)
}

fn regex(regex: &str, replacement: &str) -> Result<TopicRule, TopicError> {
    TopicRule::new(&TopicSetting::Regex { regex: regex.to_owned(), replacement: replacement.to_owned() }, &TOPICS)
}

fn rendered(topic: &TopicRule, values: &[&str]) -> String {
    let mut out = String::new();
    topic.render(|name| values[name], &mut out);
    out
}

#[track_caller]
fn check(text: &str, values: &[(&str, &str)], expected: &str) {
    let topic = template(text).unwrap();
    let names: Vec<_> = values.iter().map(|(name, _)| TopicInput::ColumnOrRole(name)).collect();
    assert_eq!(topic.names(), names);
    assert_eq!(rendered(&topic, &values.iter().map(|(_, value)| *value).collect::<Vec<_>>()), expected);
}

#[track_caller]
fn refused(text: &str, mark: usize, problem: &TopicProblem) {
    let error = template(text).unwrap_err();
    assert_eq!((error.at, &error.problem), (Some(mark), problem), "{error}");
}

#[track_caller]
fn routes(pattern: &str, replacement: &str, value: &str, expected: &str) {
    assert_eq!(rendered(&regex(pattern, replacement).unwrap(), &[value]), expected);
}

#[test]
fn a_template_fills_in_its_names_each_asked_for_once() {
    check("outbox.event.{route}", &[("route", "order")], "outbox.event.order");
    check("{a}.{b}.{a}", &[("a", "1"), ("b", "2")], "1.2.1");
    check("fixed", &[], "fixed");
    check("{ Mixed Case }", &[("Mixed Case", "x")], "x");
    check("{a}{b}", &[("a", "1"), ("b", "2")], "12");
}

#[test]
fn filters_chain_from_left_to_right() {
    check("{route|lower}", &[("route", "OrderItem")], "orderitem");
    check("{route|kebab}", &[("route", "Order_Item placed")], "order-item-placed");
    check("{route|lower|kebab}-{route}", &[("route", "A_B")], "a-b-A_B");
    check("{ route | kebab }", &[("route", "A B")], "a-b");
    check("{route|lower}", &[("route", "ÄÖ")], "äö");
}

#[test]
fn a_malformed_template_is_refused_at_its_place() {
    refused("", 0, &TopicProblem::Empty);
    refused("a.{route", 2, &TopicProblem::Unclosed);
    refused("a.route}", 7, &TopicProblem::Unopened);
    refused("a.{}", 3, &TopicProblem::NoName);
    refused("a.{ |lower}", 3, &TopicProblem::NoName);
    refused("{a{b}}", 2, &TopicProblem::Nested);
    refused("x.{route|lower| keba}", 16, &TopicProblem::UnknownFilter { name: "keba".into(), nearest: Some("kebab") });
    refused("{route|}", 7, &TopicProblem::UnknownFilter { name: String::new(), nearest: None });
}

#[test]
fn a_literal_that_no_topic_may_hold_is_refused_before_the_first_row() {
    refused("a b", 1, &TopicProblem::Character(' ', TOPICS.made_of));
    refused("outbox.${route}", 7, &TopicProblem::Character('$', TOPICS.made_of));
    refused("a.ü", 2, &TopicProblem::Character('ü', TOPICS.made_of));
    refused("a{{b", 1, &TopicProblem::Character('{', TOPICS.made_of));
    refused("{route}}}", 7, &TopicProblem::Character('}', TOPICS.made_of));
}

#[test]
fn an_error_marks_the_place_below_the_text() {
    let error = template("x.{route|uper}").unwrap_err();
    assert_eq!(
        error.to_string(),
        "--topic: \"uper\" is not a filter: lower and kebab are\n  x.{route|uper}\n           ^"
    );
    let error = template("a.route}").unwrap_err();
    assert_eq!(error.to_string(), "--topic: this '}' closes nothing ('}}' writes one)\n  a.route}\n         ^");
}

#[test]
fn no_line_break_tears_the_mark_from_its_place() {
    for error in [template("{a|\nx\u{b}}\n").unwrap_err(), regex("a", "${a\n}").unwrap_err()] {
        let shown = error.to_string();
        assert!(shown.lines().count() == 3 && !shown.contains('\u{b}'), "{shown:?}");
    }
}

#[test]
fn a_regex_replaces_a_whole_match_and_leaves_everything_else() {
    routes("(?<routedByValue>.*)", "outbox.event.${routedByValue}", "order", "outbox.event.order");
    routes("(.*)\\.v1", "$1", "order.v1", "order");
    routes("(.*)\\.v1", "$1", "order.v2", "order.v2");
    routes("order", "x", "orders", "orders");
    routes("a", "x", "", "");
}

#[test]
fn the_first_match_is_replaced_when_less_than_the_whole_matches_too() {
    routes("a|ab", "X", "ab", "Xb");
    routes("(.*?)", "p.$1", "order", "p.order");
}

#[test]
fn a_replacement_is_read_as_java_reads_it() {
    routes("(.)(.)", "$2_x$1", "ab", "b_xa");
    routes("(.*)", "$12", "ab", "ab2");
    routes("(.*)", "$0-$1", "ab", "ab-ab");
    routes("(.*)", "\\$1\\\\\\x", "ab", "$1\\x");
    routes("(a)|(b)", "[$1$2]", "b", "[b]");
    routes("(?<k>ü.*)", "${k}é", "üx", "üxé");
}

#[test]
fn a_replacement_that_java_refuses_is_refused_at_its_place() {
    let problem = |replacement: &str| {
        let error = regex("(?<k>.*)", replacement).unwrap_err();
        (error.flag, error.at, error.problem)
    };
    let flag = "--topic-replacement";
    assert_eq!(problem("a$"), (flag, Some(1), TopicProblem::BadReference));
    assert_eq!(problem("a$x"), (flag, Some(1), TopicProblem::BadReference));
    assert_eq!(problem("$2"), (flag, Some(0), TopicProblem::NoGroup("2".into())));
    assert_eq!(problem("é${z}"), (flag, Some(1), TopicProblem::NoGroup("z".into())));
    assert_eq!(problem("${"), (flag, Some(0), TopicProblem::BadReference));
    assert_eq!(problem("a\\"), (flag, Some(1), TopicProblem::LoneBackslash));
}

#[test]
fn javas_classes_are_ascii() {
    routes(r"(\d+)", "n$1", "12", "n12");
    routes(r"(\d+)", "n$1", "١٢", "١٢");
    routes(r"[\w]+", "x", "a_1", "x");
    routes(r"\w+", "x", "ä", "ä");
    routes(r"[^\d]+", "x", "ab", "x");
    routes(r"[\D]+", "x", "a1", "a1");
    routes(r"\p{Alpha}+", "x", "ä", "ä");
    routes(r"[\p{Upper}\p{Digit}]+", "x", "A1", "x");
    routes(r"\P{Digit}+", "x", "ab", "x");
    routes(r"\p{L}+", "x", "ä", "x");
    routes(r"a\sb", "x", "a b", "x");
}

#[test]
fn javas_quotes_and_brackets_mean_what_they_mean_there() {
    routes(r"\Qa.b\E(.*)", "$1", "a.bc", "c");
    routes(r"\Qa.b\E(.*)", "$1", "axbc", "axbc");
    routes("[+--]+", "x", "+,-", "x");
    routes("[a~~b]+", "x", "a~b", "x");
    routes("[[:a]]+", "x", "a:", "x");
    routes(r"a\<b", "x", "a<b", "x");
    routes("[a-z&&[^b]]+", "x", "ac", "x");
    routes("[a-z&&[^b]]+", "x", "ab", "ab");
    routes("a{2}b??", "x", "aab", "xb");
}

#[test]
fn a_regex_that_cannot_be_done_is_refused_with_the_place_marked() {
    let refused = |pattern: &str| {
        let error = regex(pattern, "x").unwrap_err();
        (error.at, error.problem)
    };
    assert_eq!(refused("a(?=b)"), (Some(1), TopicProblem::Unsupported("a look-ahead")));
    assert_eq!(refused("(?<!b)a"), (Some(0), TopicProblem::Unsupported("a look-behind")));
    assert_eq!(refused(r"(a)\1"), (Some(3), TopicProblem::Unsupported("a back reference")));
    assert_eq!(refused("a++"), (Some(2), TopicProblem::Unsupported("a possessive quantifier")));
    assert_eq!(refused("a{2}+"), (Some(4), TopicProblem::Unsupported("a possessive quantifier")));
    let text = regex("a(b", "x").unwrap_err().to_string();
    assert!(text.starts_with("--topic-regex: regex parse error:\n    a(b\n     ^"), "{text}");
}

#[test]
fn topic_names_are_those_that_a_broker_allows() {
    for name in ["a", "A.b_c-9", "...", &"x".repeat(249)] {
        assert_eq!(TOPICS.check(name), Ok(()), "{name}");
    }
    assert_eq!(TOPICS.check(""), Err(TopicFault::Empty));
    assert_eq!(TOPICS.check("."), Err(TopicFault::Dots));
    assert_eq!(TOPICS.check(".."), Err(TopicFault::Dots));
    assert_eq!(TOPICS.check("a b"), Err(TopicFault::Character(' ', TOPICS.made_of)));
    assert_eq!(TOPICS.check("ä"), Err(TopicFault::Character('ä', TOPICS.made_of)));
    assert_eq!(TOPICS.check(&"x".repeat(250)), Err(TopicFault::TooLong(250, 249)));
}

#[test]
fn a_repeat_of_the_last_values_gives_the_last_topic() {
    let topic = template("t.{a}.{b}").unwrap();
    let mut last = LastTopic::default();
    let mut resolve =
        |a: &str, b: &str| last.resolve(&topic, [a.as_bytes(), b.as_bytes()].into_iter()).map(str::to_owned);
    assert_eq!(resolve("x", "y"), Ok("t.x.y".into()));
    assert_eq!(resolve("x", "y"), Ok("t.x.y".into()));
    assert_eq!(resolve("xy", ""), Ok("t.xy.".into()));
    assert!(resolve("x y", "z").is_err());
    assert!(resolve("x y", "z").is_err(), "a bad topic is not remembered");
    assert_eq!(resolve("x", "y"), Ok("t.x.y".into()));
}

#[test]
fn a_value_that_is_not_utf8_gives_no_topic() {
    let topic = template("t.{a}").unwrap();
    let outcome = LastTopic::default().resolve(&topic, [b"\xFF".as_slice()].into_iter()).map(str::to_owned);
    assert_eq!(outcome, Err(NoTopic::NotUtf8 { name: 0 }));
}

proptest! {
    #[test]
    fn no_setting_panics(text in ".{0,30}", other in ".{0,12}") {
        drop(template(&text).map(|topic| rendered(&topic, &[other.as_str(); 30])));
        drop(regex(&text, &other).map(|topic| rendered(&topic, &[&text])));
    }

    #[test]
    fn expressions_of_the_usual_characters_never_panic(text in r"[\\\[\]\^(){}?+*|:~dwQEpPx$&a-c-]{0,16}") {
        drop(regex(&text, "$0").map(|topic| rendered(&topic, &[&text])));
    }
}
