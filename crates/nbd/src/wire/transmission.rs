//! The messages of the transmission phase but chunks: requests of 28 bytes or, extended, 32, and 16-byte simple replies.

use super::{
    BadMagic, Command, CommandFlags, EXTENDED_REQUEST_MAGIC, Form, REQUEST_MAGIC, ReplyError,
    SIMPLE_REPLY_MAGIC, be,
};

/// Length of a request without its payload, in bytes.
pub const REQUEST_LEN: usize = 28;
/// Length of an extended request without its payload, in bytes.
pub const EXTENDED_REQUEST_LEN: usize = 32;
/// Length of a simple reply without its payload, in bytes.
pub const SIMPLE_REPLY_LEN: usize = 16;
/// Length of a [`StatusQuery`] in bytes.
pub const STATUS_QUERY_LEN: usize = 12;

/// A request, as the client sent it: nothing in it has been checked but its magic number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Modifiers.
    pub flags: CommandFlags,
    /// What is asked for.
    pub command: Command,
    /// The client's name for this request; the reply repeats it.
    pub cookie: u64,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range in bytes, or of [the payload](Request::payload_len); of a `WRITE` both are one.
    pub length: u64,
}

impl Request {
    /// Reads a request from its 28 bytes.
    ///
    /// # Errors
    /// That of [`Form::check_request`].
    pub fn decode(bytes: &[u8; REQUEST_LEN]) -> Result<Request, BadMagic> {
        Request::with_length(bytes, Form::Simple, be::u32(bytes, 24).into())
    }

    /// Reads an extended request from its 32 bytes.
    ///
    /// # Errors
    /// As [`Request::decode`].
    pub fn decode_extended(bytes: &[u8; EXTENDED_REQUEST_LEN]) -> Result<Request, BadMagic> {
        Request::with_length(bytes, Form::Extended, be::u64(bytes, 24))
    }

    /// Reads what both have, from the first 24 bytes.
    fn with_length(bytes: &[u8], form: Form, length: u64) -> Result<Request, BadMagic> {
        form.check_request([bytes[0], bytes[1], bytes[2], bytes[3]])?;
        Ok(Request {
            flags: CommandFlags(be::u16(bytes, 4)),
            command: Command(be::u16(bytes, 6)),
            cookie: be::u64(bytes, 8),
            offset: be::u64(bytes, 16),
            length,
        })
    }

    /// The bytes of the request.
    ///
    /// # Panics
    /// Where the length has more than 32 bits.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let length = u32::try_from(self.length).expect("a compact request has a 32-bit length");
        let mut out = [0; REQUEST_LEN];
        self.encode_front(REQUEST_MAGIC, &mut out);
        out[24..28].copy_from_slice(&length.to_be_bytes());
        out
    }

    /// The bytes of the extended request.
    pub fn encode_extended(&self) -> [u8; EXTENDED_REQUEST_LEN] {
        let mut out = [0; EXTENDED_REQUEST_LEN];
        self.encode_front(EXTENDED_REQUEST_MAGIC, &mut out);
        out[24..32].copy_from_slice(&self.length.to_be_bytes());
        out
    }

    fn encode_front(&self, magic: u32, out: &mut [u8]) {
        out[0..4].copy_from_slice(&magic.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.0.to_be_bytes());
        out[6..8].copy_from_slice(&self.command.0.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
    }

    /// How many bytes of payload follow the request on the wire: of a compact one those of a `WRITE`, of an extended one those
    /// that its flag `PAYLOAD_LEN` promises, whatever its command.
    pub fn payload_len(&self, form: Form) -> u64 {
        let has = match form {
            Form::Simple | Form::Structured => self.command == Command::WRITE,
            Form::Extended => self.flags.contains(CommandFlags::PAYLOAD_LEN),
        };
        if has { self.length } else { 0 }
    }
}

/// The payload of a `BLOCK_STATUS` that names one metadata context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusQuery {
    /// Length of the range in bytes.
    pub length: u64,
    /// The number of the context.
    pub context: u32,
}

impl StatusQuery {
    /// Reads it from its 12 bytes.
    pub fn decode(bytes: &[u8; STATUS_QUERY_LEN]) -> StatusQuery {
        StatusQuery { length: be::u64(bytes, 0), context: be::u32(bytes, 8) }
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; STATUS_QUERY_LEN] {
        let mut out = [0; STATUS_QUERY_LEN];
        out[0..8].copy_from_slice(&self.length.to_be_bytes());
        out[8..12].copy_from_slice(&self.context.to_be_bytes());
        out
    }
}

