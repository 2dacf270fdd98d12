//! A served connection in this process, and the target that feeds it whole conversations.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use corewise_nbd::handshake::Handshake;
use corewise_nbd::wire::{
    BASE_ALLOCATION, Command, CommandFlags, Form, GREETING_LEN, GoRequest, Greeting, MetaRequest,
    OPTION_REPLY_HEADER_LEN, OptionHeader, OptionKind, OptionReplyHeader, OptionReplyKind, Request,
    SIMPLE_REPLY_LEN,
};
use corewise_nbd::{Export, Options, Server};

use crate::device::Device;

/// Longest input; more is cut off, so it fits into the socket at once and the replies stay bounded.
pub(crate) const MOST_INPUT: usize = 8 << 10;
/// Timeout, longer than any answer takes: a server that exceeds it hangs.
const HANG: Duration = Duration::from_secs(20);

/// Returns a server with one export, "disk", over this device.
pub(crate) fn server(device: Arc<Device>, read_only: bool) -> Server {
    let server = Server::new(Options::new().extended_headers(true));
    let export = Export::new("disk", device).read_only(read_only);
    server.add_export(export).expect("the name is free");
    server
}

/// Sends everything in pieces of `piece` bytes, then reads to the end of the stream.
pub(crate) fn exchange(server: &Server, input: &[u8], piece: usize) -> Vec<u8> {
    let (mut ours, theirs) = UnixStream::pair().expect("a socket pair");
    ours.set_read_timeout(Some(HANG)).expect("a timeout above zero");
    server.serve(theirs).expect("there is room for one client");
    // The server may have hung up already.
    let _ = input.chunks(piece).try_for_each(|piece| ours.write_all(piece));
    let _ = ours.shutdown(Shutdown::Write);
    let mut output = Vec::new();
    match ours.read_to_end(&mut output) {
        Ok(_) => {}
        // The server closed with bytes of ours unread; everything it had sent is in `output`.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the server doesn't end the connection: {error}"),
    }
    output
}

/// Returns the bytes that choose the export, and perhaps a form of messages and block status
/// before.
pub(crate) fn good_handshake(form: Form, contexts: bool) -> Vec<u8> {
    let mut out = 3_u32.to_be_bytes().to_vec();
    let mut option = |option: OptionKind, data: &[u8]| {
        let length = u32::try_from(data.len()).expect("a short name");
        out.extend_from_slice(&OptionHeader { option, length }.encode());
        out.extend_from_slice(data);
    };
    match form {
        Form::Simple => {}
        Form::Structured => option(OptionKind::STRUCTURED_REPLY, &[]),
        Form::Extended => option(OptionKind::EXTENDED_HEADERS, &[]),
    }
    if contexts {
        let contexts = MetaRequest::encode("disk", &[BASE_ALLOCATION]);
        option(OptionKind::SET_META_CONTEXT, &contexts);
    }
    option(OptionKind::GO, &GoRequest::encode("disk", &[]));
    out
}

/// Returns the server's bytes behind the handshake.
pub(crate) fn behind_handshake(output: &[u8]) -> &[u8] {
    let mut rest = &output[GREETING_LEN..];
    loop {
        let (head, behind) =
            rest.split_first_chunk::<OPTION_REPLY_HEADER_LEN>().expect("an answer to GO");
        let head = OptionReplyHeader::decode(head).expect("answers to options have heads");
        assert!(!head.kind.is_error(), "{head:?} to a good handshake");
        rest = &behind[head.length as usize..];
        if head.option == OptionKind::GO && head.kind == OptionReplyKind::ACK {
            return rest;
        }
    }
}

/// Sends these bytes as a whole connection, from the client flags on.
///
/// # Panics
/// If the server doesn't end the connection, touches a device that wasn't chosen, or serves the
/// next client no more.
pub fn connection(data: &[u8]) {
    let data = &data[..data.len().min(MOST_INPUT)];
    let device = Device::new();
    let server = server(device.clone(), false);
    let output = exchange(&server, data, MOST_INPUT);
    let greeting = output.first_chunk::<GREETING_LEN>().expect("the greeting comes first");
    assert_eq!(*greeting, Handshake::greeting());
    assert!(Greeting::decode(greeting).is_ok());

    // Each option that can choose the device contains the name of the export, or asks for the
    // default one by an empty name.
    let names_it = data.windows(4).any(|window| window == b"disk");
    let empty_name = data
        .windows(8)
        .any(|window| window == [0, 0, 0, 1, 0, 0, 0, 0] || window[..4] == [0, 0, 0, 7]);
    if !names_it && !empty_name {
        assert_eq!(device.requests(), 0, "the device was used without having been chosen");
    }

    let read = Request {
        flags: CommandFlags::empty(),
        command: Command::READ,
        cookie: 7,
        offset: 512,
        length: 512,
    };
    let expected = device.bytes()[512..1024].to_vec();
    let input = [&good_handshake(Form::Simple, false)[..], &read.encode()[..]].concat();
    let output = exchange(&server, &input, MOST_INPUT);
    let reply = behind_handshake(&output);
    assert_eq!(reply.len(), SIMPLE_REPLY_LEN + 512, "the next client isn't served");
    assert_eq!(reply[SIMPLE_REPLY_LEN..], expected);
}
