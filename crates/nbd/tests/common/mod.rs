//! A raw client that breaks the protocol on demand, and a memory device whose completions a test
//! can hold back.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

pub(crate) mod answers;

use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use corewise_blockmq::{
    BlockDevice, Extent, ExtentKind, Geometry, IoError, IoErrorKind, Op, Request as DeviceRequest,
};
use corewise_nbd::wire::*;
use corewise_nbd::{Export, Options, Server};
use corewise_sync::{Condvar, Mutex};

/// Time after which an expected event counts as lost.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// A request as a [`TestDevice`] saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) op: Op,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) fua: bool,
    pub(crate) no_unmap: bool,
    pub(crate) fast: bool,
}

/// A device in memory. It completes inline, or holds requests back until the test releases them.
pub(crate) struct TestDevice {
    geometry: Geometry,
    /// L: is the lock; guards contents and held requests.
    state: Mutex<State>,
    /// L: waited on with `state`; notified when a request arrives.
    arrived: Condvar,
}

struct State {
    data: Vec<u8>,
    holding: bool,
    held: Vec<DeviceRequest>,
    seen: Vec<Seen>,
    fail: Option<IoErrorKind>,
    losses: u64,
    panic_at: Option<u64>,
    holes: Vec<Range<u64>>,
}

impl TestDevice {
    pub(crate) fn new(size: u64) -> Arc<TestDevice> {
        TestDevice::with(Geometry::new(size))
    }

    pub(crate) fn with(geometry: Geometry) -> Arc<TestDevice> {
        let size = usize::try_from(geometry.size).unwrap();
        let mut data = vec![0; size];
        for (number, block) in data.chunks_mut(512).enumerate() {
            block.fill(number as u8);
        }
        let state = State {
            data,
            holding: false,
            held: Vec::new(),
            seen: Vec::new(),
            fail: None,
            losses: 0,
            panic_at: None,
            holes: Vec::new(),
        };
        Arc::new(TestDevice { geometry, state: Mutex::new(state), arrived: Condvar::new() })
    }

    /// Holds later requests until [`TestDevice::release`].
    pub(crate) fn hold(&self) {
        self.state.lock().holding = true;
    }

    /// Completes later requests again; held ones stay.
    pub(crate) fn hold_no_more(&self) {
        self.state.lock().holding = false;
    }

    /// Fails later requests.
    pub(crate) fn fail(&self, kind: IoErrorKind) {
        self.state.lock().fail = Some(kind);
    }

    /// Stops failing requests.
    pub(crate) fn fail_no_more(&self) {
        self.state.lock().fail = None;
    }

    /// Zeroes a range, and reports it as a hole.
    pub(crate) fn hole(&self, range: Range<u64>) {
        let mut state = self.state.lock();
        state.data[range.start as usize..range.end as usize].fill(0);
        state.holes.push(range);
    }

    /// Makes `submit` panic for a request at this offset.
    pub(crate) fn panic_at(&self, offset: u64) {
        self.state.lock().panic_at = Some(offset);
    }

    /// Waits until the device has seen `n` requests in all.
    pub(crate) fn wait_for_seen(&self, n: usize) {
        let mut state = self.state.lock();
        while state.seen.len() < n {
            let (again, late) = self.arrived.wait_timeout(state, PATIENCE);
            state = again;
            assert!(!late || state.seen.len() >= n, "{} of {n} requests arrived", state.seen.len());
        }
    }

    /// Waits until the device has seen `n` requests at this offset in all.
    pub(crate) fn wait_for_seen_at(&self, offset: u64, n: usize) {
        let mut state = self.state.lock();
        while state.seen.iter().filter(|seen| seen.offset == offset).count() < n {
            let (again, late) = self.arrived.wait_timeout(state, PATIENCE);
            assert!(!late, "no request number {n} at {offset} arrived");
            state = again;
        }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.lock().seen.clone()
    }

    pub(crate) fn held(&self) -> usize {
        self.state.lock().held.len()
    }

    /// Completes held requests, newest first (so that no test relies on an order), and holds
    /// nothing from now on.
    pub(crate) fn release(&self) {
        let held = {
            let mut state = self.state.lock();
            state.holding = false;
            std::mem::take(&mut state.held)
        };
        for rq in held.into_iter().rev() {
            self.run(rq);
        }
    }

