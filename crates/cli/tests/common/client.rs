//! A small NBD client, written from the protocol's text and not over our library. It does things
//! that no client program does: half a request, a FUA write without a flush behind it, lies.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const WRITE_ZEROES: u16 = 6;

pub const FUA: u16 = 1;

pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;

/// A stream that carries bytes both ways.
pub trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A connection in the transmission phase.
pub struct Client {
    stream: Box<dyn Stream>,
    pub size: u64,
    pub flags: u16,
    cookie: u64,
}

/// Connects and sends nothing. A server that doesn't answer for half a minute never will.
pub fn connect(socket: &Path) -> UnixStream {
    let stream =
        UnixStream::connect(socket).unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
    stream.set_read_timeout(Some(Duration::from_secs(300))).expect("a timeout that isn't zero");
    stream
}

/// Reads the server's greeting and answers it, so that options may follow.
pub fn greet(stream: &mut impl Stream) -> io::Result<()> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    // Fixed newstyle, no zeroes.
    stream.write_all(&3u32.to_be_bytes())
}

/// Returns the bytes of an option.
pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// Receives one reply to an option and returns its type and data.
pub fn option_reply(stream: &mut impl Stream) -> io::Result<(u32, Vec<u8>)> {
    let mut head = [0; 20];
    stream.read_exact(&mut head)?;
    assert_eq!(head[..8], REPLY_MAGIC.to_be_bytes());
    let kind = u32::from_be_bytes([head[12], head[13], head[14], head[15]]);
    let length = u32::from_be_bytes([head[16], head[17], head[18], head[19]]);
    let mut data = vec![0; length as usize];
    stream.read_exact(&mut data)?;
    Ok((kind, data))
}

impl Client {
    /// Connects to an export.
    pub fn new(socket: &Path, export: &str) -> Client {
        Client::over(connect(socket), export).expect("a handshake that succeeds")
    }

    /// Connects, sends reads and takes no replies, so its export can't drain.
    pub fn stuck(socket: &Path, export: &str) -> Client {
        let mut client = Client::new(socket, export);
        for index in 0..32 {
            client.send(READ, 0, index << 20, 1 << 20, &[]).expect("a request is taken");
        }
        // The first bytes of a reply: from here on the server has replies that the socket can't
        // take.
        client.read_some();
        client
    }

    /// Does the handshake with `NBD_OPT_GO`.
    pub fn over(mut stream: impl Stream + 'static, export: &str) -> io::Result<Client> {
        greet(&mut stream)?;
        let mut data = (export.len() as u32).to_be_bytes().to_vec();
        data.extend(export.as_bytes());
        data.extend([0, 0]);
        stream.write_all(&option(7, &data))?;
        let (mut size, mut flags) = (0, 0);
        loop {
            let (kind, data) = option_reply(&mut stream)?;
            match kind {
                1 => break,
                // NBD_INFO_EXPORT
                3 if data[..2] == [0, 0] => {
                    size = u64::from_be_bytes(data[2..10].try_into().expect("8 bytes"));
                    flags = u16::from_be_bytes([data[10], data[11]]);
                }
                3 => {}
                other => return Err(io::Error::other(format!("the reply to GO was {other:#x}"))),
            }
        }
        Ok(Client { stream: Box::new(stream), size, flags, cookie: 0 })
    }

    /// Sends a request without waiting for its reply.
    pub fn send(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> io::Result<u64> {
        self.cookie += 1;
        let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend(data);
        self.stream.write_all(&bytes)?;
        Ok(self.cookie)
    }

    /// Sends bytes unchanged.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Receives one reply: the cookie and the error number. `length` bytes of data follow a
    /// successful read.
    pub fn receive(&mut self, length: u32) -> io::Result<(u64, Result<Vec<u8>, u32>)> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        assert_eq!(head[..4], SIMPLE_REPLY_MAGIC.to_be_bytes());
        let error = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
        let cookie = u64::from_be_bytes(head[8..16].try_into().expect("8 bytes"));
        if error != 0 {
            return Ok((cookie, Err(error)));
        }
        let mut data = vec![0; length as usize];
        self.stream.read_exact(&mut data)?;
        Ok((cookie, Ok(data)))
    }

    /// Reads at least one byte.
    pub fn read_some(&mut self) {
        let mut byte = [0];
        self.stream.read_exact(&mut byte).expect("a server that answers");
    }

    /// Returns true if the connection has ended: nothing more can be read.
    pub fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        match self.stream.read(&mut byte) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    #[track_caller]
    fn call(
        &mut self,
        command: u16,
        flags: u16,
        at: u64,
        len: u32,
        data: &[u8],
    ) -> Result<Vec<u8>, u32> {
        let sent = self.send(command, flags, at, len, data).expect("a server that listens");
        let answer = if command == READ { len } else { 0 };
        let (cookie, result) = self.receive(answer).expect("a server that answers");
        assert_eq!(cookie, sent);
        result
    }

    #[track_caller]
    pub fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, u32> {
        self.call(READ, 0, offset, length, &[])
    }

    #[track_caller]
    pub fn write(&mut self, offset: u64, data: &[u8], flags: u16) -> Result<(), u32> {
        self.call(WRITE, flags, offset, data.len() as u32, data).map(drop)
    }

    #[track_caller]
    pub fn flush(&mut self) -> Result<(), u32> {
        self.call(FLUSH, 0, 0, 0, &[]).map(drop)
    }

    #[track_caller]
    pub fn command(&mut self, command: u16, offset: u64, length: u32) -> Result<(), u32> {
        self.call(command, 0, offset, length, &[]).map(drop)
    }
}

/// Returns bytes that depend on the seed alone, and differ from those of other seeds.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}
