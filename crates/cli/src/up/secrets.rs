//! Keys of encrypted devices that the server can't read by itself: from file descriptors, and from
//! the user at the terminal.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};

use corewise_server::Secret;
use corewise_server::manifest::{Manifest, SecretSource};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::exit::Failure;

/// Returns the key of each encrypted device whose key isn't in a file or the environment.
pub(super) fn of(manifest: &Manifest) -> Result<BTreeMap<String, Secret>, Failure> {
    let mut secrets = BTreeMap::new();
    for (device, source) in manifest.secrets() {
        let secret = match source {
            SecretSource::Descriptor(fd) => of_descriptor(device, fd)?,
            SecretSource::Prompt { may_be_new } => ask(device, may_be_new)?,
        };
        secrets.insert(device.to_owned(), secret);
    }
    Ok(secrets)
}

/// Reads a key to the end of a file descriptor, such as a pipe.
fn of_descriptor(device: &str, fd: u32) -> Result<Secret, Failure> {
    let read = File::open(format!("/proc/self/fd/{fd}")).and_then(Secret::read);
    read.map_err(|error| {
        let why =
            format!("device '{device}': cannot read the key from file descriptor {fd}: {error}");
        Failure::new(why)
    })
}

/// Asks the user for a key; twice, if it may be that of a new volume.
fn ask(device: &str, may_be_new: bool) -> Result<Secret, Failure> {
    let failed = |why: String| Failure::new(format!("device '{device}': {why}"));
    let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty").map_err(|_| {
        failed(
            "there is no terminal to ask for its key. Give the device a 'key_file', a 'key_env' or \
             a 'key_fd'"
                .to_string(),
        )
    })?;
    let no_key = |error: io::Error| failed(format!("no key was read from the terminal: {error}"));
    let mut silent = SilentTerminal::new(terminal).map_err(no_key)?;
    let first = silent.ask(&format!("Key of device '{device}': ")).map_err(no_key)?;
    if may_be_new {
        let second = silent.ask("The same key again: ").map_err(no_key)?;
        if *first != *second {
            return Err(failed("the two keys differ. Start again".to_string()));
        }
    }
    Ok(first)
}

/// A terminal that doesn't show what the user types.
struct SilentTerminal {
    terminal: File,
    before: Termios,
}

impl SilentTerminal {
    fn new(terminal: File) -> io::Result<SilentTerminal> {
        let before = tcgetattr(&terminal)?;
        let mut now = before.clone();
        // The keys that interrupt come as bytes, so the terminal is always restored.
        now.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
        tcsetattr(&terminal, OptionalActions::Drain, &now)?;
        Ok(SilentTerminal { terminal, before })
    }

    /// Asks for a line.
    fn ask(&mut self, question: &str) -> io::Result<Secret> {
        self.terminal.write_all(question.as_bytes())?;
        let line = Secret::read(Line { terminal: &self.terminal, ended: false });
        self.terminal.write_all(b"\n")?;
        line
    }
}

impl Drop for SilentTerminal {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

/// A line of a terminal that gives each byte at once.
struct Line<'a> {
    terminal: &'a File,
    ended: bool,
}

/// Bytes of keys: Ctrl-C, Ctrl-D, Ctrl-U, and two that delete a character.
const INTERRUPT: u8 = 3;
const END: u8 = 4;
const KILL: u8 = 21;
const ERASE: [u8; 2] = [8, 127];

impl Read for Line<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let (mut len, mut byte) = (0, [0]);
        while !self.ended && len < bytes.len() {
            let n = (&*self.terminal).read(&mut byte)?;
            match byte[0] {
                _ if n == 0 => self.ended = true,
                b'\n' | b'\r' | END => self.ended = true,
                INTERRUPT => return Err(io::Error::other("interrupted")),
                KILL => len = 0,
                key if ERASE.contains(&key) => {
                    // The bytes of a character in UTF-8 go together.
                    while len != 0 {
                        len -= 1;
                        if bytes[len] & 0xc0 != 0x80 {
                            break;
                        }
                    }
                }
                other => {
                    bytes[len] = other;
                    len += 1;
                }
            }
        }
        Ok(len)
    }
}
