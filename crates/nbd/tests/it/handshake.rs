//! Tests of the handshake's state machine, by table: the bytes of a client, and the replies.
#![cfg(not(loom))]

use corewise_nbd::handshake::{
    Agreement, Catalogue, CloseReason, Contexts, ExportOffer, Handshake, MAX_OPTION_DATA,
    NotAttached, NotOffered, Outcome, Progress, TlsPolicy, max_options,
};
use corewise_nbd::wire::*;

struct Shop {
    names: Vec<&'static str>,
    closing: bool,
}

const SUMMARY: ExportSummary = ExportSummary { size: 1 << 20, flags: TransmissionFlags(0b101) };
const SIZES: BlockSizes = BlockSizes { minimum: 512, preferred: 4096, maximum: 32 << 20 };

fn offer(name: &str) -> ExportOffer {
    ExportOffer {
        name: name.to_owned(),
        description: format!("about {name}"),
        summary: SUMMARY,
        block_sizes: SIZES,
        depth: false,
        checkpoints: match name {
            "other" => vec!["mon".to_owned(), "tue".to_owned()],
            _ => Vec::new(),
        },
    }
}

fn plain(name: &str) -> Agreement {
    Agreement { offer: offer(name), form: Form::Simple, contexts: Contexts::default() }
}

impl Catalogue for Shop {
    fn find(&self, name: &str) -> Result<ExportOffer, NotOffered> {
        let found = self.names.iter().find(|known| **known == name);
        found.map(|name| offer(name)).ok_or(NotOffered::Unknown)
    }
    fn attach(&self, _name: &str) -> Result<(), NotAttached> {
        Ok(())
    }
    fn for_each(&self, each: &mut dyn FnMut(&str, &str)) {
        for name in &self.names {
            each(name, "text");
        }
    }
    fn len(&self) -> usize {
        self.names.len()
    }
    fn is_shutting_down(&self) -> bool {
        self.closing
    }
}

fn shop() -> Shop {
    Shop { names: vec!["disk", "other"], closing: false }
}

const FIXED: u32 = 3;

fn flags(flags: u32) -> Vec<u8> {
    flags.to_be_bytes().to_vec()
}

fn option(option: OptionKind, data: &[u8]) -> Vec<u8> {
    let mut out = OptionHeader { option, length: data.len() as u32 }.encode().to_vec();
    out.extend_from_slice(data);
    out
}

/// Feeds all bytes, `piece` at a time, as a socket might deliver them. The unconsumed rest is fed
/// again with the next piece.
fn feed(shop: &Shop, input: &[u8], piece: usize) -> (Vec<u8>, Progress) {
    let mut machine = Handshake::new();
    let (mut pending, mut out, mut consumed) = (Vec::new(), Vec::new(), 0);
    let mut progress = Progress { consumed: 0, outcome: Outcome::NeedMore };
    for bytes in input.chunks(piece) {
        pending.extend_from_slice(bytes);
        loop {
            progress = machine.advance(&pending, shop, &mut out);
            pending.drain(..progress.consumed);
            consumed += progress.consumed;
            if progress.outcome != Outcome::SendFirst {
                break;
            }
        }
        if progress.outcome != Outcome::NeedMore {
            break;
        }
    }
    (out, Progress { consumed, ..progress })
}

