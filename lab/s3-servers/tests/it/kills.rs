//! The program on SeaweedFS: kills of either, and two programs that compete for a volume.

use std::io::Result;
use std::process::Command;
use std::time::Duration;

use crate::disk::{BLOCK, Place};
use crate::program::Program;
use crate::weed::Weed;
use corewise_sync::thread;
use fastrand::Rng;

use crate::client::{self, Client};

const BLOCKS: usize = 64;

/// A client of the program that doesn't reconnect when its server is gone. (Our driver does, for as
/// long as a request may take.)
struct Attached(Client);

impl Attached {
    fn new(program: &Program) -> Self {
        Self(Client::new(&program.socket(), "volume"))
    }

    /// Sends a request and returns its answer. The error has the server's number, or the connection
    /// is over.
    fn ask(&mut self, what: u16, start: usize, len: usize, data: &[u8]) -> Result<Vec<u8>> {
        let (at, len) = ((start * BLOCK) as u64, (len * BLOCK) as u32);
        self.0.send(what, 0, at, len, data)?;
        let (_, answer) = self.0.receive(if what == client::READ { len } else { 0 })?;
        answer.map_err(|number| std::io::Error::from_raw_os_error(number as i32))
    }

    fn write(&mut self, start: usize, len: usize, what: u8) -> Result<()> {
        self.ask(client::WRITE, start, len, &vec![what; len * BLOCK]).map(drop)
    }

    fn flush(&mut self) -> Result<()> {
        self.ask(client::FLUSH, 0, 0, &[]).map(drop)
    }

    /// Reads blocks, and returns the byte of each.
    fn read(&mut self, start: usize, len: usize) -> Result<Vec<u8>> {
        let bytes = self.ask(client::READ, start, len, &[])?;
        let blocks = bytes.chunks(BLOCK).map(|block| {
            assert!(block.iter().all(|byte| *byte == block[0]), "a block was never written so");
            block[0]
        });
        Ok(blocks.collect())
    }
}

/// Writes of a client, in order, and the number of flushed ones.
#[derive(Clone, Debug, Default)]
struct Done {
    writes: Vec<(usize, usize, u8)>,
    flushed: usize,
}

impl Done {
    /// Returns the volume after this number of writes.
    fn state(&self, writes: usize) -> Vec<u8> {
        let mut state = vec![0; BLOCKS];
        for &(start, len, what) in &self.writes[..writes] {
            state[start..start + len].fill(what);
        }
        state
    }

    /// Writes and flushes, `steps` times, or until a request fails.
    fn work(&mut self, disk: &mut Attached, random: &mut Rng, steps: usize) {
        for _ in 0..steps {
            let done = if random.u8(0..6) == 0 {
                let sent = self.writes.len();
                disk.flush().inspect(|()| self.flushed = sent)
            } else {
                let start = random.usize(0..BLOCKS);
                let len = random.usize(1..=(BLOCKS - start).min(9));
                let what = random.u8(1..);
                self.writes.push((start, len, what));
                disk.write(start, len, what)
            };
            if done.is_err() {
                return;
            }
        }
    }

    /// Checks that the volume after a crash is in a state that it had after the last flush. The
    /// work goes on from that state.
    fn survives(&mut self, found: &[u8], round: usize) {
        let at = (self.flushed..=self.writes.len()).find(|writes| self.state(*writes) == found);
        let at = at.unwrap_or_else(|| {
            panic!(
                "round {round}: after {} of {} writes were flushed: {found:?}",
                self.flushed,
                self.writes.len()
            )
        });
        self.writes.truncate(at);
        self.flushed = at;
    }
}

#[test]
fn nothing_flushed_is_lost_when_the_program_is_killed_two_hundred_times() {
    let weed = Weed::new();
    let place = Place::new(weed.address(), "killed");
    let mut random = Rng::with_seed(1);
    let mut done = Done::default();
    for round in 0..200 {
        let mut program = Program::new(&place, BLOCKS);
        let mut disk = Attached::new(&program);
        done.survives(&disk.read(0, BLOCKS).unwrap(), round);
        let pause = Duration::from_micros(random.u64(0..60_000));
        let mut theirs = random.fork();
        let work = thread::spawn(move || {
            done.work(&mut disk, &mut theirs, usize::MAX);
            done
        });
        corewise_sync::Parker::new().park_timeout(pause);
        program.kill();
        done = work.join().unwrap();
    }
}

