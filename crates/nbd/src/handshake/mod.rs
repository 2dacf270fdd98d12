//! The handshake as a pure state machine: it takes bytes and returns replies and an outcome. It
//! has no sockets, no clock and no threads.
//!
//! The caller feeds the bytes that have arrived. The machine consumes whole messages and returns
//! the number of bytes consumed. It never buffers and never trusts a length. The longest input that
//! it waits for is [`MAX_OPTION_DATA`] bytes of one option.
//!
//! The machine speaks fixed newstyle negotiation with `EXPORT_NAME`, `LIST`, `INFO`, `GO`, `ABORT`,
//! `STARTTLS`, `STRUCTURED_REPLY`, `LIST_META_CONTEXT`, `SET_META_CONTEXT` and, if the server
//! allows it, `EXTENDED_HEADERS`. Any other option gets `ERR_UNSUP`.

use crate::wire::{
    self, ALLOCATION_DEPTH, BASE_ALLOCATION, BlockSizes, ClientFlags, DIRTY_BITMAP,
    EXPORT_NAME_PADDING, ExportSummary, Form, GoRequest, Greeting, HandshakeFlags, InfoKind,
    MetaRequest, OPTION_HEADER_LEN, OptionHeader, OptionKind, OptionReplyHeader, OptionReplyKind,
    TransmissionFlags,
};

/// Largest data of one option in bytes. If an option claims more, the server answers `ERR_TOO_BIG`
/// and closes the connection, since skipping the claimed length could take forever.
pub const MAX_OPTION_DATA: u32 = 16 << 10;

/// Maximum of unsent reply bytes. Beyond it, the caller sends the replies before the next option is
/// handled. Otherwise a client that pipelines a thousand `LIST`s (which the protocol forbids) could
/// fill the server's memory with replies.
const ENOUGH_REPLIES: usize = 64 << 10;

/// Context number of `base:allocation` in block status.
pub const ALLOCATION_CONTEXT: u32 = 1;
/// The number of the context `qemu:allocation-depth`. Those of checkpoints are far below it.
pub const DEPTH_CONTEXT: u32 = 1 << 24;

/// The next step for the caller of [`Handshake::advance`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The caller sends the replies, then feeds more bytes.
    NeedMore,
    /// The caller sends the replies before they grow any further, then feeds the unconsumed bytes
    /// again: more replies may follow from them.
    SendFirst,
    /// The caller sends the replies, does the TLS handshake, then feeds decrypted bytes. No bytes
    /// may be left over after the option.
    StartTls,
    /// The caller sends the replies, and the transmission phase of this export begins. Bytes that
    /// weren't consumed belong to it.
    Begin(Agreement),
    /// The caller sends the replies, then closes the connection.
    Close(CloseReason),
}

/// The properties of an export that the server reports to a client. The transmission phase keeps
/// to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportOffer {
    /// The canonical name.
    pub name: String,
    /// Description for humans, which may be empty.
    pub description: String,
    /// Size and abilities.
    pub summary: ExportSummary,
    /// Block sizes for requests.
    pub block_sizes: BlockSizes,
    /// Names of the device's checkpoints, each of which is a metadata context.
    pub checkpoints: Vec<String>,
    /// True if the device knows which of its layers has the bytes, which is a metadata context.
    pub depth: bool,
}

impl ExportOffer {
    /// Sets the flags that depend on the client's form of messages and on its metadata contexts. A
    /// client of several contexts gets all of them.
    fn adapt(&mut self, form: Form, contexts: &Contexts) {
        let flags = self.summary.flags.with_if(form.has_chunks(), TransmissionFlags::SEND_DF);
        let alone = contexts.allocation && !contexts.depth && contexts.dirty.is_empty();
        let filtered = alone && form == Form::Extended;
        self.summary.flags = flags.with_if(filtered, TransmissionFlags::BLOCK_STATUS_PAYLOAD);
    }
}

/// The server's TLS policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsPolicy {
    /// The server has no TLS.
    #[default]
    Off,
    /// Clients may use TLS.
    Allowed,
    /// Clients must use TLS. Before TLS the server answers nothing else.
    Required,
}

/// The reason why a client isn't offered an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotOffered {
    /// The server has no export of this name.
    Unknown,
    /// The export isn't for this client. The text tells the client the reason.
    Forbidden(String),
}

