//! Pods whose containers the runtime refuses because CDI is off. No agent sees that: such a container never
//! reaches it.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use netclaim_api::DRIVER_NAME;

/// What containerd says where `enable_cdi` is false (2.3, `internal/cri/server/container_create_linux.go`).
const DISABLED: &str = "CDI support is explicitly disabled";

/// A pod on a node without CDI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) node: String,
    /// Namespace and name.
    pub(super) pod: String,
}

/// Returns the pod if a container of it is refused for want of CDI, and names a claim of netclaim.
pub(super) fn refused(pod: &Pod) -> Option<Refused> {
    let node = pod.spec.as_ref()?.node_name.clone()?;
    let status = pod.status.as_ref()?;
    let containers = [&status.init_container_statuses, &status.container_statuses];
    let mut waiting = containers
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|container| container.state.as_ref()?.waiting.as_ref()?.message.as_deref());
    let device = format!("{DRIVER_NAME}/claim=");
    waiting
        .any(|message| message.contains(DISABLED) && message.contains(&device))
        .then(|| Refused { node, pod: format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(message: &str) -> Pod {
        let waiting = json!({"reason": "CreateContainerError", "message": message});
        serde_json::from_value(json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {"nodeName": "a", "containers": []},
            "status": {"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": waiting}}]}}))
        .unwrap()
    }

    #[test]
    fn a_container_of_ours_that_needs_cdi_is_told_from_others() {
        let of = |device: &str| {
            pod(&format!("CDI devices ({device}) requested but CDI support is explicitly disabled"))
        };
        let found = Refused { node: "a".to_owned(), pod: "shop/web".to_owned() };
        assert_eq!(refused(&of("netclaim.dev/claim=1_net, netclaim.dev/claim=1")), Some(found));
        assert_eq!(refused(&of("gpu.example.com/gpu=0")), None);
        assert_eq!(
            refused(&pod("unresolvable CDI devices netclaim.dev/claim=1")),
            None,
            "its agent has not attached it"
        );
        assert_eq!(refused(&Pod::default()), None);
    }
}
