//! The target for the transmission phase: a real session, compared with a model. The first byte of
//! an input tells the client's choices, and its export.

use corewise_blockmq::BlockDevice;
use corewise_nbd::model::{
    Limits, Operation, Verdict, block_sizes, has_query, judge, transmission_flags, with_query,
};
use corewise_nbd::wire::{
    Chunk, Command, Form, ReplyError, ReplyFlags, ReplyKind, Request, SIMPLE_REPLY_LEN,
    SIMPLE_REPLY_MAGIC, STATE_ZERO, STATUS_QUERY_LEN, SimpleReply, StatusQuery, TransmissionFlags,
    decode_block_status, decode_error,
};

use crate::connection::{MOST_INPUT, behind_handshake, exchange, good_handshake, server};
use crate::device::Device;

/// Largest number of bytes of requests to a large device.
const MOST_TO_LARGE: usize = 1 << 10;

/// Block size of the device.
const BLOCK: usize = 512;

/// Meaning of the first byte.
#[derive(Clone, Copy)]
struct Choice {
    form: Form,
    contexts: bool,
    read_only: bool,
    /// True if the device can only read and write.
    plain: bool,
    large: bool,
    /// Size of the pieces in which the requests are sent.
    piece: usize,
}

impl Choice {
    fn new(byte: u8) -> Choice {
        let has = |bit| byte & bit != 0;
        let piece = match byte >> 5 & 3 {
            0 => MOST_INPUT,
            n => usize::from(n) * 29,
        };
        let form = match (has(EXTENDED), has(STRUCTURED)) {
            (true, _) => Form::Extended,
            (false, true) => Form::Structured,
            (false, false) => Form::Simple,
        };
        Choice {
            form,
            contexts: form.has_chunks() && !has(NO_CONTEXTS),
            read_only: has(READ_ONLY),
            plain: has(PLAIN),
            large: has(LARGE),
            piece,
        }
    }

    fn most_input(self) -> usize {
        if self.large { MOST_TO_LARGE } else { MOST_INPUT }
    }
}

pub(crate) const STRUCTURED: u8 = 1;
pub(crate) const NO_CONTEXTS: u8 = 2;
pub(crate) const READ_ONLY: u8 = 4;
pub(crate) const PLAIN: u8 = 8;
pub(crate) const LARGE: u8 = 16;
pub(crate) const EXTENDED: u8 = 128;

/// Predictions of the model for a stream of requests.
struct Expected {
    /// Stream, with cookies that distinguish the requests.
    stream: Vec<u8>,
    /// Replies by cookie; `None` for a write whose payload never came.
    replies: Vec<Option<Reply>>,
    contents: Vec<u8>,
}

/// A predicted reply.
struct Reply {
    request: Request,
    error: u32,
    /// Data of a read; contents of the range of a block status.
    data: Vec<u8>,
    /// Marks of the bytes that have come.
    came: Vec<bool>,
}

fn limits(device: &Device, choice: Choice) -> Limits {
    let geometry = device.geometry();
    let sizes = block_sizes(&geometry);
    let Choice { form, contexts, read_only, .. } = choice;
    let filtered = contexts && form == Form::Extended;
    Limits {
        size: geometry.size,
        flags: transmission_flags(&geometry, read_only)
            .with_if(form.has_chunks(), TransmissionFlags::SEND_DF)
            .with_if(filtered, TransmissionFlags::BLOCK_STATUS_PAYLOAD),
        block: sizes.minimum,
        max_payload: sizes.maximum,
        form,
        status: contexts,
    }
}

