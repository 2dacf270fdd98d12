//! A client that takes replies of all forms, and checks each against the specification.

use std::io::{Read, Write};
use std::ops::Range;

use corewise_nbd::wire::*;

use super::Client;

/// The reply to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) cookie: u64,
    /// Error number; 0 is success.
    pub(crate) error: u32,
    pub(crate) message: String,
    /// Offset of an error.
    pub(crate) at: Option<u64>,
    /// Bytes of a read; those that an error left out are zero.
    pub(crate) data: Vec<u8>,
    /// Number of received bytes of a read.
    pub(crate) covered: usize,
    /// Ranges of a read that came as holes.
    pub(crate) holes: Vec<Range<u64>>,
    /// Extents of a block status in `base:allocation`.
    pub(crate) extents: Vec<StatusExtent>,
    /// Extents of a block status in the other contexts, by their numbers.
    pub(crate) dirty: Vec<(u32, Vec<StatusExtent>)>,
    /// Number of chunks; 0 for a simple reply.
    pub(crate) chunks: usize,
}

impl<S: Read + Write> Client<S> {
    /// Asks for structured replies, and perhaps for `base:allocation` of this export.
    pub(crate) fn structured(&mut self, allocation_of: Option<&str>) {
        self.choose(Form::Structured, allocation_of);
    }

    /// Asks for a form of messages, and perhaps for `base:allocation` of this export.
    pub(crate) fn choose(&mut self, form: Form, allocation_of: Option<&str>) {
        let option = match form {
            Form::Simple => return,
            Form::Structured => OptionKind::STRUCTURED_REPLY,
            Form::Extended => OptionKind::EXTENDED_HEADERS,
        };
        self.option(option, &[]);
        assert_eq!(self.opt_reply().kind, OptionReplyKind::ACK);
        self.form = form;
        if let Some(name) = allocation_of {
            let data = MetaRequest::encode(name, &[BASE_ALLOCATION]);
            self.option(OptionKind::SET_META_CONTEXT, &data);
            let context = self.opt_reply();
            assert_eq!(context.kind, OptionReplyKind::META_CONTEXT);
            assert_eq!(&context.data[4..], BASE_ALLOCATION.as_bytes());
            assert_eq!(self.opt_reply().kind, OptionReplyKind::ACK);
        }
    }

    /// Chooses contexts of this export; returns their numbers and names.
    pub(crate) fn contexts(&mut self, export: &str, queries: &[&str]) -> Vec<(u32, String)> {
        self.option(OptionKind::SET_META_CONTEXT, &MetaRequest::encode(export, queries));
        let mut chosen = Vec::new();
        loop {
            let reply = self.opt_reply();
            if reply.kind == OptionReplyKind::ACK {
                return chosen;
            }
            assert_eq!(reply.kind, OptionReplyKind::META_CONTEXT);
            let (id, name) = reply.data.split_first_chunk::<4>().unwrap();
            let name = String::from_utf8(name.to_vec()).unwrap();
            chosen.push((u32::from_be_bytes(*id), name));
        }
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.stream.read_exact(&mut data).unwrap();
        data
    }

