//! A network link as the kernel describes it: plain data that can be compared.

/// A network link (interface) of a network namespace at one moment. In the default nothing is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// Interface index: unique within the namespace, for as long as the link lives there.
    pub index: u32,
    /// Which link this is, whatever its name and namespace: no later link gets the same. `None` where sysfs
    /// does not show it, and in a snapshot.
    pub identity: Option<u64>,
    /// Interface name.
    pub name: String,
    /// Alternative names (`ip link property add … altname`). They share one namespace with `name`.
    pub alt_names: Vec<String>,
    /// Free text (`ip link set … alias`).
    pub alias: Option<String>,
    /// rtnetlink kind (`veth`, `bridge`, `macvlan`, `bond`, `vlan` …); `None` for a device that a driver
    /// made, such as a NIC or a VF.
    pub kind: Option<String>,
    /// Hardware address, lower-case and colon-separated; `None` if the link has none or it is all zeros.
    pub mac: Option<String>,
    /// The hardware address that the device came with, if its driver reports it; written like `mac`.
    pub permanent_mac: Option<String>,
    /// MTU in bytes.
    pub mtu: u32,
    /// The link was set up (`IFF_UP`).
    pub admin_up: bool,
    /// A program had it receive all frames (`IFF_PROMISC`). Sockets and bridges that do so do not count.
    pub promisc: bool,
    /// A program had it receive all multicast frames (`IFF_ALLMULTI`).
    pub allmulti: bool,
    /// RFC 2863 operational state.
    pub oper: OperState,
    /// The lower layer has a signal. Also true for many virtual links while they are down.
    pub carrier: bool,
    /// Index of the bridge, bond, team, VRF or Open vSwitch datapath the link is enslaved to.
    pub master: Option<u32>,
    /// Index of the link below (VLAN, macvlan …), if it is in the same namespace (`IFLA_LINK`). `None` for
    /// links that come in pairs, such as veth.
    pub parent: Option<u32>,
    /// The link below is in another network namespace (`IFLA_LINK_NETNSID`).
    pub parent_elsewhere: bool,
    /// A loopback device.
    pub loopback: bool,
    /// Speed in bit/s, as the driver reports it now; `None` if unknown, usually because the link is down.
    pub speed: Option<u64>,
    /// Name of the device's kernel driver.
    pub driver: Option<String>,
    /// PCI vendor and device behind the link, such as `15b3:1017`.
    pub pci_id: Option<String>,
    /// Address of the PCI function behind the link, such as `0000:3b:00.1`.
    pub pci_bus_id: Option<String>,
    /// The PCIe root complex above that function, such as `pci0000:3a`: the value of the standard
    /// attribute `resource.kubernetes.io/pcieRoot`.
    pub pcie_root: Option<String>,
    /// NUMA node of the device; `None` if the platform does not say.
    pub numa_node: Option<i64>,
    /// For an SR-IOV virtual function: the name of the physical function's link, or the physical function's
    /// PCI address while that link is in another network namespace, such as a pod's.
    pub physical_function: Option<String>,
    /// How many SR-IOV virtual functions the device has now.
    pub virtual_functions: u32,
}

impl Link {
    /// Whether frames can pass: the link is set up, has a carrier, and no state that says otherwise. The
    /// state `unknown` counts as up, because many drivers never report another one.
    pub fn is_up(&self) -> bool {
        self.admin_up && self.carrier && matches!(self.oper, OperState::Up | OperState::Unknown)
    }

    /// Whether `name` is the link's name or one of its alternative names.
    pub fn is_named(&self, name: &str) -> bool {
        self.name == name || self.alt_names.iter().any(|alt| alt == name)
    }

    /// Whether links of its kind come in pairs.
    pub(super) fn is_of_pair(&self) -> bool {
        matches!(self.kind.as_deref(), Some("veth" | "netkit" | "vxcan"))
    }

    /// Whether a driver made it for a device.
    pub(super) fn is_hardware(&self) -> bool {
        self.kind.is_none() && !self.loopback
    }

    /// Takes what sysfs says of the link from `other`.
    pub(super) fn set_sysfs(&mut self, other: Self) {
        self.speed = other.speed;
        self.driver = other.driver;
        self.pci_id = other.pci_id;
        self.pci_bus_id = other.pci_bus_id;
        self.pcie_root = other.pcie_root;
        self.numa_node = other.numa_node;
        self.physical_function = other.physical_function;
        self.virtual_functions = other.virtual_functions;
    }
}

/// The octets of a hardware address that is written as [`Link::mac`].
pub(super) fn octets(mac: &str) -> Vec<u8> {
    mac.split(':').filter_map(|octet| u8::from_str_radix(octet, 16).ok()).collect()
}

/// RFC 2863 operational state (`IFLA_OPERSTATE`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OperState {
    /// The driver does not report a state.
    #[default]
    Unknown,
    /// The device is missing a part.
    NotPresent,
    /// Down.
    Down,
    /// The link below is down.
    LowerLayerDown,
    /// In a test mode.
    Testing,
    /// Waiting for an external event, such as 802.1X.
    Dormant,
    /// Up.
    Up,
}

impl From<u8> for OperState {
    /// Converts the kernel's `IF_OPER_*`; other numbers become [`OperState::Unknown`].
    fn from(value: u8) -> Self {
        match value {
            1 => Self::NotPresent,
            2 => Self::Down,
            3 => Self::LowerLayerDown,
            4 => Self::Testing,
            5 => Self::Dormant,
            6 => Self::Up,
            _ => Self::Unknown,
        }
    }
}
