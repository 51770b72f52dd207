//! Pods' sandboxes and containers as the runtime reports them, validated once.
//!
//! Identifiers become parts of file names and of a plugin's environment: those that could leave a directory
//! or inject a line are refused. What the runtime no longer knows is `Unknown`, never guessed.

use std::path::PathBuf;

use crate::proto;

/// A pod's sandbox. When it dies, the pod gets another one with a new id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Id of the sandbox, chosen by the runtime; a valid `CNI_CONTAINERID`.
    pub id: String,
    /// UID of the pod. Not always a UUID: static pods have a hash.
    pub uid: String,
    /// Name of the pod.
    pub name: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// The network that the sandbox uses.
    pub network: SandboxNetwork,
}

/// The network that a sandbox uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxNetwork {
    /// A namespace of its own, at this path. The path may be gone: CRI-O stops a sandbox after removing it.
    Namespace(PathBuf),
    /// The node's (`hostNetwork: true`).
    Host,
    /// The runtime does not say. Usual after the sandbox has stopped; containerd lists such sandboxes until
    /// they are removed.
    Unknown,
}

/// A container of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Id of the container, chosen by the runtime; every attempt to create it has a new one.
    pub id: String,
    /// Name in the pod's spec.
    pub name: String,
    /// Fully qualified names of the CDI devices that it requests. containerd up to 2.2 and CRI-O up to 1.36
    /// do not report them: an empty list proves nothing.
    pub cdi_devices: Vec<String>,
}

/// Why a sandbox or container of the runtime is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidObject {
    /// The message lacks it.
    #[error("the runtime sent no {0}")]
    Missing(&'static str),
    /// An identifier is not a name.
    #[error(
        "the runtime sent the {field} {value:?}: not 1 to {MAX_NAME} letters, digits or `-_.` that begin with a \
         letter or digit"
    )]
    Name {
        /// The field.
        field: &'static str,
        /// The beginning of its value.
        value: String,
    },
    /// The network namespace's path is not absolute.
    #[error("the runtime sent the network namespace {0:?}, which is not an absolute path")]
    Namespace(String),
}

/// Longest name of a file.
const MAX_NAME: usize = 255;

fn name(field: &'static str, value: String) -> Result<String, InvalidObject> {
    let valid = value.starts_with(|first: char| first.is_ascii_alphanumeric())
        && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && value.len() <= MAX_NAME;
    if valid {
        Ok(value)
    } else {
        Err(InvalidObject::Name { field, value: value.chars().take(MAX_NAME).collect() })
    }
}

/// When the runtime reported a sandbox; decides what a missing network namespace means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The sandbox was just made: a namespace that it lacks now, it never gets.
    Run,
    /// The sandbox runs, or has stopped and the runtime has forgotten part of it.
    Later,
    /// The sandbox is ending.
    End,
}

impl Sandbox {
    /// Parses a sandbox. `None` for one without a pod UID: no kubelet made it, so it has no claims.
    pub(crate) fn parse(
        pod: Option<proto::PodSandbox>,
        moment: Moment,
    ) -> Result<Option<Self>, InvalidObject> {
        let pod = pod.ok_or(InvalidObject::Missing("pod sandbox"))?;
        if pod.uid.is_empty() {
            return Ok(None);
        }
        let namespaces = pod.linux.map(|linux| linux.namespaces).unwrap_or_default();
        Ok(Some(Self {
            network: SandboxNetwork::parse(&namespaces, &pod.ips, moment)?,
            id: name("sandbox id", pod.id)?,
            uid: name("pod uid", pod.uid)?,
            name: name("pod name", pod.name)?,
            namespace: name("pod namespace", pod.namespace)?,
        }))
    }
}

