//! The least work of an NBD server for a read: one call receives the request, one sends the reply.
//! The CPU time of this server is the kernel's, and no server on sockets takes less.
//!
//! `cargo run --release -p bench-peers --example nbd_floor -- SOCKET`, and fio with
//! `--ioengine=nbd --size=64M --uri=nbd+unix:///?socket=SOCKET`, one request at a time.

use std::io::{self, IoSlice, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::{env, thread};

/// Bytes of the volume, in memory.
const SIZE: usize = 64 << 20;

fn main() -> io::Result<()> {
    let path = env::args().nth(1).ok_or_else(|| io::Error::other("say where it listens"))?;
    let volume: &'static [u8] = vec![7; SIZE].leak();
    for stream in UnixListener::bind(path)?.incoming() {
        let stream = stream?;
        // A client that leaves ends its thread by an error.
        thread::spawn(move || serve(stream, volume));
    }
    Ok(())
}

fn serve(mut stream: UnixStream, volume: &[u8]) -> io::Result<()> {
    // The old handshake gives the size, and says that the volume is read-only.
    let mut greeting = b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53".to_vec();
    greeting.extend((SIZE as u64).to_be_bytes());
    greeting.extend(3_u32.to_be_bytes());
    greeting.resize(152, 0);
    stream.write_all(&greeting)?;
    let mut request = [0; 28];
    loop {
        stream.read_exact(&mut request)?;
        let number =
            |at: usize| request[at..at + 4].iter().fold(0, |n, b| n << 8 | usize::from(*b));
        if request[7] != 0 {
            return Ok(());
        }
        let mut head = (0x6744_6698_u64 << 32).to_be_bytes().repeat(2);
        head[8..].copy_from_slice(&request[8..16]);
        let data = &volume[number(20)..][..number(24)];
        let sent = stream.write_vectored(&[IoSlice::new(&head), IoSlice::new(data)])?;
        if sent < head.len() + data.len() {
            return Err(io::Error::other("more than one request at a time"));
        }
    }
}
