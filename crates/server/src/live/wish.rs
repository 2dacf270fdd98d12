//! What a question on the control socket wants changed.

use std::path::PathBuf;

use super::legs;
use crate::control::Question;
use crate::manifest::LegChange;
use crate::units;

/// What is wanted.
pub(crate) enum Wish {
    Add(PathBuf),
    Remove(String),
    Grow(String, Option<u64>),
    /// The legs of a mirror.
    Legs(String, LegChange),
    Reload,
}

impl Wish {
    /// What a question wants; `None` where it isn't about a change.
    pub(crate) fn of(question: &Question) -> Option<Result<Wish, String>> {
        Some(match question.ask.as_str() {
            "add" => match &question.file {
                Some(file) if file.is_absolute() => Ok(Wish::Add(file.clone())),
                _ => Err("'add' needs a 'file', an absolute path".to_string()),
            },
            "remove" => match &question.name {
                Some(name) => Ok(Wish::Remove(name.clone())),
                None => Err("'remove' needs a 'name'".to_string()),
            },
            "grow" => match (&question.name, question.size) {
                // The largest offset that a file has is 2^63 - 1.
                (_, Some(size)) if size > i64::MAX as u64 => {
                    Err(units::too_large(&size.to_string()))
                }
                (Some(name), size) => Ok(Wish::Grow(name.clone(), size)),
                (None, _) => Err("'grow' needs a 'name'".to_string()),
            },
            "replace" | "add_leg" | "remove_leg" => legs::wish(question),
            "reload" => Ok(Wish::Reload),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_grows_to_no_size_that_no_volume_has() {
        let grow = |size| {
            let name = Some("disk".to_string());
            let question = Question { ask: "grow".to_string(), name, size, ..Question::dump() };
            Wish::of(&question).unwrap().map(drop)
        };
        assert_eq!(grow(Some(i64::MAX as u64)), Ok(()));
        assert_eq!(grow(None), Ok(()));
        for size in [1 << 63, u64::MAX] {
            let why = format!("'{size}' exceeds the largest volume, 8 EiB");
            assert_eq!(grow(Some(size)), Err(why));
        }
    }
}