/// The reason why a client gets no place at an export. The text is for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAttached {
    /// The server no longer has an export of this name.
    Gone(String),
    /// The server is shutting down.
    ShuttingDown,
    /// Another connection got the place of this one.
    Evicted,
    /// All places are taken.
    Full {
        /// Number of places.
        places: usize,
        /// Kind of place, in words.
        of: &'static str,
    },
}

impl std::fmt::Display for NotAttached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NotAttached::Gone(name) => {
                write!(f, "the export '{}' was removed", name.escape_debug())
            }
            NotAttached::ShuttingDown => f.write_str("the server is shutting down"),
            NotAttached::Evicted => {
                f.write_str("another client needed the place of this connection")
            }
            NotAttached::Full { places, of } => write!(f, "all {places} places {of} are taken"),
        }
    }
}

impl std::error::Error for NotAttached {}

/// The exports that a handshake may choose from.
pub trait Catalogue {
    /// Returns the export of this name. The empty name stands for the default export.
    ///
    /// # Errors
    /// If no export has this name, or the export isn't for this client.
    fn find(&self, name: &str) -> Result<ExportOffer, NotOffered>;
    /// Gives the client a place at the export of this name, which `find` has returned. From here on
    /// the place can't be taken away.
    ///
    /// # Errors
    /// If there is no place.
    fn attach(&self, name: &str) -> Result<(), NotAttached>;
    /// Calls `each` with the name and description of each export that is for this client.
    fn for_each(&self, each: &mut dyn FnMut(&str, &str));
    /// Returns the number of exports.
    fn len(&self) -> usize;
    /// Returns true if there is no export.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Returns true if the server takes no new clients. It then answers options with
    /// `ERR_SHUTDOWN`.
    fn is_shutting_down(&self) -> bool;
}

/// The result of a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Export, as reported to the client.
    pub offer: ExportOffer,
    /// Form of the messages after the handshake.
    pub form: Form,
    /// Metadata contexts that the client has chosen.
    pub contexts: Contexts,
}

/// Metadata contexts of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contexts {
    /// True for `base:allocation`, whose number is [`ALLOCATION_CONTEXT`].
    pub allocation: bool,
    /// True for `qemu:allocation-depth`, whose number is [`DEPTH_CONTEXT`].
    pub depth: bool,
    /// Names of checkpoints. The number of the first one follows [`ALLOCATION_CONTEXT`].
    pub dirty: Vec<String>,
}

impl Contexts {
    /// Returns true if there is none: the client may not ask for block status.
    pub fn is_empty(&self) -> bool {
        !self.asks_device() && self.dirty.is_empty()
    }

    /// Returns true if the device is asked for extents: it knows nothing of checkpoints.
    pub fn asks_device(&self) -> bool {
        self.allocation || self.depth
    }

    /// Returns the number and the name of each.
    fn all(&self) -> impl Iterator<Item = (u32, String)> + '_ {
        let base = self.allocation.then(|| (ALLOCATION_CONTEXT, BASE_ALLOCATION.to_owned()));
        let dirty = (ALLOCATION_CONTEXT + 1..).zip(&self.dirty);
        let depth = self.depth.then(|| (DEPTH_CONTEXT, ALLOCATION_DEPTH.to_owned()));
        let dirty = dirty.map(|(id, name)| (id, format!("{DIRTY_BITMAP}{name}")));
        base.into_iter().chain(depth).chain(dirty)
    }
}

/// The reason why the server ends a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// The client sent `ABORT`.
    Aborted,
    /// The client set flags that the server didn't offer.
    UnknownClientFlags(u32),
    /// The client's message has a wrong magic number.
    BadMagic(wire::BadMagic),
    /// An option is longer than [`MAX_OPTION_DATA`]. The length is the client's claim.
    OptionTooBig(u32),
    /// The client sent more options than the number of exports justifies.
    TooManyOptions,
    /// The client chose an export by `EXPORT_NAME` that can't be served. The protocol has no error
    /// reply for that.
    NoSuchExport,
    /// Bytes followed `STARTTLS` before its reply. An attacker in between may have sent them.
    BehindStartTls,
    /// The client chose an export by `EXPORT_NAME` before the required TLS.
    TlsRequired,
    /// The client chose an export by `EXPORT_NAME` after extended headers, which rule it out.
    ExtendedByName,
    /// A client without fixed newstyle sent an option other than `EXPORT_NAME`.
    NotFixedNewstyle,
}

