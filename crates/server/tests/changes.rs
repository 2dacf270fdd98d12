//! Changes of a server in this process, and servers beside each other.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use corewise::sync::Mutex;
use corewise_server::control::Mode;
use corewise_server::{Cleanup, ErrorKind, Notice, Observer, Options, Server, Source, manifest};

const MEMORY: &str = "[[device]]\nname = \"ram\"\ndriver = \"memory\"\nsize = \"1M\"\n[[export]]\n\
                      device = \"ram\"\n";

/// Brings a server up that follows its manifest's file.
fn up(file: &Path, text: &str, options: Options) -> Server {
    std::fs::write(file, text).unwrap();
    let source = Source::read(file).unwrap();
    let read = manifest::read(&source.text, &source.base.unwrap());
    let options = Options { source: Some(file.to_path_buf()), ..options };
    Server::up(read.into_manifest("m.toml").unwrap(), options).unwrap()
}

fn server_at(socket: &str, keys: &str) -> String {
    format!("[server]\nunix = \"{socket}\"\n{keys}")
}

#[test]
fn the_end_of_one_server_leaves_the_socket_of_another_that_shares_its_cleanup() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let cleanup = Arc::new(Cleanup::default());
    let start = |socket: &str| {
        let options = Options { cleanup: Arc::clone(&cleanup), ..Options::default() };
        let text = server_at(socket, MEMORY);
        up(&path(&format!("{socket}.toml")), &text, options)
    };
    let (one, other) = (start("one"), start("other"));
    assert!(one.down("enough") && !path("one").exists() && path("other").exists());
    assert!(other.down("enough") && !path("other").exists());
}

#[test]
fn a_reload_takes_the_socket_of_metrics_away_that_nobody_answers_on_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let text = |at: &str| server_at("s", &format!("metrics = \"./{at}\"\n{MEMORY}"));
    let server = up(&path("up.toml"), &text("first"), Options::default());
    assert!(path("first").exists());
    std::fs::write(path("up.toml"), text("second")).unwrap();
    server.reload(Mode::Safe).unwrap();
    assert!(path("second").exists() && !path("first").exists());
    // A refused change leaves no new socket behind, and keeps the old one.
    std::fs::write(path("up.toml"), text("third").replace("1M", "2M")).unwrap();
    server.reload(Mode::Safe).unwrap_err();
    assert!(path("second").exists() && !path("third").exists());
    assert!(server.down("enough") && !path("second").exists());
}

#[test]
fn a_reload_that_check_would_refuse_changes_nothing_and_names_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("up.toml");
    let over = "[[device]]\nname = \"bad\"\ndriver = \"error\"\nover = [\"ram\"]\n";
    let text = |keys: &str| server_at("s", &[MEMORY, "read_only = true\n", over, keys].concat());
    let server = up(&file, &text("from = \"4K\"\n"), Options::default());
    let up_then = |server: &Server| server.health().text();
    let before = up_then(&server);
    for (key, says) in [("from = \"2M\"\n", "'from' must be less"), ("node = 99\n", "no NUMA node")]
    {
        let asked = text(key);
        std::fs::write(&file, &asked).unwrap();
        for mode in [Mode::Safe, Mode::Soft, Mode::Hard] {
            let refused = server.reload(mode).unwrap_err();
            let line = asked.lines().count();
            let place = format!("{}:{line}:", file.display());
            assert!(refused.message().starts_with(&place), "{refused}");
            assert!(refused.message().contains(says), "{refused}");
        }
        assert_eq!(up_then(&server), before);
    }
    assert!(server.down("enough"));
}

#[test]
fn a_safe_reload_refuses_to_restart_what_is_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("up.toml");
    let server = up(&file, &server_at("s", MEMORY), Options::default());
    std::fs::write(&file, server_at("s", &MEMORY.replace("1M", "2M"))).unwrap();
    let refused = server.reload(Mode::Safe).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    assert!(refused.message().contains("a restart loses its data"), "{refused}");
    let report = server.reload(Mode::Soft).unwrap();
    assert!(report.notes.iter().any(|note| note.contains("loses its data")), "{report:?}");
    assert!(report.text().contains("restarted device 'ram'"), "{}", report.text());
    assert!(server.down("enough"));
}

#[test]
fn a_mirror_whose_bitmap_is_written_out_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("up.toml");
    let leg = |name: &str| {
        format!(
            "[[device]]\nname = \"{name}\"\ndriver = \"file\"\npath = \"{name}\"\nsize = \"1M\"\n\
             create = true\n"
        )
    };
    let mirror = |keys: &str| {
        let mirror = "[[device]]\nname = \"m\"\ndriver = \"mirror\"\nover = [\"a\", \"b\"]\n";
        server_at(
            "s",
            &[&leg("a"), &leg("b"), mirror, keys, "[[export]]\ndevice = \"m\"\n"].concat(),
        )
    };
    let server = up(&file, &mirror(""), Options::default());
    for (keys, changes) in [("bitmap = true\n", false), ("", false), ("retry = \"1s\"\n", true)] {
        std::fs::write(&file, mirror(keys)).unwrap();
        let text = server.reload(Mode::Safe).unwrap().text();
        assert_eq!(text.contains("restarted device 'm'"), changes, "{keys}: {text}");
    }
    assert!(server.down("enough"));
}

/// An observer that waits in the notice of a change until it may go on.
#[derive(Debug)]
struct SlowObserver {
    reached: Sender<()>,
    /// L: is the lock, held by the one that waits.
    go_on: Mutex<Receiver<()>>,
}

impl Observer for SlowObserver {
    fn notice(&self, notice: &Notice<'_>) {
        if let Notice::Changed(_) = notice {
            self.reached.send(()).unwrap();
            let _ = self.go_on.lock().recv();
        }
    }
}

#[test]
fn a_change_beside_another_one_is_refused_as_busy() {
    let folder = tempfile::tempdir().unwrap();
    let more: PathBuf = folder.path().join("more.toml");
    std::fs::write(&more, MEMORY.replace("ram", "more")).unwrap();
    let ((reached, is_there), (go, go_on)) = (channel(), channel());
    let observer = Arc::new(SlowObserver { reached, go_on: Mutex::new(go_on) });
    let options = Options { observer, ..Options::default() };
    let server = up(&folder.path().join("up.toml"), &server_at("s", MEMORY), options);
    std::thread::scope(|scope| {
        let adds = scope.spawn(|| server.add(&more).map(drop));
        is_there.recv().unwrap();
        let busy = server.remove("ram", Mode::Hard).unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy, "{busy}");
        assert!(busy.to_string().contains("is still adding"), "{busy}");
        go.send(()).unwrap();
        adds.join().unwrap().unwrap();
    });
    drop(go);
    assert!(server.down("enough"));
}