    /// Takes chunks until one ends a reply. The replies of `open` requests may be mixed.
    ///
    /// # Panics
    /// If a reply isn't one that the specification allows for its request.
    pub(crate) fn answer(&mut self, open: &mut Vec<(Request, Answer)>) -> (Request, Answer) {
        loop {
            let magic: [u8; 4] = self.bytes(4).try_into().unwrap();
            let simple = u32::from_be_bytes(magic) == SIMPLE_REPLY_MAGIC;
            assert!(
                !simple || self.form != Form::Extended,
                "a simple reply, with extended headers"
            );
            let len = if simple { SIMPLE_REPLY_LEN } else { self.form.chunk_len() };
            let head = [&magic[..], &self.bytes(len - 4)].concat();
            let (cookie, chunk) = if simple {
                (SimpleReply::decode(head[..].try_into().unwrap()).unwrap().cookie, None)
            } else {
                let chunk = match self.form {
                    Form::Extended => Chunk::decode_extended(head[..].try_into().unwrap()),
                    _ => Chunk::decode(head[..].try_into().unwrap()),
                };
                let chunk = chunk.unwrap();
                (chunk.tag.cookie, Some(chunk))
            };
            let n = open.iter().position(|(request, _)| request.cookie == cookie).unwrap();
            let done = match chunk {
                None => {
                    let (request, answer) = &mut open[n];
                    assert_eq!(answer.chunks, 0, "a simple reply amid chunks");
                    answer.error = SimpleReply::decode(head[..].try_into().unwrap()).unwrap().error;
                    let is_read = request.command == Command::READ;
                    assert!(request.command != Command::BLOCK_STATUS || answer.error != 0);
                    let len =
                        if is_read && answer.error == 0 { request.length as usize } else { 0 };
                    answer.data = self.bytes(len);
                    true
                }
                Some(chunk) => {
                    let data = self.bytes(chunk.length as usize);
                    let (request, answer) = &mut open[n];
                    let extended = self.form == Form::Extended;
                    assert!(!extended || chunk.tag.offset == request.offset, "{chunk:?}");
                    assert!(extended || chunk.kind != ReplyKind::BLOCK_STATUS_EXT);
                    take_chunk(request, answer, chunk, &data);
                    chunk.flags.contains(ReplyFlags::DONE)
                }
            };
            if done {
                let (request, mut answer) = open.swap_remove(n);
                answer.cookie = request.cookie;
                if request.command == Command::READ && answer.error == 0 && answer.chunks > 0 {
                    assert_eq!(answer.data.len(), request.length as usize, "all of a read comes");
                    assert_eq!(answer.covered, request.length as usize, "each byte once");
                }
                return (request, answer);
            }
        }
    }

    /// Sends a request without payload, and takes its reply.
    pub(crate) fn ask(&mut self, request: Request) -> Answer {
        self.send_request(request);
        self.answer(&mut vec![(request, Answer::default())]).1
    }
}

fn take_chunk(request: &Request, answer: &mut Answer, chunk: Chunk, data: &[u8]) {
    answer.chunks += 1;
    let range = request.offset..request.offset.saturating_add(request.length);
    let number = |from: usize| u64::from_be_bytes(data[from..from + 8].try_into().unwrap());
    let mut content = |offset: u64, bytes: &[u8]| {
        assert_eq!(request.command, Command::READ);
        assert!(!bytes.is_empty() && offset >= range.start);
        assert!(offset + bytes.len() as u64 <= range.end, "outside of the request");
        answer.data.resize(request.length as usize, 0);
        let at = (offset - range.start) as usize;
        answer.data[at..at + bytes.len()].copy_from_slice(bytes);
        answer.covered += bytes.len();
    };
    match chunk.kind {
        ReplyKind::NONE => assert!(data.is_empty() && chunk.flags.contains(ReplyFlags::DONE)),
        ReplyKind::OFFSET_DATA => content(number(0), &data[8..]),
        ReplyKind::OFFSET_HOLE => {
            assert_eq!(data.len(), 12);
            let len = u32::from_be_bytes(data[8..].try_into().unwrap());
            content(number(0), &vec![0; len as usize]);
            answer.holes.push(number(0)..number(0) + u64::from(len));
        }
        kind @ (ReplyKind::BLOCK_STATUS | ReplyKind::BLOCK_STATUS_EXT) => {
            assert_eq!(request.command, Command::BLOCK_STATUS);
            let (context, extents) = decode_block_status(kind, data).unwrap();
            let sum: u64 = extents.iter().map(|e| e.length).sum();
            assert!(sum <= request.length && extents.iter().all(|e| e.length > 0));
            assert!(!extents.is_empty());
            let one = request.flags.contains(CommandFlags::REQ_ONE);
            assert!(!one || extents.len() == 1);
            assert!(answer.dirty.iter().all(|(id, _)| *id != context), "one chunk a context");
            assert!(context != 1 || answer.extents.is_empty(), "one chunk a context");
            match context {
                1 => answer.extents = extents,
                _ => answer.dirty.push((context, extents)),
            }
        }
        kind => {
            let error = decode_error(kind, data).unwrap();
            assert_ne!(error.error, 0);
            assert!(error.offset.is_none_or(|at| range.contains(&at)), "{error:?} of {request:?}");
            answer.error = error.error;
            answer.message = error.message;
            answer.at = error.offset;
        }
    }
    let df = request.flags.contains(CommandFlags::DF);
    assert!(!df || answer.chunks == 1 || chunk.kind.is_error(), "one piece was asked for");
}
