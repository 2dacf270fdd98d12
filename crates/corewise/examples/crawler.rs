//! A rate-limited crawler. It walks a web site on loopback, over real sockets, with few requests at
//! once and a pause between two of them. It retries if the server says "later".
//!
//! `cargo run --release -p corewise --example crawler`
//!
//! `max_active` is the limit: an item that waits on its socket counts, so no semaphore is needed. A
//! delayed item is the pause, and the second attempt: no thread sleeps. `blocking` is around the
//! socket, so that the CPU does other work.
#![allow(clippy::print_stdout, reason = "an example talks to its user")]

use std::collections::HashSet;
use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use corewise::prelude::*;
use corewise::sync::{Completion, Mutex};
use corewise::workqueue::blocking;

const PAGES: usize = 60;
const AT_ONCE: usize = 3;
const PAUSE: Duration = Duration::from_millis(2);
const RETRY: Duration = Duration::from_millis(10);
const SERVER_TAKES: Duration = Duration::from_millis(8);

/// Serves the site: page n links to the pages 2n and 2n + 1, and one back. Each 7th request is too
/// much.
fn serve(listener: &TcpListener, most: &AtomicUsize) {
    let (now, requests) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|threads| {
        for stream in listener.incoming() {
            let (Ok(mut stream), now, requests) = (stream, &now, &requests) else { continue };
            let mut line = String::new();
            let _ = BufReader::new(&stream).read_line(&mut line);
            let Some(page) = line.strip_prefix("GET /page/") else { return };
            let page: usize = page.trim().parse().unwrap_or(0);
            threads.spawn(move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let reply = if requests.fetch_add(1, Ordering::SeqCst) % 7 == 6 {
                    "503 later\n".into()
                } else {
                    let links = [2 * page, 2 * page + 1, page / 2];
                    let links = links.iter().filter(|link| (1..=PAGES).contains(*link));
                    links.fold("200\n".to_string(), |text, link| format!("{text}/page/{link}\n"))
                };
                std::thread::park_timeout(SERVER_TAKES);
                // The count goes down first: once the client has the reply, it may ask for the next
                // page.
                now.fetch_sub(1, Ordering::SeqCst);
                let _ = stream.write_all(reply.as_bytes());
            });
        }
    });
}

/// Makes one request. Returns `None` if the server is busy.
fn fetch(server: SocketAddr, page: usize) -> io::Result<Option<Vec<usize>>> {
    let mut text = String::new();
    blocking("a request", || {
        let mut stream = TcpStream::connect(server)?;
        writeln!(stream, "GET /page/{page}")?;
        stream.read_to_string(&mut text)
    })?;
    let mut lines = text.lines();
    let found = lines.next() == Some("200");
    let links = lines.filter_map(|link| link.strip_prefix("/page/")?.parse().ok());
    Ok(found.then(|| links.collect()))
}

struct Crawler {
    server: SocketAddr,
    queue: Workqueue,
    seen: Mutex<HashSet<usize>>,
    /// Time of the next request.
    next: Mutex<Instant>,
    requests: AtomicUsize,
    /// Number of pages that were found and aren't done.
    left: AtomicUsize,
    done: Completion,
}

impl Crawler {
    /// Adds a page that was found. Each page is visited once, when its turn comes.
    fn found(self: &Arc<Self>, page: usize) {
        if self.seen.lock().insert(page) {
            self.left.fetch_add(1, Ordering::SeqCst);
            self.visit(page, Duration::ZERO);
        }
    }

    /// Queues a visit for the next free turn, `after` from now or later.
    fn visit(self: &Arc<Self>, page: usize, after: Duration) {
        let turn = {
            let mut next = self.next.lock();
            *next = (*next + PAUSE).max(Instant::now());
            *next
        };
        let delay = turn.saturating_duration_since(Instant::now()).max(after);
        let crawler = Arc::clone(self);
        let visit = Work::new(move || crawler.run(page));
        self.queue
            .queue_delayed(&visit, delay)
            .expect("the crawl isn't over, and the queue is open");
    }

    fn run(self: &Arc<Self>, page: usize) {
        self.requests.fetch_add(1, Ordering::SeqCst);
        match fetch(self.server, page) {
            Ok(Some(links)) => links.into_iter().for_each(|link| self.found(link)),
            Ok(None) => return self.visit(page, RETRY),
            Err(error) => println!("page {page}: {error}"),
        }
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.done.complete();
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let server = listener.local_addr()?;
    let most: &'static AtomicUsize = Box::leak(Box::default());
    let serving = std::thread::spawn(move || serve(&listener, most));

    let pools = WorkerPools::new(&Machine::live()?);
    let queue = Workqueue::builder("crawler").max_active(AT_ONCE).build(&pools)?;
    let begin = Instant::now();
    let crawler = Arc::new(Crawler {
        server,
        queue,
        seen: Mutex::new(HashSet::new()),
        next: Mutex::new(begin),
        requests: AtomicUsize::new(0),
        left: AtomicUsize::new(0),
        done: Completion::new(),
    });
    crawler.found(1);
    crawler.done.wait();
    let took = begin.elapsed();
    pools.shutdown();
    writeln!(TcpStream::connect(server)?, "QUIT")?;
    serving.join().map_err(|_| "the server panicked")?;

    let pages = crawler.seen.lock().len();
    let (requests, most) = (crawler.requests.load(Ordering::SeqCst), most.load(Ordering::SeqCst));
    println!("{pages} of {PAGES} pages, {} of them asked for again", requests - pages);
    println!("{requests} requests in {took:.0?}, one each {:.1?}", took / requests as u32);
    println!("at most {most} at once, as the server saw it; {AT_ONCE} are allowed");
    assert!(pages == PAGES && most <= AT_ONCE && took > PAUSE * (requests as u32 - 1));
    Ok(())
}
