//! A client of many exports at once: it sends all that it will ask, and then takes the answers.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long an answer may take.
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
const BLOCK: u32 = 4096;

/// A connection to one export.
pub(super) struct Client(UnixStream);

/// Clients of these exports that have all been let in.
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

/// Has each read or write its first block.
pub(super) fn ask(clients: &mut [Client], command: u16) -> io::Result<()> {
    clients.iter_mut().try_for_each(|client| client.send(command))?;
    clients.iter_mut().try_for_each(|client| client.answered(command))
}

/// Says good-bye for all of them.
pub(super) fn leave(mut clients: Vec<Client>) -> io::Result<()> {
    clients.iter_mut().try_for_each(|client| client.send(DISCONNECT))
}

impl Client {
    /// Asks for an export, before the server has said anything.
    fn choose(&mut self, name: &str) -> io::Result<()> {
        // It knows the handshake, and wants no zeroes.
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

    fn send(&mut self, command: u16) -> io::Result<()> {
        let length = if command == DISCONNECT { 0 } else { BLOCK };
        let mut bytes = REQUEST.to_be_bytes().to_vec();
        bytes.extend([0, command].map(u16::to_be_bytes).concat());
        bytes.extend([0; 16]);
        bytes.extend(length.to_be_bytes());
        if command == WRITE {
            bytes.resize(bytes.len() + BLOCK as usize, 7);
        }
        self.0.write_all(&bytes)
    }

    fn answered(&mut self, command: u16) -> io::Result<()> {
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply)?;
        let right = [REPLY, 0].map(u32::to_be_bytes).concat();
        if reply[..8] != *right {
            return Err(io::Error::other(format!("a request was answered by {:x?}", &reply[..8])));
        }
        let data = if command == READ { BLOCK as usize } else { 0 };
        self.0.read_exact(&mut vec![0; data])
    }
}
