//! A server between an S3 client and an S3 server. It forwards requests, cuts connections and gives
//! wrong answers, as a judge decides.

use std::io::{BufRead as _, BufReader, Error, ErrorKind, Read as _, Result, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::{Mutex, Parker, thread};

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The request is done.
    Done,
    /// The connection is cut before the server has the request.
    CutBefore,
    /// The server has half of the request when the connection is cut.
    CutAmid,
    /// The server has answered, and its answer is lost.
    CutAfter,
    /// The client has half of the answer when the connection is cut.
    CutAnswer,
    /// The request isn't done, and the answer has this number.
    Refused(u16),
    /// The request is done, and the answer has this number.
    Unsaid(u16),
    /// The request isn't done, if it is a PUT, and the answer says that it is. Other requests are
    /// done.
    Forgotten,
}

/// The parts of a request that a judge sees.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// GET, PUT and so on.
    pub(crate) method: String,
}

/// A function that decides on requests in the order in which they come. It returns the fate of
/// each, and the time that it waits before.
pub(crate) type Judge = Box<dyn FnMut(&Asked) -> (Fate, Duration) + Send>;

/// The proxy. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    here: SocketAddr,
    ended: Arc<AtomicBool>,
}

struct Shared {
    /// I: the server behind the proxy.
    there: SocketAddr,
    /// L: is the lock.
    judge: Mutex<Judge>,
    /// A: true once the proxy ends; Relaxed, since no other memory depends on it.
    ended: Arc<AtomicBool>,
}

impl Proxy {
    /// Starts a proxy on a free port in front of the server `there`.
    ///
    /// # Panics
    /// There is no port or no thread for it.
    pub(crate) fn new(there: SocketAddr, judge: Judge) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let here = listener.local_addr().expect("a port");
        let ended = Arc::new(AtomicBool::new(false));
        let shared = Shared { there, judge: Mutex::new(judge), ended: Arc::clone(&ended) };
        let shared = Arc::new(shared);
        let accept = move || {
            for client in listener.incoming().flatten() {
                if shared.ended.load(Ordering::Relaxed) {
                    break;
                }
                let shared = Arc::clone(&shared);
                let serve = move || {
                    // An error means that the proxy or one of the two has cut the connection.
                    let _ = serve(&shared, &client);
                    let _ = client.shutdown(Shutdown::Both);
                };
                thread::Builder::new().name("proxied".into()).spawn(serve).expect("a thread");
            }
        };
        thread::Builder::new().name("proxy".into()).spawn(accept).expect("a thread");
        Self { here, ended }
    }

    /// Returns the proxy's address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.here
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // The connection wakes the thread, which then reads `ended`.
        let _ = TcpStream::connect(self.here);
    }
}

/// Serves the requests of one connection.
fn serve(shared: &Shared, mut client: &TcpStream) -> Result<()> {
    let server = TcpStream::connect(shared.there)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut requests, mut answers) = (BufReader::new(client), BufReader::new(&server));
    loop {
        let request = message(&mut requests, false)?;
        let asked = request.asked()?;
        let (fate, pause) = (shared.judge.lock())(&asked);
        if pause > Duration::ZERO {
            Parker::new().park_timeout(pause);
        }
        let send = |bytes: &[u8]| (&server).write_all(bytes);
        let whole = request.bytes.len();
        let fate = match fate {
            Fate::Forgotten if asked.method != "PUT" => Fate::Done,
            fate => fate,
        };
        match fate {
            Fate::CutBefore => return Ok(()),
            Fate::CutAmid => {
                send(&request.bytes[..(request.head + whole) / 2])?;
                server.shutdown(Shutdown::Both)?;
                return Ok(());
            }
            Fate::Refused(number) => {
                client.write_all(refusal(number).as_bytes())?;
                continue;
            }
            Fate::Forgotten => {
                client.write_all(
                    b"HTTP/1.1 200 OK\r\nETag: \"forgotten\"\r\nContent-Length: 0\r\n\r\n",
                )?;
                continue;
            }
            Fate::Done | Fate::CutAfter | Fate::CutAnswer | Fate::Unsaid(_) => {}
        }
        send(&request.bytes)?;
        let answer = message(&mut answers, asked.method == "HEAD")?;
        match fate {
            Fate::CutAfter => return Ok(()),
            Fate::CutAnswer => return client.write_all(&answer.bytes[..answer.bytes.len() / 2]),
            Fate::Unsaid(number) => client.write_all(refusal(number).as_bytes())?,
            _ => client.write_all(&answer.bytes)?,
        }
    }
}

fn refusal(number: u16) -> String {
    let body = "<Error><Code>SlowDown</Code><Message>on purpose</Message></Error>";
    let len = body.len();
    format!("HTTP/1.1 {number} On purpose\r\nContent-Length: {len}\r\n\r\n{body}")
}

/// A request or an answer, with its head's length.
struct Message {
    bytes: Vec<u8>,
    head: usize,
}

impl Message {
    fn asked(&self) -> Result<Asked> {
        let line = self.bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        let Some((method, _)) = line.split_once(' ') else {
            return Err(Error::new(ErrorKind::InvalidData, "no request"));
        };
        Ok(Asked { method: method.to_owned() })
    }
}

fn message(from: &mut BufReader<&TcpStream>, without_body: bool) -> Result<Message> {
    let mut bytes = Vec::new();
    let mut length = 0;
    let mut chunked = false;
    while !bytes.ends_with(b"\r\n\r\n") {
        let begin = bytes.len();
        if from.read_until(b'\n', &mut bytes)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let line = String::from_utf8_lossy(&bytes[begin..]).to_ascii_lowercase();
        if let Some(number) = line.strip_prefix("content-length:") {
            let number = number.trim().parse::<usize>();
            length = number.map_err(|_| Error::new(ErrorKind::InvalidData, "no length"))?;
        }
        chunked |= line.starts_with("transfer-encoding:") && line.contains("chunked");
    }
    let head = bytes.len();
    if without_body {
        return Ok(Message { bytes, head });
    }
    if chunked {
        loop {
            let begin = bytes.len();
            from.read_until(b'\n', &mut bytes)?;
            let line = String::from_utf8_lossy(&bytes[begin..]).into_owned();
            let number = line.trim().split(';').next().unwrap_or_default();
            let size = usize::from_str_radix(number, 16);
            let size = size.map_err(|_| Error::new(ErrorKind::InvalidData, "no chunk"))?;
            from.by_ref().take(size as u64 + 2).read_to_end(&mut bytes)?;
            if size == 0 {
                return Ok(Message { bytes, head });
            }
        }
    }
    let read = from.by_ref().take(length as u64).read_to_end(&mut bytes)?;
    if read < length { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(Message { bytes, head }) }
}
