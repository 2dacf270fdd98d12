//! The client's side of the handshake, over any byte stream, so that the fuzzer can be the server.
//!
//! The server isn't trusted: the data of replies is bounded, and so is their number.

use std::fmt;
use std::io;

use crate::wire::{
    BASE_ALLOCATION, BlockSizes, ClientFlags, DIRTY_BITMAP, EXPORT_NAME_PADDING, ExportSummary,
    GREETING_LEN, GoRequest, Greeting, HandshakeFlags, InfoKind, MAX_PAYLOAD, MetaRequest,
    OPTION_REPLY_HEADER_LEN, OptionHeader, OptionKind, OptionReplyHeader, OptionReplyKind,
    TransmissionFlags,
};

/// Largest data of one reply to an option, in bytes.
const MOST_DATA: u32 = 64 << 10;
/// Largest number of replies to one option.
const MOST_REPLIES: usize = 64;

/// Block sizes that a client assumes if the server gives none. The protocol then allows single
/// bytes; devices use blocks of 512.
pub(super) const USUAL_SIZES: BlockSizes =
    BlockSizes { minimum: 1, preferred: 4096, maximum: MAX_PAYLOAD };

/// A byte stream to the server. Both functions wait as long as its owner allows.
pub trait Wire {
    /// Fills `bytes`.
    ///
    /// # Errors
    /// If they don't come.
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<()>;

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// If they can't be sent.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// The form of replies that the client can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// Simple replies alone: all that Linux's client knows.
    Simple,
    /// Replies in chunks, and block status, if the server has them.
    Structured,
}

/// The properties of the export that the two sides agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteAgreement {
    /// Size and abilities.
    pub summary: ExportSummary,
    /// Block sizes that requests respect.
    pub sizes: BlockSizes,
    /// True if replies may come in chunks.
    pub structured: bool,
    /// Context number of `base:allocation`, or of a checkpoint, if block status may be requested.
    pub allocation: Option<u32>,
}

impl RemoteAgreement {
    /// Returns true if requests may go to either of two connections. Each connection has its own
    /// context numbers, so these may differ.
    pub(super) fn is_like(&self, other: &RemoteAgreement) -> bool {
        let allocation = self.allocation.or(other.allocation);
        RemoteAgreement { allocation, ..self.clone() }
            == RemoteAgreement { allocation, ..other.clone() }
            && self.allocation.is_some() == other.allocation.is_some()
    }

    /// The state before the server has said anything: an export without bytes.
    pub(super) const NOTHING: RemoteAgreement = RemoteAgreement {
        summary: ExportSummary { size: 0, flags: TransmissionFlags::empty() },
        sizes: USUAL_SIZES,
        structured: false,
        allocation: None,
    };
}

/// The reason why the handshake failed.
#[derive(Debug)]
pub enum Refusal {
    /// The bytes don't come, or can't be sent.
    Io(io::Error),
    /// The server refuses an option: the option, its reply, and its message.
    No(OptionKind, OptionReplyKind, String),
    /// The server violates the protocol.
    Wrong(String),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Refusal::Io(error)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Io(error) => match error.kind() {
                io::ErrorKind::UnexpectedEof => {
                    f.write_str("the remote server hung up during the handshake")
                }
                io::ErrorKind::TimedOut => f.write_str("the remote server did not answer in time"),
                _ => error.fmt(f),
            },
            Refusal::No(option, kind, words) => {
                match *kind {
                    OptionReplyKind::ERR_UNKNOWN => {
                        f.write_str("the remote server has no such export")?
                    }
                    OptionReplyKind::ERR_TLS_REQD => {
                        f.write_str("the remote server requires TLS (write nbds in the URI)")?
                    }
                    OptionReplyKind::ERR_SHUTDOWN => {
                        f.write_str("the remote server is shutting down")?
                    }
                    _ if *option == OptionKind::STARTTLS => {
                        write!(f, "the remote server refuses TLS ({kind})")?
                    }
                    _ => write!(f, "the remote server refuses {option} ({kind})")?,
                }
                if words.is_empty() { Ok(()) } else { write!(f, ": {words}") }
            }
            Refusal::Wrong(why) => write!(f, "the remote server violates the NBD protocol: {why}"),
        }
    }
}

