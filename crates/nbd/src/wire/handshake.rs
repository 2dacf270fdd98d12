//! The messages of the handshake: greeting, client flags, options, replies to options, metadata
//! contexts.

use super::{
    BadMagic, ClientFlags, HandshakeFlags, InfoKind, MAX_STRING, NBD_MAGIC, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, OptionKind, OptionReplyKind, TransmissionFlags, be,
};

/// Length of the server's greeting in bytes.
pub const GREETING_LEN: usize = 18;
/// Length of the head of an option in bytes.
pub const OPTION_HEADER_LEN: usize = 16;
/// Length of the head of a reply to an option in bytes.
pub const OPTION_REPLY_HEADER_LEN: usize = 20;

/// The server's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Abilities of the server.
    pub flags: HandshakeFlags,
}

impl Greeting {
    /// Encodes the greeting.
    pub fn encode(&self) -> [u8; GREETING_LEN] {
        let mut out = [0; GREETING_LEN];
        out[0..8].copy_from_slice(&NBD_MAGIC.to_be_bytes());
        out[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        out[16..18].copy_from_slice(&self.flags.0.to_be_bytes());
        out
    }

    /// Decodes a greeting.
    ///
    /// # Errors
    /// `BadMagic` if one of the two magic numbers is wrong (an old-style server sends another
    /// second number).
    pub fn decode(bytes: &[u8; GREETING_LEN]) -> Result<Greeting, BadMagic> {
        for (at, expected) in [(0, NBD_MAGIC), (8, OPTION_MAGIC)] {
            let found = be::u64(bytes, at);
            if found != expected {
                return Err(BadMagic { found, expected });
            }
        }
        Ok(Greeting { flags: HandshakeFlags(be::u16(bytes, 16)) })
    }
}

/// Decodes the client's answer to the greeting.
pub fn decode_client_flags(bytes: [u8; 4]) -> ClientFlags {
    ClientFlags(u32::from_be_bytes(bytes))
}

/// The head of an option; `length` bytes of data follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// The option.
    pub option: OptionKind,
    /// Length of the data in bytes, as claimed by the client.
    pub length: u32,
}

impl OptionHeader {
    /// Decodes the head of an option.
    ///
    /// # Errors
    /// `BadMagic` if the bytes don't begin with `IHAVEOPT`.
    pub fn decode(bytes: &[u8; OPTION_HEADER_LEN]) -> Result<OptionHeader, BadMagic> {
        let found = be::u64(bytes, 0);
        if found != OPTION_MAGIC {
            return Err(BadMagic { found, expected: OPTION_MAGIC });
        }
        Ok(OptionHeader { option: OptionKind(be::u32(bytes, 8)), length: be::u32(bytes, 12) })
    }

    /// Encodes the head.
    pub fn encode(&self) -> [u8; OPTION_HEADER_LEN] {
        let mut out = [0; OPTION_HEADER_LEN];
        out[0..8].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        out[8..12].copy_from_slice(&self.option.0.to_be_bytes());
        out[12..16].copy_from_slice(&self.length.to_be_bytes());
        out
    }
}

/// The head of a reply to an option; `length` bytes of data follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReplyHeader {
    /// The option that this answers.
    pub option: OptionKind,
    /// The answer.
    pub kind: OptionReplyKind,
    /// Length of the data in bytes.
    pub length: u32,
}

impl OptionReplyHeader {
    /// Encodes the head.
    pub fn encode(&self) -> [u8; OPTION_REPLY_HEADER_LEN] {
        let mut out = [0; OPTION_REPLY_HEADER_LEN];
        out[0..8].copy_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
        out[8..12].copy_from_slice(&self.option.0.to_be_bytes());
        out[12..16].copy_from_slice(&self.kind.0.to_be_bytes());
        out[16..20].copy_from_slice(&self.length.to_be_bytes());
        out
    }

    /// Decodes the head of a reply to an option.
    ///
    /// # Errors
    /// `BadMagic` if the bytes don't begin with the number of an option reply.
    pub fn decode(bytes: &[u8; OPTION_REPLY_HEADER_LEN]) -> Result<OptionReplyHeader, BadMagic> {
        let found = be::u64(bytes, 0);
        if found != OPTION_REPLY_MAGIC {
            return Err(BadMagic { found, expected: OPTION_REPLY_MAGIC });
        }
        Ok(OptionReplyHeader {
            option: OptionKind(be::u32(bytes, 8)),
            kind: OptionReplyKind(be::u32(bytes, 12)),
            length: be::u32(bytes, 16),
        })
    }
}

