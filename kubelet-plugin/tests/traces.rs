//! The agent's program with OpenTelemetry variables that it cannot use.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

use std::process::Command;

#[test]
fn an_agent_with_a_variable_that_it_cannot_use_says_what_to_write_and_ends() {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_netclaim-kubelet-plugin"));
    agent.args(["--node-name", "n"]).env_clear();
    agent.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317");
    agent.env("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cret").env("OTEL_TRACES_SAMPLER", "sometimes");
    let ended = agent.output().unwrap();
    let log = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success());
    for words in ["ERROR", "OTEL_TRACES_SAMPLER", "\"sometimes\"", "use always_on"] {
        assert!(log.contains(words), "{words}: {log}");
    }
    assert!(!log.contains("s3cret"), "{log}");
}