    /// Completes up to `n` of the held requests, oldest first, and continues to hold.
    pub(crate) fn release_some(&self, n: usize) {
        let held: Vec<_> = {
            let mut state = self.state.lock();
            let n = n.min(state.held.len());
            state.held.drain(..n).collect()
        };
        for rq in held {
            self.run(rq);
        }
    }

    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        self.state.lock().data[offset..offset + len].to_vec()
    }

    fn run(&self, mut rq: DeviceRequest) {
        let result = {
            let mut state = self.state.lock();
            match state.fail {
                Some(kind) => {
                    if kind.may_be_a_loss(rq.op()) && (rq.op() == Op::Flush || rq.flags().fua) {
                        state.losses += 1;
                    }
                    Err(IoError::new(kind))
                }
                None => {
                    let (from, to) = (rq.offset() as usize, (rq.offset() + rq.len()) as usize);
                    match rq.op() {
                        Op::Read => {
                            rq.put(&state.data[from..to]);
                        }
                        Op::Write => {
                            rq.copy_to(&mut state.data[from..to]);
                        }
                        Op::WriteZeroes | Op::Discard => state.data[from..to].fill(0),
                        Op::Extents => {
                            let is_hole = |at: u64| state.holes.iter().any(|h| h.contains(&at));
                            for at in (rq.offset()..rq.offset() + rq.len()).step_by(512) {
                                let kind =
                                    if is_hole(at) { ExtentKind::Hole } else { ExtentKind::Data };
                                rq.put_extent(Extent { len: 512, kind });
                            }
                        }
                        _ => {}
                    }
                    Ok(())
                }
            }
        };
        rq.complete(result);
    }
}

impl BlockDevice for TestDevice {
    fn name(&self) -> &str {
        "test"
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn losses(&self) -> u64 {
        self.state.lock().losses
    }

    fn submit(&self, rq: DeviceRequest) {
        let mut state = self.state.lock();
        state.seen.push(Seen {
            op: rq.op(),
            offset: rq.offset(),
            len: rq.len(),
            fua: rq.flags().fua,
            no_unmap: rq.flags().no_unmap,
            fast: rq.flags().fast,
        });
        self.arrived.notify_all();
        if state.panic_at == Some(rq.offset()) && rq.op() == Op::Read {
            drop(state);
            panic!("this device panics on purpose");
        }
        if state.holding {
            state.held.push(rq);
        } else {
            drop(state);
            self.run(rq);
        }
    }
}

pub(crate) const TIB: u64 = 1 << 40;

/// An empty terabyte. It reports itself as one hole without an end, records the requests that reach
/// it, and holds them back on demand.
#[derive(Default)]
pub(crate) struct Vast {
    /// L: is the lock; guards the recorded requests: operation, offset and length.
    pub(crate) seen: Mutex<Vec<(Op, u64, u64)>>,
    /// L: is the lock; guards the held requests.
    pub(crate) held: Mutex<Option<Vec<DeviceRequest>>>,
}

impl Vast {
    pub(crate) fn wait_for_seen(&self, n: usize) {
        while self.seen.lock().len() < n {
            std::thread::yield_now();
        }
    }

    pub(crate) fn release(&self) {
        let held = self.held.lock().take();
        held.into_iter().flatten().for_each(|rq| rq.complete(Ok(())));
    }
}

impl BlockDevice for Vast {
    fn name(&self) -> &str {
        "vast"
    }

    fn geometry(&self) -> Geometry {
        Geometry { can_fast_zero: true, can_prefetch: true, ..Geometry::new(TIB) }
    }

    fn submit(&self, mut rq: DeviceRequest) {
        self.seen.lock().push((rq.op(), rq.offset(), rq.len()));
        match rq.op() {
            Op::Extents => _ = rq.put_extent(Extent { len: u64::MAX, kind: ExtentKind::Hole }),
            Op::Read => _ = rq.put_zeroes(rq.len()),
            _ => {}
        }
        if let Some(held) = &mut *self.held.lock() {
            return held.push(rq);
        }
        // The lock isn't held: a completion may submit another request.
        rq.complete(Ok(()));
    }
}

/// A reply of the transmission phase.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) cookie: u64,
    pub(crate) error: u32,
    pub(crate) data: Vec<u8>,
}

