//! Tests of replies that panic while they are made: a cookie triggers the panic in this crate's
//! tests.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use corewise_blockmq::{BlockDevice, Extent, ExtentKind, Geometry, IoError, Op, Request};

use crate::export::Export;
use crate::handshake::Handshake;
use crate::server::{Options, Server};
use crate::wire::{
    self, Command, CommandFlags, Form, GoRequest, MetaRequest, OptionHeader, OptionKind, ReplyError,
};

/// Cookie of a request whose reply panics.
pub(super) const PANICS: u64 = 0x7061_6e69_6373;

/// A device of zeroes, of which every other 64 KiB are a hole.
struct Holes;

impl BlockDevice for Holes {
    fn name(&self) -> &str {
        "holes"
    }

    fn geometry(&self) -> Geometry {
        Geometry::new(1 << 20)
    }

    fn submit(&self, mut rq: Request) {
        match rq.op() {
            Op::Read => _ = rq.put(&vec![0; rq.len() as usize]),
            Op::Extents => {
                for kind in [ExtentKind::Hole, ExtentKind::Data].into_iter().cycle() {
                    if !rq.put_extent(Extent { len: 64 << 10, kind }) {
                        break;
                    }
                }
            }
            _ => {}
        }
        rq.complete(Ok::<(), IoError>(()));
    }
}

fn option(kind: OptionKind, data: &[u8]) -> Vec<u8> {
    let head = OptionHeader { option: kind, length: data.len() as u32 };
    [&head.encode()[..], data].concat()
}

#[test]
fn an_answer_that_panics_in_the_making_is_an_error_at_once_and_the_connection_goes_on() {
    let server = Server::new(Options { extended_headers: true, ..Options::default() });
    server.add_export(Export::new("disk", Arc::new(Holes))).unwrap();
    let (mut client, theirs) = UnixStream::pair().unwrap();
    client.set_read_timeout(Some(std::time::Duration::from_secs(300))).unwrap();
    server.serve(theirs).unwrap();
    let contexts = MetaRequest::encode("disk", &[wire::BASE_ALLOCATION]);
    let hello = [
        3_u32.to_be_bytes().to_vec(),
        option(OptionKind::EXTENDED_HEADERS, &[]),
        option(OptionKind::SET_META_CONTEXT, &contexts),
        option(OptionKind::GO, &GoRequest::encode("disk", &[])),
    ];
    client.write_all(&hello.concat()).unwrap();
    let take = |client: &mut UnixStream, len: usize| {
        let mut bytes = vec![0; len];
        client.read_exact(&mut bytes).unwrap();
        bytes
    };
    take(&mut client, Handshake::greeting().len());
    loop {
        let head = take(&mut client, wire::OPTION_REPLY_HEADER_LEN);
        let head = wire::OptionReplyHeader::decode(head[..].try_into().unwrap()).unwrap();
        take(&mut client, head.length as usize);
        if (head.option, head.kind) == (OptionKind::GO, wire::OptionReplyKind::ACK) {
            break;
        }
    }
    let mut ask = |cookie, command, offset, length| {
        let request =
            wire::Request { flags: CommandFlags::empty(), command, cookie, offset, length };
        client.write_all(&request.encode_extended()).unwrap();
        let mut error = None;
        loop {
            let head = take(&mut client, Form::Extended.chunk_len());
            let chunk = wire::Chunk::decode_extended(head[..].try_into().unwrap()).unwrap();
            let data = take(&mut client, chunk.length as usize);
            assert_eq!(chunk.tag.cookie, cookie);
            if chunk.kind.is_error() {
                error = Some(wire::decode_error(chunk.kind, &data).unwrap().error);
            }
            if chunk.flags.contains(wire::ReplyFlags::DONE) {
                return error;
            }
        }
    };
    for (command, offset, length) in [
        (Command::READ, 0, 4096),
        (Command::READ, 3, 100),
        (Command::READ, 0, 512 << 10),
        (Command::READ, 0, 1 << 20),
        (Command::BLOCK_STATUS, 0, 1 << 20),
        (Command::BLOCK_STATUS, 3, 1000),
        (Command::TRIM, 0, 4096),
        (Command::WRITE_ZEROES, 0, 1 << 20),
        (Command::FLUSH, 0, 0),
    ] {
        let failed = ask(PANICS, command, offset, length);
        assert_eq!(failed, Some(ReplyError::Io.code()), "{command:?} {offset} {length}");
        assert_eq!(ask(7, command, offset, length), None, "{command:?} {offset} {length}");
    }
}
