//! Finds out whether another host has an address that a link has got, before the address is used (RFC 5227,
//! RFC 4862).
//!
//! All addresses of the link are asked for at once, by [frames](frames) that do not say that this host has
//! them. The kernel asks for IPv6 addresses itself, unless a plugin tells it not to (`nodad`, or `accept_dad`
//! as `bridge` sets it): what it is still asking for is left to it, and what it has found counts.
//!
//! What other hosts send is hostile input: they can claim any address. Frames are read until a deadline, and
//! only what they say of the addresses in question counts.

mod frames;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use nix::libc;

use self::frames::{Says, announcement, read};
use super::error::Error;
use super::netlink::Socket;
use super::packets::{Mac, Packets, written};

/// How often an address is asked for. RFC 5227 has 3 (section 1.1, `PROBE_NUM`).
const PROBES: u32 = 3;
/// Time between two probes, and after the last one. RFC 5227 has 1 to 2 s, for networks with slow links: an
/// Ethernet answers within some milliseconds.
const INTERVAL: Duration = Duration::from_millis(250);
/// How long the kernel may take to look for duplicates of an IPv6 address: 1 s, and as much before that by
/// chance (RFC 4862, section 5.4.2). Most plugins wait for it themselves.
const KERNELS_LOOK: Duration = Duration::from_millis(2500);
/// Time between two looks at what the kernel has found.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// An address that another host has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InUse {
    /// The address.
    pub ip: IpAddr,
    /// Hardware address of the host, if that has said so.
    pub by: Option<String>,
}

/// The addresses in question.
struct Asked<'a> {
    ips: &'a [IpAddr],
    /// Hardware addresses of all links of the namespace. The kernel answers by each of them that is on the
    /// same network, and a switch may bring back what was sent.
    own: BTreeSet<&'a str>,
}

impl Asked<'_> {
    /// Whether another host has one of the addresses, or wants it.
    fn is_of_another(&self, says: &Says) -> bool {
        self.ips.contains(&says.ip) && !self.own.contains(written(says.by).as_str())
    }
}

/// What is known of an address that another host has.
#[derive(Debug, Clone, Copy, Default)]
struct Found {
    by: Option<Mac>,
    has_it: bool,
}

/// What the kernel has found about the IPv6 addresses of a link.
#[derive(Debug, Default, PartialEq, Eq)]
struct Kernels {
    /// It is still looking for duplicates of these.
    asking: Vec<IpAddr>,
    /// Another host has these.
    failed: Vec<IpAddr>,
}

impl Kernels {
    fn look(netlink: &mut Socket, index: u32) -> Result<Self, Error> {
        let mut kernels = Self::default();
        for address in netlink.addresses(index)? {
            let has = |flag| address.flags & flag != 0;
            let ip = address.local.addr();
            if has(libc::IFA_F_DADFAILED) {
                kernels.failed.push(ip);
            } else if has(libc::IFA_F_TENTATIVE) && !has(libc::IFA_F_OPTIMISTIC) {
                kernels.asking.push(ip);
            }
        }
        Ok(kernels)
    }
}

/// Returns those of the addresses of a link of the calling thread's network namespace that other hosts have,
/// and tells the neighbours again of these hosts. Blocks for up to [`PROBES`] times [`INTERVAL`], longer only
/// where the kernel is still looking itself.
pub(super) fn in_use(name: &str, ips: &[IpAddr]) -> Result<Vec<InUse>, Error> {
    let (packets, found) = ask(name, ips)?;
    if let Some(packets) = &packets {
        let corrected = correct_neighbours(packets, &found);
        corrected.map_err(|source| Error::Probe { link: name.to_owned(), source })?;
    }
    Ok(in_order(found))
}

/// The same of addresses that the link's pod uses already. Nobody is told anything: who talks to the pod goes
/// on to do so.
pub(super) fn used_twice(name: &str, ips: &[IpAddr]) -> Result<Vec<InUse>, Error> {
    Ok(in_order(ask(name, ips)?.1))
}

fn in_order(found: BTreeMap<IpAddr, Found>) -> Vec<InUse> {
    found.into_iter().map(|(ip, found)| InUse { ip, by: found.by.map(written) }).collect()
}

/// Returns which other hosts have the addresses, and the socket by which they were asked.
fn ask(name: &str, ips: &[IpAddr]) -> Result<(Option<Packets>, BTreeMap<IpAddr, Found>), Error> {
    let failed = |source| Error::Probe { link: name.to_owned(), source };
    let mut netlink = Socket::open()?;
    let links = netlink.links()?;
    let link = links.iter().find(|link| link.name == name);
    let link = link.ok_or_else(|| failed(io::Error::new(io::ErrorKind::NotFound, "the link is gone")))?;
    let asked = Asked { ips, own: links.iter().filter_map(|link| link.mac.as_deref()).collect() };
    let packets = Packets::open(name).map_err(failed)?;
    let (start, mut found) = (Instant::now(), BTreeMap::new());
    for round in 1..=PROBES {
        let kernels = Kernels::look(&mut netlink, link.index)?;
        note_failed(&kernels, ips, &mut found);
        if let Some(packets) = &packets {
            // The kernel would take its own frame that comes back for another host's.
            let due = ips.iter().filter(|ip| !kernels.asking.contains(ip));
            send(packets, due.filter_map(|ip| frames::probe(*ip, packets.own))).map_err(failed)?;
            listen(packets, start + round * INTERVAL, &asked, &mut found).map_err(failed)?;
        }
        if found.values().any(|found| found.by.is_some()) {
            break;
        }
    }
    loop {
        let kernels = Kernels::look(&mut netlink, link.index)?;
        note_failed(&kernels, ips, &mut found);
        let is_asking = ips.iter().any(|ip| kernels.asking.contains(ip));
        if !is_asking || !found.is_empty() {
            break;
        }
        if start.elapsed() >= KERNELS_LOOK {
            return Err(failed(io::Error::new(
                io::ErrorKind::TimedOut,
                "the kernel has not found out whether an IPv6 address is another host's: has the link a carrier?",
            )));
        }
        match &packets {
            Some(packets) => {
                listen(packets, Instant::now() + LOOK_INTERVAL, &asked, &mut found).map_err(failed)?
            }
            None => thread::sleep(LOOK_INTERVAL),
        }
    }
    Ok((packets, found))
}