impl std::fmt::Display for CloseReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CloseReason::Aborted => f.write_str("the client aborted the handshake"),
            CloseReason::UnknownClientFlags(flags) => write!(f, "unknown client flags {flags:#x}"),
            CloseReason::BadMagic(error) => error.fmt(f),
            CloseReason::OptionTooBig(length) => {
                write!(f, "an option of {length} bytes, the limit is {MAX_OPTION_DATA}")
            }
            CloseReason::TooManyOptions => f.write_str("too many options in one handshake"),
            CloseReason::NoSuchExport => f.write_str("the client asked for an unknown export"),
            CloseReason::BehindStartTls => {
                f.write_str("the client sent data after STARTTLS before the server's answer")
            }
            CloseReason::TlsRequired => f.write_str("the client did not ask for TLS"),
            CloseReason::ExtendedByName => {
                f.write_str("the client sent EXPORT_NAME after EXTENDED_HEADERS")
            }
            CloseReason::NotFixedNewstyle => f.write_str(
                "the client sent an option other than EXPORT_NAME without fixed newstyle",
            ),
        }
    }
}

/// The result of one call of [`Handshake::advance`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Number of input bytes that were consumed. The caller feeds the rest again, followed by more.
    pub consumed: usize,
    /// Next step for the caller.
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    ClientFlags,
    Options,
    Over,
}

/// One handshake.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    client: ClientFlags,
    options: u32,
    tls: TlsPolicy,
    /// True once TLS has begun.
    secure: bool,
    /// True if clients may choose extended headers.
    extended: bool,
    /// Form of messages that the client has chosen.
    form: Form,
    /// Contexts that were chosen last, and their export.
    contexts: Option<(String, Contexts)>,
}

impl Default for Handshake {
    fn default() -> Self {
        Handshake::new()
    }
}

impl Handshake {
    /// Creates a handshake that hasn't begun, without TLS.
    pub fn new() -> Handshake {
        Handshake::with_tls(TlsPolicy::Off)
    }

    /// Creates a handshake that hasn't begun.
    pub fn with_tls(tls: TlsPolicy) -> Handshake {
        Handshake {
            state: State::ClientFlags,
            client: ClientFlags::empty(),
            options: 0,
            tls,
            secure: false,
            extended: false,
            form: Form::Simple,
            contexts: None,
        }
    }

    /// Permits or forbids extended headers. By default they are forbidden.
    #[must_use]
    pub fn extended_headers(mut self, may: bool) -> Handshake {
        self.extended = may;
        self
    }

    /// Returns the bytes that the server sends first.
    pub fn greeting() -> [u8; wire::GREETING_LEN] {
        Greeting { flags: HandshakeFlags::FIXED_NEWSTYLE | HandshakeFlags::NO_ZEROES }.encode()
    }

    /// Consumes as many whole messages as `input` holds and appends the replies to `out`.
    ///
    /// Stops at the first message that is incomplete (`NeedMore`) or that ends the handshake. After
    /// `Begin` or `Close` the caller must feed no more bytes: further calls consume nothing and
    /// return `Close`.
    pub fn advance(
        &mut self,
        input: &[u8],
        catalogue: &dyn Catalogue,
        out: &mut Vec<u8>,
    ) -> Progress {
        let mut consumed = 0;
        loop {
            let rest = &input[consumed..];
            let step = match self.state {
                State::ClientFlags => self.client_flags(rest),
                State::Options => self.option(rest, catalogue, out),
                State::Over => Step::End(0, Outcome::Close(CloseReason::Aborted)),
            };
            match step {
                Step::Wait => return Progress { consumed, outcome: Outcome::NeedMore },
                Step::Used(n) => {
                    consumed += n;
                    if out.len() >= ENOUGH_REPLIES {
                        return Progress { consumed, outcome: Outcome::SendFirst };
                    }
                }
                Step::StartTls(n) => {
                    let consumed = consumed + n;
                    return Progress { consumed, outcome: Outcome::StartTls };
                }
                Step::End(n, outcome) => {
                    self.state = State::Over;
                    return Progress { consumed: consumed + n, outcome };
                }
            }
        }
    }

    fn client_flags(&mut self, rest: &[u8]) -> Step {
        let Some(bytes) = rest.first_chunk::<4>() else { return Step::Wait };
        let flags = wire::decode_client_flags(*bytes);
        let unknown = flags.without(ClientFlags::FIXED_NEWSTYLE | ClientFlags::NO_ZEROES);
        if !unknown.is_empty() {
            return Step::close(4, CloseReason::UnknownClientFlags(unknown.0));
        }
        self.client = flags;
        self.state = State::Options;
        Step::Used(4)
    }

