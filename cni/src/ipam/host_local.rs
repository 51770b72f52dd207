//! The reference IPAM plugin `host-local`: how many attachments its ranges allow, and what it has handed out.
//!
//! The plugin gives each attachment one address of every *range set*, so the set with the fewest addresses
//! decides. The rules here are those of the plugin, version 1.9.1 (`backend/allocator`, `backend/disk`); no
//! STATUS tells them.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, DirEntry, File, Metadata};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ipnet::IpNet;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use crate::names::ListName;

/// The plugin's `type`.
pub const TYPE: &str = "host-local";

/// Where the plugin keeps its reservations unless the configuration has a `dataDir`.
pub const DEFAULT_DATA_DIR: &str = "/var/lib/cni/networks";

/// Longest reservation file that is read, in bytes: a container ID and an interface name are shorter.
const MAX_RESERVATION: u64 = 1024;

/// The address ranges of a `host-local` configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLocal {
    sets: Vec<Vec<Range>>,
    data_dir: PathBuf,
}

/// A range of addresses of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Range {
    subnet: IpNet,
    start: u128,
    end: u128,
    /// `None` for one of the other family, which is not an address here.
    gateway: Option<u128>,
}

/// An address that the plugin has handed out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reservation {
    /// The address.
    pub ip: IpAddr,
    /// The container it was given to.
    pub container_id: String,
    /// The interface it was given to; plugins before 0.7 did not note it.
    pub if_name: Option<String>,
}

