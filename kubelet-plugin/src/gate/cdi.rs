//! CDI specs of pods: one file each, from when it is known how the pod's containers wait to the end of its
//! sandbox.
//!
//! ```text
//! CDI_DIR/DRIVER-pod_POD-UID.json
//!   for each container with a device of it    the gate
//!   device DRIVER/claim=CLAIM-UID_REQUEST     mounts the request's metadata file
//! ```
//!
//! containerd and CRI-O read all files of the directory again whenever one is renamed or removed in it, which
//! takes 0.1 ms for each. So a pod has one file for all of its claims, and most pods cause two such events:
//! the file comes and goes. A container that names several claims has one hook.
//!
//! Source of the format: CDI specification 0.5.0.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::pods::owner::{ObjectRef, Plan, Record};
use serde_json::json;

use crate::gate::metadata::{RequestKey, named};
use crate::gate::metadata_files::Mount;
use netclaim_process::files;

/// Time after which the runtime kills the hook. Longer than the hook's own timeout (90 s), and shorter than
/// the kubelet's (2 min), which would orphan the hook.
pub(crate) const HOOK_TIMEOUT: Duration = Duration::from_secs(100);

/// The edits of the spec to a container that names the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The runtime refuses to create it, with the agent alive or dead: the device has a node whose path on
    /// the host does not exist. The user reads the path.
    Shut,
    /// The runtime creates it, and a hook holds it until the marker exists. A hook that times out ends a pod
    /// whose containers are never started again.
    Hook,
}

/// The content of a pod's spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spec {
    /// Its edits to containers.
    pub(crate) form: Form,
    /// Why the hook refuses the containers of another pod. The kubelet prepares a claim once, for its first
    /// pod, and gives the next pod the same devices without another call.
    pub(crate) refusal: String,
    /// The files of the requests of its claims.
    pub(crate) mounts: Arc<BTreeMap<RequestKey, Mount>>,
}

/// Returns the spec of a pod with these `records`; none for a pod without, or whose containers can name none
/// of them. `mount` is the file of a plan's request.
pub(crate) fn spec_of(records: &[Record], form: Form, mount: impl Fn(&Plan) -> Mount) -> Option<Spec> {
    let pod = &named(records).next()?.plan.owner.pod;
    let claims: BTreeSet<String> = named(records).map(|record| record.plan.owner.claim.to_string()).collect();
    let mounts = named(records).map(|Record { plan, .. }| (RequestKey::of(plan), mount(plan)));
    Some(Spec { form, refusal: attached_to(&claims, pod), mounts: Arc::new(mounts.collect()) })
}

/// A path that does not exist. The runtime's message for [`Form::Shut`] is `failed to stat CDI host device
/// "…"`.
const SHUT: &str = "the networks of this pod are not attached yet, see its events and its ResourceClaims";

/// The directory of specs.
#[derive(Debug, Clone)]
pub(crate) struct CdiSpecs {
    dir: PathBuf,
    driver: String,
    hook: HookCommand,
}

/// How the runtime calls the hook.
#[derive(Debug, Clone)]
pub(crate) struct HookCommand {
    /// Path of the executable on the host.
    pub(crate) path: PathBuf,
    /// Path of the gate's socket on the host.
    pub(crate) socket: PathBuf,
    /// Path of the directory of markers on the host.
    pub(crate) markers: PathBuf,
}

impl HookCommand {
    /// Returns the program's name and arguments.
    pub(crate) fn args(&self) -> Vec<String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        vec!["netclaim-hook".to_owned(), text(&self.socket), text(&self.markers)]
    }
}

impl CdiSpecs {
    /// Creates `dir` where it is missing.
    ///
    /// # Errors
    /// When the directory cannot be created.
    pub(crate) fn new(dir: &Path, driver: &str, hook: HookCommand) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self { dir: dir.to_owned(), driver: driver.to_owned(), hook })
    }

    /// How the runtime calls the hook.
    pub(crate) fn hook(&self) -> &HookCommand {
        &self.hook
    }

    /// Returns the fully qualified name of the device of a plan, for the answer to NodePrepareResources: its
    /// request's file, behind the pod's gate.
    pub(crate) fn device(&self, plan: &Plan) -> String {
        format!("{}/claim={}", self.driver, RequestKey::of(plan))
    }

    /// Returns the UID of the claim that a device is for; `None` for devices of other drivers.
    pub(crate) fn claim_of<'a>(&self, device: &'a str) -> Option<&'a str> {
        let name = device.strip_prefix(self.driver.as_str())?.strip_prefix("/claim=")?;
        // A UID has no `_`.
        name.split('_').next()
    }

    /// Writes the spec of a pod, atomically.
    ///
    /// # Errors
    /// When the spec is not on disk afterwards.
    pub(crate) fn write(&self, pod_uid: &str, spec: &Spec) -> io::Result<()> {
        let mut args = self.hook.args();
        args.extend([pod_uid.to_owned(), spec.refusal.clone()]);
        let gate = match spec.form {
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
        let device = |(key, Mount { host_path, container_path }): (&RequestKey, &Mount)| {
            let mount =
                json!({"hostPath": host_path, "containerPath": container_path, "options": ["ro", "bind"]});
            json!({"name": key.to_string(), "containerEdits": {"mounts": [mount]}})
        };
        let spec = json!({
            "cdiVersion": "0.5.0",
            "kind": format!("{}/claim", self.driver),
            "containerEdits": gate,
            "devices": spec.mounts.iter().map(device).collect::<Vec<_>>(),
        });
        files::replace(&self.path(pod_uid), &spec.to_string())
    }

    /// Removes the spec of a pod, if it exists.
    ///
    /// # Errors
    /// When the spec exists afterwards.
    pub(crate) fn remove(&self, pod_uid: &str) -> io::Result<()> {
        files::remove(&self.path(pod_uid))
    }

    /// Returns the UIDs of the pods that have a spec.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub(crate) fn pods(&self) -> io::Result<Vec<String>> {
        let prefix = self.prefix();
        let mut pods = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            let pod = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.strip_suffix(".json"));
            pods.extend(pod.map(str::to_owned));
        }
        Ok(pods)
    }

    /// Removes what an agent that died was writing.
    ///
    /// # Errors
    /// When the directory cannot be read or a file cannot be removed.
    pub(crate) fn remove_unfinished(&self) -> io::Result<()> {
        let prefix = self.prefix();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_str().unwrap_or_default();
            let is_unfinished = name.starts_with(&prefix) && name.ends_with(files::UNFINISHED);
            if is_unfinished && entry.file_type()?.is_file() {
                files::remove(&entry.path())?;
            }
        }
        Ok(())
    }

    fn prefix(&self) -> String {
        format!("{}-pod_", self.driver)
    }

    fn path(&self, pod_uid: &str) -> PathBuf {
        self.dir.join(format!("{}{pod_uid}.json", self.prefix()))
    }
}

