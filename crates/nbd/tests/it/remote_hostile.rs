//! Tests of volumes whose server violates the protocol, or uses it in ways that ours doesn't. The
//! server is written by hand, byte by byte.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use crate::common::with_time;
use crate::remote::{Rig, ended, options, submit};
use corewise_blockmq::{BlockDeviceExt, ExtentKind, IoErrorKind, Op, Request as Asked};
use corewise_nbd::Remote;
use corewise_nbd::wire::*;

const SIZE: u64 = 1 << 20;
const CONTEXT: u32 = 5;

/// Does the handshake as a server.
fn welcome(stream: &mut UnixStream, flags: TransmissionFlags) -> std::io::Result<()> {
    stream.write_all(&Greeting { flags: HandshakeFlags(3) }.encode())?;
    stream.read_exact(&mut [0; 4])?;
    loop {
        let mut head = [0; OPTION_HEADER_LEN];
        stream.read_exact(&mut head)?;
        let OptionHeader { option, length } = OptionHeader::decode(&head).unwrap();
        stream.read_exact(&mut vec![0; length as usize])?;
        let mut reply = |kind, data: &[u8]| {
            let length = data.len() as u32;
            let head = OptionReplyHeader { option, kind, length }.encode();
            stream.write_all(&[&head[..], data].concat())
        };
        let mut data = Vec::new();
        match option {
            OptionKind::SET_META_CONTEXT => {
                encode_meta_context(&mut data, CONTEXT, BASE_ALLOCATION);
                reply(OptionReplyKind::META_CONTEXT, &data)?;
            }
            OptionKind::GO => {
                encode_info_export(&mut data, ExportSummary { size: SIZE, flags });
                reply(OptionReplyKind::INFO, &data)?;
            }
            _ => {}
        }
        reply(OptionReplyKind::ACK, &[])?;
        if option == OptionKind::GO {
            return Ok(());
        }
    }
}

/// Runs a server that reads each request with its payload, and replies with `answer` of the request
/// and its number.
fn serve(
    listener: UnixListener,
    flags: TransmissionFlags,
    answer: impl Fn(&Request, u64) -> Vec<u8> + Send + 'static,
) {
    std::thread::spawn(move || {
        let mut number = 0;
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut talk = || -> std::io::Result<()> {
                welcome(&mut stream, flags)?;
                loop {
                    let mut head = [0; REQUEST_LEN];
                    stream.read_exact(&mut head)?;
                    let request = Request::decode(&head).unwrap();
                    let payload = request.payload_len(Form::Structured);
                    stream.read_exact(&mut vec![0; payload as usize])?;
                    number += 1;
                    stream.write_all(&answer(&request, number))?;
                }
            };
            // The client closed the connection.
            let _ = talk();
        }
    });
}

fn tag(request: &Request) -> Tag {
    Tag { cookie: request.cookie, offset: request.offset }
}

const MORE: ReplyFlags = ReplyFlags::empty();
const LAST: ReplyFlags = ReplyFlags::DONE;
const FORM: Form = Form::Structured;

fn data(out: &mut Vec<u8>, flags: ReplyFlags, request: &Request, at: u64, bytes: &[u8]) {
    encode_data(out, FORM, flags, tag(request), at, bytes.len() as u32);
    out.extend_from_slice(bytes);
}

/// Returns the reply of a good server: reads return one byte throughout.
fn good(request: &Request) -> Vec<u8> {
    let (mut out, length) = (Vec::new(), request.length);
    match request.command {
        Command::READ => data(&mut out, LAST, request, request.offset, &vec![7; length as usize]),
        Command::BLOCK_STATUS => {
            let extents = [StatusExtent { length, flags: STATE_HOLE | STATE_ZERO }];
            encode_block_status(&mut out, FORM, LAST, tag(request), CONTEXT, &extents);
        }
        _ => encode_done(&mut out, FORM, tag(request)),
    }
    out
}

const ALL: TransmissionFlags = TransmissionFlags(
    TransmissionFlags::HAS_FLAGS.0
        | TransmissionFlags::SEND_FLUSH.0
        | TransmissionFlags::SEND_TRIM.0
        | TransmissionFlags::SEND_WRITE_ZEROES.0
        | TransmissionFlags::SEND_CACHE.0,
);

