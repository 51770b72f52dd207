//! Reads from sysfs what netlink does not report of a link: its speed and its device.
//!
//! `/sys/class/net` shows the namespace that sysfs was mounted for, and links may be renamed at any time. So
//! an entry counts only if it has the expected index; otherwise nothing is known.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::link::Link;

/// Every PCI function of the machine, regardless of the namespace of its links.
const FUNCTIONS: &str = "bus/pci/devices";

/// Reads the link's data from `sysfs` (usually `/sys`). Blocks.
pub(super) fn read_into(link: &mut Link, sysfs: &Path) {
    // Netlink, too, names the function, but only if nothing is between it and the link.
    link.set_sysfs(Link::default());
    let entry = sysfs.join("class/net").join(&link.name);
    if read::<u32>(&entry.join("ifindex")) != Some(link.index) {
        return;
    }
    // In Mbit/s; a driver that does not know says -1, as i32 or u32.
    link.speed = read::<i64>(&entry.join("speed"))
        .filter(|mbit| (1..i64::from(u32::MAX)).contains(mbit))
        .and_then(|mbit| u64::try_from(mbit).ok())
        .map(|mbit| mbit * 1_000_000);
    // The path of the device contains the devices above it: that of a virtio NIC contains its PCI function.
    let Ok(device) = fs::canonicalize(entry.join("device")) else { return };
    let driver = fs::read_link(device.join("driver")).ok();
    link.driver = driver.and_then(|target| file_name(&target).map(str::to_owned));
    let Some(function) = device.ancestors().find(|dir| file_name(dir).is_some_and(is_pci_bus_id)) else {
        return;
    };
    link.pci_id = pci_id(function);
    link.pci_bus_id = file_name(function).map(str::to_owned);
    link.pcie_root = pcie_root(function);
    link.numa_node = read(&function.join("numa_node")).filter(|node| *node >= 0);
    link.physical_function = physical_function(function);
    link.virtual_functions = read(&function.join("sriov_numvfs")).unwrap_or_default();
}

/// Returns the identity of a link: the inode of its directory, which moves with the link from name to name
/// and from namespace to namespace, and which Linux never reuses (since 5.5).
pub(super) fn link_identity(link: &Link, sysfs: &Path) -> Option<u64> {
    let entry = sysfs.join("class/net").join(&link.name);
    let identity = fs::metadata(&entry).ok()?.ino();
    (index_of(sysfs, &link.name)? == link.index).then_some(identity)
}

/// Returns the index of the link of this name.
pub(super) fn index_of(sysfs: &Path, name: &str) -> Option<u32> {
    read(&sysfs.join("class/net").join(name).join("ifindex"))
}

/// Returns the identity of a PCI function, by which another function with the same address later differs: the
/// inode of its directory, which Linux never reuses (since 5.5).
pub(super) fn identity(sysfs: &Path, pci_bus_id: &str) -> io::Result<u64> {
    Ok(fs::metadata(sysfs.join(FUNCTIONS).join(pci_bus_id))?.ino())
}

/// Whether the PCI function was removed from the machine, regardless of the namespace of its links.
pub(super) fn is_removed(sysfs: &Path, pci_bus_id: &str, noted: Option<u64>) -> bool {
    match identity(sysfs, pci_bus_id) {
        Ok(now) => noted.is_some_and(|noted| noted != now),
        Err(error) => error.kind() == io::ErrorKind::NotFound && sysfs.join(FUNCTIONS).is_dir(),
    }
}

fn read<T: std::str::FromStr>(file: &PathBuf) -> Option<T> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn file_name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

/// Vendor and device, as `lspci -n` writes them.
fn pci_id(function: &Path) -> Option<String> {
    let hex = |file: &str| {
        let text = fs::read_to_string(function.join(file)).ok()?;
        text.trim().strip_prefix("0x").filter(|digits| is_hex(digits, 4..=4)).map(str::to_lowercase)
    };
    Some(format!("{}:{}", hex("vendor")?, hex("device")?))
}

/// Returns the physical function of a virtual one; see [`super::Link::physical_function`]. If the physical
/// function has several links, the first by name: the others are usually representors of virtual functions,
/// with longer names.
fn physical_function(function: &Path) -> Option<String> {
    let physical = fs::canonicalize(function.join("physfn")).ok()?;
    let links = fs::read_dir(physical.join("net")).into_iter().flatten().filter_map(Result::ok);
    let name = links.filter_map(|link| link.file_name().into_string().ok()).min();
    name.or_else(|| file_name(&physical).map(str::to_owned))
}

/// `pci<domain>:<bus>`, the topmost such directory above the function.
fn pcie_root(function: &Path) -> Option<String> {
    function
        .iter()
        .filter_map(|part| part.to_str())
        .find(|part| {
            part.strip_prefix("pci")
                .and_then(|id| id.split_once(':'))
                .is_some_and(|(domain, bus)| is_hex(domain, 4..=8) && is_hex(bus, 2..=2))
        })
        .map(str::to_owned)
}