/// A `host-local` configuration that the plugin would refuse.
#[derive(Debug, thiserror::Error)]
pub enum HostLocalError {
    /// Not of the form the plugin reads.
    #[error("the ipam configuration is not one of host-local")]
    Form(#[source] serde_json::Error),
    /// There is no range.
    #[error("the ipam configuration has neither `subnet` nor `ranges`")]
    NoRanges,
    /// A range set without a range.
    #[error("range set {set} is empty")]
    EmptySet {
        /// Its place.
        set: usize,
    },
    /// A subnet of one or two addresses.
    #[error("subnet {0} is too small to allocate from: at most /30, or /126 for IPv6, is possible")]
    TooSmall(IpNet),
    /// An IPv4 subnet in the notation of IPv6, which the plugin cannot read.
    #[error("subnet {0} is IPv4 written as IPv6: write it as 10.0.0.0/24 is written")]
    Mapped(IpNet),
    /// A subnet that names a host.
    #[error("subnet {subnet} has host bits set: write {}", subnet.trunc())]
    HostBits {
        /// The subnet as written.
        subnet: IpNet,
    },
    /// A limit or gateway that does not fit.
    #[error("{key} {address} is not within subnet {subnet}, or the range ends before it starts")]
    Outside {
        /// `rangeStart` or `rangeEnd`.
        key: &'static str,
        /// Its value.
        address: IpAddr,
        /// The subnet.
        subnet: IpNet,
    },
    /// Families cannot be mixed in a set.
    #[error("range set {set} mixes IPv4 and IPv6: give each family a set of its own")]
    Mixed {
        /// Its place.
        set: usize,
    },
    /// Ranges overlap.
    #[error("the ranges of subnets {0} and {1} overlap")]
    Overlap(IpNet, IpNet),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Conf {
    #[serde(default)]
    subnet: Option<IpNet>,
    #[serde(default, deserialize_with = "some_address")]
    range_start: Option<IpAddr>,
    #[serde(default, deserialize_with = "some_address")]
    range_end: Option<IpAddr>,
    #[serde(default, deserialize_with = "some_address")]
    gateway: Option<IpAddr>,
    #[serde(default)]
    ranges: Option<Vec<Vec<RangeConf>>>,
    #[serde(default)]
    data_dir: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RangeConf {
    subnet: IpNet,
    #[serde(default, deserialize_with = "some_address")]
    range_start: Option<IpAddr>,
    #[serde(default, deserialize_with = "some_address")]
    range_end: Option<IpAddr>,
    #[serde(default, deserialize_with = "some_address")]
    gateway: Option<IpAddr>,
}

/// For the plugin an empty text is not an address, and not a wrong one.
fn some_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?.filter(|text| !text.is_empty());
    text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
}

impl HostLocal {
    /// Reads an `ipam` object: the flat form with one `subnet`, `ranges`, or both, in which case the flat one
    /// comes first.
    ///
    /// # Errors
    /// [`HostLocalError`] for what the plugin would refuse at ADD.
    pub fn parse(ipam: &str) -> Result<Self, HostLocalError> {
        let conf: Conf = serde_json::from_str(ipam).map_err(HostLocalError::Form)?;
        let Conf { subnet, range_start, range_end, gateway, ranges, data_dir } = conf;
        let flat = subnet.map(|subnet| vec![RangeConf { subnet, range_start, range_end, gateway }]);
        let sets = flat
            .into_iter()
            .chain(ranges.unwrap_or_default())
            .enumerate()
            .map(|(set, ranges)| range_set(set, &ranges))
            .collect::<Result<Vec<_>, _>>()?;
        if sets.is_empty() {
            return Err(HostLocalError::NoRanges);
        }
        let all: Vec<&Range> = sets.iter().flatten().collect();
        for (index, a) in all.iter().enumerate() {
            if let Some(b) = all.iter().skip(index + 1).find(|b| a.overlaps(b)) {
                return Err(HostLocalError::Overlap(a.subnet, b.subnet));
            }
        }
        let data_dir = data_dir.filter(|dir| !dir.as_os_str().is_empty());
        Ok(Self { sets, data_dir: data_dir.unwrap_or_else(|| DEFAULT_DATA_DIR.into()) })
    }

    /// How many attachments the ranges allow when nothing is reserved.
    pub fn capacity(&self) -> u128 {
        self.left(&BTreeSet::new())
    }

    /// How many attachments the ranges allow beside `taken`. Addresses outside of the ranges do not count.
    pub fn left<'a>(&self, taken: impl IntoIterator<Item = &'a IpAddr>) -> u128 {
        let taken: BTreeSet<IpAddr> = taken.into_iter().map(IpAddr::to_canonical).collect();
        let free = |set: &Vec<Range>| {
            let size = set.iter().fold(0u128, |sum, range| sum.saturating_add(range.size()));
            let used = taken.iter().filter(|ip| set.iter().any(|range| range.hands_out(**ip))).count();
            size.saturating_sub(used as u128)
        };
        self.sets.iter().map(free).min().unwrap_or(0)
    }

    /// Whether there is an address that both could hand out.
    pub fn overlaps(&self, other: &Self) -> bool {
        let mut ranges = self.sets.iter().flatten();
        ranges.any(|range| other.sets.iter().flatten().any(|other| range.overlaps(other)))
    }

    /// The directory with the reservations of a network.
    pub fn reservations_dir(&self, network: &ListName) -> PathBuf {
        self.data_dir.join(network.as_str())
    }
}

/// The directory with the reservations of a network whose configuration has no `dataDir`.
pub fn default_reservations_dir(network: &str) -> PathBuf {
    Path::new(DEFAULT_DATA_DIR).join(network)
}

/// Returns the container that an address of a network's directory is reserved for.
///
/// # Errors
/// The address is not reserved, or its file cannot be read.
pub fn holder(dir: &Path, ip: IpAddr) -> io::Result<String> {
    Ok(read_file(&dir.join(ip.to_string()), ip)?.container_id)
}

/// The reservations in a network's directory, sorted. There are none if the directory does not exist.
///
/// Taken without the plugin's lock. A reservation that comes or goes meanwhile may be in the list or not.
///
/// # Errors
/// The directory or a file in it cannot be read.
pub fn reservations(dir: &Path) -> io::Result<Vec<Reservation>> {
    Reservations::default().read(dir).map(|found| found.to_vec())
}

/// Reads [`reservations`] again and again: a file once as long as it is the same, and none in a directory
/// that is the same. Clones share what they know.
#[derive(Clone, Debug, Default)]
pub struct Reservations(Arc<Mutex<HashMap<PathBuf, Arc<Directory>>>>);

/// How old the last change must be for a later one to have another time: kernels stamp changes by their tick,
/// 10 ms at most.
const TICKS: Duration = Duration::from_millis(20);

/// How long an unchanged directory stands for its files: a program may write into one, which is not a change
/// of the directory.
const LIFETIME: Duration = Duration::from_secs(60);

/// A directory when it was read.
#[derive(Debug)]
struct Directory {
    version: FileVersion,
    /// By the addresses that the files are named after: the file, and its place in `reservations`.
    files: HashMap<IpAddr, (FileVersion, usize)>,
    reservations: Arc<[Reservation]>,
    /// Until when nothing has changed if `version` is the same.
    trusted_until: Option<Instant>,
}

/// A file in a state: it is read again when one of these differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileVersion {
    device: u64,
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds of the last change. The plugin writes a file once, as soon as it has created
    /// it.
    changed: (i64, i64),
}