impl From<&Sandbox> for proto::PodSandbox {
    /// Encodes a sandbox so that it is the same again after [`Sandbox::parse`], except at the sandbox's end:
    /// there only a path is known.
    fn from(sandbox: &Sandbox) -> Self {
        let namespace = |kind: &str, path: String| proto::LinuxNamespace { r#type: kind.to_owned(), path };
        let namespaces = match &sandbox.network {
            SandboxNetwork::Namespace(path) => {
                vec![namespace("network", path.to_string_lossy().into_owned())]
            }
            SandboxNetwork::Host => vec![namespace("pid", String::new())],
            SandboxNetwork::Unknown => Vec::new(),
        };
        Self {
            id: sandbox.id.clone(),
            name: sandbox.name.clone(),
            uid: sandbox.uid.clone(),
            namespace: sandbox.namespace.clone(),
            linux: Some(proto::LinuxPodSandbox { namespaces }),
            ips: Vec::new(),
        }
    }
}

impl From<&Container> for proto::Container {
    fn from(container: &Container) -> Self {
        let device = |name: &String| proto::CdiDevice { name: name.clone() };
        Self {
            id: container.id.clone(),
            name: container.name.clone(),
            cdi_devices: container.cdi_devices.iter().map(device).collect(),
        }
    }
}

impl SandboxNetwork {
    /// A pod on the node's network has namespaces, but none of type `network`. The same is true of any
    /// sandbox after it has stopped. Only the latter can have a `uts` namespace or an address.
    fn parse(
        namespaces: &[proto::LinuxNamespace],
        ips: &[String],
        moment: Moment,
    ) -> Result<Self, InvalidObject> {
        let of = |kind: &str| namespaces.iter().find(|namespace| namespace.r#type == kind);
        Ok(match (of("network"), moment) {
            (Some(network), _) if network.path.is_empty() => Self::Unknown,
            (Some(network), _) if network.path.starts_with('/') => {
                Self::Namespace(network.path.clone().into())
            }
            (Some(network), _) => return Err(InvalidObject::Namespace(network.path.clone())),
            (None, _) if namespaces.is_empty() => Self::Unknown,
            (None, Moment::Run) => Self::Host,
            (None, Moment::Later) if of("uts").is_none() && ips.is_empty() => Self::Host,
            (None, Moment::Later | Moment::End) => Self::Unknown,
        })
    }
}

impl Container {
    pub(crate) fn parse(container: Option<proto::Container>) -> Result<Self, InvalidObject> {
        let container = container.ok_or(InvalidObject::Missing("container"))?;
        Ok(Self {
            id: name("container id", container.id)?,
            name: name("container name", container.name)?,
            cdi_devices: container.cdi_devices.into_iter().map(|device| device.name).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    fn pod(namespaces: &[(&str, &str)]) -> proto::PodSandbox {
        proto::PodSandbox {
            id: "s1".to_owned(),
            name: "web-0".to_owned(),
            uid: "9c5b94b1-35ad-49bb-b118-8e8fc24abf80".to_owned(),
            namespace: "shop".to_owned(),
            linux: Some(proto::LinuxPodSandbox {
                namespaces: namespaces
                    .iter()
                    .map(|(kind, path)| proto::LinuxNamespace {
                        r#type: (*kind).to_owned(),
                        path: (*path).to_owned(),
                    })
                    .collect(),
            }),
            ..Default::default()
        }
    }

    fn network(pod: proto::PodSandbox, moment: Moment) -> SandboxNetwork {
        Sandbox::parse(Some(pod), moment).unwrap().unwrap().network
    }

    const MOMENTS: [Moment; 3] = [Moment::Run, Moment::Later, Moment::End];

    #[test]
    fn a_network_namespace_is_known_whenever_the_runtime_reports_its_path() {
        for moment in MOMENTS {
            let pod = pod(&[("pid", ""), ("network", "/run/netns/a")]);
            assert_eq!(network(pod, moment), SandboxNetwork::Namespace("/run/netns/a".into()));
        }
    }

    #[test]
    fn a_pod_on_the_nodes_network_is_recognised_while_it_runs() {
        for moment in [Moment::Run, Moment::Later] {
            assert_eq!(
                network(pod(&[("pid", ""), ("ipc", ""), ("mount", "")]), moment),
                SandboxNetwork::Host
            );
        }
    }

    #[test]
    fn a_stopped_sandbox_is_not_taken_for_a_pod_on_the_nodes_network() {
        let stopped = pod(&[("pid", ""), ("ipc", ""), ("uts", ""), ("mount", "")]);
        assert_eq!(network(stopped, Moment::Later), SandboxNetwork::Unknown);
        let stopped = proto::PodSandbox { ips: vec!["10.0.0.7".to_owned()], ..pod(&[("pid", "")]) };
        assert_eq!(network(stopped, Moment::Later), SandboxNetwork::Unknown);
        assert_eq!(
            network(pod(&[("pid", ""), ("ipc", ""), ("mount", "")]), Moment::End),
            SandboxNetwork::Unknown
        );
    }

    #[test]
    fn a_sandbox_without_any_namespace_says_nothing_about_its_network() {
        for moment in MOMENTS {
            assert_eq!(network(pod(&[]), moment), SandboxNetwork::Unknown);
            let none = proto::PodSandbox { linux: None, ..pod(&[]) };
            assert_eq!(network(none, moment), SandboxNetwork::Unknown);
        }
    }

    #[test]
    fn a_sandbox_that_is_passed_on_is_the_same() {
        let networks =
            [SandboxNetwork::Namespace("/run/netns/a".into()), SandboxNetwork::Host, SandboxNetwork::Unknown];
        for network in networks {
            for moment in [Moment::Run, Moment::Later] {
                let mut sandbox = Sandbox::parse(Some(pod(&[])), moment).unwrap().unwrap();
                sandbox.network = network.clone();
                assert_eq!(Sandbox::parse(Some((&sandbox).into()), moment), Ok(Some(sandbox)));
            }
        }
    }

    #[test]
    fn a_sandbox_that_no_kubelet_made_is_skipped() {
        let pod = proto::PodSandbox { uid: String::new(), ..pod(&[]) };
        assert_eq!(Sandbox::parse(Some(pod), Moment::Run), Ok(None));
    }

    #[test]
    fn an_identifier_that_is_not_a_file_name_is_refused() {
        for id in ["", "..", "a/b", "a\nb", "-a", &"a".repeat(256)] {
            let pod = proto::PodSandbox { id: id.to_owned(), ..pod(&[]) };
            assert!(matches!(
                Sandbox::parse(Some(pod), Moment::Run),
                Err(InvalidObject::Name { field: "sandbox id", .. })
            ));
        }
    }

    #[test]
    fn a_network_namespace_at_a_relative_path_is_refused() {
        let parsed = Sandbox::parse(Some(pod(&[("network", "run/netns/a")])), Moment::Run);
        assert_eq!(parsed, Err(InvalidObject::Namespace("run/netns/a".to_owned())));
    }

    #[test]
    fn a_container_keeps_the_names_of_its_cdi_devices() {
        let container = Container::parse(Some(proto::Container {
            id: "c1".to_owned(),
            name: "app".to_owned(),
            cdi_devices: vec![proto::CdiDevice { name: "netclaim.dev/claim=1".to_owned() }],
        }))
        .unwrap();
        assert_eq!(container.cdi_devices, ["netclaim.dev/claim=1"]);
    }

    proptest! {
        #[test]
        fn a_parsed_identifier_is_one_plain_component_of_a_path(id in any::<String>()) {
            if let Ok(id) = name("sandbox id", id) {
                prop_assert_eq!(Path::new("/d").join(&id).strip_prefix("/d").unwrap().components().count(), 1);
                prop_assert!(!id.starts_with('.') && !id.contains(['/', '\n', '\0', '=', ';']));
            }
        }
    }
}
