//! What a pod asks of its network beside the network itself.

/// What a pod asks of its network, and the field of `allow` that permits it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Setting {
    Ips,
    Mac,
    Bandwidth,
    PortMappings,
}

impl Setting {
    pub(super) const ALL: [Self; 4] = [Self::Ips, Self::Mac, Self::Bandwidth, Self::PortMappings];

    /// The name of the field, of the key in the annotation, and of CNI's capability.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Ips => "ips",
            Self::Mac => "mac",
            Self::Bandwidth => "bandwidth",
            Self::PortMappings => "portMappings",
        }
    }
}