impl FileVersion {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether a change after `now` has another time.
    fn is_settled(&self, now: SystemTime) -> bool {
        let (seconds, nanoseconds) = self.changed;
        let since = |number: i64| u64::try_from(number).unwrap_or_default();
        let changed =
            Duration::from_secs(since(seconds)).saturating_add(Duration::from_nanos(since(nanoseconds)));
        let changed = UNIX_EPOCH.checked_add(changed);
        changed.is_some_and(|changed| now.duration_since(changed).is_ok_and(|age| age >= TICKS))
    }
}

impl Reservations {
    /// Returns the reservations in a network's directory, as [`reservations`] does.
    ///
    /// # Errors
    /// The directory or a file in it cannot be read.
    pub fn read(&self, dir: &Path) -> io::Result<Arc<[Reservation]>> {
        // Taken before the names: a directory that changes meanwhile is read again.
        let version = match fs::metadata(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.lock().remove(dir);
                return Ok(Arc::default());
            }
            metadata => FileVersion::of(&metadata?),
        };
        // Others may read at the same time: what is known stays in the map for them.
        let before = self.lock().get(dir).cloned();
        if let Some(before) = &before
            && before.version == version
            && before.trusted_until.is_some_and(|until| Instant::now() < until)
        {
            return Ok(Arc::clone(&before.reservations));
        }
        let now = Directory::read(dir, version, before.as_deref())?;
        let found = Arc::clone(&now.reservations);
        self.lock().insert(dir.to_owned(), Arc::new(now));
        Ok(found)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, Arc<Directory>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Directory {
    /// Reads the directory, but only the files that are not as they were `before`.
    fn read(dir: &Path, version: FileVersion, before: Option<&Self>) -> io::Result<Self> {
        let (started, clock) = (Instant::now(), SystemTime::now());
        let mut found: Vec<(IpAddr, FileVersion, Reservation)> = Vec::new();
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            entries => Some(entries?),
        };
        for entry in entries.into_iter().flatten() {
            let entry = entry?;
            let Some(ip) = entry.file_name().to_str().and_then(|name| name.parse::<IpAddr>().ok()) else {
                continue; // The lock and the notes on the last address are kept in the same place.
            };
            match read(&entry, ip, before) {
                Ok((version, reservation)) => found.push((ip, version, reservation)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            }
        }
        found.sort_unstable_by(|(_, _, a), (_, _, b)| a.cmp(b));
        // A file that names no container was only created until here.
        let is_settled = |(_, version, reservation): &(_, FileVersion, Reservation)| {
            version.is_settled(clock) && !reservation.container_id.is_empty()
        };
        let is_settled = version.is_settled(clock) && found.iter().all(is_settled);
        let files = found.iter().enumerate().map(|(place, (ip, version, _))| (*ip, (*version, place)));
        Ok(Self {
            version,
            files: files.collect(),
            reservations: found.into_iter().map(|(_, _, reservation)| reservation).collect(),
            trusted_until: is_settled.then(|| started + LIFETIME),
        })
    }
}

/// Reads a file, unless it is in the state in which it was `before`.
fn read(entry: &DirEntry, ip: IpAddr, before: Option<&Directory>) -> io::Result<(FileVersion, Reservation)> {
    // Taken before the content: a file that changes meanwhile is read again.
    let version = FileVersion::of(&entry.metadata()?);
    if let Some(before) = before
        && let Some((_, place)) = before.files.get(&ip).filter(|(before, _)| *before == version)
        && let Some(same) = before.reservations.get(*place)
    {
        return Ok((version, same.clone()));
    }
    Ok((version, read_file(&entry.path(), ip)?))
}

fn read_file(path: &Path, ip: IpAddr) -> io::Result<Reservation> {
    let mut text = Vec::new();
    File::open(path)?.take(MAX_RESERVATION).read_to_end(&mut text)?;
    Ok(reservation(ip, &String::from_utf8_lossy(&text)))
}

pub(crate) fn reservation(ip: IpAddr, text: &str) -> Reservation {
    let mut lines = text.trim().lines();
    Reservation {
        ip: ip.to_canonical(),
        container_id: lines.next().unwrap_or_default().trim().to_owned(),
        if_name: lines.next().map(|line| line.trim().to_owned()),
    }
}

fn range_set(set: usize, ranges: &[RangeConf]) -> Result<Vec<Range>, HostLocalError> {
    let ranges = ranges.iter().map(Range::new).collect::<Result<Vec<_>, _>>()?;
    let Some(first) = ranges.first() else {
        return Err(HostLocalError::EmptySet { set });
    };
    if ranges.iter().any(|range| range.is_v4() != first.is_v4()) {
        return Err(HostLocalError::Mixed { set });
    }
    Ok(ranges)
}

impl Range {
    fn new(conf: &RangeConf) -> Result<Self, HostLocalError> {
        let subnet = conf.subnet;
        if subnet.prefix_len() + 2 > subnet.max_prefix_len() {
            return Err(HostLocalError::TooSmall(subnet));
        }
        if subnet.addr().is_ipv6() && subnet.addr().to_canonical().is_ipv4() {
            return Err(HostLocalError::Mapped(subnet));
        }
        if subnet != subnet.trunc() {
            return Err(HostLocalError::HostBits { subnet });
        }
        let first = number(subnet.network()) + 1;
        // The last address of an IPv4 subnet is its broadcast address; IPv6 has none.
        let last = number(subnet.broadcast()) - u128::from(matches!(subnet, IpNet::V4(_)));

        let within =
            |address: Option<IpAddr>, key, otherwise| match address.map(|address| address.to_canonical()) {
                None => Ok(otherwise),
                Some(address) if subnet.contains(&address) => Ok(number(address)),
                Some(address) => Err(HostLocalError::Outside { key, address, subnet }),
            };
        let start = within(conf.range_start, "rangeStart", first)?;
        let end = within(conf.range_end, "rangeEnd", last)?;
        if start > end {
            let (key, number) =
                if conf.range_end.is_some() { ("rangeEnd", end) } else { ("rangeStart", start) };
            return Err(HostLocalError::Outside { key, address: address(number, &subnet), subnet });
        }
        let gateway = match conf.gateway.map(|gateway| gateway.to_canonical()) {
            None => Some(first),
            Some(gateway) => Some(number(gateway)).filter(|_| gateway.is_ipv4() == subnet.addr().is_ipv4()),
        };
        Ok(Self { subnet, start, end, gateway })
    }

