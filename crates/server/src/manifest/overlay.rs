//! The keys of an overlay.

use std::path::PathBuf;

use corewise::drivers::FetchPolicy;

use super::drivers::{part, power_of_two};
use super::keys::{CheckKeys, ValueKind, flag, keys, new_path, size, word};
use super::problem::Located;
use super::reader::Fields;

const FETCHES: &[(&str, FetchPolicy)] = &[
    ("never", FetchPolicy::Never),
    ("on-read", FetchPolicy::OnRead),
    ("background", FetchPolicy::Background),
];

/// Reads a block size. The limits are those of the file's format.
fn block_size() -> ValueKind<u32> {
    power_of_two(4 << 10, 1 << 20, "a power of two from 4K to 1M")
}

fn fetch_rate() -> ValueKind<u64> {
    let why = "with 0, no block is ever fetched";
    size().within("at least 1 byte per second", why, |rate| *rate > 0)
}

keys! {
    /// A device whose changes lie in a file, over a base that stays as it is.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Overlay {
        /// The base: a device that no other device and no export writes to. Several overlays may
        /// share it.
        over: Option<String> = part(),
            Unset("none, which only an overlay that was [flattened](overlays.md#commands) can do without");
        /// Path of the file with the blocks that differ from the base. A missing file is created
        /// (sparse), and [reported](#a-new-volume).
        path: Located<PathBuf> = new_path(), Required("path = \"vm7.cow\"");
        /// Size of the overlay, at least that of its base. Bytes behind the base's end are zero.
        size: Option<Located<u64>> = size(), Unset("the file's own; for a new one, the base's"), Grows;
        /// Unit in which the overlay has blocks of its own. An existing overlay keeps its own, and
        /// refuses another one. A first write to a part of a block reads the rest of the base,
        /// once. The map of blocks takes a bit for each, in the file and in memory.
        block_size: Option<u32> = block_size(), Unset("the file's own; for a new one, `\"4K\"`");
        /// `"on-read"` keeps the blocks that clients read, for a base on another machine.
        /// `"background"` also fetches all others; after that the overlay needs its base no more.
        fetch: FetchPolicy = word(FETCHES), Usual("\"never\""), Follows;
        /// Highest rate of fetching in the background and of a flatten, in bytes per second.
        fetch_rate: u64 = fetch_rate(), Usual("\"100M\""), Follows;
        /// `true` bypasses the host's page cache for the file (`O_DIRECT`), as for a
        /// [`file`](#file).
        direct: bool = flag(), Usual("false");
    }
}

impl CheckKeys for Overlay {
    fn check(&self, _: &mut Fields<'_, '_>) {}
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Driver, read};

    const BASE: &str = "[[device]]\nname = \"base\"\ndriver = \"memory\"\nsize = \"1M\"\n";

    fn overlay(name: &str, keys: &str) -> String {
        format!("[[device]]\nname = \"{name}\"\ndriver = \"overlay\"\n{keys}\n")
    }

    fn told(text: &str) -> Vec<String> {
        let found = read(text, Path::new("/base")).problems;
        found.iter().map(|problem| problem.display("m").to_string()).collect()
    }

    #[test]
    fn many_overlays_share_a_base_and_nobody_else_writes_to_it() {
        let over = |name: &str, path: &str| {
            overlay(name, &format!("over = [\"base\"]\npath = \"{path}\""))
        };
        let two = [BASE, &over("a", "a.cow"), &over("b", "b.cow")].concat();
        assert_eq!(told(&two), [""; 0]);
        let found = read(&two, Path::new("/base"));
        let Driver::Overlay(a) = &found.manifest.devices[1].driver else { panic!("no overlay") };
        assert_eq!(a.path.value, Path::new("/base/a.cow"));

        let written = format!("{two}[[export]]\ndevice = \"base\"\n");
        assert!(told(&written)[0].contains("'base' is a part of"), "{:?}", told(&written));
        assert_eq!(told(&format!("{written}read_only = true\n")), [""; 0]);
        let delay = "driver = \"delay\"\nover = [\"base\"]\nread_delay = \"1ms\"\n";
        let delayed = format!("{two}[[device]]\nname = \"d\"\n{delay}");
        assert!(told(&delayed)[0].contains("already a part of"), "{:?}", told(&delayed));
        let same = [BASE, &over("a", "a.cow"), &over("b", "./a.cow")].concat();
        assert!(told(&same)[0].contains("has the same file"), "{:?}", told(&same));
    }

    #[test]
    fn what_is_wrong_is_told_with_what_to_write() {
        for (keys, says) in [
            ("over = [\"base\"]", "needs 'path'"),
            ("over = [\"base\", \"base\"]\npath = \"a\"", "exactly one device"),
            ("path = \"a\"\nblock_size = \"2K\"", "from 4K to 1M"),
            ("path = \"a\"\nfetch = \"later\"", "on-read"),
            ("path = \"a\"\nfetch_rate = 0", "no block is ever fetched"),
        ] {
            let told = told(&[BASE, &overlay("a", keys)].concat());
            assert!(told.iter().any(|told| told.contains(says)), "{says}: {told:?}");
        }
    }
}
