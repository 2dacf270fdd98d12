//! Clients of the servers. One client of many exports sends all its requests, and then reads the
//! answers. Clients of one export send each request at its time, even if earlier ones aren't
//! answered.

use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use corewise_sync::sys;

/// Time that an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

const OPTION: u64 = 0x4948_4156_454f_5054;
const GO: u32 = 7;
const ACK: u32 = 1;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;
/// Commands.
pub(super) const READ: u16 = 0;
pub(super) const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
/// Bytes that are read and written.
pub(super) const BLOCK: u32 = 4096;
/// Bytes of answers that are read at once.
const BUFFER: usize = 64 << 10;
/// Time that threads may take to begin.
const BEGIN: Duration = Duration::from_millis(10);

/// A connection to one export.
pub(super) struct Client(UnixStream);

/// Connects a client to each of these exports.
pub(super) fn clients(socket: &Path, names: &[String]) -> io::Result<Vec<Client>> {
    let mut clients = Vec::with_capacity(names.len());
    for name in names {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut client = Client(stream);
        client.choose(name)?;
        clients.push(client);
    }
    clients.iter_mut().try_for_each(Client::chosen)?;
    Ok(clients)
}

/// Makes each client read or write its first block.
pub(super) fn ask(clients: &mut [Client], command: u16) -> io::Result<()> {
    clients.iter_mut().try_for_each(|client| client.send(command, 0, 0))?;
    clients.iter_mut().try_for_each(|client| answer(&mut client.0, command).map(drop))
}

/// Disconnects all of them as the protocol asks.
pub(super) fn leave(mut clients: Vec<Client>) -> io::Result<()> {
    clients.iter_mut().try_for_each(|client| client.send(DISCONNECT, 0, 0))
}

/// Makes these clients of one volume read random blocks for `length`, at an even `rate` a second of
/// all clients together. Returns the time of each read in nanoseconds, from the time at which it
/// was due. The first tenth is left out.
pub(super) fn paced(
    clients: &mut [Client],
    volume: u64,
    rate: u32,
    length: Duration,
) -> io::Result<Vec<u64>> {
    let all = clients.len() as u32;
    let interval = Duration::from_secs(1) * all / rate;
    let count = (length.as_nanos() / interval.as_nanos()) as u32;
    let begin = Instant::now() + BEGIN;
    let blocks = volume / u64::from(BLOCK);
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (number, client) in (0..all).zip(clients) {
            let due = move |request: u32| begin + interval * number / all + interval * request;
            let mut replies = BufReader::with_capacity(BUFFER, client.0.try_clone()?);
            let sender = scope.spawn(move || {
                let _ = sys::wake_on_time();
                let mut random = fastrand::Rng::with_seed(number.into());
                (0..count).try_for_each(|request| {
                    thread::sleep(due(request).saturating_duration_since(Instant::now()));
                    let offset = random.u64(..blocks) * u64::from(BLOCK);
                    client.send(READ, request.into(), offset)
                })
            });
            let receiver = scope.spawn(move || {
                let mut took = Vec::with_capacity(count as usize);
                for _ in 0..count {
                    let request = answer(&mut replies, READ)? as u32;
                    if request >= count / 10 {
                        took.push(due(request).elapsed().as_nanos() as u64);
                    }
                }
                Ok::<_, io::Error>(took)
            });
            threads.push((sender, receiver));
        }
        let mut took = Vec::new();
        for (sender, receiver) in threads {
            let panicked = |_| io::Error::other("a client panicked");
            sender.join().map_err(panicked)??;
            took.extend(receiver.join().map_err(panicked)??);
        }
        Ok(took)
    })
}

impl Client {
    /// Asks for an export, before the server has said anything.
    fn choose(&mut self, name: &str) -> io::Result<()> {
        // The client knows the newer handshake, and asks for no zeroes.
        let mut bytes = 3_u32.to_be_bytes().to_vec();
        let length = name.len() as u32;
        bytes.extend(OPTION.to_be_bytes());
        bytes.extend([GO, length + 6, length].map(u32::to_be_bytes).concat());
        bytes.extend(name.as_bytes());
        bytes.extend([0; 2]);
        self.0.write_all(&bytes)
    }

    fn chosen(&mut self) -> io::Result<()> {
        self.0.read_exact(&mut [0; 18])?;
        loop {
            let mut head = [0; 20];
            self.0.read_exact(&mut head)?;
            let number = |at: usize| head[at..at + 4].iter().fold(0, |n, b| n << 8 | u32::from(*b));
            let mut rest = vec![0; number(16) as usize];
            self.0.read_exact(&mut rest)?;
            match number(12) {
                ACK => return Ok(()),
                error if error >> 31 == 1 => {
                    return Err(io::Error::other(String::from_utf8_lossy(&rest).into_owned()));
                }
                _ => {}
            }
        }
    }

    /// Sends a request. Its answer will have the same `cookie`.
    fn send(&mut self, command: u16, cookie: u64, offset: u64) -> io::Result<()> {
        let length = if command == DISCONNECT { 0 } else { BLOCK };
        let mut bytes = REQUEST.to_be_bytes().to_vec();
        bytes.extend([0, command].map(u16::to_be_bytes).concat());
        bytes.extend([cookie, offset].map(u64::to_be_bytes).concat());
        bytes.extend(length.to_be_bytes());
        if command == WRITE {
            bytes.resize(bytes.len() + BLOCK as usize, 7);
        }
        self.0.write_all(&bytes)
    }
}

/// Reads the next answer to a request with this command, and returns its cookie.
fn answer(from: &mut impl Read, command: u16) -> io::Result<u64> {
    let mut reply = [0; 16];
    from.read_exact(&mut reply)?;
    let (head, cookie) = reply.split_at(8);
    let right = [REPLY, 0].map(u32::to_be_bytes).concat();
    if head != right {
        return Err(io::Error::other(format!("a request was answered by {head:x?}")));
    }
    let data = if command == READ { BLOCK as usize } else { 0 };
    from.read_exact(&mut [0; BLOCK as usize][..data])?;
    Ok(cookie.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}
