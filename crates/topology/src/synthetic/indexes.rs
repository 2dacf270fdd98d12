//! The parser of `indexes=` in a synthetic description: the numbers of all objects of a level.
//!
//! The hwloc manual ("Synthetic topologies") shows a list and an interleaving by types. `lstopo`
//! 2.9 also accepts numbers in the latter, and a missing last part. If an index is wrong, hwloc
//! warns and numbers in order; this parser refuses it.

use std::ops::Range;

use crate::cpuset::CpuSet;

/// A fault in the text after `indexes=`, and its position in bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct IndexError {
    pub(crate) at: Range<usize>,
    pub(crate) reason: String,
}

/// A level that an interleaving can name: its depth, and its number of objects in the whole
/// machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LevelPosition {
    pub(crate) depth: usize,
    pub(crate) width: u64,
}

/// Returns the numbers of `total` objects in the order of the tree.
///
/// `text` is a list of all of them (`0,2,1,3`), or an interleaving: the digits of an object's
/// position in the tree, in another order. Each part `step*count` of `2*24:1*2` is a digit, the
/// fastest first: objects `step` apart in the tree get numbers one (then `count`) apart. `core`
/// names the same by the types of levels, which `place_of` finds. The last digit may be left out.
pub(crate) fn numbers(
    text: &str,
    total: u64,
    place_of: impl Fn(&str) -> Result<LevelPosition, String>,
) -> Result<Vec<u32>, IndexError> {
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b',') {
        return list(text, total);
    }
    let mut digits = if text.starts_with(|c: char| c.is_ascii_digit()) {
        digits_by_number(text)?
    } else {
        digits_by_type(text, total, place_of)?
    };
    complete(&mut digits, total).map_err(|reason| IndexError { at: 0..text.len(), reason })?;

    let number = |object: u64| {
        let mut weight = 1;
        let mut number = 0;
        for digit in &digits {
            number += object / digit.step % digit.count * weight;
            weight *= digit.count;
        }
        // Less than `total`, since the counts multiply to it.
        number as u32
    };
    let numbers: Vec<u32> = (0..total).map(number).collect();
    if !distinct(&numbers) {
        let reason = "two objects get the same number: the steps don't fit the levels";
        return Err(IndexError { at: 0..text.len(), reason: reason.into() });
    }
    Ok(numbers)
}

/// One digit of an object's position: one of `count` objects that are `step` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Digit {
    step: u64,
    count: u64,
}

fn list(text: &str, total: u64) -> Result<Vec<u32>, IndexError> {
    let mut numbers = Vec::new();
    for (at, item) in pieces(text, ',') {
        let wrong = |reason: String| IndexError { at: at.clone(), reason };
        if numbers.len() as u64 == total {
            return Err(wrong(format!("there are more numbers than the {total} objects")));
        }
        match item.parse() {
            Ok(number) if number <= CpuSet::MAX_CPU => numbers.push(number),
            _ if item.is_empty() => return Err(wrong("expected a number".into())),
            _ => return Err(wrong(format!("the highest number is {}", CpuSet::MAX_CPU))),
        }
        let (last, before) = numbers.split_last().expect("one was pushed");
        if before.contains(last) {
            return Err(wrong(format!("{last} is used twice; each object needs its own number")));
        }
    }
    if (numbers.len() as u64) < total {
        let reason = format!(
            "{} numbers for {total} objects: a list numbers those of the whole machine",
            numbers.len()
        );
        return Err(IndexError { at: 0..text.len(), reason });
    }
    Ok(numbers)
}

/// Parses `step*count:step*count`.
fn digits_by_number(text: &str) -> Result<Vec<Digit>, IndexError> {
    let digit = |(at, piece): (Range<usize>, &str)| {
        let (step, count) = piece.split_once('*').unwrap_or((piece, ""));
        // A step beyond any machine is as good as the largest one that can be multiplied.
        let number = |text: &str| text.parse::<u32>().ok().filter(|&n| n > 0).map(u64::from);
        match (number(step), number(count)) {
            (Some(step), Some(count)) => Ok(Digit { step, count }),
            _ => {
                let reason = "expected a step and a count above 0, as in '2*24'";
                Err(IndexError { at, reason: reason.into() })
            }
        }
    };
    pieces(text, ':').map(digit).collect()
}

/// Parses `type:type`.
fn digits_by_type(
    text: &str,
    total: u64,
    place_of: impl Fn(&str) -> Result<LevelPosition, String>,
) -> Result<Vec<Digit>, IndexError> {
    let mut places: Vec<LevelPosition> = Vec::new();
    for (at, name) in pieces(text, ':') {
        let wrong = |reason: String| IndexError { at: at.clone(), reason };
        let place = place_of(name).map_err(wrong)?;
        if places.contains(&place) {
            return Err(wrong("this level is named twice".into()));
        }
        if place.width > total {
            return Err(wrong("this level lies below the numbered one".into()));
        }
        places.push(place);
    }
    let digit = |place: &LevelPosition| {
        let outer = places.iter().filter(|other| other.depth < place.depth);
        let outer = outer.max_by_key(|outer| outer.depth).map_or(1, |outer| outer.width);
        Digit { step: total / place.width, count: place.width / outer }
    };
    Ok(places.iter().map(digit).collect())
}

