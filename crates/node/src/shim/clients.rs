//! The shim's side of its connections.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use super::descriptors;
use super::protocol::{Notice, Request};

/// A request, and the descriptors that came with it.
pub(super) struct Received {
    pub client: u64,
    pub request: Request,
    pub descriptors: Vec<OwnedFd>,
}

/// One connection.
pub(super) struct Client {
    /// Its number in this shim.
    pub id: u64,
    pub stream: UnixStream,
    input: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
    pub gone: bool,
}

impl Client {
    pub(super) fn new(id: u64, stream: UnixStream) -> Self {
        Self { id, stream, input: Vec::new(), descriptors: VecDeque::new(), gone: false }
    }

    pub(super) fn send(&mut self, notice: &Notice) {
        self.send_with(notice, &[]);
    }

    /// Sends a notice with descriptors.
    pub(super) fn send_with(&mut self, notice: &Notice, descriptors: &[BorrowedFd<'_>]) {
        let Ok(line) = notice.line() else { return };
        // An agent that does not listen is cut off; it will connect again and hear everything.
        match descriptors::send(&self.stream, &line, descriptors) {
            Ok(sent) if sent == line.len() => {}
            _ => self.gone = true,
        }
    }

    pub(super) fn hear(&mut self, requests: &mut Vec<Received>) {
        let mut buffer = [0; 16 * 1024];
        loop {
            match descriptors::receive(&self.stream, &mut buffer, &mut self.descriptors) {
                Ok(0) => self.gone = true,
                Ok(count) => {
                    self.input.extend_from_slice(&buffer[..count]);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => self.gone = true,
            }
            break;
        }
        while let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            match serde_json::from_slice::<Request>(&line) {
                Ok(request) => {
                    let count = request.descriptors().min(self.descriptors.len());
                    let descriptors = self.descriptors.drain(..count).collect();
                    requests.push(Received { client: self.id, request, descriptors });
                }
                Err(error) => eprintln!("unreadable request: {error}"),
            }
        }
    }
}
