//! The messages of the transmission phase: 28-byte requests and 16-byte simple replies.

use super::{BadMagic, Command, CommandFlags, REQUEST_MAGIC, ReplyError, SIMPLE_REPLY_MAGIC, be};

/// Length of a request without its payload, in bytes.
pub const REQUEST_LEN: usize = 28;
/// Length of a simple reply without its payload, in bytes.
pub const SIMPLE_REPLY_LEN: usize = 16;

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
    /// Length of the range in bytes. A `WRITE` is followed by so many bytes of payload.
    pub length: u32,
}

impl Request {
    /// Reads a request from its 28 bytes.
    ///
    /// # Errors
    /// `BadMagic` when the bytes don't begin with the number of a request: the stream is out of
    /// step for good.
    pub fn decode(bytes: &[u8; REQUEST_LEN]) -> Result<Request, BadMagic> {
        let found = be::u32(bytes, 0);
        if found != REQUEST_MAGIC {
            return Err(BadMagic { found: found.into(), expected: REQUEST_MAGIC.into() });
        }
        Ok(Request {
            flags: CommandFlags(be::u16(bytes, 4)),
            command: Command(be::u16(bytes, 6)),
            cookie: be::u64(bytes, 8),
            offset: be::u64(bytes, 16),
            length: be::u32(bytes, 24),
        })
    }

    /// The bytes of the request.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut out = [0; REQUEST_LEN];
        out[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.0.to_be_bytes());
        out[6..8].copy_from_slice(&self.command.0.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
        out[24..28].copy_from_slice(&self.length.to_be_bytes());
        out
    }

    /// How many bytes of payload follow the request on the wire.
    pub fn payload_len(&self) -> u32 {
        if self.command == Command::WRITE { self.length } else { 0 }
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
        assert_eq!(request.payload_len(), 512);
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
    }
}
