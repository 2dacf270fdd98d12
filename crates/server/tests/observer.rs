//! The behavior of a server with a bad observer, and the text of its errors.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use std::path::Path;
use std::sync::Arc;

use corewise::sync::Mutex;
use corewise_server::manifest::{self, Manifest};
use corewise_server::{Notice, Observer, Options, Server};

const DISK: &str = "[[device]]\nname = \"disk\"\ndriver = \"memory\"\nsize = \"1M\"\n\
                    [[export]]\ndevice = \"disk\"\n";

fn manifest(text: &str, base: &Path) -> Manifest {
    manifest::read(text, base).into_manifest("m.toml").unwrap()
}

/// An observer that panics at each notice, and keeps the last one.
#[derive(Debug, Default)]
struct PanickingObserver(Mutex<String>);

impl Observer for PanickingObserver {
    fn notice(&self, notice: &Notice<'_>) {
        *self.0.lock() = format!("{notice:?}");
        panic!("on purpose");
    }
}

#[test]
fn a_server_whose_observer_panics_comes_up_and_goes_down_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let observer = Arc::new(PanickingObserver::default());
    let options = Options { observer: observer.clone(), ..Options::default() };
    let manifest = manifest(&format!("[server]\nunix = \"s\"\n{DISK}"), folder.path());
    let server = Server::up(manifest, options).unwrap();
    assert!(server.down("enough"), "all went down in order");
    assert!(observer.0.lock().starts_with("Done { complete: true"), "{observer:?}");
    assert!(!folder.path().join("s").exists());
}

#[test]
fn a_server_without_a_place_to_listen_at_says_so() {
    let refused = Server::up(manifest(DISK, Path::new("/")), Options::default());
    let error = refused.map(drop).unwrap_err().to_string();
    assert!(error.contains("no place to listen") && error.contains("'unix'"), "{error}");
}
