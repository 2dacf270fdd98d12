//! `kill -9` of a server of a volume in a store, repeatedly, and servers that fight for one volume.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::Folder;
use crate::common::client::{Client, FLUSH, FUA, READ, WRITE, WRITE_ZEROES, pattern};
use crate::common::server::Server;

const BLOCK: usize = 4096;
/// Blocks of the volume.
const BLOCKS: usize = 64;

fn rounds(few: usize, many: usize) -> usize {
    if std::env::var_os("COREWISE_LONG").is_some() { many } else { few }
}

/// Returns the manifest of a volume in the folder `store`. The lease is short, since after each
/// kill the next server waits for it.
fn manifest(folder: &Folder, keys: &str) -> String {
    format!(
        "[[device]]\nname = \"v\"\ndriver = \"object\"\nlocation = \"file://{}\"\nsize = {}\nlease = \"100ms\"\n{keys}\n\
         [[export]]\ndevice = \"v\"\n",
        folder.join("store").display(),
        BLOCKS * BLOCK,
    )
}

/// Returns the content of a block after change `id`; zeroes for 0.
fn content(id: u64, block: usize) -> Vec<u8> {
    if id == 0 {
        return vec![0; BLOCK];
    }
    let mut data = pattern(id * BLOCKS as u64 + block as u64, BLOCK);
    data[..8].copy_from_slice(&id.to_le_bytes());
    data
}

/// Returns the change that each block comes from.
fn identify(data: &[u8]) -> Vec<u64> {
    let of = |(block, data): (usize, &[u8])| {
        let id = u64::from_le_bytes(data[..8].try_into().unwrap());
        assert!(data == content(id, block), "block {block} was never written so (it says {id})");
        id
    };
    data.chunks(BLOCK).enumerate().map(of).collect()
}

/// A change: its blocks and their new content.
struct Change {
    start: usize,
    len: usize,
    id: u64,
}

/// Requests of a client since the volume was opened.
struct History {
    /// Contents of the volume at that time.
    before: Vec<u64>,
    /// Changes in order, including the one without an answer.
    changes: Vec<Change>,
    /// Number of answered changes, and their number when the last answered flush began.
    answered: usize,
    flushed: usize,
}

impl History {
    fn apply(state: &mut [u64], change: &Change) {
        state[change.start..change.start + change.len].fill(change.id);
    }

    fn now(&self) -> Vec<u64> {
        let mut state = self.before.clone();
        self.changes[..self.answered].iter().for_each(|change| Self::apply(&mut state, change));
        state
    }

    /// Panics unless the volume holds exactly the changes up to one of them, with no flushed change
    /// missing.
    fn check(&self, found: &[u64]) {
        let mut state = self.before.clone();
        for n in 0..=self.changes.len() {
            if n >= self.flushed && state == found {
                return;
            }
            if let Some(change) = self.changes.get(n) {
                Self::apply(&mut state, change);
            }
        }
        let changes: Vec<_> = self.changes.iter().map(|c| (c.id, c.start, c.len)).collect();
        panic!(
            "found {found:?}, which is no prefix of {changes:?} over {:?} ({} answered, {} flushed)",
            self.before, self.answered, self.flushed
        );
    }
}

fn call(
    client: &mut Client,
    command: u16,
    flags: u16,
    at: usize,
    len: usize,
    data: &[u8],
) -> io::Result<Vec<u8>> {
    client.send(command, flags, at as u64, len as u32, data)?;
    let (_, result) = client.receive(if command == READ { len as u32 } else { 0 })?;
    Ok(result.unwrap_or_else(|error| panic!("command {command}: error {error}")))
}

/// Sends changes until the server is gone, which `kill` causes meanwhile.
fn work(client: &mut Client, before: Vec<u64>, ids: &mut u64, kill: impl FnOnce()) -> History {
    let mut history = History { before, changes: Vec::new(), answered: 0, flushed: 0 };
    let (mut kill, after) = (Some(kill), fastrand::usize(1..60));
    for n in 0.. {
        if n == after {
            kill.take().expect("it comes once")();
        }
        let start = fastrand::usize(..BLOCKS);
        let len = fastrand::usize(1..=8.min(BLOCKS - start));
        let done = match fastrand::u32(..10) {
            0 | 1 => {
                let covers = history.answered;
                let done = call(client, FLUSH, 0, 0, 0, &[]);
                history.flushed = if done.is_ok() { covers } else { history.flushed };
                done
            }
            2 => {
                let found = call(client, READ, 0, start * BLOCK, len * BLOCK, &[]);
                if let Ok(found) = &found {
                    let blocks = start..start + len;
                    let expected: Vec<u8> =
                        blocks.clone().flat_map(|b| content(history.now()[b], b)).collect();
                    assert!(*found == expected, "blocks {blocks:?} aren't as they were written");
                }
                found
            }
            what => {
                let zero = what == 3;
                *ids += 1;
                let id = if zero { 0 } else { *ids };
                history.changes.push(Change { start, len, id });
                let data: Vec<u8> = (start..start + len).flat_map(|b| content(id, b)).collect();
                let flags = if what == 4 { FUA } else { 0 };
                let (command, data) =
                    if zero { (WRITE_ZEROES, &[][..]) } else { (WRITE, &data[..]) };
                let done = call(client, command, flags, start * BLOCK, len * BLOCK, data);
                if done.is_ok() {
                    history.answered += 1;
                    if flags == FUA {
                        // The flush covers all changes before it.
                        history.flushed = history.answered;
                    }
                }
                done
            }
        };
        if done.is_err() {
            break;
        }
    }
    history
}