/// A reply to an option.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OptReply {
    pub(crate) option: OptionKind,
    pub(crate) kind: OptionReplyKind,
    pub(crate) data: Vec<u8>,
}

/// A client over any stream; it checks nothing and does as the test says.
pub(crate) struct Client<S = UnixStream> {
    pub(crate) stream: S,
    /// Form of its requests and of the replies that it takes.
    pub(crate) form: Form,
}

impl<S: Read + Write> Client<S> {
    /// Creates a client that has sent nothing.
    pub(crate) fn new(stream: S) -> Client<S> {
        Client { stream, form: Form::Simple }
    }

    /// Takes the greeting and answers with these flags.
    pub(crate) fn greet(stream: S, flags: ClientFlags) -> Client<S> {
        let mut client = Client::new(stream);
        let mut greeting = [0; GREETING_LEN];
        client.stream.read_exact(&mut greeting).unwrap();
        let greeting = Greeting::decode(&greeting).unwrap();
        assert_eq!(greeting.flags, HandshakeFlags::FIXED_NEWSTYLE | HandshakeFlags::NO_ZEROES);
        client.send(&flags.0.to_be_bytes());
        client
    }

    pub(crate) fn fixed(stream: S) -> Client<S> {
        Client::greet(stream, ClientFlags::FIXED_NEWSTYLE | ClientFlags::NO_ZEROES)
    }

