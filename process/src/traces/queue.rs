//! The way of ended spans to the collector: a bounded queue, and a task that sends batches.
//!
//! The SDK's own batch processor has a thread, and keeps for itself how many spans it has lost.

use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter, SpanProcessor};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Counters;

/// Pauses before a batch is sent again. After the last one it is lost.
const PAUSES: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(16),
];

/// Limits of the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Limits {
    /// Spans that wait. More are lost.
    pub(super) size: usize,
    /// Spans that are sent at once.
    pub(super) batch: usize,
    /// Longest time that a span waits for others.
    pub(super) delay: Duration,
    /// Time that the collector has to take a batch.
    pub(super) timeout: Duration,
}

/// The end of the queue that takes spans.
#[derive(Debug)]
pub(super) struct Queue {
    spans: mpsc::Sender<SpanData>,
    lost: Counter,
}

impl Queue {
    pub(super) fn new(size: usize, lost: Counter) -> (Self, mpsc::Receiver<SpanData>) {
        let (spans, receiver) = mpsc::channel(size);
        (Self { spans, lost }, receiver)
    }
}

impl SpanProcessor for Queue {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() && self.spans.try_send(span).is_err() {
            self.lost.inc();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// The task that sends.
pub(super) struct Sender<E> {
    exporter: E,
    spans: mpsc::Receiver<SpanData>,
    limits: Limits,
    /// Where the collector is, for the log.
    address: String,
    counters: Counters,
    /// The log says that spans cannot be sent.
    failing: bool,
    /// The log says that spans did not fit.
    overflowing: bool,
}

impl<E: SpanExporter> Sender<E> {
    pub(super) fn new(
        exporter: E,
        spans: mpsc::Receiver<SpanData>,
        limits: Limits,
        address: String,
        counters: Counters,
    ) -> Self {
        Self { exporter, spans, limits, address, counters, failing: false, overflowing: false }
    }

    /// Sends batches until `stop`, and then what is left.
    pub(super) async fn run(mut self, stop: oneshot::Receiver<()>) {
        let mut stop = Stop { asked: stop, is_asked: false };
        let (mut batch, mut due) = (Vec::new(), None);
        loop {
            let room = self.limits.batch.saturating_sub(batch.len());
            let is_due = tokio::select! {
                biased;
                () = stop.asked(), if !stop.is_asked => {
                    self.spans.close();
                    false
                }
                received = self.spans.recv_many(&mut batch, room), if room > 0 => {
                    if received == 0 {
                        break;
                    }
                    due.get_or_insert_with(|| Instant::now() + self.limits.delay);
                    false
                }
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => true,
            };
            if is_due || batch.len() >= self.limits.batch {
                self.send(std::mem::take(&mut batch), &mut stop).await;
                due = None;
            }
        }
        if !batch.is_empty() {
            self.send(batch, &mut stop).await;
        }
    }

    /// Sends a batch, again and again if need be. Spans that come meanwhile wait in the queue.
    async fn send(&mut self, batch: Vec<SpanData>, stop: &mut Stop) {
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        self.warn_of_overflow();
        for pause in PAUSES.into_iter().map(Some).chain([None]) {
            match tokio::time::timeout(self.limits.timeout, self.exporter.export(batch.clone())).await {
                Ok(Ok(())) => {
                    self.counters.sent.inc_by(count);
                    if self.failing {
                        self.failing = false;
                        tracing::info!(
                            collector = self.address,
                            lost = self.counters.lost.get(),
                            "traces are sent again"
                        );
                    }
                    return;
                }
                Ok(Err(error)) => self.warn(&error.to_string()),
                Err(_) => self.warn(&format!("no answer within {:?}", self.limits.timeout)),
            }
            let Some(pause) = pause.filter(|_| !stop.is_asked) else { break };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.asked() => self.spans.close(),
            }
        }
        self.counters.lost.inc_by(count);
    }

    /// Says once that the collector takes nothing.
    fn warn(&mut self, error: &str) {
        if !std::mem::replace(&mut self.failing, true) {
            tracing::warn!(
                collector = self.address,
                error,
                "cannot send traces: pods do not wait for them, and spans are lost until the collector takes them"
            );
        }
    }

