//! A client that knows the promises made to it. It speaks the protocol over a socket pair, and
//! never waits in a system call. All threads of a schedule are one thread of the system.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use corewise_drivers::CheckpointDriver;
use corewise_nbd::Server;
use corewise_nbd::wire::{
    Command, CommandFlags, GREETING_LEN, Request, SIMPLE_REPLY_LEN, SimpleReply,
};
use corewise_sync::model::choose;
use corewise_sync::{Mutex, thread};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair, sockopt,
};

use crate::disk::Machine;
use crate::event_counts::{EventCounts, count, say};
use crate::ledger::{BLOCK, BLOCKS, Content, Ledger, SIZE, content};

/// The surroundings of a client in one life of the server.
pub(crate) struct Life<'a> {
    pub(crate) server: &'a Server,
    pub(crate) machine: &'a Machine,
    pub(crate) ledger: &'a Mutex<Ledger>,
    /// L: is the lock, held while a client connects, so that it learns its number.
    pub(crate) door: &'a Mutex<()>,
    pub(crate) counts: &'a EventCounts,
    /// True if the device's contents may differ from the ledger, without an error.
    pub(crate) is_unsure: bool,
    /// Disks that hold everything, if there are disks that do so by themselves.
    pub(crate) complete: &'a (dyn Fn() -> Vec<usize> + Sync),
}

impl Life<'_> {
    /// Checks a promise of durability: each complete disk holds everything where no power failure
    /// takes it.
    fn look(&self) {
        let (ledger, world) = (self.ledger.lock(), self.machine.world.lock());
        if self.is_unsure || world.dead {
            return;
        }
        // The check holds both, so that nothing changes meanwhile.
        for disk in (self.complete)() {
            let blocks = world.disks[disk].durable.chunks(BLOCK).take(BLOCKS).enumerate();
            for (n, block) in blocks {
                if let Err(why) = ledger.is_durable(n, block) {
                    panic!("said to be durable, and not so on disk {disk}: {why}");
                }
            }
        }
    }
}

impl Life<'_> {
    /// Checks that each checkpoint names all blocks that differ from it. No change is in flight.
    pub(crate) fn check_changed(&self, driver: &CheckpointDriver) {
        let (ledger, world) = (self.ledger.lock(), self.machine.world.lock());
        for (name, then) in &ledger.checkpoints {
            let found = driver.changed(name, 0, SIZE as u64, BLOCKS);
            let stretches = found.unwrap_or_else(|| panic!("checkpoint {name} is lost"));
            let changed = stretches
                .iter()
                .flat_map(|&(len, changed)| std::iter::repeat_n(changed, len as usize / BLOCK));
            let both = then.chunks(BLOCK).zip(world.disks[0].now.chunks(BLOCK));
            for (block, (changed, (then, now))) in changed.zip(both).enumerate() {
                assert!(changed || then == now, "block {block} has changed since {name}");
            }
        }
    }
}

/// The expected effect of a request.
enum InFlight {
    Change {
        block: usize,
        version: usize,
        fua: bool,
    },
    /// Versions that were acknowledged when the flush was sent.
    Flush(Vec<usize>),
    /// Number of changes sent to the block before the read.
    Read {
        block: usize,
        sent: usize,
    },
}

/// The end of the connection.
#[derive(Debug)]
pub(crate) struct Over;

pub(crate) struct Client<'a> {
    life: &'a Life<'a>,
    socket: OwnedFd,
    /// The server's number of the connection.
    id: u64,
    received: Vec<u8>,
    next: u64,
    /// Requests by cookie. No loop iterates over it: the order in a hash map is chance.
    flying: HashMap<u64, InFlight>,
}

