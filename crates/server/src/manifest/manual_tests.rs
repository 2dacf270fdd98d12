//! The check that the tables of keys in `docs/manifest.md` match the code.
//! `COREWISE_RENEW=1 cargo test -p corewise-server manual` writes them.

use std::path::Path;

use super::drivers::DRIVERS;
use super::export::Export;
use super::keys::{Key, KeyDefault, Keys, Reload};
use super::raw;
use super::server::Server;

/// Returns a key's row of the manual. `usual` is the table's text about reloads.
fn row(key: &Key, usual: Reload) -> String {
    let range = key.range.as_ref().map(|range| {
        let (first, rest) = range.split_at(1);
        format!("{}{rest}.", first.to_uppercase())
    });
    let reload = match key.reload {
        reload if reload == usual => None,
        Reload::Restarts => Some("A change needs a restart."),
        Reload::Grows => Some("A reload grows it while clients go on."),
        Reload::Legs => Some("A reload changes the legs while clients go on."),
        Reload::Follows => Some("A reload follows a change while clients go on."),
        Reload::FollowsWithinMemory => {
            Some("A reload follows a change up to the value at the start.")
        }
        Reload::Renews => Some("A reload gives new clients the renewed file."),
        Reload::Ignores => Some("A reload ignores a change."),
    };
    let left_out = match key.left_out {
        KeyDefault::Required(_) => "required".to_owned(),
        KeyDefault::Usual(value) => format!("`{value}`"),
        KeyDefault::Unset(meaning) | KeyDefault::Filled(_, meaning) => meaning.to_owned(),
    };
    let text = [Some(key.meaning), range.as_deref(), reload];
    let text: Vec<&str> = text.into_iter().flatten().collect();
    format!("| `{}` | {} | {left_out} |\n", key.name, text.join(" "))
}

fn table(keys: &[Key], usual: Reload) -> String {
    let rows: String = keys.iter().map(|key| row(key, usual)).collect();
    format!("| key | meaning | default |\n| --- | --- | --- |\n{rows}")
}

/// Wraps text in lines of at most 100 characters.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + word.len() < 100 => *line += &format!(" {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

/// Returns the tables, by their names in the manual.
fn tables() -> Vec<(&'static str, String)> {
    let mut tables = vec![
        ("server", table(&Server::keys(), Reload::Follows)),
        ("device", table(&raw::keys_of_all_devices(), Reload::Restarts)),
        ("export", table(&Export::keys(), Reload::Restarts)),
    ];
    for driver in DRIVERS {
        let (meaning, keys) = (wrapped(driver.meaning), table(&(driver.keys)(), Reload::Restarts));
        tables.push((driver.name, format!("{meaning}\n\n{keys}")));
    }
    tables
}

#[test]
fn the_manual_has_each_table_as_it_is() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/manifest.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut filled = text.clone();
    for (name, table) in tables() {
        let (begin, end) = (format!("<!-- keys: {name} -->\n"), "<!-- end of keys -->");
        let (before, rest) = filled.split_once(&begin).unwrap_or_else(|| panic!("no {begin}"));
        let (_, after) = rest.split_once(end).unwrap_or_else(|| panic!("no end of {begin}"));
        filled = format!("{before}{begin}\n{table}\n{end}{after}");
    }
    if std::env::var_os("COREWISE_RENEW").is_some() {
        std::fs::write(&path, &filled).unwrap();
    } else {
        assert!(
            filled == text,
            "docs/manifest.md isn't what the keys say: run\n  \
             COREWISE_RENEW=1 cargo test -p corewise-server manual"
        );
    }
}