/// A simple reply. The payload of a successful `READ` follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimpleReply {
    /// The error number; 0 is success.
    pub error: u32,
    /// The cookie of the request.
    pub cookie: u64,
}

impl SimpleReply {
    /// The reply to the request `cookie`: success, or one of the errors.
    pub fn new(cookie: u64, result: Result<(), ReplyError>) -> SimpleReply {
        SimpleReply { error: result.err().map_or(0, ReplyError::code), cookie }
    }

    /// The bytes of the reply.
    pub fn encode(&self) -> [u8; SIMPLE_REPLY_LEN] {
        let mut out = [0; SIMPLE_REPLY_LEN];
        out[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        out[4..8].copy_from_slice(&self.error.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out
    }

    /// Reads a reply from its 16 bytes.
    ///
    /// # Errors
    /// `BadMagic` when the bytes don't begin with the number of a simple reply.
    pub fn decode(bytes: &[u8; SIMPLE_REPLY_LEN]) -> Result<SimpleReply, BadMagic> {
        let found = be::u32(bytes, 0);
        if found != SIMPLE_REPLY_MAGIC {
            return Err(BadMagic { found: found.into(), expected: SIMPLE_REPLY_MAGIC.into() });
        }
        Ok(SimpleReply { error: be::u32(bytes, 4), cookie: be::u64(bytes, 8) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_bytes_of_the_specification() {
        let request = Request {
            flags: CommandFlags::FUA,
            command: Command::WRITE,
            cookie: 0x0102_0304_0506_0708,
            offset: 0x1000,
            length: 512,
        };
        let bytes = request.encode();
        assert_eq!(
            bytes,
            [
                0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10,
                0, 0, 0, 2, 0
            ]
        );
        assert_eq!(Request::decode(&bytes), Ok(request));
        assert_eq!(request.payload_len(Form::Structured), 512);
    }

    #[test]
    fn an_extended_request_has_the_bytes_of_the_specification_and_a_flag_says_whether_a_payload_follows()
     {
        let request = Request {
            flags: CommandFlags::PAYLOAD_LEN,
            command: Command::WRITE_ZEROES,
            cookie: 0x0102_0304_0506_0708,
            offset: 0x1000,
            length: 1 << 40 | 512,
        };
        let bytes = request.encode_extended();
        assert_eq!(bytes[..8], [0x21, 0xe4, 0x1c, 0x71, 0, 32, 0, 6]);
        assert_eq!(bytes[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[16..], [0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 1, 0, 0, 0, 2, 0]);
        assert_eq!(Request::decode_extended(&bytes), Ok(request));
        assert_eq!(request.payload_len(Form::Extended), 1 << 40 | 512);
        let write = Request { flags: CommandFlags::empty(), command: Command::WRITE, ..request };
        assert_eq!(write.payload_len(Form::Extended), 0);
        let query = StatusQuery { length: 1 << 40, context: 1 };
        assert_eq!(query.encode(), [0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(StatusQuery::decode(&query.encode()), query);
    }

    #[test]
    fn a_reply_has_the_bytes_of_the_specification() {
        let reply = SimpleReply::new(7, Err(ReplyError::Inval));
        let bytes = reply.encode();
        assert_eq!(bytes, [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 22, 0, 0, 0, 0, 0, 0, 0, 7]);
        assert_eq!(SimpleReply::decode(&bytes), Ok(reply));
        assert_eq!(SimpleReply::new(7, Ok(())).error, 0);
    }

    #[test]
    fn a_wrong_magic_number_is_reported_with_both_numbers() {
        let error = Request::decode(&[0; REQUEST_LEN]).unwrap_err();
        assert_eq!(error.to_string(), "magic number is 0x0, expected 0x25609513");
        assert!(SimpleReply::decode(&[0; SIMPLE_REPLY_LEN]).is_err());
        let (flags, command) = (CommandFlags::empty(), Command::READ);
        let request = Request { flags, command, cookie: 0, offset: 0, length: 0 };
        let mut compact = [0; EXTENDED_REQUEST_LEN];
        compact[..REQUEST_LEN].copy_from_slice(&request.encode());
        let error = Request::decode_extended(&compact).unwrap_err().to_string();
        assert!(error.contains("a compact request, though"), "{error}");
        let extended = request.encode_extended();
        let error = Request::decode(extended.first_chunk().unwrap()).unwrap_err().to_string();
        assert!(error.contains("an extended request, though"), "{error}");
    }
}
