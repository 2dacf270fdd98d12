//! Names of types: a noun that says what the type is, to someone who has not read the crate.

use crate::files::SourceFile;
use crate::{Finding, hold, lines_found};

/// Names that don't say what a type is: pronouns and adverbs, participles, metaphors.
const BANNED: &str = " \
    Anything Everything Nobody Nothing Somebody Something Thing Mine Myself Ours Own Theirs \
    What Which Who Whom Whose Why How Way Ways Here There Where Elsewhere When Then Now \
    Aside Behind Beside Far Near Around Apart Meanwhile \
    Asked Begun Came Done Found Given Gone Had Heard Held Kept Known Left Lent Made Met Picked Put Said Seen \
    Sent Slept Spent Taken Told Took Wanted Written \
    Ask Asks Look Looks Says Tells Wants Wish Wishes \
    Angry Calm Care Careful Careless Doubt Hope Moody Nasty Sleepy Trouble Voice \
    Bed Chore Chores Crew Desk Errand Excuse Fate Grave Harm Hogs House Lookout Mail Man Manners Meeting News \
    Prey Promise Seat Shop Trash Weed ";

/// Returns the types of the product with such a name.
fn says_nothing(file: &SourceFile) -> Vec<Finding> {
    if !file.path.starts_with("crates/") || !file.path.contains("/src/") {
        return Vec::new();
    }
    let named = |code: &str| {
        let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.find(|word| ["struct", "enum", "trait", "union", "type"].contains(word))?;
        let name = words.find(|word| !word.is_empty())?;
        BANNED.contains(&format!(" {name} ")).then(|| name.to_owned())
    };
    let lines = file.lines.iter().enumerate();
    let found = lines.filter_map(|(at, line)| Some((at + 1, named(&line.code)?)));
    let what = |name| format!("`{name}` doesn't say what the type is: take a noun");
    found.map(|(line, name)| Finding { path: file.path.clone(), line, what: what(name) }).collect()
}

#[test]
fn a_type_is_named_by_a_noun_that_says_what_it_is() {
    hold(says_nothing);
}

#[test]
fn a_type_is_named_by_a_noun_can_fail() {
    let found = |text| lines_found(says_nothing, "crates/x/src/a.rs", text);
    assert_eq!(found("struct Told;\npub(crate) enum Why {}\n"), [1, 2]);
    assert_eq!(found("    pub struct Seat<T>(T);\n"), [1]);
    assert!(found("struct Notified;\nfn told() {}\n// struct Told;\n").is_empty());
    assert!(lines_found(says_nothing, "lab/x/src/a.rs", "struct Told;\n").is_empty());
}