/// `<domain>:<bus>:<slot>.<function>`.
fn is_pci_bus_id(name: &str) -> bool {
    let mut parts = name.splitn(3, ':');
    let (Some(domain), Some(bus), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let Some((slot, function)) = rest.split_once('.') else {
        return false;
    };
    is_hex(domain, 4..=8) && is_hex(bus, 2..=2) && is_hex(slot, 2..=2) && is_hex(function, 1..=1)
}

fn is_hex(text: &str, length: std::ops::RangeInclusive<usize>) -> bool {
    length.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// What sysfs says of the link with this name and index.
    fn hardware(sysfs: &Path, name: &str, index: u32) -> Link {
        let mut link = Link { name: name.to_owned(), index, ..Link::default() };
        read_into(&mut link, sysfs);
        link
    }

    /// A sysfs with one link, `eth0` with index 2, whose device is at `device` below `devices/`.
    fn sysfs_with_eth0(device: &str) -> tempfile::TempDir {
        let sysfs = tempfile::tempdir().unwrap();
        let root = sysfs.path();
        let device = root.join("devices").join(device);
        let eth0 = device.join("net/eth0");
        fs::create_dir_all(&eth0).unwrap();
        fs::create_dir_all(root.join("class/net")).unwrap();
        symlink(&eth0, root.join("class/net/eth0")).unwrap();
        symlink(&device, eth0.join("device")).unwrap();
        symlink("/sys/bus/any/drivers/mlx5_core", device.join("driver")).unwrap();
        fs::write(eth0.join("ifindex"), "2\n").unwrap();
        fs::write(eth0.join("speed"), "25000\n").unwrap();
        sysfs
    }

    #[test]
    fn a_pci_card_has_an_address_a_root_a_driver_and_a_numa_node() {
        let sysfs = sysfs_with_eth0("pci0000:3a/0000:3a:00.0/0000:3b:00.1");
        let function = sysfs.path().join("devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1");
        let files =
            [("numa_node", "1\n"), ("vendor", "0x15B3\n"), ("device", "0x1017\n"), ("sriov_numvfs", "8\n")];
        for (file, text) in files {
            fs::write(function.join(file), text).unwrap();
        }
        assert_eq!(
            hardware(sysfs.path(), "eth0", 2),
            Link {
                index: 2,
                name: "eth0".to_owned(),
                speed: Some(25_000_000_000),
                driver: Some("mlx5_core".to_owned()),
                pci_id: Some("15b3:1017".to_owned()),
                pci_bus_id: Some("0000:3b:00.1".to_owned()),
                pcie_root: Some("pci0000:3a".to_owned()),
                numa_node: Some(1),
                physical_function: None,
                virtual_functions: 8,
                ..Link::default()
            }
        );
    }

    #[test]
    fn a_virtual_function_names_the_link_of_its_physical_function_or_its_pci_address() {
        let sysfs = sysfs_with_eth0("pci0000:3a/0000:3b:10.2");
        let root = sysfs.path().join("devices/pci0000:3a");
        fs::create_dir_all(root.join("0000:3b:00.1/net/ens1f1")).unwrap();
        fs::create_dir(root.join("0000:3b:00.1/net/ens1f1_0")).unwrap();
        symlink("../0000:3b:00.1", root.join("0000:3b:10.2/physfn")).unwrap();
        let of = || hardware(sysfs.path(), "eth0", 2).physical_function;
        assert_eq!(of().as_deref(), Some("ens1f1"));
        fs::remove_dir_all(root.join("0000:3b:00.1/net")).unwrap();
        fs::create_dir(root.join("0000:3b:00.1/net")).unwrap();
        assert_eq!(of().as_deref(), Some("0000:3b:00.1"));
    }

    #[test]
    fn a_function_is_removed_if_its_address_has_none_or_another() {
        let sysfs = tempfile::tempdir().unwrap();
        let removed = |id, noted| is_removed(sysfs.path(), id, noted);
        assert!(!removed("0000:3b:10.2", Some(7)), "functions are not known");
        fs::create_dir_all(sysfs.path().join("bus/pci/devices/0000:3b:10.4")).unwrap();
        let noted = identity(sysfs.path(), "0000:3b:10.4").unwrap();
        assert!(removed("0000:3b:10.2", None) && removed("0000:3b:10.4", Some(noted + 1)));
        assert!(!removed("0000:3b:10.4", Some(noted)) && !removed("0000:3b:10.4", None));
    }

    #[test]
    fn a_virtio_card_has_the_address_of_its_pci_function() {
        let sysfs = sysfs_with_eth0("pci0000:00/0000:00:03.0/virtio0");
        fs::write(sysfs.path().join("devices/pci0000:00/0000:00:03.0/numa_node"), "-1\n").unwrap();
        let found = hardware(sysfs.path(), "eth0", 2);
        assert_eq!(found.pci_bus_id.as_deref(), Some("0000:00:03.0"));
        assert_eq!(found.pcie_root.as_deref(), Some("pci0000:00"));
        assert_eq!(found.numa_node, None);
    }

    #[test]
    fn a_card_on_another_bus_has_only_a_driver() {
        let sysfs = sysfs_with_eth0("platform/1a22000.virtio_mmio/virtio1");
        let found = hardware(sysfs.path(), "eth0", 2);
        assert_eq!(found.driver.as_deref(), Some("mlx5_core"));
        assert_eq!((found.pci_bus_id, found.pcie_root, found.numa_node), (None, None, None));
    }

    #[test]
    fn a_speed_that_the_driver_does_not_know_is_none() {
        for unknown in ["-1\n", "4294967295\n", "0\n", ""] {
            let sysfs = sysfs_with_eth0("virtual");
            fs::write(sysfs.path().join("class/net/eth0/speed"), unknown).unwrap();
            assert_eq!(hardware(sysfs.path(), "eth0", 2).speed, None, "{unknown:?}");
        }
    }

    #[test]
    fn a_link_of_the_same_name_in_another_namespace_is_ignored() {
        let sysfs = sysfs_with_eth0("pci0000:3a/0000:3b:00.1");
        for (name, index) in [("eth0", 7), ("eth9", 2)] {
            let unknown = Link { index, name: name.to_owned(), ..Link::default() };
            assert_eq!(hardware(sysfs.path(), name, index), unknown);
        }
    }
}