/// Size and abilities of an export: the answer to `EXPORT_NAME`, and the piece of information
/// `EXPORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportSummary {
    /// Size in bytes.
    pub size: u64,
    /// Abilities of the export.
    pub flags: TransmissionFlags,
}

impl ExportSummary {
    /// Encodes the ten bytes that both messages contain.
    pub fn encode(&self) -> [u8; 10] {
        let mut out = [0; 10];
        out[0..8].copy_from_slice(&self.size.to_be_bytes());
        out[8..10].copy_from_slice(&self.flags.0.to_be_bytes());
        out
    }

    /// Decodes the ten bytes.
    pub fn decode(bytes: &[u8; 10]) -> ExportSummary {
        ExportSummary { size: be::u64(bytes, 0), flags: TransmissionFlags(be::u16(bytes, 8)) }
    }
}

/// The sizes that requests of the transmission phase have to respect, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Power of two that divides offsets and lengths.
    pub minimum: u32,
    /// The smallest size that is served without extra cost.
    pub preferred: u32,
    /// The largest payload of a `READ` or `WRITE`.
    pub maximum: u32,
}

/// Appends the data of the piece of information `EXPORT`.
pub fn encode_info_export(out: &mut Vec<u8>, summary: ExportSummary) {
    out.extend_from_slice(&InfoKind::EXPORT.0.to_be_bytes());
    out.extend_from_slice(&summary.encode());
}

/// Appends the data of the piece of information `NAME` or `DESCRIPTION`.
pub fn encode_info_text(out: &mut Vec<u8>, kind: InfoKind, text: &str) {
    out.extend_from_slice(&kind.0.to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Appends the data of the piece of information `BLOCK_SIZE`.
pub fn encode_info_block_size(out: &mut Vec<u8>, sizes: BlockSizes) {
    out.extend_from_slice(&InfoKind::BLOCK_SIZE.0.to_be_bytes());
    for size in [sizes.minimum, sizes.preferred, sizes.maximum] {
        out.extend_from_slice(&size.to_be_bytes());
    }
}

/// Appends the data of a reply `SERVER`: a name, followed by a description for people.
pub fn encode_server_entry(out: &mut Vec<u8>, name: &str, description: &str) {
    let len = u32::try_from(name.len()).expect("names are at most MAX_STRING bytes long");
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(description.as_bytes());
}

/// The data of `INFO` and of `GO`: a name, and the kinds of information that the client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoRequest<'a> {
    /// Name of the export; empty means the default one.
    pub name: &'a str,
    /// Kinds of information, as sent: unknown kinds and repetitions included.
    pub info: &'a [u8],
}

/// A fault in the data of `INFO` or `GO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MalformedGo {
    /// The data ends before the name or the list does.
    Truncated,
    /// Bytes follow the list.
    Trailing,
    /// The name is longer than the protocol allows.
    NameTooLong,
    /// The name is not UTF-8, or contains a NUL.
    NameNotText,
}

impl MalformedGo {
    /// Returns the message for the client.
    pub fn message(self) -> &'static str {
        match self {
            MalformedGo::Truncated => "the data ends within the name or the list of requests",
            MalformedGo::Trailing => "bytes follow the list of requests",
            MalformedGo::NameTooLong => "the export name is longer than 4096 bytes",
            MalformedGo::NameNotText => "the export name is not UTF-8 text",
        }
    }
}

impl<'a> GoRequest<'a> {
    /// Decodes the data of an `INFO` or `GO` option. Nothing is copied or allocated.
    ///
    /// # Errors
    /// The error names the malformed part. The lengths inside are never trusted.
    pub fn decode(data: &'a [u8]) -> Result<GoRequest<'a>, MalformedGo> {
        let (len, rest) = data.split_first_chunk::<4>().ok_or(MalformedGo::Truncated)?;
        let len = u32::from_be_bytes(*len) as usize;
        if len > rest.len() {
            return Err(MalformedGo::Truncated);
        }
        if len > MAX_STRING {
            return Err(MalformedGo::NameTooLong);
        }
        let (name, rest) = rest.split_at(len);
        let (count, info) = rest.split_first_chunk::<2>().ok_or(MalformedGo::Truncated)?;
        match info.len().cmp(&(usize::from(u16::from_be_bytes(*count)) * 2)) {
            std::cmp::Ordering::Less => return Err(MalformedGo::Truncated),
            std::cmp::Ordering::Greater => return Err(MalformedGo::Trailing),
            std::cmp::Ordering::Equal => {}
        }
        let name = decode_export_name(name).ok_or(MalformedGo::NameNotText)?;
        Ok(GoRequest { name, info })
    }

    /// Returns the kinds of information, in the order of the client.
    pub fn kinds(&self) -> impl Iterator<Item = InfoKind> + 'a {
        self.info.chunks_exact(2).map(|kind| InfoKind(be::u16(kind, 0)))
    }