    /// Says once that spans come faster than they are sent.
    fn warn_of_overflow(&mut self) {
        let (full, lost) = (self.spans.capacity() == 0, self.counters.lost.get());
        if full && lost > 0 && !self.failing && !std::mem::replace(&mut self.overflowing, true) {
            tracing::warn!(
                lost,
                "spans come faster than the collector takes them: lower OTEL_TRACES_SAMPLER_ARG, or raise OTEL_BSP_MAX_QUEUE_SIZE"
            );
        }
    }
}

/// The wish that the task ends.
struct Stop {
    asked: oneshot::Receiver<()>,
    is_asked: bool,
}

impl Stop {
    /// Waits for it. Must not be called again afterwards.
    async fn asked(&mut self) {
        // Also when the other end is dropped.
        let _ = (&mut self.asked).await;
        self.is_asked = true;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    use opentelemetry::trace::{Span as _, Tracer as _, TracerProvider as _};
    use opentelemetry_sdk::error::OTelSdkError;
    use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

    use super::*;

    /// A fake collector, which refuses everything while `down`, and hangs while `hangs`.
    #[derive(Debug, Clone, Default)]
    struct Fake {
        down: Arc<AtomicBool>,
        hangs: Arc<AtomicBool>,
        batches: Arc<Mutex<Vec<usize>>>,
    }

    impl SpanExporter for Fake {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            if self.hangs.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            if self.down.load(Ordering::Relaxed) {
                return Err(OTelSdkError::InternalFailure("connection refused".to_owned()));
            }
            self.batches.lock().unwrap().push(batch.len());
            Ok(())
        }
    }

    const LIMITS: Limits =
        Limits { size: 8, batch: 4, delay: Duration::from_secs(5), timeout: Duration::from_secs(10) };

    struct Running {
        fake: Fake,
        tracer: SdkTracer,
        counters: Counters,
        stop: oneshot::Sender<()>,
        task: tokio::task::JoinHandle<()>,
        _provider: SdkTracerProvider,
    }

    fn running(fake: Fake) -> Running {
        let counters = Counters::default();
        let (queue, spans) = Queue::new(LIMITS.size, counters.lost.clone());
        let provider = SdkTracerProvider::builder().with_span_processor(queue).build();
        let sender = Sender::new(fake.clone(), spans, LIMITS, "http://c".to_owned(), counters.clone());
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(sender.run(stopped));
        Running { fake, tracer: provider.tracer("t"), counters, stop, task, _provider: provider }
    }

    impl Running {
        fn spans(&self, count: usize) {
            (0..count).for_each(|_| self.tracer.start("s").end());
        }

        fn numbers(&self) -> (u64, u64) {
            (self.counters.sent.get(), self.counters.lost.get())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn spans_are_sent_in_batches_when_one_is_full_or_has_waited() {
        let running = running(Fake::default());
        running.spans(5);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(*running.fake.batches.lock().unwrap(), [4]);
        tokio::time::sleep(LIMITS.delay).await;
        assert_eq!(*running.fake.batches.lock().unwrap(), [4, 1]);
        assert_eq!(running.numbers(), (5, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_collector_missed_is_sent_when_it_is_back_and_what_does_not_fit_is_counted() {
        let fake = Fake::default();
        fake.down.store(true, Ordering::Relaxed);
        let running = running(fake);
        running.spans(4);
        tokio::time::sleep(Duration::from_millis(10)).await;
        // Four are being sent, eight wait, and two do not fit.
        running.spans(10);
        assert_eq!(running.numbers(), (0, 2));
        running.fake.down.store(false, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(running.numbers(), (12, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_nobody_takes_is_lost_after_half_a_minute() {
        let fake = Fake::default();
        fake.down.store(true, Ordering::Relaxed);
        let running = running(fake);
        running.spans(4);
        tokio::time::sleep(Duration::from_secs(32)).await;
        assert_eq!(running.numbers(), (0, 4));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_is_sent_at_the_end() {
        let running = running(Fake::default());
        running.spans(6);
        running.stop.send(()).unwrap();
        running.task.await.unwrap();
        assert_eq!(running.counters.sent.get(), 6);
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_with_a_collector_that_is_down_or_hangs_does_not_wait_for_pauses() {
        let fake = Fake::default();
        fake.down.store(true, Ordering::Relaxed);
        let down = running(fake.clone());
        down.spans(4);
        tokio::time::sleep(Duration::from_millis(10)).await;
        let begin = Instant::now();
        down.stop.send(()).unwrap();
        down.task.await.unwrap();
        assert!(begin.elapsed() < Duration::from_millis(100), "{:?}", begin.elapsed());
        assert_eq!(down.counters.lost.get(), 4);

        fake.hangs.store(true, Ordering::Relaxed);
        let Running { tracer, stop, task, _provider, .. } = running(fake);
        (0..4).for_each(|_| tracer.start("s").end());
        let begin = Instant::now();
        super::super::Sending { stop, task, _provider }.stop(Duration::from_secs(2)).await;
        assert_eq!(begin.elapsed(), Duration::from_secs(2));
    }
}
