//! cert-manager, as far as the webhook's certificate needs it: the project's own controllers, of the modules
//! in `tests/programs/certmanager`.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use netclaim_tests::{Cluster, Running, SYSTEM, Test, programs};
use serde_json::json;

/// The Issuer of the tests, in netclaim's namespace.
pub const ISSUER: &str = "ca";

/// What makes and keeps the CA of [`ISSUER`].
const ROOT: &str = "root";

/// cert-manager, which runs until this value is dropped.
pub struct CertManager<'a> {
    cluster: &'a Cluster,
    crds: PathBuf,
    _program: Running,
}

impl<'a> CertManager<'a> {
    /// Starts it beside the control plane, with a CA that signs in netclaim's namespace.
    pub fn start(test: &Test<'a>) -> Result<Self> {
        let (program, cluster) = (programs::built_or_skipped(test, "certmanager")?, test.cluster);
        let crds = program.with_file_name("crds");
        let log = File::create(cluster.dir().join("log/certmanager.log"))?;
        let mut command = Command::new(&program);
        command.arg("--kubeconfig").arg(cluster.dir().join("kubeconfig"));
        let apply = |verb: &[&str]| cluster.kubectl(&[verb, &["-f", &crds.to_string_lossy()]].concat());
        apply(&["apply", "--server-side"])?;
        apply(&["wait", "--for=condition=Established", "--timeout=30s"])?;
        let started = Self { cluster, crds, _program: Running::logged(&mut command, log)? };
        let object = |kind: &str, name: &str, spec| {
            json!({
                "apiVersion": "cert-manager.io/v1", "kind": kind,
                "metadata": {"name": name, "namespace": SYSTEM}, "spec": spec,
            })
        };
        let root = json!({
            "isCA": true, "commonName": "netclaim-test", "secretName": ROOT, "issuerRef": {"name": ROOT},
            "privateKey": {"algorithm": "ECDSA"},
        });
        for object in [
            object("Issuer", ROOT, json!({"selfSigned": {}})),
            object("Certificate", ROOT, root),
            object("Issuer", ISSUER, json!({"ca": {"secretName": ROOT}})),
        ] {
            cluster.kubectl_with(&["apply", "-f", "-"], &object.to_string())?;
        }
        Ok(started)
    }

    /// Renews a certificate of netclaim, as `cmctl renew` does.
    pub fn renew(&self, certificate: &str) -> Result<()> {
        let issuing = json!({
            "type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "renewed by the test",
        });
        let status = json!({"status": {"conditions": [issuing]}}).to_string();
        let patch =
            ["patch", "certificate", certificate, "--subresource=status", "--type=merge", "-p", &status];
        self.cluster.kubectl(&[&["-n", SYSTEM], patch.as_slice()].concat()).map(drop)
    }

    /// Ends it, and deletes its kinds with their objects, and the Secrets of the CA and of `certificate`,
    /// which it leaves.
    pub fn remove(self, certificate: &str) -> Result<()> {
        self.cluster.kubectl(&["delete", "-f", &self.crds.to_string_lossy()])?;
        self.cluster.kubectl(&["-n", SYSTEM, "delete", "secret", ROOT, certificate]).map(drop)
    }
}
