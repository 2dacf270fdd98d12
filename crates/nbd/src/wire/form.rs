//! How messages of the transmission phase look.

use super::{
    BadMagic, CHUNK_LEN, EXTENDED_CHUNK_LEN, EXTENDED_REQUEST_LEN, EXTENDED_REQUEST_MAGIC,
    REQUEST_LEN, REQUEST_MAGIC,
};

/// How the messages of the transmission phase look, as the handshake has settled it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Compact requests and simple replies: what a client gets that asks for nothing else.
    #[default]
    Simple,
    /// Compact requests; reads and block status are answered in chunks.
    Structured,
    /// Extended requests, with 64-bit lengths; everything is answered in chunks, with extended heads.
    Extended,
}

impl Form {
    /// Length of a request without its payload, in bytes.
    pub const fn request_len(self) -> usize {
        match self {
            Form::Simple | Form::Structured => REQUEST_LEN,
            Form::Extended => EXTENDED_REQUEST_LEN,
        }
    }

    /// Looks at the first word of a request.
    ///
    /// # Errors
    /// `BadMagic` where it isn't that of a request: the stream is out of step for good.
    pub(crate) const fn check_request(self, word: [u8; 4]) -> Result<(), BadMagic> {
        let found = u32::from_be_bytes(word);
        let expected = match self {
            Form::Simple | Form::Structured => REQUEST_MAGIC,
            Form::Extended => EXTENDED_REQUEST_MAGIC,
        };
        if found == expected {
            return Ok(());
        }
        Err(BadMagic { found: found as u64, expected: expected as u64 })
    }

    /// Length of the head of a chunk in bytes.
    pub const fn chunk_len(self) -> usize {
        match self {
            Form::Simple | Form::Structured => CHUNK_LEN,
            Form::Extended => EXTENDED_CHUNK_LEN,
        }
    }

    /// Length of what is in front of data in a chunk, in bytes: its head, and an offset.
    pub(crate) const fn data_chunk_len(self) -> usize {
        self.chunk_len() + 8
    }

    /// Whether there are chunks.
    pub const fn has_chunks(self) -> bool {
        !matches!(self, Form::Simple)
    }
}