/// Kills a server repeatedly, and verifies the volume each time.
fn kills(folder: &Folder, keys: &str, rounds: usize) {
    folder.write("up.toml", manifest(folder, keys));
    let mut ids = 0;
    let mut history: Option<History> = None;
    for _ in 0..rounds {
        let server = Server::start(folder, &["up.toml"]);
        let mut client = Client::new(&server.socket(), "v");
        let found = identify(&client.read(0, (BLOCKS * BLOCK) as u32).unwrap());
        if let Some(history) = &history {
            history.check(&found);
        }
        let (pid, (tell, told)) = (server.pid(), mpsc::channel());
        let killer = std::thread::spawn(move || {
            told.recv().unwrap();
            let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
            kill_process(pid, Signal::KILL).expect("the server wasn't waited for");
        });
        history = Some(work(&mut client, found, &mut ids, || tell.send(()).unwrap()));
        killer.join().unwrap();
        server.kill();
    }
    let server = Server::start(folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "v");
    history.unwrap().check(&identify(&client.read(0, (BLOCKS * BLOCK) as u32).unwrap()));
    server.stop().ok();
}

#[test]
fn nothing_flushed_is_lost_and_nothing_else_is_read_however_often_the_server_is_killed() {
    kills(&Folder::new(), "", rounds(8, 200));
}

#[test]
fn nothing_that_was_flushed_into_a_file_is_lost_however_often_the_server_is_killed() {
    let keys = "flush = \"local\"\nflush_file = \"flushes\"";
    kills(&Folder::new(), keys, rounds(8, 200));
}

/// Returns two facts about a client of a server that is fenced at some time: the start of the last
/// request that succeeded, and the greatest flushed number.
fn believed(socket: &Path, from: u64, stop: &AtomicBool) -> (Option<Instant>, u64) {
    let mut client = Client::new(socket, "v");
    let (mut last, mut flushed) = (None, 0);
    for id in from.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        for command in [WRITE, FLUSH, READ] {
            let began = Instant::now();
            let (len, data) = match command {
                WRITE => (BLOCK, content(id, 0)),
                READ => (BLOCK, Vec::new()),
                _ => (0, Vec::new()),
            };
            client.send(command, 0, 0, len as u32, &data).unwrap();
            let (_, result) = client.receive(if command == READ { len as u32 } else { 0 }).unwrap();
            let Ok(read) = result else { return (last, flushed) };
            // An acknowledged write promises nothing yet.
            if command != WRITE {
                last = Some(began);
            }
            match command {
                FLUSH => flushed = id,
                READ => assert_eq!(identify(&read), [id], "somebody else's, or an old one"),
                _ => {}
            }
        }
    }
    (last, flushed)
}

#[test]
fn of_two_servers_that_fight_for_a_volume_at_most_one_is_believed() {
    let folder = Folder::new();
    folder.write("up.toml", manifest(&folder, ""));
    let mut old = Server::start(&folder, &["up.toml"]);
    for round in 1..=rounds(3, 50) as u64 {
        let (socket, stop) = (old.socket(), AtomicBool::new(false));
        let (new, changed, last, flushed) = std::thread::scope(|threads| {
            let busy = threads.spawn(|| believed(&socket, round << 32, &stop));
            let new = Server::start(&folder, &["up.toml"]);
            let mut client = Client::new(&new.socket(), "v");
            let seen = identify(&client.read(0, BLOCK as u32).unwrap())[0];
            client.write(0, &content((round << 32) - 1, 0), 0).unwrap();
            let changed = Instant::now();
            client.flush().unwrap();
            stop.store(true, Ordering::Relaxed);
            let (last, flushed) = busy.join().unwrap();
            assert!(seen >= flushed, "{flushed} was flushed, and {seen} is there");
            (new, changed, last, flushed)
        });
        assert!(
            last.is_none_or(|last| last < changed),
            "a server was believed after it was fenced"
        );
        assert!(flushed == 0 || flushed >= round << 32);
        // By now the server knows, or it never will.
        old.kill();
        old = new;
    }
    old.stop().ok();
}
