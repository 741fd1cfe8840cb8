//! The channel protocols of `exec` and `attach`: how messages name their stream, and what the last one says.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use longshore_core::model::streams::StreamEnd;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

pub(super) const STDIN: u8 = 0;
pub(super) const STDOUT: u8 = 1;
pub(super) const STDERR: u8 = 2;
pub(super) const STATUS: u8 = 3;
pub(super) const RESIZE: u8 = 4;
/// The next byte names a channel that ends.
pub(super) const CLOSE: u8 = 255;

/// A subprotocol of WebSocket.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Protocol {
    /// Empty when the client names none.
    pub name: &'static str,
    base64: bool,
    /// The last message is a Status; otherwise it is a text, and there is none after a success.
    json: bool,
    /// A client can end its input without leaving.
    pub closes: bool,
}

const fn protocol(name: &'static str, base64: bool, json: bool, closes: bool) -> Protocol {
    Protocol { name, base64, json, closes }
}

/// The best first.
static PROTOCOLS: [Protocol; 7] = [
    protocol("v5.channel.k8s.io", false, true, true),
    protocol("v4.channel.k8s.io", false, true, false),
    protocol("v4.base64.channel.k8s.io", true, true, false),
    protocol("v3.channel.k8s.io", false, false, false),
    protocol("v2.channel.k8s.io", false, false, false),
    protocol("channel.k8s.io", false, false, false),
    protocol("base64.channel.k8s.io", true, false, false),
];
static UNNAMED: Protocol = protocol("", false, false, false);

impl Protocol {
    /// The best of those that are offered; none when all are unknown.
    pub(super) fn choose(offered: &[&str]) -> Option<&'static Self> {
        if offered.is_empty() {
            return Some(&UNNAMED);
        }
        PROTOCOLS.iter().find(|protocol| offered.contains(&protocol.name))
    }

    /// A message on a channel.
    pub(super) fn message(&self, channel: u8, bytes: &[u8]) -> Message {
        if self.base64 {
            let mut text = String::from(char::from(b'0' + channel));
            STANDARD.encode_string(bytes, &mut text);
            return Message::Text(text.into());
        }
        let mut message = BytesMut::with_capacity(1 + bytes.len());
        message.put_u8(channel);
        message.put_slice(bytes);
        Message::Binary(message.freeze())
    }

    /// The channel and the content of a client's message; none when it has neither.
    pub(super) fn read(&self, message: Message) -> Option<(u8, Bytes)> {
        match message {
            Message::Text(text) if self.base64 => read_base64(&text),
            Message::Binary(bytes) => binary(bytes),
            Message::Text(text) => binary(text.into()),
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_) => None,
        }
    }

    /// The message that tells how the process ended.
    pub(super) fn status(&self, end: &StreamEnd) -> Option<Message> {
        let status = status(end);
        if self.json {
            return Some(self.message(STATUS, status.to_string().as_bytes()));
        }
        status["message"].as_str().map(|text| self.message(STATUS, text.as_bytes()))
    }
}

fn binary(mut bytes: Bytes) -> Option<(u8, Bytes)> {
    let channel = *bytes.first()?;
    Some((channel, bytes.split_off(1)))
}

fn read_base64(text: &Utf8Bytes) -> Option<(u8, Bytes)> {
    let mut letters = text.chars();
    let channel = u8::try_from(letters.next()?.to_digit(10)?).ok()?;
    Some((channel, STANDARD.decode(letters.as_str()).ok()?.into()))
}

fn status(end: &StreamEnd) -> Value {
    match end {
        StreamEnd::Exited(0) => json!({"metadata": {}, "status": "Success"}),
        StreamEnd::Exited(code) => json!({
            "metadata": {},
            "status": "Failure",
            "message": format!(
                "command terminated with non-zero exit code: command terminated with exit code {code}"
            ),
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }),
        StreamEnd::Failed(why) => {
            let why = format!("error executing command in container: {why}");
            json!({
                "metadata": {},
                "status": "Failure",
                "message": format!("Internal error occurred: {why}"),
                "reason": "InternalError",
                "details": {"causes": [{"message": why}]},
                "code": 500,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_offered_protocol_is_chosen() {
        for (offered, expected) in [
            (&["v5.channel.k8s.io"][..], Some("v5.channel.k8s.io")),
            (&["v4.channel.k8s.io", "v5.channel.k8s.io"], Some("v5.channel.k8s.io")),
            (&["v4.channel.k8s.io", "channel.k8s.io"], Some("v4.channel.k8s.io")),
            (&["v2.channel.k8s.io"], Some("v2.channel.k8s.io")),
            (&["base64.channel.k8s.io"], Some("base64.channel.k8s.io")),
            (&[], Some("")),
            (&["v9.channel.k8s.io"], None),
        ] {
            assert_eq!(Protocol::choose(offered).map(|one| one.name), expected, "{offered:?}");
        }
    }

    #[test]
    fn messages_come_back_as_they_were_in_both_encodings() {
        for name in ["v5.channel.k8s.io", "base64.channel.k8s.io"] {
            let protocol = Protocol::choose(&[name]).unwrap();
            let message = protocol.message(STDOUT, b"\x00hello\xff");
            assert_eq!(
                protocol.read(message),
                Some((STDOUT, Bytes::from_static(b"\x00hello\xff")))
            );
        }
        let base64 = Protocol::choose(&["base64.channel.k8s.io"]).unwrap();
        assert_eq!(base64.message(STDOUT, b"hi"), Message::Text("1aGk=".into()));
        for text in ["", "x", "1!"] {
            assert_eq!(base64.read(Message::Text(text.into())), None, "{text}");
        }
    }

    #[test]
    fn the_last_message_has_the_exit_code_from_v4_on() {
        let text = |name: &str, end: StreamEnd| {
            let offered = [name];
            let offered = if name.is_empty() { &[][..] } else { &offered };
            let message = Protocol::choose(offered).unwrap().status(&end)?;
            Some(String::from_utf8(message.into_data()[1..].to_vec()).unwrap())
        };
        let failed =
            "command terminated with non-zero exit code: command terminated with exit code 3";
        let json: Value =
            serde_json::from_str(&text("v4.channel.k8s.io", StreamEnd::Exited(3)).unwrap())
                .unwrap();
        assert_eq!(json["reason"], "NonZeroExitCode");
        assert_eq!(json["message"], failed);
        assert_eq!(json["details"]["causes"][0], json!({"reason": "ExitCode", "message": "3"}));
        let success = text("v5.channel.k8s.io", StreamEnd::Exited(0)).unwrap();
        assert_eq!(success, r#"{"metadata":{},"status":"Success"}"#);
        assert_eq!(text("", StreamEnd::Exited(3)).as_deref(), Some(failed));
        assert_eq!(text("", StreamEnd::Exited(0)), None);
    }
}