#[test]
fn the_pieces_of_a_read_may_come_in_any_order() {
    let rig = Rig::new();
    let listener = UnixListener::bind(rig.path("s")).unwrap();
    serve(listener, ALL, |request, _| {
        let (mut out, at) = (Vec::new(), request.offset);
        if request.command != Command::READ {
            return good(request);
        }
        data(&mut out, MORE, request, at + 3000, &[4; 1096]);
        encode_hole(&mut out, FORM, MORE, tag(request), at + 1000, 1000);
        data(&mut out, MORE, request, at, &[1; 1000]);
        data(&mut out, MORE, request, at + 2000, &[3; 1000]);
        encode_done(&mut out, FORM, tag(request));
        out
    });
    let disk = rig.disk(Arc::new(Remote::connect(options(&rig.path("s"))).unwrap()));
    let expected = [vec![1; 1000], vec![0; 1000], vec![3; 1000], vec![4; 1096]].concat();
    assert_eq!(disk.read_at(4096, 4096).unwrap(), expected);
    let found: Vec<_> = disk.extents_of(0, SIZE, 4).unwrap().iter().collect();
    assert_eq!((found.len(), found[0].kind, found[0].len), (1, ExtentKind::Hole, SIZE));
}

#[test]
fn an_error_amid_the_chunks_of_a_read_is_its_end_and_the_connection_goes_on() {
    let rig = Rig::new();
    let listener = UnixListener::bind(rig.path("s")).unwrap();
    serve(listener, ALL, |request, number| {
        let mut out = Vec::new();
        if number > 1 {
            return good(request);
        }
        let at = request.offset;
        data(&mut out, MORE, request, at, &[1; 512]);
        let words = "sector\x1b lost";
        encode_error(&mut out, FORM, MORE, tag(request), ReplyError::NoMem, words, Some(at + 512));
        data(&mut out, LAST, request, at + 512, &[1; 512]);
        out
    });
    let remote = Arc::new(Remote::connect(options(&rig.path("s"))).unwrap());
    let disk = rig.disk(remote.clone());
    let why = disk.read_at(0, 1024).unwrap_err();
    assert!(why.kind() == IoErrorKind::Io(12) && why.to_string().contains("sector lost"), "{why}");
    assert_eq!(disk.read_at(0, 1024).unwrap(), [7; 1024][..]);
    assert_eq!(remote.status().losses, 0);
}

/// A function that makes a wrong reply.
type Lie = fn(&Request) -> Vec<u8>;

fn chunk(request: &Request, kind: ReplyKind, length: u64) -> Vec<u8> {
    let mut out = Vec::new();
    Chunk { flags: LAST, kind, tag: tag(request), length }.encode(FORM, &mut out);
    out
}

#[test]
fn a_server_that_lies_is_hung_up_on_and_its_request_fails_in_the_end() {
    with_time(Duration::from_millis(300), |soon| {
        let lies: [(&str, Lie); 16] = [
            ("cookie", |r| good(&Request { cookie: r.cookie ^ 1 << 40, ..*r })),
            ("nothing", |_| vec![0; 20]),
            ("request", |r| r.encode().to_vec()),
            ("simple", |r| SimpleReply::new(r.cookie, Ok(())).encode().to_vec()),
            ("beyond", |r| good(&Request { length: r.length + 1, ..*r })),
            ("before", |r| good(&Request { offset: r.offset - 1, ..*r })),
            ("short", |r| good(&Request { length: r.length - 1, ..*r })),
            ("twice", |r| {
                let mut out = Vec::new();
                data(&mut out, MORE, r, r.offset, &[1; 512]);
                data(&mut out, MORE, r, r.offset + 511, &[1; 512]);
                out
            }),
            ("early twice", |r| {
                let mut out = Vec::new();
                data(&mut out, MORE, r, r.offset + 1024, &[1; 512]);
                data(&mut out, MORE, r, r.offset + 1000, &[1; 512]);
                out
            }),
            ("hole", |r| {
                let mut out = Vec::new();
                encode_hole(&mut out, FORM, LAST, tag(r), r.offset, u32::MAX);
                out
            }),
            ("kind", |r| chunk(r, ReplyKind(77), 0)),
            ("status", |r| chunk(r, ReplyKind::BLOCK_STATUS, 12)),
            ("huge error", |r| chunk(r, ReplyKind::ERROR, u32::MAX.into())),
            ("errors without end", |r| {
                let mut out = Vec::new();
                for _ in 0..1100 {
                    encode_error(&mut out, FORM, MORE, tag(r), ReplyError::Io, "", None);
                }
                encode_done(&mut out, FORM, tag(r));
                out
            }),
            ("wrap", |r| {
                let mut out = chunk(r, ReplyKind::OFFSET_DATA, u32::MAX.into());
                out.extend_from_slice(&u64::MAX.to_be_bytes());
                out
            }),
            ("end", |r| [good(r), good(r)].concat()),
        ];
        let rig = Rig::new();
        let disks = lies.map(|(name, lie)| {
            let listener = UnixListener::bind(rig.path(name)).unwrap();
            serve(listener, ALL, move |request, _| lie(request));
            let options = options(&rig.path(name)).timeout(soon);
            let remote = Arc::new(Remote::connect(options).unwrap());
            (name, rig.disk(remote.clone()), remote)
        });
        let told: Vec<_> =
            disks.iter().map(|(_, disk, _)| submit(disk, Asked::read(4096, 4096))).collect();
        for ((name, _, remote), told) in disks.iter().zip(told) {
            let result = ended(&told).result;
            // This server has replied correctly before.
            assert_eq!(result.is_ok(), *name == "end", "{name}: {result:?}");
            while remote.status().losses == 0 {
                std::thread::yield_now();
            }
            assert!(!remote.status().why.is_empty(), "{name}");
        }
    });
}

