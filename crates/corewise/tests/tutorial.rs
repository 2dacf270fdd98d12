//! The check that docs/tutorial.md and the program that it builds say the same.

const TUTORIAL: &str = include_str!("../../../docs/tutorial.md");
const PROGRAM: &str = include_str!("../examples/tutorial.rs");

/// Returns the blocks of a language, such as `rust,ignore`.
fn blocks<'t>(text: &'t str, language: &str) -> Vec<&'t str> {
    let begin = format!("```{language}\n");
    let inside = |block: &'t str| block.split_once("```").map_or(block, |(inside, _)| inside);
    text.split(begin.as_str()).skip(1).map(inside).collect()
}

#[test]
fn each_fragment_of_the_tutorial_stands_in_its_program() {
    let fragments = blocks(TUTORIAL, "rust,ignore");
    assert!(fragments.len() > 10, "{}", fragments.len());
    for fragment in fragments {
        assert!(PROGRAM.contains(fragment), "not in the program:\n{fragment}");
    }
}

#[test]
fn what_the_tutorial_shows_as_complete_is_compiled_as_a_doctest() {
    let programs = blocks(TUTORIAL, "rust");
    assert_eq!(programs.len(), 2);
    assert!(programs.iter().all(|program| program.contains("fn main()")));
}