    fn option(&mut self, rest: &[u8], catalogue: &dyn Catalogue, out: &mut Vec<u8>) -> Step {
        let Some(head) = rest.first_chunk::<OPTION_HEADER_LEN>() else { return Step::Wait };
        let head = match OptionHeader::decode(head) {
            Ok(head) => head,
            Err(error) => return Step::close(OPTION_HEADER_LEN, CloseReason::BadMagic(error)),
        };
        let fixed = self.client.contains(ClientFlags::FIXED_NEWSTYLE);
        if !fixed && head.option != OptionKind::EXPORT_NAME {
            return Step::close(OPTION_HEADER_LEN, CloseReason::NotFixedNewstyle);
        }
        if head.length > MAX_OPTION_DATA {
            if head.option != OptionKind::EXPORT_NAME {
                let message =
                    format!("the data of an option is limited to {MAX_OPTION_DATA} bytes");
                refuse(out, head.option, OptionReplyKind::ERR_TOO_BIG, &message);
            }
            return Step::close(OPTION_HEADER_LEN, CloseReason::OptionTooBig(head.length));
        }
        let used = OPTION_HEADER_LEN + head.length as usize;
        let Some(data) = rest.get(OPTION_HEADER_LEN..used) else { return Step::Wait };
        self.options += 1;
        if self.options > max_options(catalogue.len()) {
            return Step::close(used, CloseReason::TooManyOptions);
        }
        let locked = self.tls == TlsPolicy::Required && !self.secure;
        match head.option {
            OptionKind::ABORT => {
                reply(out, head.option, OptionReplyKind::ACK, &[]);
                Step::close(used, CloseReason::Aborted)
            }
            OptionKind::STARTTLS if self.tls != TlsPolicy::Off => {
                self.start_tls(used, data, rest.len() > used, out)
            }
            OptionKind::EXPORT_NAME if locked => Step::close(used, CloseReason::TlsRequired),
            option if locked => {
                let message = "this server speaks TLS only: STARTTLS has to come first";
                refuse(out, option, OptionReplyKind::ERR_TLS_REQD, message);
                Step::Used(used)
            }
            OptionKind::EXPORT_NAME if self.form == Form::Extended => {
                Step::close(used, CloseReason::ExtendedByName)
            }
            OptionKind::EXPORT_NAME => self.export_name(used, data, catalogue, out),
            option if catalogue.is_shutting_down() => {
                refuse(out, option, OptionReplyKind::ERR_SHUTDOWN, "the server is shutting down");
                Step::Used(used)
            }
            OptionKind::LIST => {
                list(data, catalogue, out);
                Step::Used(used)
            }
            OptionKind::INFO | OptionKind::GO => {
                match self.describe(head.option, data, catalogue, out) {
                    Some(offer) if head.option == OptionKind::GO => self.begin(used, offer),
                    _ => Step::Used(used),
                }
            }
            OptionKind::STRUCTURED_REPLY => {
                self.choose(Form::Structured, head.option, data, out);
                Step::Used(used)
            }
            OptionKind::EXTENDED_HEADERS if self.extended => {
                self.choose(Form::Extended, head.option, data, out);
                Step::Used(used)
            }
            OptionKind::LIST_META_CONTEXT | OptionKind::SET_META_CONTEXT => {
                let chosen = answer_meta(head.option, data, catalogue, self.form, out);
                // This choice voids an earlier one, even if it fails.
                if head.option == OptionKind::SET_META_CONTEXT {
                    self.contexts = chosen;
                }
                Step::Used(used)
            }
            option => {
                refuse(out, option, OptionReplyKind::ERR_UNSUP, "this option is not supported");
                Step::Used(used)
            }
        }
    }

    fn start_tls(&mut self, used: usize, data: &[u8], more: bool, out: &mut Vec<u8>) -> Step {
        let wrong = match data {
            _ if self.secure => Some("TLS has begun already"),
            [] => None,
            _ => Some("STARTTLS takes no data"),
        };
        if let Some(message) = wrong {
            refuse(out, OptionKind::STARTTLS, OptionReplyKind::ERR_INVALID, message);
            return Step::Used(used);
        }
        // Plain text mustn't count as sent in TLS. That holds for the bytes that follow and for an
        // earlier choice.
        if more {
            return Step::close(used, CloseReason::BehindStartTls);
        }
        self.secure = true;
        self.form = Form::Simple;
        self.contexts = None;
        reply(out, OptionKind::STARTTLS, OptionReplyKind::ACK, &[]);
        Step::StartTls(used)
    }

