//! Reasons of events and conditions. Users search for them and programs compare them, so they are API.
//!
//! The docstring of a reason is what `docs/reference/events-and-conditions.md` says of it: the first
//! paragraph is what it means, the second what to do.

use serde_json::Value;

/// A reason of an event or of a condition.
pub trait Reason: Copy + 'static {
    /// All reasons of this kind.
    const ALL: &'static [Self];

    /// Returns the reason as users see it.
    fn as_str(self) -> &'static str;

    /// Returns the lines of the docstring.
    fn doc(self) -> &'static [&'static str];

    /// Returns what the reason means.
    fn meaning(self) -> String {
        paragraph(self.doc(), 0)
    }

    /// Returns what to do about it; an empty text if there is nothing to do.
    fn remedy(self) -> String {
        paragraph(self.doc(), 1)
    }
}

/// A reason of a condition. It decides the condition's status.
pub trait ConditionReason: Reason {
    /// Type of the condition.
    const TYPE: &'static str;

    /// The objects that have it, in the plural.
    const OBJECTS: &'static str;

    /// Whether the condition is `True`.
    fn status(self) -> bool;

    /// Returns the condition's status: `True`, `False`, or `Unknown` for a reason that says so.
    fn status_text(self) -> &'static str {
        if self.status() { "True" } else { "False" }
    }

    /// Whether this is the reason of the condition in an object's status.
    fn is_given_by(self, status: &Value) -> bool {
        status["conditions"].as_array().into_iter().flatten().any(|condition| {
            condition["type"] == Self::TYPE
                && condition["status"] == self.status_text()
                && condition["reason"] == self.as_str()
        })
    }
}

/// Returns a paragraph of a docstring in one line; an empty text if there are not so many.
pub(crate) fn paragraph(lines: &[&str], index: usize) -> String {
    let paragraph = lines.split(|line| line.trim().is_empty()).nth(index).unwrap_or_default();
    paragraph.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// Defines an enum of reasons, with their docstrings as text.
macro_rules! reasons {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])+ $reason:ident,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[doc = $doc])+ $reason,)+ }

        impl Reason for $name {
            const ALL: &'static [Self] = &[$(Self::$reason),+];

            fn as_str(self) -> &'static str {
                match self { $(Self::$reason => stringify!($reason)),+ }
            }

            fn doc(self) -> &'static [&'static str] {
                match self { $(Self::$reason => &[$($doc),+]),+ }
            }
        }
    };
}

reasons! {
    /// Reasons of `Accepted`, the condition of ClaimNetworks, AddressPools and UplinkPolicies. The last two
    /// are also reasons of the controller's events.
    AcceptedReason {
        /// The object is in force.
        Accepted,
        /// The object is in force, but may not mean what its author intended.
        ///
        /// Read the message: it names each field and what is likely to be wrong. Nothing has to be done if it
        /// is meant.
        AcceptedWithWarnings,
        /// The object cannot be used as it is written. Pods cannot claim such a ClaimNetwork. Nodes keep the
        /// blocks of addresses that they have of such a pool, and follow the last good version of such a
        /// policy.
        ///
        /// Correct every field that the message names.
        Invalid,
    }
}

reasons! {
    /// Reasons of `Available`, which says where an accepted ClaimNetwork can be used now.
    AvailableReason {
        /// Every node that should have the ClaimNetwork takes new pods: the nodes that `spec.nodeSelector`
        /// selects, and all that publish it.
        Everywhere,
        /// Some nodes take new pods, and some that should do not. `status.nodes` counts both.
        ///
        /// The message names the nodes with the taints of their devices and the DeviceTaintRules, and the
        /// nodes without an uplink. See [what each taint means](../architecture.md#devices-and-counters).
        NotEverywhere,
        /// No node that the ClaimNetwork selects has its uplink.
        ///
        /// Compare `spec.uplink` and `spec.nodeSelector` with the links of the nodes. An event on the Node
        /// (`UplinkOfTheNode`) says why a link that the ClaimNetwork names is not offered. See [which links
        /// are published](../architecture.md#which-links-are-published).
        NoNode,
        /// Every node that publishes the ClaimNetwork has a problem, so new pods stay Pending.
        ///
        /// As for `NotEverywhere`.
        Nowhere,
    }
}