/// Explains why no other pod can use the claim.
pub(crate) fn of_another_pod(plan: &Plan) -> String {
    attached_to(&[plan.owner.claim.to_string()].into(), &plan.owner.pod)
}

fn attached_to(claims: &BTreeSet<String>, pod: &ObjectRef) -> String {
    let (claims, count) = (claims.iter().map(String::as_str).collect::<Vec<_>>().join(" and "), claims.len());
    let (s, are) = if count == 1 { ("", "is") } else { ("s", "are") };
    format!(
        "ResourceClaim{s} {claims} {are} attached to pod {}: an attachment belongs to one pod, so wait until that pod has \
         ended, or give each pod its own claim, for example by resourceClaimTemplateName",
        pod.name
    )
}

#[cfg(test)]
mod tests {
    use netclaim_driver::attach::Phase;

    use super::*;
    use crate::fixtures::record;

    #[test]
    fn a_spec_exists_from_write_to_remove() {
        let dir = tempfile::tempdir().expect("a directory");
        let hook = HookCommand { path: "/h".into(), socket: "/s".into(), markers: "/m".into() };
        let specs = CdiSpecs::new(dir.path(), "netclaim.dev", hook).expect("made");
        fs::write(dir.path().join("other.json"), "{}").expect("written");
        let record = record("u1", Phase::Planned);
        let mount = |_: &Plan| Mount { host_path: "/f".into(), container_path: "/in/f".into() };
        let spec = |form| spec_of(std::slice::from_ref(&record), form, mount).expect("a spec");
        specs.write("p", &spec(Form::Shut)).expect("written");
        specs.write("p", &spec(Form::Hook)).expect("written over");
        assert_eq!(specs.pods().expect("a list"), ["p"]);
        let text = fs::read_to_string(dir.path().join("netclaim.dev-pod_p.json")).expect("read");
        let spec: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            spec["containerEdits"]["hooks"][0]["args"],
            json!(["netclaim-hook", "/s", "/m", "p", of_another_pod(&record.plan)])
        );
        let file = &spec["devices"][0];
        assert_eq!(specs.device(&record.plan), "netclaim.dev/claim=u1_net");
        assert_eq!((&spec["kind"], &file["name"]), (&json!("netclaim.dev/claim"), &json!("u1_net")));
        assert_eq!(file["containerEdits"]["mounts"][0]["hostPath"], "/f");
        specs.remove("p").expect("removed");
        specs.remove("p").expect("removed again");
        assert!(specs.pods().expect("a list").is_empty());
    }

    #[test]
    fn a_refused_container_reads_which_claims_are_the_other_pods() {
        let records = ["a", "b"].map(|claim| record(claim, Phase::Planned));
        let mount = |_: &Plan| Mount { host_path: "/f".into(), container_path: "/in/f".into() };
        let refusal = |records: &[Record]| spec_of(records, Form::Hook, mount).expect("a spec").refusal;
        assert_eq!(refusal(&records[..1]), of_another_pod(&records[0].plan));
        let names = records.each_ref().map(|record| record.plan.owner.claim.to_string());
        assert!(
            refusal(&records).starts_with(&format!("ResourceClaims {} are attached", names.join(" and ")))
        );
    }

    #[test]
    fn a_device_of_another_driver_is_for_no_claim() {
        let hook = HookCommand { path: "/h".into(), socket: "/s".into(), markers: "/m".into() };
        let specs = CdiSpecs { dir: "/".into(), driver: "netclaim.dev".into(), hook };
        assert_eq!(specs.claim_of(&specs.device(&record("u1", Phase::Planned).plan)), Some("u1"));
        assert_eq!(specs.claim_of("netclaim.dev.example.org/claim=u1"), None);
        assert_eq!(specs.claim_of("nvidia.com/gpu=0"), None);
    }
}
