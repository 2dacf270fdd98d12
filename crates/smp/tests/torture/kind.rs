//! The mix: every kind of call, with its frequency.

/// An act of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Wait,
    NoWait,
    Forget,
    Big,
    Panic,
    Burst,
    Await,
    AwaitTwo,
    AwaitNot,
    Any,
    Many,
    ManyNoWait,
    ManyIf,
    ManyAwait,
    All,
    Run,
    RunMany,
    Nested,
    InPlace,
    Nowhere,
}

/// All kinds: their name in a report, and their weight.
pub(super) const KINDS: [(Kind, &str, usize); 20] = [
    (Kind::Wait, "one, waited for", 40),
    (Kind::NoWait, "one, not waited for", 40),
    (Kind::Forget, "one, its handle dropped", 10),
    (Kind::Big, "one, with a large function and answer", 10),
    (Kind::Panic, "one, that panics", 4),
    (Kind::Burst, "a burst to one, not waited for", 2),
    (Kind::Await, "one, awaited", 20),
    (Kind::AwaitTwo, "two at once, awaited", 10),
    (Kind::AwaitNot, "one, its future dropped", 10),
    (Kind::Any, "any of a set, waited for", 20),
    (Kind::Many, "many, waited for", 20),
    (Kind::ManyNoWait, "many, not waited for", 20),
    (Kind::ManyIf, "many on a condition, waited for", 10),
    (Kind::ManyAwait, "many, awaited", 10),
    (Kind::All, "all, waited for", 10),
    (Kind::Run, "one, borrowing", 20),
    (Kind::RunMany, "many, borrowing", 10),
    (Kind::Nested, "one, whose handler calls another", 10),
    (Kind::InPlace, "one, whose handler calls its own CPU", 10),
    (Kind::Nowhere, "one that there is not", 1),
];

/// Returns the kind for a number below the sum of the weights.
pub(super) fn chosen(mut number: usize) -> Kind {
    for (kind, _, weight) in KINDS {
        match number.checked_sub(weight) {
            Some(rest) => number = rest,
            None => return kind,
        }
    }
    Kind::Wait
}

pub(super) fn weights() -> usize {
    KINDS.iter().map(|(_, _, weight)| weight).sum()
}

#[test]
fn each_kind_is_chosen_as_often_as_it_weighs_and_stands_at_its_place() {
    let mut counts = [0; KINDS.len()];
    for number in 0..weights() {
        counts[chosen(number) as usize] += 1;
    }
    for (at, (kind, name, weight)) in KINDS.into_iter().enumerate() {
        assert_eq!(kind as usize, at, "{name}");
        assert_eq!(counts[at], weight, "{name}");
    }
}