/// Serves the requests one after another, in plain slices.
fn model(data: &[u8], limits: &Limits, mut contents: Vec<u8>) -> Expected {
    let mut stream = data.to_vec();
    let (mut replies, mut at, form) = (Vec::new(), 0, limits.form);
    while let Some(head) = stream.get(at..at + form.request_len()) {
        let found = match head.try_into() {
            Ok(head) => Request::decode_extended(head),
            Err(_) => Request::decode(head.try_into().expect("the slice has one of both lengths")),
        };
        let Ok(mut request) = found else { break };
        assert_eq!(encode(&request, form), head, "a decoded message encodes to the same bytes");
        let (sent, behind) = (request, at + form.request_len());
        let mut query = 0;
        if has_query(&request, limits) {
            let Some(bytes) = stream[behind..].first_chunk::<STATUS_QUERY_LEN>() else { break };
            request = with_query(&request, StatusQuery::decode(bytes));
            query = STATUS_QUERY_LEN;
        }
        let verdict = judge(&request, limits);
        check(&request, verdict, limits);
        if matches!(verdict, Verdict::Disconnect | Verdict::Hopeless) {
            break;
        }
        request.cookie = replies.len() as u64;
        let named = encode(&Request { cookie: request.cookie, ..sent }, form);
        stream[at..behind].copy_from_slice(&named);
        at = behind + query;
        let payload = at..at + request.payload_len(form) as usize;
        let complete = payload.end <= stream.len();
        at = payload.end.min(stream.len());
        let range = request.offset as usize
            ..(request.offset as usize).wrapping_add(request.length as usize);
        let reply = |error: u32, data: Vec<u8>| {
            let came = vec![false; data.len()];
            Some(Reply { request, error, data, came })
        };
        replies.push(match verdict {
            Verdict::Refuse(error) => reply(error.code(), Vec::new()),
            Verdict::Submit(Operation::Write { .. }) if !complete => None,
            Verdict::Submit(Operation::Write { .. }) => {
                contents[range].copy_from_slice(&stream[payload]);
                reply(0, Vec::new())
            }
            Verdict::Submit(Operation::Read { .. } | Operation::BlockStatus { .. }) => {
                reply(0, contents[range].to_vec())
            }
            Verdict::Submit(Operation::Trim { .. }) => {
                // A block of which more is in use stays unchanged.
                let (from, to) = (range.start.next_multiple_of(BLOCK), range.end / BLOCK * BLOCK);
                if from < to {
                    contents[from..to].fill(0);
                }
                reply(0, Vec::new())
            }
            // The ends would be read and written.
            Verdict::Submit(Operation::WriteZeroes { fast: true, .. })
                if (range.start | range.end) % BLOCK != 0 =>
            {
                reply(ReplyError::NotSup.code(), Vec::new())
            }
            Verdict::Submit(Operation::WriteZeroes { .. }) => {
                contents[range].fill(0);
                reply(0, Vec::new())
            }
            _ => reply(0, Vec::new()),
        });
        if !complete {
            break;
        }
    }
    Expected { stream, replies, contents }
}

fn encode(request: &Request, form: Form) -> Vec<u8> {
    match form {
        Form::Simple | Form::Structured => request.encode().to_vec(),
        Form::Extended => request.encode_extended().to_vec(),
    }
}

/// Checks the properties of every verdict, whatever the rules in detail.
fn check(request: &Request, verdict: Verdict, limits: &Limits) {
    match verdict {
        Verdict::Submit(Operation::Flush) => assert_eq!((request.offset, request.length), (0, 0)),
        Verdict::Submit(operation) => {
            let end = request.offset.checked_add(request.length);
            assert!(end.is_some_and(|end| end <= limits.size), "beyond the end: {request:?}");
            assert!(request.length > 0);
            let changes = !matches!(
                operation,
                Operation::Read { .. } | Operation::BlockStatus { .. } | Operation::Cache
            );
            assert!(!changes || !limits.flags.contains(TransmissionFlags::READ_ONLY));
            assert_eq!(request.offset % u64::from(limits.block), 0);
            assert_eq!(request.length % u64::from(limits.block), 0);
            if matches!(operation, Operation::Read { .. } | Operation::Write { .. }) {
                assert!(request.length <= limits.max_payload.into());
            }
        }
        Verdict::Disconnect => assert_eq!(request.command, Command::DISC),
        Verdict::Hopeless => {
            assert!(request.payload_len(limits.form) > limits.max_payload.into());
        }
        Verdict::Done => assert_eq!(request.length, 0),
        Verdict::Refuse(error) => assert_ne!(error, ReplyError::Shutdown, "nobody drains here"),
    }
}

/// Sends these bytes, except the first, as the requests of a client that has chosen an export.
///
/// # Panics
/// If a request isn't answered exactly once as the model predicts, or the device ends with other
/// contents.
pub fn transmission(data: &[u8]) {
    let (first, data) = data.split_first().unwrap_or((&0, &[]));
    let choice = Choice::new(*first);
    let Choice { form, contexts, .. } = choice;
    let device = Device::with(choice.plain, choice.large);
    let data = &data[..data.len().min(choice.most_input())];
    let expected = model(data, &limits(&device, choice), device.bytes());
    let server = server(device.clone(), choice.read_only);
    let input = [good_handshake(form, contexts), expected.stream].concat();
    let output = exchange(&server, &input, choice.piece);
    let mut rest = behind_handshake(&output);
    let mut open = expected.replies;
    while !rest.is_empty() {
        rest = if rest.starts_with(&SIMPLE_REPLY_MAGIC.to_be_bytes()) {
            assert!(form != Form::Extended, "a simple reply to an extended request");
            simple(rest, &mut open, form.has_chunks())
        } else {
            assert!(form.has_chunks(), "a chunk for a client of simple replies");
            chunk(rest, &mut open, form)
        };
    }
    assert!(open.iter().all(Option::is_none), "requests without an answer");
    assert!(device.bytes() == expected.contents, "the device holds something else");
}

