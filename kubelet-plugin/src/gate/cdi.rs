//! CDI specs of claims: one file each, written when the pod's sandbox is in hand.
//!
//! Source of the format: CDI specification 0.5.0. The runtime reads the directory anew when a device is asked for.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::owner::Plan;
use serde_json::json;

use crate::process::files;

/// The hook may block this long before the runtime kills it. Longer than the hook's own patience, shorter than
/// the kubelet's (2 min), past which the hook would be orphaned.
pub const HOOK_TIMEOUT: Duration = Duration::from_secs(100);

/// What a container that names the claim meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The runtime refuses to create it, with us alive or dead: the device has a node on the host that does not exist.
    /// The path is what the user reads.
    Shut,
    /// It is created, and a hook holds it until the marker is there. A hook that runs out of patience ends a pod whose
    /// containers are never started again.
    Hook,
}

/// What the spec of a claim says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// What a container meets.
    pub form: Form,
    /// The pod that the claim is for. The kubelet prepares a claim once, for its first pod, and hands the same device to
    /// the next pod without asking.
    pub pod_uid: String,
    /// What the hook tells the containers of another pod.
    pub refusal: String,
}

impl Spec {
    /// For the claim of a plan.
    pub fn new(plan: &Plan, form: Form) -> Self {
        Self { form, pod_uid: plan.owner.pod.uid.clone(), refusal: of_another_pod(plan) }
    }
}

/// The name of no file: [`Form::Shut`] in the runtime's words is `failed to stat CDI host device "…"`.
const SHUT: &str = "the networks of this pod are not attached yet, see its events and its ResourceClaims";

/// The directory of specs, and what goes into them.
#[derive(Debug, Clone)]
pub struct CdiSpecs {
    dir: PathBuf,
    driver: String,
    hook: HookCommand,
}

/// How the hook is called.
#[derive(Debug, Clone)]
pub struct HookCommand {
    /// The executable on the host.
    pub path: PathBuf,
    /// The gate's socket on the host.
    pub socket: PathBuf,
    /// The directory of markers on the host.
    pub markers: PathBuf,
}

impl HookCommand {
    /// Program name and arguments.
    pub fn args(&self) -> Vec<String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        vec!["netclaim-hook".to_owned(), text(&self.socket), text(&self.markers)]
    }
}

impl CdiSpecs {
    /// Specs in `dir`, which is made if need be.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn new(dir: &Path, driver: &str, hook: HookCommand) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self { dir: dir.to_owned(), driver: driver.to_owned(), hook })
    }

    /// The device's fully qualified name, as NodePrepareResources returns it.
    pub fn device(&self, claim_uid: &str) -> String {
        format!("{}/claim={claim_uid}", self.driver)
    }

    /// The UID of the claim that a device is made for; `None` for the devices of others.
    pub fn claim_of<'a>(&self, device: &'a str) -> Option<&'a str> {
        device.strip_prefix(self.driver.as_str())?.strip_prefix("/claim=")
    }

    /// Writes the spec of a claim, atomically.
    ///
    /// # Errors
    /// When it is not there afterwards.
    pub fn write(&self, claim_uid: &str, spec: &Spec) -> io::Result<()> {
        let mut args = self.hook.args();
        args.extend([spec.pod_uid.clone(), spec.refusal.clone()]);
        let edits = match spec.form {
            Form::Shut => json!({"deviceNodes": [{
                "path": "/dev/netclaim",
                "hostPath": self.hook.markers.with_file_name(SHUT),
            }]}),
            Form::Hook => json!({"hooks": [{
                "hookName": "createRuntime",
                "path": self.hook.path,
                "args": args,
                "timeout": HOOK_TIMEOUT.as_secs(),
            }]}),
        };
        let spec = json!({
            "cdiVersion": "0.5.0",
            "kind": format!("{}/claim", self.driver),
            "devices": [{
                "name": claim_uid,
                "containerEdits": edits,
            }],
        });
        files::replace(&self.path(claim_uid), &spec.to_string())
    }

    /// Removes the spec of a claim; it need not be there.
    ///
    /// # Errors
    /// When it is still there afterwards.
    pub fn remove(&self, claim_uid: &str) -> io::Result<()> {
        files::remove(&self.path(claim_uid))
    }

    /// UIDs of the claims that have a spec.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn claims(&self) -> io::Result<Vec<String>> {
        let prefix = self.prefix();
        let mut claims = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            let claim = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.strip_suffix(".json"));
            claims.extend(claim.map(str::to_owned));
        }
        Ok(claims)
    }

    fn prefix(&self) -> String {
        format!("{}-claim_", self.driver)
    }

    fn path(&self, claim_uid: &str) -> PathBuf {
        self.dir.join(format!("{}{claim_uid}.json", self.prefix()))
    }
}

/// Why no other pod can use the claim.
pub fn of_another_pod(plan: &Plan) -> String {
    format!(
        "ResourceClaim {} is attached to pod {}: an attachment belongs to one pod, so wait until that pod has ended, or give \
         each pod its own claim, for example by resourceClaimTemplateName",
        plan.owner.claim, plan.owner.pod.name
    )
}

#[cfg(test)]
mod tests {
    use netclaim_driver::attach::record::Phase;

    use super::*;
    use crate::fixtures::record;

    #[test]
    fn a_spec_is_there_from_write_to_remove() {
        let dir = tempfile::tempdir().expect("a directory");
        let hook = HookCommand { path: "/h".into(), socket: "/s".into(), markers: "/m".into() };
        let specs = CdiSpecs::new(dir.path(), "netclaim.dev", hook).expect("made");
        fs::write(dir.path().join("other.json"), "{}").expect("written");
        let plan = record("u1", Phase::Planned).plan;
        specs.write("u1", &Spec::new(&plan, Form::Shut)).expect("written");
        specs.write("u1", &Spec::new(&plan, Form::Hook)).expect("written over");
        assert_eq!(specs.claims().expect("listed"), ["u1"]);
        let text = fs::read_to_string(dir.path().join("netclaim.dev-claim_u1.json")).expect("read");
        let spec: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            spec["devices"][0]["containerEdits"]["hooks"][0]["args"],
            json!(["netclaim-hook", "/s", "/m", "p", of_another_pod(&plan)])
        );
        specs.remove("u1").expect("removed");
        specs.remove("u1").expect("removed again");
        assert!(specs.claims().expect("listed").is_empty());
    }

    #[test]
    fn our_devices_are_told_from_others() {
        let hook = HookCommand { path: "/h".into(), socket: "/s".into(), markers: "/m".into() };
        let specs = CdiSpecs { dir: "/".into(), driver: "netclaim.dev".into(), hook };
        assert_eq!(specs.claim_of(&specs.device("u1")), Some("u1"));
        assert_eq!(specs.claim_of("netclaim.dev.example.org/claim=u1"), None);
        assert_eq!(specs.claim_of("nvidia.com/gpu=0"), None);
    }
}