/// Returns the addresses of a link that other hosts have by what the kernel has found, with who has them. A
/// plugin that waits for the kernel has said this in words of its own.
pub(super) fn found_by_kernel(name: &str) -> Result<Vec<InUse>, Error> {
    let mut netlink = Socket::open()?;
    let Some(link) = netlink.links()?.into_iter().find(|link| link.name == name) else {
        return Ok(Vec::new());
    };
    match Kernels::look(&mut netlink, link.index)?.failed {
        none if none.is_empty() => Ok(Vec::new()),
        failed => in_use(name, &failed),
    }
}

/// Announces the addresses of a link of the calling thread's network namespace, which nobody else has, and
/// has the kernel do so whenever the link comes up again.
pub(super) fn announce(name: &str, ips: &[IpAddr]) -> Result<(), Error> {
    let failed = |source| Error::Announce { link: name.to_owned(), source };
    for sysctl in ["ipv4/conf/NAME/arp_notify", "ipv6/conf/NAME/ndisc_notify"] {
        match fs::write(format!("/proc/sys/net/{}", sysctl.replace("NAME", name)), "1") {
            // Without IPv6, or with the link gone.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            set => set.map_err(failed)?,
        }
    }
    let Some(packets) = Packets::open(name).map_err(failed)? else { return Ok(()) };
    send(&packets, ips.iter().filter_map(|ip| announcement(*ip, packets.own, packets.own))).map_err(failed)
}

/// Some plugins have the kernel announce IPv4 addresses as soon as the interface has them (`arp_notify`). So
/// the neighbours are told again who has the address.
fn correct_neighbours(packets: &Packets, found: &BTreeMap<IpAddr, Found>) -> io::Result<()> {
    let announced = found.iter().filter(|(ip, found)| ip.is_ipv4() && found.has_it);
    // Whoever answers writes what it wants.
    let is_of_a_host = |mac: &Mac| mac[0] & 1 == 0 && *mac != [0; 6];
    let holders = announced.filter_map(|(ip, found)| Some((*ip, found.by.filter(is_of_a_host)?)));
    send(packets, holders.filter_map(|(ip, holder)| announcement(ip, holder, packets.own)))
}

fn send(packets: &Packets, mut frames: impl Iterator<Item = Vec<u8>>) -> io::Result<()> {
    frames.try_for_each(|frame| packets.send(&frame))
}

/// Notes what other hosts say of the addresses until then.
fn listen(
    packets: &Packets,
    until: Instant,
    asked: &Asked<'_>,
    found: &mut BTreeMap<IpAddr, Found>,
) -> io::Result<()> {
    while let Some(frame) = packets.receive(until)? {
        if let Some(says) = read(&frame).filter(|says| asked.is_of_another(says)) {
            let found = found.entry(says.ip).or_default();
            found.by = found.by.filter(|_| found.has_it || !says.has_it).or(Some(says.by));
            found.has_it |= says.has_it;
        }
    }
    Ok(())
}

fn note_failed(kernels: &Kernels, ips: &[IpAddr], found: &mut BTreeMap<IpAddr, Found>) {
    for ip in kernels.failed.iter().filter(|ip| ips.contains(ip)) {
        found.entry(*ip).or_default();
    }
}

/// Reads of which address a frame says something.
#[cfg(feature = "fuzzing")]
pub(crate) fn neighbour_in(frame: &[u8]) -> Option<IpAddr> {
    Some(read(frame)?.ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_host_that_says_something_of_the_address_counts() {
        let ips: [IpAddr; 2] = ["10.9.0.7", "fd09::7"].map(|ip| ip.parse().unwrap());
        let asked = Asked { ips: &ips, own: ["02:00:00:00:00:01", "02:00:00:00:00:0a"].into() };
        let counts = |ip: &str, last: u8| {
            let ip = ip.parse().unwrap();
            asked.is_of_another(&Says { ip, by: [2, 0, 0, 0, 0, last], has_it: true })
        };
        assert!(counts("10.9.0.7", 2) && counts("fd09::7", 2));
        assert!(!counts("10.9.0.7", 1), "its own frame came back");
        assert!(!counts("10.9.0.7", 0xa), "by another interface of the pod");
        assert!(!counts("10.9.0.8", 2), "another address");
    }

    #[test]
    fn all_probes_take_less_than_a_second() {
        assert!(PROBES * INTERVAL < Duration::from_secs(1));
    }
}