/// Returns the open reply of this cookie.
fn of(open: &mut [Option<Reply>], cookie: u64) -> &mut Option<Reply> {
    let reply = usize::try_from(cookie).ok().and_then(|cookie| open.get_mut(cookie));
    reply
        .filter(|reply| reply.is_some())
        .unwrap_or_else(|| panic!("an answer that nobody waits for: {cookie}"))
}

/// Takes a simple reply; returns the bytes behind it.
fn simple<'a>(rest: &'a [u8], open: &mut [Option<Reply>], structured: bool) -> &'a [u8] {
    let (head, behind) = rest.split_first_chunk::<SIMPLE_REPLY_LEN>().expect("half a reply");
    let head = SimpleReply::decode(head).expect("a reply begins with its magic number");
    let reply = of(open, head.cookie).take().expect("found");
    let read = reply.request.command == Command::READ;
    assert!(!structured || !read && reply.data.is_empty(), "{:?} simply", reply.request);
    assert_eq!(head.error, reply.error, "request {}", head.cookie);
    assert!(behind.starts_with(&reply.data), "other data for request {}", head.cookie);
    &behind[reply.data.len()..]
}

/// Takes a chunk; returns the bytes behind it.
fn chunk<'a>(rest: &'a [u8], open: &mut [Option<Reply>], form: Form) -> &'a [u8] {
    let (head, behind) = rest.split_at_checked(form.chunk_len()).expect("half a chunk");
    let head = match head.try_into() {
        Ok(head) => Chunk::decode_extended(head),
        Err(_) => Chunk::decode(head.try_into().expect("it has one of both lengths")),
    };
    let head = head.expect("a chunk begins with its magic number");
    let (data, behind) = behind.split_at_checked(head.length as usize).expect("half a chunk");
    let place = of(open, head.tag.cookie);
    let reply = place.as_mut().expect("found");
    if form == Form::Extended {
        assert_eq!(head.tag.offset, reply.request.offset, "the offset of another request");
    }
    let offset = |at: usize| {
        let offset = u64::from_be_bytes(data[at..at + 8].try_into().expect("eight bytes"));
        offset.checked_sub(reply.request.offset).expect("inside the request") as usize
    };
    match head.kind {
        ReplyKind::NONE => assert!(data.is_empty()),
        ReplyKind::OFFSET_DATA | ReplyKind::OFFSET_HOLE => {
            assert_eq!(reply.request.command, Command::READ);
            let at = offset(0);
            let bytes = match head.kind {
                ReplyKind::OFFSET_DATA => data[8..].to_vec(),
                _ => {
                    let len = u32::from_be_bytes(data[8..].try_into().expect("twelve bytes"));
                    vec![0; len as usize]
                }
            };
            let here = at..at + bytes.len();
            assert!(!bytes.is_empty() && reply.data[here.clone()] == bytes, "other data");
            assert!(!reply.came[here.clone()].contains(&true), "twice the same");
            reply.came[here].fill(true);
        }
        kind @ (ReplyKind::BLOCK_STATUS | ReplyKind::BLOCK_STATUS_EXT) => {
            assert_eq!(reply.request.command, Command::BLOCK_STATUS);
            assert_eq!(kind == ReplyKind::BLOCK_STATUS_EXT, form == Form::Extended);
            let (_, extents) = decode_block_status(kind, data).expect("well formed");
            let mut at = 0;
            for extent in extents {
                let bytes = &reply.data[at..at + extent.length as usize];
                assert!(!bytes.is_empty(), "an extent of nothing");
                let zero = bytes.iter().all(|byte| *byte == 0);
                assert!(zero || extent.flags & STATE_ZERO == 0, "a hole that isn't");
                at += extent.length as usize;
            }
            // The rest isn't verified again here.
            reply.came.fill(true);
        }
        kind => {
            let error = decode_error(kind, data).expect("well formed");
            assert_eq!(error.error, reply.error, "{:?}: {error:?}", reply.request);
            assert_ne!(error.error, 0);
            reply.error = 0;
        }
    }
    if head.flags.contains(ReplyFlags::DONE) {
        assert_eq!(reply.error, 0, "an error that wasn't told: {:?}", reply.request);
        assert!(!reply.came.contains(&false), "a part of {:?} is missing", reply.request);
        *place = None;
    }
    behind
}
