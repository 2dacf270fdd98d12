//! Clients that send garbage, die, or ask for what isn't there: their own connection pays, and
//! nobody else notices.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io::{Read, Write};

use crate::common::Folder;
use crate::common::client::{
    Client, EINVAL, ENOSPC, EPERM, FLUSH, READ, TRIM, WRITE, WRITE_ZEROES, connect, connect_tcp,
    greet, option, option_reply, pattern,
};
use crate::common::server::Server;

const MIB: u64 = 1 << 20;

struct Fixture {
    /// Declared before the folder: the server is killed before its files go.
    server: Server,
    /// A client that does nothing wrong, and has data at offset 0.
    bystander: Client,
    data: Vec<u8>,
    _folder: Folder,
}

impl Fixture {
    fn new() -> Fixture {
        let folder = Folder::new();
        folder.write(
            "up.toml",
            "[[device]]\nname = \"m\"\ndriver = \"memory\"\nsize = \"4M\"\n\
             [[export]]\ndevice = \"m\"\n[[export]]\nname = \"ro\"\ndevice = \"m\"\n\
             read_only = true\n[server]\nunix = \"s\"\ntcp = 0\n",
        );
        let server = Server::start(&folder, &["up.toml"]);
        let mut bystander = Client::new(&server.socket(), "m");
        let data = pattern(1, 65536);
        bystander.write(0, &data, 0).unwrap();
        Fixture { server, bystander, data, _folder: folder }
    }

    /// Checks that the bystander's data is there, that new clients get in, and that the server ends
    /// well.
    #[track_caller]
    fn nobody_noticed(mut self) {
        assert!(self.bystander.read(0, 65536).unwrap() == self.data, "the data has changed");
        self.bystander.write(0, &pattern(2, 4096), 0).unwrap();
        let mut newcomer = Client::new(&self.server.socket(), "m");
        assert!(newcomer.read(0, 4096).unwrap() == pattern(2, 4096));
        drop((newcomer, self.bystander));
        let ran = self.server.stop().ok();
        assert!(!ran.stderr.contains("panicked"), "{ran}");
    }
}

#[test]
fn garbage_instead_of_a_handshake() {
    let fixture = Fixture::new();
    for seed in 0..16 {
        for length in [1, 3, 4, 5, 20, 400, 70_000] {
            let mut stream = connect(&fixture.server.socket());
            // The server may hang up before the end.
            let _ = stream.write_all(&pattern(seed, length));
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
        }
    }
    let mut stream = connect_tcp(&fixture.server.tcp());
    let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    fixture.nobody_noticed();
}

#[test]
fn garbage_instead_of_an_option() {
    let fixture = Fixture::new();
    for seed in 0..16 {
        let mut stream = connect(&fixture.server.socket());
        greet(&mut stream).unwrap();
        let _ = stream.write_all(&pattern(seed, 64));
        let mut answer = Vec::new();
        // The connection ends, with an error reply or without.
        let _ = stream.read_to_end(&mut answer);
    }
    fixture.nobody_noticed();
}

#[test]
fn an_unknown_option_and_an_unknown_export_leave_the_handshake_usable() {
    let fixture = Fixture::new();
    let mut stream = connect(&fixture.server.socket());
    greet(&mut stream).unwrap();
    stream.write_all(&option(4711, b"what is this")).unwrap();
    // NBD_REP_ERR_UNSUP
    assert_eq!(option_reply(&mut stream).unwrap().0, 0x8000_0001);
    let mut data = 4u32.to_be_bytes().to_vec();
    data.extend(b"nope\0\0");
    stream.write_all(&option(7, &data)).unwrap();
    // NBD_REP_ERR_UNKNOWN
    assert_eq!(option_reply(&mut stream).unwrap().0, 0x8000_0006);
    // A name that is longer than the data that should hold it: NBD_REP_ERR_INVALID
    stream.write_all(&option(7, &[0, 0, 1, 0, b'm', 0, 0])).unwrap();
    assert_eq!(option_reply(&mut stream).unwrap().0, 0x8000_0003);
    stream.write_all(&option(7, &[0, 0, 0, 1, b'm', 0, 0])).unwrap();
    let mut kinds = Vec::new();
    while kinds.last() != Some(&1) {
        kinds.push(option_reply(&mut stream).unwrap().0);
    }
    fixture.nobody_noticed();
}

#[test]
fn garbage_instead_of_a_request() {
    let fixture = Fixture::new();
    for seed in 0..16 {
        let mut client = Client::new(&fixture.server.socket(), "m");
        client.send_raw(&pattern(seed, 28)).unwrap();
        assert!(client.is_closed(), "a connection can't go on after a wrong magic");
    }
    fixture.nobody_noticed();
}

