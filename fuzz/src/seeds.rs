//! The seed inputs, as code: `cargo run -p corewise-fuzz --bin seeds` writes them to `corpus/`.
//!
//! Beside ordinary conversations they hold the patterns of bugs in other NBD servers; each is named
//! after its bug.

use corewise_nbd::wire::{
    BASE_ALLOCATION, Command, CommandFlags, GoRequest, InfoKind, MetaRequest, OptionHeader,
    OptionKind, Request, StatusQuery,
};

use crate::transmission as form;

/// A seed: its file name, and its bytes.
pub type Seed = (&'static str, Vec<u8>);

fn option(option: OptionKind, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
    [&OptionHeader { option, length }.encode()[..], data].concat()
}

fn lying(option: OptionKind, length: u32, data: &[u8]) -> Vec<u8> {
    [&OptionHeader { option, length }.encode()[..], data].concat()
}

fn go(name: &str) -> Vec<u8> {
    option(OptionKind::GO, &GoRequest::encode(name, &[InfoKind::BLOCK_SIZE]))
}

fn info(name: &str) -> Vec<u8> {
    let all = [InfoKind::NAME, InfoKind::DESCRIPTION, InfoKind::BLOCK_SIZE, InfoKind(9)];
    option(OptionKind::INFO, &GoRequest::encode(name, &all))
}

fn flags(flags: u32) -> Vec<u8> {
    flags.to_be_bytes().to_vec()
}

fn request(command: Command, offset: u64, length: u32) -> Vec<u8> {
    with(CommandFlags::empty(), command, offset, length)
}

fn with(flags: CommandFlags, command: Command, offset: u64, length: u32) -> Vec<u8> {
    let length = length.into();
    Request { flags, command, cookie: 1, offset, length }.encode().to_vec()
}

fn extended(command: Command, offset: u64, length: u64) -> Vec<u8> {
    extended_with(CommandFlags::empty(), command, offset, length)
}

fn extended_with(flags: CommandFlags, command: Command, offset: u64, length: u64) -> Vec<u8> {
    Request { flags, command, cookie: 1, offset, length }.encode_extended().to_vec()
}

/// Returns an extended request with a payload.
fn carrying(command: Command, offset: u64, data: &[u8]) -> Vec<u8> {
    let head = extended_with(CommandFlags::PAYLOAD_LEN, command, offset, data.len() as u64);
    [&head[..], data].concat()
}

fn write(offset: u64, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
    [&request(Command::WRITE, offset, length)[..], data].concat()
}

/// Returns the seeds for the handshake.
pub fn handshake() -> Vec<Seed> {
    let mut long_name = 0xffff_ffff_u32.to_be_bytes().to_vec();
    long_name.extend_from_slice(b"disk\0\0");
    let mut name_behind_end = 4096_u32.to_be_bytes().to_vec();
    name_behind_end.extend_from_slice(&[b'x'; 40]);
    vec![
        (
            "list-info-go",
            [flags(3), option(OptionKind::LIST, &[]), info("disk"), go("disk")].concat(),
        ),
        ("export-name", [flags(0), option(OptionKind::EXPORT_NAME, b"other")].concat()),
        ("no-place-and-then-another", [flags(3), go("full"), go("secret"), go("disk")].concat()),
        (
            "no-place-for-an-old-client",
            [flags(1), option(OptionKind::EXPORT_NAME, b"full")].concat(),
        ),
        ("abort", [flags(3), option(OptionKind::ABORT, &[])].concat()),
        ("unknown-flags", flags(0xffff_ffff)),
        ("many-lists", [flags(1), option(OptionKind::LIST, &[]).repeat(90)].concat()),
        // The bug opened a device for clients that never named one.
        ("cve-2019-14850-leaves-before-choosing", [flags(3), info("disk")].concat()),
        // Options in an unusual order ran into an assertion.
        (
            "cve-2019-14851-info-of-one-go-of-another",
            [flags(3), info("disk"), info("other"), info("nope"), go("other")].concat(),
        ),
        // State from before STARTTLS lived on behind it.
        (
            "cve-2021-3716-structured-reply-before-starttls",
            [
                flags(3),
                option(OptionKind::STRUCTURED_REPLY, &[]),
                option(OptionKind::STARTTLS, &[]),
                go("disk"),
            ]
            .concat(),
        ),
        // The length of the name was added to another one unchecked.
        (
            "cve-2022-26495-name-length-wraps",
            [flags(3), option(OptionKind::GO, &long_name)].concat(),
        ),
        // A name longer than the buffer on the stack.
        (
            "cve-2022-26496-name-behind-its-end",
            [flags(3), option(OptionKind::INFO, &name_behind_end)].concat(),
        ),
        // A client stays in its handshake while the server is removed.
        ("cve-2024-7409-half-open", [flags(3), lying(OptionKind::LIST, 100, b"")].concat()),
        (
            "contexts",
            [
                flags(3),
                option(OptionKind::LIST_META_CONTEXT, &MetaRequest::encode("disk", &[])),
                option(OptionKind::STRUCTURED_REPLY, &[]),
                option(OptionKind::LIST_META_CONTEXT, &MetaRequest::encode("disk", &["base:"])),
                option(
                    OptionKind::SET_META_CONTEXT,
                    &MetaRequest::encode("disk", &["x-none:", BASE_ALLOCATION]),
                ),
                go("disk"),
            ]
            .concat(),
        ),
        (
            "contexts-without-end",
            [
                flags(3),
                option(OptionKind::STRUCTURED_REPLY, &[]),
                option(OptionKind::SET_META_CONTEXT, b"\0\0\0\x04disk\xff\xff\xff\xff\0\0\0\0"),
            ]
            .concat(),
        ),
        (
            "extended-headers",
            [
                flags(3),
                option(OptionKind::EXTENDED_HEADERS, &[0]),
                option(OptionKind::STRUCTURED_REPLY, &[]),
                option(OptionKind::EXTENDED_HEADERS, &[]),
                option(OptionKind::STRUCTURED_REPLY, &[]),
                option(
                    OptionKind::SET_META_CONTEXT,
                    &MetaRequest::encode("disk", &[BASE_ALLOCATION]),
                ),
                go("disk"),
            ]
            .concat(),
        ),
        (
            "extended-headers-by-name",
            [
                flags(3),
                option(OptionKind::EXTENDED_HEADERS, &[]),
                option(OptionKind::EXPORT_NAME, b"disk"),
            ]
            .concat(),
        ),
        ("option-of-4-gib", [flags(3), lying(OptionKind(77), u32::MAX, b"data")].concat()),
    ]
}

/// Returns the seeds for the transmission phase: each with simple replies, and with structured
/// ones; and every command in further forms.
pub fn transmission() -> Vec<Seed> {
    let with = |form: u8, bytes: &[u8]| [&[form], bytes].concat();
    let mut seeds = Vec::new();
    for (name, bytes) in requests() {
        seeds.push((name, with(0, &bytes)));
        let structured = format!("structured-{name}").leak();
        seeds.push((structured, with(form::STRUCTURED, &bytes)));
        if name == "every-command" {
            let no_contexts = form::STRUCTURED | form::NO_CONTEXTS;
            seeds.push(("every-command-without-contexts", with(no_contexts, &bytes)));
            let read_only = form::STRUCTURED | form::READ_ONLY;
            seeds.push(("every-command-read-only", with(read_only, &bytes)));
            seeds.push(("every-command-plain-in-pieces", with(form::PLAIN | 0x60, &bytes)));
        }
    }
    let large = form::STRUCTURED | form::LARGE;
    seeds.push(("holes-of-a-large-device", with(large, &holes())));
    for (name, bytes) in extended_requests() {
        seeds.push((name, with(form::EXTENDED, &bytes)));
        if name == "extended-every-command" {
            let in_pieces = form::EXTENDED | form::NO_CONTEXTS | 0x40;
            seeds.push(("extended-without-contexts-in-pieces", with(in_pieces, &bytes)));
        }
    }
    let large = form::EXTENDED | form::LARGE;
    seeds.push(("extended-holes-of-a-large-device", with(large, &extended_holes())));
    seeds
}

/// Returns reads that find holes, and requests that arrive in pieces.
fn holes() -> Vec<u8> {
    let all = 640 << 10;
    [
        request(Command::READ, 0, 256 << 10),
        with(CommandFlags::DF, Command::READ, 0, 256 << 10),
        request(Command::READ, 64 << 10, 64 << 10),
        request(Command::BLOCK_STATUS, 0, all),
        request(Command::WRITE_ZEROES, 0, all),
        request(Command::READ, 512, 512 << 10),
        request(Command::TRIM, 0, all),
        request(Command::CACHE, 0, all),
        request(Command::READ, 0, all),
    ]
    .concat()
}

fn extended_holes() -> Vec<u8> {
    let all = 640 << 10;
    [
        extended(Command::READ, 0, 256 << 10),
        extended(Command::BLOCK_STATUS, 0, all),
        extended(Command::WRITE_ZEROES, 0, all),
        extended(Command::TRIM, 0, all),
        extended(Command::READ, 512, 512 << 10),
    ]
    .concat()
}

fn extended_requests() -> Vec<Seed> {
    let query = |length, context| StatusQuery { length, context }.encode();
    let status = Command::BLOCK_STATUS;
    vec![
        (
            "extended-every-command",
            [
                carrying(Command::WRITE, 4096, &[3; 600]),
                extended_with(CommandFlags::FUA, Command::WRITE_ZEROES, 0, 512),
                extended(Command::TRIM, 512, 512),
                extended(Command::READ, 0, 16384),
                extended(Command::CACHE, 0, 512),
                extended_with(CommandFlags::DF, Command::READ, 0, 16384),
                extended(status, 0, 16384),
                extended_with(CommandFlags::REQ_ONE, status, 512, 4096),
                carrying(status, 512, &query(4096, 1)),
                extended(Command::FLUSH, 0, 0),
                extended(Command::DISC, 0, 0),
            ]
            .concat(),
        ),
        (
            "extended-64-bit-lengths",
            [Command::READ, Command::TRIM, Command::CACHE, Command::WRITE_ZEROES, status]
                .iter()
                .flat_map(|&command| {
                    [(0, 1 << 63), (512, u64::MAX - 511), (1 << 63, 1 << 63), (0, 1 << 32)]
                        .map(|(offset, length)| extended(command, offset, length))
                })
                .collect::<Vec<_>>()
                .concat(),
        ),
        (
            "extended-queries",
            [
                carrying(status, 0, &query(16384, 2)),
                carrying(status, 0, &query(u64::MAX, 1)),
                carrying(status, 0, &[&query(512, 1)[..], &[0, 0, 0, 1]].concat()),
                carrying(status, 0, &[0; 8]),
                carrying(status, 0, &[0; 3]),
                extended_with(CommandFlags::PAYLOAD_LEN, status, 0, 12),
            ]
            .concat(),
        ),
        (
            "extended-payloads-of-others",
            [
                carrying(Command::READ, 0, &[0x21; 64]),
                carrying(Command::TRIM, 0, &[0x21; 3]),
                extended(Command::WRITE, 0, 512),
                extended_with(CommandFlags::PAYLOAD_LEN, Command::TRIM, 0, 1 << 40),
                extended(Command::READ, 0, 512),
            ]
            .concat(),
        ),
        (
            "extended-and-then-compact",
            [extended(Command::READ, 0, 512), request(Command::READ, 0, 512)].concat(),
        ),
    ]
}

fn requests() -> Vec<Seed> {
    let all = u32::MAX;
    let fua = CommandFlags::FUA;
    vec![
        (
            "write-read-flush",
            [
                write(512, &[7; 1024]),
                request(Command::READ, 0, 2048),
                request(Command::FLUSH, 0, 0),
            ]
            .concat(),
        ),
        (
            "every-command",
            [
                write(4096, &[3; 512]),
                with(fua, Command::WRITE_ZEROES, 0, 512),
                request(Command::TRIM, 512, 512),
                with(fua | CommandFlags::NO_HOLE, Command::WRITE_ZEROES, 1024, 1024),
                request(Command::READ, 0, 16384),
                request(Command::CACHE, 0, 512),
                with(CommandFlags::FAST_ZERO, Command::WRITE_ZEROES, 2048, 2048),
                with(CommandFlags::DF, Command::READ, 0, 16384),
                request(Command::BLOCK_STATUS, 0, 16384),
                with(CommandFlags::REQ_ONE, Command::BLOCK_STATUS, 512, 4096),
                request(Command::DISC, 0, 0),
                request(Command::READ, 0, 512),
            ]
            .concat(),
        ),
        (
            "beyond-the-end",
            [
                request(Command::READ, 16384, 512),
                write(16384 - 512, &[1; 1024]),
                request(Command::READ, u64::MAX - 511, 1024),
                request(Command::READ, 0, 512),
            ]
            .concat(),
        ),
        (
            "unaligned-and-empty",
            [
                request(Command::READ, 1, 512),
                write(3, &[1; 100]),
                request(Command::READ, 512, 0),
                write(512, &[]),
            ]
            .concat(),
        ),
        (
            "read-of-4-gib",
            [request(Command::READ, 0, all), request(Command::READ, 0, 512)].concat(),
        ),
        (
            "write-of-4-gib",
            [request(Command::READ, 0, 512), request(Command::WRITE, 0, all), vec![0; 600]]
                .concat(),
        ),
        (
            "write-cut-off",
            [write(0, &[9; 512]), request(Command::WRITE, 512, 4096), vec![1; 100]].concat(),
        ),
        ("refused-write-cut-off", [request(Command::WRITE, 1, 4096), vec![1; 100]].concat()),
        ("bad-magic", [request(Command::READ, 0, 512), vec![0x25; 64]].concat()),
        ("many-reads", request(Command::READ, 0, 16384).repeat(200)),
        // Off by one at a status of the whole 32-bit range.
        (
            "cve-2025-47711-block-status-of-everything",
            [request(Command::BLOCK_STATUS, 0, all), request(Command::BLOCK_STATUS, 0, all - 511)]
                .concat(),
        ),
        // Rounding the length up overflowed 32 bits.
        (
            "cve-2025-47712-block-status-rounds-up",
            [
                request(Command::BLOCK_STATUS, 1, all),
                with(CommandFlags::REQ_ONE, Command::BLOCK_STATUS, 511, all - 1),
                request(Command::WRITE_ZEROES, 1, all),
            ]
            .concat(),
        ),
    ]
}

/// Returns the seeds for whole connections.
pub fn connection() -> Vec<Seed> {
    let begin = || [flags(3), go("disk")].concat();
    vec![
        (
            "go-write-read-disc",
            [
                begin(),
                write(0, &[5; 512]),
                request(Command::READ, 0, 1024),
                request(Command::DISC, 0, 0),
            ]
            .concat(),
        ),
        ("default-export", [flags(3), go(""), request(Command::READ, 0, 512)].concat()),
        (
            "old-client",
            [flags(0), option(OptionKind::EXPORT_NAME, b"disk"), request(Command::READ, 0, 512)]
                .concat(),
        ),
        ("requests-before-choosing", [flags(3), request(Command::READ, 0, 512)].concat()),
        ("choosing-twice", [begin(), go("disk")].concat()),
        ("nothing", Vec::new()),
        (
            "extended-headers",
            [
                flags(3),
                option(OptionKind::EXTENDED_HEADERS, &[]),
                go("disk"),
                carrying(Command::WRITE, 0, &[5; 512]),
                extended(Command::READ, 0, 1024),
                request(Command::READ, 0, 512),
            ]
            .concat(),
        ),
        ("web-browser", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
        (
            "leaves-with-replies-unread",
            [begin(), request(Command::READ, 0, 16384).repeat(80)].concat(),
        ),
    ]
}

/// Returns the seeds of every target, by the names of their corpora.
pub fn all() -> [(&'static str, Vec<Seed>); 12] {
    [
        ("handshake", handshake()),
        ("transmission", transmission()),
        ("connection", connection()),
        ("topology", crate::topology::seeds()),
        ("partition_table", crate::partition_table::seeds()),
        ("luks", crate::luks::seeds()),
        ("overlay", crate::overlay::seeds()),
        ("checkpoint_record", crate::checkpoint_record::seeds()),
        ("answers", crate::answers::seeds()),
        ("guest", crate::guest::seeds()),
        ("kernel_log", crate::kernel_log::seeds()),
        ("remote", crate::remote::seeds()),
    ]
}