fn wrong<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Wrong(why.into()))
}

/// Returns the text of an untrusted message: without control characters, and bounded in length.
pub(super) fn words(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

/// Exchanges the greeting. Returns true if the reply to `EXPORT_NAME` has padding.
///
/// # Errors
/// If the server doesn't negotiate.
pub fn greet(wire: &mut impl Wire) -> Result<bool, Refusal> {
    let mut greeting = [0; GREETING_LEN];
    wire.read(&mut greeting)?;
    let Greeting { flags } =
        Greeting::decode(&greeting).map_err(|error| Refusal::Wrong(error.to_string()))?;
    if !flags.contains(HandshakeFlags::FIXED_NEWSTYLE) {
        return wrong("the remote server offers only the old style of negotiation");
    }
    let no_zeroes = flags.contains(HandshakeFlags::NO_ZEROES);
    let ours = ClientFlags::FIXED_NEWSTYLE.with_if(no_zeroes, ClientFlags::NO_ZEROES);
    wire.write(&ours.0.to_be_bytes())?;
    Ok(!no_zeroes)
}

/// Asks for TLS: the bytes that follow belong to its handshake.
///
/// # Errors
/// If the server refuses it.
pub fn start_tls(wire: &mut impl Wire) -> Result<(), Refusal> {
    send(wire, OptionKind::STARTTLS, &[])?;
    answered(wire, OptionKind::STARTTLS, |_, _| wrong("an answer to STARTTLS"))
}

/// Chooses the export; the transmission phase begins after it. With a checkpoint, block status
/// tells what changed since.
///
/// # Errors
/// If the server has no such export or checkpoint, or refuses the client.
pub fn choose(
    wire: &mut impl Wire,
    export: &str,
    padded: bool,
    replies: Replies,
    checkpoint: Option<&str>,
) -> Result<RemoteAgreement, Refusal> {
    let mut agreed = RemoteAgreement::NOTHING;
    if replies == Replies::Structured {
        let option = OptionKind::STRUCTURED_REPLY;
        send(wire, option, &[])?;
        let answer = answered(wire, option, |_, _| wrong("an answer to STRUCTURED_REPLY"));
        agreed.structured = optional(answer)?;
    }
    if agreed.structured {
        let option = OptionKind::SET_META_CONTEXT;
        let context = match checkpoint {
            Some(name) => format!("{DIRTY_BITMAP}{name}"),
            None => BASE_ALLOCATION.to_owned(),
        };
        send(wire, option, &MetaRequest::encode(export, &[&context]))?;
        let mut found = None;
        let answer = answered(wire, option, |kind, data| match data.split_first_chunk::<4>() {
            Some((id, name))
                if kind == OptionReplyKind::META_CONTEXT && name == context.as_bytes() =>
            {
                found = Some(u32::from_be_bytes(*id));
                Ok(())
            }
            _ => wrong("an answer to SET_META_CONTEXT"),
        });
        agreed.allocation = optional(answer)?.then_some(found).flatten();
    }
    if let (Some(name), None) = (checkpoint, agreed.allocation) {
        return wrong(format!("the remote server has no checkpoint '{name}' of this export"));
    }
    send(wire, OptionKind::GO, &GoRequest::encode(export, &[InfoKind::BLOCK_SIZE]))?;
    let mut summary = None;
    let sizes = &mut agreed.sizes;
    let answer = answered(wire, OptionKind::GO, |kind, data| {
        let Some((info, rest)) = data.split_first_chunk::<2>() else {
            return wrong("information without its kind");
        };
        if kind != OptionReplyKind::INFO {
            return wrong(format!("{kind} as an answer to GO"));
        }
        match (InfoKind(u16::from_be_bytes(*info)), rest.len()) {
            (InfoKind::EXPORT, 10) => summary = rest.first_chunk().map(ExportSummary::decode),
            (InfoKind::BLOCK_SIZE, 12) => {
                let word = |at: usize| {
                    u32::from_be_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]])
                };
                *sizes = BlockSizes { minimum: word(0), preferred: word(4), maximum: word(8) };
            }
            (InfoKind::EXPORT | InfoKind::BLOCK_SIZE, length) => {
                return wrong(format!("information of {length} bytes"));
            }
            // A name, a description, or an unknown item.
            _ => {}
        }
        Ok(())
    });
    match answer {
        Ok(()) => {
            let Some(summary) = summary else {
                return wrong("the remote server reports no size of the export");
            };
            Ok(RemoteAgreement { summary, ..agreed })
        }
        // The server is older than GO.
        Err(Refusal::No(_, OptionReplyKind::ERR_UNSUP, _)) => {
            send(wire, OptionKind::EXPORT_NAME, export.as_bytes())?;
            let mut found = [0; 10];
            wire.read(&mut found)?;
            if padded {
                wire.read(&mut [0; EXPORT_NAME_PADDING])?;
            }
            Ok(RemoteAgreement { summary: ExportSummary::decode(&found), ..agreed })
        }
        Err(why) => Err(why),
    }
}