    /// Negotiates as [`Client::fixed`] on a connection that the server may have closed meanwhile.
    pub(crate) fn fixed_or_gone(stream: S) -> Client<S> {
        let mut client = Client::new(stream);
        let _ = client.stream.read_exact(&mut [0; GREETING_LEN]);
        let _ = client.stream.write_all(&3_u32.to_be_bytes());
        client
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn option(&mut self, option: OptionKind, data: &[u8]) {
        let length = u32::try_from(data.len()).unwrap();
        let mut message = OptionHeader { option, length }.encode().to_vec();
        message.extend_from_slice(data);
        self.send(&message);
    }

    pub(crate) fn opt_reply(&mut self) -> OptReply {
        let mut head = [0; OPTION_REPLY_HEADER_LEN];
        self.stream.read_exact(&mut head).unwrap();
        let head = OptionReplyHeader::decode(&head).unwrap();
        let mut data = vec![0; head.length as usize];
        self.stream.read_exact(&mut data).unwrap();
        OptReply { option: head.option, kind: head.kind, data }
    }

    /// Chooses an export with `GO`.
    pub(crate) fn go(&mut self, name: &str) -> ExportSummary {
        self.option(OptionKind::GO, &GoRequest::encode(name, &[InfoKind::BLOCK_SIZE]));
        let mut summary = None;
        loop {
            let reply = self.opt_reply();
            assert_eq!(reply.option, OptionKind::GO);
            match reply.kind {
                OptionReplyKind::INFO if reply.data[..2] == [0, 0] => {
                    summary = Some(ExportSummary::decode(reply.data[2..].try_into().unwrap()));
                }
                OptionReplyKind::INFO => {}
                OptionReplyKind::ACK => return summary.expect("EXPORT comes before ACK"),
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) fn request(&mut self, command: Command, cookie: u64, offset: u64, length: u32) {
        self.request_with(CommandFlags::empty(), command, cookie, offset, length);
    }

    pub(crate) fn request_with(
        &mut self,
        flags: CommandFlags,
        command: Command,
        cookie: u64,
        offset: u64,
        length: u32,
    ) {
        self.send_request(Request { flags, command, cookie, offset, length: length.into() });
    }

    /// Sends a request without its payload.
    pub(crate) fn send_request(&mut self, request: Request) {
        match self.form {
            Form::Simple | Form::Structured => self.send(&request.encode()),
            Form::Extended => self.send(&request.encode_extended()),
        }
    }

    /// Sends the same read many times, each for one piece: the server has all of it or nothing.
    pub(crate) fn reads(&mut self, cookies: std::ops::Range<u64>, offset: u64, length: u32) {
        let (flags, command, length) = (CommandFlags::empty(), Command::READ, length.into());
        let read = |cookie| Request { flags, command, cookie, offset, length };
        let message: Vec<u8> = cookies.flat_map(|cookie| read(cookie).encode()).collect();
        self.send(&message);
    }

    pub(crate) fn write_request(&mut self, cookie: u64, offset: u64, data: &[u8]) {
        let flags =
            CommandFlags::empty().with_if(self.form == Form::Extended, CommandFlags::PAYLOAD_LEN);
        let (command, length) = (Command::WRITE, data.len() as u64);
        let head = Request { flags, command, cookie, offset, length };
        let mut message = match self.form {
            Form::Simple | Form::Structured => head.encode().to_vec(),
            Form::Extended => head.encode_extended().to_vec(),
        };
        message.extend_from_slice(data);
        self.send(&message);
    }

    /// Reads a reply; `len` bytes of data follow a successful one.
    pub(crate) fn reply(&mut self, len: usize) -> Reply {
        let mut head = [0; SIMPLE_REPLY_LEN];
        self.stream.read_exact(&mut head).unwrap();
        let head = SimpleReply::decode(&head).unwrap();
        let mut data = vec![0; if head.error == 0 { len } else { 0 }];
        self.stream.read_exact(&mut data).unwrap();
        Reply { cookie: head.cookie, error: head.error, data }
    }

    /// Sends one read, and takes its reply.
    pub(crate) fn read(&mut self, cookie: u64, offset: u64, len: u32) -> Reply {
        self.request(Command::READ, cookie, offset, len);
        self.reply(len as usize)
    }

    /// Receives until the end of the stream, whatever comes.
    pub(crate) fn drain_to_end(&mut self) {
        let mut sink = [0; 4096];
        while !matches!(self.stream.read(&mut sink), Ok(0) | Err(_)) {}
    }

    /// Expects the end of the stream, perhaps after refusals with `ESHUTDOWN`.
    pub(crate) fn expect_end_or_shutdown(&mut self) {
        let mut rest = Vec::new();
        let _ = self.stream.read_to_end(&mut rest);
        for reply in rest.chunks_exact(SIMPLE_REPLY_LEN) {
            let reply = SimpleReply::decode(reply.try_into().unwrap()).unwrap();
            assert_eq!(reply.error, ReplyError::Shutdown.code());
        }
    }

    /// Expects the end of the stream, with nothing before it.
    pub(crate) fn expect_end(&mut self) {
        let mut byte = [0];
        match self.stream.read(&mut byte) {
            Ok(0) => {}
            Ok(_) => panic!("a byte ({:#x}) where the end should be", byte[0]),
            // The server closed with unread bytes of ours.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Runs a test with this time for a deadline of the server's, which the test's own steps have to
/// meet too. On a busy machine they may not. Then the test runs again with four times the time, up
/// to four times in all.
pub(crate) fn with_time(time: Duration, test: impl Fn(Duration)) {
    for times in [1, 4, 16, 64] {
        if catch_unwind(AssertUnwindSafe(|| test(time * times))).is_ok() {
            return;
        }
    }
    test(time * 256);
}

/// Creates a server with one export, "disk", over this device.
pub(crate) fn server(device: Arc<TestDevice>) -> Server {
    server_with(device, Options::default())
}

pub(crate) fn server_with(device: Arc<TestDevice>, options: Options) -> Server {
    let server = Server::new(options);
    server.add_export(Export::new("disk", device).description("a test disk")).unwrap();
    server
}

/// Waits until the server has no more than `most` connections.
pub(crate) fn wait_for_connections(server: &Server, most: usize) {
    while server.connections() > most {
        std::thread::yield_now();
    }
}

/// Returns a request without flags.
pub(crate) fn request(command: Command, cookie: u64, offset: u64, length: u64) -> Request {
    Request { flags: CommandFlags::empty(), command, cookie, offset, length }
}

/// Connects one end of a socket pair to the server, and returns the other.
pub(crate) fn connect(server: &Server) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(PATIENCE)).unwrap();
    ours.set_write_timeout(Some(PATIENCE)).unwrap();
    server.serve(theirs).unwrap();
    ours
}

/// Connects a client and attaches it to the export.
pub(crate) fn client(server: &Server) -> Client {
    let mut client = Client::fixed(connect(server));
    client.go("disk");
    client
}