fn replies(mut bytes: &[u8]) -> Vec<(OptionKind, OptionReplyKind, Vec<u8>)> {
    let mut out = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<OPTION_REPLY_HEADER_LEN>() {
        let head = OptionReplyHeader::decode(head).expect("the machine sends well-formed replies");
        let (data, rest) = rest.split_at(head.length as usize);
        out.push((head.option, head.kind, data.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty(), "half a reply");
    out
}

/// Runs a conversation whole and byte by byte, and checks that both have the same result.
fn converse(shop: &Shop, input: &[u8]) -> (Vec<u8>, Progress) {
    let whole = feed(shop, input, input.len().max(1));
    assert_eq!(feed(shop, input, 1), whole, "byte by byte is as good as whole");
    assert_eq!(feed(shop, input, 7), whole);
    whole
}

#[test]
fn the_table_of_single_options() {
    use OptionKind as O;
    use OptionReplyKind as R;
    let go = |name: &str| GoRequest::encode(name, &[]);
    let mut lying = go("disk");
    lying[3] = 200;
    let mut trailing = go("disk");
    trailing.push(0);
    let cases: Vec<(&str, OptionKind, Vec<u8>, Vec<OptionReplyKind>)> = vec![
        ("list", O::LIST, vec![], vec![R::SERVER, R::SERVER, R::ACK]),
        ("list with data", O::LIST, vec![1], vec![R::ERR_INVALID]),
        ("info", O::INFO, go("disk"), vec![R::INFO, R::INFO, R::ACK]),
        ("info of an unknown export", O::INFO, go("nope"), vec![R::ERR_UNKNOWN]),
        ("go to an unknown export", O::GO, go("nope"), vec![R::ERR_UNKNOWN]),
        ("go with a name longer than the data", O::GO, lying, vec![R::ERR_INVALID]),
        ("go with bytes behind", O::GO, trailing, vec![R::ERR_INVALID]),
        ("go without data", O::GO, vec![], vec![R::ERR_INVALID]),
        ("go with text that isn't", O::GO, b"\0\0\0\x01\xff\0\0".to_vec(), vec![R::ERR_INVALID]),
        ("tls", O::STARTTLS, vec![], vec![R::ERR_UNSUP]),
        ("structured replies", O::STRUCTURED_REPLY, vec![], vec![R::ACK]),
        ("structured replies with data", O::STRUCTURED_REPLY, vec![1], vec![R::ERR_INVALID]),
        ("contexts without structured", O::SET_META_CONTEXT, vec![0; 8], vec![R::ERR_INVALID]),
        ("a list of those", O::LIST_META_CONTEXT, vec![0; 8], vec![R::ERR_INVALID]),
        ("extended headers", O::EXTENDED_HEADERS, vec![], vec![R::ERR_UNSUP]),
        ("a number nobody defined", O(0x1234_5678), vec![9; 100], vec![R::ERR_UNSUP]),
        ("the withdrawn one", O::PEEK_EXPORT, vec![], vec![R::ERR_UNSUP]),
    ];
    for (what, kind, data, expected) in cases {
        let input = [flags(FIXED), option(kind, &data)].concat();
        let (out, progress) = converse(&shop(), &input);
        let got: Vec<_> = replies(&out).into_iter().map(|(o, k, _)| (o, k)).collect();
        let expected: Vec<_> = expected.into_iter().map(|k| (kind, k)).collect();
        assert_eq!(got, expected, "{what}");
        assert_eq!(progress.outcome, Outcome::NeedMore, "{what}: the client may go on");
        assert_eq!(progress.consumed, input.len(), "{what}");
    }
}

#[test]
fn go_answers_the_size_the_sizes_and_what_was_asked_then_begins() {
    let asked = [InfoKind::NAME, InfoKind::DESCRIPTION, InfoKind::NAME, InfoKind(99)];
    let mut input =
        [flags(FIXED), option(OptionKind::GO, &GoRequest::encode("disk", &asked))].concat();
    let handshake = input.len();
    input.extend_from_slice(b"first request");
    let (out, progress) = feed(&shop(), &input, input.len());
    assert_eq!(progress.outcome, Outcome::Begin(plain("disk")));
    assert_eq!(progress.consumed, handshake, "what follows belongs to the transmission phase");
    let data: Vec<_> = replies(&out).into_iter().map(|(_, kind, data)| (kind, data)).collect();
    let mut export = vec![0, 0];
    export.extend_from_slice(&SUMMARY.encode());
    let mut sizes = Vec::new();
    encode_info_block_size(&mut sizes, SIZES);
    assert_eq!(
        data,
        [
            (OptionReplyKind::INFO, export),
            (OptionReplyKind::INFO, b"\0\x01disk".to_vec()),
            (OptionReplyKind::INFO, b"\0\x02about disk".to_vec()),
            (OptionReplyKind::INFO, sizes),
            (OptionReplyKind::ACK, vec![]),
        ]
    );
}

#[test]
fn export_name_answers_with_or_without_padding_as_negotiated() {
    for (flag_word, padding) in [(0, 124), (1, 124), (2, 0), (3, 0)] {
        let input = [flags(flag_word), option(OptionKind::EXPORT_NAME, b"other")].concat();
        let (out, progress) = converse(&shop(), &input);
        assert_eq!(progress.outcome, Outcome::Begin(plain("other")), "flags {flag_word}");
        assert_eq!(out.len(), 10 + padding);
        assert_eq!(out[..10], SUMMARY.encode());
        assert!(out[10..].iter().all(|b| *b == 0));
    }
}

#[test]
fn conversations_that_end_with_a_closed_connection() {
    let go = GoRequest::encode("disk", &[]);
    let huge = OptionHeader { option: OptionKind::GO, length: u32::MAX }.encode();
    let long_name = option(OptionKind::EXPORT_NAME, &[b'x'; MAX_STRING + 1]);
    let bad_magic = b"IHAVEOPX\0\0\0\x03\0\0\0\0".to_vec();
    let found = u64::from_be_bytes(*b"IHAVEOPX");
    let magic = CloseReason::BadMagic(BadMagic { found, expected: OPTION_MAGIC });
    let cases: Vec<(&str, Vec<u8>, CloseReason)> = vec![
        ("unknown client flags", flags(0x8000_0003), CloseReason::UnknownClientFlags(0x8000_0000)),
        ("bad option magic", [flags(FIXED), bad_magic].concat(), magic),
        (
            "unknown name",
            [flags(FIXED), option(OptionKind::EXPORT_NAME, b"no")].concat(),
            CloseReason::NoSuchExport,
        ),
        ("a name above the limit", [flags(FIXED), long_name].concat(), CloseReason::NoSuchExport),
        (
            "not fixed",
            [flags(0), option(OptionKind::GO, &go)].concat(),
            CloseReason::NotFixedNewstyle,
        ),
        ("too big", [flags(FIXED), huge.to_vec()].concat(), CloseReason::OptionTooBig(u32::MAX)),
        ("abort", [flags(FIXED), option(OptionKind::ABORT, &[])].concat(), CloseReason::Aborted),
    ];
    for (what, input, reason) in cases {
        let (out, progress) = converse(&shop(), &input);
        assert_eq!(progress.outcome, Outcome::Close(reason), "{what}");
        let kinds: Vec<_> = replies(&out).into_iter().map(|(_, kind, _)| kind).collect();
        let expected: &[OptionReplyKind] = match reason {
            CloseReason::OptionTooBig(_) => &[OptionReplyKind::ERR_TOO_BIG],
            CloseReason::Aborted => &[OptionReplyKind::ACK],
            _ => &[],
        };
        assert_eq!(kinds, expected, "{what}");
    }
}

#[test]
fn an_option_at_the_length_limit_is_read_and_one_above_is_not_waited_for() {
    let data = vec![0; MAX_OPTION_DATA as usize];
    let (out, progress) =
        feed(&shop(), &[flags(FIXED), option(OptionKind(77), &data)].concat(), 4096);
    assert_eq!(progress.outcome, Outcome::NeedMore);
    assert_eq!(replies(&out)[0].1, OptionReplyKind::ERR_UNSUP);
    let head = OptionHeader { option: OptionKind(77), length: MAX_OPTION_DATA + 1 }.encode();
    let (_, progress) = feed(&shop(), &[flags(FIXED), head.to_vec()].concat(), 4096);
    assert!(matches!(progress.outcome, Outcome::Close(CloseReason::OptionTooBig(_))));
}

#[test]
fn five_thousand_options_are_too_many() {
    let mut input = flags(FIXED);
    for _ in 0..5000 {
        input.extend_from_slice(&option(OptionKind::LIST, &[]));
    }
    let (out, progress) = feed(&shop(), &input, input.len());
    assert_eq!(progress.outcome, Outcome::Close(CloseReason::TooManyOptions));
    let acks = replies(&out).into_iter().filter(|(_, k, _)| *k == OptionReplyKind::ACK).count();
    assert_eq!(acks as u32, max_options(2), "those within the limit were answered");
}

#[test]
fn pipelined_options_do_not_pile_their_replies_up() {
    let many: Vec<&'static str> = (0..500).map(|_| "a name of some length").collect();
    let shop = Shop { names: many, closing: false };
    let mut input = flags(FIXED);
    for _ in 0..100 {
        input.extend_from_slice(&option(OptionKind::LIST, &[]));
    }
    let mut machine = Handshake::new();
    let (mut rest, mut sent) = (&input[..], 0);
    loop {
        let mut out = Vec::new();
        let progress = machine.advance(rest, &shop, &mut out);
        assert!(out.len() < 256 << 10, "{} bytes of replies at once", out.len());
        sent += out.len();
        rest = &rest[progress.consumed..];
        if progress.outcome == Outcome::NeedMore {
            break;
        }
        assert_eq!(progress.outcome, Outcome::SendFirst);
    }
    assert!(rest.is_empty() && sent > 1 << 20);
}

#[test]
fn a_server_that_shuts_down_says_so_and_still_takes_an_abort() {
    let closing = Shop { closing: true, ..shop() };
    let go = GoRequest::encode("disk", &[]);
    for (kind, data) in [(OptionKind::GO, &go[..]), (OptionKind::LIST, &[]), (OptionKind(50), &[])]
    {
        let (out, progress) = converse(&closing, &[flags(FIXED), option(kind, data)].concat());
        assert_eq!(replies(&out)[0].1, OptionReplyKind::ERR_SHUTDOWN);
        assert_eq!(progress.outcome, Outcome::NeedMore);
    }
    let name = [flags(FIXED), option(OptionKind::EXPORT_NAME, b"disk")].concat();
    assert_eq!(converse(&closing, &name).1.outcome, Outcome::Close(CloseReason::NoSuchExport));
    let abort = [flags(FIXED), option(OptionKind::ABORT, &[])].concat();
    assert_eq!(replies(&converse(&closing, &abort).0)[0].1, OptionReplyKind::ACK);
}

#[test]
fn a_refusal_quotes_a_long_name_without_breaking_the_limit_of_strings() {
    let name = "\u{1F980}".repeat(1000);
    let (out, _) = converse(
        &shop(),
        &[flags(FIXED), option(OptionKind::GO, &GoRequest::encode(&name, &[]))].concat(),
    );
    let (_, kind, data) = replies(&out).remove(0);
    assert_eq!(kind, OptionReplyKind::ERR_UNKNOWN);
    assert!(data.len() <= MAX_STRING);
    assert!(std::str::from_utf8(&data).is_ok(), "no character is cut in two");
}

#[test]
fn after_the_end_nothing_more_is_taken() {
    let mut machine = Handshake::new();
    let mut out = Vec::new();
    let input = flags(0xff00_0000);
    assert!(matches!(machine.advance(&input, &shop(), &mut out).outcome, Outcome::Close(_)));
    let again = machine.advance(&input, &shop(), &mut out);
    assert_eq!(again.consumed, 0);
    assert!(matches!(again.outcome, Outcome::Close(_)));
    assert!(out.is_empty());
}

#[test]
fn contexts_are_listed_and_chosen_for_the_export_that_is_named() {
    use OptionKind as O;
    use OptionReplyKind as R;
    let context = |id: u32| [&id.to_be_bytes()[..], BASE_ALLOCATION.as_bytes()].concat();
    let (listed, chosen) = (context(0), context(1));
    type Reply<'a> = (R, Option<&'a Vec<u8>>);
    type Case<'a> = (&'a str, O, &'a str, &'a [&'a str], Vec<Reply<'a>>);
    let cases: [Case<'_>; 11] = [
        (
            "all there are",
            O::LIST_META_CONTEXT,
            "disk",
            &[],
            vec![(R::META_CONTEXT, Some(&listed)), (R::ACK, None)],
        ),
        (
            "a wildcard",
            O::LIST_META_CONTEXT,
            "disk",
            &["base:"],
            vec![(R::META_CONTEXT, Some(&listed)), (R::ACK, None)],
        ),
        ("others", O::LIST_META_CONTEXT, "disk", &["qemu:", "base:x"], vec![(R::ACK, None)]),
        (
            "twice the same",
            O::LIST_META_CONTEXT,
            "disk",
            &["base:", BASE_ALLOCATION],
            vec![(R::META_CONTEXT, Some(&listed)), (R::ACK, None)],
        ),
        ("no export", O::LIST_META_CONTEXT, "nope", &[], vec![(R::ERR_UNKNOWN, None)]),
        ("none chosen", O::SET_META_CONTEXT, "disk", &[], vec![(R::ACK, None)]),
        ("no wildcard", O::SET_META_CONTEXT, "disk", &["base:"], vec![(R::ACK, None)]),
        (
            "chosen",
            O::SET_META_CONTEXT,
            "disk",
            &["x-a:b", BASE_ALLOCATION],
            vec![(R::META_CONTEXT, Some(&chosen)), (R::ACK, None)],
        ),
        (
            "of no export",
            O::SET_META_CONTEXT,
            "nope",
            &[BASE_ALLOCATION],
            vec![(R::ERR_UNKNOWN, None)],
        ),
        (
            "no namespace",
            O::SET_META_CONTEXT,
            "disk",
            &["allocation"],
            vec![(R::ERR_INVALID, None)],
        ),
        ("no query", O::LIST_META_CONTEXT, "disk", &[""], vec![(R::ERR_INVALID, None)]),
    ];
    for (what, kind, name, queries, want) in cases {
        let data = MetaRequest::encode(name, queries);
        let input = [flags(FIXED), option(O::STRUCTURED_REPLY, &[]), option(kind, &data)].concat();
        let (out, _) = converse(&shop(), &input);
        let got: Vec<_> = replies(&out).into_iter().skip(1).collect();
        assert_eq!(got.len(), want.len(), "{what}: {got:?}");
        for ((of, kind_got, data), (kind_want, data_want)) in got.iter().zip(&want) {
            assert_eq!((*of, *kind_got), (kind, *kind_want), "{what}");
            assert!(data_want.is_none_or(|want| want == data), "{what}: {data:?}");
        }
    }
}

#[test]
fn each_checkpoint_is_a_context_beside_allocation() {
    use OptionKind as O;
    let ask = |kind, queries: &[&str]| -> Vec<(u32, String)> {
        let data = MetaRequest::encode("other", queries);
        let input = [flags(FIXED), option(O::STRUCTURED_REPLY, &[]), option(kind, &data)].concat();
        let (out, _) = converse(&shop(), &input);
        let contexts = replies(&out).into_iter().filter(|r| r.1 == OptionReplyKind::META_CONTEXT);
        let text = |data: &[u8]| String::from_utf8(data[4..].to_vec()).unwrap();
        let id = |data: &[u8]| u32::from_be_bytes(data[..4].try_into().unwrap());
        contexts.map(|(_, _, data)| (id(&data), text(&data))).collect()
    };
    let [mon, tue] = ["mon", "tue"].map(|name| format!("qemu:dirty-bitmap:{name}"));
    let base = BASE_ALLOCATION.to_owned();
    let listed = [(0, base.clone()), (0, mon.clone()), (0, tue.clone())];
    assert_eq!(ask(O::LIST_META_CONTEXT, &[]), listed);
    assert_eq!(ask(O::LIST_META_CONTEXT, &["qemu:"]), listed[1..]);
    assert_eq!(ask(O::LIST_META_CONTEXT, &["qemu:dirty-bitmap:"]), listed[1..]);
    assert_eq!(ask(O::LIST_META_CONTEXT, &[&tue]), listed[2..]);
    assert_eq!(ask(O::LIST_META_CONTEXT, &["qemu:dirty-bitmap:m"]), []);
    assert_eq!(ask(O::SET_META_CONTEXT, &[&tue, &base, &tue]), [(1, base), (2, tue.clone())]);
    assert_eq!(ask(O::SET_META_CONTEXT, &[&tue, &mon]), [(2, mon), (3, tue)]);
    assert_eq!(ask(O::SET_META_CONTEXT, &["qemu:dirty-bitmap:"]), []);
}

#[test]
fn the_last_choice_of_contexts_counts_and_only_for_its_export() {
    let set = |name: &str, queries: &[&str]| {
        option(OptionKind::SET_META_CONTEXT, &MetaRequest::encode(name, queries))
    };
    let go = |name: &str| option(OptionKind::GO, &GoRequest::encode(name, &[]));
    let all: &[&str] = &[BASE_ALLOCATION];
    for (choices, allocation) in [
        (vec![], false),
        (vec![set("disk", all)], true),
        (vec![set("disk", all), set("disk", &[])], false),
        (vec![set("disk", all), set("nope", all)], false),
        (vec![set("disk", all), set("disk", &["broken"])], false),
        (vec![set("other", all)], false),
        (vec![set("other", all), set("disk", all)], true),
    ] {
        let input =
            [flags(FIXED), option(OptionKind::STRUCTURED_REPLY, &[]), choices.concat(), go("disk")]
                .concat();
        let (_, progress) = converse(&shop(), &input);
        let Outcome::Begin(agreed) = progress.outcome else { panic!("{:?}", progress.outcome) };
        assert_eq!((agreed.form, agreed.contexts.allocation), (Form::Structured, allocation));
        assert!(agreed.offer.summary.flags.contains(TransmissionFlags::SEND_DF));
    }
}

fn starttls() -> Vec<u8> {
    option(OptionKind::STARTTLS, &[])
}

#[test]
fn starttls_forgets_what_was_chosen_before_and_takes_nothing_along() {
    for policy in [TlsPolicy::Allowed, TlsPolicy::Required] {
        let mut machine = Handshake::with_tls(policy).extended_headers(true);
        let mut out = Vec::new();
        let mut say = |input: &[u8]| {
            out.clear();
            let progress = machine.advance(input, &shop(), &mut out);
            (progress.outcome, replies(&out).into_iter().map(|reply| reply.1).collect::<Vec<_>>())
        };
        use OptionReplyKind as R;
        let structured = option(OptionKind::STRUCTURED_REPLY, &[]);
        let before = if policy == TlsPolicy::Required { R::ERR_TLS_REQD } else { R::ACK };
        let extended = option(OptionKind::EXTENDED_HEADERS, &[]);
        let said = say(&[flags(FIXED), structured, extended].concat());
        assert_eq!(said, (Outcome::NeedMore, vec![before, before]));
        let with_data = option(OptionKind::STARTTLS, &[1]);
        assert_eq!(say(&with_data), (Outcome::NeedMore, vec![R::ERR_INVALID]));
        assert_eq!(say(&starttls()), (Outcome::StartTls, vec![R::ACK]));
        assert_eq!(say(&starttls()), (Outcome::NeedMore, vec![R::ERR_INVALID]), "it comes once");
        let go = option(OptionKind::GO, &GoRequest::encode("disk", &[]));
        assert_eq!(say(&go).0, Outcome::Begin(plain("disk")), "with simple replies");
    }
}

#[test]
fn anything_behind_starttls_in_one_piece_ends_the_handshake_without_an_answer() {
    let list = option(OptionKind::LIST, &[]);
    for policy in [TlsPolicy::Allowed, TlsPolicy::Required] {
        for more in [&list[..], &[22]] {
            let input = [flags(FIXED), starttls(), more.to_vec()].concat();
            let mut out = Vec::new();
            let progress = Handshake::with_tls(policy).advance(&input, &shop(), &mut out);
            assert_eq!(progress.outcome, Outcome::Close(CloseReason::BehindStartTls));
            assert_eq!(replies(&out), []);
        }
    }
}

#[test]
fn where_tls_is_required_a_client_can_do_nothing_but_ask_for_it_or_leave() {
    let converse = |input: &[u8]| {
        let mut out = Vec::new();
        let input = [flags(FIXED), input.to_vec()].concat();
        let progress = Handshake::with_tls(TlsPolicy::Required).advance(&input, &shop(), &mut out);
        (progress.outcome, replies(&out))
    };
    for kind in (2..=12).map(OptionKind) {
        let (outcome, replies) = converse(&option(kind, &[]));
        match kind {
            OptionKind::ABORT => assert_eq!(outcome, Outcome::Close(CloseReason::Aborted)),
            OptionKind::STARTTLS => assert_eq!(outcome, Outcome::StartTls),
            _ => assert_eq!(replies[0].1, OptionReplyKind::ERR_TLS_REQD, "{kind:?}"),
        }
    }
    let (outcome, replies) = converse(&option(OptionKind::EXPORT_NAME, b"disk"));
    assert_eq!((outcome, replies), (Outcome::Close(CloseReason::TlsRequired), vec![]));
}