/// Bytes that end a connection.
const NONSENSE: [u8; 20] = [0; 20];

#[test]
fn what_a_connection_brought_before_it_broke_is_asked_for_once_more() {
    let rig = Rig::new();
    let listener = UnixListener::bind(rig.path("s")).unwrap();
    serve(listener, ALL, |request, number| {
        let mut out = Vec::new();
        match number {
            // All data comes, but without the end of the reply.
            1 => data(&mut out, MORE, request, request.offset, &[1; 4096]),
            3 => data(&mut out, MORE, request, request.offset, &[1; 512]),
            5 => {
                let extents = [StatusExtent { length: 4096, flags: 0 }];
                encode_block_status(&mut out, FORM, MORE, tag(request), CONTEXT, &extents);
            }
            _ => {
                assert!(request.length >= 4096, "{request:?}");
                return good(request);
            }
        }
        out.extend(NONSENSE);
        out
    });
    let disk = rig.disk(Arc::new(Remote::connect(options(&rig.path("s"))).unwrap()));
    for _ in 0..2 {
        assert_eq!(disk.read_at(4096, 4096).unwrap(), [7; 4096][..]);
    }
    let found: Vec<_> = disk.extents_of(0, SIZE, 4).unwrap().iter().collect();
    assert_eq!((found.len(), found[0].kind, found[0].len), (1, ExtentKind::Hole, SIZE));
}

#[test]
fn what_may_be_lost_with_a_connection_is_not_read_before_a_flush_has_failed_for_it() {
    let rig = Rig::new();
    let listener = UnixListener::bind(rig.path("s")).unwrap();
    serve(listener, ALL, |request, number| match number {
        1 | 2 => good(request),
        3 => NONSENSE.into(),
        _ => good(request),
    });
    let disk = rig.disk(Arc::new(Remote::connect(options(&rig.path("s"))).unwrap()));
    disk.write_at(4096, vec![1; 4096]).unwrap();
    disk.write_at(16384, vec![1; 512]).unwrap();
    assert_eq!(disk.read_at(0, 4096).unwrap(), [7; 4096][..]);
    let why = disk.read_at(7680, 1024).unwrap_err();
    assert!(why.to_string().contains("acknowledged"), "{why}");
    let found: Vec<_> = disk.extents_of(0, SIZE, 4).unwrap().iter().collect();
    assert_eq!(found[0].kind, ExtentKind::Data);
    disk.write_at(16384, vec![2; 512]).unwrap();
    assert_eq!(disk.read_at(16384, 512).unwrap(), [7; 512][..], "it was written anew");
    assert!(disk.flush().is_err());
    assert_eq!(disk.read_at(4096, 4096).unwrap(), [7; 4096][..]);
    disk.flush().unwrap();
}

#[test]
fn a_connection_that_breaks_often_but_answers_is_sought_again_in_time() {
    with_time(Duration::from_millis(1500), |soon| {
        let rig = Rig::new();
        let listener = UnixListener::bind(rig.path("s")).unwrap();
        serve(listener, ALL, |request, number| match number % 2 {
            1 => NONSENSE.into(),
            _ => good(request),
        });
        let options = options(&rig.path("s")).timeout(soon);
        let disk = rig.disk(Arc::new(Remote::connect(options).unwrap()));
        for _ in 0..8 {
            disk.read_at(0, 512).unwrap();
        }
    });
}