    /// Encodes the data of an option `INFO` or `GO`.
    pub fn encode(name: &str, kinds: &[InfoKind]) -> Vec<u8> {
        let mut out = Vec::with_capacity(name.len() + 6 + kinds.len() * 2);
        encode_server_entry(&mut out, name, "");
        let count = u16::try_from(kinds.len()).expect("a caller asks for a handful of kinds");
        out.extend_from_slice(&count.to_be_bytes());
        for kind in kinds {
            out.extend_from_slice(&kind.0.to_be_bytes());
        }
        out
    }
}

/// Decodes the data of `EXPORT_NAME`, and any other name from the wire: UTF-8 without NUL, not
/// longer than the protocol allows. Returns `None` for anything else.
pub fn decode_export_name(bytes: &[u8]) -> Option<&str> {
    if bytes.len() > MAX_STRING || bytes.contains(&0) {
        return None;
    }
    std::str::from_utf8(bytes).ok()
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaRequest<'a> {
    /// Name of the export; empty means the default one.
    pub name: &'a str,
    /// Queries for contexts, each `namespace:leaf`.
    pub queries: Vec<&'a str>,
}

/// A fault in the data of `LIST_META_CONTEXT` or `SET_META_CONTEXT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MalformedMeta {
    /// The data ends before the name or the queries do.
    Truncated,
    /// Bytes follow the queries.
    Trailing,
    /// The name is no UTF-8 text without NUL, or too long.
    NameNotText,
    /// A query is no UTF-8 text without NUL, or too long, or has no namespace.
    BadQuery,
}

impl MalformedMeta {
    /// Returns the message for the client.
    pub fn message(self) -> &'static str {
        match self {
            MalformedMeta::Truncated => "the data ends within the name or the queries",
            MalformedMeta::Trailing => "bytes follow the queries",
            MalformedMeta::NameNotText => {
                "the export name is no UTF-8 text, or longer than 4096 bytes"
            }
            MalformedMeta::BadQuery => {
                "a query is a namespace, a colon and a name, in 4096 bytes of UTF-8 text at most"
            }
        }
    }
}

fn string<'a>(data: &mut &'a [u8]) -> Result<&'a [u8], MalformedMeta> {
    let length = number(data)? as usize;
    let (string, rest) = data.split_at_checked(length).ok_or(MalformedMeta::Truncated)?;
    *data = rest;
    Ok(string)
}

fn number(data: &mut &[u8]) -> Result<u32, MalformedMeta> {
    let (number, rest) = data.split_first_chunk::<4>().ok_or(MalformedMeta::Truncated)?;
    *data = rest;
    Ok(u32::from_be_bytes(*number))
}