#[test]
fn death_in_the_midst_of_a_request() {
    let fixture = Fixture::new();
    for promised in [512, 65536, MIB as u32] {
        for sent in [0, 1, 511] {
            let mut client = Client::new(&fixture.server.socket(), "m");
            // A write whose data never comes in full must not change anything.
            client.send(WRITE, 0, 0, promised, &pattern(7, sent)).unwrap();
            drop(client);
        }
        let mut client = Client::new(&fixture.server.socket(), "m");
        client.send_raw(&[0x25, 0x60, 0x95]).unwrap();
        drop(client);
    }
    fixture.nobody_noticed();
}

#[test]
fn death_with_many_replies_outstanding() {
    let fixture = Fixture::new();
    for _ in 0..4 {
        let mut client = Client::new(&fixture.server.socket(), "m");
        for index in 0..64 {
            // Replies fill the socket that nobody reads; so the server stops reading requests.
            if client.send(READ, 0, index % 4 * MIB, MIB as u32, &[]).is_err() {
                break;
            }
        }
        drop(client);
    }
    fixture.nobody_noticed();
}

#[test]
fn beyond_the_end() {
    let fixture = Fixture::new();
    let mut client = Client::new(&fixture.server.socket(), "m");
    let end = client.size;
    assert_eq!(end, 4 * MIB);
    for (offset, length) in [(end, 512), (end - 512, 1024), (u64::MAX - 511, 512), (1 << 62, 4096)]
    {
        assert_eq!(client.read(offset, length), Err(EINVAL), "read at {offset}");
        assert_eq!(client.write(offset, &pattern(1, length as usize), 0), Err(ENOSPC));
        assert_eq!(client.command(TRIM, offset, length), Err(EINVAL), "trim at {offset}");
        assert_eq!(client.command(WRITE_ZEROES, offset, length), Err(ENOSPC));
    }
    // The same connection goes on.
    client.write(end - 512, &pattern(3, 512), 0).unwrap();
    assert!(client.read(end - 512, 512).unwrap() == pattern(3, 512));
    fixture.nobody_noticed();
}

#[test]
fn commands_that_do_not_exist_and_flags_that_mean_nothing() {
    let fixture = Fixture::new();
    let mut client = Client::new(&fixture.server.socket(), "m");
    assert_eq!(client.command(99, 0, 512), Err(EINVAL));
    let cookie = client.send(READ, 1 << 15, 0, 512, &[]).unwrap();
    assert_eq!(client.receive(512).unwrap(), (cookie, Err(EINVAL)));
    assert!(client.read(100, 500).is_ok(), "no block of the device begins or ends there");
    assert!(client.read(0, 512).is_ok());
    fixture.nobody_noticed();
}

#[test]
fn a_write_too_large_to_be_meant() {
    let fixture = Fixture::new();
    let mut client = Client::new(&fixture.server.socket(), "m");
    client.send(WRITE, 0, 0, u32::MAX, &pattern(5, 4096)).unwrap();
    assert!(client.is_closed(), "4 GiB must not be waited for");
    fixture.nobody_noticed();
}

#[test]
fn changes_of_a_read_only_export() {
    let fixture = Fixture::new();
    let mut client = Client::new(&fixture.server.socket(), "ro");
    assert!(client.flags & 1 << 1 != 0, "the export says that it is read-only");
    assert_eq!(client.write(0, &pattern(4, 512), 0), Err(EPERM));
    for command in [TRIM, WRITE_ZEROES] {
        assert_eq!(client.command(command, 0, 512), Err(EPERM), "command {command}");
    }
    assert!(client.read(0, 65536).unwrap() == fixture.data);
    let _ = client.command(FLUSH, 0, 0);
    fixture.nobody_noticed();
}

#[test]
fn clients_that_only_hold_the_line_do_not_keep_others_out() {
    let fixture = Fixture::new();
    let silent: Vec<_> = (0..64).map(|_| connect(&fixture.server.socket())).collect();
    let mut half: Vec<_> = (0..64).map(|_| connect(&fixture.server.socket())).collect();
    for stream in &mut half {
        greet(stream).unwrap();
    }
    let mut newcomer = Client::new(&fixture.server.socket(), "m");
    assert!(newcomer.read(0, 512).is_ok());
    drop(newcomer);
    // The clients are still there when the server stops: it must not wait for them.
    fixture.nobody_noticed();
    drop((silent, half));
}