    /// Handles `EXPORT_NAME`. It has no error reply: if the export can't be served, the connection
    /// is closed.
    fn export_name(
        &self,
        used: usize,
        data: &[u8],
        catalogue: &dyn Catalogue,
        out: &mut Vec<u8>,
    ) -> Step {
        let offer = match wire::decode_export_name(data) {
            Some(name) if !catalogue.is_shutting_down() => catalogue.find(name),
            _ => Err(NotOffered::Unknown),
        };
        let offer = offer.ok().filter(|offer| catalogue.attach(&offer.name).is_ok());
        let Some(mut offer) = offer else {
            return Step::close(used, CloseReason::NoSuchExport);
        };
        offer.adapt(self.form, &Contexts::default());
        out.extend_from_slice(&offer.summary.encode());
        if !self.client.contains(ClientFlags::NO_ZEROES) {
            out.extend_from_slice(&[0; EXPORT_NAME_PADDING]);
        }
        self.begin(used, offer)
    }

    fn begin(&self, used: usize, offer: ExportOffer) -> Step {
        let contexts = self.chosen(&offer.name);
        let agreed = Agreement { offer, form: self.form, contexts };
        Step::End(used, Outcome::Begin(agreed))
    }

    /// Returns the contexts of this export that the client has chosen.
    fn chosen(&self, export: &str) -> Contexts {
        let chosen = self.contexts.as_ref().filter(|(of, _)| of == export);
        chosen.map(|(_, contexts)| contexts.clone()).unwrap_or_default()
    }

    /// Sets the form of messages. A client can't go back from extended headers.
    fn choose(&mut self, form: Form, option: OptionKind, data: &[u8], out: &mut Vec<u8>) {
        let (kind, message) = match (form, self.form) {
            _ if !data.is_empty() => (OptionReplyKind::ERR_INVALID, "this option takes no data"),
            (Form::Structured, Form::Extended) => {
                (OptionReplyKind::ERR_EXT_HEADER_REQD, "extended headers were agreed on before")
            }
            _ => {
                self.form = form;
                return reply(out, option, OptionReplyKind::ACK, &[]);
            }
        };
        refuse(out, option, kind, message);
    }

    /// Answers `INFO` or `GO`. Returns the offer if the answer was positive.
    fn describe(
        &self,
        option: OptionKind,
        data: &[u8],
        catalogue: &dyn Catalogue,
        out: &mut Vec<u8>,
    ) -> Option<ExportOffer> {
        let go = match GoRequest::decode(data) {
            Ok(go) => go,
            Err(error) => {
                refuse(out, option, OptionReplyKind::ERR_INVALID, error.message());
                return None;
            }
        };
        let mut offer = find(option, go.name, catalogue, out)?;
        offer.adapt(self.form, &self.chosen(&offer.name));
        if option == OptionKind::GO {
            if let Err(error) = catalogue.attach(&offer.name) {
                refuse(out, option, OptionReplyKind::ERR_POLICY, &error.to_string());
                return None;
            }
        }
        tell(option, &go, &offer, out);
        Some(offer)
    }
}

enum Step {
    /// The message isn't complete.
    Wait,
    /// A message of this many bytes was handled; another may follow.
    Used(usize),
    /// A message of this many bytes asked for TLS.
    StartTls(usize),
    /// A message of this many bytes ended the handshake.
    End(usize, Outcome),
}

impl Step {
    fn close(used: usize, reason: CloseReason) -> Step {
        Step::End(used, Outcome::Close(reason))
    }
}

fn list(data: &[u8], catalogue: &dyn Catalogue, out: &mut Vec<u8>) {
    if !data.is_empty() {
        refuse(out, OptionKind::LIST, OptionReplyKind::ERR_INVALID, "LIST takes no data");
        return;
    }
    let mut entry = Vec::new();
    catalogue.for_each(&mut |name, description| {
        entry.clear();
        wire::encode_server_entry(&mut entry, name, description);
        reply(out, OptionKind::LIST, OptionReplyKind::SERVER, &entry);
    });
    reply(out, OptionKind::LIST, OptionReplyKind::ACK, &[]);
}