reasons! {
    /// Reasons of `AddressesAvailable`, which says whether nodes get the addresses that they need.
    AddressesReason {
        /// Every node has the addresses that it wants, or can get them.
        Free,
        /// A node needs a block of addresses, and none is free.
        ///
        /// Add a range to the ClaimNetwork's `addresses` or to its AddressPool. `kubectl get
        /// addressblocks.netclaim.dev` shows which nodes have what.
        Exhausted,
        /// All addresses are reserved, so that nodes need no blocks: only claims get one that ask for it.
        ///
        /// Ask as [static addresses](../tasks/static-addresses.md) says, or reserve fewer.
        OnlyReserved,
        /// The AddressPool that the ClaimNetwork names does not exist or is not accepted.
        ///
        /// Create or correct the pool. Nodes keep the blocks that they have.
        PoolMissing,
    }
}

reasons! {
    /// Reasons of `PodsUpToDate`, which says whether pods run the configuration that the ClaimNetwork has
    /// now.
    PodsReason {
        /// No pod is known to run an older configuration.
        UpToDate,
        /// The ClaimNetwork has changed since pods were attached. Attachments stay as they were made.
        ///
        /// Nothing has to be done if that is meant. Otherwise make these pods again, for example by `kubectl
        /// rollout restart`: `netclaimctl status` names them. See [change a
        /// ClaimNetwork](../guide.md#change-a-claimnetwork).
        OlderConfiguration,
    }
}

reasons! {
    /// Reasons of `DeviceClassReady`, which says whether the ClaimNetwork's DeviceClasses are there.
    ClassReason {
        /// Each of its DeviceClasses is as `spec.deviceClass` and `spec.deviceClasses` say.
        Made,
        /// There is a DeviceClass of the name that the controller has not made for this ClaimNetwork. It is
        /// left alone.
        ///
        /// Keep it, and write `deviceClass: None`, or another name in `deviceClasses`. Or delete it: the
        /// controller then makes one, and pods that run are not touched. See [the class of a
        /// ClaimNetwork](../guide.md#the-class-of-a-claimnetwork).
        NotOurs,
        /// The API server refuses a DeviceClass. The controller tries again.
        ///
        /// Read the message: it is the API server's.
        NotWritten,
    }
}

reasons! {
    /// Reasons of the controller's events on ClaimNetworks, beside those of `Accepted`.
    ClassEvent {
        /// Somebody has changed a DeviceClass that the controller keeps for the ClaimNetwork, and it is as
        /// the ClaimNetwork says again.
        ///
        /// Change `spec.deviceClasses` instead. Or write `deviceClass: None` and a DeviceClass of your own.
        DeviceClassRestored,
    }
}

reasons! {
    /// Reasons of `Defaulted`, which says whether pods have a ClaimNetwork that is a default of their
    /// namespace.
    DefaultReason {
        /// Every pod of these namespaces that should have it has it. Those that opt out do not count.
        AllPods,
        /// Pods are older than the default, and do not have it: a pod gets it when it is created.
        ///
        /// Make these pods again, for example by `kubectl -n NAMESPACE rollout restart
        /// deployments,statefulsets,daemonsets`. Nothing has to be done if that is meant.
        OlderPods,
        /// In a namespace, the controller cannot keep the template of the claims. New pods there stay
        /// Pending, or get what somebody else's template says.
        ///
        /// Read the message: it names the namespaces. Remove a template that somebody else has made under
        /// this name, or what the API server refuses it for, such as a quota. The controller tries again
        /// every minute.
        NoTemplate,
        /// No namespace has the labels of the default.
        ///
        /// Label a namespace as `spec.default.namespaceSelector` says. Namespaces of the chart's
        /// `defaultNetworks.exceptNamespaces` get no defaults.
        NoNamespace,
        /// Default networks are off in this cluster, so that pods get the network by claims only.
        ///
        /// Set `defaultNetworks.enabled=true` in the chart's values, or remove `spec.default`.
        Off,
    }
}

/// The readiness gate that a pod may name (`spec.readinessGates`): its agent keeps the condition of this
/// type, which is `True` while each network of the pod is attached and works. Its reasons are
/// [`ReadyReason`]s.
pub const READINESS_GATE: &str = "netclaim.dev/networks";