/// Returns whether the server has an option that it may lack.
fn optional(answer: Result<(), Refusal>) -> Result<bool, Refusal> {
    match answer {
        Ok(()) => Ok(true),
        // If something is wrong with the export, the reply to GO says it.
        Err(Refusal::No(..)) => Ok(false),
        Err(why) => Err(why),
    }
}

fn send(wire: &mut impl Wire, option: OptionKind, data: &[u8]) -> Result<(), Refusal> {
    let length = u32::try_from(data.len()).expect("names are short");
    let mut bytes = OptionHeader { option, length }.encode().to_vec();
    bytes.extend_from_slice(data);
    Ok(wire.write(&bytes)?)
}

/// Reads the replies to an option, and passes all but the last one to `each`.
fn answered(
    wire: &mut impl Wire,
    option: OptionKind,
    mut each: impl FnMut(OptionReplyKind, &[u8]) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    for _ in 0..MOST_REPLIES {
        let mut head = [0; OPTION_REPLY_HEADER_LEN];
        wire.read(&mut head)?;
        let head =
            OptionReplyHeader::decode(&head).map_err(|error| Refusal::Wrong(error.to_string()))?;
        if head.option != option || head.length > MOST_DATA {
            return wrong(format!(
                "a reply to {} of {} bytes, where {option} was asked for",
                head.option, head.length
            ));
        }
        let mut data = vec![0; head.length as usize];
        wire.read(&mut data)?;
        match head.kind {
            OptionReplyKind::ACK => return Ok(()),
            kind if kind.is_error() => return Err(Refusal::No(option, kind, words(&data))),
            kind => each(kind, &data)?,
        }
    }
    wrong(format!("more than {MOST_REPLIES} replies to {option}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{encode_info_block_size, encode_info_export, encode_meta_context};

    /// A server whose replies were written before.
    struct Script {
        theirs: Vec<u8>,
        at: usize,
        ours: Vec<u8>,
    }

    impl Wire for Script {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<()> {
            let end = self.at + bytes.len();
            let from = self.theirs.get(self.at..end).ok_or(io::ErrorKind::UnexpectedEof)?;
            bytes.copy_from_slice(from);
            self.at = end;
            Ok(())
        }
        fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.ours.extend_from_slice(bytes);
            Ok(())
        }
    }

    fn reply(option: OptionKind, kind: OptionReplyKind, data: &[u8]) -> Vec<u8> {
        let length = data.len() as u32;
        [&OptionReplyHeader { option, kind, length }.encode(), data].concat()
    }

    fn script(parts: &[Vec<u8>]) -> Script {
        Script { theirs: parts.concat(), at: 0, ours: Vec::new() }
    }

    const SUMMARY: ExportSummary =
        ExportSummary { size: 1 << 20, flags: TransmissionFlags::SEND_FLUSH };

    fn good() -> Vec<Vec<u8>> {
        let (mut export, mut sizes, mut context) = (Vec::new(), Vec::new(), Vec::new());
        encode_info_export(&mut export, SUMMARY);
        let theirs = BlockSizes { minimum: 512, preferred: 4096, maximum: 1 << 20 };
        encode_info_block_size(&mut sizes, theirs);
        encode_meta_context(&mut context, 7, BASE_ALLOCATION);
        let (go, set) = (OptionKind::GO, OptionKind::SET_META_CONTEXT);
        vec![
            reply(OptionKind::STRUCTURED_REPLY, OptionReplyKind::ACK, &[]),
            reply(set, OptionReplyKind::META_CONTEXT, &context),
            reply(set, OptionReplyKind::ACK, &[]),
            reply(go, OptionReplyKind::INFO, &export),
            reply(go, OptionReplyKind::INFO, &[0, 77, 1]),
            reply(go, OptionReplyKind::INFO, &sizes),
            reply(go, OptionReplyKind::ACK, &[]),
        ]
    }

    #[test]
    fn what_the_other_side_offers_is_agreed_on() {
        let agreed =
            choose(&mut script(&good()), "disk", false, Replies::Structured, None).unwrap();
        assert_eq!((agreed.summary, agreed.structured), (SUMMARY, true));
        assert_eq!((agreed.sizes.maximum, agreed.allocation), (1 << 20, Some(7)));
    }

    #[test]
    fn a_server_that_knows_nothing_but_export_name_will_do() {
        let no = OptionReplyKind::ERR_UNSUP;
        let parts = [
            reply(OptionKind::STRUCTURED_REPLY, no, b"what?"),
            reply(OptionKind::GO, no, &[]),
            SUMMARY.encode().to_vec(),
            vec![0; EXPORT_NAME_PADDING],
        ];
        let mut script = script(&parts);
        let agreed = choose(&mut script, "disk", true, Replies::Structured, None).unwrap();
        assert_eq!((agreed.summary, agreed.sizes), (SUMMARY, USUAL_SIZES));
        assert!(!agreed.structured && agreed.allocation.is_none());
        assert!(script.at == script.theirs.len() && script.ours.ends_with(b"disk"));
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        for (kind, says) in [
            (OptionReplyKind::ERR_UNKNOWN, "no such export: try 'b'"),
            (OptionReplyKind::ERR_TLS_REQD, "nbds"),
            (OptionReplyKind::ERR_POLICY, "refuses GO"),
        ] {
            let parts = [good()[..3].concat(), reply(OptionKind::GO, kind, b"try\x1b 'b'")];
            let why = choose(&mut script(&parts), "a", false, Replies::Structured, None)
                .unwrap_err()
                .to_string();
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn answers_that_are_none_end_the_handshake() {
        let go = OptionKind::GO;
        for (part, says) in [
            (reply(go, OptionReplyKind::ACK, &[]), "no size"),
            (reply(go, OptionReplyKind::INFO, &[0]), "kind"),
            (reply(go, OptionReplyKind::INFO, &[0, 0, 1]), "of 1 bytes"),
            (reply(OptionKind::LIST, OptionReplyKind::ACK, &[]), "LIST"),
            (vec![0; 20], "magic"),
            (reply(go, OptionReplyKind::INFO, &[0, 9]).repeat(65), "more than 64"),
        ] {
            let parts = [good()[..3].concat(), part];
            let why =
                choose(&mut script(&parts), "a", false, Replies::Structured, None).unwrap_err();
            assert!(matches!(why, Refusal::Wrong(_)) && why.to_string().contains(says), "{why}");
        }
        let whole = good().concat();
        for cut in 0..whole.len() {
            let why = choose(
                &mut script(&[whole[..cut].to_vec()]),
                "a",
                false,
                Replies::Structured,
                None,
            )
            .unwrap_err();
            assert!(matches!(why, Refusal::Io(_)), "{cut}: {why}");
        }
    }
}