impl<'a> Client<'a> {
    pub(crate) fn new(life: &'a Life<'a>) -> Result<Client<'a>, Over> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        if choose(4) == 0 {
            // Replies fill it, and go to the writer thread.
            sockopt::set_socket_send_buffer_size(&theirs, 1).unwrap();
        }
        life.machine.connected(ours.try_clone().unwrap());
        let door = life.door.lock();
        life.server.serve(theirs).map_err(|_| Over)?;
        let id = life.server.clients().iter().map(|client| client.id).max();
        drop(door);
        // It may have left already, if the server was killed.
        let id = id.ok_or(Over)?;
        let (received, flying) = (Vec::new(), HashMap::new());
        let mut client = Client { life, socket: ours, id, received, next: 0, flying };
        client.receive(GREETING_LEN)?;
        // The flags are fixed newstyle, and no zeroes after the export. The export's name, which is
        // empty, follows.
        let mut hello = 3_u32.to_be_bytes().to_vec();
        hello.extend(b"IHAVEOPT\0\0\0\x01\0\0\0\0");
        client.send(&hello)?;
        client.receive(10)?;
        Ok(client)
    }

    fn send(&self, mut bytes: &[u8]) -> Result<(), Over> {
        while !bytes.is_empty() {
            match send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::AGAIN) => thread::yield_now(),
                Err(_) => return Err(Over),
            }
        }
        Ok(())
    }

    /// Receives the next `len` bytes.
    fn receive(&mut self, len: usize) -> Result<Vec<u8>, Over> {
        while self.received.len() < len {
            let mut buffer = [0; 8192];
            match recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => thread::yield_now(),
                Ok((got, _)) if got > 0 => self.received.extend(&buffer[..got]),
                Ok(_) | Err(_) => {
                    // Half of a reply is none.
                    self.received.clear();
                    return Err(Over);
                }
            }
        }
        Ok(self.received.drain(..len).collect())
    }

    fn request(
        &mut self,
        command: Command,
        flags: CommandFlags,
        block: usize,
        payload: &[u8],
        waits: InFlight,
    ) -> Result<(), Over> {
        let cookie = self.next;
        self.next += 1;
        let length = if command == Command::FLUSH { 0 } else { BLOCK as u64 };
        let request = Request { flags, command, cookie, offset: (block * BLOCK) as u64, length };
        say(|| format!("client {}: {cookie} {command:?} {flags:?} block {block}", self.id));
        count(&self.life.counts.requests);
        let mut message = request.encode().to_vec();
        message.extend(payload);
        self.flying.insert(cookie, waits);
        self.send(&message)
    }

    /// Sends a random request.
    fn ask(&mut self) -> Result<(), Over> {
        let mut ledger = self.life.ledger.lock();
        let block = choose(BLOCKS as u64) as usize;
        let kind = choose(12);
        if kind == 0 {
            let acked = ledger.acked();
            drop(ledger);
            let waits = InFlight::Flush(acked);
            return self.request(Command::FLUSH, CommandFlags::empty(), 0, &[], waits);
        }
        if kind <= 3 || ledger.is_busy(block) {
            // A change that is on its way may come before or after it.
            let sent = if ledger.is_busy(block) { usize::MAX } else { ledger.sent(block) };
            drop(ledger);
            let waits = InFlight::Read { block, sent };
            return self.request(Command::READ, CommandFlags::empty(), block, &[], waits);
        }
        let (command, what) = match kind {
            4 => (Command::WRITE_ZEROES, Content::Zeroes),
            5 => (Command::TRIM, Content::Trimmed),
            _ => (Command::WRITE, Content::Data),
        };
        let version = ledger.send(block, what);
        drop(ledger);
        let fua = choose(5) == 0;
        let flags = CommandFlags::empty().with_if(fua, CommandFlags::FUA);
        let payload = if what == Content::Data { content(block, version) } else { Vec::new() };
        self.request(command, flags, block, &payload, InFlight::Change { block, version, fua })
    }

    /// Takes one reply.
    fn answer(&mut self) -> Result<(), Over> {
        let head = self.receive(SIMPLE_REPLY_LEN)?;
        let reply = SimpleReply::decode(head.as_slice().try_into().unwrap()).unwrap();
        say(|| format!("client {}: {} is answered {}", self.id, reply.cookie, reply.error));
        let (waits, good) = (self.flying.remove(&reply.cookie).unwrap(), reply.error == 0);
        if !good {
            count(&self.life.counts.errors);
        }
        match waits {
            InFlight::Change { block, version, fua } => {
                self.life.ledger.lock().answered(block, version, fua, good);
                if fua && good {
                    self.life.look();
                }
            }
            InFlight::Flush(acked) if good => {
                self.life.ledger.lock().flushed(&acked);
                self.life.look();
            }
            InFlight::Read { block, sent } if good => {
                let found = self.receive(BLOCK)?;
                self.judge(block, sent, &found);
            }
            InFlight::Flush(_) | InFlight::Read { .. } => {}
        }
        Ok(())
    }

    fn judge(&self, block: usize, sent: usize, found: &[u8]) {
        let mut ledger = self.life.ledger.lock();
        // A concurrent change may be there or not.
        if self.life.is_unsure || ledger.sent(block) != sent || ledger.is_busy(block) {
            return;
        }
        count(&self.life.counts.read);
        if let Err(why) = ledger.judge(block, found) {
            panic!("{why}");
        }
    }

    /// Reads one block; returns `None` if the server can't.
    pub(crate) fn read(&mut self, block: usize) -> Result<Option<Vec<u8>>, Over> {
        let waits = InFlight::Read { block, sent: 0 };
        self.request(Command::READ, CommandFlags::empty(), block, &[], waits)?;
        let head = self.receive(SIMPLE_REPLY_LEN)?;
        let reply = SimpleReply::decode(head.as_slice().try_into().unwrap()).unwrap();
        self.flying.clear();
        if reply.error == 0 { self.receive(BLOCK).map(Some) } else { Ok(None) }
    }

    /// Reads all blocks, and checks them.
    pub(crate) fn read_all(&mut self) -> Result<(), Over> {
        for block in 0..BLOCKS {
            let sent = self.life.ledger.lock().sent(block);
            match self.read(block)? {
                Some(found) => self.judge(block, sent, &found),
                None => count(&self.life.counts.errors),
            }
        }
        Ok(())
    }

    /// Leaves, in one of the ways in which clients do, and waits until none of its requests is on
    /// its way.
    pub(crate) fn leave(mut self) {
        match choose(3) {
            0 => {
                let request = Request {
                    flags: CommandFlags::empty(),
                    command: Command::DISC,
                    cookie: 0,
                    offset: 0,
                    length: 0,
                };
                let _ = self.send(&request.encode());
                while self.answer().is_ok() {}
            }
            1 => {
                let _ = shutdown(&self.socket, Shutdown::Write);
                while self.answer().is_ok() {}
            }
            _ => {
                let _ = shutdown(&self.socket, Shutdown::Both);
            }
        }
        self.wait_until_gone();
        let mut ledger = self.life.ledger.lock();
        for waits in self.flying.values() {
            if let InFlight::Change { block, .. } = waits {
                ledger.given_up(*block);
            }
        }
    }

    fn wait_until_gone(&self) {
        while self.life.server.clients().iter().any(|client| client.id == self.id) {
            thread::yield_now();
        }
    }

    /// Sends `requests` requests, several at once.
    fn work(&mut self, requests: u64) -> Result<(), Over> {
        let depth = 1 + choose(4) as usize;
        for _ in 0..requests {
            self.ask()?;
            while self.flying.len() >= depth {
                self.answer()?;
            }
        }
        if choose(3) != 0 {
            while !self.flying.is_empty() {
                self.answer()?;
            }
        }
        Ok(())
    }
}

/// Runs a client: it connects, sends requests, leaves, and connects again.
pub(crate) fn client(life: &Life<'_>) {
    for _ in 0..=choose(2) {
        let Ok(mut client) = Client::new(life) else { return };
        if let Err(Over) = client.work(2 + choose(8)) {
            while client.answer().is_ok() {}
        }
        client.leave();
    }
}