reasons! {
    /// Reasons of `Ready`, the condition of a device in a claim's status.
    ReadyReason {
        /// The network is attached, as the interface that the message names.
        Attached,
        /// An ADD has failed. The agent retries it, and the pod's containers wait.
        ///
        /// Read the message: it is the plugin's. See
        /// [NetclaimAttachFailing](../runbooks.md#netclaimattachfailing).
        AttachFailed,
        /// A plugin of the ClaimNetwork is not on the node, so that no ADD can begin.
        ///
        /// Install the plugin where the message says, or take the node out of the ClaimNetwork's
        /// `nodeSelector`.
        PluginMissing,
        /// A plugin says that it cannot serve now (CNI errors 50 and 51), or its daemon does not answer.
        /// Where STATUS can be asked, the node's device has a taint, and no ADD begins until it says yes.
        ///
        /// Read the message: it is the plugin's.
        PluginNotReady,
        /// The plugin that gives addresses has none left on the node.
        ///
        /// Enlarge its range, or end pods that have its addresses. With
        /// [`spec.addresses`](../tasks/addresses.md) the scheduler counts them, and this does not occur.
        OutOfAddresses,
        /// Another host on the network has an address that the pod would get, and the ClaimNetwork has
        /// `conflicts: Probe`. The pod gets another address where there is one, or waits.
        ///
        /// Find the host by the MAC address in the message. See [on the
        /// wire](../tasks/on-the-wire.md#an-address-that-another-host-has).
        AddressInUse,
        /// The gateway does not answer, and the ClaimNetwork has `gateway: Required`. The pod waits.
        ///
        /// See whether the gateway is up, and whether the uplink and its VLAN lead to it. See [on the
        /// wire](../tasks/on-the-wire.md#a-gateway-that-must-answer).
        GatewayUnreachable,
        /// A plugin has not answered within `--cni-timeout`, and was killed.
        ///
        /// Read the message, and the plugin's log.
        PluginTimedOut,
        /// The network is attached, and a plugin of the ClaimNetwork's `finalize` has failed. The agent
        /// retries it, and the pod's containers wait.
        ///
        /// Read the message: it is the plugin's. See [finalize](../tasks/finalize.md).
        FinalizeFailed,
        /// A DEL has failed. The agent retries it. Until it succeeds, the claim stays prepared, its addresses
        /// stay taken and the pod may stay Terminating.
        ///
        /// Read the message: it is the plugin's. See
        /// [NetclaimDetachFailing](../runbooks.md#netclaimdetachfailing).
        DetachFailed,
        /// A CHECK found the attachment different from what the ADD made. The pod is not touched, unless the
        /// ClaimNetwork has `repair: Reattach`.
        ///
        /// Read the message. If the pod has lost its network, delete the pod, or see
        /// [repair](../tasks/repair.md). The condition is `True` again when a later CHECK succeeds.
        CheckFailed,
        /// Only of the pod's condition `netclaim.dev/networks`: the network is attached, but its device cuts
        /// the pod off. The link is down or gone, or a plugin or a program on the node says that pods have
        /// limited connectivity.
        ///
        /// Repair what the message names.
        DeviceUnhealthy,
        /// The claim cannot be prepared on its node.
        ///
        /// Correct what the message names: a field of the claim or of its class, or a ClaimNetwork that is
        /// gone. The kubelet retries after 60 to 90 s.
        Refused,
    }
}

reasons! {
    /// Reasons of `Allocated`, which says whether a NetworkAttachment has devices.
    AllocatedReason {
        /// The scheduler has allocated the devices on the node of the pod. The agent there may attach the
        /// pod.
        Allocated,
        /// There is no pod of this name, or not the one that `spec.podUID` names.
        ///
        /// Create the pod. If `spec.podUID` is set, delete the NetworkAttachment: its pod does not come back.
        PodNotFound,
        /// The pod has no node yet, or it ends.
        PodNotRunning,
        /// The pod cannot have what the NetworkAttachment asks for, whatever is free.
        ///
        /// Read the message: it names the ResourceClaimTemplate, the ClaimNetwork or the field of the pod. A
        /// NetworkAttachment cannot be changed: delete it, and create another one.
        Refused,
        /// The scheduler did not allocate the devices within 5 s. It is asked again, after 10 s at first and
        /// 5 min at last.
        ///
        /// Read the message: it is the scheduler's, and names the node of the pod. Most often all capacity of
        /// the node is taken.
        NotAllocated,
        /// The API server refused the claim or the pod by which the controller asks the scheduler. It is
        /// tried again, after 10 s at first and 5 min at last.
        ///
        /// Read the message: it is the API server's. A quota, a policy or a webhook must let netclaim create
        /// them in its own namespace.
        ProbeRefused,
        /// The pod is gone, has ended, or was replaced by another one of its name. Its interfaces are
        /// detached, and the next pod gets them.
        PodGone,
        /// The NetworkAttachment is being deleted. The interfaces are detached first.
        ///
        /// If this lasts, look at the agent of `status.node`: only it can detach.
        Deleted,
        /// Somebody has deleted the claim. The interfaces are detached, and the devices are asked for again.
        ClaimDeleted,
        /// A device has a taint with the effect `NoExecute`. The interfaces are detached, and the devices are
        /// asked for again.
        Evicted,
    }
}

