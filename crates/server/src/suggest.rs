//! "Did you mean": the known word closest to what was typed.

/// The word of `known` that is at most a third of its letters away from `typed`.
pub fn closest<'k>(typed: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    known
        .into_iter()
        .map(|word| (distance(&typed.to_lowercase(), &word.to_lowercase()), word))
        .filter(|(distance, word)| *distance <= word.chars().count().max(3) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// What to do where `typed` is none of the `known` names of `what`: the one that was meant, else
/// some of those that there are.
pub(crate) fn help<'k>(
    typed: &str,
    known: impl IntoIterator<Item = &'k str> + Clone,
    what: &str,
) -> String {
    match closest(typed, known.clone()) {
        Some(close) => format!("did you mean '{close}'?"),
        None => format!("{what}: {}", some(known)),
    }
}

/// The first of these names, and how many more there are.
pub(crate) fn some<'k>(names: impl IntoIterator<Item = &'k str>) -> String {
    let mut names = names.into_iter();
    let mut first: Vec<&str> = names.by_ref().take(NAMES).collect();
    let last = names.next();
    let more = names.count();
    if more == 0 {
        // To say that there is one more would take as much.
        first.extend(last);
    }
    let text = if first.is_empty() { "none".to_string() } else { first.join(", ") };
    if more == 0 { text } else { format!("{text} and {} more", more + 1) }
}

/// So many names fit into a message.
const NAMES: usize = 12;

/// Damerau's distance with adjacent swaps: how many letters must be added, taken, changed or
/// swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = change.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVERS: [&str; 5] = ["file", "memory", "mirror", "null", "stripe"];

    #[test]
    fn a_slip_of_the_finger_is_understood() {
        for (typed, meant) in
            [("mirorr", "mirror"), ("memroy", "memory"), ("Stripe", "stripe"), ("fiel", "file")]
        {
            assert_eq!(closest(typed, DRIVERS), Some(meant));
        }
    }

    #[test]
    fn a_list_of_names_has_an_end() {
        let all: Vec<String> = (0..1000).map(|n| format!("d{n}")).collect();
        let all = || all.iter().map(String::as_str);
        assert_eq!(some(all().take(2)), "d0, d1");
        let help = help("other", all().collect::<Vec<_>>(), "devices");
        assert!(help.starts_with("devices: d0,") && help.ends_with("d11 and 988 more"), "{help}");
        assert_eq!(some([]), "none");
        assert!(
            some(all().take(13)).ends_with(", d12")
                && some(all().take(14)).ends_with("d11 and 2 more")
        );
    }

    #[test]
    fn another_word_is_not_guessed_at() {
        for typed in ["raid5", "nvme", "", "partition"] {
            assert_eq!(closest(typed, DRIVERS), None, "{typed}");
        }
    }
}
