//! The part of ttrpc that NRI needs: unary calls, as client and server.
//!
//! A message is a header of ten bytes (payload length and stream number, 32 bit big endian, kind, flags) and
//! a protobuf payload of at most 4 MiB. A call is one request and one response with the same stream number,
//! which is odd and grows. Streaming is refused.
//!
//! Services keep deadlines: [`answer`] passes on the time that the caller grants, and never drops a call that
//! is being served. Source: `PROTOCOL.md` and `channel.go` of github.com/containerd/ttrpc.

use std::future::Future;
use std::time::Duration;

use prost::Message as _;
use prost::bytes::{Buf, Bytes, BytesMut};

/// Length of a message's header.
pub(crate) const HEADER: usize = 10;

/// Longest payload of a message.
pub(crate) const MAX_PAYLOAD: usize = 4 << 20;

const KIND_REQUEST: u8 = 1;
const KIND_RESPONSE: u8 = 2;

/// The flag of a request that opens a stream of messages instead of requesting one answer.
const FLAG_REMOTE_OPEN: u8 = 2;

/// A message longer than the protocol allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a ttrpc message of {length} bytes is longer than the {MAX_PAYLOAD} allowed")]
pub(crate) struct OversizedMessage {
    length: usize,
}

/// The status codes in use; those of gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    /// The code of a Go server's plain error. Users see its name before the text.
    Unknown = 2,
    InvalidArgument = 3,
    ResourceExhausted = 8,
    /// Makes the runtime report an event by `StateChange` instead.
    Unimplemented = 12,
}

/// A call's error on the wire: `google.rpc.Status`.
#[derive(Clone, PartialEq, Eq, prost::Message, thiserror::Error)]
#[error("{message} (code {code})")]
pub(crate) struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

impl Status {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code: code as i32, message: message.into() }
    }

    /// The text of the error.
    pub(crate) fn into_message(self) -> String {
        self.message
    }

    #[cfg(test)]
    pub(crate) fn is(&self, code: Code) -> bool {
        self.code == code as i32
    }
}

/// The payload of a request; callers' metadata is skipped.
#[derive(Clone, PartialEq, prost::Message)]
struct Request {
    #[prost(string, tag = "1")]
    service: String,
    #[prost(string, tag = "2")]
    method: String,
    #[prost(bytes = "bytes", tag = "3")]
    payload: Bytes,
    /// How long the caller waits; 0 means for ever.
    #[prost(int64, tag = "4")]
    timeout_nano: i64,
}

/// The payload of a response.
#[derive(Clone, PartialEq, prost::Message)]
struct Response {
    #[prost(message, optional, tag = "1")]
    status: Option<Status>,
    #[prost(bytes = "bytes", tag = "2")]
    payload: Bytes,
}

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    stream: u32,
    kind: u8,
    flags: u8,
    payload: Bytes,
}

impl Message {
    pub(crate) fn is_request(&self) -> bool {
        self.kind == KIND_REQUEST
    }

    /// The number that a request and its answer have in common.
    pub(crate) fn stream(&self) -> u32 {
        self.stream
    }
}

fn encode(stream: u32, kind: u8, payload: &impl prost::Message) -> Result<Vec<u8>, OversizedMessage> {
    let length = payload.encoded_len();
    if length > MAX_PAYLOAD {
        return Err(OversizedMessage { length });
    }
    let mut message = Vec::with_capacity(HEADER + length);
    message.extend((length as u32).to_be_bytes());
    message.extend(stream.to_be_bytes());
    message.extend([kind, 0]);
    payload.encode_raw(&mut message);
    Ok(message)
}

/// Decodes messages from a connection's bytes, without IO.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// Appends received bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Removes the next complete message, if there is one.
    ///
    /// # Errors
    /// On a message longer than the protocol allows. The connection is unusable after that.
    pub(crate) fn next(&mut self) -> Result<Option<Message>, OversizedMessage> {
        let mut header = self.buffer.as_ref();
        if header.len() < HEADER {
            return Ok(None);
        }
        let length = header.get_u32() as usize;
        let (stream, kind, flags) = (header.get_u32(), header.get_u8(), header.get_u8());
        if length > MAX_PAYLOAD {
            return Err(OversizedMessage { length });
        }
        if header.len() < length {
            return Ok(None);
        }
        self.buffer.advance(HEADER);
        let payload = self.buffer.split_to(length).freeze();
        if self.buffer.is_empty() {
            // Frees the memory of long messages.
            self.buffer = BytesMut::new();
        }
        Ok(Some(Message { stream, kind, flags, payload }))
    }
}

