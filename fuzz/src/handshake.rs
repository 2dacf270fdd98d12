//! The target for the handshake machine.

use corewise_nbd::handshake::{
    Catalogue, CloseReason, ExportOffer, Handshake, NotAttached, NotOffered, Outcome, TlsPolicy,
    max_options,
};
use corewise_nbd::wire::{
    BlockSizes, EXPORT_NAME_PADDING, ExportSummary, MAX_STRING, OPTION_REPLY_HEADER_LEN,
    OptionHeader, OptionKind, OptionReplyHeader, OptionReplyKind, TransmissionFlags,
};

struct Shelf;

const NAMES: [&str; 2] = ["disk", "other"];
/// Name of an export without a place for one more client.
const FULL: &str = "full";

impl Catalogue for Shelf {
    fn find(&self, name: &str) -> Result<ExportOffer, NotOffered> {
        if name == "secret" {
            return Err(NotOffered::Forbidden("not for you".to_owned()));
        }
        let mut known = NAMES.iter().chain(&[FULL]);
        let name = known.find(|known| **known == name).ok_or(NotOffered::Unknown)?;
        Ok(ExportOffer {
            name: (*name).to_owned(),
            description: "a description".to_owned(),
            summary: ExportSummary { size: 1 << 30, flags: TransmissionFlags::HAS_FLAGS },
            block_sizes: BlockSizes { minimum: 512, preferred: 4096, maximum: 32 << 20 },
            checkpoints: vec!["monday".to_owned(), "t".repeat(64)],
            depth: true,
        })
    }

    fn attach(&self, name: &str) -> Result<(), NotAttached> {
        if name == FULL { Err(NotAttached::Full { places: 0, of: "here" }) } else { Ok(()) }
    }

    fn for_each(&self, each: &mut dyn FnMut(&str, &str)) {
        for name in NAMES {
            each(name, "a description");
        }
    }

    fn len(&self) -> usize {
        NAMES.len()
    }

    fn is_shutting_down(&self) -> bool {
        false
    }
}

/// Largest size of the replies to one batch of options before they are sent: the machine's own
/// bound, and one reply.
const MOST_AT_ONCE: usize = (64 << 10) + 2 * MAX_STRING + 1024;

/// Feeds the bytes in pieces of this size. Returns the replies, the number of bytes consumed, and
/// the outcome.
fn feed(data: &[u8], piece: usize) -> (Vec<u8>, usize, Outcome) {
    let mut machine = Handshake::new().extended_headers(true);
    let (mut pending, mut replies, mut consumed) = (Vec::new(), Vec::new(), 0);
    for bytes in data.chunks(piece) {
        pending.extend_from_slice(bytes);
        loop {
            let mut out = Vec::new();
            let progress = machine.advance(&pending, &Shelf, &mut out);
            assert!(progress.consumed <= pending.len(), "more consumed than there was");
            assert!(out.len() <= MOST_AT_ONCE, "{} bytes of replies at once", out.len());
            replies.extend_from_slice(&out);
            pending.drain(..progress.consumed);
            consumed += progress.consumed;
            match progress.outcome {
                Outcome::NeedMore => break,
                Outcome::SendFirst => assert!(progress.consumed > 0, "no progress"),
                end => {
                    let mut nothing = Vec::new();
                    let after = machine.advance(data, &Shelf, &mut nothing);
                    assert_eq!(after.consumed, 0, "bytes taken after the end");
                    assert!(nothing.is_empty(), "replies after the end");
                    return (replies, consumed, end);
                }
            }
        }
    }
    (replies, consumed, Outcome::NeedMore)
}

/// Feeds a handshake with TLS, byte by byte: these bytes in plain text up to `STARTTLS`, and the
/// plaintext of TLS behind it.
fn feed_to_tls(data: &[u8], policy: TlsPolicy) {
    let (mut machine, mut pending, mut said) =
        (Handshake::with_tls(policy).extended_headers(true), Vec::new(), Vec::new());
    for (at, byte) in data.iter().enumerate() {
        pending.push(*byte);
        said.clear();
        let progress = machine.advance(&pending, &Shelf, &mut said);
        pending.drain(..progress.consumed);
        if policy == TlsPolicy::Required {
            assert!(!matches!(progress.outcome, Outcome::Begin(_)), "it begins without TLS");
            assert!(!said.windows(11).any(|bytes| bytes == b"description"), "an export is told");
        }
        match progress.outcome {
            Outcome::NeedMore | Outcome::SendFirst => {}
            Outcome::StartTls => {
                let mut fresh = Handshake::with_tls(policy).extended_headers(true);
                let starttls = OptionHeader { option: OptionKind::STARTTLS, length: 0 }.encode();
                let head = [&data[..4], &starttls].concat();
                assert_eq!(fresh.advance(&head, &Shelf, &mut said).outcome, Outcome::StartTls);
                let end = |mut machine: Handshake| {
                    let mut out = Vec::new();
                    let progress = machine.advance(&data[at + 1..], &Shelf, &mut out);
                    (progress, out)
                };
                let (one, other) = (end(machine), end(fresh));
                // Only the number of options survives STARTTLS.
                if one.0.outcome != Outcome::Close(CloseReason::TooManyOptions) {
                    assert_eq!(one, other, "something of before counts in TLS");
                }
                return;
            }
            _ => return,
        }
    }
}

/// Runs a handshake over these bytes.
///
/// # Panics
/// If the answer depends on how the bytes are cut, or on plain text before TLS, a reply is
/// malformed, or the machine answers without bound.
pub fn handshake(data: &[u8]) {
    feed_to_tls(data, TlsPolicy::Allowed);
    feed_to_tls(data, TlsPolicy::Required);
    let whole = feed(data, data.len().max(1));
    let odd = 1 + usize::from(data.first().copied().unwrap_or(0)) % 31;
    for piece in [1, odd, 4096] {
        assert_eq!(feed(data, piece), whole, "pieces of {piece} bytes give another answer");
    }
    let (replies, consumed, outcome) = whole;
    assert!(consumed <= data.len());

    let mut rest = &replies[..];
    let mut finals = 0;
    while let Some((head, behind)) = rest.split_first_chunk::<OPTION_REPLY_HEADER_LEN>() {
        // The answer to EXPORT_NAME has no header, and nothing follows it.
        let Ok(head) = OptionReplyHeader::decode(head) else { break };
        let len = head.length as usize;
        assert!(len <= behind.len(), "a reply claims more than there is");
        if head.kind == OptionReplyKind::ACK || head.kind.is_error() {
            finals += 1;
        }
        if head.kind.is_error() {
            assert!(std::str::from_utf8(&behind[..len]).is_ok(), "a message that is no text");
        }
        rest = &behind[len..];
    }
    assert!(finals <= max_options(NAMES.len()) + 1, "{finals} options answered");
    match outcome {
        Outcome::Begin(agreed) => {
            assert!(
                agreed.form.has_chunks() || agreed.contexts.is_empty(),
                "block status without its form"
            );
            assert!(NAMES.contains(&&agreed.offer.name[..]), "an export that doesn't exist");
            assert!([0, 10, 10 + EXPORT_NAME_PADDING].contains(&rest.len()), "{}", rest.len());
        }
        _ => assert!(rest.is_empty(), "{} stray bytes", rest.len()),
    }
}
