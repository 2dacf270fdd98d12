//! Separates the code of a Rust file from its comments, line by line, so prose doesn't confuse
//! rules about code. The lexer knows strings, characters and comments, and no more.

/// One line of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    /// Code of the line, with strings and characters emptied; their quotes stay.
    pub(crate) code: String,
    /// Comments of the line, with their `//` or `/*`.
    pub(crate) comment: String,
}

impl Line {
    /// Returns true if the line has a comment and no code.
    pub(crate) fn is_comment(&self) -> bool {
        self.code.trim().is_empty() && !self.comment.is_empty()
    }

    /// Returns true if the line has code.
    pub(crate) fn is_code(&self) -> bool {
        !self.code.trim().is_empty()
    }
}

/// A string of the code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Literal {
    /// Line on which it begins, from 1.
    pub(crate) line: usize,
    /// Text of the string. Escaped line ends are left out with the blanks behind them; of other
    /// escapes the letter stays.
    pub(crate) text: String,
}

enum State {
    Code,
    LineComment,
    /// A block comment, with its depth.
    BlockComment(usize),
    Str,
    /// A raw string, with the number of `#` that end it.
    RawStr(usize),
}

/// Returns the lines of a file, and its strings.
pub(crate) fn lex(text: &str) -> (Vec<Line>, Vec<Literal>) {
    let mut literals: Vec<Literal> = Vec::new();
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut lines = vec![Line::default()];
    let mut state = State::Code;
    let mut i = 0;
    while i < chars.len() {
        let c = at(i);
        if c == '\n' {
            if matches!(state, State::LineComment) {
                state = State::Code;
            }
            if let (State::Str | State::RawStr(_), Some(literal)) = (&state, literals.last_mut()) {
                literal.text.push('\n');
            }
            lines.push(Line::default());
            i += 1;
            continue;
        }
        let last = lines.len() - 1;
        let line = &mut lines[last];
        let begun = || Literal { line: last + 1, text: String::new() };
        match state {
            State::Code => match (c, at(i + 1)) {
                ('/', '/') => {
                    state = State::LineComment;
                    continue;
                }
                ('/', '*') => {
                    state = State::BlockComment(1);
                    line.comment.push_str("/*");
                    i += 2;
                    continue;
                }
                ('"', _) => {
                    line.code.push('"');
                    literals.push(begun());
                    state = State::Str;
                }
                ('r', '"' | '#')
                    if !ends_in_word(&line.code) || line.code.ends_with(['b', 'c']) =>
                {
                    let hashes = (i + 1..).take_while(|&k| at(k) == '#').count();
                    if at(i + 1 + hashes) == '"' {
                        line.code.push_str("r\"");
                        literals.push(begun());
                        state = State::RawStr(hashes);
                        i += hashes + 2;
                        continue;
                    }
                    line.code.push(c);
                }
                ('\'', '\\') => {
                    // An escaped character: it ends at the next quote after the escaped letters.
                    let end = (i + 3..).find(|&k| at(k) == '\'' || k >= chars.len());
                    line.code.push_str("''");
                    i = end.map_or(chars.len(), |k| k + 1);
                    continue;
                }
                ('\'', next) if at(i + 2) == '\'' && next != '\'' => {
                    line.code.push_str("''");
                    i += 3;
                    continue;
                }
                // Else a quote begins a lifetime.
                _ => line.code.push(c),
            },
            State::LineComment => line.comment.push(c),
            State::BlockComment(depth) => {
                line.comment.push(c);
                match (c, at(i + 1)) {
                    ('/', '*') => {
                        line.comment.push('*');
                        state = State::BlockComment(depth + 1);
                        i += 1;
                    }
                    ('*', '/') => {
                        line.comment.push('/');
                        state =
                            if depth == 1 { State::Code } else { State::BlockComment(depth - 1) };
                        i += 1;
                    }
                    _ => {}
                }
            }
            State::Str => match c {
                // An escaped line end: the text goes on with the next letter.
                '\\' if at(i + 1) == '\n' => {
                    let end = (i + 1..chars.len()).find(|&k| !at(k).is_whitespace());
                    let end = end.unwrap_or(chars.len());
                    let ends = chars[i..end].iter().filter(|&&c| c == '\n').count();
                    lines.extend((0..ends).map(|_| Line::default()));
                    i = end;
                    continue;
                }
                '\\' => {
                    let letter = if at(i + 1) == 'n' { '\n' } else { at(i + 1) };
                    literals.last_mut().expect("one has begun").text.push(letter);
                    i += 1;
                }
                '"' => {
                    line.code.push('"');
                    state = State::Code;
                }
                c => literals.last_mut().expect("one has begun").text.push(c),
            },
            State::RawStr(hashes) => {
                if c == '"' && (1..=hashes).all(|k| at(i + k) == '#') {
                    line.code.push('"');
                    state = State::Code;
                    i += hashes;
                } else {
                    literals.last_mut().expect("one has begun").text.push(c);
                }
            }
        }
        i += 1;
    }
    if text.ends_with('\n') {
        lines.pop();
    }
    (lines, literals)
}

fn ends_in_word(code: &str) -> bool {
    code.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// Returns the words (identifiers, keywords, numbers) of a piece of code.
pub(crate) fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Vec<String> {
        lex(text).0.into_iter().map(|line| line.code).collect()
    }

    #[test]
    fn comments_are_parted_from_code() {
        let lines = lex("let a = 1; // one\n/* two\nthree */ let b;\n").0;
        assert_eq!(lines.len(), 3);
        assert_eq!((lines[0].code.as_str(), lines[0].comment.as_str()), ("let a = 1; ", "// one"));
        assert!(lines[1].is_comment());
        assert_eq!(lines[2].code, " let b;");
    }

    #[test]
    fn block_comments_nest() {
        assert_eq!(code("a /* b /* c */ d */ e"), ["a  e"]);
    }

    #[test]
    fn the_content_of_strings_is_left_out() {
        assert_eq!(code(r#"f("unsafe { // \" }", 1)"#), [r#"f("", 1)"#]);
        assert_eq!(code("f(r#\"a \" b\"#, br\"x\", 2)"), ["f(r\"\", br\"\", 2)"]);
        assert_eq!(code("let s = \"one\\\n two\";\nx"), ["let s = \"", "\";", "x"]);
    }

    #[test]
    fn strings_are_told_with_their_lines() {
        let found = |text: &str| -> Vec<(usize, String)> {
            lex(text).1.into_iter().map(|literal| (literal.line, literal.text)).collect()
        };
        let text =
            "f(\"one\");\nlet a = \"two \\\n    and \\\"three\\\"\";\nb(r#\"a\"b\"#) // \"none\"";
        let want = [(1, "one"), (2, "two and \"three\""), (4, "a\"b")];
        assert_eq!(found(text), want.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn characters_are_told_from_lifetimes() {
        assert_eq!(code(r"f('{', '\'', '\u{7d}', b'\n')"), ["f('', '', '', b'')"]);
        assert_eq!(code("fn f<'a>(x: &'a str) {}"), ["fn f<'a>(x: &'a str) {}"]);
    }

    #[test]
    fn a_name_that_ends_in_r_begins_no_raw_string() {
        assert_eq!(code("var\"x\" r#type y"), ["var\"\" r#type y"]);
    }
}
