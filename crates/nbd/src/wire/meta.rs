//! Metadata contexts: how a client lists and chooses them.

use super::{MAX_STRING, decode_export_name};

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaRequest<'a> {
    /// The export; empty means the default one.
    pub name: &'a str,
    /// Which contexts are meant, each `namespace:leaf`.
    pub queries: Vec<&'a str>,
}

/// What is wrong with the data of `LIST_META_CONTEXT` or `SET_META_CONTEXT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MalformedMeta {
    /// The data ends before the name or the queries do.
    Truncated,
    /// Bytes follow behind the queries.
    Trailing,
    /// The name is no UTF-8 text without NUL, or too long.
    NameNotText,
    /// A query is no UTF-8 text without NUL, or too long, or has no namespace.
    BadQuery,
}

impl MalformedMeta {
    /// The message for the client.
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
    /// Reads the data of such an option. It allocates no more than the data is long, whatever that claims.
    ///
    /// # Errors
    /// Says what is malformed.
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

    /// The data of such an option.
    ///
    /// # Panics
    /// Where a string is longer than the protocol allows.
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
