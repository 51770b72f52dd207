//! Doors for fuzz targets to parsers that are not called from outside otherwise. Not part of the API: only
//! with the feature `fuzzing`, and free to change.

use std::sync::Arc;
use std::time::Duration;

use crate::events::Events;
use crate::handler::{Adjustment, Denial, Handler, RuntimeInfo};
use crate::mux::{Connection, Demultiplexer};
use crate::sandbox::{Container, Sandbox};
use crate::ttrpc::{self, Decoder, Message};

/// The messages of a trunk, and the error that ended it, if one did.
#[derive(Debug, PartialEq, Eq)]
pub struct Heard {
    messages: Vec<(Connection, Message)>,
    end: Option<String>,
}

impl Heard {
    /// Reads `trunk` as a session does, as if the socket gave `piece` bytes at a time.
    pub fn read(trunk: &[u8], piece: usize) -> Self {
        let mut heard = Self { messages: Vec::new(), end: None };
        let mut demultiplexer = Demultiplexer::default();
        let (mut calls, mut answers) = (Decoder::default(), Decoder::default());
        for mut input in trunk.chunks(piece.max(1)) {
            loop {
                let (connection, payload) = match demultiplexer.next(&mut input) {
                    Ok(Some(next)) => next,
                    Ok(None) => break,
                    Err(error) => return Self { end: Some(error.to_string()), ..heard },
                };
                let decoder = match connection {
                    Connection::Plugin => &mut calls,
                    Connection::Runtime => &mut answers,
                };
                decoder.push(payload);
                loop {
                    match decoder.next() {
                        Ok(Some(message)) => heard.messages.push((connection, message)),
                        Ok(None) => break,
                        Err(error) => return Self { end: Some(error.to_string()), ..heard },
                    }
                }
            }
        }
        heard
    }

    /// Serves the calls as a plugin that agrees to everything; returns the encoded answers.
    pub async fn answer(self) -> Vec<Vec<u8>> {
        let events = Events::new(Arc::new(Agreeing));
        let mut answers = Vec::new();
        for (connection, message) in self.messages {
            match connection {
                Connection::Plugin if message.is_request() => {
                    answers.push(ttrpc::answer(&events, message).await);
                }
                Connection::Plugin => {}
                // An error only ends the session.
                Connection::Runtime => drop(ttrpc::outcome(message)),
            }
        }
        answers
    }
}

struct Agreeing;

impl Handler for Agreeing {
    fn configured(&self, _: &RuntimeInfo) {}

    async fn synchronize(&self, _: Vec<Sandbox>) {}

    async fn run_pod_sandbox(&self, _: Sandbox, _: Duration) -> Result<(), Denial> {
        Ok(())
    }

    async fn create_container(&self, _: Sandbox, _: Container, _: Duration) -> Result<Adjustment, Denial> {
        Ok(Adjustment::default())
    }

    async fn stop_pod_sandbox(&self, _: Sandbox, _: Duration) {}

    async fn remove_pod_sandbox(&self, _: Sandbox, _: Duration) {}
}