impl<'a> MetaRequest<'a> {
    /// Decodes the data of such an option. It allocates no more than the length of the data,
    /// whatever the data claims.
    ///
    /// # Errors
    /// The error names the malformed part.
    pub fn decode(mut data: &'a [u8]) -> Result<MetaRequest<'a>, MalformedMeta> {
        let name = string(&mut data)?;
        let name = decode_export_name(name).ok_or(MalformedMeta::NameNotText)?;
        let mut queries = Vec::new();
        for _ in 0..number(&mut data)? {
            let query = decode_export_name(string(&mut data)?).ok_or(MalformedMeta::BadQuery)?;
            if query.split_once(':').is_none_or(|(namespace, _)| namespace.is_empty()) {
                return Err(MalformedMeta::BadQuery);
            }
            queries.push(query);
        }
        if data.is_empty() {
            Ok(MetaRequest { name, queries })
        } else {
            Err(MalformedMeta::Trailing)
        }
    }

    /// Encodes the data of such an option.
    ///
    /// # Panics
    /// If a string is longer than the protocol allows.
    pub fn encode(name: &str, queries: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        let string = |text: &str, out: &mut Vec<u8>| {
            assert!(text.len() <= MAX_STRING, "a string of {} bytes", text.len());
            out.extend_from_slice(&(text.len() as u32).to_be_bytes());
            out.extend_from_slice(text.as_bytes());
        };
        string(name, &mut out);
        out.extend_from_slice(&(queries.len() as u32).to_be_bytes());
        queries.iter().for_each(|query| string(query, &mut out));
        out
    }
}

/// Appends the data of a reply `META_CONTEXT`.
pub fn encode_meta_context(out: &mut Vec<u8>, id: u32, name: &str) {
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(name.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting_has_the_bytes_of_the_specification() {
        let greeting =
            Greeting { flags: HandshakeFlags::FIXED_NEWSTYLE | HandshakeFlags::NO_ZEROES };
        let bytes = greeting.encode();
        assert_eq!(&bytes[..16], b"NBDMAGICIHAVEOPT");
        assert_eq!(bytes[16..], [0, 3]);
        assert_eq!(Greeting::decode(&bytes), Ok(greeting));
        assert!(Greeting::decode(&[b'N'; GREETING_LEN]).is_err());
    }

    #[test]
    fn option_heads_survive_the_round_trip_and_refuse_another_magic() {
        let head = OptionHeader { option: OptionKind::GO, length: 9 };
        assert_eq!(OptionHeader::decode(&head.encode()), Ok(head));
        let reply = OptionReplyHeader {
            option: OptionKind::GO,
            kind: OptionReplyKind::ERR_UNKNOWN,
            length: 3,
        };
        assert_eq!(OptionReplyHeader::decode(&reply.encode()), Ok(reply));
        assert!(reply.kind.is_error() && !OptionReplyKind::ACK.is_error());
        assert!(OptionHeader::decode(&[0; OPTION_HEADER_LEN]).is_err());
        assert!(OptionReplyHeader::decode(&[0; OPTION_REPLY_HEADER_LEN]).is_err());
    }

    #[test]
    fn go_data_survives_the_round_trip() {
        let data = GoRequest::encode("disk", &[InfoKind::NAME, InfoKind(77)]);
        let go = GoRequest::decode(&data).unwrap();
        assert_eq!(go.name, "disk");
        assert_eq!(go.kinds().collect::<Vec<_>>(), [InfoKind::NAME, InfoKind(77)]);
    }

    #[test]
    fn malformed_go_data_is_named() {
        let good = GoRequest::encode("disk", &[InfoKind::NAME]);
        for cut in 0..good.len() {
            assert_eq!(GoRequest::decode(&good[..cut]), Err(MalformedGo::Truncated), "{cut}");
        }
        let mut longer = good.clone();
        longer.push(0);
        assert_eq!(GoRequest::decode(&longer), Err(MalformedGo::Trailing));
        let mut lying = good.clone();
        lying[0] = 0xff;
        assert_eq!(GoRequest::decode(&lying), Err(MalformedGo::Truncated));
        let mut nul = good;
        nul[5] = 0;
        assert_eq!(GoRequest::decode(&nul), Err(MalformedGo::NameNotText));
        let long = GoRequest::encode(&"x".repeat(MAX_STRING + 1), &[]);
        assert_eq!(GoRequest::decode(&long), Err(MalformedGo::NameTooLong));
    }

    #[test]
    fn a_choice_of_contexts_survives_the_round_trip_and_a_malformed_one_is_named() {
        let data = MetaRequest::encode("disk", &["base:allocation", "x-other:"]);
        let meta = MetaRequest::decode(&data).unwrap();
        assert_eq!((meta.name, meta.queries), ("disk", vec!["base:allocation", "x-other:"]));
        for cut in 0..data.len() {
            assert_eq!(MetaRequest::decode(&data[..cut]), Err(MalformedMeta::Truncated), "{cut}");
        }
        let longer = [data.as_slice(), &[0]].concat();
        assert_eq!(MetaRequest::decode(&longer), Err(MalformedMeta::Trailing));
        for bad in ["base", ":allocation", ""] {
            let data = MetaRequest::encode("", &[bad]);
            assert_eq!(MetaRequest::decode(&data), Err(MalformedMeta::BadQuery), "{bad}");
        }
        let mut nul = data.clone();
        nul[5] = 0;
        assert_eq!(MetaRequest::decode(&nul), Err(MalformedMeta::NameNotText));
        // A count or a length that the data can't hold costs nothing.
        let mut lying = data;
        lying[8] = 0xff;
        assert_eq!(MetaRequest::decode(&lying), Err(MalformedMeta::Truncated));
    }
}
