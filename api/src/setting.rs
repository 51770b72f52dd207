//! The settings of an attachment that need the admin's permission: the one table of them.

use crate::AttachmentConfig;

/// What a claim may set if the admin allows it. Plugins take all but two as a CNI capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    /// IP addresses.
    Ips,
    /// The MAC address.
    Mac,
    /// Limits of the rate in each direction.
    Bandwidth,
    /// Ports of the node that lead to the pod.
    PortMappings,
    /// Whether the pod's default route leads by the network.
    DefaultRoute,
    /// Whether the network is the pod's primary one.
    Primary,
}

impl Setting {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Ips, Self::Mac, Self::Bandwidth, Self::PortMappings, Self::DefaultRoute, Self::Primary];

    /// The name of the field in `allow` and in an [`AttachmentConfig`], of CNI's capability, and of Multus'
    /// key.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ips => "ips",
            Self::Mac => "mac",
            Self::Bandwidth => "bandwidth",
            Self::PortMappings => "portMappings",
            Self::DefaultRoute => "defaultRoute",
            Self::Primary => "primary",
        }
    }

    /// Whether a plugin of the network has to take it. For the default route the agent adds a plugin, and
    /// for a primary network it gives the plugins another name of the interface.
    pub const fn is_capability(self) -> bool {
        !matches!(self, Self::DefaultRoute | Self::Primary)
    }
}

impl AttachmentConfig {
    /// Returns what it sets: the field, and the setting that the admin has to allow for it.
    pub fn settings(&self) -> impl Iterator<Item = (&'static str, Setting)> {
        // Destructured, so that a new field cannot be forgotten here.
        let Self {
            interface_name: _,
            ips,
            replica_ips,
            mac,
            bandwidth,
            port_mappings,
            default_route,
            primary,
            args: _,
            parameters: _,
        } = self;
        let of = |setting: Setting| (setting.as_str(), setting);
        let all = [
            (of(Setting::Ips), !ips.is_empty()),
            (("replicaIPs", Setting::Ips), !replica_ips.is_empty()),
            (of(Setting::Mac), mac.is_some()),
            (of(Setting::Bandwidth), bandwidth.is_some()),
            (of(Setting::PortMappings), !port_mappings.is_empty()),
            (of(Setting::DefaultRoute), *default_route),
            (of(Setting::Primary), *primary),
        ];
        all.into_iter().filter(|(_, is_set)| *is_set).map(|(found, _)| found)
    }

    /// Removes the setting that a path leads to or into, such as `ips[0]`. Returns whether it was there.
    pub fn clear(&mut self, path: &str) -> bool {
        let name = path.split(['.', '[']).next().unwrap_or_default();
        let found = self.settings().find(|(field, _)| *field == name);
        match found {
            Some(("replicaIPs", _)) => self.replica_ips.clear(),
            Some((_, Setting::Ips)) => self.ips.clear(),
            Some((_, Setting::Mac)) => self.mac = None,
            Some((_, Setting::Bandwidth)) => self.bandwidth = None,
            Some((_, Setting::PortMappings)) => self.port_mappings.clear(),
            Some((_, Setting::DefaultRoute)) => self.default_route = false,
            Some((_, Setting::Primary)) => self.primary = false,
            None => {}
        }
        found.is_some()
    }
}
