//! The target for the transmission phase: a real session, held against a model.

use corewise_blockmq::Geometry;
use corewise_nbd::model::{Limits, Operation, Verdict, block_sizes, judge, transmission_flags};
use corewise_nbd::wire::{
    Command, ExportSummary, REQUEST_LEN, ReplyError, Request, SIMPLE_REPLY_LEN, SimpleReply,
};

use crate::connection::{MOST_INPUT, exchange, good_handshake, server};
use crate::device::{Device, SIZE, contents};

/// What the model says about a stream of requests.
struct Expected {
    /// The stream, with cookies that tell the requests apart.
    stream: Vec<u8>,
    /// By cookie: the error, and the data of a read. `None`: no reply (a write whose payload never
    /// came).
    replies: Vec<Option<(u32, Vec<u8>)>>,
    contents: Vec<u8>,
}

fn limits() -> Limits {
    let geometry = Geometry::new(SIZE as u64);
    let flags = transmission_flags(&geometry, false);
    Limits::new(ExportSummary { size: geometry.size, flags }, block_sizes(&geometry))
}

/// Serves the requests one after the other, in plain slices.
fn model(data: &[u8]) -> Expected {
    let limits = limits();
    let mut stream = data.to_vec();
    let (mut replies, mut contents, mut at) = (Vec::new(), contents(), 0);
    while let Some(head) = stream.get(at..at + REQUEST_LEN) {
        let head = head.try_into().expect("the slice has that length");
        let Ok(mut request) = Request::decode(head) else { break };
        assert_eq!(request.encode(), *head, "a decoded message encodes to the same bytes");
        let verdict = judge(&request, &limits);
        check(&request, verdict, &limits);
        if matches!(verdict, Verdict::Disconnect | Verdict::Hopeless) {
            break;
        }
        request.cookie = replies.len() as u64;
        stream[at..at + REQUEST_LEN].copy_from_slice(&request.encode());
        at += REQUEST_LEN;
        let payload = at..at + request.payload_len() as usize;
        let complete = payload.end <= stream.len();
        at = payload.end.min(stream.len());
        let range = request.offset as usize
            ..(request.offset as usize).wrapping_add(request.length as usize);
        replies.push(match verdict {
            Verdict::Refuse(error) => Some((error.code(), Vec::new())),
            Verdict::Submit(Operation::Write { .. }) if !complete => None,
            Verdict::Submit(Operation::Write { .. }) => {
                contents[range].copy_from_slice(&stream[payload]);
                Some((0, Vec::new()))
            }
            Verdict::Submit(Operation::Read) => Some((0, contents[range].to_vec())),
            Verdict::Submit(Operation::Trim { .. } | Operation::WriteZeroes { .. }) => {
                contents[range].fill(0);
                Some((0, Vec::new()))
            }
            _ => Some((0, Vec::new())),
        });
        if !complete {
            break;
        }
    }
    Expected { stream, replies, contents }
}

/// What must hold of every verdict, whatever the rules in detail.
fn check(request: &Request, verdict: Verdict, limits: &Limits) {
    match verdict {
        Verdict::Submit(Operation::Flush) => assert_eq!((request.offset, request.length), (0, 0)),
        Verdict::Submit(operation) => {
            let end = request.offset.checked_add(request.length.into());
            assert!(end.is_some_and(|end| end <= limits.size), "beyond the end: {request:?}");
            assert!(request.length > 0);
            assert_eq!(request.offset % u64::from(limits.block), 0);
            assert_eq!(request.length % limits.block, 0);
            if matches!(operation, Operation::Read | Operation::Write { .. }) {
                assert!(request.length <= limits.max_payload);
            }
        }
        Verdict::Disconnect => assert_eq!(request.command, Command::DISC),
        Verdict::Hopeless => assert!(request.payload_len() > limits.max_payload),
        Verdict::Done => assert_eq!(request.length, 0),
        Verdict::Refuse(error) => assert_ne!(error, ReplyError::Shutdown, "nobody drains here"),
    }
}

/// Sends these bytes as the requests of a client that has chosen an export.
///
/// # Panics
/// Where a request isn't answered exactly once with what the model says, or the device ends with
/// other contents.
pub fn transmission(data: &[u8]) {
    let expected = model(&data[..data.len().min(MOST_INPUT)]);
    let device = Device::new();
    let server = server(device.clone());
    let before = exchange(&server, &good_handshake()).len();
    let output = exchange(&server, &[good_handshake(), expected.stream].concat());
    let mut rest = output.get(before..).expect("the handshake gives the same answers again");
    let mut open = expected.replies;
    while !rest.is_empty() {
        let (head, behind) = rest.split_first_chunk::<SIMPLE_REPLY_LEN>().expect("half a reply");
        let head = SimpleReply::decode(head).expect("a reply begins with its magic number");
        let reply = usize::try_from(head.cookie).ok().and_then(|cookie| open.get_mut(cookie));
        let (error, data) = reply
            .and_then(Option::take)
            .unwrap_or_else(|| panic!("an answer that nobody waits for: {head:?}"));
        assert_eq!(head.error, error, "request {}", head.cookie);
        assert!(behind.starts_with(&data), "other data for request {}", head.cookie);
        rest = &behind[data.len()..];
    }
    assert!(open.iter().all(Option::is_none), "requests without an answer");
    assert!(device.bytes() == expected.contents, "the device holds something else");
}