reasons! {
    /// Reasons of `Attached`, which says whether the pod of a NetworkAttachment has the interfaces.
    AttachedReason {
        /// The pod has the interfaces, as `status.interfaces` says.
        Attached,
        /// An ADD has failed. The agent retries it after 0.5 s, doubling to 10 s, or to 60 s if the plugin is
        /// missing or calls the configuration invalid.
        ///
        /// Read the plugin's message and correct what it names. The pod itself goes on without the interface.
        AttachFailed,
        /// The agent cannot attach the pod as the claim says.
        ///
        /// Read the message. Correct the ResourceClaimTemplate or the ClaimNetwork; then delete the
        /// NetworkAttachment and create it again.
        Refused,
        /// Nothing is attached any more, and no DEL is owed.
        Detached,
        /// A DEL has failed. The agent retries it, and until then the devices stay allocated.
        ///
        /// Read the plugin's message and correct what it names.
        DetachFailed,
        /// The agent of the node has not been ready for 30 s. What is attached stays so.
        ///
        /// Find out why the agent does not run on the node of `status.node`.
        AgentAway,
    }
}

reasons! {
    /// Reasons of events on pods: the first is the controller's, the others are the agent's.
    PodEvent {
        /// No node can serve the networks that the pod's claims ask for, so the pod stays Pending. The
        /// message says what the claims cannot have on which nodes.
        ///
        /// See [Why is my pod Pending?](../troubleshooting.md#why-is-my-pod-pending).
        NetworkNotAllocated,
        /// An ADD has failed. The agent retries it, and the pod's containers wait.
        ///
        /// As for the conditions `AttachFailed` and `FinalizeFailed`.
        NetworkAttachFailed,
        /// A DEL has failed. The agent retries it.
        ///
        /// As for the condition `DetachFailed`.
        NetworkDetachFailed,
        /// A CHECK found the attachment different from what the ADD made.
        ///
        /// As for the condition `CheckFailed`.
        NetworkCheckFailed,
        /// A CHECK failed twice, and the attachment was made again in the running pod, with the same
        /// addresses.
        ///
        /// The event `NetworkCheckFailed` before it says what was found. What the pod had set up on the
        /// interface itself is gone.
        NetworkRepaired,
        /// The attachment was made again three times within an hour, and has broken again. The agent leaves
        /// it alone until the hour is over.
        ///
        /// Read the message, and find out who breaks it. Delete the pod if it has lost its network.
        NetworkRepairGivenUp,
        /// Somebody copies what passes through an interface of the pod, by `netclaimctl capture`.
        ///
        /// See [Capture](../tasks/capture.md).
        NetworkCaptured,
        /// The agent has given up a DEL, or a link of the host has not come back as it was. Something may be
        /// left on the node.
        ///
        /// Remove what the message names. The agent keeps looking for a link, and gives it to no pod until it
        /// is as it was. See [NetclaimDetachGivenUp](../runbooks.md#netclaimdetachgivenup) and
        /// [NetclaimStrayLink](../runbooks.md#netclaimstraylink).
        NetworkDetachGivenUp,
    }
}

