//! Makes requests with an unusable `:authority` acceptable.
//!
//! The kubelet's plugin manager, like every client that dials a socket path without naming an authority, sends
//! the percent-encoded path as `:authority`. The HTTP/2 library below us resets such streams. On a unix socket
//! the authority has no meaning, so inbound header blocks are rewritten to say `localhost`.
//!
//! Where this is discussed:
//! * <https://github.com/hyperium/h2/issues/442>: h2 and unix sockets, closed without a change.
//! * <https://github.com/hyperium/h2/pull/487>: no authority required on unix sockets, open.
//! * <https://github.com/hyperium/hyper/issues/3750>: the same from hyper's side, closed; still met with Python's gRPC.
//! * <https://github.com/kubernetes/kubernetes/pull/112597>: the kubelet names `localhost` in its calls to CSI drivers
//!   and device plugins since 1.26. The dial of its plugin manager, which asks for a driver's registration, does not.
//!
//! This module and `loona-hpack` can go when h2 accepts such streams (#487 or its like). The test
//! `without_the_adapter_such_clients_are_reset` fails from that day on. A kubelet that is mended is not enough, because
//! other clients send the path too.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use loona_hpack::Decoder;
use tokio::io::{AsyncRead, ReadBuf};

use crate::stream::{Hooked, Hooks};

const PREFACE: usize = 24;
const FRAME_HEAD: usize = 9;
/// The largest frame a client may send: the server never offers more.
const MAX_FRAME: usize = 16 * 1024;
/// Bound of one header block, encoded and decoded, so that a small block cannot unfold into a large list.
const MAX_BLOCK: usize = 64 * 1024;
/// The table size every peer may assume when the server offers none.
const HEADER_TABLE: usize = 4096;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Why inbound bytes cannot be rewritten; the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum BadHeaders {
    /// Padding or priority do not fit into the frame.
    #[error("malformed HEADERS frame")]
    Frame,
    /// Another frame stands between the parts of a header block.
    #[error("a header block is interrupted by another frame")]
    Interrupted,
    /// The block is larger than any sensible request.
    #[error("a header block is larger than {MAX_BLOCK} bytes")]
    TooLarge,
    #[error("a header block cannot be decoded")]
    Compression,
}

#[derive(Clone, Copy)]
struct FrameHead {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl FrameHead {
    fn parse(raw: &[u8; FRAME_HEAD]) -> Self {
        Self {
            length: usize::from(raw[0]) << 16 | usize::from(raw[1]) << 8 | usize::from(raw[2]),
            kind: raw[3],
            flags: raw[4],
            stream: u32::from_be_bytes([raw[5], raw[6], raw[7], raw[8]]) & 0x7fff_ffff,
        }
    }

    fn write(self, out: &mut Vec<u8>) {
        let [_, high, middle, low] = (self.length as u32).to_be_bytes();
        out.extend_from_slice(&[high, middle, low, self.kind, self.flags]);
        out.extend_from_slice(&self.stream.to_be_bytes());
    }
}

enum State {
    /// Bytes of the connection preface still to come.
    Preface(usize),
    /// Collecting a frame head.
    Head([u8; FRAME_HEAD], usize),
    /// Bytes of a frame that is none of our business.
    Pass(usize),
    /// Collecting a part of a header block.
    Collect(FrameHead, Vec<u8>),
}

/// A header block whose parts are still arriving.
struct Block {
    stream: u32,
    end_stream: bool,
    fragment: Vec<u8>,
}

/// The rewriting itself, free of any I/O: bytes in, bytes out.
struct Rewriter {
    state: State,
    block: Option<Block>,
    decoder: Decoder<'static>,
}

impl Default for Rewriter {
    fn default() -> Self {
        let mut decoder = Decoder::new();
        decoder.set_max_allowed_table_size(HEADER_TABLE);
        Self { state: State::Preface(PREFACE), block: None, decoder }
    }
}

impl Rewriter {
    /// Consumes inbound bytes and appends to `out` what the HTTP/2 library should see.
    fn feed(&mut self, mut input: &[u8], out: &mut Vec<u8>) -> Result<(), BadHeaders> {
        while !input.is_empty() {
            input = self.step(input, out)?;
        }
        Ok(())
    }

