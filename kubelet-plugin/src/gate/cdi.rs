//! CDI specs of claims: one file each, from when it is known how the pod's containers wait to the claim's
//! release.
//!
//! ```text
//! CDI_DIR/DRIVER-claim_CLAIM-UID.json
//!   device DRIVER/claim=CLAIM-UID             the gate
//!   device DRIVER/claim=CLAIM-UID_REQUEST     mounts the request's metadata file
//! ```
//!
//! containerd and CRI-O read all files of the directory again whenever one is renamed or removed in it, which
//! takes 0.1 ms for each. So a claim has one file, and most claims cause two such events: its file comes and
//! goes.
//!
//! Source of the format: CDI specification 0.5.0.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::pods::owner::{Plan, Record};
use serde_json::{Value, json};

use crate::gate::metadata::RequestKey;
use crate::gate::metadata_files::Mount;
use netclaim_process::files;

/// Time after which the runtime kills the hook. Longer than the hook's own timeout (90 s), and shorter than
/// the kubelet's (2 min), which would orphan the hook.
pub(crate) const HOOK_TIMEOUT: Duration = Duration::from_secs(100);

/// What the spec does to a container that names the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The runtime refuses to create it, with the agent alive or dead: the device has a node whose path on
    /// the host does not exist. The user reads the path.
    Shut,
    /// The runtime creates it, and a hook holds it until the marker exists. A hook that times out ends a pod
    /// whose containers are never started again.
    Hook,
}

/// The content of a claim's spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spec {
    /// What it does to containers.
    pub(crate) form: Form,
    /// The pod that the claim is for. The kubelet prepares a claim once, for its first pod, and gives the
    /// next pod the same device without another call.
    pub(crate) pod_uid: String,
    /// Why the hook refuses the containers of another pod.
    pub(crate) refusal: String,
    /// The files of its requests.
    pub(crate) mounts: Arc<BTreeMap<RequestKey, Mount>>,
}

/// Returns the specs of the claims of a pod's `records`, by the claims' UIDs. `mount` is the file of a plan's
/// request.
pub(crate) fn specs_of(
    records: &[Record],
    form: Form,
    mount: impl Fn(&Plan) -> Mount,
) -> BTreeMap<String, Spec> {
    let mut specs = BTreeMap::new();
    for Record { plan, .. } in records {
        let spec = specs.entry(plan.owner.claim.uid.clone()).or_insert_with(|| Spec {
            form,
            pod_uid: plan.owner.pod.uid.clone(),
            refusal: of_another_pod(plan),
            mounts: Arc::default(),
        });
        Arc::make_mut(&mut spec.mounts).insert(RequestKey::of(plan), mount(plan));
    }
    specs
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

    /// Returns the fully qualified names of the devices of a plan, for the answer to NodePrepareResources:
    /// its request's file and its claim's gate.
    pub(crate) fn devices(&self, plan: &Plan) -> Vec<String> {
        let name = |device: &str| format!("{}/claim={device}", self.driver);
        vec![name(&RequestKey::of(plan).to_string()), name(&plan.owner.claim.uid)]
    }

    /// Returns the UID of the claim that a device is for; `None` for devices of other drivers.
    pub(crate) fn claim_of<'a>(&self, device: &'a str) -> Option<&'a str> {
        let name = device.strip_prefix(self.driver.as_str())?.strip_prefix("/claim=")?;
        // A UID has no `_`.
        name.split('_').next()
    }

    /// Writes the spec of a claim, atomically.
    ///
    /// # Errors
    /// When the spec is not on disk afterwards.
    pub(crate) fn write(&self, claim_uid: &str, spec: &Spec) -> io::Result<()> {
        let mut args = self.hook.args();
        args.extend([spec.pod_uid.clone(), spec.refusal.clone()]);
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
        let device = |name: &str, edits: Value| json!({"name": name, "containerEdits": edits});
        let mount = |(key, mount): (&RequestKey, &Mount)| {
            let Mount { host_path, container_path } = mount;
            let mount =
                json!({"hostPath": host_path, "containerPath": container_path, "options": ["ro", "bind"]});
            device(&key.to_string(), json!({"mounts": [mount]}))
        };
        let devices = std::iter::once(device(claim_uid, gate)).chain(spec.mounts.iter().map(mount));
        let spec = json!({
            "cdiVersion": "0.5.0",
            "kind": format!("{}/claim", self.driver),
            "devices": devices.collect::<Vec<_>>(),
        });
        files::replace(&self.path(claim_uid), &spec.to_string())
    }

    /// Removes the spec of a claim, if it exists.
    ///
    /// # Errors
    /// When the spec exists afterwards.
    pub(crate) fn remove(&self, claim_uid: &str) -> io::Result<()> {
        files::remove(&self.path(claim_uid))
    }

    /// Returns the UIDs of the claims that have a spec.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub(crate) fn claims(&self) -> io::Result<Vec<String>> {
        let prefix = self.prefix();
        let mut claims = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            let claim = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.strip_suffix(".json"));
            claims.extend(claim.map(str::to_owned));
        }
        Ok(claims)
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
        format!("{}-claim_", self.driver)
    }

    fn path(&self, claim_uid: &str) -> PathBuf {
        self.dir.join(format!("{}{claim_uid}.json", self.prefix()))
    }
}

/// Explains why no other pod can use the claim.
pub(crate) fn of_another_pod(plan: &Plan) -> String {
    format!(
        "ResourceClaim {} is attached to pod {}: an attachment belongs to one pod, so wait until that pod has ended, or give \
         each pod its own claim, for example by resourceClaimTemplateName",
        plan.owner.claim, plan.owner.pod.name
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
        let spec = |form| specs_of(std::slice::from_ref(&record), form, mount).remove("u1").expect("a spec");
        specs.write("u1", &spec(Form::Shut)).expect("written");
        specs.write("u1", &spec(Form::Hook)).expect("written over");
        assert_eq!(specs.claims().expect("a list"), ["u1"]);
        let text = fs::read_to_string(dir.path().join("netclaim.dev-claim_u1.json")).expect("read");
        let spec: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            spec["devices"][0]["containerEdits"]["hooks"][0]["args"],
            json!(["netclaim-hook", "/s", "/m", "p", of_another_pod(&record.plan)])
        );
        let file = &spec["devices"][1];
        assert_eq!(specs.devices(&record.plan), ["netclaim.dev/claim=u1_net", "netclaim.dev/claim=u1"]);
        assert_eq!((&spec["kind"], &file["name"]), (&json!("netclaim.dev/claim"), &json!("u1_net")));
        assert_eq!(file["containerEdits"]["mounts"][0]["hostPath"], "/f");
        specs.remove("u1").expect("removed");
        specs.remove("u1").expect("removed again");
        assert!(specs.claims().expect("a list").is_empty());
    }

    #[test]
    fn a_device_of_another_driver_is_for_no_claim() {
        let hook = HookCommand { path: "/h".into(), socket: "/s".into(), markers: "/m".into() };
        let specs = CdiSpecs { dir: "/".into(), driver: "netclaim.dev".into(), hook };
        for device in specs.devices(&record("u1", Phase::Planned).plan) {
            assert_eq!(specs.claim_of(&device), Some("u1"));
        }
        assert_eq!(specs.claim_of("netclaim.dev.example.org/claim=u1"), None);
        assert_eq!(specs.claim_of("nvidia.com/gpu=0"), None);
    }
}
