//! The target for the client's side of the handshake: the input is the server's bytes.

use std::io;

use corewise_nbd::model::client_handshake::{
    Refusal, RemoteAgreement, Replies, Wire, choose, greet,
};
use corewise_nbd::wire::{
    BASE_ALLOCATION, BlockSizes, EXPORT_NAME_PADDING, ExportSummary, Greeting, HandshakeFlags,
    OptionKind, OptionReplyHeader, OptionReplyKind, TransmissionFlags, encode_info_block_size,
    encode_info_export, encode_meta_context,
};

use crate::seeds::Seed;

/// Largest number of bytes that a client sends in a handshake with a short name.
const MOST_SAID: usize = 256;

/// A server whose bytes were written down before.
struct Script<'a> {
    theirs: &'a [u8],
    said: usize,
}

impl Wire for Script<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let Some((now, later)) = self.theirs.split_at_checked(bytes.len()) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        bytes.copy_from_slice(now);
        self.theirs = later;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.said += bytes.len();
        Ok(())
    }
}

/// Returns the result of a handshake, and the number of bytes that were read.
fn shake(data: &[u8]) -> (Result<RemoteAgreement, Refusal>, usize) {
    let mut script = Script { theirs: data, said: 0 };
    let agreed = greet(&mut script)
        .and_then(|padded| choose(&mut script, "disk", padded, Replies::Structured, None));
    assert!(script.said <= MOST_SAID, "{} bytes said", script.said);
    (agreed, data.len() - script.theirs.len())
}

/// Shakes hands with a server that sends these bytes.
///
/// # Panics
/// If an agreement doesn't follow from the bytes up to its end alone, or one is claimed without
/// them.
pub fn remote(data: &[u8]) {
    let (agreed, read) = shake(data);
    let Ok(agreed) = agreed else { return };
    assert!(agreed.structured || agreed.allocation.is_none(), "block status without chunks");
    let (again, all) = shake(&data[..read]);
    assert_eq!((again.ok(), all), (Some(agreed), read), "bytes behind the end change it");
    for cut in [read - 1, read / 2] {
        assert!(shake(&data[..cut]).0.is_err(), "an agreement without its last bytes");
    }
}

fn reply(option: OptionKind, kind: OptionReplyKind, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
    [&OptionReplyHeader { option, kind, length }.encode()[..], data].concat()
}

/// Returns the seeds of this target.
pub(crate) fn seeds() -> Vec<Seed> {
    let greeting = |flags| Greeting { flags: HandshakeFlags(flags) }.encode().to_vec();
    let flags = TransmissionFlags::HAS_FLAGS | TransmissionFlags::SEND_FLUSH;
    let summary = ExportSummary { size: 1 << 30, flags };
    let (mut export, mut sizes, mut context) = (Vec::new(), Vec::new(), Vec::new());
    encode_info_export(&mut export, summary);
    encode_info_block_size(
        &mut sizes,
        BlockSizes { minimum: 512, preferred: 4096, maximum: 32 << 20 },
    );
    encode_meta_context(&mut context, 1, BASE_ALLOCATION);
    let (go, set) = (OptionKind::GO, OptionKind::SET_META_CONTEXT);
    let (ack, no) = (OptionReplyKind::ACK, OptionReplyKind::ERR_UNSUP);
    let structured = |kind| reply(OptionKind::STRUCTURED_REPLY, kind, &[]);
    vec![
        (
            "everything",
            [
                greeting(3),
                structured(ack),
                reply(set, OptionReplyKind::META_CONTEXT, &context),
                reply(set, ack, &[]),
                reply(go, OptionReplyKind::INFO, &export),
                reply(go, OptionReplyKind::INFO, &sizes),
                reply(go, ack, &[]),
            ]
            .concat(),
        ),
        (
            "nothing-but-export-name",
            [
                greeting(1),
                structured(no),
                reply(go, no, b"unknown"),
                summary.encode().to_vec(),
                vec![0; EXPORT_NAME_PADDING],
            ]
            .concat(),
        ),
        (
            "no-such-export",
            [
                greeting(3),
                structured(ack),
                reply(set, OptionReplyKind::ERR_UNKNOWN, b"no"),
                reply(go, OptionReplyKind::ERR_UNKNOWN, b"no"),
            ]
            .concat(),
        ),
        ("old-style", [&b"NBDMAGIC"[..], &0x0042_0281_8612_53ff_u64.to_be_bytes()].concat()),
    ]
}