    fn step<'a>(&mut self, input: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], BadHeaders> {
        match &mut self.state {
            State::Preface(left) | State::Pass(left) => {
                let (now, rest) = input.split_at(input.len().min(*left));
                out.extend_from_slice(now);
                *left -= now.len();
                if *left == 0 {
                    self.state = State::Head([0; FRAME_HEAD], 0);
                }
                Ok(rest)
            }
            State::Head(raw, filled) => {
                let (now, rest) = input.split_at(input.len().min(FRAME_HEAD - *filled));
                raw[*filled..*filled + now.len()].copy_from_slice(now);
                *filled += now.len();
                if *filled == FRAME_HEAD {
                    let raw = *raw;
                    self.head(&raw, out)?;
                }
                Ok(rest)
            }
            State::Collect(head, payload) => {
                let (now, rest) = input.split_at(input.len().min(head.length - payload.len()));
                payload.extend_from_slice(now);
                if payload.len() == head.length {
                    let (head, payload) = (*head, std::mem::take(payload));
                    self.fragment(head, &payload, out)?;
                }
                Ok(rest)
            }
        }
    }

    fn head(&mut self, raw: &[u8; FRAME_HEAD], out: &mut Vec<u8>) -> Result<(), BadHeaders> {
        let head = FrameHead::parse(raw);
        let ours = match &self.block {
            Some(block) if head.kind == CONTINUATION && head.stream == block.stream => true,
            Some(_) => return Err(BadHeaders::Interrupted),
            None => head.kind == HEADERS,
        };
        // Oversized frames go on untouched: the HTTP/2 library refuses them with the right error.
        if !ours || head.length > MAX_FRAME {
            out.extend_from_slice(raw);
            self.state = match head.length {
                0 => State::Head([0; FRAME_HEAD], 0),
                length => State::Pass(length),
            };
            return Ok(());
        }
        if head.length == 0 {
            return self.fragment(head, &[], out);
        }
        self.state = State::Collect(head, Vec::with_capacity(head.length));
        Ok(())
    }

    fn fragment(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), BadHeaders> {
        self.state = State::Head([0; FRAME_HEAD], 0);
        let mut block = match self.block.take() {
            Some(mut block) => {
                block.fragment.extend_from_slice(payload);
                block
            }
            None => Block {
                stream: head.stream,
                end_stream: head.flags & END_STREAM != 0,
                fragment: strip(head.flags, payload)?.to_vec(),
            },
        };
        if block.fragment.len() > MAX_BLOCK {
            return Err(BadHeaders::TooLarge);
        }
        if head.flags & END_HEADERS == 0 {
            self.block = Some(block);
            return Ok(());
        }
        block.fragment = self.rewrite(&block.fragment)?;
        emit(&block, out);
        Ok(())
    }

    fn rewrite(&mut self, fragment: &[u8]) -> Result<Vec<u8>, BadHeaders> {
        let mut encoded = Vec::with_capacity(fragment.len() * 2);
        let mut too_large = false;
        let decoded = self.decoder.decode_with_cb(fragment, |name, value| {
            too_large |= encoded.len() + name.len() + value.len() > MAX_BLOCK;
            if !too_large {
                let authority = name.as_ref() == b":authority";
                literal(&name, if authority { b"localhost" } else { &value }, &mut encoded);
            }
        });
        match (decoded, too_large) {
            (Err(_), _) => Err(BadHeaders::Compression),
            (Ok(()), true) => Err(BadHeaders::TooLarge),
            (Ok(()), false) => Ok(encoded),
        }
    }
}

/// Removes padding and priority from the payload of a HEADERS frame.
fn strip(flags: u8, payload: &[u8]) -> Result<&[u8], BadHeaders> {
    let mut rest = payload;
    if flags & PADDED != 0 {
        let (&padding, body) = rest.split_first().ok_or(BadHeaders::Frame)?;
        let end = body.len().checked_sub(usize::from(padding)).ok_or(BadHeaders::Frame)?;
        rest = &body[..end];
    }
    if flags & PRIORITY != 0 {
        rest = rest.get(5..).ok_or(BadHeaders::Frame)?;
    }
    Ok(rest)
}

/// Writes one header as a literal that leaves the receiver's table alone, so no state is shared with it.
fn literal(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.push(0);
    for text in [name, value] {
        integer(text.len(), out);
        out.extend_from_slice(text);
    }
}