    fn is_v4(&self) -> bool {
        matches!(self.subnet, IpNet::V4(_))
    }

    /// Addresses that can be handed out: all but the gateway's.
    fn size(&self) -> u128 {
        let has_gateway = self.gateway.is_some_and(|gateway| (self.start..=self.end).contains(&gateway));
        // All of IPv6 has one more than there is room for.
        (self.end - self.start).saturating_add(u128::from(!has_gateway))
    }

    fn hands_out(&self, ip: IpAddr) -> bool {
        let at = number(ip);
        ip.is_ipv4() == self.is_v4() && (self.start..=self.end).contains(&at) && self.gateway != Some(at)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.is_v4() == other.is_v4() && self.start <= other.end && other.start <= self.end
    }
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn address(number: u128, subnet: &IpNet) -> IpAddr {
    match (subnet, u32::try_from(number)) {
        (IpNet::V4(_), Ok(bits)) => Ipv4Addr::from_bits(bits).into(),
        _ => Ipv6Addr::from_bits(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn capacity(ipam: &str) -> u128 {
        HostLocal::parse(ipam).unwrap().capacity()
    }

    #[test]
    fn every_form_of_range_is_counted_without_its_gateway() {
        for (ipam, expected) in [
            (r#"{"type":"host-local","subnet":"10.0.0.0/24","routes":[]}"#, 253),
            (r#"{"subnet":"10.0.0.0/30"}"#, 1),
            (r#"{"subnet":"10.0.0.0/24","gateway":"10.0.0.254"}"#, 253),
            (r#"{"subnet":"10.0.0.0/24","gateway":"10.0.1.1"}"#, 254),
            (r#"{"subnet":"10.0.0.0/24","gateway":"::ffff:10.0.0.9"}"#, 253),
            // The same number as an IPv4 address is not the same address.
            (r#"{"subnet":"10.0.0.0/24","gateway":"::a00:9"}"#, 254),
            (r#"{"subnet":"::/0","rangeStart":"::","gateway":"10.0.0.1"}"#, u128::MAX),
            (r#"{"subnet":"10.0.0.0/24","rangeStart":"10.0.0.10","rangeEnd":"10.0.0.19"}"#, 10),
            (
                r#"{"subnet":"10.0.0.0/24","rangeStart":"10.0.0.10","rangeEnd":"10.0.0.19","gateway":"10.0.0.12"}"#,
                9,
            ),
            (r#"{"subnet":"10.0.0.0/24","rangeStart":"10.0.0.255","rangeEnd":"10.0.0.255"}"#, 1),
            (r#"{"subnet":"10.0.0.0/24","rangeStart":"10.0.0.1","rangeEnd":"10.0.0.1"}"#, 0),
            (r#"{"subnet":"10.0.0.0/24","rangeStart":"","rangeEnd":null,"gateway":""}"#, 253),
            (r#"{"subnet":"fd00::/120"}"#, 254),
            (r#"{"subnet":"fd00::/64"}"#, (1 << 64) - 2),
            (r#"{"subnet":"::/0","rangeStart":"::","gateway":"::1"}"#, u128::MAX),
            (r#"{"ranges":[[{"subnet":"10.0.0.0/29"},{"subnet":"10.1.0.0/29"}]]}"#, 10),
            (r#"{"ranges":[[{"subnet":"10.0.0.0/24"}],[{"subnet":"fd00::/126"}]]}"#, 2),
            (r#"{"subnet":"10.0.0.0/29","ranges":[[{"subnet":"fd00::/64"}]]}"#, 5),
        ] {
            assert_eq!(capacity(ipam), expected, "{ipam}");
        }
    }

    #[test]
    fn reserved_addresses_count_where_they_are_in_a_range() {
        let ipam = r#"{"ranges":[[{"subnet":"10.0.0.0/29"}],[{"subnet":"fd00::/64"}]]}"#;
        let host_local = HostLocal::parse(ipam).unwrap();
        let taken =
            |ips: &[&str]| host_local.left(&ips.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<_>>());
        assert_eq!(taken(&[]), 5);
        assert_eq!(taken(&["10.0.0.2", "fd00::2", "10.0.0.2", "::ffff:10.0.0.3"]), 3);
        // The gateway, the broadcast address, and another network's cannot be lost.
        assert_eq!(taken(&["10.0.0.1", "10.0.0.7", "10.1.0.2", "::a00:2"]), 5);
    }

    #[test]
    fn ranges_that_the_plugin_refuses_are_refused() {
        for ipam in [
            "{}",
            r#"{"ranges":[]}"#,
            r#"{"ranges":[[]]}"#,
            r#"{"subnet":"10.0.0.0/31"}"#,
            r#"{"subnet":"fd00::/127"}"#,
            r#"{"subnet":"10.0.0.1/24"}"#,
            r#"{"subnet":"10.0.0.0"}"#,
            r#"{"subnet":"::ffff:10.0.0.0/120"}"#,
            r#"{"subnet":"10.0.0.0/24","rangeStart":"10.0.1.1"}"#,
            r#"{"subnet":"10.0.0.0/24","rangeEnd":"fd00::1"}"#,
            r#"{"subnet":"10.0.0.0/24","rangeStart":"10.0.0.9","rangeEnd":"10.0.0.8"}"#,
            r#"{"ranges":[[{"subnet":"10.0.0.0/24"},{"subnet":"fd00::/64"}]]}"#,
            r#"{"ranges":[[{"subnet":"10.0.0.0/24"}],[{"subnet":"10.0.0.128/25"}]]}"#,
            r#"{"ranges":[{"subnet":"10.0.0.0/24"}]}"#,
        ] {
            assert!(HostLocal::parse(ipam).is_err(), "{ipam}");
        }
    }

    #[test]
    fn reservations_are_read_in_both_of_their_forms() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("10.0.0.2", "c1\r\nnet1");
        write("fd00::2", "c2\r\neth0");
        write("10.0.0.3", "c3");
        write("last_reserved_ip.0", "10.0.0.3");
        write("lock", "");
        let reservation = |ip: &str, container_id: &str, if_name: Option<&str>| Reservation {
            ip: ip.parse().unwrap(),
            container_id: container_id.into(),
            if_name: if_name.map(Into::into),
        };
        assert_eq!(
            reservations(dir.path()).unwrap(),
            [
                reservation("10.0.0.2", "c1", Some("net1")),
                reservation("10.0.0.3", "c3", None),
                reservation("fd00::2", "c2", Some("eth0")),
            ]
        );
        assert_eq!(reservations(&dir.path().join("none")).unwrap(), []);
        let holder = |ip: &str| holder(dir.path(), ip.parse().unwrap()).ok();
        assert_eq!((holder("fd00::2").as_deref(), holder("10.0.0.4")), (Some("c2"), None));
    }

    #[test]
    fn a_reservation_is_read_again_when_its_file_has_changed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("10.0.0.2");
        let (known, others) = (Reservations::default(), Reservations::default());
        let holders = |reservations: &Reservations| -> Vec<String> {
            let found = reservations.read(dir.path()).unwrap();
            found.iter().map(|found| found.container_id.clone()).collect()
        };
        // Only created, or written by half.
        fs::write(&file, "").unwrap();
        assert_eq!(holders(&known), [""]);
        fs::write(&file, "c1").unwrap();
        assert_eq!(
            (holders(&known), holders(&known.clone())),
            (vec!["c1".to_owned()], vec!["c1".to_owned()])
        );
        fs::remove_file(&file).unwrap();
        assert_eq!(holders(&known), [""; 0]);
        // The same address again, in a file of the same size.
        fs::write(&file, "c2").unwrap();
        assert_eq!(holders(&known), ["c2"]);
        fs::remove_dir_all(dir.path()).unwrap();
        assert_eq!((holders(&known), holders(&others)), (vec![], vec![]));
    }

    #[test]
    fn a_directory_that_is_the_same_is_not_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let known = Reservations::default();
        let read = || known.read(dir.path()).unwrap();
        fs::write(dir.path().join("10.0.0.2"), "c1").unwrap();
        assert!(!Arc::ptr_eq(&read(), &read()), "a file that is new may still be written");
        std::thread::sleep(2 * TICKS);
        let first = read();
        assert!(
            Arc::ptr_eq(&first, &read()) && Arc::ptr_eq(&first, &known.clone().read(dir.path()).unwrap())
        );
        fs::write(dir.path().join("10.0.0.3"), "").unwrap();
        std::thread::sleep(2 * TICKS);
        assert_eq!(read().len(), 2);
        assert!(!Arc::ptr_eq(&read(), &read()), "a file without a container is written yet");
    }

    #[derive(Clone, Copy, Debug)]
    enum Change {
        Reserve(u8, u8),
        Release(u8),
        Remove,
        Wait,
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            6 => (0..4u8, 0..3u8).prop_map(|(ip, container)| Change::Reserve(ip, container)),
            6 => (0..4u8).prop_map(Change::Release),
            1 => Just(Change::Remove),
            2 => Just(Change::Wait),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn a_known_directory_reads_like_one_that_is_read_first(
            changes in proptest::collection::vec((change(), any::<bool>()), 1..24),
        ) {
            let root = tempfile::tempdir().unwrap();
            let dir = root.path().join("n");
            let known = Reservations::default();
            for (change, is_read) in changes {
                match change {
                    Change::Reserve(ip, container) => {
                        let _ = fs::create_dir(&dir);
                        let file = dir.join(format!("10.0.0.{ip}"));
                        if !file.exists() {
                            // With other lengths: an inode may be used again within a tick.
                            fs::write(file, "c".repeat(container.into())).unwrap();
                        }
                    }
                    Change::Release(ip) => drop(fs::remove_file(dir.join(format!("10.0.0.{ip}")))),
                    Change::Remove => drop(fs::remove_dir_all(&dir)),
                    Change::Wait => std::thread::sleep(2 * TICKS),
                }
                if is_read {
                    prop_assert_eq!(known.read(&dir).unwrap().to_vec(), reservations(&dir).unwrap());
                }
            }
        }
    }

    #[test]
    fn the_directory_is_the_networks() {
        let network = "net".parse().unwrap();
        let dir = |ipam| HostLocal::parse(ipam).unwrap().reservations_dir(&network);
        assert_eq!(dir(r#"{"subnet":"10.0.0.0/24"}"#), Path::new("/var/lib/cni/networks/net"));
        assert_eq!(dir(r#"{"subnet":"10.0.0.0/24","dataDir":"/d"}"#), Path::new("/d/net"));
    }
}