/// Adds the digit of the innermost objects if it was left out, and checks that all digits together
/// tell `total` objects apart.
fn complete(digits: &mut Vec<Digit>, total: u64) -> Result<(), String> {
    let product = digits.iter().fold(1u64, |product, digit| product.saturating_mul(digit.count));
    let finest = digits.iter().map(|digit| digit.step).min().unwrap_or(total).min(total);
    if product != total {
        if product.checked_mul(finest) != Some(total) {
            return Err(format!("this interleaves {product} objects, but the level has {total}"));
        }
        digits.push(Digit { step: 1, count: finest });
    }
    // Digits of one value change nothing; without them there are few.
    digits.retain(|digit| digit.count > 1);
    Ok(())
}

fn distinct(numbers: &[u32]) -> bool {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.is_sorted_by(|a, b| a < b)
}

/// Returns the parts of `text` between separators, with their positions.
fn pieces(text: &str, separator: char) -> impl Iterator<Item = (Range<usize>, &str)> {
    let mut start = 0;
    text.split(separator).map(move |piece| {
        let at = start..start + piece.len();
        start = at.end + separator.len_utf8();
        (at, piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the levels of two nodes of three cores with two threads each.
    fn place_of(name: &str) -> Result<LevelPosition, String> {
        match name {
            "numa" => Ok(LevelPosition { depth: 2, width: 2 }),
            "core" => Ok(LevelPosition { depth: 4, width: 6 }),
            "pu" => Ok(LevelPosition { depth: 6, width: 12 }),
            _ => Err("no such level".into()),
        }
    }

    #[test]
    fn an_interleaving_by_types_is_one_by_numbers() {
        let one_after_the_other: Vec<u32> = (0..12).collect();
        for (types, same, wanted) in [
            ("numa:core:pu", "6*2:2*3:1*2", vec![0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11]),
            ("numa:core", "6*2:2*3", vec![0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11]),
            ("core:pu", "2*6:1*2", vec![0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]),
            ("core", "2*6", vec![0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]),
            ("core:numa", "2*3:6*2", vec![0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]),
            ("numa", "6*2", vec![0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]),
            ("pu", "1*12", one_after_the_other.clone()),
            ("pu:core:numa", "1*2:2*3:6*2:77*1", one_after_the_other),
        ] {
            assert_eq!(numbers(types, 12, place_of).as_ref(), Ok(&wanted), "{types}");
            assert_eq!(numbers(same, 12, place_of), Ok(wanted), "{same}");
        }
    }

    #[test]
    fn a_list_numbers_each_object_and_may_have_gaps() {
        assert_eq!(numbers("0,2,1,3", 4, place_of), Ok(vec![0, 2, 1, 3]));
        assert_eq!(numbers("100,8", 2, place_of), Ok(vec![100, 8]));
    }

    #[test]
    fn indexes_that_do_not_number_each_object_once_are_refused_with_their_place() {
        for (text, total, at, word) in [
            ("", 2, 0..0, "expected a number"),
            ("0,1,2", 4, 0..5, "3 numbers for 4 objects"),
            ("0,1,2", 2, 4..5, "more numbers"),
            ("0,,1", 3, 2..2, "expected a number"),
            ("0,1,1", 3, 4..5, "used twice"),
            ("0,9999", 2, 2..6, "highest number is"),
            ("0,99999999999", 2, 2..13, "highest number is"),
            ("2*6:core", 12, 4..8, "step and a count"),
            ("0*6:1*2", 12, 0..3, "above 0"),
            ("2*0:1*2", 12, 0..3, "above 0"),
            ("2*6:", 12, 4..4, "step and a count"),
            ("2*3", 12, 0..3, "interleaves 3 objects"),
            ("2*24", 12, 0..4, "interleaves 24 objects"),
            ("4294967295*4294967295:9*4294967295", 12, 0..34, "interleaves"),
            ("2*6:2*2", 12, 0..7, "same number"),
            ("99*12", 12, 0..5, "same number"),
            ("core:tile", 12, 5..9, "no such level"),
            ("core:core", 12, 5..9, "named twice"),
            ("core", 2, 0..4, "below"),
            ("core:", 12, 5..5, "no such level"),
        ] {
            let wrong = numbers(text, total, place_of).unwrap_err();
            assert_eq!(wrong.at, at, "{text}: {wrong:?}");
            assert!(wrong.reason.contains(word), "{text}: {wrong:?}");
        }
    }
}