/// Answers `LIST_META_CONTEXT` or `SET_META_CONTEXT`. Returns the export and its contexts that were
/// listed or chosen.
fn answer_meta(
    option: OptionKind,
    data: &[u8],
    catalogue: &dyn Catalogue,
    form: Form,
    out: &mut Vec<u8>,
) -> Option<(String, Contexts)> {
    if !form.has_chunks() {
        let message = "STRUCTURED_REPLY has to come first";
        refuse(out, option, OptionReplyKind::ERR_INVALID, message);
        return None;
    }
    let meta = match MetaRequest::decode(data) {
        Ok(meta) => meta,
        Err(error) => {
            refuse(out, option, OptionReplyKind::ERR_INVALID, error.message());
            return None;
        }
    };
    let offer = find(option, meta.name, catalogue, out)?;
    let lists = option == OptionKind::LIST_META_CONTEXT;
    // In a list, a namespace stands for all that is in it.
    let is_meant = |query: &str, name: &str| {
        let is_beginning = query.ends_with(':') && name.starts_with(query);
        query == name || lists && is_beginning
    };
    let meant = |name: &str| {
        let all = lists && meta.queries.is_empty();
        all || meta.queries.iter().any(|query| is_meant(query, name))
    };
    let is_dirty_meant = |name: &String| meant(&format!("{DIRTY_BITMAP}{name}"));
    let dirty = offer.checkpoints.into_iter().filter(is_dirty_meant).collect();
    let depth = offer.depth && meant(ALLOCATION_DEPTH);
    let contexts = Contexts { allocation: meant(BASE_ALLOCATION), depth, dirty };
    for (id, name) in contexts.all() {
        let mut context = Vec::new();
        // The context number is reserved in a list.
        wire::encode_meta_context(&mut context, if lists { 0 } else { id }, &name);
        reply(out, option, OptionReplyKind::META_CONTEXT, &context);
    }
    reply(out, option, OptionReplyKind::ACK, &[]);
    Some((offer.name, contexts))
}

/// Appends the information about an export.
fn tell(option: OptionKind, go: &GoRequest<'_>, offer: &ExportOffer, out: &mut Vec<u8>) {
    let mut info = Vec::new();
    wire::encode_info_export(&mut info, offer.summary);
    reply(out, option, OptionReplyKind::INFO, &info);
    // A repeated kind is answered once. An unknown kind is no error.
    let wants = |kind| go.kinds().any(|asked| asked == kind);
    for (kind, text) in [(InfoKind::NAME, &offer.name), (InfoKind::DESCRIPTION, &offer.description)]
    {
        if wants(kind) && (kind == InfoKind::NAME || !text.is_empty()) {
            info.clear();
            wire::encode_info_text(&mut info, kind, text);
            reply(out, option, OptionReplyKind::INFO, &info);
        }
    }
    // The sizes are sent even if the client didn't ask. They are binding, so a client that
    // understands them should see them.
    info.clear();
    wire::encode_info_block_size(&mut info, offer.block_sizes);
    reply(out, option, OptionReplyKind::INFO, &info);
    reply(out, option, OptionReplyKind::ACK, &[]);
}

/// Returns the export of this name. If it isn't offered, appends a refusal and returns `None`.
fn find(
    option: OptionKind,
    name: &str,
    catalogue: &dyn Catalogue,
    out: &mut Vec<u8>,
) -> Option<ExportOffer> {
    let (kind, message) = match catalogue.find(name) {
        Ok(offer) => return Some(offer),
        Err(NotOffered::Forbidden(why)) => (OptionReplyKind::ERR_POLICY, why),
        Err(NotOffered::Unknown) => {
            let message = format!("there is no export '{}'", name.escape_debug());
            (OptionReplyKind::ERR_UNKNOWN, message)
        }
    };
    refuse(out, option, kind, &message);
    None
}

fn reply(out: &mut Vec<u8>, option: OptionKind, kind: OptionReplyKind, data: &[u8]) {
    let length = u32::try_from(data.len()).expect("replies hold two strings of 4096 bytes at most");
    out.extend_from_slice(&OptionReplyHeader { option, kind, length }.encode());
    out.extend_from_slice(data);
}

fn refuse(out: &mut Vec<u8>, option: OptionKind, kind: OptionReplyKind, message: &str) {
    // A message may quote a long name, but the protocol limits strings. The cut falls between two
    // characters.
    let mut end = message.len().min(wire::MAX_STRING);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    reply(out, option, kind, &message.as_bytes()[..end]);
}

/// Returns the largest number of options in one handshake: a fixed number for the negotiation, and
/// four for each export. A client that lists a server asks about each export in the same
/// handshake.
pub fn max_options(exports: usize) -> u32 {
    u32::try_from(exports.saturating_mul(4).saturating_add(64)).unwrap_or(u32::MAX)
}