/// Serves calls.
pub(crate) trait Service: Send + Sync + 'static {
    /// Full name of the service.
    const NAME: &'static str;

    /// Serves a call. `granted` is how long the caller waits from now on, if it says so; zero if the time has
    /// passed.
    fn call(
        &self,
        method: &str,
        payload: Bytes,
        granted: Option<Duration>,
    ) -> impl Future<Output = Result<Vec<u8>, Status>> + Send;
}

/// Serves one request. Returns the encoded response.
pub(crate) async fn answer<S: Service>(service: &S, message: Message) -> Vec<u8> {
    let stream = message.stream;
    let response = match serve(service, message).await {
        Ok(payload) => Response { status: None, payload: payload.into() },
        Err(status) => Response { status: Some(status), payload: Bytes::new() },
    };
    encode(stream, KIND_RESPONSE, &response).unwrap_or_else(|error| {
        let status = Status::new(Code::ResourceExhausted, error.to_string());
        let response = Response { status: Some(status), payload: Bytes::new() };
        encode(stream, KIND_RESPONSE, &response).unwrap_or_default()
    })
}

async fn serve<S: Service>(service: &S, message: Message) -> Result<Vec<u8>, Status> {
    let request = Request::decode(message.payload)
        .map_err(|error| Status::new(Code::InvalidArgument, format!("malformed request: {error}")))?;
    if request.service != S::NAME {
        return Err(Status::new(
            Code::Unimplemented,
            format!("service {} is not served here", request.service),
        ));
    }
    if message.flags & FLAG_REMOTE_OPEN != 0 {
        return Err(Status::new(
            Code::Unimplemented,
            format!("{} is not served as a stream", request.method),
        ));
    }
    let granted = match request.timeout_nano {
        0 => None,
        nanos => Some(Duration::from_nanos(nanos.try_into().unwrap_or_default())),
    };
    service.call(&request.method, request.payload, granted).await
}