reasons! {
    /// Reasons of the agent's events on the Node.
    NodeEvent {
        /// A ClaimNetwork names a link that carries the node's own traffic, or a link that it does not get.
        /// The message says whether pods share the link, or why not. It also says if another ClaimNetwork
        /// hands out the same addresses on the link under another name of it, or if a link that pods could
        /// have has got a default route or the node's address, and is not offered any more.
        ///
        /// Nothing, if that is meant. Otherwise name another link, write the UplinkPolicy that the message
        /// names, or take the route or address from the link.
        UplinkOfTheNode,
        /// The API server does not store what devices need, so that nothing is published; or its scheduler
        /// cannot work with counters.
        ///
        /// Switch the feature gate on that the message names, or upgrade Kubernetes. See
        /// [Kubernetes versions](kubernetes-versions.md).
        ServerLacksFeatures,
        /// A device is not published, because the API server or the scheduler would refuse the whole pool
        /// with it.
        ///
        /// Read the message: it names the device and the value. Correct the ClaimNetwork or the UplinkPolicy
        /// that the value is from.
        DeviceLeftOut,
        /// A ClaimNetwork cannot be set up on the node as its `spec.node` says. Its device has a taint, and
        /// its pods wait.
        ///
        /// Read the message: it is the plugin's, or names the link or the ClaimNetwork that is in the way.
        /// The agent tries again by itself.
        NodeNetworkFailed,
        /// An attachment was made again (`spec.repair`) and is not as it should be. No other one of the
        /// ClaimNetwork is made again on this node until that one is whole or gone, or for an hour.
        ///
        /// Read the message: it is the plugin's. Correct the node, or delete the pod.
        NetworkRepairsStopped,
    }
}

impl ConditionReason for AcceptedReason {
    const TYPE: &'static str = "Accepted";
    const OBJECTS: &'static str = "ClaimNetworks, AddressPools and UplinkPolicies";

    fn status(self) -> bool {
        self != Self::Invalid
    }
}

impl ConditionReason for AvailableReason {
    const TYPE: &'static str = "Available";
    const OBJECTS: &'static str = "accepted ClaimNetworks";

    fn status(self) -> bool {
        self == Self::Everywhere
    }
}

impl ConditionReason for AddressesReason {
    const TYPE: &'static str = "AddressesAvailable";
    const OBJECTS: &'static str = "accepted ClaimNetworks with `addresses`";

    fn status(self) -> bool {
        matches!(self, Self::Free | Self::OnlyReserved)
    }
}

impl ConditionReason for PodsReason {
    const TYPE: &'static str = "PodsUpToDate";
    const OBJECTS: &'static str = "accepted ClaimNetworks that have changed under running pods";

    fn status(self) -> bool {
        self == Self::UpToDate
    }
}

impl ConditionReason for ClassReason {
    const TYPE: &'static str = "DeviceClassReady";
    const OBJECTS: &'static str = "accepted ClaimNetworks with a DeviceClass";

    fn status(self) -> bool {
        self == Self::Made
    }
}

impl ConditionReason for DefaultReason {
    const TYPE: &'static str = "Defaulted";
    const OBJECTS: &'static str = "accepted ClaimNetworks with `default`";

    fn status(self) -> bool {
        self == Self::AllPods
    }
}

impl ConditionReason for AllocatedReason {
    const TYPE: &'static str = "Allocated";
    const OBJECTS: &'static str = "NetworkAttachments, which the controller writes";

    fn status(self) -> bool {
        self == Self::Allocated
    }
}

impl ConditionReason for AttachedReason {
    const TYPE: &'static str = "Attached";
    const OBJECTS: &'static str = "NetworkAttachments, which the agent writes";

    fn status(self) -> bool {
        self == Self::Attached
    }

    fn status_text(self) -> &'static str {
        match self {
            Self::Attached => "True",
            Self::AgentAway | Self::DetachFailed => "Unknown",
            Self::AttachFailed | Self::Refused | Self::Detached => "False",
        }
    }
}

/// A condition of a ClaimNetwork's status, which the controller writes.
pub trait NetworkCondition: ConditionReason {}

/// Says which conditions a ClaimNetwork has.
macro_rules! network_conditions {
    ($($reason:ident),+) => {
        $(impl NetworkCondition for $reason {})+

        /// The types of the conditions that the controller writes into a ClaimNetwork's status. Others stay.
        pub const NETWORK_CONDITIONS: &[&str] = &[$($reason::TYPE),+];
    };
}

network_conditions!(AcceptedReason, AvailableReason, AddressesReason, PodsReason, ClassReason, DefaultReason);

impl ConditionReason for ReadyReason {
    const TYPE: &'static str = "Ready";
    const OBJECTS: &'static str = "netclaim's devices in the status of claims";

    fn status(self) -> bool {
        self == Self::Attached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_docstring_is_a_meaning_and_a_remedy() {
        assert_eq!(AcceptedReason::Accepted.meaning(), "The object is in force.");
        assert_eq!(AcceptedReason::Accepted.remedy(), "");
        assert!(AcceptedReason::Invalid.meaning().ends_with("version of such a policy."));
        assert_eq!(AcceptedReason::Invalid.remedy(), "Correct every field that the message names.");
    }
}
