//! A client that is busy with a mirror of files and verifies its writes.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::Value;

use super::client::{Client, pattern};
use super::server::Server;
use super::{Folder, Ran, file};

const MIB: usize = 1 << 20;
/// Bytes of data of a mirror over files of 8 MiB.
const SIZE: usize = 8 * MIB - (64 << 10);
const BLOCK: usize = 4096;

/// Returns devices over new files of 8 MiB.
pub fn files(names: &[&str]) -> String {
    names.iter().map(|name| file(name, "8M")).collect()
}

/// Returns the manifest of a mirror over these files.
pub fn manifest(over: &[&str], keys: &str) -> String {
    files(over)
        + &format!(
            "[[device]]\nname = \"m\"\ndriver = \"mirror\"\nover = {over:?}\n{keys}\n\
             [[export]]\ndevice = \"m\"\n[server]\nunix = \"s\"\n"
        )
}

/// A client that writes all over a mirror and verifies its reads, until it is stopped or the server
/// is gone.
pub struct Busy {
    stop: Arc<AtomicBool>,
    /// Pattern of each block, as far as it was acknowledged.
    is: Arc<Mutex<Vec<u64>>>,
    thread: JoinHandle<()>,
}

/// Mark of a block that is being written: it holds either pattern.
const EITHER: u64 = u64::MAX;

impl Busy {
    pub fn start(socket: PathBuf) -> Busy {
        let (stop, is) =
            (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(vec![0; SIZE / BLOCK])));
        let (stopped, theirs) = (Arc::clone(&stop), Arc::clone(&is));
        let run = move || {
            let mut client = Client::new(&socket, "m");
            let blocks = SIZE / BLOCK;
            let mut n = 1u64;
            while !stopped.load(Ordering::Relaxed) {
                let at = (n * 7919) as usize % blocks;
                theirs.lock().unwrap()[at] = EITHER;
                client.write((at * BLOCK) as u64, &pattern(n, BLOCK), 0).unwrap();
                theirs.lock().unwrap()[at] = n;
                let at = (n * 104_729) as usize % blocks;
                let found = client.read((at * BLOCK) as u64, BLOCK as u32).unwrap();
                let is = theirs.lock().unwrap()[at];
                if is != 0 && found != pattern(is, BLOCK) {
                    stopped.store(true, Ordering::Relaxed);
                    panic!("block {at} is not what was written");
                }
                n += 1;
            }
        };
        Busy { stop, is, thread: std::thread::spawn(run) }
    }

    /// Stops the client and returns the contents of each block.
    pub fn stop(self) -> Vec<u64> {
        assert!(
            !self.stop.swap(true, Ordering::Relaxed),
            "it read something else than it had written"
        );
        self.thread.join().unwrap();
        std::mem::take(&mut *self.is.lock().unwrap())
    }

    /// Returns the contents of each block once the server is gone.
    pub fn cut(self) -> Vec<u64> {
        // The client panicked: its connection is gone.
        let _ = self.thread.join();
        assert!(!self.stop.load(Ordering::Relaxed), "it read something else than it had written");
        std::mem::take(&mut *self.is.lock().unwrap())
    }
}

#[track_caller]
pub fn has_all(socket: &std::path::Path, is: &[u64]) {
    let mut client = Client::new(socket, "m");
    for (at, &n) in is.iter().enumerate().filter(|(_, n)| ![0, EITHER].contains(*n)) {
        let found = client.read((at * BLOCK) as u64, BLOCK as u32).unwrap();
        assert!(found == pattern(n, BLOCK), "block {at}");
    }
}

pub fn data(folder: &Folder, leg: &str) -> Vec<u8> {
    let mut bytes = std::fs::read(folder.join(&format!("{leg}.img"))).unwrap();
    bytes.truncate(SIZE);
    bytes
}

/// Returns the legs, each with its state.
pub fn legs(folder: &Folder) -> Vec<(String, String)> {
    let json = folder.corewise(["mirror", "m", "--json"]).ok().json();
    let legs = json["disks"][0]["mirror"]["legs"].as_array().unwrap().clone();
    let text = |value: &Value| value.as_str().unwrap().to_string();
    legs.iter().map(|leg| (text(&leg["name"]), text(&leg["state"]))).collect()
}

pub fn in_sync(names: &[&str]) -> Vec<(String, String)> {
    names.iter().map(|name| (name.to_string(), "in_sync".to_string())).collect()
}

pub fn mirror(folder: &Folder, args: &[&str]) -> Ran {
    folder.corewise([&["mirror", "m"], args].concat())
}

/// Starts a server with a mirror over these files, and waits until it is in sync.
pub fn in_sync_over(folder: &Folder, over: &[&str]) -> Server {
    folder.write("up.toml", manifest(over, ""));
    let mut server = Server::start(folder, &["up.toml"]);
    server.wait_mirror("resynced");
    server
}

/// Starts a mirror of `a` and `b`, in sync, whose next resync takes long; a client that writes to
/// it; and a spare device `c`.
pub fn slow_beside_a_spare(folder: &Folder) -> (Server, Busy) {
    let slow = "resync_least = \"1M\"\nresync_most = \"1M\"";
    folder.write("up.toml", manifest(&["a", "b"], ""));
    folder.write("c.toml", files(&["c"]));
    let mut server = Server::start(folder, &["up.toml"]);
    server.wait_mirror("resynced");
    server.stop().ok();
    folder.write("slow.toml", manifest(&["a", "b"], slow));
    let server = Server::start(folder, &["slow.toml"]);
    let busy = Busy::start(server.socket());
    folder.corewise(["add", "c.toml"]).ok();
    (server, busy)
}