/// Writes an integer with a prefix of seven bits.
fn integer(mut value: usize, out: &mut Vec<u8>) {
    const PREFIX: usize = 0x7f;
    if value < PREFIX {
        out.push(value as u8);
        return;
    }
    out.push(PREFIX as u8);
    value -= PREFIX;
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn emit(block: &Block, out: &mut Vec<u8>) {
    let (mut part, mut rest) = split(&block.fragment);
    let mut kind = HEADERS;
    loop {
        let mut flags = if rest.is_empty() { END_HEADERS } else { 0 };
        if kind == HEADERS && block.end_stream {
            flags |= END_STREAM;
        }
        FrameHead { length: part.len(), kind, flags, stream: block.stream }.write(out);
        out.extend_from_slice(part);
        if rest.is_empty() {
            return;
        }
        (part, rest) = split(rest);
        kind = CONTINUATION;
    }
}

fn split(fragment: &[u8]) -> (&[u8], &[u8]) {
    fragment.split_at(fragment.len().min(MAX_FRAME))
}

/// A server-side stream whose inbound requests all have a usable authority.
pub(super) type LocalAuthority<S> = Hooked<S, Rewrite>;

/// Rewrites what a [`LocalAuthority`] stream reads.
pub(super) struct Rewrite {
    rewriter: Rewriter,
    scratch: Box<[u8]>,
    ready: Vec<u8>,
    taken: usize,
}

impl<S> LocalAuthority<S> {
    pub(super) fn rewriting(stream: S) -> Self {
        let scratch = vec![0; 8 * 1024].into_boxed_slice();
        let rewriter = Rewriter::default();
        Self::wrap(stream, Rewrite { rewriter, scratch, ready: Vec::new(), taken: 0 })
    }
}

impl Hooks for Rewrite {
    fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        below: &mut S,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let waiting = &self.ready[self.taken..];
            if !waiting.is_empty() {
                let now = waiting.len().min(buf.remaining());
                buf.put_slice(&waiting[..now]);
                self.taken += now;
                return Poll::Ready(Ok(()));
            }
            self.ready.clear();
            self.taken = 0;
            let mut read = ReadBuf::new(&mut self.scratch);
            ready!(Pin::new(&mut *below).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.rewriter
                .feed(read.filled(), &mut self.ready)
                .map_err(|bad| io::Error::new(io::ErrorKind::InvalidData, bad))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loona_hpack::Encoder;
    use proptest::prelude::*;

    fn preface() -> Vec<u8> {
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()
    }

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        FrameHead { length: payload.len(), kind, flags, stream }.write(&mut out);
        out.extend_from_slice(payload);
        out
    }

    fn encode(headers: &[(&str, &str)]) -> Vec<u8> {
        Encoder::new().encode(headers.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes())))
    }

    fn request(authority: &str) -> Vec<u8> {
        encode(&[(":method", "POST"), (":authority", authority), ("x-long", &"y".repeat(300))])
    }

    fn run(input: &[u8]) -> Result<Vec<u8>, BadHeaders> {
        let mut out = Vec::new();
        Rewriter::default().feed(input, &mut out).map(|()| out)
    }

    /// Splits output into frames after the preface: kind, flags, payload.
    fn frames(mut out: &[u8]) -> Vec<(u8, u8, Vec<u8>)> {
        out = &out[PREFACE..];
        let mut found = Vec::new();
        while !out.is_empty() {
            let head = FrameHead::parse(out[..FRAME_HEAD].try_into().expect("nine bytes"));
            let end = FRAME_HEAD + head.length;
            found.push((head.kind, head.flags, out[FRAME_HEAD..end].to_vec()));
            out = &out[end..];
        }
        found
    }

    fn decoded(payload: &[u8]) -> Vec<(String, String)> {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        let list = Decoder::new().decode(payload).expect("decodable");
        list.into_iter().map(|(n, v)| (text(n), text(v))).collect()
    }

    fn assert_localhost(payload: &[u8]) {
        let list = decoded(payload);
        assert_eq!(list[0], (":method".into(), "POST".into()));
        assert_eq!(list[1], (":authority".into(), "localhost".into()));
        assert_eq!(list[2], ("x-long".into(), "y".repeat(300)));
    }

    #[test]
    fn the_authority_is_replaced_and_nothing_else() {
        let mut input = preface();
        input.extend(frame(4, 0, 0, b""));
        let block = request("%2Fvar%2Flib%2Fplugin.sock");
        input.extend(frame(HEADERS, END_HEADERS | END_STREAM, 1, &block));
        input.extend(frame(0, END_STREAM, 1, b"data"));
        let out = frames(&run(&input).expect("valid"));
        assert_eq!(out[0], (4, 0, vec![]));
        assert_eq!((out[1].0, out[1].1), (HEADERS, END_HEADERS | END_STREAM));
        assert_localhost(&out[1].2);
        assert_eq!(out[2], (0, END_STREAM, b"data".to_vec()));
    }

    #[test]
    fn padding_priority_and_continuations_are_understood() {
        let block = request("%2Fx");
        let (one, two) = block.split_at(7);
        let mut padded = vec![3, 0, 0, 0, 0, 16];
        padded.extend_from_slice(one);
        padded.extend_from_slice(&[0; 3]);
        let mut input = preface();
        input.extend(frame(HEADERS, PADDED | PRIORITY, 1, &padded));
        input.extend(frame(CONTINUATION, 0, 1, b""));
        input.extend(frame(CONTINUATION, END_HEADERS, 1, two));
        let out = frames(&run(&input).expect("valid"));
        assert_eq!(out.len(), 1);
        assert_eq!((out[0].0, out[0].1), (HEADERS, END_HEADERS));
        assert_localhost(&out[0].2);
    }

    #[test]
    fn the_compression_state_survives_across_requests() {
        let mut encoder = Encoder::new();
        let headers = [("x-key", "one"), (":authority", "%2Fa")];
        let mut input = preface();
        for stream in [1, 3] {
            let block = encoder.encode(headers.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes())));
            input.extend(frame(HEADERS, END_HEADERS, stream, &block));
        }
        for (_, _, payload) in frames(&run(&input).expect("valid")) {
            assert_eq!(decoded(&payload)[0], ("x-key".into(), "one".into()));
            assert_eq!(decoded(&payload)[1].1, "localhost");
        }
    }

    #[test]
    fn large_blocks_leave_as_several_frames() {
        let long = "z".repeat(MAX_FRAME);
        let block = encode(&[(":authority", "%2Fa"), ("a", &long)]);
        let (one, two) = block.split_at(100);
        let mut input = preface();
        input.extend(frame(HEADERS, END_STREAM, 5, one));
        input.extend(frame(CONTINUATION, END_HEADERS, 5, two));
        let out = frames(&run(&input).expect("valid"));
        let kinds: Vec<_> = out.iter().map(|(kind, flags, _)| (*kind, *flags)).collect();
        assert_eq!(kinds, [(HEADERS, END_STREAM), (CONTINUATION, END_HEADERS)]);
        let whole: Vec<u8> = out.into_iter().flat_map(|(_, _, part)| part).collect();
        assert_eq!(decoded(&whole)[1].1, long);
    }

    #[test]
    fn broken_blocks_end_the_connection() {
        let with = |tail: Vec<u8>| [preface(), tail].concat();
        let rows = [
            (frame(HEADERS, END_HEADERS | PADDED, 1, &[9, 1]), BadHeaders::Frame),
            (frame(HEADERS, END_HEADERS | PADDED, 1, &[]), BadHeaders::Frame),
            (frame(HEADERS, END_HEADERS | PRIORITY, 1, &[1, 2]), BadHeaders::Frame),
            (frame(HEADERS, END_HEADERS, 1, &[0xff, 0xff, 0xff]), BadHeaders::Compression),
            (
                [frame(HEADERS, 0, 1, &[0x82]), frame(0, 0, 1, b"x")].concat(),
                BadHeaders::Interrupted,
            ),
            (
                [frame(HEADERS, 0, 1, &[0x82]), frame(CONTINUATION, 4, 3, &[0x84])].concat(),
                BadHeaders::Interrupted,
            ),
        ];
        for (tail, expected) in rows {
            assert_eq!(run(&with(tail)), Err(expected));
        }
    }

    #[test]
    fn a_small_block_cannot_unfold_into_a_large_list() {
        let mut block = encode(&[("x", &"y".repeat(3000))]);
        block.extend(std::iter::repeat_n(0x80 | 62, 1000));
        let input = [preface(), frame(HEADERS, END_HEADERS, 1, &block)].concat();
        assert_eq!(run(&input), Err(BadHeaders::TooLarge));
        let endless = frame(CONTINUATION, 0, 1, &[0x82; MAX_FRAME]);
        let flood = [preface(), frame(HEADERS, 0, 1, &[0x82]), endless.repeat(5)].concat();
        assert_eq!(run(&flood), Err(BadHeaders::TooLarge));
    }

    proptest! {
        #[test]
        fn any_input_is_survived_and_cuts_do_not_matter(
            tail in proptest::collection::vec(any::<u8>(), 0..600),
            cut in 1_usize..50,
        ) {
            let input = [preface(), tail].concat();
            let whole = run(&input);
            let (mut rewriter, mut out) = (Rewriter::default(), Vec::new());
            let parts = input.chunks(cut).try_for_each(|part| rewriter.feed(part, &mut out));
            prop_assert_eq!(whole, parts.map(|()| out));
        }

        #[test]
        fn any_header_block_is_survived(
            block in proptest::collection::vec(any::<u8>(), 0..400),
            flags in any::<u8>(),
        ) {
            let _ = run(&[preface(), frame(HEADERS, flags, 1, &block)].concat());
        }
    }
}
