//! What a question on the control socket wants changed.

use std::path::PathBuf;

use super::legs;
use crate::control::Question;
use crate::manifest::LegChange;

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
            "grow" => match &question.name {
                Some(name) => Ok(Wish::Grow(name.clone(), question.size)),
                None => Err("'grow' needs a 'name'".to_string()),
            },
            "replace" | "add_leg" | "remove_leg" => legs::wish(question),
            "reload" => Ok(Wish::Reload),
            _ => return None,
        })
    }
}