#[test]
fn nothing_flushed_is_lost_when_the_store_is_killed_and_comes_again() {
    let mut weed = Weed::new();
    let place = Place::new(weed.address(), "store-killed");
    let program = Program::new(&place, BLOCKS);
    let mut random = Rng::with_seed(2);
    let mut done = Done::default();
    for _ in 0..5 {
        let mut disk = Attached::new(&program);
        let mut theirs = random.fork();
        let mut before = done.clone();
        let work = thread::spawn(move || {
            before.work(&mut disk, &mut theirs, 400);
            before
        });
        corewise_sync::Parker::new().park_timeout(Duration::from_millis(random.u64(20..300)));
        weed.kill_and_begin();
        done = work.join().unwrap();
        let mut disk = Attached::new(&program);
        // The first flush of a new client may report one that failed for the client before, which
        // may not have got the error.
        disk.flush().or_else(|_| disk.flush()).unwrap();
        // The program lived on, so no write is lost, even an unflushed one.
        assert_eq!(disk.read(0, BLOCKS).unwrap(), done.state(done.writes.len()));
    }
    drop(program);
    let program = Program::new(&place, BLOCKS);
    let found = Attached::new(&program).read(0, BLOCKS).unwrap();
    assert_eq!(found, done.state(done.writes.len()));
}

#[test]
fn of_two_servers_that_fight_for_a_volume_at_most_one_is_believed() {
    let weed = Weed::new();
    let place = Place::new(weed.address(), "fought-for");
    let first = Program::new(&place, BLOCKS);
    let mut one = Attached::new(&first);
    one.write(0, 1, 1).unwrap();
    one.flush().unwrap();
    let second = Program::new(&place, BLOCKS);
    let mut other = Attached::new(&second);
    assert_eq!(other.read(0, 1).unwrap(), [1]);
    other.write(0, 1, 2).unwrap();
    assert!(one.read(0, 1).is_err(), "it was replaced before");
    assert!(one.write(0, 1, 3).and_then(|()| one.flush()).is_err());
    other.flush().unwrap();
    assert_eq!(other.read(0, 1).unwrap(), [2]);
    drop((first, second));
    // Many programs start one after the other, each while the one before still runs.
    let mut random = Rng::with_seed(3);
    let mut last = 2;
    let mut before: Option<(Program, Attached)> = None;
    for what in 3..23 {
        let program = Program::new(&place, BLOCKS);
        let mut disk = Attached::new(&program);
        if let Some((_, before)) = &mut before {
            // The program goes on. From then on its state is stale.
            let written = before.write(1, 1, what).and_then(|()| before.flush());
            let read = before.read(0, 1);
            disk.write(0, 1, what).unwrap();
            assert!(
                before.read(0, 1).is_err(),
                "it answers after it was replaced: {read:?}, {written:?}"
            );
        } else {
            disk.write(0, 1, what).unwrap();
        }
        assert!([last, what].contains(&disk.read(0, 1).unwrap()[0]));
        if random.bool() {
            disk.flush().unwrap();
            last = what;
        }
        before = Some((program, disk));
    }
}

#[test]
fn nbdcopy_puts_an_image_in_and_gets_it_out() {
    let weed = Weed::new();
    let place = Place::new(weed.address(), "copied");
    let folder = tempfile::tempdir().unwrap();
    let (image, again) = (folder.path().join("image"), folder.path().join("again"));
    let mut random = Rng::with_seed(4);
    let mut bytes = vec![0; 64 << 20];
    // Every other megabyte is a hole.
    bytes.chunks_mut(1 << 20).step_by(2).for_each(|part| random.fill(part));
    std::fs::write(&image, &bytes).unwrap();
    let copy = |from: &str, to: &str| {
        let done = Command::new("nbdcopy").args(["--flush", from, to]).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    let mut program = Program::new(&place, bytes.len() / BLOCK);
    copy(image.to_str().unwrap(), &program.uri());
    program.kill();
    let program = Program::new(&place, bytes.len() / BLOCK);
    copy(&program.uri(), again.to_str().unwrap());
    assert!(std::fs::read(&again).unwrap() == bytes);
}