/// Why an outgoing call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The peer answered with an error.
    #[error("refused")]
    Refused(#[source] Status),
    /// The answer is not protobuf.
    #[error("the answer is malformed")]
    Malformed(#[source] prost::DecodeError),
}

/// Encodes the request of a call that waits `timeout` for its answer.
///
/// # Errors
/// If the request is longer than a message may be.
pub(crate) fn request(
    stream: u32,
    service: &str,
    method: &str,
    payload: Vec<u8>,
    timeout: Duration,
) -> Result<Vec<u8>, OversizedMessage> {
    let request = Request {
        service: service.to_owned(),
        method: method.to_owned(),
        payload: payload.into(),
        timeout_nano: timeout.as_nanos().try_into().unwrap_or(i64::MAX),
    };
    encode(stream, KIND_REQUEST, &request)
}

/// Decodes the answer of a call.
///
/// # Errors
/// If the peer refused the call, or the message is not a response.
pub(crate) fn outcome(message: Message) -> Result<Bytes, CallError> {
    let response = Response::decode(message.payload).map_err(CallError::Malformed)?;
    match response.status {
        Some(status) if status.code != 0 => Err(CallError::Refused(status)),
        _ => Ok(response.payload),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Answers with the call's payload, or with the granted time.
    struct Echo;

    impl Service for Echo {
        const NAME: &'static str = "test.Echo";

        async fn call(
            &self,
            method: &str,
            payload: Bytes,
            granted: Option<Duration>,
        ) -> Result<Vec<u8>, Status> {
            match method {
                "Echo" => Ok(payload.to_vec()),
                "Granted" => Ok(format!("{granted:?}").into_bytes()),
                "Grow" => Ok(vec![0; MAX_PAYLOAD + 1]),
                _ => Err(Status::new(Code::Unimplemented, format!("no method {method}"))),
            }
        }
    }

    fn decode(bytes: &[u8]) -> Message {
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        decoder.next().unwrap().unwrap()
    }

    async fn call(
        service: &str,
        method: &str,
        payload: &[u8],
        timeout: Duration,
    ) -> Result<Bytes, CallError> {
        let request = decode(&request(1, service, method, payload.to_vec(), timeout).unwrap());
        outcome(decode(&answer(&Echo, request).await))
    }

    async fn refusal(service: &str, method: &str) -> Status {
        match call(service, method, b"", Duration::from_secs(1)).await {
            Err(CallError::Refused(status)) => status,
            other => panic!("not refused: {other:?}"),
        }
    }

    fn messages() -> impl Strategy<Value = Vec<(u32, u8, u8, Vec<u8>)>> {
        let payload = prop::collection::vec(any::<u8>(), 0..300);
        prop::collection::vec((any::<u32>(), any::<u8>(), any::<u8>(), payload), 0..10)
    }

    proptest! {
        #[test]
        fn messages_arrive_whole_and_in_order_in_any_pieces(
            sent in messages(),
            pieces in prop::collection::vec(1usize..40, 1..10),
        ) {
            let mut bytes = Vec::new();
            for (stream, kind, flags, payload) in &sent {
                bytes.extend((payload.len() as u32).to_be_bytes());
                bytes.extend(stream.to_be_bytes());
                bytes.extend([*kind, *flags]);
                bytes.extend(payload);
            }
            let mut decoder = Decoder::default();
            let mut received = Vec::new();
            let mut rest = bytes.as_slice();
            for length in pieces.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, after) = rest.split_at((*length).min(rest.len()));
                rest = after;
                decoder.push(piece);
                while let Some(message) = decoder.next().unwrap() {
                    received.push((message.stream, message.kind, message.flags, message.payload.to_vec()));
                }
            }
            prop_assert_eq!(received, sent);
        }

        #[test]
        fn no_bytes_cause_a_panic_in_the_decoder_or_the_server(
            bytes in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..600),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            while let Ok(Some(message)) = decoder.next() {
                let _ = outcome(message.clone());
                runtime.block_on(answer(&Echo, message));
            }
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_an_error_after_its_header() {
        let mut decoder = Decoder::default();
        decoder.push(&((MAX_PAYLOAD + 1) as u32).to_be_bytes());
        decoder.push(&[0, 0, 0, 1, KIND_REQUEST, 0]);
        assert_eq!(decoder.next(), Err(OversizedMessage { length: MAX_PAYLOAD + 1 }));
    }

    #[tokio::test]
    async fn a_call_is_answered_on_its_own_stream() {
        let request = request(7, Echo::NAME, "Echo", b"hello".to_vec(), Duration::from_secs(1)).unwrap();
        let response = decode(&answer(&Echo, decode(&request)).await);
        assert_eq!((response.stream, response.kind), (7, KIND_RESPONSE));
        assert_eq!(outcome(response).unwrap(), "hello");
    }

    #[tokio::test]
    async fn the_service_learns_how_long_the_caller_waits() {
        let granted = |timeout| call(Echo::NAME, "Granted", b"", timeout);
        assert_eq!(granted(Duration::from_millis(1200)).await.unwrap(), "Some(1.2s)");
        assert_eq!(granted(Duration::ZERO).await.unwrap(), "None");
    }

    #[tokio::test]
    async fn a_deadline_that_has_passed_grants_no_time() {
        let request = Request {
            service: Echo::NAME.to_owned(),
            method: "Granted".to_owned(),
            payload: Bytes::new(),
            timeout_nano: -5,
        };
        let message = decode(&encode(1, KIND_REQUEST, &request).unwrap());
        assert_eq!(outcome(decode(&answer(&Echo, message).await)).unwrap(), "Some(0ns)");
    }

    #[tokio::test]
    async fn an_unknown_method_or_service_is_unimplemented() {
        assert!(refusal(Echo::NAME, "Frobnicate").await.is(Code::Unimplemented));
        assert!(refusal("test.Other", "Echo").await.is(Code::Unimplemented));
    }

    #[tokio::test]
    async fn a_request_for_a_stream_is_unimplemented() {
        let mut request = request(1, Echo::NAME, "Echo", Vec::new(), Duration::ZERO).unwrap();
        request[9] = FLAG_REMOTE_OPEN;
        let refused = outcome(decode(&answer(&Echo, decode(&request)).await)).unwrap_err();
        assert!(matches!(refused, CallError::Refused(status) if status.is(Code::Unimplemented)));
    }

    #[tokio::test]
    async fn a_request_that_is_not_protobuf_is_an_invalid_argument() {
        let message =
            Message { stream: 1, kind: KIND_REQUEST, flags: 0, payload: Bytes::from_static(b"\xff") };
        let refused = outcome(decode(&answer(&Echo, message).await)).unwrap_err();
        assert!(matches!(refused, CallError::Refused(status) if status.is(Code::InvalidArgument)));
    }

    #[tokio::test]
    async fn an_answer_that_is_too_long_becomes_an_error() {
        assert!(refusal(Echo::NAME, "Grow").await.is(Code::ResourceExhausted));
    }
}