#[test]
fn a_large_change_goes_before_those_that_came_later_and_meet_it() {
    let rig = Rig::new();
    let listener = UnixListener::bind(rig.path("s")).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let first = corewise_sync::Mutex::new(Vec::new());
    serve(listener, ALL, move |request, number| {
        if request.command == Command::WRITE {
            tell.send(request.length).unwrap();
        }
        match number {
            1 => {
                *first.lock() = good(request);
                Vec::new()
            }
            _ => [std::mem::take(&mut *first.lock()), good(request)].concat(),
        }
    });
    let disk = rig.disk(Arc::new(Remote::connect(options(&rig.path("s"))).unwrap()));
    let writes = [(0, 4096), (0, 16384), (8192, 1024)]
        .map(|(at, len)| submit(&disk, Asked::write(at, vec![1; len])));
    disk.read_at(1 << 19, 512).unwrap();
    for told in &writes {
        ended(told).result.unwrap();
    }
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [4096, 16384, 1024]);
}

#[test]
fn a_change_that_is_refused_for_a_shutdown_before_its_bytes_were_taken_is_sent_again() {
    let rig = Rig::new();
    let listener = UnixListener::bind(rig.path("s")).unwrap();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        welcome(&mut stream, ALL).unwrap();
        let mut head = [0; REQUEST_LEN];
        stream.read_exact(&mut head).unwrap();
        let cookie = Request::decode(&head).unwrap().cookie;
        let no = SimpleReply::new(cookie, Err(ReplyError::Shutdown));
        stream.write_all(&no.encode()).unwrap();
        // The server stays, and reads nothing more.
        serve(listener, ALL, |request, _| good(request));
        let _ = stopped.recv();
    });
    let disk = rig.disk(Arc::new(Remote::connect(options(&rig.path("s"))).unwrap()));
    ended(&submit(&disk, Asked::write(0, vec![1; SIZE as usize]))).result.unwrap();
    drop(stop);
    server.join().unwrap();
}

/// Sends good replies, except for some bytes.
#[test]
fn whatever_a_server_sends_each_request_ends() {
    let rig = Rig::new();
    for seed in 0..24 {
        let name = seed.to_string();
        let listener = UnixListener::bind(rig.path(&name)).unwrap();
        serve(listener, ALL, move |request, number| {
            let mut rng = fastrand::Rng::with_seed(seed * 1000 + number);
            let mut rnd = |below: u64| rng.u64(..below);
            let mut out = good(request);
            for _ in 0..rnd(3) {
                let at = rnd(out.len().min(40) as u64) as usize;
                match rnd(3) {
                    0 => out[at] ^= 1 << rnd(8),
                    1 => out.truncate(at + 1),
                    _ => out.insert(at, rnd(256) as u8),
                }
            }
            out
        });
        let options = options(&rig.path(&name)).timeout(Duration::from_millis(100));
        let remote = Arc::new(Remote::connect(options).unwrap());
        let disk = rig.disk(remote.clone());
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut rnd = |below: u64| rng.u64(..below);
        let all: Vec<_> = (0..16)
            .map(|_| {
                let (at, len) = (rnd(100) * 4096, (1 + rnd(8)) * 4096);
                submit(
                    &disk,
                    match Op::ALL[rnd(7) as usize] {
                        Op::Read => Asked::read(at, len as usize),
                        Op::Write => Asked::write(at, vec![1; len as usize]),
                        Op::Discard => Asked::discard(at, len),
                        Op::WriteZeroes => Asked::write_zeroes(at, len),
                        Op::Extents => Asked::extents_of(at, len, 3),
                        Op::Prefetch => Asked::prefetch(at, len),
                        _ => Asked::flush(),
                    },
                )
            })
            .collect();
        for (n, told) in all.into_iter().enumerate() {
            let done = told.recv_timeout(crate::common::PATIENCE);
            let done = done.unwrap_or_else(|_| panic!("{seed} {n}: {}", remote.status()));
            if done.op == Op::Read && done.result.is_ok() {
                assert_eq!(done.into_data().unwrap().len() % 4096, 0);
            }
        }
    }
}
